"""Faults of the network that tests rely on meet every connection, also one that is being made as they begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.support.proxy import Proxy


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """HOST:PORT of a server that answers what it is sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


class Slow(Proxy):
    """One whose connection to the server is made when a test says so."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.connects, self.may = asyncio.Event(), asyncio.Event()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.connects.set()
        await self.may.wait()
        return await super()._connect()


async def answered(address: str, proxy: Slow) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent something, while it is being made."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"a")
    await proxy.connects.wait()
    return reader, writer


@pytest.mark.parametrize("fault", ["refuse", "cut"])
async def test_what_is_being_connected_is_cut(echo: str, fault: str) -> None:
    async with Slow(echo) as proxy:
        reader, writer = await answered(proxy.address, proxy)
        getattr(proxy, fault)()
        proxy.may.set()
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        writer.close()


async def test_what_is_being_connected_is_lost_and_stays_so(echo: str) -> None:
    async with Slow(echo) as proxy:
        reader, writer = await answered(proxy.address, proxy)
        proxy.lose()
        proxy.heal()
        proxy.may.set()
        other, other_writer = await answered(proxy.address, proxy)
        assert await other.read(1) == b"a", "one that is made later passes"
        assert reader._buffer == b""  # type: ignore[attr-defined]
        for one in (writer, other_writer):
            one.close()


async def test_what_is_being_connected_is_silent_until_it_heals(echo: str) -> None:
    async with Slow(echo) as proxy:
        reader, writer = await answered(proxy.address, proxy)
        proxy.silence()
        proxy.may.set()
        await asyncio.sleep(0.05)
        assert reader._buffer == b""  # type: ignore[attr-defined]
        proxy.heal()
        assert await reader.read(1) == b"a"
        writer.close()


async def test_a_healed_fault_meets_no_later_bytes(echo: str) -> None:
    async with Proxy(echo) as proxy:
        host, _, port = proxy.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        proxy.cut(after_bytes=10)
        proxy.lose_answers(b"commit")
        proxy.heal()
        writer.write(b"commit" * 10)
        assert await reader.readexactly(60) == b"commit" * 10
        writer.close()
