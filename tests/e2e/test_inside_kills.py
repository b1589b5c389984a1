"""All that one does inside a session at once, while something of it is killed: errors, no part for the whole, nobody left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Self

import psutil
import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.e2e.test_relay import away, is_relayed, relay_of
from tests.e2e.test_sh import BROKEN, Endless, begun, pids, unique
from tests.support.in_process import Platform
from tests.support.living_folders import sizes_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["away"]

MEGABYTE = 1 << 20
PROGRAM = """
import socket, threading, time
import nsml

server = socket.create_server(("127.0.0.1", 0))

def print_without_end(connection):
    with connection:
        while True:
            connection.sendall(b"endless\\n" * 8192)

def serve():
    while True:
        connection, _ = server.accept()
        threading.Thread(target=print_without_end, args=[connection], daemon=True).start()

with open("large", "wb") as file:
    file.truncate(8 << 30)
threading.Thread(target=serve, daemon=True).start()
print("port", server.getsockname()[1], flush=True)
print("ready", flush=True)
for step in range(1 << 40):
    nsml.step(step)
    time.sleep(0.01)
"""

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None and not os.environ.get("NSML_REQUIRE_SSH"),
    reason="there is no OpenSSH client (openssh-client)",
)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1, options=["--listen", "127.0.0.1:0"]) as running:
        yield running


@pytest.fixture
def session(platform: Platform, tmp_path: Path) -> Iterator[str]:
    name = begun(platform, write_program(tmp_path / "code", PROGRAM), "-g", "0")
    yield name
    platform.nsml("stop", "-y", name, check=False)


class Inside:
    """A shell, ssh, an evaluation, a copy and a forwarded port of one user in one session, each in the middle.

    Args:
        by: what runs their clients.
    """

    def __init__(
        self, platform: Platform, session: str, folder: Path, by: tuple[str, ...] = ()
    ) -> None:
        self._platform = platform
        self._session = session
        self._by = by
        self._out = folder / "out"
        self.evaluated = ("sleep", unique())
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.printing: list[Endless] = []

    def __enter__(self) -> Self:
        with ExitStack() as held:
            held.callback(self._end_all)
            self._begin()
            held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()

    @property
    def is_relayed(self) -> bool:
        """Whether all their bytes pass by the relay."""
        clients = (psutil.Process(one.pid) for one in self.clients.values())
        return all(
            any(is_relayed(self._platform, one.pid) for one in (client, *client.children()))
            for client in clients
        )

    def _begin(self) -> None:
        session = self._session
        for command in ("sh", "ssh"):
            word = unique()
            process = self._start(command, session, "--", "yes", word)
            self.printing.append(Endless(process, word))
        code = f"import subprocess\nsubprocess.run({list(self.evaluated)})"
        self._start("exec", session, code, "--limit", "1m")
        self._start("cp", f"{session}:large", str(self._out))
        port = self._platform.nsml("logs", session).stdout.split()[1]
        address = self._start("forward", session, port).stdout
        assert address is not None
        self.forwarded = Forwarded(address.readline().decode().strip())
        for made in (*self.printing, self.forwarded):
            wait_for(lambda made=made: made.came > MEGABYTE, what="bytes come")
        wait_for(lambda: self._copied() > MEGABYTE, what="it is copied")
        wait_for(lambda: pids(*self.evaluated), what="it is evaluated")
        all_of_them = sorted([port, "agent.exec", "agent.files", "agent.program", "agent.ssh"])
        wait_for(lambda: self.visitors() == all_of_them, what="all are shown as inside")

    def _start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = self.clients[command] = subprocess.Popen(
            [*self._by, str(PROGRAMS / "nsml"), command, *arguments],
            env=self._platform.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return process

    def _copied(self) -> int:
        return max(sizes_below(self._out.parent, ".nsml-cp-*"), default=0)

    def visitors(self) -> list[str]:
        """The services that somebody uses, as `nsml top` shows them."""
        found = self._platform.json("top", self._session)["visitors"]
        return sorted(one["service"] for one in found)

    def ended(self) -> tuple[dict[str, int], dict[str, str]]:
        """Exit codes and errors of those that end by themselves, of which none has taken a part for the whole."""
        codes = {name: one.wait(120) for name, one in self.clients.items() if name != "forward"}
        for made in self.printing:
            made.end()
        wait_for(lambda: self.forwarded.how, what="the forwarded connection ends")
        assert self.forwarded.is_whole, "bytes are missing in the middle"
        assert not self._out.exists(), "a part of a file has its name"
        outputs = {name: self.clients[name].stdout for name in ("exec", "cp")}
        assert [one and one.read() for one in outputs.values()] == [b"", b""]
        errors = {name: self.clients[name].stderr for name in codes}
        return codes, {name: one.read().decode() for name, one in errors.items() if one}

    def nothing_is_left(self) -> None:
        """Return once the programs that were started are gone."""
        for made in self.printing:
            wait_for(lambda made=made: not pids(*made.command), what=f"{made.command} is gone")

    def _end_all(self) -> None:
        for process in self.clients.values():
            process.kill()
        for process in self.clients.values():
            process.wait()
        for pid in pids(*self.evaluated):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Forwarded:
    """A connection to a forwarded port on which endless lines come."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=120)
        self.came = 0
        self.is_whole = True
        self.how: type[Exception] | None = None
        """What it ended with."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        line = b"endless\n"
        pattern = line * (MEGABYTE // len(line) + 2)
        how: type[Exception] = EOFError
        try:
            while data := self._connection.recv(MEGABYTE):
                at = self.came % len(line)
                self.is_whole &= data == pattern[at : at + len(data)]
                self.came += len(data)
        except ConnectionResetError:
            how = ConnectionResetError
        self._connection.close()
        self.how = how


@contextmanager
def all_inside(
    platform: Platform, session: str, folder: Path, by: tuple[str, ...] = ()
) -> Iterator[Inside]:
    """As Inside, by the relay where they are elsewhere: on a busy machine one may find that too slow at first."""
    for _ in range(5):
        with Inside(platform, session, folder, by) as inside:
            if not by or inside.is_relayed:
                yield inside
                return
    raise AssertionError("not all take the relay")


def test_of_killed_clients_nothing_is_left(
    platform: Platform, session: str, tmp_path: Path
) -> None:
    with all_inside(platform, session, tmp_path) as inside:
        for process in inside.clients.values():
            process.kill()
        codes, _ = inside.ended()
        assert set(codes.values()) == {-signal.SIGKILL}
        inside.nothing_is_left()
        wait_for(lambda: not inside.visitors(), what="nobody is inside")
    assert platform.nsml("exec", session, "1 + 1").stdout == "2\n"


@pytest.mark.parametrize("victim", ["agent", "controlplane"])
def test_a_program_of_the_platform_that_dies_is_no_good_end(
    platform: Platform, session: str, tmp_path: Path, victim: str
) -> None:
    with all_inside(platform, session, tmp_path) as inside:
        platform.kill(victim)
        they_broke(inside)
        platform.up()
    goes_on(platform, inside, session)


def test_a_relay_that_dies_is_no_good_end_and_comes_back(
    platform: Platform, session: str, tmp_path: Path, away: tuple[str, ...]
) -> None:
    with all_inside(platform, session, tmp_path, away) as inside:
        relay = relay_of(platform)
        assert relay is not None
        relay.kill()
        they_broke(inside)
        wait_for(lambda: relay_of(platform) not in {None, relay}, what="another relay runs")
    goes_on(platform, inside, session)


def test_what_is_relayed_ends_with_the_control_plane(
    platform: Platform, session: str, tmp_path: Path, away: tuple[str, ...]
) -> None:
    with all_inside(platform, session, tmp_path, away) as inside:
        relay = relay_of(platform)
        assert relay is not None
        platform.kill("controlplane")
        they_broke(inside)
        wait_for(lambda: not relay.is_running(), what="its relay is gone")
        platform.up()
    goes_on(platform, inside, session)


def test_a_session_that_ends_is_no_good_end(
    platform: Platform, session: str, tmp_path: Path
) -> None:
    with all_inside(platform, session, tmp_path) as inside:
        platform.nsml("stop", "-y", session)
        codes, _ = inside.ended()
        assert codes["sh"] == codes["ssh"] == BROKEN
        assert {codes["exec"], codes["cp"]} <= {3, 6}
        forward = inside.clients["forward"]
        assert forward.communicate(timeout=60)[1].endswith(b"has ended\n")
        assert forward.returncode == 0
        inside.nothing_is_left()
        assert not pids(*inside.evaluated)


def they_broke(inside: Inside) -> None:
    """Each of them ends with an error that says so, and what it has started ends."""
    codes, errors = inside.ended()
    assert codes == {"sh": BROKEN, "ssh": BROKEN, "exec": 3, "cp": 3}, errors
    for said in errors.values():
        assert re.search(r"error: the connection( to the (program|session))? broke", said), errors
    assert inside.forwarded.how is ConnectionResetError
    inside.nothing_is_left()


def goes_on(platform: Platform, inside: Inside, session: str) -> None:
    """The session trains, and nobody is shown to be in it."""

    def answers() -> bool:
        return platform.nsml("exec", session, "1 + 1", check=False).stdout == "2\n"

    wait_for(answers, what="its program can be asked again")
    wait_for(lambda: not inside.visitors(), what="nobody is inside")
