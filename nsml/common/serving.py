"""HTTP servers of all our programs: uvicorn, with limits per client.

A page of the dashboard is served by its own program, and proxied to a browser by the gateway: both have the same
size limits, and detect dead clients equally soon.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nsml.common.connections import Connection, Connections, Phase

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_MESSAGE: Final = 64 << 10
"""Largest message of a browser on a WebSocket, in bytes: a larger paste is no typing."""
PING_EVERY_S: Final = 15.0
"""A client that does not answer a ping on a WebSocket, for as long again, is dead."""
CONNECTION: Final = "nsml.connection"
"""Key of the `Connection` in a request's state."""
SETTINGS: Final[Mapping[str, Any]] = {
    "ws": "websockets-sansio",
    "ws_max_size": MOST_MESSAGE,
    "ws_ping_interval": PING_EVERY_S,
    "ws_ping_timeout": PING_EVERY_S,
    "lifespan": "off",
    "log_config": None,
    "access_log": False,
    "proxy_headers": False,
    "server_header": False,
}
_BACKLOG: Final = 512
_FULL_S: Final = 0.1
"""Pause after the system refused to accept a connection."""
_NO_UPGRADE: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_log = logging.getLogger("uvicorn.error")


class HttpServer(uvicorn.Server):
    """Serves on existing sockets.

    Args:
        connections: limits and open connections of this server alone.
        options: settings of uvicorn beside SETTINGS.
    """

    def __init__(self, app: ASGIApp, connections: Connections, **options: Any) -> None:
        protocol: Any = functools.partial(_Http, held_by=self)
        settings = {**SETTINGS, "timeout_keep_alive": connections.limits.idle_s, **options}
        super().__init__(uvicorn.Config(_unambiguous(app), http=protocol, **settings))
        self.connections_open = connections
        self._accepting: set[asyncio.Task[None]] = set()
        self._shaking: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept here, not in uvicorn: unfinished handshakes count, too."""
        self.servers = []
        for one in sockets or ():
            one.settimeout(0)
            one.listen(_BACKLOG)
            self._accepting.add(asyncio.create_task(self._accept(one), name="http.accept"))
        self._accepting.add(asyncio.create_task(self._watch(), name="http.watch"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and close open connections."""
        ending = {*self._accepting, *self._shaking}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                # Out of file descriptors, most likely: evict a waiting client to free one.
                _log.warning("cannot accept: %s", error)
                self.connections_open.make_room(loop.time(), lambda _: True)
                await asyncio.sleep(_FULL_S)
                continue
            client = str(address[0]) if isinstance(address, tuple) else ""
            held = self.connections_open.admit(client, loop.time())
            if held is None:
                accepted.close()
                continue
            task = asyncio.create_task(self._take(accepted, held), name="http.take")
            held.abort = task.cancel
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _take(self, accepted: socket.socket, held: Connection) -> None:
        """Do the TLS handshake, if configured, and start the protocol."""
        config = self.config
        limit = self.connections_open.limits.handshake_s if config.ssl else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(held), accepted, ssl=config.ssl, ssl_handshake_timeout=limit
            )
        except OSError:  # including TLS errors
            self._left(accepted, held)
        except BaseException:
            self._left(accepted, held)
            raise

    def _left(self, accepted: socket.socket, held: Connection) -> None:
        self.connections_open.leave(held)
        accepted.close()

    def _protocol(self, held: Connection) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = made(
            config=self.config,
            server_state=self.server_state,
            app_state={CONNECTION: held},
            held=held,
        )
        return protocol

    async def _watch(self) -> None:
        """Close overdue connections."""
        limits, loop = self.connections_open.limits, asyncio.get_running_loop()
        every_s = min(1.0, limits.head_s / 4, limits.stalled_s / 4, limits.closing_s / 4)
        while True:
            await asyncio.sleep(every_s)
            for one in self.connections_open:
                if one.phase is not Phase.HANDSHAKE:
                    one.look()
            for one in self.connections_open.overdue(loop.time()):
                one.end()


def _unambiguous(app: ASGIApp) -> ASGIApp:
    """Refuse requests with two lengths, and close their connections.

    A proxy in front may use the other length, and what it reads as a body would be a request here (RFC 9112, 6.1).
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            headers = [(b"connection", b"close"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    return answer


class _Held:
    """Mixin for uvicorn's protocols: reports the connection's state to the limits.

    The subclass sets `_held` and `_server`.
    """

    transport: Any
    _held: Connection
    _server: HttpServer

    def _begin(self) -> None:
        held = self._held
        held.abort, held.end, held.look = self.transport.abort, self._end, self._look

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _look(self) -> None:
        """Update since when data waits for the client."""
        if not self.transport.get_write_buffer_size():
            self._held.unsent_since = None
        elif self._held.unsent_since is None:
            self._held.unsent_since = self._now()

    def _end(self) -> None:
        """Close, at once if the client reads nothing."""
        if self._held.phase is Phase.CLOSING or self._held.unsent_since is not None:
            self.transport.abort()
            return
        self._say_late()
        self._held.enter(Phase.CLOSING, self._now())
        self.transport.close()

    def _say_late(self) -> None:
        """Send the client the reason, if possible."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._server.connections_open.leave(self._held)
        super().connection_lost(exc)  # type: ignore[misc]

    def resume_writing(self) -> None:
        """The client reads again."""
        self._held.unsent_since = None
        super().resume_writing()  # type: ignore[misc]


class _Http(_Held, H11Protocol):
    """HTTP/1.1."""

    def __init__(self, *, held_by: HttpServer, held: Connection, **options: Any) -> None:
        H11Protocol.__init__(self, **options)
        self._server, self._held = held_by, held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request head."""
        super().connection_made(transport)
        self._begin()
        self._held.enter(Phase.HEAD, self._now())

    def data_received(self, data: bytes) -> None:
        """Process data and update the phase."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        super().on_response_complete()
        self._note()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to the WebSocket protocol."""
        self._held.enter(Phase.UPGRADED, self._now())
        kind: Any = self.ws_protocol_class
        made: Any = _held_web_socket(kind)
        self.ws_protocol_class = functools.partial(made, self._server, self._held)  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)

    def _note(self) -> None:
        if self._held.phase not in {Phase.UPGRADED, Phase.CLOSING}:
            self._held.enter(self._phase(), self._now())

    def _phase(self) -> Phase:
        theirs, cycle = self.conn.their_state, self.cycle
        if theirs is h11.SEND_BODY:
            return Phase.BODY
        if cycle is not None and not cycle.response_complete:
            return Phase.ANSWER
        if theirs is h11.IDLE:
            has_begun = bool(self.conn.trailing_data[0])
            return Phase.IDLE if cycle is not None and not has_begun else Phase.HEAD
        return Phase.CLOSING

    def _say_late(self) -> None:
        has_answered = self.cycle is not None and self.cycle.response_started
        if self._held.phase in {Phase.HEAD, Phase.BODY} and (
            not has_answered or self.conn.their_state is h11.IDLE
        ):
            self.transport.write(_LATE)


@functools.lru_cache(maxsize=2)
def _held_web_socket(kind: Any) -> type[asyncio.Protocol]:
    """Return a WebSocket class of uvicorn with the limits; its library need not be installed."""

    class WebSocket(_Held, kind):  # type: ignore[misc]
        def __init__(self, server: HttpServer, held: Connection, **options: Any) -> None:
            kind.__init__(self, **options)
            self._server, self._held = server, held

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._begin()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Its library accepts a smaller head than h11, and fails silently.
            if not self.handshake_initiated and self._held.phase is not Phase.CLOSING:
                self._held.enter(Phase.CLOSING, self._now())
                self.transport.write(_NO_UPGRADE)
                self.transport.close()

    return WebSocket
