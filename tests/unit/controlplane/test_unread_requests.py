"""What one connection can have the control plane hold of requests that nobody reads yet."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import h2.connection
import h2.events

from controlplane.startup.server import GRPC_OPTIONS

STREAMS = 30
WHOLE = (4 << 20) - 1000
MOST_UNREAD = 300 << 10
"""Of one call: the window that is set, and what gRPC adds for the head of the message."""


class Unread(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Reads the request of no call."""

    def __init__(self) -> None:
        self.called = 0
        self.end = asyncio.Event()

    def service(self, _details: Any) -> Any:
        async def answer(_requests: Any, _context: Any) -> bytes:
            self.called += 1
            await self.end.wait()
            return b""

        return grpc.stream_unary_rpc_method_handler(answer)


class Client:
    """Begins calls, and sends as much of their requests as the server takes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h2.connection.H2Connection()
        self._left: dict[int, bytes] = {}
        self.sent: dict[int, int] = {}

    async def begin(self, count: int) -> None:
        self._http.initiate_connection()
        head = struct.pack(">BI", 0, WHOLE)
        for _ in range(count):
            stream = self._http.get_next_available_stream_id()
            headers = {
                ":method": "POST",
                ":scheme": "http",
                ":authority": "x",
                ":path": "/a.B/C",
                "content-type": "application/grpc",
                "te": "trailers",
            }
            self._http.send_headers(stream, list(headers.items()))
            self._left[stream], self.sent[stream] = head + bytes(WHOLE - 5000), 0
        await self._flush()

    async def send_what_is_taken(self) -> None:
        """Until nothing more is taken for a while."""
        while True:
            for stream, left in self._left.items():
                size = min(
                    self._http.local_flow_control_window(stream),
                    self._http.max_outbound_frame_size,
                    len(left),
                )
                if size > 0:
                    self._http.send_data(stream, left[:size])
                    self._left[stream] = left[size:]
                    self.sent[stream] += size
            await self._flush()
            try:
                async with asyncio.timeout(1.0):
                    data = await self._reader.read(1 << 16)
            except TimeoutError:
                return
            assert data, "the server closed the connection"
            self._http.receive_data(data)

    async def _flush(self) -> None:
        self._writer.write(self._http.data_to_send())
        await self._writer.drain()


async def test_a_connection_has_little_taken_that_nobody_reads() -> None:
    """gRPC measures connections, and would take whole messages of all calls of a fast one."""
    handler = Unread()
    server = grpc.aio.server(options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        client = Client(reader, writer)
        await client.begin(STREAMS)
        await client.send_what_is_taken()
        assert handler.called == STREAMS
        assert max(client.sent.values()) <= MOST_UNREAD
    finally:
        writer.close()
        handler.end.set()
        await server.stop(None)
