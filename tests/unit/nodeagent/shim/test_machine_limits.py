"""What is shared by all programs of the machine and limited for none."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.shim import machine_limits
from nodeagent.shim.machine_limits import Scarce

IO_SETUP, IO_DESTROY = {"x86_64": (206, 207), "aarch64": (0, 1)}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)


class Machine:
    """A machine's figures, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sys" / "fs").mkdir(parents=True)
        self.set(taken=0, most=65_536, kernel_mib=100)

    def set(self, *, taken: int, most: int, kernel_mib: int) -> None:
        (self.folder / "sys/fs/aio-nr").write_text(f"{taken}\n")
        (self.folder / "sys/fs/aio-max-nr").write_text(f"{most}\n")
        (self.folder / "meminfo").write_text(f"Slab: 1 kB\nSUnreclaim: {kernel_mib << 10} kB\n")


def this() -> list[int]:
    return [os.getpid()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def requests() -> Iterator[int]:
    """Of this process, while a test runs."""
    context = ctypes.c_ulong()
    if libc.syscall(IO_SETUP, 1000, ctypes.byref(context)) != 0:
        pytest.skip("no asynchronous requests here")
    yield 1000
    libc.syscall(IO_DESTROY, context)


def test_who_took_the_last_asynchronous_requests_is_ended(machine: Machine, requests: int) -> None:
    found = Scarce(str(machine.folder))
    assert found.look(this) == "", "there are enough"
    machine.set(taken=65_536 - requests // 2, most=65_536, kernel_mib=100)
    assert "fs.aio-max-nr" in found.look(this)
    assert found.look(list) == ""
    machine.set(taken=60_000, most=65_536, kernel_mib=100)
    assert found.look(this) == "", "it holds less than is left"


def test_who_has_many_locks_while_memory_goes_is_ended(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_limits, "_MOST_LOCKS", 50)
    monkeypatch.setattr(machine_limits, "_COUNT_S", 60.0)
    found = Scarce(str(machine.folder))
    with (tmp_path / "locked").open("wb") as file:
        for number in range(100):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
        assert found.look(this) == "", "memory is there"
        machine.set(taken=0, most=65_536, kernel_mib=1000)
        assert "locks of files" in found.look(this)
    assert found.look(this) == ""
