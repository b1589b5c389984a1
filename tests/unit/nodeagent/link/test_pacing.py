"""When what programs print is passed on, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from nodeagent.link.pacing import BYTES_PER_S_OF_CPU, FREE_BYTES, PAUSE_S, ConnectionPacing, Pacing
from tests.simulation.virtual_time import VirtualClock, run

PIECE = 240 << 10
RATE = 2 * BYTES_PER_S_OF_CPU


def made() -> Pacing:
    return Pacing(VirtualClock(asyncio.get_running_loop()), cpus=2)


async def seconds(of: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await of
    return loop.time() - began


async def pass_on(pacing: ConnectionPacing, total: int) -> None:
    for _ in range(total // PIECE):
        await pacing.wait(PIECE)


def test_much_does_not_wait_and_what_follows_has_a_rate() -> None:
    async def test() -> None:
        one = made().of_connection()
        assert await seconds(pass_on(one, FREE_BYTES)) == 0.0
        assert await seconds(pass_on(one, 10 * RATE)) == pytest.approx(10, rel=0.01)

    run(test())


def test_programs_that_print_without_end_share_the_rate_evenly_and_others_wait_for_none() -> None:
    async def endless(one: ConnectionPacing, passed: list[int], number: int) -> None:
        while True:
            await one.wait(PIECE)
            passed[number] += PIECE

    async def test() -> None:
        pacing, passed = made(), [0, 0, 0]
        running = [
            asyncio.create_task(endless(pacing.of_connection(), passed, number))
            for number in range(3)
        ]
        await asyncio.sleep(1)
        before = list(passed)
        await asyncio.sleep(30)
        assert await seconds(pass_on(pacing.of_connection(), FREE_BYTES)) == 0.0
        for one in running:
            one.cancel()
        grown = [now - then for now, then in zip(passed, before, strict=True)]
        assert min(before) >= FREE_BYTES // PIECE * PIECE
        assert sum(grown) == pytest.approx(30 * RATE, rel=0.02)
        assert max(grown) - min(grown) <= 2 * PIECE

    run(test())


def test_who_pauses_begins_anew_and_saves_nothing_up() -> None:
    async def test() -> None:
        one = made().of_connection()
        for pause_s in (0.0, 0.9 * PAUSE_S, 1.1 * PAUSE_S, 1_000.0):
            await asyncio.sleep(pause_s)
            is_anew = pause_s != 0.9 * PAUSE_S
            assert (await seconds(pass_on(one, FREE_BYTES)) == 0.0) is is_anew
            assert await seconds(pass_on(one, 10 * RATE)) == pytest.approx(10, rel=0.01)

    run(test())
