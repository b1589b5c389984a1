"""What is held on a disk without a name, by whatever holds it."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.shim.unlinked import Holding, disk_of

MIB = 1 << 20
CLONE_FILES = 0x400
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look there")


def held(place: Path, *pids: int, is_thorough: bool = True) -> int:
    like = place / "output"
    like.touch()
    holding = Holding(pids or [os.getpid()], disk_of(str(like)), is_thorough=is_thorough)
    ends_at = time.monotonic() + 60
    while not holding.advance(0.001):
        assert time.monotonic() < ends_at
    return sum(size for file, size in holding.files.items() if file not in _before)


_before: set[int] = set()
"""Files that this process of tests held before the test: those of other tests' libraries."""


@pytest.fixture(autouse=True)
def _held_before(tmp_path: Path) -> None:
    _before.clear()
    like = tmp_path / "output"
    like.touch()
    holding = Holding([os.getpid()], disk_of(str(like)), is_thorough=True)
    while not holding.advance(1.0):
        pass
    _before.update(holding.files)


def nameless(place: Path, mib: int = 1) -> int:
    """A descriptor of a file that has no name any more."""
    path = place / "unseen"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.posix_fallocate(file, 0, mib * MIB)
    path.unlink()
    return file


def mapped(file: int) -> ctypes.c_void_p:
    """The first page of a file in memory; the module mmap would keep a descriptor."""
    size = ctypes.c_size_t(mmap.PAGESIZE)
    return ctypes.c_void_p(libc.mmap(None, size, 1, mmap.MAP_SHARED, file, ctypes.c_long(0)))


def within(found: int, wanted: int) -> bool:
    return wanted <= found < wanted + MIB // 2


def send(sender: socket.socket, descriptor: int, data: bytes = b"x") -> None:
    """Send a descriptor that nothing else holds then."""
    socket.send_fds(sender, [data], [descriptor])
    os.close(descriptor)


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    sender, receiver = socket.socketpair(socket.AF_UNIX, request.param)
    with sender, receiver:
        yield sender, receiver


@pytest.mark.parametrize("is_thorough", [False, True])
def test_an_open_file_counts(tmp_path: Path, *, is_thorough: bool) -> None:
    before = held(tmp_path, is_thorough=is_thorough)
    file = nameless(tmp_path)
    try:
        assert within(held(tmp_path, is_thorough=is_thorough) - before, MIB)
    finally:
        os.close(file)


def test_shared_memory_is_on_no_disk(tmp_path: Path) -> None:
    with os.fdopen(os.memfd_create("batch"), "wb", buffering=0) as file:
        file.write(os.urandom(MIB))
        assert within(held(tmp_path), 0)


def test_empty_files_count(tmp_path: Path) -> None:
    opened = [os.open(tmp_path, os.O_TMPFILE | os.O_RDWR) for _ in range(20)]
    try:
        assert held(tmp_path, is_thorough=False) >= 20 * 4096
    finally:
        for one in opened:
            os.close(one)


@as_root
def test_a_file_that_is_mapped_alone_counts_as_a_whole(tmp_path: Path) -> None:
    file = nameless(tmp_path, 4)
    at = mapped(file)
    os.close(file)
    try:
        assert held(tmp_path, is_thorough=False) < MIB
        assert within(held(tmp_path), 4 * MIB)
    finally:
        libc.munmap(at, mmap.PAGESIZE)


def test_a_removed_folder_that_somebody_is_in_counts(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=place) as program:
        place.rmdir()
        try:
            assert held(tmp_path, program.pid) >= 4096
        finally:
            program.kill()


def test_a_removed_program_that_runs_counts(tmp_path: Path) -> None:
    sleep = Path(shutil.copy2(os.path.realpath(shutil.which("sleep") or ""), tmp_path))
    size = sleep.stat().st_size
    with subprocess.Popen(["sleep", "60"], executable=sleep) as program:
        sleep.unlink()
        try:
            assert held(tmp_path, program.pid) >= size
        finally:
            program.kill()


def test_a_thread_with_descriptors_of_its_own_counts(tmp_path: Path) -> None:
    file = nameless(tmp_path)
    is_apart, may_end = threading.Event(), threading.Event()

    def keep() -> None:
        if libc.unshare(CLONE_FILES) == 0:
            is_apart.set()
            may_end.wait(60)
            os.close(file)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        assert is_apart.wait(60)
        os.close(file)
        assert held(tmp_path, is_thorough=False) < MIB
        assert within(held(tmp_path), MIB)
    finally:
        may_end.set()
        thread.join()


@as_root
def test_a_process_whose_first_thread_has_ended_counts(tmp_path: Path) -> None:
    path = tmp_path / "unseen"
    path.write_bytes(bytes(MIB))
    text = (
        "import ctypes, os, sys, threading, time\n"
        "libc, file = ctypes.CDLL(None), os.open(sys.argv[1], os.O_RDWR)\n"
        "libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0)); os.close(file)\n"
        "threading.Thread(target=lambda: time.sleep(60)).start()\n"
        "os.unlink(sys.argv[1])\n"
        "libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text, str(path)]) as program:
        try:
            ends_at = time.monotonic() + 60
            while b"\nState:\tZ" not in Path(f"/proc/{program.pid}/status").read_bytes():
                assert time.monotonic() < ends_at
                time.sleep(0.01)
            assert within(held(tmp_path, program.pid), MIB)
        finally:
            program.send_signal(signal.SIGKILL)


def test_descriptors_in_flight_count_and_stay_there(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    sender.send(b"first")
    if sender.type != socket.SOCK_STREAM:
        sender.send(b"")
    for mib in (1, 2):
        send(sender, nameless(tmp_path, mib))
    sender.send(b"last")
    assert within(held(tmp_path), 3 * MIB)
    receiver.setblocking(False)
    assert receiver.recv(5, socket.MSG_PEEK) == b"first", "as before"
    data, found = b"", []
    while not data.endswith(b"last"):
        piece, descriptors, _, _ = socket.recv_fds(receiver, 100, 10)
        data += piece
        found += [os.fstat(one).st_size // MIB for one in descriptors]
        for one in descriptors:
            os.close(one)
    assert (data, found) == (b"firstxxlast", [1, 2])
    assert held(tmp_path) < MIB


def test_descriptors_in_flight_over_sockets_in_flight_count(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket]
) -> None:
    inner, end = socket.socketpair()
    with inner:
        send(inner, nameless(tmp_path))
        send(pair[0], end.detach())
        assert within(held(tmp_path), MIB)


def test_many_descriptors_in_flight_count(tmp_path: Path) -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        files = [nameless(tmp_path) for _ in range(300)]
        for first in range(0, 300, 100):
            socket.send_fds(sender, [b"x"], files[first : first + 100])
        for one in files:
            os.close(one)
        assert within(held(tmp_path), 300 * MIB)


def test_what_cannot_be_counted_is_told(tmp_path: Path) -> None:
    def is_incomplete() -> bool:
        holding = Holding([os.getpid()], disk_of(str(tmp_path)), is_thorough=True)
        while not holding.advance(1.0):
            pass
        return holding.is_incomplete

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as sender:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        sender.connect(str(tmp_path / "socket"))
        assert not is_incomplete()
        send(sender, nameless(tmp_path))
        assert is_incomplete()
        listener.accept()[0].close()
        assert not is_incomplete()


def own_children() -> set[str]:
    """Not those below them: servers of other tests start and end some."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def test_looking_leaves_no_process(tmp_path: Path) -> None:
    before = own_children()
    sender, receiver = socket.socketpair()
    with sender, receiver:
        send(sender, nameless(tmp_path))
        assert within(held(tmp_path), MIB)
    assert own_children() <= before
