"""Connections that only stay open take no room from others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import h2.connection

from controlplane.startup.server import GRPC_OPTIONS, connection_limit
from tests.unit.controlplane.rig import until

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


class Long(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with much, and counts the calls whose answers have not been taken."""

    def __init__(self) -> None:
        self.answered = self.open = 0

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def done(_: Any) -> None:
            self.open -= 1

        async def answer(_: bytes, context: Any) -> bytes:
            self.answered += 1
            self.open += 1
            context.add_done_callback(done)
            return bytes(1 << 20)

        return grpc.unary_unary_rpc_method_handler(answer)


async def test_connections_that_take_no_answers_are_closed() -> None:
    """Room at the level of HTTP/2, and a socket that is not read: TCP's user timeout is that of the keepalive."""
    wanted = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms"}
    assert wanted < dict(GRPC_OPTIONS).keys()
    quick = {"grpc.keepalive_timeout_ms": 500}
    handler, count = Long(), 20
    server = grpc.aio.server(options=tuple({**dict(GRPC_OPTIONS), **quick}.items()))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    http = h2.connection.H2Connection()
    http.local_settings.initial_window_size = (1 << 31) - 1
    http.initiate_connection()
    http.increment_flow_control_window((1 << 31) - 1 - 65_535)
    for _ in range(count):
        stream = http.get_next_available_stream_id()
        head = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": "x",
            ":path": "/a/b",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        http.send_headers(stream, list(head.items()))
        http.send_data(stream, bytes(5), end_stream=True)
    settings_taken = b"\0\0\0\4\1\0\0\0\0"
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(line, ("127.0.0.1", port))
        await loop.sock_sendall(line, http.data_to_send() + settings_taken)

        async def are_answered() -> bool:
            return handler.answered == count

        async def are_given_up() -> bool:
            return handler.open == 0

        try:
            await until(are_answered, "all are answered")
            await until(are_given_up, "their answers are given up")
        finally:
            await server.stop(None)
