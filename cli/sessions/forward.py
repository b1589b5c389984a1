"""forward: a port or socket of a session's program, on a port of this machine."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.arguments import WholeRange, session_argument
from cli.group import BadValue, command, pass_app
from cli.local.ports import LOOPBACK, refusal
from cli.sessions.loopback import CannotTell, is_request, may_pass, user_at
from cli.sessions.loopback import refusal as refused_page
from cli.sessions.targets import not_ended
from nsml.client.errors import (
    AlreadyEnded,
    ClientError,
    Denied,
    InvalidRequest,
    NoSuchService,
    NotFound,
    NotSignedIn,
)
from nsml.common.concurrency import TaskGroup
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.client.calls import Client
    from nsml.client.tunnels import Tunnel
    from nsml.v1.sessions_pb2 import Session

_PIECE = 64 << 10
PORT = WholeRange(1, 65535)
_NAME = re.compile(r"[a-z0-9-]{1,32}")
_UNCLEAR_S = 0.5
"""Delay before passing on bytes that may begin an HTTP request, in seconds."""
_PERMANENT_ERRORS = (AlreadyEnded, Denied, InvalidRequest, NotFound, NotSignedIn)
"""Errors that every later connection would meet, too."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value: the peer sees a broken connection, not an end of the data."""

_MOST_SHOWN = 80


class _Service(click.ParamType[str]):
    """A TCP port, or the name of a Unix socket."""

    name = "service"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.isdecimal():
            return str(PORT.convert(value, param, ctx))
        text = str(value)
        local, is_pair, remote = text.partition(":")
        if is_pair:  # as in ssh, docker and kubectl
            raise BadValue(
                f"{text[:_MOST_SHOWN]!r} is not a port or service of the session",
                param,
                ctx,
                why="--port is the port on this machine",
                advice=f"nsml forward SESSION {remote} --port {local}"
                if local.isdecimal() and remote.isdecimal()
                else "",
            )
        # The request refuses text that is not UTF-8.
        if text.encode(errors="replace").decode() == text and not _NAME.fullmatch(text):
            raise BadValue(
                f"{text[:_MOST_SHOWN]!r} is not a port or service of the session",
                param,
                ctx,
                why="a service has 1 to 32 of a-z, 0-9 and - in its name, and ports are those of TCP",
            )
        return text


@command(
    "forward",
    examples=[
        "nsml forward @last 8888",
        "nsml forward @last web",
        "nsml forward kim/mnist/3 tensorboard --port 6006",
        "nsml forward 12 metrics --rank 1",
    ],
)
@session_argument()
@click.argument("service", type=_Service(), metavar="PORT|SERVICE")
@click.option("--port", type=PORT, metavar="P", help="Listen on this port here.")
@click.option("--rank", type=WholeRange(0), default=0, metavar="R", help="Connect to this replica.")
@click.option(
    "--host",
    "names",
    metavar="NAME",
    multiple=True,
    help="Also accept HTTP requests for this host name.",
)
@pass_app
def forward(
    app: App, *, session: str, service: str, port: int | None, rank: int, names: tuple[str, ...]
) -> None:
    """Forward a port of this machine to a port or socket of a session.

    The program listens on TCP port PORT, as Jupyter and TensorBoard do, or on the Unix socket
    $NSML_RUN_DIR/tunnel/SERVICE. The local address is printed; its port is PORT if that is free.
    Only programs of your own user may connect, and HTTP requests must be for localhost, 127.0.0.1
    or a NAME of --host. Ends with the session, or with Ctrl-C.
    """

    async def serve(client: Client) -> None:
        from nsml.common.c_memory import keep_freed_memory

        keep_freed_memory()
        running = await not_ended(client, session)
        await forward_to(app, client, running, service, rank=rank, port=port, names=names)

    app.call(serve)


async def forward_to(
    app: App,
    client: Client,
    session: Session,
    service: str,
    *,
    rank: int = 0,
    port: int | None = None,
    names: Sequence[str] = (),
    address: Callable[[str], str] = str,
) -> None:
    """Forward a port of this machine until cancelled, until the session ends, or until no connection can succeed.

    `port`: None for the program's own if it is free, else any. `address` formats HOST:PORT for output.

    Raises:
        CommandError: the port cannot be used.
    """
    target = _Target(session.id, session.name, service, rank)
    await _Forwarder(app, client, target, names).serve(LOOPBACK, port, address)


class _RequestRefused(Exception):
    """The client sent an HTTP request that is not passed on."""


class _Ended(Exception):
    """The session has ended."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A service of a replica."""

    id: str
    session: str
    service: str
    rank: int

    @property
    def port(self) -> int:
        """The TCP port; 0 for a Unix socket."""
        return int(self.service) if self.service.isdigit() else 0


class _Forwarder:
    """Listens; each connection is one tunnel."""

    def __init__(self, app: App, client: Client, target: _Target, names: Sequence[str]) -> None:
        self._app = app
        self._client = client
        self._target = target
        self._names = names
        self._connections = TaskGroup()
        self._is_warned = False

    async def serve(self, host: str, port: int | None, address: Callable[[str], str]) -> None:
        """See `forward_to`."""
        server = await self._listening(host, port)
        try:
            async with self._connections, server:
                await server.start_serving()
                chosen = server.sockets[0].getsockname()[1]
                self._app.write(address(f"{host}:{chosen}"))
                self._app.stdout.flush()
                target = self._target
                what = f"port {target.service}" if target.port else target.service
                self._app.say(f"forwards to {what} of {target.session}; Ctrl-C ends it")
                self._connections.create_task(self._check())
                self._connections.create_task(self._follow())
                await server.serve_forever()
        except BaseExceptionGroup as failed:
            error = failed.exceptions[0]
            if not isinstance(error, (_Ended, AlreadyEnded)):
                raise error from None
            self._app.say(f"session {self._target.session} has ended")

    async def _listening(self, host: str, port: int | None) -> asyncio.Server:
        wanted = [port] if port is not None else [self._target.port, 0]
        for number in dict.fromkeys(wanted):
            try:
                return await asyncio.start_server(
                    self._accepted, host, number, limit=_PIECE, start_serving=False
                )
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                failure = refusal(f"{host}:{number}", reason, "--port ANOTHER")
        raise failure

    async def _check(self) -> None:
        """Warn if nothing listens yet."""
        sessions, target = self._client.sessions, self._target
        try:
            await sessions.check_service(target.session, target.service, rank=target.rank)
        except _PERMANENT_ERRORS:
            raise
        except NoSuchService as error:
            self._app.say(visible(f"{error.message} yet; connections fail until then"))
        except ClientError as error:
            self._app.say(visible(f"whether anything serves there is unknown: {error.message}"))

    async def _follow(self) -> None:
        """Raise _Ended at the session's end."""
        from nsml.client.streams import wait_until

        with suppress(NotFound):  # removed after its end
            await wait_until(self._client, self._target.id, lambda _: False)
        raise _Ended

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.create_task(self._forward(reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels, target = self._client.sessions, self._target
        if not self._is_own_user(writer):
            _reset(writer)
            return
        try:
            async with tunnels.open_tunnel(
                target.session, target.service, rank=target.rank
            ) as tunnel:
                await _join(tunnel, reader, writer, self._names)
        except _PERMANENT_ERRORS:
            raise
        except ClientError as error:
            self._app.say(visible(f"connection lost: {error.message}: {error.why}".rstrip(": ")))
            _reset(writer)
        except _RequestRefused:
            self._app.say("refused a request to a name that is not this machine's: see --host")
        except OSError:
            _reset(writer)  # the client is gone
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _is_own_user(self, writer: asyncio.StreamWriter) -> bool:
        """Return whether the connection is from our own user; if the system cannot tell, warns once and returns True."""
        peer, here = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        try:
            if peer is not None and user_at(peer, here) == os.geteuid():
                return True
        except CannotTell:
            if not self._is_warned:
                self._app.say("this system does not identify local users: any of them can connect")
            self._is_warned = True
            return True
        self._app.say("refused a connection of another user of this machine")
        return False


async def _join(
    tunnel: Tunnel,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    names: Sequence[str],
) -> None:
    is_answered = False
    try:
        async with TaskGroup() as group:
            asking = group.create_task(_ask(tunnel, reader, names))
            while data := await tunnel.read():
                is_answered = True
                writer.write(data)
                await writer.drain()
            is_answered = True
            writer.write_eof()
            await tunnel.wait_gone()
            asking.cancel()
    except BaseExceptionGroup as failed:
        error = failed.exceptions[0]
        if isinstance(error, _RequestRefused):
            if is_answered:  # a page after the program's response would look like a part of it
                _reset(writer)
            else:
                writer.write(refused_page("nsml forward --host NAME"))
                await writer.drain()
        raise error from None


async def _ask(tunnel: Tunnel, reader: asyncio.StreamReader, names: Sequence[str]) -> None:
    begun = await _first_bytes(reader, names)
    if begun is None:
        raise _RequestRefused
    if begun:
        await tunnel.write(begun)
    while data := await reader.read(_PIECE):
        await tunnel.write(data)
    await tunnel.end()


async def _first_bytes(reader: asyncio.StreamReader, names: Sequence[str]) -> bytes | None:
    """Return the client's first bytes once they may be passed on; None if they may not."""
    begun = b""
    while True:
        # ambiguous bytes are not held for long: the server may wait for them
        within_s = None if not begun or is_request(begun) else _UNCLEAR_S
        try:
            async with asyncio.timeout(within_s):
                data = await reader.read(_PIECE)
        except TimeoutError:
            return begun
        begun += data
        passes = may_pass(begun, names)
        if passes is not None:
            return begun if passes else None
        if not data:
            return None if is_request(begun) else begun


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, so that the peer does not take partial data for all of it."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
