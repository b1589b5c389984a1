import asyncio
from contextlib import suppress

import pytest

from controlplane.store.background_task import Companion


class Broken(Exception):
    pass


async def breaks() -> None:
    await asyncio.sleep(0)
    raise Broken


async def waits() -> None:
    await asyncio.Event().wait()


async def test_a_companion_that_fails_ends_the_body_with_its_error() -> None:
    was_cancelled = False

    async def body() -> None:
        nonlocal was_cancelled
        async with Companion(breaks(), name="test"):
            try:
                await waits()
            except asyncio.CancelledError:
                was_cancelled = True
                raise

    task = asyncio.create_task(body())
    with pytest.raises(Broken):
        await task
    assert was_cancelled
    assert task.cancelling() == 0


async def test_the_bodys_own_error_is_not_wrapped() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Companion(waits(), name="test"):
            raise ZeroDivisionError


async def test_the_companion_is_ended_with_the_body() -> None:
    ended = False

    async def companion() -> None:
        nonlocal ended
        try:
            await waits()
        finally:
            ended = True

    async with Companion(companion(), name="test"):
        await asyncio.sleep(0)
    assert ended


async def test_cancelling_from_outside_stays_a_cancellation() -> None:
    async def body() -> None:
        async with Companion(waits(), name="test"):
            await waits()

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_from_outside_wins_over_a_failure_at_the_same_time() -> None:
    release = asyncio.Event()

    async def breaks_later() -> None:
        await release.wait()
        raise Broken

    async def body() -> None:
        async with Companion(breaks_later(), name="test"):
            await waits()

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    release.set()
    task.cancel()
    with suppress(Broken), pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_two_companions_that_fail_at_once_leave_no_cancellation_behind() -> None:
    release = asyncio.Event()

    async def breaks_later() -> None:
        await release.wait()
        raise Broken

    async def both() -> None:
        async with (
            Companion(breaks_later(), name="outer"),
            Companion(breaks_later(), name="inner"),
        ):
            await asyncio.sleep(0)
            release.set()
            await waits()

    async def body() -> None:
        with pytest.raises(Broken):
            await both()
        await asyncio.sleep(0)  # would raise if a cancellation were left

    task = asyncio.create_task(body())
    await task
    assert task.cancelling() == 0


async def test_a_companion_may_return_early() -> None:
    async def returns() -> None:
        await asyncio.sleep(0)

    async with Companion(returns(), name="test"):
        for _ in range(5):
            await asyncio.sleep(0)
