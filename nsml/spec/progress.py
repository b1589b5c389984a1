"""How far a training is, and when it probably ends: from the progress records of one attempt. Pure.

The rate is that of the last half of the progress so far: loading data and compiling do not count for long, and
regular work, such as a validation after each epoch, counts with its share. Times while the program is paused do not
count.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

LATEST_TIME: Final = float(1 << 33)
"""Unix seconds: later times, and negative ones, are invalid."""
UNIT: Final = re.compile(r"[a-z]{1,16}")
ORIGIN: Final = re.compile(r"[a-z_]{1,32}")
MOST: Final = float(1 << 53)
"""Largest valid number."""
MOST_SAMPLES: Final = 32
LATE_S: Final = 10.0
"""How long a report takes to arrive, at most: reports later than that delay the end."""


class Reported(NamedTuple):
    """A valid progress record, at a time in Unix seconds."""

    time: float
    done: float
    of: float
    """0: unknown."""
    unit: str
    origin: str = ""
    ends_at: float | None = None
    """The program's own estimate."""


class Sample(NamedTuple):
    """Progress at a time without pauses; `gap_s`: the longest time between two reports since the previous sample."""

    at: float
    done: float
    gap_s: float


class Estimate(NamedTuple):
    """When a training probably ends, and when it reports again at the latest; None: unknown."""

    ends_at: float | None
    next_at: float | None


NO_ESTIMATE: Final = Estimate(None, None)


def is_valid(record: Reported) -> bool:
    """Return whether the values of a record from a program are in range."""
    if not (0 <= record.time < LATEST_TIME and UNIT.fullmatch(record.unit)):
        return False
    if record.origin and not ORIGIN.fullmatch(record.origin):
        return False
    return all(0 <= number <= MOST for number in (record.done, record.of, record.ends_at or 0.0))


class CourseState(NamedTuple):
    """See Course; all times but `paused_at` are without pauses."""

    samples: tuple[Sample, ...] = ()
    spacing_s: float = 0.0
    paused_s: float = 0.0
    paused_at: float | None = None
    ends_at: float | None = None


class Course:
    """The progress of one attempt, from its reports in their order.

    It keeps at most MOST_SAMPLES samples, evenly spaced in time. They start anew when the unit changes, or when less is
    done than before: then another training has begun.
    """

    def __init__(self) -> None:
        self.last: Reported | None = None
        self._samples: list[Sample] = []
        self._spacing_s = 0.0
        self._paused_s = 0.0
        self._paused_at: float | None = None
        self._ends_at: float | None = None  # without pauses

    def add(self, report: Reported) -> None:
        """Add the next report."""
        self.go_on(report.time)  # a program that trains is not paused
        last, at = self.last, report.time - self._paused_s
        self.last = report
        self._ends_at = None
        if report.ends_at is not None and report.time <= report.ends_at < LATEST_TIME:
            self._ends_at = report.ends_at - self._paused_s
        samples = self._samples
        is_same = last is not None and last.unit == report.unit and last.done <= report.done
        if not is_same or not samples or at < samples[-1].at:
            self._samples, self._spacing_s = [Sample(at, report.done, 0.0)], 0.0
            return
        newest = samples[-1]
        gap_s = at - newest.at
        if len(samples) > 1 and newest.at - samples[-2].at < self._spacing_s:
            samples[-1] = Sample(at, report.done, max(newest.gap_s, gap_s))
            return
        samples.append(Sample(at, report.done, gap_s))
        if len(samples) > MOST_SAMPLES:
            self._thin_out()

    def pause(self, at: float) -> None:
        """The program waits from a time on."""
        if self.last is not None and self._paused_at is None and at >= self.last.time:
            self._paused_at = at

    def go_on(self, at: float) -> None:
        """The program no longer waits."""
        if self._paused_at is not None:
            self._paused_s += max(at - self._paused_at, 0.0)
            self._paused_at = None

    def estimate(self) -> Estimate:
        """Estimate the end."""
        last, samples = self.last, self._samples
        if last is None or not samples or self._paused_at is not None:
            return NO_ESTIMATE
        newest = samples[-1]
        first = _start(samples)
        gap_s = max((one.gap_s for one in samples[first + 1 :]), default=0.0)
        next_at = newest.at + gap_s + LATE_S if len(samples) > 1 else None
        ends_at = self._ends_at
        if ends_at is None and last.of > last.done:
            ends_at = _end(samples[first], newest, last.of)
        return Estimate(self._with_pauses(ends_at), self._with_pauses(next_at))

    def _with_pauses(self, at: float | None) -> float | None:
        found = None if at is None else at + self._paused_s
        return found if found is not None and 0 <= found < LATEST_TIME else None

    def _thin_out(self) -> None:
        """Remove every second sample but the first and the newest."""
        *kept, newest = self._samples
        thinned = kept[:1]
        for one, other in zip(kept[1::2], kept[2::2], strict=False):
            thinned.append(other._replace(gap_s=max(one.gap_s, other.gap_s)))
        if len(kept) % 2 == 0:
            newest = newest._replace(gap_s=max(newest.gap_s, kept[-1].gap_s))
        self._samples = [*thinned, newest]
        span_s = newest.at - thinned[0].at
        self._spacing_s = span_s / (MOST_SAMPLES / 2)

    @property
    def state(self) -> CourseState:
        """Everything but the last report, to be stored."""
        return CourseState(
            tuple(self._samples), self._spacing_s, self._paused_s, self._paused_at, self._ends_at
        )

    @classmethod
    def of_state(cls, last: Reported, state: CourseState) -> Course:
        """Continue from a stored state."""
        course = cls()
        course.last = last
        course._samples = list(state.samples)
        course._spacing_s, course._paused_s = state.spacing_s, state.paused_s
        course._paused_at, course._ends_at = state.paused_at, state.ends_at
        return course


def _start(samples: list[Sample]) -> int:
    """Return where the last half of the progress begins."""
    half = samples[0].done + (samples[-1].done - samples[0].done) / 2
    before = [place for place, one in enumerate(samples[:-1]) if one.done <= half]
    return before[-1] if before else 0


def _end(start: Sample, newest: Sample, of: float) -> float | None:
    took_s, done = newest.at - start.at, newest.done - start.done
    if took_s <= 0 or done <= 0:
        return None
    left_s = (of - newest.done) / done * took_s
    return newest.at + left_s if math.isfinite(left_s) else None


def ends_at(estimate: Estimate, now: float) -> float | None:
    """Return when a training ends as of now: a late report delays the end by as much. None: unknown, or already past."""
    if estimate.ends_at is None:
        return None
    late_s = 0.0 if estimate.next_at is None else max(now - estimate.next_at, 0.0)
    at = estimate.ends_at + late_s
    return at if at > now else None
