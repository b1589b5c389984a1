"""A clock that follows one which is set, and never jumps with it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.clock import MOST_APART_S, SLEW, SteadyClock, elapsed, in_own_thread

HOUR_S = 3_600.0
EPOCH = 1_700_000_000.0
ROUNDING_S = 1e-5


class SetClock:
    """A clock whose wall clock tests set."""

    def __init__(self) -> None:
        self.passed = 50.0
        self.set_by = 0.0

    def time(self) -> float:
        return EPOCH + self.passed + self.set_by

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds


@given(
    happens=st.lists(
        st.tuples(
            st.floats(0, 100_000),
            st.sampled_from([0.0, HOUR_S, -HOUR_S]) | st.floats(-HOUR_S / 2, HOUR_S / 2),
        ),
        max_size=20,
    )
)
def test_whatever_lasts_lasts_as_long_as_it_should(happens: list[tuple[float, float]]) -> None:
    clock = SetClock()
    steady = SteadyClock(clock)
    for passes_s, set_by in happens:
        # Set back and forth, and never further away in all than is followed little by little.
        clock.set_by = set_by
        before = steady.time()
        clock.passed += passes_s
        assert abs(steady.time() - before - passes_s) <= SLEW * passes_s + ROUNDING_S
        assert steady.time() >= before
        assert steady.monotonic() == clock.passed


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_in_two_days_it_is_where_the_wall_clock_is(by_s: float) -> None:
    clock = SetClock()
    steady = SteadyClock(clock)
    clock.set_by = by_s
    asyncio.run(steady.sleep(24 * HOUR_S))
    assert abs(steady.time() - clock.time()) == pytest.approx((1 - 24 * SLEW) * HOUR_S)
    asyncio.run(steady.sleep(27 * HOUR_S))
    assert steady.time() == pytest.approx(clock.time(), abs=ROUNDING_S)


@pytest.mark.parametrize("by_s", [1e9, -MOST_APART_S - 1])
def test_a_clock_that_was_wrong_altogether_is_followed_at_once(by_s: float) -> None:
    clock = SetClock()
    steady = SteadyClock(clock)
    clock.set_by = by_s
    assert steady.time() == pytest.approx(clock.time(), abs=ROUNDING_S)


def test_a_machine_that_slept_is_not_behind() -> None:
    clock, slept_s = SetClock(), [0.0]
    steady = SteadyClock(clock, lambda: clock.passed + slept_s[0])
    clock.set_by = slept_s[0] = HOUR_S
    assert steady.time() == pytest.approx(clock.time(), abs=ROUNDING_S)
    before = elapsed()
    time.sleep(0.01)
    assert elapsed() - before > 0.005


def test_it_goes_on_from_an_instant_that_was() -> None:
    clock = SetClock()
    steady = SteadyClock(clock)
    for nothing_new in (0.0, clock.time() - HOUR_S, clock.time() + MOST_APART_S + 60):
        steady.reach(nothing_new)
        assert steady.time() == pytest.approx(clock.time(), abs=ROUNDING_S)
    at = clock.time() + HOUR_S
    steady.reach(at)
    steady.reach(at - 60)
    assert steady.time() == pytest.approx(at, abs=ROUNDING_S)
    asyncio.run(steady.sleep(1_000.0))
    assert steady.time() - at == pytest.approx(1_000 * (1 - SLEW))


def test_a_clock_that_was_behind_when_it_was_first_read_is_advanced_once_it_is_set_right() -> None:
    clock = SetClock()
    clock.set_by = -HOUR_S
    steady = SteadyClock(clock)
    clock.set_by = 0.0
    at = clock.time() - 60
    assert steady.time() < at
    steady.reach(at)
    assert steady.time() == pytest.approx(at, abs=ROUNDING_S)


async def test_work_that_lasts_holds_no_other_and_a_thread_that_is_done_is_used_again() -> None:
    goes_on = threading.Event()
    lasting = [asyncio.create_task(in_own_thread(goes_on.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    used = [await in_own_thread(threading.current_thread) for _ in range(20)]
    assert not any(one.done() for one in lasting)
    assert len(set(used)) == 1
    assert used[0].daemon
    goes_on.set()
    assert all(await asyncio.gather(*lasting))


async def test_an_error_leaves_the_thread_for_what_comes_next() -> None:
    with pytest.raises(OSError, match="no room"):
        await in_own_thread(_fails)
    assert await in_own_thread(lambda: 3) == 3


def _fails() -> None:
    raise OSError("no room")
