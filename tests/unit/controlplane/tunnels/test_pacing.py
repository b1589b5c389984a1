"""When bytes of tunnels are passed on, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from controlplane.limits.ordinary_calls import OrdinaryCalls
from controlplane.tunnels.pacing import SMALL_BYTES, Pacing
from tests.simulation.virtual_time import run

LARGE = 256 << 10


def taken(test: Coroutine[Any, Any, None]) -> float:
    """Seconds that it takes."""

    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await test
        return asyncio.get_running_loop().time() - began

    return run(main())


async def pass_on(pacing: Pacing, frames: int, size: int = LARGE) -> None:
    for _ in range(frames):
        await pacing.wait(size)


def test_without_calls_nothing_waits() -> None:
    assert taken(pass_on(Pacing(OrdinaryCalls()), 1_000)) == 0.0


def test_calls_go_first_and_a_moment_after_the_last_one_nothing_waits_any_more() -> None:
    async def test() -> None:
        calls, loop = OrdinaryCalls(), asyncio.get_running_loop()
        pacing, began = Pacing(calls), loop.time()
        with calls.served():
            waiting = asyncio.create_task(pass_on(pacing, 1))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await waiting
        assert loop.time() - began == pytest.approx(0.01, abs=0.001)
        await asyncio.sleep(1.0)
        began = loop.time()
        await pass_on(pacing, 100)
        assert loop.time() == began

    run(test())


def test_together_they_have_a_share_however_many_they_are_and_whatever_calls_take() -> None:
    async def test() -> None:
        calls, loop = OrdinaryCalls(), asyncio.get_running_loop()
        pacing, began = Pacing(calls), loop.time()
        with calls.served():  # one that never ends stops nothing
            await asyncio.gather(*(pass_on(pacing, 16) for _ in range(16)))
        assert loop.time() - began == pytest.approx(256 * LARGE / (64 << 20), rel=0.5)

    run(test())


def test_keys_and_their_echoes_never_wait() -> None:
    async def test() -> None:
        calls = OrdinaryCalls()
        pacing, began = Pacing(calls), asyncio.get_running_loop().time()
        with calls.served():
            await pass_on(pacing, 1_000, SMALL_BYTES - 1)
        assert asyncio.get_running_loop().time() == began

    run(test())
