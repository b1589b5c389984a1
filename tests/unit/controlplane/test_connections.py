"""Connections that only stay open take no room from others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio

from controlplane.server import GRPC_OPTIONS, connection_limit

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
MOST = 5


def test_listeners_leave_file_descriptors_for_the_rest() -> None:
    assert connection_limit(1024) * 4 < 1024
    assert connection_limit(65_536) > 10_000
    assert connection_limit(100) == 64


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int, *, with_preface: bool) -> Line:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if with_preface:
        writer.write(PREFACE)
    return reader, writer


async def is_closed(line: Line) -> None:
    """Return once the server has closed it."""
    reader, writer = line
    async with asyncio.timeout(60):
        try:
            while await reader.read(4096):
                pass
        except ConnectionResetError:
            pass
    writer.close()


async def test_idle_and_unfinished_connections_are_closed_and_those_over_the_limit(
    tmp_path: Path,
) -> None:
    quick = {
        "grpc.max_connection_idle_ms": 1_000,
        "grpc.server_handshake_timeout_ms": 300,
        "grpc.max_allowed_incoming_connections": MOST,
    }
    assert {"grpc.max_connection_idle_ms", "grpc.server_handshake_timeout_ms"} < dict(
        GRPC_OPTIONS
    ).keys()
    server = grpc.aio.server(options=tuple({**dict(GRPC_OPTIONS), **quick}.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    place = f"unix:{tmp_path}/s"
    server.add_insecure_port(place)
    await server.start()
    try:
        idle = [await opened(port, with_preface=True) for _ in range(MOST)]
        for one in idle:
            assert await one[0].read(9)  # settings: it is taken
        over = await opened(port, with_preface=True)
        await is_closed(over)
        # Another listener has a limit of its own.
        async with grpc.aio.insecure_channel(place) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        for one in idle:
            await is_closed(one)
        halves = [await opened(port, with_preface=False) for _ in range(3)]
        for half in halves:
            await is_closed(half)
    finally:
        await server.stop(None)
