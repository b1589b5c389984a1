"""Relays bytes between two sockets, as fast as the slower one reads."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.relay.fair_queue import FairQueue

PIECE_BYTES: Final = 256 << 10
"""Maximum bytes relayed at a time."""
_KEEPALIVE: Final = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
}
"""A dead machine is detected after a minute, also on an idle connection."""


class Splice:
    """Starts at once, owns both non-blocking sockets, and closes them when both directions have ended or broken.

    Args:
        user: each piece uses a turn of this user.
        buffer: space for a piece, may be shared by others on the same loop.
        on_end: called when both are closed, unless by `close`.
    """

    def __init__(
        self,
        one: socket.socket,
        other: socket.socket,
        *,
        user: str,
        queue: FairQueue,
        buffer: memoryview,
        on_end: Callable[[], None],
    ) -> None:
        self._sockets = one, other
        self._on_end = on_end
        for end in self._sockets:
            _prepare(end)
        add = partial(queue.add, user)
        self._ways = [
            _Way(one, other, add, buffer, self._way_ended),
            _Way(other, one, add, buffer, self._way_ended),
        ]

    def close(self) -> None:
        """Close both at once."""
        for way in self._ways:
            way.stop()
        for end in self._sockets:
            end.close()

    def _way_ended(self) -> None:
        if all(way.is_over for way in self._ways):
            self.close()
            self._on_end()


class _Way:
    """One direction. Unsent bytes are kept: nothing more is read meanwhile."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        add: Callable[[Callable[[], None]], None],
        buffer: memoryview,
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._add = add
        self._buffer = buffer
        self._on_end = on_end
        self._rest = memoryview(b"")
        self.is_over = False
        self._await_bytes()

    def stop(self) -> None:
        """Stop relaying."""
        if not self.is_over:
            self.is_over = True
            self._loop.remove_reader(self._source)
            self._loop.remove_writer(self._sink)

    def _await_bytes(self) -> None:
        self._loop.add_reader(self._source, self._has_come)

    def _has_come(self) -> None:
        self._loop.remove_reader(self._source)
        self._add(self._pass_on)

    def _pass_on(self) -> None:
        if self.is_over:
            return
        try:
            size = self._source.recv_into(self._buffer)
        except BlockingIOError:
            self._await_bytes()
        except OSError:
            self._end()
        else:
            if size:
                self._send(self._buffer[:size])
            else:
                self._end()

    def _send(self, data: memoryview) -> None:
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end()
            return
        if sent < len(data):
            self._rest = memoryview(bytes(data[sent:]))
            self._loop.add_writer(self._sink, self._has_room)
        else:
            self._await_bytes()

    def _has_room(self) -> None:
        self._loop.remove_writer(self._sink)
        self._send(self._rest)

    def _end(self) -> None:
        """The source has ended, or the sink has closed: the other direction goes on until it notices, too."""
        self.stop()
        with suppress(OSError):
            self._source.shutdown(socket.SHUT_RD)
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        self._on_end()


def _prepare(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        end.setsockopt(socket.IPPROTO_TCP, option, value)
