"""A program that is processes of the shim: what it says of its end, where its control group is plain files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.shim import cgroups, forked
from nodeagent.shim.cgroups import MEMORY, PIDS


class Replica:
    """A program whose group is a folder of files, and which has no process."""

    def __init__(self, folder: Path, *, process_count: int | None) -> None:
        self._events = folder / "replica" / "pids.events"
        self._events.parent.mkdir()
        base = {"version": 2, "folders": dict.fromkeys((MEMORY, PIDS), str(folder))}
        limits = {"memory_bytes": None, "cpus": None, "process_count": process_count}
        group = {"base": base, "name": "replica", **limits}
        self.program = forked.Forked(str(folder), {"namespace": None, "group": group})

    def refuse(self, times: int) -> None:
        self._events.write_text(f"max {times}\n")

    def remark(self) -> str:
        assert self.program.is_gone()
        return self.program.remark()


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests has children of its own. No folder of files goes as a group does."""
    monkeypatch.setattr(cgroups, "_LONGEST_REMOVAL_S", 0.0)
    monkeypatch.setattr(forked, "descendants", lambda _: [])
    monkeypatch.setattr(forked.Forked, "_reap", lambda _: True)


def test_a_bad_end_has_a_remark_on_processes_that_were_refused(tmp_path: Path) -> None:
    replica = Replica(tmp_path, process_count=64)
    replica.refuse(2)
    assert replica.remark().endswith(" of 64 processes, 2 times; try --processes 128")


def test_what_was_refused_while_it_was_killed_is_not_what_it_asked_for(tmp_path: Path) -> None:
    replica = Replica(tmp_path, process_count=64)
    replica.program.kill()
    replica.refuse(9)
    replica.program.kill()
    assert replica.remark() == ""


def test_without_a_limit_nothing_is_said_of_processes(tmp_path: Path) -> None:
    replica = Replica(tmp_path, process_count=None)
    replica.refuse(9)
    assert replica.remark() == ""


def test_what_may_not_be_killed_is_no_failure_of_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `sudo` in a session of a node without root."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(forked, "descendants", lambda _: [1])
    monkeypatch.setattr("os.kill", refuse)
    monkeypatch.setattr("os.killpg", refuse)
    replica = Replica(tmp_path, process_count=None)
    replica.program.pid = 1
    replica.program.terminate()
    replica.program.kill()


@pytest.mark.parametrize("is_old", [False, True])
def test_a_fork_keeps_the_descriptors_that_it_is_told_to_alone(is_old: bool) -> None:
    """Also on a kernel that closes them one at a time."""
    code = (
        "import os; from nodeagent.shim import forked, namespaces\n"
        f"if {is_old}: namespaces._SYS_CLOSE_RANGE = 100_000\n"
        "for _ in range(9): os.dup(0)\n"
        "os.dup2(0, 700); os.dup2(0, 800); os.dup2(0, 900)\n"
        "namespaces.close_all_but(1, 5, 800)\n"
        "left = []\n"
        "for number in range(1000):\n"
        "    try: os.fstat(number); left.append(number)\n"
        "    except OSError: pass\n"
        "os.write(1, repr(left).encode())\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"[1, 5, 800]"
