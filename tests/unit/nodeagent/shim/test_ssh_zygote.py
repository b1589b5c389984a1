"""What forks ssh servers: what its stand-ins have, and for whom they start nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.unit.nodeagent.shim.zygotes import WITHIN_S, AskedZygote, until

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = {"env": {}, "cwd": "/", "namespace": None, "open_files": 1024}
ORDER = {"ssh": {"host_key": "", "path": []}, "env": {}}


class Zygote(AskedZygote):
    """That of ssh servers."""

    def __init__(self) -> None:
        super().__init__("ssh_zygote", json.dumps([one for one in sys.path if one.startswith("/")]))

    def stand_in(self) -> socket.socket:
        """Where one waits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.requests, [b"!"], [theirs.fileno()])
        ours.settimeout(WITHIN_S)
        return ours

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def names(self) -> list[str]:
        """Of its children, but for those that have just ended."""
        found = []
        for one in self.children():
            with suppress(psutil.NoSuchProcess):
                found.append(one.name())
        return found


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.requests.close()
    assert made.process.wait(WITHIN_S) == 0


def given(visitor: int, end: socket.socket) -> list[int]:
    """What a visitor gives, whose pidfd this is."""
    words = {"spec": SPEC, "order": ORDER, "first": os.getpid(), "visitor": os.getpid()}
    content = os.memfd_create("visit")
    os.write(content, json.dumps(words).encode())
    me = os.pidfd_open(os.getpid())
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    connection, other = socket.socketpair()
    other.close()
    return [content, visitor, me, os.dup(me), network, os.dup(end.fileno()), connection.detach()]


def test_for_a_visitor_that_has_ended_nothing_is_started(zygote: Zygote) -> None:
    """Its shim may have said by then that nothing of the replica is left."""
    ended = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(ended.pid)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WITHIN_S)
    channel = zygote.stand_in()
    descriptors = given(pidfd, theirs)
    with ours, theirs, channel:
        socket.send_fds(channel, [b"!"], descriptors)
        assert channel.recv(1) == b"t"
        assert "beginning or ending" in json.loads(ours.recv(4096))["failed"]
        assert channel.recv(1) == b""
    for one in descriptors:
        os.close(one)
    ended.wait()


def test_one_that_waits_has_nothing_of_any_other_and_ends_unvisited(zygote: Zygote) -> None:
    with zygote.stand_in() as first, zygote.stand_in() as second:
        until(lambda: zygote.names() == ["nsml-visitor"] * 2)
        for one in zygote.children():
            opened = {fd.name for fd in Path(f"/proc/{one.pid}/fd").iterdir()}
            assert len(opened) == 4
            assert opened > {"0", "1", "2"}
        first.shutdown(socket.SHUT_RDWR)
        until(lambda: len(zygote.children()) == 1)
        second.shutdown(socket.SHUT_RDWR)
        until(lambda: not zygote.children())


def test_what_it_forked_outlives_it(zygote: Zygote) -> None:
    with zygote.stand_in() as channel:
        # what it imports may have started something for a moment
        until(lambda: zygote.names() == ["nsml-visitor"])
        [child] = zygote.children()
        zygote.requests.shutdown(socket.SHUT_RDWR)
        assert zygote.process.wait(WITHIN_S) == 0
        assert child.is_running()
        channel.close()
        child.wait(WITHIN_S)
