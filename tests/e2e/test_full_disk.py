"""A session that fills the disk can be stopped, and harms nobody else for longer than that."""

import os

import pytest

from tests.e2e.programs import wait_for, write_program
from tests.support import disks
from tests.support.in_process import Platform

GREEDY = '''\
"""Takes the whole disk, then goes on printing and reporting into it."""
import os, time
import nsml

os.write(1, b"begin\\n")
with open("/app/greedy", "wb", buffering=0) as greedy:
    size = 1 << 20
    while size:
        try:
            greedy.write(b"x" * size)
        except OSError:
            size //= 2
os.mkdir("/nsml/full")
while True:
    for act in (lambda: nsml.report(loss=1), lambda: os.write(1, b"y" * 100)):
        try:
            act()
        except OSError:
            pass
    time.sleep(0.01)
'''
MODEST = """\
import os, time
import nsml

step = 0
while not os.path.exists("/app/finish"):
    nsml.report(step=step, loss=step)
    step += 1
    time.sleep(0.02)
"""


@pytest.fixture(params=["0", ""])
def platform(request, monkeypatch):
    """Everything of it on a small disk; etcd and history too: without a floor, and with the usual one."""
    if request.param:
        monkeypatch.setenv("NSML_AGENT_DISK_FLOOR_BYTES", request.param)
    running = Platform(simulate_gpus=2)
    try:
        with disks.small_disk(running.folder / "data", "size=160m,mode=700"):
            try:
                running.up()
                yield running
            finally:
                running.nsml("down", "-y", check=False, timeout_s=120)
    finally:
        running.close()


def state(platform: Platform, name: str) -> str:
    return next(one["state"] for one in platform.json("ps", "-a")["items"] if one["name"] == name)


def replica_folder(platform: Platform, name: str):
    session_id = platform.nsml("getid", name).stdout.strip()
    return platform.folder / "data/agent/replicas" / f"{session_id}.1.0"


def is_full(platform: Platform) -> bool:
    space = os.statvfs(platform.folder / "data")
    return space.f_bavail == 0


@pytest.mark.parametrize("platform", [""], indirect=True)
def test_what_fills_the_disk_is_ended_and_the_other_goes_on(platform, tmp_path):
    modest = write_program(tmp_path / "modest", MODEST)
    greedy = write_program(tmp_path / "greedy", GREEDY)
    other = platform.nsml("run", "-o", "name", cwd=modest).stdout.strip()
    wait_for(lambda: state(platform, other) == "RUNNING", what="the other one runs")
    name = platform.nsml("run", "-o", "name", cwd=greedy).stdout.strip()
    wait_for(lambda: state(platform, name) == "FAILED", what="the greedy one is ended")
    (ended,) = [one for one in platform.json("ps", "-a")["items"] if one["name"] == name]
    assert ended["end"]["cause"] == "LIMIT_EXCEEDED"
    assert "the node's disk is full" in ended["end"]["message"]
    wait_for(lambda: not is_full(platform), what="there is room again")
    (replica_folder(platform, other) / "app/finish").touch()
    wait_for(lambda: state(platform, other) == "SUCCEEDED", what="the other one ends well")


@pytest.mark.parametrize("platform", [""], indirect=True)
def test_data_larger_than_every_nodes_disk_is_refused_unless_it_is_streamed(platform, tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "zeros").open("wb") as file:
        file.truncate(200 << 20)
    platform.nsml("dataset", "push", "large", str(folder))
    code = write_program(
        tmp_path / "code", 'import nsml\nprint(len(nsml.open("large/zeros").read(9)))\n'
    )
    refused = platform.nsml("run", "-d", "large", "-f", cwd=code, check=False)
    assert refused.returncode == 7
    assert "its datasets are larger than every node's disk" in refused.stderr
    assert "nsml run --stream NAME" in refused.stderr
    read = platform.nsml("run", "--stream", "large", "-f", cwd=code)
    assert "9" in read.stdout


@pytest.mark.parametrize("platform", ["0"], indirect=True)
def test_what_fills_the_disk_can_be_stopped(platform, tmp_path):
    modest = write_program(tmp_path / "modest", MODEST)
    greedy = write_program(tmp_path / "greedy", GREEDY)
    other = platform.nsml("run", "-o", "name", cwd=modest).stdout.strip()
    wait_for(lambda: state(platform, other) == "RUNNING", what="the other one runs")
    name = platform.nsml("run", "-o", "name", "--grace", "1s", cwd=greedy).stdout.strip()
    full = replica_folder(platform, name) / "run/full"
    wait_for(lambda: full.exists() or is_full(platform), what="the disk is full")
    agent = platform.pid("agent")
    wait_for(
        lambda: platform.nsml("stop", name, "-y", check=False).returncode in {0, 6},
        what="the stop is taken",
    )
    wait_for(lambda: state(platform, name) == "STOPPED", what="the greedy one is stopped")
    wait_for(lambda: not is_full(platform), what="there is room again")
    assert platform.pid("agent") == agent
    assert state(platform, other) == "RUNNING"
    (replica_folder(platform, other) / "app/finish").touch()
    wait_for(lambda: state(platform, other) == "SUCCEEDED", what="the other one ends well")
    later = platform.nsml("run", "--wait", "--no-code", "--argv", "--", "true")
    assert later.returncode == 0
