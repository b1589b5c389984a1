"""What a lost shim left, and a shim that is claimed, when the agent has no descriptor free to look."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.runtimes.records import ShimClaim
from nodeagent.runtimes.shims import is_alive
from nodeagent.runtimes.strays import Strays

MARK = f"NSML_REPLICA=of-the-test-{os.getpid()}"


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    name, _, value = MARK.partition("=")
    program = subprocess.Popen(["sleep", "60"], env={name: value}, start_new_session=True)
    yield program
    program.kill()
    program.wait()


def test_who_cannot_be_looked_at_is_not_gone(
    stray: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    output = str(tmp_path / "output")
    strays = Strays(mark=MARK.encode(), output=output, uid=None, began_before=None, group=None)
    with free_descriptors(1):
        left = strays.kill()
    assert stray.pid in left
    assert stray.poll() is None
    assert strays.kill() == [stray.pid]
    stray.wait(60)
    assert strays.kill() == []


def test_a_shim_that_cannot_be_looked_at_is_not_dead() -> None:
    claim = ShimClaim(pid=os.getpid(), start_ticks=0, claimed_ticks=0, boot_id="boot", child=None)
    with free_descriptors(0), pytest.raises(OSError, match="Too many open files"):
        is_alive(claim, "boot")
    assert not is_alive(claim, "boot"), "another began with this number"
