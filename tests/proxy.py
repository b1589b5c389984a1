"""What passes bytes on between two programs, until it is told to go silent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Proxy:
    """Between a client and a server, HOST:PORT or /PATH, until it goes silent without closing anything.

    Args:
        port: where it listens; 0: any free one.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        self._target = target
        self._port = port
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def silence(self) -> None:
        """As a process that was stopped: what is sent is taken, and nothing comes."""
        self._passes.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        else:
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass(source, sink)))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._passes.wait()
                sink.write(data)
                await sink.drain()
        sink.close()
