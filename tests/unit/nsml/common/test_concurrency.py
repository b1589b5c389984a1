"""A cancellation that meets a failure."""

import asyncio

import pytest

from nsml.common.concurrency import BackgroundTasks, TaskGroup, first_to_end, to_its_end


async def fails_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("while it ended")


async def outlives_failures(started: asyncio.Event) -> None:
    while True:
        try:
            async with TaskGroup() as group:
                group.create_task(fails_when_cancelled())
                await asyncio.sleep(0)
                started.set()
                await asyncio.Event().wait()
        except* OSError:
            pass
        await asyncio.sleep(0)


async def test_a_cancellation_ends_a_loop_that_outlives_failures() -> None:
    started = asyncio.Event()
    loop = asyncio.create_task(outlives_failures(started))
    await started.wait()
    loop.cancel()
    done, _ = await asyncio.wait([loop], timeout=60)
    assert loop in done
    assert loop.cancelled()


async def test_failures_without_a_cancellation_are_raised_once() -> None:
    with pytest.raises(ExceptionGroup) as failed:
        await waits_beside_a_failure()
    assert [str(one) for one in failed.value.exceptions] == ["at once"]
    await asyncio.sleep(0)  # nothing is left to be cancelled


async def test_a_failure_after_the_body_has_ended_is_no_cancellation() -> None:
    with pytest.raises(ExceptionGroup):
        async with TaskGroup() as group:
            group.create_task(fails_with(OSError("later")))
    await asyncio.sleep(0)  # nothing is left to be cancelled


async def test_a_body_that_ends_well_is_no_cancellation() -> None:
    async with TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
    await asyncio.sleep(0)


async def test_work_is_waited_for_however_often_that_is_cancelled() -> None:
    may_end = asyncio.Event()
    told: list[str] = []

    async def work() -> None:
        await may_end.wait()
        told.append("done")

    waiting = asyncio.create_task(to_its_end(work(), cancel=lambda: told.append("unwanted")))
    for _ in range(2):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert told == ["unwanted", "unwanted", "done"]


async def waits_beside_a_failure() -> None:
    async with TaskGroup() as group:
        group.create_task(fails())
        await asyncio.Event().wait()


async def fails() -> None:
    raise OSError("at once")


async def test_the_first_to_end_ends_the_others_and_says_how_it_ended() -> None:
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def at_once() -> None:
        await asyncio.sleep(0)

    await first_to_end(never(), at_once())
    assert ended.is_set()
    with pytest.raises(OSError, match="broken"):
        await first_to_end(never(), fails_with(OSError("broken")))


async def fails_with(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_background_tasks_are_cancelled_and_ended_when_they_are_left() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async with BackgroundTasks() as group:
        done = group.create_task(asyncio.sleep(0))
        for name in ("a", "b"):
            group.create_task(work(name))
        await done
    assert sorted(ended) == ["a", "b"]
