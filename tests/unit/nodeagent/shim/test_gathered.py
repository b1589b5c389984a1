"""A connection whose writes are sent together: all of them, in order, also where it is closed at once."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from nodeagent.shim.gathered import GatheringLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECES = [b"one", bytearray(b" two"), memoryview(b" three")]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.settimeout(60)
    with ours, theirs:
        yield ours, theirs


class Echo(asyncio.Protocol):
    """Writes PIECES at the start, and then whatever it reads."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for one in PIECES:
            transport.write(one)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def run(ours: socket.socket, then: Callable[[Echo], None]) -> int:
    """Have Echo at a socket until it is closed; how often it sent something."""
    sent = 0

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        made, echo = await loop.create_connection(Echo, sock=ours)
        assert echo.transport is made
        inner = made._inner  # type: ignore[attr-defined]
        write = inner.write

        def count(data: bytes) -> None:
            nonlocal sent
            sent += 1
            write(data)

        inner.write = count
        then(echo)
        await echo.lost.wait()

    loop = GatheringLoop(ours)
    try:
        loop.run_until_complete(asyncio.wait_for(main(loop), 60))
    finally:
        loop.close()
    return sent


@pytest.mark.parametrize("end", ["close", "abort"])
def test_what_was_written_before_the_end_is_sent_at_once(
    pair: tuple[socket.socket, socket.socket], end: str
) -> None:
    ours, theirs = pair

    def then(echo: Echo) -> None:
        theirs.recv(100)
        for one in PIECES:
            echo.transport.write(one)
        assert echo.transport.get_write_buffer_size() == len(b"one two three")
        getattr(echo.transport, end)()

    assert run(ours, then) == 1
    assert theirs.recv(100) == b"one two three"
    assert theirs.recv(100) == b""


def test_it_goes_on_and_hears_that_the_other_end_has_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    given = os.urandom(100_000)
    theirs.sendall(given)
    theirs.shutdown(socket.SHUT_WR)
    run(ours, lambda _: None)
    found = b""
    while data := theirs.recv(65536):
        found += data
    assert found == b"one two three" + given


def test_others_connect_as_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    loop = GatheringLoop(theirs)

    async def main() -> None:
        made, _ = await loop.create_connection(Echo, sock=ours)
        assert not hasattr(made, "_inner")
        made.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
