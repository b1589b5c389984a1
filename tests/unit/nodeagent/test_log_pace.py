"""A flood of output waits in its file; ordinary output never does."""

from __future__ import annotations

from nodeagent.log_pace import BURST_S, LogPace

MIB = 1 << 20


class Time:
    """Time that passes by being slept."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


async def test_a_flood_is_sent_at_its_pace_and_all_of_it() -> None:
    clock = Time()
    pace = LogPace(MIB, clock)  # type: ignore[arg-type]
    for _ in range(400):
        await pace.wait(MIB // 4)
    assert 90 <= clock.slept <= 101


async def test_what_was_not_used_is_there_for_a_burst() -> None:
    clock = Time()
    pace = LogPace(MIB, clock)  # type: ignore[arg-type]
    clock.now += 3_600
    for _ in range(int(BURST_S)):
        await pace.wait(MIB)
    assert clock.slept == 0
    await pace.wait(MIB)
    assert clock.slept > 0


async def test_none_is_no_limit() -> None:
    clock = Time()
    pace = LogPace(0, clock)  # type: ignore[arg-type]
    await pace.wait(1 << 40)
    assert clock.slept == 0
