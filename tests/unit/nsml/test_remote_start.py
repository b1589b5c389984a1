"""Commands on other replicas: only for who knows the secret, and no longer than rank 0 is there."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nsml import _remote_start as remote

ROOT = Path(__file__).parents[3]
SECRET = b"5" * 64
LIMIT_S = 30.0


class Running:
    """A listener of rank 1, served by a thread."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.listener = remote.Listener(0, secret, 1)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.code = self.listener.serve()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.listener.port

    def wait(self) -> int | None:
        self._thread.join(LIMIT_S)
        return self.code


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.listener.end(0)
    found.wait()


@pytest.fixture
def gang(running: Running, tmp_path: Path) -> Path:
    path = tmp_path / "gang"
    remote.write_gang(str(path), [("127.0.0.1", 1), running.address], SECRET)
    return path


def start(gang: Path, command: str, **options: object) -> subprocess.Popen[bytes]:
    """Run a command as mpirun does."""
    return subprocess.Popen(
        [sys.executable, "-m", "nsml._remote_start", "nsml-rank-1", command],
        env={**os.environ, "PYTHONPATH": str(ROOT), remote.GANG_FILE: str(gang)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def is_closed(sock: socket.socket) -> bool:
    """Whether nothing more comes."""
    sock.settimeout(LIMIT_S)
    with suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


def test_a_command_runs_there_with_its_output_and_exit_code(gang: Path) -> None:
    out, err = (program := start(gang, "echo one; echo two >&2; exit 7")).communicate()
    assert (out, err, program.returncode) == (b"one\n", b"two\n", 7)
    killed = start(gang, "kill -9 $$")
    assert killed.wait() == 137


def test_options_of_ssh_are_passed_over(gang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.GANG_FILE, str(gang))
    assert remote.start_remotely(["-x", "nsml-rank-1", "exit", "3"]) == 3
    assert remote.start_remotely(["nsml-rank-7", "true"]) == 255, "there is no such replica"
    assert remote.start_remotely(["elsewhere.example", "true"]) == 255


def test_the_command_does_not_get_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote.SECRET, SECRET.decode())
    running = Running()
    path = tmp_path / "gang"
    remote.write_gang(str(path), [("127.0.0.1", 1), running.address], SECRET)
    monkeypatch.delenv(remote.SECRET)
    out, _ = start(path, "env").communicate()
    running.listener.end(0)
    assert b"PATH=" in out
    assert SECRET not in out
    assert path.stat().st_mode & 0o077 == 0


def test_taking_the_secret_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.SECRET, "abc")
    assert remote.take_secret() == b"abc"
    assert remote.SECRET not in os.environ


@pytest.mark.parametrize("kind", [remote.RUN, remote.CONTROL])
def test_another_secret_is_refused(running: Running, kind: bytes) -> None:
    with (
        socket.create_connection(running.address) as sock,
        pytest.raises((ConnectionError, remote.Refused)),
    ):
        remote.prove(sock, b"6" * 64, 1, kind)
    assert running.code is None


def test_no_secret_is_no_secret(tmp_path: Path) -> None:
    """A listener that has none serves nobody, whatever they prove."""
    running = Running(b"")
    with socket.create_connection(running.address) as sock:
        greeting = remote.read(sock, 40)
        about = (remote.RUN, struct.pack("!I", 1), greeting[8:], b"n" * 32)
        sock.sendall(remote.RUN + b"n" * 32 + remote._digest(b"", b"peer", *about))
        assert is_closed(sock)
    running.listener.end(0)


def test_what_was_said_to_one_connection_is_worth_nothing_to_another(
    running: Running, tmp_path: Path
) -> None:
    """A recording of a whole conversation, played to the same listener."""
    said: list[bytes] = []

    class Recorded(socket.socket):
        def sendall(self, data: bytes, *rest: int) -> None:  # type: ignore[override]
            said.append(bytes(data))
            super().sendall(data, *rest)

    mark = tmp_path / "mark"
    with Recorded(socket.AF_INET) as sock:
        sock.connect(running.address)
        channel = remote.prove(sock, SECRET, 1, remote.RUN)
        channel.send(f'{{"command": "echo x >> {mark}"}}'.encode())
        while sock.recv(4096):
            pass
    assert mark.read_text() == "x\n"
    with socket.create_connection(running.address) as sock:
        remote.read(sock, 40)
        with suppress(ConnectionError):
            sock.sendall(b"".join(said))
        assert is_closed(sock)
    assert mark.read_text() == "x\n"


def test_an_answer_for_another_rank_is_refused(running: Running) -> None:
    """Who listens at the port of rank 2 and passes everything on to rank 1 gets no command run there."""
    with (
        socket.create_connection(running.address) as sock,
        pytest.raises((ConnectionError, remote.Refused)),
    ):
        remote.prove(sock, SECRET, 2, remote.RUN)


def test_a_changed_message_is_not_run(running: Running, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with socket.create_connection(running.address) as sock:
        channel = remote.prove(sock, SECRET, 1, remote.RUN)
        message = f'{{"command": "touch {mark}"}}'.encode()
        frame = struct.pack("!I", len(message)) + channel._mac(b"another") + message
        sock.sendall(frame)
        assert is_closed(sock)
    assert not mark.exists()


def test_a_stranger_at_the_port_gets_no_command(tmp_path: Path) -> None:
    """Something else listens where a replica should: it is not taken for one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard: list[bytes] = []

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"NSMLRUN1" + b"n" * 32)
                heard.append(remote.read(sock, 65))
                sock.sendall(b"m" * 32)
                heard.append(sock.recv(4096))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with socket.create_connection(server.getsockname()) as sock, pytest.raises(remote.Refused):
            remote.prove(sock, SECRET, 1, remote.RUN)
        thread.join(LIMIT_S)
    assert heard[1] == b""
    assert SECRET not in heard[0]


def test_strangers_that_say_nothing_or_half_keep_nobody_away(running: Running, gang: Path) -> None:
    strangers = [socket.create_connection(running.address) for _ in range(100)]
    for at, sock in enumerate(strangers):
        with suppress(OSError):
            sock.sendall(b"R" * (at % 64))
    out, _ = start(gang, "echo served").communicate()
    for sock in strangers:
        sock.close()
    assert out == b"served\n"


@pytest.mark.parametrize("length", [0, 1 << 20, 0xFFFFFFFF])
def test_lengths_are_not_believed(running: Running, length: int) -> None:
    with socket.create_connection(running.address) as sock:
        channel = remote.prove(sock, SECRET, 1, remote.RUN)
        sock.sendall(struct.pack("!I", length) + channel._mac(b"") + b"")
        with suppress(OSError):  # it has closed the connection
            sock.shutdown(socket.SHUT_WR)
        assert is_closed(sock)
    assert running.code is None


def test_much_output_is_passed_on_and_kept_nowhere(gang: Path) -> None:
    megabytes = 256
    program = start(gang, f"head -c {megabytes << 20} /dev/zero")
    assert program.stdout is not None
    count, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while piece := program.stdout.read(1 << 20):
        count += len(piece)
    grown = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    )  # of the listener: it runs here
    assert (program.wait(), count) == (0, megabytes << 20)
    assert grown < 64 << 10, f"{grown} KiB"


def test_a_command_ends_with_its_peer(running: Running, gang: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = start(gang, f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600")
    until(pid.exists)
    program.kill()
    program.communicate()
    until(lambda: not _is_alive(int(pid.read_text())))
    assert running.code is None, "only the command ends"


def test_it_ends_well_with_rank_0(running: Running) -> None:
    controls = remote.Controls([("127.0.0.1", 1), running.address], SECRET)
    controls.end()
    assert running.wait() == 0


def test_it_fails_if_rank_0_is_gone(
    running: Running, gang: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With what it started, also where that has left its parents as the daemons of mpirun do."""
    pid = tmp_path / "pid"
    program = start(gang, f"setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600'")
    channel = remote.connect(running.address, SECRET, 1, remote.CONTROL)
    until(pid.exists)
    channel.sock.close()
    assert running.wait() == 1
    program.communicate()
    until(lambda: not _is_alive(int(pid.read_text())))
    assert "rank 0 is gone" in capfd.readouterr().err


def test_a_second_rank_0_does_not_end_it(running: Running) -> None:
    first = remote.connect(running.address, SECRET, 1, remote.CONTROL)
    until(lambda: running.listener._is_controlled)
    second = remote.connect(running.address, SECRET, 1, remote.CONTROL)
    assert is_closed(second.sock)
    assert running.code is None
    first.send(remote.END)
    assert running.wait() == 0


def test_a_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_GRACE_S", 0.2)
    pid = tmp_path / "pid"
    program = subprocess.Popen(
        ["sh", "-c", f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"]
    )
    until(lambda: pid.exists() and pid.read_text())
    remote.end_processes([program.pid])
    assert program.wait(LIMIT_S) == -signal.SIGKILL


def test_descendants_are_found_through_all_generations() -> None:
    program = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600; true"])
    until(lambda: len(remote.descendants(program.pid)) == 2)
    remote.end_processes([program.pid, *remote.descendants(program.pid)])
    program.wait(LIMIT_S)
    assert remote.descendants(program.pid) == []


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
