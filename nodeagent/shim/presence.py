"""Detects whether a container ended because its engine did, which keeps no containers over its restart.

Standard library only: it runs in the keeper. The container's result does not show it: a program may
end itself by any signal, and may end with any code when its engine stops it. A call that is held open
lasts as long as the engine's process, and an engine that shuts down accepts no calls while it stops containers.
"""

from __future__ import annotations

import select
import time

from nodeagent.engine.wire import Unanswered

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from nodeagent.engine.wire import Container

JUDGED_WITHIN_S = 20.0
"""An engine that shuts down gives all its containers 15 s, then ends; a slow one answers."""
_HELD_AFTER_S = 1.0
"""Delay of the held call: for short containers the engine need not be called again."""
_AGAIN_S = 1.0
_MOST_READ = 65536


class Presence:
    """The engine of a running container; `container` None: not checked.

    Attributes:
        descriptor: to wait for beside the container; `look` when it is readable. -1: nothing.
    """

    def __init__(self, container: Container | None) -> None:
        self.descriptor = -1
        self._container = container
        self._call: socket.socket | None = None
        self._is_taken = False
        self._was_lost = False
        self._due_at = time.monotonic() + _HELD_AFTER_S

    def look(self) -> float | None:
        """Read the call; return in how many seconds to look again, None: when the descriptor is readable."""
        if self._container is None:
            return None
        if self._call is None and time.monotonic() >= self._due_at:
            self._hold(self._container)
        elif self._call is not None:
            self._read(self._call)
        return None if self._call is not None else max(self._due_at - time.monotonic(), 0.0)

    def has_ended(self) -> bool:
        """Whether the engine has ended, or is shutting down, after the container. May take JUDGED_WITHIN_S."""
        if self._container is None:
            return False
        if self._call is not None:
            self._read(self._call)
        if self._was_lost:
            return True
        try:
            ping = self._container.ping()
        except Unanswered:
            return True
        with ping:
            return self._judged(ping)

    def _judged(self, ping: socket.socket) -> bool:
        """Wait for an answer, or the end of the engine's process."""
        poll = select.poll()
        poll.register(ping, select.POLLIN)
        if self._call is not None:
            poll.register(self._call, select.POLLIN)
        until = time.monotonic() + JUDGED_WITHIN_S
        while (left := until - time.monotonic()) > 0:
            ready = {number for number, _ in poll.poll(left * 1000)}
            if ping.fileno() in ready:
                return not _received(ping)
            if self._call is not None:
                self._read(self._call)
            if self._was_lost:
                return True
        return False

    def _hold(self, container: Container) -> None:
        try:
            self._call = container.hold()
        except Unanswered:
            self._lose()
        else:
            self._is_taken = False
            self.descriptor = self._call.fileno()

    def _read(self, call: socket.socket) -> None:
        """Read the engine's answers on the call: accepted, container ended; or its end."""
        while (piece := _received(call)) is not None:
            if not piece:
                self._lose()
                return
            if not self._is_taken:
                self._is_taken = b" 200 " in piece[:32]
                # until then a starting engine may still end earlier containers
                self._was_lost = self._was_lost and not self._is_taken

    def _lose(self) -> None:
        self._was_lost = True
        if self._call is not None:
            self._call.close()
        self._call, self.descriptor = None, -1
        self._due_at = time.monotonic() + _AGAIN_S


def _received(connection: socket.socket) -> bytes | None:
    """Return received bytes; b"": the end, None: nothing yet."""
    try:
        return connection.recv(_MOST_READ)
    except BlockingIOError:
        return None
    except OSError:
        return b""
