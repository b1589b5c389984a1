"""Limits that are kept by looking: what counts as the replica's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from nodeagent.shim.watch import Watch

LIMIT = 32 << 20


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the machine has no /dev/shm")
def test_what_others_keep_in_the_machines_shared_memory_is_not_the_replicas(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryFile(dir="/dev/shm") as others,
        # as a program whose own root is not made yet
        subprocess.Popen(["sleep", "60"]) as program,
    ):
        os.posix_fallocate(others.fileno(), 0, LIMIT + LIMIT // 2)
        wanted = {
            "memory_bytes": LIMIT,
            "cpus": None,
            "process_count": None,
            "disk_bytes": None,
            "disk_floor_bytes": 0,
        }
        try:
            watch = Watch(str(tmp_path), wanted, lambda: [program.pid], has_own_shm=True)
            assert watch.look() is None
            assert 0 < watch.memory_peak_bytes < LIMIT
        finally:
            program.kill()
