"""A whole platform of which one part is away: what goes on, what is shown, and that it heals alone."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.store.etcd_process import running_in
from tests.e2e.programs import wait_for, write_program
from tests.support import disks
from tests.support.etcd import pause, require_etcd
from tests.support.in_process import Platform
from tests.support.postgres import PostgresServer, by_file

LITTLE_BYTES = 32 << 10
"""What a full disk still has: less than a checkpoint, more than a probe."""
LOOK_EVERY_S = 0.3
"""What is looked at needs the processor, too."""

STEPPING = """\
import os, time
import nsml

step = 0
while not os.path.exists("/app/finish"):
    nsml.report(step=step, loss=step)
    print("line", step, flush=True)
    step += 1
    time.sleep(0.02)
"""

SAVING = """
nsml.save(1, save_fn=lambda path: open(os.path.join(path, "model"), "wb").write(os.urandom(100_000)))
"""


@pytest.fixture(scope="module")
def platform():
    require_etcd()
    with Platform(simulate_gpus=2) as running:
        yield running


def conditions(platform: Platform) -> list[dict]:
    done = platform.nsml("status", "-j", check=False)
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads(done.stdout)["conditions"]
    assert done.returncode == bool(found)
    return found


def shows(platform: Platform, *names: str, timeout_s: float = 60.0) -> None:
    """Wait until these conditions are shown; the failure says what was shown instead."""
    ends_at = time.monotonic() + timeout_s
    seen = conditions(platform)
    while [one["name"] for one in seen] != list(names):
        assert time.monotonic() < ends_at, f"not {names} but {seen}"
        time.sleep(LOOK_EVERY_S)
        seen = conditions(platform)


def submit(platform: Platform, folder, program: str, *options: str) -> str:
    code = write_program(folder, program)
    return platform.nsml("run", "-o", "name", *options, cwd=code, timeout_s=180).stdout.strip()


def item(platform: Platform, name: str) -> dict:
    listed = platform.json("ps", "-a")["items"]
    return next(one for one in listed if one["name"] == name)


def lines(platform: Platform, name: str) -> int:
    return platform.nsml("logs", name).stdout.count("\n")


def release(platform: Platform, name: str) -> None:
    """Let its program come to its end."""
    session_id = platform.nsml("getid", name).stdout.strip()
    (platform.folder / "data/agent/replicas" / f"{session_id}.1.0" / "app/finish").touch()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def test_without_etcd_training_and_reporting_go_on_and_a_submission_waits(platform, tmp_path, pool):
    name = submit(platform, tmp_path / "stepping", STEPPING)
    wait_for(lambda: lines(platform, name) > 10, what="it prints")
    control_plane = platform.pid("controlplane")
    [etcd] = running_in(platform.folder / "data/controlplane/etcd")
    pause(etcd.pid)
    try:
        shows(platform, "COORDINATION_GONE")
        before = lines(platform, name)
        wait_for(lambda: lines(platform, name) > before + 50, what="records come")
        assert item(platform, name)["state"] == "RUNNING"
        [node] = platform.json("node", "ls")["items"]
        assert node["state"] == "READY"
        refused = platform.nsml("run", "--patience", "0s", check=False, cwd=tmp_path / "stepping")
        assert refused.returncode == 3
        assert "the platform's store does not answer" in refused.stderr
        waits = pool.submit(submit, platform, tmp_path / "second", STEPPING)
        # Longer than any lease, and than it takes to be elected anew.
        before = lines(platform, name)
        wait_for(lambda: lines(platform, name) > before + 200, what="records go on coming")
        release(platform, name)
    finally:
        os.kill(etcd.pid, signal.SIGCONT)
    shows(platform)
    second = waits.result(180)
    wait_for(lambda: item(platform, second)["state"] == "RUNNING", what="the second one runs")
    release(platform, second)
    for one in (name, second):
        wait_for(lambda one=one: item(platform, one)["state"] == "SUCCEEDED", what=f"{one} ends")
        assert item(platform, one)["attempt"] == 1
    printed = platform.nsml("logs", name).stdout.splitlines()
    assert printed == [f"line {step}" for step in range(len(printed))]
    assert platform.pid("controlplane") == control_plane


def test_without_objects_checkpoints_wait_on_the_node_and_devices_are_free(platform, tmp_path):
    name = submit(platform, tmp_path / "stepping", STEPPING)
    late = submit(platform, tmp_path / "late", STEPPING + SAVING)
    for one in (name, late):
        wait_for(lambda one=one: lines(platform, one) > 10, what=f"{one} prints")
    with small_disk(platform.folder / "data/controlplane/objects", tmp_path) as give_room:
        # Before anything is sent: what comes between two looks at the disk finds it full indeed.
        shows(platform, "LOW_ON_ROOM")
        release(platform, late)
        wait_for(lambda: item(platform, late)["state"] == "FINALIZING", what="it waits")
        held = [device["sessions"] for device in platform.json("gpustat")["items"]]
        assert sorted(held) == [[], [name]]
        # The agent tries again and again, and the platform's own small writes find room.
        for _ in range(10):
            assert [one["name"] for one in conditions(platform)] == ["LOW_ON_ROOM"]
        give_room()
        wait_for(lambda: item(platform, late)["state"] == "SUCCEEDED", what="the late one ends")
        [checkpoint] = platform.json("model", "ls", late)["items"]
        assert checkpoint["state"] == "DURABLE"
        shows(platform)
    release(platform, name)
    wait_for(lambda: item(platform, name)["state"] == "SUCCEEDED", what=f"{name} succeeds")


@contextmanager
def small_disk(folder: Path, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Put a folder on a disk that has room for little more; yields what makes that disk large."""
    with disks.small_disk(tmp_path / "disk", "size=16m,mode=700") as disk:
        shutil.copytree(folder, disk, dirs_exist_ok=True)
        used = -(-sum(one.stat().st_blocks * 512 for one in disk.rglob("*")) // 4096) * 4096
        assert mounted("-o", f"remount,size={used + LITTLE_BYTES}", str(disk))
        assert mounted("--bind", str(disk), str(folder))
        try:
            yield lambda: give_room(disk)
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def give_room(disk: Path) -> None:
    assert mounted("-o", "remount,size=64m", str(disk))


def mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as running:
        yield running


@pytest.mark.long("who reads what is away tries again for half a minute")
def test_without_the_history_ends_are_told_and_records_wait_on_the_node(server, tmp_path, pool):
    with (
        server.database() as url,
        Platform(simulate_gpus=2, options=["--history", by_file(url, tmp_path)]) as platform,
    ):
        going, ending = (submit(platform, tmp_path / name, STEPPING) for name in ("a", "b"))
        for one in (going, ending):
            wait_for(lambda one=one: lines(platform, one) > 10, what=f"{one} prints")
        server.kill()
        shows(platform, "HISTORY_GONE")
        # As a program of its own, meanwhile: it tries again for half a minute.
        asks = pool.submit(platform.nsml, "logs", ending, check=False)
        release(platform, ending)
        wait_for(lambda: live(platform)[ending] == "FINALIZING", what="its end is told")
        held = [device["sessions"] for device in platform.json("gpustat")["items"]]
        assert sorted(held) == [[], [going]]
        assert live(platform)[going] == "RUNNING"
        assert platform.nsml("ps", "-a", check=False).returncode == 9
        refused = asks.result(180)
        assert refused.returncode == 3
        assert "the platform's history does not answer" in refused.stderr
        server.start()
        shows(platform)
        wait_for(lambda: item(platform, ending)["state"] == "SUCCEEDED", what="it has ended")
        release(platform, going)
        wait_for(lambda: item(platform, going)["state"] == "SUCCEEDED", what="the other one ends")
        for one in (going, ending):
            printed = platform.nsml("logs", one).stdout.splitlines()
            assert printed == [f"line {step}" for step in range(len(printed))]
            reported = platform.json("events", one, "loss")["items"]
            assert [point["step"] for point in reported] == list(range(len(printed)))


def live(platform: Platform) -> dict[str, str]:
    return {one["name"]: one["state"] for one in platform.json("ps")["items"]}
