"""Control planes that share a database go by its clock, whatever their own say."""

from __future__ import annotations

import pytest

from controlplane.core.shared_clock import PRECISE_S, TRIES, SharedClock
from controlplane.domain.errors import Unavailable
from nsml.common.clock import SteadyClock

EPOCH = 1_700_000_000.0
HOUR_S = 3_600.0


class Machine:
    """A machine whose wall clock is set, with a database that takes its time to answer."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        self.passed = 50.0
        self.ahead_s = ahead_s
        self.takes_s = [0.0]
        self.is_away = False

    def time(self) -> float:
        return EPOCH + self.passed + self.ahead_s

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds

    async def read(self) -> float:
        if self.is_away:
            raise Unavailable("the database is away")
        takes_s = self.takes_s.pop(0) if len(self.takes_s) > 1 else self.takes_s[0]
        self.passed += takes_s
        return EPOCH + self.passed - takes_s / 2

    def clock(self) -> SharedClock:
        return SharedClock(self, self.monotonic, self.read)


@pytest.mark.parametrize("ahead_s", [2 * HOUR_S, -2 * HOUR_S, 0.0])
async def test_a_control_plane_with_a_wrong_clock_goes_by_the_databases(ahead_s: float) -> None:
    machine = Machine(ahead_s=ahead_s)
    shared = machine.clock()
    assert await shared.look()
    steady = SteadyClock(shared)
    machine.passed += 30.0
    assert steady.time() == pytest.approx(EPOCH + machine.passed)
    machine.ahead_s += HOUR_S
    assert steady.time() == pytest.approx(EPOCH + machine.passed)
    assert shared.own_ahead_s() == pytest.approx(ahead_s + HOUR_S)


async def test_before_it_was_read_it_is_the_machines_own() -> None:
    machine = Machine(ahead_s=HOUR_S)
    assert machine.clock().time() == machine.time()


async def test_of_slow_readings_the_quickest_counts_and_only_the_first_time() -> None:
    machine = Machine()
    machine.takes_s = [3.0, 2.0, PRECISE_S / 2]
    shared = machine.clock()
    assert await shared.look()
    assert shared.time() == pytest.approx(EPOCH + machine.passed)

    async def late() -> float:
        machine.passed += 4.0
        return EPOCH + machine.passed

    slow = SharedClock(machine, machine.monotonic, late)
    assert not await slow.look()
    assert slow.time() == pytest.approx(EPOCH + machine.passed + 2.0), "of any moment in between"
    before = slow.time()
    assert not await slow.look()
    assert slow.time() == pytest.approx(before + 4.0 * TRIES)


async def test_it_goes_on_while_the_database_is_away() -> None:
    machine = Machine(ahead_s=HOUR_S)
    shared = machine.clock()
    await shared.look()
    machine.is_away = True
    with pytest.raises(Unavailable):
        await shared.look()
    machine.passed += 500.0
    assert shared.time() == pytest.approx(EPOCH + machine.passed)
