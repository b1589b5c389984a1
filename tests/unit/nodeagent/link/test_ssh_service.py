"""The service agent.ssh: what it tells of the host key, and how bytes pass by."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link.services import RunningReplica
from nodeagent.link.ssh_service import SshServers
from nodeagent.runtimes.visits import Login, NotAdmitted
from nsml.spec.frames import first_of
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.agents_pb2 import SshEntrance
from tests.support.scripted_platform import session_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)


class Client:
    """The other end of the stream."""

    def __init__(self, *says: bytes) -> None:
        self._says = [*says]
        self.told = b""

    async def read(self) -> bytes:
        return self._says.pop(0) if self._says else b""

    async def write(self, data: bytes) -> None:
        self.told += data

    @property
    def answer(self) -> tuple[pb.SshAnswer, bytes]:
        found = first_of(self.told)
        assert found is not None
        return pb.SshAnswer.FromString(found[0]), found[1]


class Echo:
    """In place of visits: a server that says what it is told, to its end."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    @asynccontextmanager
    async def ssh_server(
        self, _folder: ReplicaFolder, key: str, *, login: Login | None = None
    ) -> AsyncIterator[socket.socket]:
        self.keys.append(key if login is None else login.beside(key))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def serve() -> None:
            with theirs:
                while data := theirs.recv(1 << 16):
                    theirs.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield ours
        finally:
            ours.close()
            await asyncio.to_thread(thread.join)


@pytest.fixture
def replica(tmp_path: Path) -> RunningReplica:
    folder = ReplicaFolders(tmp_path).of(REPLICA)
    folder.create()
    folder.spec.write_text(json.dumps({"namespace": None}))
    return RunningReplica(id=REPLICA, folder=folder)


async def served(replica: RunningReplica, visits: object, *says: bytes) -> Client:
    client = Client(*says)
    serving = SshServers(visits).serve(replica, client)  # type: ignore[arg-type]
    await asyncio.wait_for(serving, 60)
    return client


async def test_each_connection_shows_the_one_key_of_the_replica(replica: RunningReplica) -> None:
    visits = Echo()
    clients = await asyncio.gather(*[served(replica, visits) for _ in range(8)])
    keys = {client.answer[0].host_key for client in clients}
    assert len(keys) == len(set(visits.keys)) == 1
    assert keys.pop().startswith("ssh-ed25519 ")
    assert replica.folder.ssh_host_key.stat().st_mode & 0o777 == 0o600
    assert [one for one in replica.folder.path.iterdir() if "ssh_host_key." in one.name] == []


async def test_bytes_pass_behind_it(replica: RunningReplica) -> None:
    sent = [bytes([number]) * 200_000 for number in range(20)]
    client = await served(replica, Echo(), *sent)
    assert client.answer[1] == b"".join(sent)


async def test_who_comes_by_a_jump_host_is_asked_for_a_key(replica: RunningReplica) -> None:
    visits = Echo()
    pair = Ed25519PrivateKey.generate()
    entrance = SshEntrance(
        host_key=pair.private_bytes_raw(), certificate="cert", authorized_keys=[b"\1" * 32]
    )
    client = await served(replace(replica, ssh_entrance=entrance), visits)
    public = pair.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    assert client.answer[0].host_key == public
    told = json.loads(visits.keys[0])
    assert (told["certificate"], told["authorized_keys"]) == ("cert", ["01" * 32])
    assert "OPENSSH PRIVATE KEY" in told["host_key"]
    # that of the replica is another one, which no jump host's client is shown
    assert not replica.folder.ssh_host_key.exists()


async def test_a_damaged_key_is_no_new_one(replica: RunningReplica) -> None:
    replica.folder.ssh_host_key.write_text("half of")
    client = await served(replica, Echo())
    assert "its host key" in client.answer[0].refused


async def test_why_there_is_none_is_told(replica: RunningReplica) -> None:
    class Closed:
        def ssh_server(self, *_: object, login: None) -> None:
            raise NotAdmitted("it lets nobody in")

    assert (await served(replica, Closed())).answer[0].refused == "it lets nobody in"
    replica.folder.spec.write_text(json.dumps({"container": {"name": "x", "socket": "/no/such"}}))
    assert (await served(replica, Closed())).answer[0].refused == "it lets nobody in"
    replica.folder.spec.unlink()
    assert "beginning" in (await served(replica, Echo())).answer[0].refused
