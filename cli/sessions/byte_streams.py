"""Standard streams as bytes, read and written while an event loop runs.

In threads that are never joined: asyncio joins its own at its end, also one blocked by a slow reader, and cannot
poll files of a disk. O_NONBLOCK is no option: other programs have the same terminal open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import select
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_PIECE: Final = 256 << 10
"""Limit of one tunnel message."""
_PIPE: Final = 1 << 20
"""Size of widened pipes: the default is 64 KiB, and passes everything on in small pieces."""
_SET_PIPE_SIZE: Final = getattr(fcntl, "F_SETPIPE_SZ", 1031)
"""Linux only."""


def widen(*descriptors: int) -> None:
    """Enlarge the buffers of descriptors that are pipes."""
    for one in descriptors:
        with suppress(OSError):
            fcntl.fcntl(one, _SET_PIPE_SIZE, _PIPE)


class _Caller(Generic[T]):
    """Runs blocking calls in one thread, in order. The process may end during a call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[
            tuple[Callable[[], T], asyncio.AbstractEventLoop, asyncio.Future[T]]
        ] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    async def run(self, call: Callable[[], T]) -> T:
        """Return the call's result, or raise its OSError."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.put((call, loop, done))
        return await done

    def _work(self) -> None:
        while True:
            call, loop, done = self._calls.get()
            try:
                settle = partial(_settle, done, call(), None)
            except OSError as error:
                settle = partial(_settle, done, None, error)
            with suppress(RuntimeError):  # the loop is closed: nothing waits
                loop.call_soon_threadsafe(settle)


def _settle(done: asyncio.Future[Any], result: Any, error: OSError | None) -> None:
    if done.done():  # cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class ByteInput:
    """A stream to read. After `close` nothing more is read from it: later input is for the next program."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._caller = _Caller[bytes]()
        self._woken, self._wakes = os.pipe()

    async def read(self) -> bytes:
        """Return some bytes; empty at the end, also if the terminal is closed."""
        return await self._caller.run(self._read)

    def close(self) -> None:
        """End a blocked `read`."""
        os.write(self._wakes, b".")

    def _read(self) -> bytes:
        while True:
            ready, _, _ = select.select([self._descriptor, self._woken], [], [])
            if self._woken in ready:
                return b""
            try:
                return os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                continue  # another program that has it open made it non-blocking
            except OSError:
                return b""


class ByteOutput:
    """Streams to write, in the order of the calls."""

    def __init__(self) -> None:
        self._caller = _Caller[None]()

    async def write(self, descriptor: int, data: bytes) -> None:
        """Write all; waits for a slow reader. Raises OSError."""
        await self._caller.run(lambda: _write_all(descriptor, data))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
