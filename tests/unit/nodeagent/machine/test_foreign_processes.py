"""Whose the processes on the devices are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent.machine.foreign_processes import STRANGE_AFTER_S, Occupants, Replicas, read_process
from nodeagent.probes.interface import DeviceProcess, DeviceSample

MARK = "0123456789abcdef0123-1-0"


def sample(*pids: int, uuid: str = "GPU-0") -> DeviceSample:
    return DeviceSample(
        uuid=uuid,
        utilization_percent=None,
        memory_used_bytes=None,
        power_watts=None,
        temperature_celsius=None,
        processes=[DeviceProcess(pid=pid, memory_bytes=None) for pid in pids],
    )


@dataclass
class Proc:
    """A folder that looks like /proc."""

    folder: Path
    start: int = 100
    occupants: Occupants = field(init=False)

    def __post_init__(self) -> None:
        self.occupants = Occupants(self.folder)

    def put(
        self,
        pid: int,
        parent: int = 1,
        *,
        name: str = "python3",
        mark: str = "",
        state: str = "S",
        start: int = 0,
    ) -> None:
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        rest = " ".join(["0"] * 17)
        (place / "stat").write_text(f"{pid} ({name}) {state} {parent} {rest} {start} 0 0\n")
        (place / "environ").write_bytes(
            b"A=b\0" + (f"NSML_REPLICA={mark}\0".encode() if mark else b"")
        )

    def said(self, *pids: int, now: float, replicas: Replicas | None = None) -> str:
        known = replicas or Replicas()
        return self.occupants.strangers([sample(*pids)], known, now).get("GPU-0", "")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_who_was_there_before_the_first_look_is_a_stranger_at_once(proc: Proc) -> None:
    proc.put(7)
    assert proc.said(7, now=0).startswith("used by process 7 (python3 of ")


def test_who_comes_later_is_one_after_a_while(proc: Proc) -> None:
    proc.occupants.looked()
    proc.put(7)
    assert proc.said(7, now=0) == ""
    assert proc.said(7, now=STRANGE_AFTER_S - 0.1) == ""
    assert proc.said(7, now=STRANGE_AFTER_S) != ""
    assert proc.said(now=STRANGE_AFTER_S + 1) == ""


def test_descendants_of_replicas_are_theirs(proc: Proc) -> None:
    proc.put(50)
    proc.put(51, 50)
    proc.put(52, 51)
    ours = Replicas(pids=frozenset({50}))
    assert proc.said(52, now=0, replicas=ours) == ""
    proc.put(52, 1)  # its ancestors are gone, and so is the replica: it is dying
    assert proc.said(52, now=1000) == ""


def test_what_detached_itself_is_known_by_its_mark(proc: Proc) -> None:
    proc.put(7, mark=MARK)
    assert proc.said(7, now=0, replicas=Replicas(marks=frozenset({MARK}))) == ""


def test_a_mark_of_no_replica_is_none(proc: Proc) -> None:
    proc.put(7, mark="made-up-1-0")
    assert proc.said(7, now=0, replicas=Replicas(marks=frozenset({MARK}))) != ""


def test_a_later_process_with_the_same_pid_is_another(proc: Proc) -> None:
    proc.put(7, mark=MARK, start=5)
    ours = Replicas(marks=frozenset({MARK}))
    assert proc.said(7, now=0, replicas=ours) == ""
    proc.put(7, start=6)
    proc.said(7, now=1)
    assert proc.said(7, now=1 + STRANGE_AFTER_S) != ""


def test_what_cannot_be_seen_is_nobodys(proc: Proc) -> None:
    proc.put(8, state="Z")
    assert proc.said(7, 8, now=1000) == ""


def test_the_server_of_mps_is_nobodys(proc: Proc) -> None:
    proc.put(7, name="nvidia-cuda-mps")
    assert proc.said(7, now=1000) == ""


def test_a_circle_of_parents_ends(proc: Proc) -> None:
    proc.put(7, 8)
    proc.put(8, 7)
    assert proc.said(7, now=0) != ""


def test_names_are_printed_without_what_no_screen_should_get(proc: Proc) -> None:
    proc.put(7, name="a) b\x1b[31m(")
    proc.put(8)
    said = proc.said(7, 8, now=0)
    assert "process 7 (a) b?[31m( of" in said
    assert "and 1 more" in said


def test_only_what_is_open_needs_the_replicas(proc: Proc) -> None:
    proc.put(7)
    samples = [sample(7)]
    assert proc.occupants.unknown(samples, 0)
    proc.said(7, now=0)
    assert not proc.occupants.unknown(samples, 0)
    assert not proc.occupants.unknown([sample(99)], 0)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NSML_REPLICA": MARK},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_real_process(sleeper: subprocess.Popen[bytes]) -> None:
    found = read_process(Path("/proc"), sleeper.pid)
    assert found is not None
    assert found.parent == os.getpid()
    assert found.start_ticks > 0
    samples = [sample(sleeper.pid)]
    by_pid = Replicas(pids=frozenset({os.getpid()}))
    by_mark = Replicas(marks=frozenset({MARK}))
    assert Occupants().strangers(samples, by_pid, 0) == {}
    assert Occupants().strangers(samples, by_mark, 0) == {}
    assert str(sleeper.pid) in Occupants().strangers(samples, Replicas(), 0)["GPU-0"]
