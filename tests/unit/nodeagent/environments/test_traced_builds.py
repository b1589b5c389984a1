"""What the agent's own processes open while a package is installed, by the kernel's word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheels import make_wheel

MARK = "chosen_by_a_user"
BUILD = """
import os, sys
from pathlib import Path
from nsml.packages.requirements import Requirements
from tests.support.sandboxes import environments_in
environments_in(Path(sys.argv[1])).provide(Requirements(lines=(sys.argv[2],)), lambda _: None, owner="kim")
"""
CALLS = "open,openat,openat2,execve,readlink,readlinkat,setresuid,clone,clone3,fork,vfork"
FORKS = {"clone", "clone3", "fork", "vfork"}
LINE = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("strace") is None, reason="needs root, and strace (apt)"
)
def test_nothing_that_a_user_chose_is_opened_with_roots_rights(tmp_path: Path) -> None:
    """Names of a user's files come in no call of a process with root but to list folders and look at links."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, MARK, body="TEXT = 'x'", files={f"{MARK}_data/{MARK}.txt": b"x"})
    trace = tmp_path / "trace"
    watched = [
        "strace",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "--pidns-translation",
        "-s",
        "300",
        "-o",
        str(trace),
        "-e",
    ]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[4]),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    command = [sys.executable, "-c", BUILD, str(tmp_path), MARK]
    subprocess.run([*watched, f"trace={CALLS}", *command], env=env, check=True, timeout=240)
    by_root, by_others = calls_of(trace.read_text(errors="replace"))
    assert [call for call in by_others if f"{MARK}.py" in call]  # the trace sees what is opened
    bad = [
        call
        for call in by_root
        if MARK in call
        and not ("O_DIRECTORY" in call and "O_NOFOLLOW" in call)
        and not call.startswith("readlinkat(")
    ]
    # the command line of the test itself, and the agent's own look at where the pip of this machine looks
    bad = [call for call in bad if not (call.startswith("execve(") and str(tmp_path) in call)]
    assert bad == []


def calls_of(trace: str) -> tuple[list[str], list[str]]:
    """The calls of processes that had root's rights at that time, and those of all others."""
    lines = [found for line in trace.splitlines() if (found := LINE.match(line))]
    first_at: dict[str, int] = {}
    parents: dict[str, str] = {}
    lowered_at: dict[str, int] = {}
    for number, found in enumerate(lines):
        pid, name, rest = found.groups()
        first_at.setdefault(pid, number)
        child = re.search(r"= \d+ /\* (\d+) in strace's PID NS \*/$|= (\d+)$", rest)
        if name in FORKS and child:
            parents[child[1] or child[2]] = pid
        if name == "setresuid" and rest.endswith("= 0"):
            lowered_at.setdefault(pid, number)

    def is_lowered(pid: str, number: int) -> bool:
        if lowered_at.get(pid, len(lines)) < number:
            return True
        return pid in parents and is_lowered(parents[pid], first_at[pid])

    by_root, by_others = [], []
    for number, found in enumerate(lines):
        pid, name, rest = found.groups()
        (by_others if is_lowered(pid, number) else by_root).append(f"{name}({rest}")
    return by_root, by_others
