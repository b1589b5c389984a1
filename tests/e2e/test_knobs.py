"""Knobs, pauses and checkpoints of running programs: real gangs, at one step whatever is killed meanwhile."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.platforms import LEVELS, end_all, platform_of, taken
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAINS = """
import os, time
import nsml

def save(path, **_):
    open(os.path.join(path, "lr"), "w").write(str(nsml.knob("lr", 0.1)))

def load(path, **_):
    print("loaded", open(os.path.join(path, "lr")).read(), flush=True)

nsml.bind(save=save, load=load)
for step in range(1, 1 << 30):
    lr = nsml.knob("lr", 0.1, min=0.0, max=1.0)
    nsml.knob("decay", 0.0)
    if step == 1:
        print("ready", flush=True)
        if os.environ.get("RANK", "0") == "0":
            nsml.save("first")
    time.sleep(0.01)
    nsml.step(step)
    if os.environ.get("RANK", "0") == "0" and step % 20 == 0:
        nsml.report(step=step, lr=lr)
"""
SMALL = ("-c", "0.1", "--memory", "1G", "--grace", "1s", "-g", "0")


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running
        end_all(running, request.param)


def started(platform: Platform, folder: Path, replicas: int, *options: str) -> str:
    """The name of a session whose replicas all train."""
    code = write_program(folder, TRAINS)
    size = ("--nodes", str(replicas))
    name = platform.nsml("run", *SMALL, *size, *options, "-o", "name", cwd=code).stdout.strip()
    for rank in range(replicas):
        wait_for(lambda rank=rank: "ready" in log(platform, name, rank), what=f"{rank} trains")
    return name


def log(platform: Platform, name: str, rank: int) -> str:
    return platform.nsml("logs", name, "--rank", str(rank)).stdout


def made(platform: Platform, name: str, rank: int) -> list[tuple[str, str, str]]:
    """What was set in a rank, as its log has it: knob, value and step."""
    found = re.findall(r"set (\w+) to (\S+), from \S+ at step ([\d,]+)", log(platform, name, rank))
    return [(knob, value, step.replace(",", "")) for knob, value, step in found]


def shown(platform: Platform, name: str) -> dict[str, Any]:
    """What `nsml set SESSION` shows: `knobs` and `changes`."""
    [found] = json.loads(platform.nsml("set", name, "-j").stdout)["items"]
    return dict(found)


def changes(platform: Platform, name: str) -> list[dict[str, Any]]:
    return list(shown(platform, name)["changes"])


def test_programs_are_changed_while_they_run(
    platform: Platform, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # Containers of a gang need a network, which is another test's.
    replicas = 1 if "containers" in request.node.callspec.id else 4
    name = started(platform, tmp_path / "code", replicas, "--set", "decay=0.5@20")
    told = platform.nsml("set", name, "lr=0.25").stdout
    assert "lr: 0.1 -> 0.25" in told
    step = re.search(r"applied at step ([\d,]+)", told)
    assert step, told
    where = step[1].replace(",", "")
    for rank in range(replicas):
        wait_for(
            lambda rank=rank: ("lr", "0.25", where) in made(platform, name, rank),
            what=f"rank {rank} made it at step {where}",
        )
    refused = platform.nsml("set", name, "lr=2", check=False)
    assert refused.returncode == 6
    assert "more than its max" in refused.stderr
    assert "no knob rate" in platform.nsml("set", name, "rate=1", check=False).stderr
    assert shown(platform, name)["knobs"]["decay"]["value"] == 0.5

    assert "applied" in platform.nsml("pause", name).stdout
    wait_for(lambda: platform.json("ps")["items"][0]["state"] == "PAUSED", what="it is paused")
    seen = {platform.nsml("exec", name, "step", "--all").stdout for _ in range(3)}
    assert len(seen) == 1, "no rank goes on"
    platform.nsml("set", name, "lr=0.75")
    platform.nsml("load", name, "first")
    platform.nsml("continue", name)
    wait_for(lambda: platform.json("ps")["items"][0]["state"] == "RUNNING", what="it goes on")
    for rank in range(replicas):
        wait_for(lambda rank=rank: "loaded 0.1" in log(platform, name, rank), what="it loaded")
    first = platform.nsml("exec", name, "step").stdout
    wait_for(lambda: platform.nsml("exec", name, "step").stdout != first, what="it steps")
    kinds = [(one["kind"], one["phase"]) for one in changes(platform, name)]
    assert kinds == [
        ("set", "applied"),
        ("set", "withdrawn"),
        ("set", "withdrawn"),
        ("pause", "applied"),
        ("set", "applied"),
        ("load", "applied"),
        ("continue", "applied"),
    ]
    assert f"--set lr=0.25@{where}" in platform.nsml("command", name).stdout


def test_a_far_step_can_be_withdrawn_and_a_pause_ends_by_itself(
    platform: Platform, tmp_path: Path
) -> None:
    name = started(platform, tmp_path / "code", 1)
    platform.nsml("set", name, "lr=0.5", "--at", "step=100000000", "--detach")
    busy = platform.nsml("set", name, "lr=0.7", check=False)
    assert busy.returncode == 6
    platform.nsml("set", name, "--withdraw")
    platform.nsml("pause", name, "--limit", "2s")
    wait_for(lambda: "goes on" in log(platform, name, 0), what="it goes on by itself")
    assert "over" in platform.nsml("set", name, "lr=0.5", "--at", "1", check=False).stderr
    # another attempt begins with what was set, at the same steps
    platform.nsml("set", name, "lr=0.5")
    [step] = [step for knob, value, step in made(platform, name, 0) if value == "0.5"]
    platform.nsml("requeue", name, "-y", "--force")
    wait_for(
        lambda: (
            log(platform, name, 0).count("ready") > 1
            or platform.json("ps")["items"][0]["attempt"] > 1
        ),
        what="another attempt runs",
    )
    wait_for(
        lambda: (
            int(platform.nsml("exec", name, "step", check=False).stdout.strip() or 0) > int(step)
        ),
        what="it is beyond",
        timeout_s=120,
    )
    assert shown(platform, name)["knobs"]["lr"]["value"] == 0.5


LAUNCHES = """
import subprocess, sys
while subprocess.run([sys.executable, "-u", "worker.py"]).returncode:
    pass
"""
WORKS = """
import os, time
import nsml

begin = int(open("begin").read()) if os.path.exists("begin") else 1
print("ready at", begin, flush=True)
before = None
for step in range(begin, 1 << 30):
    nsml.step(step)
    lr = nsml.knob("lr", 0.1)
    if lr != before:
        print(f"lr {lr} from {step}", flush=True)
        before = lr
    time.sleep(0.005)
"""
ENDS = "import os\nopen('begin', 'w').write('{}')\nos._exit(1)"


@pytest.mark.parametrize("platform", ["processes"], indirect=True)
def test_who_is_started_anew_has_what_was_set(platform: Platform, tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", LAUNCHES)
    (code / "worker.py").write_text(WORKS)
    name = platform.nsml("run", *SMALL, "-o", "name", cwd=code).stdout.strip()

    def values() -> list[tuple[str, int]]:
        found = re.findall(r"lr (\S+) from (\d+)", log(platform, name, 0))
        return [(value, int(step)) for value, step in found]

    def begin_anew(step: int) -> None:
        platform.nsml("exec", name, ENDS.format(step), check=False)
        wait_for(lambda: f"ready at {step}" in log(platform, name, 0), what="it begins anew")

    wait_for(lambda: values() == [("0.1", 1)], what="it trains")
    told = taken(platform, "set", name, "lr=0.25").stdout
    [step] = [int(one.replace(",", "")) for one in re.findall(r"at step ([\d,]+)", told)]
    wait_for(lambda: values()[1:] == [("0.25", step)], what="it is made")
    begin_anew(step - 3)
    again = [("0.1", step - 3), ("0.25", step)]
    wait_for(lambda: values()[2:] == again, what="it is made at the same step again")
    begin_anew(step + 100)
    wait_for(
        lambda: values()[4:] == [("0.25", step + 100)], what="it is in force from the first step on"
    )
    taken(platform, "set", name, "lr=0.5")
    wait_for(lambda: [one for one, _ in values()[5:]] == ["0.5"], what="it can be set again")


@pytest.mark.parametrize("platform", ["processes"], indirect=True)
@pytest.mark.parametrize(
    "kills",
    [
        2,
        pytest.param(
            8,
            marks=[
                pytest.mark.variant,
                pytest.mark.long("each kill is waited for until all have settled"),
            ],
        ),
    ],
)
def test_all_ranks_agree_whatever_is_killed(platform: Platform, tmp_path: Path, kills: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    name = started(platform, tmp_path / "code", 4)
    for number in range(kills):
        program = ("agent", "controlplane")[number % 2]
        asking = threading.Thread(
            target=lambda number=number: platform.nsml(
                "set", name, f"lr=0.{number + 1}", check=False, timeout_s=120
            )
        )
        asking.start()
        time.sleep(rng.uniform(0.0, 0.6))
        platform.kill(program)
        platform.up()
        asking.join()
        wait_for(
            lambda: all(one["ended_at"] for one in changes(platform, name)),
            what="it is over, one way or the other",
            timeout_s=180,
        )
    taken(platform, "set", name, "lr=0.95")
    kept = changes(platform, name)
    assert kept[-1]["phase"] == "applied"
    made_by = [made(platform, name, rank) for rank in range(4)]
    for one in kept:
        value = str(one["values"]["lr"])
        there = [[step for _, set_to, step in rank if set_to == value] for rank in made_by]
        if one["phase"] == "applied":
            assert there == 4 * [[str(one["step"])]], (one, there)
        elif one["phase"] == "withdrawn":
            assert there == 4 * [[]], (one, there)
        else:
            said = {m["rank"] for m in one["members"] if m["state"] in {"applied", "done"}}
            assert {rank for rank in range(4) if there[rank]} == said, (one, there)
