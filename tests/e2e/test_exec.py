"""`nsml exec`: code in real programs that train, in processes and in containers, of a gang as well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.platforms import LEVELS, end_all, platform_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAINS = """
import os, time
import nsml

class Optimizer:
    lr = 0.1

def train():
    optimizer = Optimizer()
    for step in range(1 << 30):
        loss = 1 / (step + 1)
        nsml.step(step)
        if step % 20 == 0:
            nsml.report(step=step, lr=optimizer.lr)
        if step == 0:
            print("ready", flush=True)
        time.sleep(0.01)

train()
"""


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running
        end_all(running, request.param)


@pytest.fixture
def replicas(request: pytest.FixtureRequest) -> int:
    """Containers of a gang need a network, which is another test's."""
    return 1 if "containers" in request.node.callspec.id else 2


def test_training_is_looked_at_and_changed(
    platform: Platform, replicas: int, tmp_path: Path
) -> None:
    code = write_program(tmp_path / "code", TRAINS)
    small = ("-c", "0.1", "--memory", "1G", "--grace", "1s", "-g", "0", "--nodes", str(replicas))
    name = platform.nsml("run", *small, "-o", "name", cwd=code).stdout.strip()
    ranks = range(replicas)
    for rank in map(str, ranks):
        wait_for(
            lambda rank=rank: "ready" in platform.nsml("logs", name, "--rank", rank).stdout,
            what=f"rank {rank} trains",
        )
    items = json.loads(platform.nsml("exec", name, "step, loss", "--all", "-j").stdout)["items"]
    assert [one["rank"] for one in items] == [*ranks]
    assert all(one["value"].startswith("(") for one in items)
    platform.nsml("exec", f"{name}:{ranks[-1]}", "optimizer.lr = 0.75")
    items = json.loads(platform.nsml("exec", name, "optimizer.lr", "--all", "-j").stdout)["items"]
    assert [one["value"] for one in items] == [*["0.1"] * (replicas - 1), "0.75"]
    wait_for(lambda: "0.75" in platform.nsml("events", name).stdout, what="it trains at that rate")
    failed = platform.nsml("exec", name, "1/0", check=False)
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    before, after = (int(platform.nsml("exec", name, "step").stdout) for _ in range(2))
    assert after > before
    trail = platform.nsml("admin", "audit", "--target", name, "-j").stdout
    assert f"agent.exec in rank {ranks[-1]}" in trail
