"""`examples/distributed` on two agents: it trains together, and it ends together."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.platform import ROOT
from tests.e2e.nemesis import ENDED
from tests.e2e.platforms import invitation, join_second
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform

EXAMPLE = ROOT / "examples/distributed"
EPOCHS = 6
ON_THE_NETWORK = ("--isolation", "namespace")  # as containers are only where that is allowed


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1, options=[*ON_THE_NETWORK, "--listen", "127.0.0.1:0"]) as running:
        running.nsml("dataset", "push", "digits", str(ROOT / "examples/digits/data"))
        second = join_second(running, invitation(running), *ON_THE_NETWORK)
        yield running
        running.nsml("down", "-y", "--data", str(second), timeout_s=120)


def submit(platform: Platform, args: str) -> str:
    options = ("-o", "name", "-d", "digits", "-g", "1", "--nodes", "2", "--grace", "5s")
    done = platform.nsml("run", *options, "-a", args, cwd=EXAMPLE, timeout_s=120)
    return done.stdout.strip()


def item(platform: Platform, name: str) -> dict:
    return next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)


def ended(platform: Platform, name: str) -> dict:
    return wait_for(
        lambda: (now := item(platform, name))["state"] in ENDED and now,
        timeout_s=240,  # the environment is made first
        what=f"{name} ended",
    )


def log(platform: Platform, name: str, rank: int) -> str:
    return platform.nsml("logs", name, "--rank", str(rank), check=False).stdout


def test_two_replicas_train_one_network(platform):
    name = submit(platform, f"--epochs {EPOCHS}")
    end = ended(platform, name)
    logs = [log(platform, name, rank) for rank in (0, 1)]
    assert end["state"] == "SUCCEEDED", (end, logs)
    assert len({replica["node"] for replica in end["replicas"]}) == 2
    digests = [re.findall(r"all 2 replicas hold the same weights, (\w+)", text) for text in logs]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
    losses = [re.findall(r"loss of all ([\d.]+)", text) for text in logs]
    assert losses[0] == losses[1], "the reduced loss is one number"

    def events(metric: str) -> list[dict]:
        text = platform.nsml("events", name, metric, "-o", "csv").stdout
        return list(csv.DictReader(io.StringIO(text)))

    assert [(row["rank"], float(row["step"])) for row in events("train/loss")] == [
        ("0", step) for step in range(1, EPOCHS + 1)
    ]
    assert {row["rank"] for row in events("seconds/reduce")} == {"0", "1"}


def test_a_gang_that_is_requeued_goes_on_at_one_epoch(platform):
    name = submit(platform, "--epochs 12 --pause-s 0.3")
    wait_for(
        lambda: "epoch   3/" in log(platform, name, 0) and item(platform, name)["resumable"],
        timeout_s=240,
        what="it trains",
    )
    platform.nsml("requeue", name)
    wait_for(lambda: item(platform, name)["attempt"] == 2, timeout_s=120, what="it goes on")
    end = ended(platform, name)
    logs = [log(platform, name, rank) for rank in (0, 1)]
    assert (end["state"], end["attempt"]) == ("SUCCEEDED", 2), (end, logs)
    assert all("all 2 replicas hold the same weights" in text for text in logs)
    begun = {re.findall(r"epoch +(\d+)/", text)[0] for text in logs}
    assert len(begun) == 1, "both go on at one epoch"
    text = platform.nsml("events", name, "train/loss", "-o", "csv").stdout
    assert [float(row["step"]) for row in csv.DictReader(io.StringIO(text))] == [*range(1, 13)]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.variant)])
def test_a_gang_of_which_one_is_killed_ends_as_one(platform, victim):
    name = submit(platform, "--epochs 100000 --pause-s 0.01")
    wait_for(
        lambda: all("epoch   3/" in log(platform, name, rank) for rank in (0, 1)),
        timeout_s=240,
        what="both train",
    )
    session = platform.nsml("getid", name).stdout.strip()
    pids = {rank: program_of(session, rank) for rank in (0, 1)}
    os.kill(pids[victim], signal.SIGKILL)
    killed_at = time.monotonic()
    wait_for(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()),
        what="both are gone",
    )
    print(f"both were gone {time.monotonic() - killed_at:.3f} s after one was killed")
    end = ended(platform, name)
    assert (end["state"], end["end"]["cause"]) == ("FAILED", "PROGRAM_FAILED"), end
    assert (end["end"]["rank"], end["end"]["exit_code"]) == (victim, 128 + signal.SIGKILL)
    assert end["attempt"] == 1


def program_of(session: str, rank: int) -> int:
    """The process of the training program itself, told by its environment."""
    mark = f"NSML_REPLICA={session}.1.{rank}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_python = b"main.py" in (folder / "cmdline").read_bytes().split(b"\0")
            if is_python and mark in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no program of rank {rank}")
