"""What is charged is time that passed, whatever becomes of wall clocks."""

import pytest

from controlplane.state.hold_times import MOST_LATE_S, HoldTimes


class Steady:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def steady() -> Steady:
    return Steady()


@pytest.mark.parametrize("by_wall_s", [-3_590.0, 0.0, 9.9, 3_610.0])
def test_who_placed_it_knows_however_the_wall_clock_was_set(
    steady: Steady, by_wall_s: float
) -> None:
    held = HoldTimes(steady)
    held.placed("s", 1, by_us=True)
    steady.now += 10
    assert held.held_s("s", 1, by_wall_s=by_wall_s) == 10


def test_the_watch_may_tell_of_our_own_placement_first(steady: Steady) -> None:
    held = HoldTimes(steady)
    held.placed("s", 1)
    held.placed("s", 1, by_us=True)
    steady.now += 10
    assert held.held_s("s", 1, by_wall_s=20) == 10


def test_of_anothers_placement_the_wall_clock_is_believed_as_far_as_it_can_be_true(
    steady: Steady,
) -> None:
    held = HoldTimes(steady)
    held.placed("s", 1)
    steady.now += 10
    assert held.held_s("s", 1, by_wall_s=12.5) == 12.5
    assert held.held_s("s", 1, by_wall_s=9) == 10
    assert held.held_s("s", 1, by_wall_s=10 + MOST_LATE_S + 1) == 10


def test_of_what_was_placed_before_us_only_the_wall_clock_tells(steady: Steady) -> None:
    held = HoldTimes(steady)
    assert held.held_s("s", 1, by_wall_s=500) == 500
    assert held.held_s("s", 1, by_wall_s=-1) == 0


def test_each_attempt_has_its_own_time(steady: Steady) -> None:
    held = HoldTimes(steady)
    held.placed("s", 1, by_us=True)
    steady.now += 10
    held.placed("s", 2, by_us=True)
    steady.now += 5
    assert held.held_s("s", 2, by_wall_s=99) == 5
    held.forget("s")
    assert held.held_s("s", 2, by_wall_s=99) == 99
