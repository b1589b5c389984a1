"""HTTP to one session: uvicorn's protocol, with limits on the agent's resources for clients, which are user code.

Excess connections wait to be accepted; one that sends no request, or does not read its response, is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from typing import NoReturn

    from nsml.common.clock import Clock

_MOST_HEADER_BYTES: Final = 16 << 10
_LOOK_S: Final = 5.0
_AGAIN_S: Final = 1.0
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SILENT: Final = logging.Logger("nsml.streaming", logging.CRITICAL + 1)  # noqa: LOG001 - nobody's
"""Errors of clients concern their user, and would fill the agent's log."""

App = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits for the clients of one session: connections, and seconds of each without a request.

    During a response: seconds without progress.
    """

    connections: int = 64
    idle_s: float = 60.0
    stalled_s: float = 600.0


class Connections:
    """Serves `app`, an ASGI application, on one listener, while `serve` runs.

    Args:
        app: must not raise.
        clock: measures idle time.
        bounds: limits for clients.
    """

    def __init__(self, app: App, clock: Clock, bounds: Bounds) -> None:
        self.app = app
        self.clock = clock
        self.state = ServerState()
        self._bounds = bounds
        self._room = asyncio.Semaphore(bounds.connections)
        self._open: set[_Connection] = set()
        self._config = Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            timeout_keep_alive=max(int(bounds.idle_s), 1),
        )

    async def serve(self, listener: socket.socket) -> NoReturn:
        """Serve until cancelled, which closes all connections. The non-blocking listener stays the caller's."""
        try:
            async with TaskGroup() as group:
                group.create_task(self._look())
                await self._accept(listener)
        finally:
            for one in list(self._open):
                one.abort()
        raise AssertionError

    async def _accept(self, listener: socket.socket) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except BaseException as error:
                self._room.release()
                if not isinstance(error, OSError):
                    raise
                if error.errno in _NO_DESCRIPTORS:
                    await self.clock.sleep(_AGAIN_S)
                continue
            # from now on the protocol releases the room
            await loop.connect_accepted_socket(partial(_Connection, self, self._config), accepted)

    def opened(self, one: _Connection) -> None:
        """Add a connection."""
        self._open.add(one)

    def closed(self, one: _Connection) -> None:
        """Remove a connection, so that another one is accepted."""
        if one in self._open:
            self._open.discard(one)
            self._room.release()

    async def _look(self) -> NoReturn:
        bounds = self._bounds
        while True:
            await self.clock.sleep(min(_LOOK_S, bounds.idle_s))
            now = self.clock.monotonic()
            for one in list(self._open):
                if now - one.moved_at >= (bounds.stalled_s if one.is_busy else bounds.idle_s):
                    one.abort()


class _Connection(H11Protocol):
    """One connection; it counts until the answer to its request has ended, too."""

    def __init__(self, connections: Connections, config: Config) -> None:
        super().__init__(config, connections.state, {})
        self._of = connections
        self._answering: asyncio.Task[Any] | None = None
        self._is_lost = False
        self.app = self._answer
        self.logger = _SILENT
        self.moved_at = connections.clock.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether its request is being answered."""
        return self._answering is not None

    def abort(self) -> None:
        """Close it, without sending the rest."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._of.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._is_lost = True
        super().connection_lost(exc)
        if self._answering is None:
            self._of.closed(self)
        else:
            self._answering.cancel()

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self._answering = asyncio.current_task()
        self.moved_at = self._of.clock.monotonic()

        async def send_on(message: dict[str, Any]) -> None:
            await send(message)
            self.moved_at = self._of.clock.monotonic()

        try:
            await self._of.app(scope, receive, send_on)
        except asyncio.CancelledError:
            if not self._is_lost:
                raise
        finally:
            self._answering = None
            self.moved_at = self._of.clock.monotonic()
            if self._is_lost:
                self._of.closed(self)
