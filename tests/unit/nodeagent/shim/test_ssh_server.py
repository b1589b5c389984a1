"""An ssh server with a client that does not become one."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

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
