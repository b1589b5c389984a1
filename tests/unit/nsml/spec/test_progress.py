"""The estimated end of a training: properties over courses of any pace, with pauses and breaks."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.progress import (
    LATE_S,
    LATEST_TIME,
    MOST_SAMPLES,
    NO_ESTIMATE,
    Course,
    Estimate,
    Reported,
    ends_at,
    is_valid,
)


def course_of(*points: tuple[float, float], of: float = 100.0, unit: str = "steps") -> Course:
    course = Course()
    for at, done in points:
        course.add(Reported(at, done, of, unit))
    return course


def even(start: float, s_per_step: float, steps: int) -> list[tuple[float, float]]:
    return [(start + s_per_step * step, float(step)) for step in range(steps + 1)]


@given(st.floats(1e6, 1e9), st.floats(0.01, 1e4), st.integers(1, 500), st.integers(1, 10_000))
def test_an_even_pace_ends_when_it_does(start: float, pace: float, steps: int, left: int) -> None:
    estimate = course_of(*even(start, pace, steps), of=float(steps + left)).estimate()
    assert estimate.ends_at == pytest.approx(start + pace * (steps + left), rel=1e-6)
    assert estimate.next_at == pytest.approx(start + pace * (steps + 1) + LATE_S, rel=1e-6)


@given(st.floats(1, 1e5), st.integers(2, 300))
def test_a_slow_start_does_not_count_for_long(startup_s: float, steps: int) -> None:
    """Data loading before the first step is no part of the pace from the second step on."""
    points = [(1000.0, 0.0), *((at + startup_s, done) for at, done in even(1000.0, 1.0, steps)[1:])]
    estimate = course_of(*points, of=1000.0).estimate()
    assert estimate.ends_at == pytest.approx(1000.0 + startup_s + 1000.0)


def test_regular_work_counts_with_its_share() -> None:
    """Ten steps of a second, then a validation of ten seconds without a step."""
    course, at = Course(), 1000.0
    for step in range(1, 501):
        at += 1.0 + (10.0 if step % 10 == 1 and step > 1 else 0.0)
        course.add(Reported(at, float(step), 1000.0, "steps"))
    estimate = course.estimate()
    assert estimate.ends_at is not None
    assert estimate.ends_at - at == pytest.approx(1000.0, rel=0.1)  # the mean of a step is 2 s
    assert estimate.next_at == pytest.approx(at + 11.0 + LATE_S)


def test_a_new_pace_replaces_the_old_one() -> None:
    points = even(1000.0, 10.0, 100)
    points += [(2000.0 + step, 100.0 + step) for step in range(1, 101)]
    estimate = course_of(*points, of=300.0).estimate()
    assert estimate.ends_at == pytest.approx(2100.0 + 100.0, abs=30.0)


@given(st.integers(1, 50), st.floats(0.5, 1e6), st.integers(1, 5))
def test_a_pause_does_not_count(steps: int, pause_s: float, times: int) -> None:
    course, off_s = Course(), 0.0
    for step in range(steps + 1):
        course.add(Reported(1000.0 + off_s + step, float(step), 200.0, "steps"))
        if step == steps // 2:
            for _ in range(times):
                at = 1000.0 + off_s + step
                course.pause(at)
                course.pause(at + pause_s / 2)  # said twice, counts once
                assert course.estimate() == NO_ESTIMATE
                off_s += pause_s
                course.go_on(at + pause_s)
                course.go_on(at + pause_s)
    assert course.estimate().ends_at == pytest.approx(1000.0 + off_s + 200.0)


def test_an_own_estimate_is_moved_by_pauses_too() -> None:
    course = Course()
    course.add(Reported(1000.0, 1.0, 10.0, "epochs", ends_at=5000.0))
    assert course.estimate() == Estimate(5000.0, None)
    course.pause(1010.0)
    course.go_on(1110.0)
    assert course.estimate() == Estimate(5100.0, None)
    course.add(Reported(1200.0, 2.0, 10.0, "epochs", ends_at=5050.0))
    assert course.estimate().ends_at == 5050.0
    course.add(Reported(1300.0, 3.0, 10.0, "epochs", ends_at=900.0))  # past: it is no estimate
    assert course.estimate().ends_at != 900.0


@pytest.mark.parametrize("what", ["unit", "less"])
def test_another_training_begins_anew(what: str) -> None:
    course = course_of(*even(1000.0, 100.0, 50))
    unit, done = ("epochs", 50.0) if what == "unit" else ("steps", 0.0)
    course.add(Reported(6010.0, done, 100.0, unit))
    assert course.estimate() == NO_ESTIMATE
    course.add(Reported(6011.0, done + 1, 100.0, unit))
    assert course.estimate().ends_at == pytest.approx(6011.0 + 100.0 - done - 1)


def test_a_clock_that_is_set_back_begins_anew() -> None:
    course = course_of(*even(5000.0, 1.0, 50))
    course.add(Reported(2000.0, 51.0, 100.0, "steps"))
    course.add(Reported(2002.0, 52.0, 100.0, "steps"))
    assert course.estimate().ends_at == pytest.approx(2002.0 + 2 * 48)


def test_nothing_is_estimated_without_a_total_or_progress() -> None:
    assert Course().estimate() == NO_ESTIMATE
    assert course_of((1000.0, 1.0)).estimate() == NO_ESTIMATE
    assert course_of((1000.0, 1.0), (1010.0, 2.0), of=0.0).estimate().ends_at is None
    assert course_of((1000.0, 5.0), (1010.0, 5.0)).estimate().ends_at is None
    assert course_of((1000.0, 5.0), (1000.0, 6.0)).estimate().ends_at is None
    assert course_of((1000.0, 99.0), (1010.0, 100.0)).estimate().ends_at is None


_TIMES = st.floats(0, LATEST_TIME, exclude_max=True)
_NUMBERS = st.floats(0, 2.0**53)
_REPORTS = st.builds(
    Reported,
    _TIMES,
    _NUMBERS,
    _NUMBERS,
    st.sampled_from(["steps", "epochs"]),
    st.just(""),
    st.none() | _NUMBERS,
)


@given(
    st.lists(st.one_of(_REPORTS, st.tuples(st.booleans(), _TIMES)), max_size=120),
    st.booleans(),
)
def test_whatever_is_reported_the_state_is_bounded_and_can_be_stored(
    events: list[Reported | tuple[bool, float]], sorts: bool
) -> None:
    if sorts:
        events.sort(key=lambda one: one.time if isinstance(one, Reported) else one[1])
    course, stored = Course(), Course()
    for one in events:
        for each in (course, stored):
            if isinstance(one, Reported):
                assert is_valid(one)
                each.add(one)
            elif one[0]:
                each.pause(one[1])
            else:
                each.go_on(one[1])
        if stored.last is not None:
            stored = Course.of_state(stored.last, stored.state)
        assert stored.estimate() == course.estimate()
        assert len(course.state.samples) <= MOST_SAMPLES
        for at in course.estimate():
            assert at is None or 0 <= at < LATEST_TIME


@given(st.integers(2, 3_000), st.integers(1, 4))
def test_samples_cover_the_whole_course_evenly(count: int, stride: int) -> None:
    course = course_of(*even(1000.0, float(stride), count), of=1e6)
    samples = course.state.samples
    assert (samples[0].done, samples[-1].done) == (0.0, float(count))
    gaps = [later.done - earlier.done for earlier, later in itertools.pairwise(samples)]
    assert max(gaps) <= max(count / 4, 1)
    assert max(one.gap_s for one in samples) == stride


@pytest.mark.parametrize(
    "change",
    [
        {"done": -1.0},
        {"done": math.nan},
        {"done": math.inf},
        {"of": -0.5},
        {"of": 1e300},
        {"unit": ""},
        {"unit": "Epochs"},
        {"unit": "a" * 17},
        {"unit": "epochs\n"},
        {"origin": "x y"},
        {"origin": "a" * 33},
        {"time": -1.0},
        {"time": LATEST_TIME},
        {"time": math.nan},
        {"ends_at": math.inf},
        {"ends_at": -1.0},
    ],
)
def test_values_out_of_range_are_invalid(change: dict[str, object]) -> None:
    good = Reported(1000.0, 3.5, 10.0, "epochs", "lightning", 2000.0)
    assert is_valid(good)
    assert not is_valid(good._replace(**change))  # type: ignore[arg-type]


@given(_TIMES, st.none() | _TIMES, _TIMES, st.floats(0, 1e6))
def test_a_late_report_delays_the_end(
    end: float, next_at: float | None, now: float, later_s: float
) -> None:
    found = ends_at(Estimate(end, next_at), now)
    assert found is None or found > now
    if next_at is not None and now > next_at:
        assert found is None or found == pytest.approx(end + now - next_at)
        after = ends_at(Estimate(end, next_at), now + later_s)
        if found is not None and after is not None:
            assert after - (now + later_s) == pytest.approx(found - now, abs=1e-3)
    assert ends_at(Estimate(None, next_at), now) is None
