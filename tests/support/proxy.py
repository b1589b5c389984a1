"""What passes bytes on between two programs, and does to them what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Self


class _Way:
    """One connection through it."""

    def __init__(self) -> None:
        self.passes = asyncio.Event()
        self.passes.set()
        self.left: int | None = None
        """Bytes that are passed on still before it is cut; None: it is not."""
        self.is_lost = False
        self.is_answer_lost = False
        """The connection is cut at the server's next answer, which is not forwarded."""
        self.writers: list[asyncio.StreamWriter] = []

    def take(self, data: bytes) -> bytes:
        """What of it is passed on."""
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
        return data

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Between a client and a server, HOST:PORT or /PATH.

    It forwards everything, except after `silence`, `lose`, `refuse`, `cut` and `lose_answers`, and delays each part by `lag_s`;
    `heal` undoes them. Connections that were cut, and lost bytes, stay so.

    Args:
        port: where it listens; 0: any free one.
        lag_s: by how much the next part is late, in seconds.
    """

    def __init__(
        self, target: str, port: int = 0, *, lag_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._target = target
        self._port = port
        self._ways: set[_Way] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_silent = self._refuses = False
        self._unanswered, self._unanswered_left = b"", 0
        self.lag_s = lag_s

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for way in self._ways:
            way.cut()

    def silence(self) -> None:
        """As a process that was stopped: what is sent is taken, and nothing comes."""
        self._is_silent = True
        for way in self._ways:
            way.passes.clear()

    def lose(self) -> None:
        """As a laptop that slept: the connections of now are dead, which nobody says; others can be made."""
        for way in self._ways:
            way.is_lost = True
            way.passes.clear()

    def refuse(self) -> None:
        """As a machine that restarts: what is connected is cut, and so is whoever comes."""
        self._refuses = True
        self.cut()

    def cut(self, after_bytes: int = 0) -> None:
        """Cut each connection of now, in the middle of what it says: once it has passed on so many bytes more."""
        for way in self._ways:
            way.left = after_bytes
            if not after_bytes:
                way.cut()

    def lose_answers(self, request: bytes, count: int = 1) -> None:
        """Cut the next `count` connections that send `request`, each at the server's answer, which is not forwarded."""
        self._unanswered, self._unanswered_left = request, count

    def heal(self) -> None:
        """Pass on again, also what was held."""
        self._is_silent = self._refuses = False
        self._unanswered_left = 0
        self.lag_s = lambda: 0.0
        for way in self._ways:
            way.is_answer_lost = False
            if way.left:
                way.left = None
            if not way.is_lost:
                way.passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        way = _Way()
        way.writers.append(writer)
        if self._is_silent:
            way.passes.clear()
        # From now on, and not only once its other half is there, faults meet it: one that is told to be cut never passes on.
        self._ways.add(way)
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            way.cut()
            self._ways.discard(way)
            return
        way.writers.append(far_writer)
        if way.left == 0:
            way.cut()
            self._ways.discard(way)
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(way, source, sink, is_answer=sink is writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pass(
        self,
        way: _Way,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if lag_s := self.lag_s():
                    await asyncio.sleep(lag_s)
                await way.passes.wait()
                if is_answer and way.is_answer_lost:
                    way.cut()
                    break
                if not is_answer and self._unanswered_left and self._unanswered in data:
                    self._unanswered_left -= 1
                    way.is_answer_lost = True
                sink.write(way.take(data))
                await sink.drain()
                if way.left == 0:
                    way.cut()
        sink.close()
        self._ways.discard(way)


class ThreadedProxy:
    """A proxy for tests without an event loop; see `proxied`."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self._proxy, self._loop = proxy, loop
        self.address = proxy.address

    def refuse(self) -> None:
        """See Proxy."""
        self._loop.call_soon_threadsafe(self._proxy.refuse)

    def cut(self, after_bytes: int = 0) -> None:
        """See Proxy."""
        self._loop.call_soon_threadsafe(self._proxy.cut, after_bytes)

    def lose_answers(self, request: bytes, count: int = 1) -> None:
        """See Proxy."""
        self._loop.call_soon_threadsafe(self._proxy.lose_answers, request, count)

    def heal(self) -> None:
        """See Proxy."""
        self._loop.call_soon_threadsafe(self._proxy.heal)


@contextlib.contextmanager
def proxied(target: str) -> Iterator[ThreadedProxy]:
    """Run a proxy in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    try:
        proxy = Proxy(target)
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
        try:
            yield ThreadedProxy(proxy, loop)
        finally:
            asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
