"""Two agents on one platform: a gang over both, and users who do not see one another's things."""

import subprocess

import pytest

from tests.e2e.platforms import invitation, join_second, user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

GANG = """\
import os, nsml
print("rank", nsml.MY_RANK, "of", len(nsml.PARALLEL_WORLD), "on", os.environ["NODE_RANK"])
nsml.report(step=0, rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
"""

STUCK = """\
import os, time

def load():
    time.sleep(600)

def all_reduce():
    time.sleep(600)

def train():
    load() if os.environ["RANK"] == "1" else all_reduce()

train()
"""


ON_THE_NETWORK = ("--isolation", "namespace")  # as containers are only where that is allowed


@pytest.fixture(scope="module")
def platform():
    with Platform(simulate_gpus=1, options=[*ON_THE_NETWORK, "--listen", "127.0.0.1:0"]) as running:
        yield running


@pytest.fixture
def second(platform):
    """The data folder of a second machine, which joins and leaves again."""
    folder = join_second(platform, invitation(platform), *ON_THE_NETWORK)
    yield folder
    platform.nsml("down", "-y", "--data", str(folder), timeout_s=120)
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, check=False)
    assert left.stdout == b""


@pytest.mark.every_time
def test_a_gang_runs_over_two_agents(platform, second, tmp_path):
    wait_for(lambda: len(platform.json("node", "ls")["items"]) == 2, what="two nodes")
    write_program(tmp_path / "code", GANG)
    platform.nsml("run", "-g", "1", "--nodes", "2", "--wait", cwd=tmp_path / "code", timeout_s=120)
    item = platform.json("ps", "-a")["items"][0]
    assert item["state"] == "SUCCEEDED", item
    assert len({replica["node"] for replica in item["replicas"]}) == 2


def test_a_gang_that_hangs_shows_which_rank_the_other_waits_for(platform, second, tmp_path):
    wait_for(lambda: len(platform.json("node", "ls")["items"]) == 2, what="two nodes")
    write_program(tmp_path / "code", STUCK)
    submitted = platform.nsml("run", "-g", "1", "--nodes", "2", "-o", "name", cwd=tmp_path / "code")
    name = submitted.stdout.strip()

    def stuck():
        shown = platform.nsml("stacks", name, check=False).stdout
        return shown if "load " in shown and "all_reduce " in shown else ""

    lines = wait_for(stuck, timeout_s=120, what="both ranks wait").splitlines()[1:]
    assert lines == [
        "  MainThread, rank 0 (idle)",
        "    <module>    main.py:12",
        "    train       main.py:10",
        "    all_reduce  main.py:7",
        "  MainThread, rank 1 (idle)",
        "    2 calls as above",
        "  > load  main.py:4",
    ]
    platform.nsml("stop", "-y", name)


def test_somebody_elses_private_session_does_not_exist(platform, tmp_path):
    write_program(tmp_path / "code", "print('private')\n")
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=tmp_path / "code").stdout.strip()
    lee = user_of(platform, "lee", tmp_path)
    for command in (["logs"], ["stop", "-y"], ["rm", "-y"], ["getid"], ["events"], ["model", "ls"]):
        done = platform.nsml(*command, name, check=False, environment=lee)
        assert done.returncode == 5, (command, done.returncode, done.stderr)
    assert name not in platform.nsml("ps", "-a", environment=lee).stdout
    denied = platform.nsml("admin", "user", "ls", check=False, environment=lee)
    assert denied.returncode == 4, denied.stderr
