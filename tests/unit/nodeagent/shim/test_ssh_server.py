"""An ssh server with a client that does not become one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from nodeagent.shim import ssh_server

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = (
    Ed25519PrivateKey.generate()
    .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    .decode()
)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """To a server of which the other end is gone when it has ended, which it must have then."""
    monkeypatch.setattr(ssh_server, "_LOGIN_WITHIN_S", 1.0)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            ssh_server.run(theirs, KEY, {}, {}, lambda: None)
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(60)
    with ours:
        yield ours
    os.waitpid(pid, 0)


@contextmanager
def served(host_key: str, agent: socket.socket | None = None) -> Iterator[socket.socket]:
    """A connection to a server, which has ended afterwards; with `agent` as in a container."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            shells = {"/bin/sh": "$ "}
            environment = {"PATH": os.environ["PATH"]}
            ssh_server.run(theirs, host_key, environment, shells, lambda: None, agent=agent)
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        yield ours
    os.waitpid(pid, 0)


async def test_who_comes_by_a_jump_host_proves_a_key_and_checks_a_certificate() -> None:
    authority, mine, another = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=3072)
    certificate = authority.generate_host_certificate(
        asyncssh.import_private_key(KEY).convert_to_public(), "12", principals=["12.nsml"]
    )
    login = json.dumps(
        {
            "host_key": KEY,
            "certificate": certificate.export_certificate().decode(),
            "authorized_keys": [hashlib.sha256(one.public_data).hexdigest() for one in (mine, rsa)],
        }
    )

    async def said(trusted: asyncssh.SSHKey, *keys: asyncssh.SSHKey, host: str = "12.nsml") -> str:
        with served(login) as connection:
            client = await asyncssh.connect(
                host,
                sock=connection,
                username="anybody",
                client_keys=list(keys) or None,
                known_hosts=([], [trusted.convert_to_public()], []),
                config=None,
                agent_path=None,
            )
            async with client:
                return str((await client.run("echo in")).stdout)

    assert await said(authority, mine) == "in\n"
    assert await said(authority, another, mine) == "in\n"
    assert await said(authority, rsa) == "in\n"
    rsa.sig_algorithms = (b"ssh-rsa",)  # with SHA-1
    for keys in ([another], [], [rsa]):
        with pytest.raises(asyncssh.PermissionDenied):
            await said(authority, *keys)
    for trusted, host in ((another, "12.nsml"), (authority, "13.nsml")):
        with pytest.raises((asyncssh.HostKeyNotVerifiable, ValueError)):
            await said(trusted, mine, host=host)


async def test_in_a_container_the_agent_signs_with_the_certified_key() -> None:
    authority, mine = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    pair = Ed25519PrivateKey.generate()
    public = pair.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    certificate = authority.generate_host_certificate(
        asyncssh.import_public_key(public), "12", principals=["12.nsml"]
    )
    login = {
        "host_key": public,
        "certificate": certificate.export_certificate().decode(),
        "authorized_keys": [hashlib.sha256(mine.public_data).hexdigest()],
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def sign() -> None:
        while asked := ours.recv(1 << 16):
            data = base64.b64decode(json.loads(asked)["sign"])
            signature = base64.b64encode(pair.sign(data)).decode()
            ours.send(json.dumps({"signature": signature}).encode())

    with ours, served(json.dumps(login), theirs) as connection:
        theirs.close()
        signing = asyncio.create_task(asyncio.to_thread(sign))
        client = await asyncssh.connect(
            "12.nsml",
            sock=connection,
            username="anybody",
            client_keys=[mine],
            known_hosts=([], [authority.convert_to_public()], []),
            config=None,
            agent_path=None,
        )
        client.close()
        await client.wait_closed()
        await signing


def test_one_that_says_a_byte_at_a_time_is_not_waited_for(connection: socket.socket) -> None:
    assert connection.recv(100).startswith(b"SSH-2.0-nsml")
    connection.settimeout(0.1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            connection.sendall(b"S")
            if connection.recv(1) == b"":
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    pytest.fail("it is waited for")


def test_one_that_says_nothing_is_not_waited_for(connection: socket.socket) -> None:
    found = b""
    while data := connection.recv(4096):
        found += data
    assert found.startswith(b"SSH-2.0-nsml")


@pytest.mark.parametrize("host", ["a" * 64, "a..b", ".", "\0", "127.0.0.1\0x", "x" * 5000])
async def test_what_is_no_address_ends_no_other_channel(
    connection: socket.socket, host: str
) -> None:
    async with asyncssh.connect(
        "replica", 22, sock=connection, known_hosts=None, config=None, client_keys=None
    ) as client:
        for port in (9, 1 << 31):
            with pytest.raises(asyncssh.ChannelOpenError):
                await client.open_connection(host, port)
        with pytest.raises(asyncssh.ChannelOpenError):
            await client.open_unix_connection(f"/{host}")
        with pytest.raises(asyncssh.ChannelListenError):
            await client.forward_remote_port("localhost", 1 << 31, "localhost", 9)
        done = await client.run("true")
        assert done.exit_status == 127, "there is no shell"


@pytest.mark.parametrize(
    ("width", "height", "cells"),
    [(101, 31, (31, 101)), (0, 0, (24, 80)), ((1 << 32) - 1, 1, (1, 10_000))],
)
def test_a_terminal_of_unknown_size_is_a_usual_one(width: int, height: int, cells: object) -> None:
    assert ssh_server._cells(width, height) == cells
