"""forward: what a session's program serves, on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import WholeRange, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.ports import LOOPBACK, refusal
from nsml.client.errors import AlreadyEnded, ClientError, Denied, NotFound, NotSignedIn
from nsml.concurrency import TaskGroup
from nsml.view.text import visible

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.client.tunnels import Tunnel

_PIECE = 64 << 10
_FOR_GOOD = (AlreadyEnded, Denied, NotFound, NotSignedIn)
"""What no later connection would find otherwise."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: the peer is told that the connection broke, not that it ended."""


@command(
    "forward",
    examples=[
        "nsml forward @last web",
        "nsml forward kim/mnist/3 tensorboard --port 6006",
        "nsml forward 12 metrics --rank 1",
    ],
)
@session_argument()
@click.argument("service", metavar="SERVICE")
@click.option("--port", type=WholeRange(1, 65535), metavar="P", help="Listen on this port.")
@click.option("--rank", type=WholeRange(0), default=0, metavar="R", help="Which replica.")
@pass_app
def forward(app: App, *, session: str, service: str, port: int | None, rank: int) -> None:
    """Reach what a session's program serves, on a port of this machine.

    The program listens on the Unix socket $NSML_RUN_DIR/tunnel/SERVICE. Its address here is
    printed; whoever is on this machine may connect to it. Ctrl-C ends.
    """

    async def serve(client: Client) -> None:
        name = await _running(client, session)
        await _Forwarder(app, client, name, service, rank).serve(LOOPBACK, port or 0)

    app.call(serve)


async def _running(client: Client, reference: str) -> str:
    """The full name of a session that has not ended: what @last means must not change meanwhile."""
    from nsml.client.streams import ENDED_STATES

    session = await client.sessions.get(reference)
    if session.state in ENDED_STATES:
        raise CommandError(
            f"session {session.name} has ended", code=ExitCode.CONFLICT, reason="ALREADY_ENDED"
        )
    return session.name


class _Forwarder:
    """Listens; each connection is one tunnel."""

    def __init__(self, app: App, client: Client, session: str, service: str, rank: int) -> None:
        self._app = app
        self._client = client
        self._session = session
        self._service = service
        self._rank = rank
        self._connections = TaskGroup()

    async def serve(self, host: str, port: int) -> None:
        """Until cancelled, or until no connection can succeed any more.

        Raises:
            CommandError: the port cannot be used.
        """
        try:
            server = await asyncio.start_server(
                self._accepted, host, port, limit=_PIECE, start_serving=False
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise refusal(f"{host}:{port}", reason, "--port ANOTHER") from error
        try:
            async with self._connections, server:
                await server.start_serving()
                chosen = server.sockets[0].getsockname()[1]
                self._app.write(f"{host}:{chosen}")
                self._app.stdout.flush()
                self._app.say(f"forwards to {self._service} of {self._session}; Ctrl-C ends it")
                await server.serve_forever()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.create_task(self._forward(reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels = self._client.sessions
        try:
            async with tunnels.open_tunnel(self._session, self._service, rank=self._rank) as tunnel:
                await _join(tunnel, reader, writer)
        except _FOR_GOOD:
            raise
        except ClientError as error:
            self._app.say(visible(f"connection lost: {error.message}: {error.why}".rstrip(": ")))
            _reset(writer)
        except OSError:
            _reset(writer)  # whoever connected is gone
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _join(tunnel: Tunnel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with TaskGroup() as group:
            asking = group.create_task(_ask(tunnel, reader))
            while data := await tunnel.read():
                writer.write(data)
                await writer.drain()
            writer.write_eof()
            await tunnel.wait_gone()
            asking.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _ask(tunnel: Tunnel, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_PIECE):
        await tunnel.write(data)
    await tunnel.end()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that nobody takes a part for the whole."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
