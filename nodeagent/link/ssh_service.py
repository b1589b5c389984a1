"""The service agent.ssh: an ssh server in a replica, relayed by the agent.

Each replica has a host key of its own, made here at the first connection. Its private half stays in the replica's
folder, for the agent alone; its public half is sent to the client within the tunnel, before any byte of ssh. For a client
behind a jump host the control plane sends a key for that connection alone, its certificate, and who may log in. A server
in a container has the agent sign with its key, and start its programs by the engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from nodeagent.runtimes import contained_ssh
from nodeagent.runtimes.visits import Login, NotAdmitted
from nsml.common.concurrency import TaskGroup
from nsml.spec.frames import framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.runtimes.visits import Visits
    from nsml.v1.agents_pb2 import SshEntrance

_PIECE_BYTES: Final = 256 << 10


class _HostKey(NamedTuple):
    pair: Ed25519PrivateKey
    private: str
    public: str


class SshServers:
    """Serves `agent.ssh`."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._room = contained_ssh.Room()

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Connect a client to a server of its own, until one of them ends."""
        try:
            plan = await asyncio.to_thread(_plan, replica.folder.spec)
            entrance = replica.ssh_entrance
            key = await asyncio.to_thread(_host_key, replica.folder.ssh_host_key, entrance)
            login = _login(entrance)
            servers = (
                self._visits.ssh_server(replica.folder, key.private, login=login)
                if plan is None
                else contained_ssh.server(
                    self._visits, replica.folder, plan, key.pair, self._room, login=login
                )
            )
            async with servers as server:
                await _say(stream, pb.SshAnswer(host_key=key.public))
                await _relay(stream, server)
        except* NotAdmitted as error:
            await _say(stream, pb.SshAnswer(refused=str(error.exceptions[0])))


async def _say(stream: Stream, answer: pb.SshAnswer) -> None:
    await stream.write(framed(answer.SerializeToString()))


def _plan(spec: Path) -> dict[str, Any] | None:
    """Return the plan of a replica's container; None for processes. Raises NotAdmitted."""
    try:
        plan: dict[str, Any] | None = json.loads(spec.read_bytes()).get("container")
    except (OSError, ValueError) as error:
        raise NotAdmitted("its program is just beginning") from error
    return plan or None


def _login(entrance: SshEntrance | None) -> Login | None:
    if entrance is None:
        return None
    keys = [one.hex() for one in entrance.authorized_keys]
    return Login(certificate=entrance.certificate, authorized_keys=keys)


def _host_key(path: Path, entrance: SshEntrance | None) -> _HostKey:
    """Return a replica's host key, made if missing; or that of one connection. Raises NotAdmitted."""
    try:
        if entrance is not None:
            pair = Ed25519PrivateKey.from_private_bytes(entrance.host_key)
            return _read(_written(pair))
        with suppress(FileNotFoundError):
            return _read(path.read_bytes())
        made = _written(Ed25519PrivateKey.generate())
        # atomically: two clients may come first
        staged = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
        try:
            with os.fdopen(
                os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(made)
            with suppress(FileExistsError):
                os.link(staged, path)
        finally:
            staged.unlink(missing_ok=True)
        return _read(path.read_bytes())
    except (OSError, ValueError) as error:
        raise NotAdmitted(f"its host key: {getattr(error, 'strerror', None) or error}") from error


def _written(pair: Ed25519PrivateKey) -> bytes:
    return pair.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def _read(private: bytes) -> _HostKey:
    pair = load_ssh_private_key(private, None)
    if not isinstance(pair, Ed25519PrivateKey):
        raise ValueError("it is of another kind")  # noqa: TRY004 - a damaged file
    public = pair.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return _HostKey(pair, private.decode(), public.decode())


async def _relay(stream: Stream, server: socket.socket) -> None:
    """Relay until the server ends; a client that disconnects cancels this."""
    loop = asyncio.get_running_loop()

    async def take() -> None:
        with suppress(ConnectionError):  # it has ended, as the loop below notices
            while data := await stream.read():
                await loop.sock_sendall(server, data)
            server.shutdown(socket.SHUT_WR)

    async with TaskGroup() as group:
        taking = group.create_task(take())
        with suppress(ConnectionError):
            while data := await loop.sock_recv(server, _PIECE_BYTES):
                await stream.write(data)
        taking.cancel()
