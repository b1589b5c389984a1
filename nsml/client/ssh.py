"""ssh servers in running sessions, through the control plane: byte streams for an ssh client.

async with client.sessions.open_ssh("@last") as server:
    print(server.host_key)
    while data := await server.read():
        ...
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nsml.client.errors import ConnectionLost, StateConflict, Unavailable
from nsml.client.tunnels import open_agent_service
from nsml.spec import agent_services
from nsml.spec.frames import NotFrames, first_of
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsml.client.rpc import Rpc
    from nsml.client.tunnels import Tunnel

_HOST_KEY: Final = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{1,200}={0,2}")
"""It is written to a file read by ssh."""


class SshServer:
    """A server in a replica. One task may read while another writes; all methods raise ClientError.

    `host_key`: its public key, as in known_hosts.
    """

    def __init__(self, tunnel: Tunnel, host_key: str, first: bytes) -> None:
        self._tunnel = tunnel
        self._first = first
        self.host_key = host_key

    async def read(self) -> bytes:
        """Read some bytes; empty at the server's end. ConnectionLost if it broke."""
        first, self._first = self._first, b""
        if first:
            return first
        try:
            return await self._tunnel.read()
        except Unavailable as error:
            raise ConnectionLost("the connection to the session broke") from error

    async def write(self, data: bytes) -> None:
        """Send to the server; blocks until it reads."""
        await self._tunnel.write(data)

    async def end(self) -> None:
        """Send end of stream."""
        await self._tunnel.end()


@asynccontextmanager
async def open_ssh(
    rpc: Rpc, reference: str, *, rank: int = 0, ssh_host: str = ""
) -> AsyncIterator[SshServer]:
    """Start a server in a replica, for one connection; it ends with the context.

    `ssh_host`: from jump hosts, the host name used by their client.

    Raises:
        StateConflict: it cannot be started.
        ConnectionLost: the node did not answer in time.
        ClientError: as `nsml.client.tunnels.open_tunnel`.
    """
    async with open_agent_service(
        rpc,
        reference,
        agent_services.SSH,
        rank=rank,
        what="ssh into sessions",
        ssh_host=ssh_host,
    ) as tunnel:
        try:
            async with asyncio.timeout(rpc.deadline_s):
                answer, rest = await _answer(tunnel)
        except TimeoutError as error:
            raise ConnectionLost("the node did not answer in time") from error
        if answer.WhichOneof("kind") == "refused":
            raise StateConflict("ssh cannot reach this session", why=answer.refused)
        if not _HOST_KEY.fullmatch(answer.host_key):
            raise _not_understood()
        yield SshServer(tunnel, answer.host_key, rest)


async def _answer(tunnel: Tunnel) -> tuple[pb.SshAnswer, bytes]:
    """Return the agent's response and the server's first bytes."""
    held = b""
    try:
        while (found := first_of(held)) is None:
            data = await tunnel.read()
            if not data:
                raise ConnectionLost("the connection to the node broke")
            held += data
        return pb.SshAnswer.FromString(found[0]), found[1]
    except (NotFrames, DecodeError) as error:
        raise _not_understood() from error
    except Unavailable as error:
        raise ConnectionLost("the connection to the node broke") from error


def _not_understood() -> ConnectionLost:
    return ConnectionLost("the node's answer cannot be understood")
