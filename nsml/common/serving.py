"""Our HTTP servers, whichever program runs them: uvicorn, with limits on what a client may hold.

A page of the dashboard is served by its own program, and passed to a browser by the gateway: both accept the same
sizes, and notice equally soon when a client is gone.
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
"""Bytes of what a browser says at once on a connection that stays: a paste of that much is no typing."""
PING_EVERY_S: Final = 15.0
"""Whoever does not answer to that on such a connection, for as long again, is gone."""
CONNECTION: Final = "nsml.connection"
"""Where the state of a request has its `Connection`."""
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
"""How long no connection is accepted after the machine refused one."""
_NO_UPGRADE: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_log = logging.getLogger("uvicorn.error")


class HttpServer(uvicorn.Server):
    """Answers on sockets that are there already.

    Args:
        connections: the limits, and what is open; of this server alone.
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
        """Accept by ourselves: what is held by an unfinished handshake counts, too."""
        self.servers = []
        for one in sockets or ():
            one.settimeout(0)
            one.listen(_BACKLOG)
            self._accepting.add(asyncio.create_task(self._accept(one), name="http.accept"))
        self._accepting.add(asyncio.create_task(self._watch(), name="http.watch"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and end what is open."""
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
                # Out of file descriptors, most likely: whoever keeps us waiting gives some back.
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
        """Set TLS up, where there is some, and leave the rest to the protocol."""
        config = self.config
        limit = self.connections_open.limits.handshake_s if config.ssl else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(held), accepted, ssl=config.ssl, ssl_handshake_timeout=limit
            )
        except OSError:  # of which errors of TLS are some
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
        """End what takes longer than it may."""
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
    """Refuse requests with two lengths, and take nothing more from their connections.

    A proxy in front may go by the one that we do not, and what it takes for a body would be a request here (RFC 9112, 6.1).
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
    """Of a protocol of uvicorn: notes of its connection what the limits go by.

    `_held` and `_server` are of whoever mixes it in.
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
        """Note whether something waits for the client to read it."""
        if not self.transport.get_write_buffer_size():
            self._held.unsent_since = None
        elif self._held.unsent_since is None:
            self._held.unsent_since = self._now()

    def _end(self) -> None:
        """Close, and do not wait for a client that reads nothing."""
        if self._held.phase is Phase.CLOSING or self._held.unsent_since is not None:
            self.transport.abort()
            return
        self._say_late()
        self._held.enter(Phase.CLOSING, self._now())
        self.transport.close()

    def _say_late(self) -> None:
        """Tell the client why, where it can be told."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._server.connections_open.leave(self._held)
        super().connection_lost(exc)  # type: ignore[misc]

    def resume_writing(self) -> None:
        """A client that reads is not stalled."""
        self._held.unsent_since = None
        super().resume_writing()  # type: ignore[misc]


class _Http(_Held, H11Protocol):
    """HTTP/1.1."""

    def __init__(self, *, held_by: HttpServer, held: Connection, **options: Any) -> None:
        H11Protocol.__init__(self, **options)
        self._server, self._held = held_by, held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head."""
        super().connection_made(transport)
        self._begin()
        self._held.enter(Phase.HEAD, self._now())

    def data_received(self, data: bytes) -> None:
        """Go on."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._note()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on another protocol has the connection."""
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
    """A kind of WebSocket of uvicorn, of which the limits know; its library need not be there."""

    class WebSocket(_Held, kind):  # type: ignore[misc]
        def __init__(self, server: HttpServer, held: Connection, **options: Any) -> None:
            kind.__init__(self, **options)
            self._server, self._held = server, held

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._begin()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Its library takes less than h11 for a head, and then says nothing at all.
            if not self.handshake_initiated and self._held.phase is not Phase.CLOSING:
                self._held.enter(Phase.CLOSING, self._now())
                self.transport.write(_NO_UPGRADE)
                self.transport.close()

    return WebSocket
