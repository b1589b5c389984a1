"""What the shim may cost, being forked for every replica with all it has loaded; what it writes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.shim import disk_reserve as reserve
from nodeagent.shim import shim

ROOT = Path(__file__).parents[4]
LOADED = (
    "import sys; sys.path.append(sys.argv[1])\n"
    "from nodeagent.shim import shim, zygote\n"
    "import json, threading\n"
    "print(json.dumps([sorted(sys.modules), threading.active_count()]))"
)


def test_shim_and_zygote_load_little_and_start_no_thread() -> None:
    command = [sys.executable, "-I", "-S", "-c", LOADED, str(ROOT)]
    modules, threads = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    roots = {name.partition(".")[0] for name in modules}
    assert roots - set(sys.stdlib_module_names) == {"__main__", "nodeagent"}
    assert not roots & {"asyncio", "subprocess", "typing", "pathlib", "logging"}
    assert threads == 1


def test_a_file_that_the_disk_took_in_part_never_gets_its_name(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="a part only"):
            shim._replace(str(tmp_path), "exit.json", {"why": "EXITED"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "exit.json").exists()


def test_an_exit_record_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, flushes: Callable[[Path], list[tuple[int, bool]]]
) -> None:
    record = tmp_path / "exit.json"
    flushed = flushes(record)
    claim = {"pid": 1, "start_ticks": 1, "boot_id": "b"}
    spec = {"namespace": None, "time_limit_s": None}
    shim.Shim(str(tmp_path), spec, claim).write_exit_record()
    assert flushed == [(record.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_an_exit_record_takes_the_room_that_is_kept_for_it(tmp_path: Path) -> None:
    """A file of its own beside that would cost each replica another inode; nothing of the record is cut."""
    claim = {"pid": 1, "start_ticks": 1, "boot_id": "b"}
    ended = shim.Shim(str(tmp_path), {"namespace": None, "time_limit_s": None}, claim)
    ended.message = "why it ended " * 50
    reserve.take(str(tmp_path))
    taken = (tmp_path / ".reserve").stat().st_ino
    ended.write_exit_record()
    assert (tmp_path / "exit.json").stat().st_ino == taken
    assert json.loads((tmp_path / "exit.json").read_bytes())["message"] == ended.message
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_a_program_goes_on_whose_pid_the_disk_does_not_take(tmp_path: Path) -> None:
    claim = {"pid": 1, "start_ticks": 1, "boot_id": "b"}
    supervised = shim.Shim(str(tmp_path), {"namespace": None, "time_limit_s": None}, claim)
    supervised._program.pid = 1
    (tmp_path / f".shim.json.{os.getpid()}").mkdir()
    supervised._note_child()
    assert not (tmp_path / "shim.json").exists()
