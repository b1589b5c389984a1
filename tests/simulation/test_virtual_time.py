"""A simulation that does not end is a failure that says what waits, not silence."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.simulation import virtual_time
from tests.simulation.points import Points
from tests.simulation.virtual_time import Process, Stalled, run


async def beat(every_s: float = 1.0) -> None:
    for _ in itertools.count():
        await asyncio.sleep(every_s)


def told(error: BaseException) -> str:
    return "\n".join((str(error), *error.__notes__))


def test_what_waits_for_a_paused_process_is_named() -> None:
    async def sleeper() -> None:
        await asyncio.sleep(10)

    async def main() -> None:
        process = Process("agent n1.2")
        task = asyncio.create_task(sleeper(), name="agent n1", context=process.context())
        await asyncio.sleep(1)
        process.pause()
        task.cancel()
        await asyncio.wait([task])

    with pytest.raises(Stalled) as stalled:
        run(main())
    text = told(stalled.value)
    assert "agent n1 (cancelled, of agent n1.2, which is paused): " in text
    assert "main: " in text
    assert "main.<locals>" not in text.partition("agent n1 (")[2], "the main task is told first"
    assert "does not end" not in text, "at the end nothing is paused"


def test_why_it_was_to_end_is_not_lost_when_it_does_not() -> None:
    async def main() -> None:
        process = Process("agent")
        async with asyncio.TaskGroup() as group:
            group.create_task(beat(), context=process.context())
            await asyncio.sleep(3)
            process.die()
            raise ValueError("a device is held twice")

    with pytest.raises(Stalled) as stalled:
        run(main())
    assert "a device is held twice" in told(stalled.value)


@pytest.mark.parametrize("fails", [True, False])
def test_what_does_not_obey_its_cancellation_is_named_at_the_end(fails: bool) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.Event().wait()

    async def main() -> None:
        kept.append(asyncio.create_task(stubborn(), name="stubborn"))
        await asyncio.sleep(1)
        if fails:
            raise ValueError("first")

    kept: list[asyncio.Task[None]] = []
    with pytest.raises(ValueError if fails else Stalled) as found:
        run(main())
    text = told(found.value) if fails else str(found.value)
    assert "what was left does not end" in text
    assert "stubborn (cancelled): " in text
    assert "Event.wait (locks.py:" in text


def test_virtual_time_is_bounded() -> None:
    with pytest.raises(Stalled, match="50 s have passed"):
        run(beat(), longest_s=50.0)


def test_real_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "LONGEST_REAL_S", 0.2)
    with pytest.raises(Stalled, match="real seconds have passed"):
        run(beat(1e-6))


def test_a_process_that_is_killed_dies_at_no_point_any_more() -> None:
    """Nobody would bury it: whoever kills it has done so."""

    async def main() -> bool:
        process = Process("agent")
        points = Points(lambda _: process.die())

        async def live() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                await points.passing("runtime remove before")

        life = asyncio.create_task(live(), context=process.context())
        await asyncio.sleep(1)
        points.arm("runtime remove before", 1)
        life.cancel()
        process.bury()
        await asyncio.wait([life])
        return process.is_paused

    assert not run(main())
