"""The age of timestamped objects, robust against changes of the clock.

Unreferenced objects, and those that users have removed, are deleted once they are old. The clock
alone does not prove their age: setting it ahead by a day ends a grace period of a day at once. So
the leader reads the clock every few minutes, and records the spans in which it agreed with elapsed
time. Only these count, not jumps or unobserved time. So a wrong clock, or downtime of the platform,
delays deletions and never hastens them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import msgspec
import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Clock

OBSERVE_EVERY_S: Final = 300.0
MOST_APART_S: Final = 300.0
"""Max difference between the object store's clock and ours."""
TOLERANCE_S: Final = 60.0
"""Max difference between a clock and elapsed time since its last reading."""
UNOBSERVED_S: Final = 900.0
"""Max gap between two leaders, or two starts, that counts: nothing can measure it."""
MOST_SPANS: Final = 500

_PROPERTY: Final = "clock observed"
_log = structlog.get_logger()


class ClocksDiffer(NsmlError):
    """The object store's clock or ours is wrong, so ages are unknown."""

    reason = "CLOCKS_DIFFER"


class Span(NamedTuple):
    """A span in which a clock ran correctly, by that clock (Unix s)."""

    start: float
    end: float


def extended(spans: Sequence[Span], now: float, elapsed_s: float | None) -> tuple[Span, ...]:
    """Return the spans after the clock reads `now`.

    Args:
        spans: in the order observed.
        now: Unix s.
        elapsed_s: elapsed time since the end of the last span; None: unknown.
    """
    if spans:
        start, end = spans[-1]
        least, most = (0.0, UNOBSERVED_S) if elapsed_s is None else (elapsed_s, elapsed_s)
        if least - TOLERANCE_S <= now - end <= most + TOLERANCE_S:
            return (*spans[:-1], Span(start, max(end, now)))
        if now - end < least:
            # Stamps between the step back and this reading may look older than much earlier ones.
            return (Span(now, now),)
    return (*spans, Span(now, now))


def cutoff(spans: Sequence[Span], age_s: float) -> float:
    """Return the latest stamp that is `age_s` old; minus infinity if the clock was observed for less."""
    for start, end in reversed(spans):
        if end - start >= age_s:
            return end - age_s
        age_s -= end - start
    return float("-inf")


def needed(spans: Sequence[Span], age_s: float) -> tuple[Span, ...]:
    """Return the last spans that cover `age_s`."""
    for at in range(len(spans) - 1, -1, -1):
        age_s -= spans[at].end - spans[at].start
        if age_s <= 0:
            return tuple(spans[max(at, len(spans) - MOST_SPANS) :])
    return tuple(spans[-MOST_SPANS:])


class ObservedClock:
    """The clock of the object store, observed by the successive leaders.

    Args:
        clock: ours.
        grace_s: the grace period.
    """

    def __init__(
        self, *, objects: ObjectStore, history: History, clock: Clock, grace_s: float
    ) -> None:
        self._objects = objects
        self._history = history
        self._clock = clock
        self._grace_s = grace_s
        self._last: tuple[float, float] | None = None
        self._one = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Observe the clock until cancelled."""
        while True:
            try:
                await self.cutoff()
            except NsmlError as error:
                _log.warning("clock.not_observed", reason=f"{error.message}: {error.why}")
            await self._clock.sleep(OBSERVE_EVERY_S)

    async def cutoff(self) -> float:
        """Return the latest stamp that is a grace period old; minus infinity if none is known to be.

        Raises:
            ClocksDiffer: the store's clock and ours differ by more than MOST_APART_S.
            ObjectsUnavailable, HistoryUnavailable: it cannot be read, or recorded.
        """
        async with self._one:
            at, now = self._clock.monotonic(), await self._objects.now()
            apart = now - self._clock.time()
            written = await self._history.update_property(_PROPERTY, partial(self._next, now, at))
            spans = _decoded(written)
            self._last = at, spans[-1].end
        if abs(apart) > MOST_APART_S:
            raise ClocksDiffer(
                f"the history's clock is {abs(apart):.0f} s"
                f" {'ahead of' if apart > 0 else 'behind'} the control plane's",
                why="how old anything is is unknown, so nothing is deleted",
                attempt="set both clocks, and keep them right with a time service",
            )
        return cutoff(spans, self._grace_s)

    def _next(self, now: float, at: float, written: str) -> str:
        spans = _decoded(written)
        elapsed_s = None
        if spans and self._last is not None and self._last[1] == spans[-1].end:
            elapsed_s = at - self._last[0]
        after = extended(spans, now, elapsed_s)
        if spans and after[-1].start != spans[-1].start:
            jump = now - spans[-1].end
            if elapsed_s is not None or jump < 0:
                _log.warning("clock.jumped", by_s=round(jump - (elapsed_s or 0.0)))
        return msgspec.json.encode(needed(after, self._grace_s)).decode()


def _decoded(written: str) -> list[Span]:
    return msgspec.json.decode(written, type=list[Span]) if written else []
