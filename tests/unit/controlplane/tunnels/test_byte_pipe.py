"""One direction of a tunnel: order, back-pressure, and how either end leaves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import Unavailable
from controlplane.tunnels.byte_pipe import Pipe
from tests.simulation.virtual_time import run

BROKEN, LEFT = Unavailable("broken"), Unavailable("left")


async def taken(pipe: Pipe) -> bytes:
    found = b""
    while piece := await pipe.take():
        found += piece
    return found


@given(
    pieces=st.lists(st.binary(max_size=40)),
    most=st.integers(1, 60),
    pauses=st.lists(st.integers(0, 3)),
)
def test_everything_arrives_in_order_and_little_is_held(
    pieces: list[bytes], most: int, pauses: list[int]
) -> None:
    async def main() -> None:
        pipe = Pipe(most)
        held, given_ = 0, iter(pauses)

        async def put() -> None:
            nonlocal held
            for piece in pieces:
                await pipe.put(piece)
                held += len(piece)
                assert held < most + 41
            pipe.end()

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            found = b""
            while piece := await pipe.take():
                held -= len(piece)
                found += piece
                await asyncio.sleep(next(given_, 0))
        assert found == b"".join(pieces)
        assert await pipe.settled()

    run(main())


async def test_a_full_pipe_holds_its_putter_back_until_somebody_takes() -> None:
    pipe = Pipe(4)
    await pipe.put(b"1234")
    waiting = asyncio.create_task(pipe.put(b"5"))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await pipe.take() == b"1234"
    await waiting
    pipe.end()
    assert await taken(pipe) == b"5"


async def test_what_broke_off_gives_what_it_has_and_then_the_error() -> None:
    pipe = Pipe()
    await pipe.put(b"a")
    pipe.break_off(BROKEN)
    assert await pipe.take() == b"a"
    with pytest.raises(Unavailable, match="broken"):
        await pipe.take()
    with pytest.raises(Unavailable, match="broken"):
        await pipe.settled()


async def test_what_has_ended_cannot_break_any_more() -> None:
    pipe = Pipe()
    await pipe.put(b"a")
    pipe.end()
    pipe.break_off(BROKEN)
    assert await taken(pipe) == b"a"
    assert await pipe.settled()


async def test_a_taker_that_leaves_wakes_whoever_puts() -> None:
    pipe = Pipe(1)
    await pipe.put(b"a")
    waiting = asyncio.create_task(pipe.put(b"b"))
    await asyncio.sleep(0)
    pipe.leave(LEFT)
    with pytest.raises(Unavailable, match="left"):
        await waiting
    assert not await pipe.settled()
    with pytest.raises(Unavailable, match="left"):
        pipe.check()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_taker_that_leaves_nothing_behind_loses_nothing(ends: bool) -> None:
    pipe = Pipe()
    await pipe.put(b"a")
    assert await pipe.take() == b"a"
    if ends:
        pipe.end()
    pipe.leave(LEFT)
    assert await pipe.settled() is ends
    pipe.check()


async def test_settling_waits_until_everything_is_taken() -> None:
    pipe = Pipe()
    await pipe.put(b"a")
    pipe.end()
    settling = asyncio.create_task(pipe.settled())
    await asyncio.sleep(0)
    assert not settling.done()
    assert await taken(pipe) == b"a"
    assert await settling


async def test_dropping_loses_what_is_left_but_not_an_end() -> None:
    whole, part = Pipe(), Pipe()
    whole.end()
    whole.drop(LEFT)
    assert await whole.take() == b""
    await part.put(b"a")
    part.end()
    part.drop(LEFT)
    with pytest.raises(Unavailable, match="left"):
        await part.take()
