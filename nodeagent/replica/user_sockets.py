"""Unix sockets to user code: read and closed in threads of their own.

A message on a Unix socket can carry descriptors. A receiver that does not ask for them, or that closes the
socket before reading it, closes them; and closing a TCP connection waits for its unsent bytes, for as long as
its creator chose (SO_LINGER, socket(7)). On the event loop one session would block the whole agent
that way, for years. A thread can wait, and a signal ends its wait.
"""

from __future__ import annotations

import asyncio
import errno
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from nsml.client.direct_tunnels import send_all

_PIECE_BYTES = 64 << 10
_NUDGE_S = 0.2
"""Time for a thread to end before it is interrupted."""
_INTERRUPTION = signal.SIGURG
"""Ignored without a handler."""
_NONE_WAITS = (errno.EAGAIN, errno.EINVAL)
"""Errors of accept on a socket that was shut down, unlike those for lack of descriptors."""


class UserConnection:
    """A connected socket of user code; non-blocking, and owned by this object from now on."""

    def __init__(self, program: socket.socket) -> None:
        program.settimeout(0)
        self._program = program
        self._received, self._passed_on = socket.socketpair()
        self._received.settimeout(0)
        self._is_unwanted = threading.Event()
        self._thread = _Thread(self._read)

    async def receive(self, most: int = _PIECE_BYTES) -> bytes:
        """Return up to `most` received bytes, without descriptors; b"" at the end."""
        return await asyncio.get_running_loop().sock_recv(self._received, most)

    async def send(self, *parts: bytes) -> None:
        """Send all of them. Raises OSError."""
        await send_all(self._program, parts)

    def peer(self) -> int:
        """Return the pid of the other end, in this process's namespace; 0 if unknown."""
        with suppress(OSError):
            size = struct.calcsize("3i")
            found = self._program.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", found)[0])
        return 0

    def shut(self, way: int) -> None:
        """Shut it down, as `socket.shutdown`."""
        with suppress(OSError):  # the program has done so
            self._program.shutdown(way)

    def sends_no_more(self) -> bool:
        """Whether the other end has closed its sending side; earlier data may be unread."""
        return self._polled(select.POLLRDHUP)

    def is_gone(self) -> bool:
        """Whether the other end has closed both sides."""
        return self._polled(select.POLLHUP | select.POLLERR)

    def give_up(self) -> None:
        """Have it closed soon. Nothing may be receiving or sending."""
        self._is_unwanted.set()
        self._received.close()
        self.shut(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close it, and return when done. On cancellation it is closed as by `give_up`."""
        self.give_up()
        await self._thread.ended()

    def _polled(self, events: int) -> bool:
        poll = select.poll()
        poll.register(self._program, events)
        return any(found & events for _, found in poll.poll(0))

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._program, select.POLLIN)
        with self._program, self._passed_on:
            with suppress(OSError):
                while self._is_sent_on(poll):
                    pass
            with suppress(OSError):
                self._passed_on.shutdown(socket.SHUT_WR)
            self._is_unwanted.wait()

    def _is_sent_on(self, poll: select.poll) -> bool:
        """Pass data on; return whether more may come."""
        poll.poll()
        with suppress(BlockingIOError):
            data = self._program.recv(_PIECE_BYTES)
            self._passed_on.sendall(data)
            return bool(data) and not self._is_unwanted.is_set()
        return True


async def close_user_socket(sock: socket.socket) -> None:
    """Close a socket connected to user code; returns when done."""
    await _Thread(sock.close).ended()


async def close_user_listener(listener: socket.socket) -> None:
    """Close a non-blocking Unix listener for user code; returns when done.

    This closes unaccepted connections, with their unread data. Mostly there is none: then no thread is needed.
    """
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # nobody can connect from now on
    try:
        unaccepted, _ = listener.accept()
    except OSError as error:
        if error.errno in _NONE_WAITS:
            listener.close()
            return
    else:
        await close_user_socket(unaccepted)
    await close_user_socket(listener)


class _Thread:
    """Work that may block in the kernel, begun at once. The agent's exit does not wait for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        _be_interruptible()
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._is_over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="user-socket", daemon=True)
        self._thread.start()

    async def ended(self) -> None:
        """Wait until the work is done, interrupting its waits."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NUDGE_S):
                    await self._ended.wait()
                return
            self._interrupt()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._lock:
                self._is_over = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._ended.set)

    def _interrupt(self) -> None:
        with self._lock:  # so that the thread exists, and its number is not reused
            if not self._is_over and self._thread.ident is not None:
                signal.pthread_kill(self._thread.ident, _INTERRUPTION)


def _be_interruptible() -> None:
    """Install a handler: an ignored signal ends no wait."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(_INTERRUPTION) is signal.SIG_DFL:
        signal.signal(_INTERRUPTION, lambda *_: None)
