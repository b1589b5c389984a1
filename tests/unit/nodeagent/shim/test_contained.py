"""What a shim does about its container where it cannot have what it needs for that."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.probes.processes import enclosure_of
from nodeagent.shim.cgroups import Group
from nodeagent.shim.contained import Contained, _as_shell_words
from nodeagent.shim.keeper import _ended_pidfd, _first_process
from nodeagent.shim.loopback import hand_over
from tests.e2e.programs import wait_for

if TYPE_CHECKING:
    from nodeagent.engine.wire import Container


class DeadKeeper:
    def has_ended(self) -> bool:
        return True

    def heard(self) -> list[object]:
        return []

    def leave(self) -> None:
        pass


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_machine_without_room_for_a_new_keeper_ends_no_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_begun: bool
) -> None:
    made = []

    def fails(_: object) -> None:
        made.append(1)
        raise BlockingIOError("no processes left")

    monkeypatch.setattr("nodeagent.shim.contained.Keeper", fails)
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    program._keeper = DeadKeeper()  # type: ignore[assignment]
    if has_begun:
        program._has_begun, program._pidfd = True, os.pidfd_open(os.getpid())
    assert program.is_running() is has_begun
    assert program.is_running() is has_begun
    assert len(made) == (2 if has_begun else 1)
    if has_begun:
        os.close(program._pidfd)
    else:
        assert program.is_gone()
        _, _, verdict = program.outcome()
        assert verdict is not None
        assert verdict[0] == "START_FAILED"


def test_where_a_container_is_counted_is_written_down_for_the_agent(tmp_path: Path) -> None:
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    program._tell_group()
    folder = ReplicaFolder(tmp_path)
    assert not folder.group.exists()
    (tmp_path / "groups" / "abc").mkdir(parents=True)
    (tmp_path / "groups" / "abc" / "cpu.stat").write_text("usage_usec 1500000\n")
    base = {"version": 2, "folders": {"memory": str(tmp_path / "groups")}}
    program._group = Group(base, "abc")  # type: ignore[arg-type]
    program._tell_group()
    folder.shim.write_text('{"pid": 1, "start_ticks": 2, "boot_id": "b"}')
    folder.spec.write_text('{"container": {"name": "n"}}')
    found = enclosure_of(folder, "b")
    assert found is not None
    assert found.group is not None
    assert found.in_container
    assert found.group.took_s() == 1.5
    # Where it cannot be written the container runs all the same.
    program._folder = str(tmp_path / "nowhere")
    program._tell_group()


class OneContainer:
    """An engine with one container, as it describes it."""

    def __init__(self, **described: object) -> None:
        self._described = {"Id": "", "State": {"Pid": 0}, **described}

    def inspect(self) -> dict[str, object]:
        return self._described


def test_a_container_with_a_volume_that_nobody_counts_is_not_let_begin() -> None:
    """Whatever an image calls its volume, and however an engine reads that."""
    bound = {"Type": "bind", "Destination": "/app"}
    _, pidfd = _first_process(cast("Container", OneContainer(Mounts=[bound])))
    os.close(pidfd)
    kept = {"Type": "volume", "Destination": "/cache"}
    with pytest.raises(OSError, match="volume at '/cache' whose size cannot be limited"):
        _first_process(cast("Container", OneContainer(Mounts=[bound, kept])))


def test_variables_reach_the_program_as_they_are_and_names_that_no_shell_takes_do_not() -> None:
    value = "a 'b' $(touch /tmp/x)\n\"c\""
    words = _as_shell_words({"LD_PRELOAD": value, "LD_X;touch /tmp/x": "y"}, ["SEEN", "-f x"])
    shows = words + b'printf \'%s|%s\' "$LD_PRELOAD" "${SEEN-none}"'
    done = subprocess.run(
        ["/bin/sh"], input=shows, env={"SEEN": "1"}, capture_output=True, check=True
    )
    assert done.stdout.decode() == f"{value}|none"
    assert done.stderr == b""


def test_the_end_of_a_container_that_never_began_is_waited_for(tmp_path: Path) -> None:
    """Its /bin/sh ended by itself, and the engine has still to say how."""
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    keeper = DeadKeeper()
    program._keeper, program._pidfd = keeper, _ended_pidfd()  # type: ignore[assignment]
    keeper.has_ended = lambda: False  # type: ignore[method-assign]
    assert not program.is_gone()
    program.kill()
    ended = OneContainer(State={"Running": False, "ExitCode": 127})
    program._container = cast("Container", ended)
    keeper.has_ended = lambda: True  # type: ignore[method-assign]
    assert program.is_gone()
    reason = "image i cannot start programs by its /bin/sh"
    assert program.outcome() == (127, None, ("START_FAILED", reason))
    os.close(program._pidfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="enters the network of another process")
def test_a_program_is_let_begin_once_it_is_told_where_its_listener_is(tmp_path: Path) -> None:
    """The listener is in the container's network, and the shim is back in its own."""
    own = os.stat("/proc/thread-self/ns/net").st_ino  # noqa: PTH116
    apart = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: os.stat(f"/proc/{apart.pid}/ns/net").st_ino != own, what="it is apart")  # noqa: PTH116
        program = contained(tmp_path, {"variables": ["URL", "NO;NAME"]})
        program.pid, program._pidfd = apart.pid, os.pidfd_open(apart.pid)
        reads, writes = os.pipe()
        program._open_gate(writes)
        with os.fdopen(reads) as words:
            found = re.fullmatch(
                r"export URL='http://127\.0\.0\.1:([0-9]+)'\nnsml_given=all\n", words.read()
            )
        assert found is not None
        assert os.stat("/proc/thread-self/ns/net").st_ino == own  # noqa: PTH116
        tables = Path(f"/proc/{apart.pid}/net/tcp").read_text()
        assert f":{int(found[1]):04X} " in tables
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            hand_over(program._spec, theirs)
            _, (descriptor,), _, _ = socket.recv_fds(ours, 10, 1)
            with socket.socket(fileno=descriptor) as listener:
                assert listener.getsockname() == ("127.0.0.1", int(found[1]))
        os.close(program._pidfd)
    finally:
        apart.communicate(timeout=60)


def test_a_program_that_cannot_have_its_listener_does_not_begin(tmp_path: Path) -> None:
    program = contained(tmp_path, {"variables": ["URL"]})
    program._keeper, program._pidfd = DeadKeeper(), _ended_pidfd()  # type: ignore[assignment]
    program.pid = os.getpid()
    reads, writes = os.pipe()
    program._open_gate(writes)
    assert os.read(reads, 10) == b""
    os.close(reads)
    assert not program._has_begun
    _, _, verdict = program.outcome()
    assert verdict == ("START_FAILED", "it cannot be given a listener: its container has ended")


def contained(folder: Path, listener: dict[str, object]) -> Contained:
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    return Contained(str(folder), {"container": plan, "secrets": {}, "listener": listener})
