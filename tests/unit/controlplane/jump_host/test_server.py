"""Who a jump host takes a client for, and how many it has room for."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncssh
import pytest

from controlplane.jump_host import server
from controlplane.jump_host.server import JumpHost
from nsml.client.errors import NotFound
from nsml.common.concurrency import TaskGroup

HOST = "12.nsml"


class Platform(JumpHost):
    """A jump host whose control plane knows some keys, and has no session."""

    def __init__(self, group: TaskGroup, keys: dict[asyncssh.SSHKey, str]) -> None:
        super().__init__(None, "", group)  # type: ignore[arg-type]
        self.users = {digest(key): user for key, user in keys.items()}
        self.asked: list[str] = []

    async def user_of(self, key: str) -> str:
        return self.users.get(key, "")

    def rpc(self, key: str) -> Any:
        return _Refusing(self, key)


class _Refusing:
    """Calls that are answered with whose they are."""

    deadline_s = 10.0

    def __init__(self, platform: Platform, key: str) -> None:
        self._platform = platform
        self._key = key

    @property
    def ways(self) -> Any:
        user = self._platform.users[self._key]
        self._platform.asked.append(user)
        raise NotFound(f"there is no session of {user}")


def digest(key: asyncssh.SSHKey) -> str:
    return hashlib.sha256(key.public_data).hexdigest()


def new_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


@asynccontextmanager
async def running(keys: dict[asyncssh.SSHKey, str]) -> AsyncIterator[tuple[Platform, int]]:
    async with TaskGroup() as group:
        platform = Platform(group, keys)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            port = listener.getsockname()[1]
            async with asyncssh.listen(sock=listener, **platform.options(b"\1" * 32)):
                yield platform, port


def login(port: int, *keys: Any) -> Any:
    return asyncssh.connect(
        "127.0.0.1",
        port,
        username="root",
        client_keys=list(keys),
        known_hosts=None,
        config=None,
        agent_path=None,
    )


class Borrowed(asyncssh.SSHKeyPair):
    """A public key of somebody else, of which there is no private half."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        kind = key.algorithm
        super().__init__(kind, kind, key.sig_algorithms, (kind,), key.public_data, None)

    def sign(self, _data: bytes) -> bytes:
        return b"\0\0\0\x0bssh-ed25519\0\0\0\x40" + b"\1" * 64


async def test_a_client_is_who_has_signed_whatever_other_keys_it_offered() -> None:
    kims, eves, nobodys = new_key(), new_key(), new_key()
    async with running({kims: "kim", eves: "eve"}) as (platform, port):
        async with login(port, Borrowed(kims), nobodys, eves) as client:
            with pytest.raises(asyncssh.ChannelOpenError, match="no session of eve"):
                await client.open_connection(HOST, 22)
        assert platform.asked == ["eve"]
        for keys in ((Borrowed(kims),), (nobodys,), ()):
            with pytest.raises(asyncssh.PermissionDenied):
                await login(port, *keys)


async def test_nothing_is_open_but_sessions() -> None:
    key = new_key()
    async with running({key: "kim"}) as (platform, port), login(port, key) as client:
        for opening in (
            client.create_process(),
            client.create_process("id"),
            client.start_sftp_client(),
            client.open_connection("127.0.0.1", 22),
            client.open_connection("localhost.nsml", 80),
            client.open_connection("12.nsml.example.org", 22),
            client.open_unix_connection("/run/docker.sock"),
        ):
            with pytest.raises(asyncssh.ChannelOpenError):
                await opening
        for listening in (
            client.forward_remote_port("", 0, "localhost", 22),
            client.forward_remote_path("/tmp/x", "/tmp/y"),
        ):
            with pytest.raises(asyncssh.ChannelListenError):
                await listening
        assert platform.asked == []


async def test_who_has_logged_in_takes_no_place_of_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_STRANGERS_OF_ADDRESS", 2)
    key = new_key()
    async with running({key: "kim"}) as (platform, port), login(port, key) as client:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, _ in strangers:
            assert (await reader.readline()).startswith(b"SSH-2.0-nsml")
        await asyncio.wait_for(strangers[0][0].read(), 60)  # the oldest has left, for the last
        assert not client.is_closed()
        for _, writer in strangers:
            writer.close()
        async with asyncio.timeout(60):
            while platform.open > 1:  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0.01)


async def test_a_connection_that_leads_nowhere_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.05)
    key = new_key()
    async with running({key: "kim"}) as (platform, port):
        client = await login(port, key)
        async with asyncio.timeout(60):
            await client.wait_closed()
            while platform.open:  # noqa: ASYNC110 - of the other side
                await asyncio.sleep(0.01)
        assert platform.of_user.total() == 0
