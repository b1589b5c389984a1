"""Limits that are kept by looking: what counts as the replica's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.shim.watch import (
    FIRST_LOOK_S,
    LIMIT_EXCEEDED,
    OUT_OF_MEMORY,
    Watch,
    memory_message,
)
from tests.support import disks

LIMIT = 32 << 20
NOTHING = {
    "memory_bytes": None,
    "cpus": None,
    "process_count": None,
    "disk_bytes": None,
    "disk_floor_bytes": 0,
}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the machine has no /dev/shm")
def test_what_others_keep_in_the_machines_shared_memory_is_not_the_replicas(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryFile(dir="/dev/shm") as others,
        # as a program whose own root is not made yet
        subprocess.Popen(["sleep", "60"]) as program,
    ):
        os.posix_fallocate(others.fileno(), 0, LIMIT + LIMIT // 2)
        wanted = {**NOTHING, "memory_bytes": LIMIT}
        try:
            watch = Watch(str(tmp_path), wanted, lambda: [program.pid], has_own_shm=True)
            assert watch.look() is None
            assert 0 < watch.memory_peak_bytes < LIMIT
        finally:
            program.kill()


def test_memory_counts_where_the_first_thread_has_ended() -> None:
    text = (
        "import ctypes, os, threading, time\n"
        f"held = bytearray(b'x') * {2 * LIMIT}\n"
        "threading.Thread(target=lambda: time.sleep(60)).start()\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text]) as program:
        try:
            ends_at = time.monotonic() + 60
            while b"\nState:\tZ" not in Path(f"/proc/{program.pid}/status").read_bytes():
                assert time.monotonic() < ends_at
                time.sleep(0.01)
            wanted = {**NOTHING, "memory_bytes": LIMIT}
            found = Watch("/nowhere", wanted, lambda: [program.pid], has_own_shm=False).look()
            assert found is not None
            assert found[0] == OUT_OF_MEMORY
        finally:
            program.kill()


def test_what_was_written_before_it_was_still_is_measured_all_the_same(tmp_path: Path) -> None:
    """A walk may have passed by there just before."""
    for name in ("app", "tmp", "run"):
        (tmp_path / name).mkdir()
    watch = Watch(str(tmp_path), {**NOTHING, "disk_bytes": LIMIT}, list, has_own_shm=False)
    assert watch.look() is None
    with (tmp_path / "app" / "much").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * LIMIT)
    found = None
    ends_at = time.monotonic() + 60
    while found is None:
        assert time.monotonic() < ends_at
        found = watch.look(is_still=True)
    assert found[0] == LIMIT_EXCEEDED


def test_one_that_is_still_is_read_once_and_keeps_its_pace() -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        listings = []

        def processes() -> list[int]:
            listings.append(None)
            return [program.pid]

        wanted = {**NOTHING, "memory_bytes": LIMIT, "process_count": 100}
        try:
            watch = Watch("/nowhere", wanted, processes, has_own_shm=False)
            assert watch.look() is None
            assert watch.look(is_still=True) is None
            # near the limit, where it may run again at any time
            assert watch.next_at - time.monotonic() < 0.2
            assert len(listings) == 1
        finally:
            program.kill()


def test_a_program_that_ends_at_once_is_not_looked_at(tmp_path: Path) -> None:
    """But where the disk is short or may be so soon, or it is to be on some processors from its beginning on."""
    began = time.monotonic()
    usual = Watch(str(tmp_path), {**NOTHING, "disk_bytes": LIMIT}, list, has_own_shm=False)
    assert usual.next_at >= began + FIRST_LOOK_S
    space = os.statvfs(tmp_path)
    nearly_all = space.f_bavail * space.f_frsize - (1 << 30)
    urgent = [{"disk_floor_bytes": 1 << 62}, {"disk_floor_bytes": max(nearly_all, 1)}]
    if len(os.sched_getaffinity(0)) > 1:
        urgent.append({"cpus": 1.0})
    for wanted in urgent:
        watch = Watch(str(tmp_path), {**NOTHING, **wanted}, list, has_own_shm=False)
        assert watch.next_at <= time.monotonic()


def test_many_empty_files_are_over_a_disk_limit(tmp_path: Path) -> None:
    """Each takes an inode, of which the disk has as few: 1,000 files in a limit of 1 MiB."""
    for name in ("app", "tmp", "run"):
        (tmp_path / name).mkdir()
    for number in range(1_000):
        (tmp_path / "tmp" / str(number)).touch()
    watch = Watch(str(tmp_path), {**NOTHING, "disk_bytes": 1 << 20}, list, has_own_shm=False)
    found, ends_at = None, time.monotonic() + 60
    while found is None:
        assert time.monotonic() < ends_at
        found = watch.look()
    assert found[0] == LIMIT_EXCEEDED
    assert "files, 4.1 kB each at least" in found[1]


def test_who_leaves_others_no_files_to_make_is_ended(tmp_path: Path) -> None:
    """And one that has made none goes on."""
    with disks.small_disk(tmp_path / "disk", "size=64m,nr_inodes=8000") as disk:
        watches = []
        for name in ("greedy", "modest"):
            for below in ("app", "tmp", "run"):
                (disk / name / below).mkdir(parents=True)
            wanted = {**NOTHING, "disk_floor_bytes": 1}
            watches.append(Watch(str(disk / name), wanted, list, has_own_shm=False))
        greedy, modest = watches
        assert (greedy.look(), modest.look()) == (None, None)
        for number in range(7_900):
            (disk / "greedy" / "tmp" / str(number)).touch()
        found, ends_at = None, time.monotonic() + 60
        while found is None:
            assert time.monotonic() < ends_at
            assert modest.look() is None
            found = greedy.look()
        assert found[0] == LIMIT_EXCEEDED
        assert "more files" in found[1]


def test_who_fills_the_disk_before_the_first_look_is_ended(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", "size=64m") as disk:
        for name in ("app", "tmp", "run"):
            (disk / name).mkdir()
        (disk / "app" / "code").write_bytes(bytes(4 << 20))
        wanted = {**NOTHING, "disk_floor_bytes": 1 << 20}
        watch = Watch(str(disk), wanted, list, has_own_shm=False)
        with suppress(OSError):
            (disk / "app" / "much").write_bytes(bytes(64 << 20))
        found, ends_at = None, time.monotonic() + 60
        while found is None:
            assert time.monotonic() < ends_at
            found = watch.look()
        assert found[0] == LIMIT_EXCEEDED
        assert "disk is full" in found[1]


@pytest.mark.parametrize(
    ("limit", "machine", "advice"),
    [
        (200_000_000, 25_276_502_016, "400M"),
        (12_638_251_008, 25_276_502_016, "25.2G"),  # twice would be 25.3G, which no node has
        (16 * 10**9, 25_276_502_016, "25.2G"),
        (25 * 10**9, 25_276_502_016, "50G"),  # another node may have it
        (600 * 10**9, 1_081_000_000_000, "1.08T"),
        (700 * 10**6, 999_999_999, "999M"),
    ],
)
def test_no_more_memory_is_advised_than_the_machine_has(limit, machine, advice):
    assert memory_message(limit, limit, machine).endswith(f"given; try --memory {advice}")
