"""A flood of output waits in its file; ordinary output never does."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from nodeagent.collect.pace import BURST_S, SAID_EVERY_S, CountedLog, Pace, Patience
from nsml.client.errors import NotEnough, Unavailable

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
    pace = Pace(MIB, clock)  # type: ignore[arg-type]
    for _ in range(400):
        await pace.wait(MIB // 4)
    assert 90 <= clock.slept <= 101


async def test_what_was_not_used_is_there_for_a_burst() -> None:
    clock = Time()
    pace = Pace(MIB, clock)  # type: ignore[arg-type]
    clock.now += 3_600
    for _ in range(int(BURST_S)):
        await pace.wait(MIB)
    assert clock.slept == 0
    await pace.wait(MIB)
    assert clock.slept > 0


async def test_none_is_no_limit() -> None:
    clock = Time()
    pace = Pace(0, clock)  # type: ignore[arg-type]
    await pace.wait(1 << 40)
    assert clock.slept == 0


async def test_what_was_not_waited_for_is_not_used() -> None:
    """Each new connection tries again."""
    clock = Time()
    pace = Pace(1.0, clock)  # type: ignore[arg-type]

    async def broken(_: float) -> None:
        raise ConnectionError

    clock.now += BURST_S
    await pace.wait(int(BURST_S))
    sleep, clock.sleep = clock.sleep, broken  # type: ignore[method-assign]
    for _ in range(100):
        with pytest.raises(ConnectionError):
            await pace.wait(1_000)
    clock.sleep = sleep  # type: ignore[method-assign]
    await pace.wait(1)
    assert clock.slept == 1.0


def test_of_lines_that_a_program_causes_one_is_written_and_the_others_are_counted() -> None:
    clock = Time()
    log = CountedLog("s.1.0", clock)  # type: ignore[arg-type]
    with capture_logs() as said:
        for number in range(1_000):
            log.say("checkpoint.lost", checkpoint=f"{number}" + "x" * 512)
        log.say("checkpoint.durable", checkpoint="best")
        clock.now += SAID_EVERY_S
        log.say("checkpoint.lost", checkpoint="last")
        log.say("checkpoint.lost", checkpoint="after")
        log.close()
        log.close()
    told = [(one["event"].partition(".")[2], one.get("more")) for one in said]
    assert told == [("lost", None), ("durable", None), ("lost", 999), ("lost", 1)]
    assert all(one["replica"] == "s.1.0" for one in said)
    assert len(said[0]["checkpoint"]) < 512


async def test_what_is_over_a_limit_is_tried_less_often_each_time() -> None:
    """Each try packs a whole checkpoint: a user at the limit would have it packed all day."""
    clock = Time()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def pause() -> None:
        slept.append(0.5)

    clock.sleep = sleep  # type: ignore[method-assign]
    patience = Patience(clock)  # type: ignore[arg-type]
    await patience.wait(Unavailable("away"), pause)
    assert slept == [0.5]
    for _ in range(7):
        await patience.wait(NotEnough("you keep too much"), pause)
    assert slept[1::2] == [15, 30, 60, 120, 240, 300, 300]
    patience.reset()
    await patience.wait(NotEnough("you keep too much"), pause)
    assert slept[-2:] == [15, 0.5]
