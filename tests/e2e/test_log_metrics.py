"""A program that only prints: its curve while it runs, whole also when its agent is killed meanwhile."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import pytest

PROGRAM = """\
import os, time

for step in range(1, 301):
    print(f"step {step}: loss={1 / step:.6f} acc={step / 400}", flush=True)
    if step % 10 == 0:
        print(f"the score at {step} is {step * 2}", flush=True)
    if step == 200:
        while not os.path.exists("/app/go"):
            time.sleep(0.02)
    time.sleep(0.01)
print("done")
"""
SCORE = r"score=score at (?P<step>\d+) is (\d+)"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1) as running:
        yield running


def points(platform: Platform, name: str, metric: str, *more: str) -> list[tuple[str, str]]:
    out = platform.nsml("plot", name, "-m", metric, "--csv", *more, check=False).stdout
    rows = csv.DictReader(io.StringIO(out))
    return [(row["step"], row["value"]) for row in rows]


@pytest.mark.long("two agents are killed while the program runs")
def test_a_program_that_prints_has_its_curve(platform: Platform, tmp_path: Path) -> None:
    code = write_program(tmp_path / "prints", PROGRAM)
    run = platform.nsml(
        "run", "-g", "0", "--metric", "auto", "--metric", SCORE, "--dry-run", cwd=code
    )
    assert "score=score at" in run.stdout + run.stderr
    platform.nsml("run", "-g", "0", "--metric", "auto", "--metric", SCORE, cwd=code)
    [name] = platform.nsml("ps", "-o", "name").stdout.split()
    wait_for(lambda: len(points(platform, name, "loss")) >= 20, what="the curve grows")
    platform.kill("agent")
    platform.up()
    wait_for(lambda: len(points(platform, name, "loss")) == 200, what="the next agent goes on")
    platform.nsml("sh", name, "--", "touch", "/app/go")
    platform.kill("agent")
    platform.up()
    wait_for(
        lambda: '"SUCCEEDED"' in platform.nsml("ps", "-a", "-o", "jsonl").stdout, what="it ends"
    )
    steps = [str(step) for step in range(1, 301)]
    assert [step for step, _ in points(platform, name, "loss")] == steps
    assert [float(value) for _, value in points(platform, name, "loss")] == [
        round(1 / step, 6) for step in range(1, 301)
    ]
    scores = [(str(step), str(step * 2)) for step in range(10, 301, 10)]
    assert [(s, str(int(float(v)))) for s, v in points(platform, name, "score")] == scores
    details = platform.nsml("status", "--explain", name).stdout
    assert "metrics from log" in details
    assert "--metric auto" in platform.nsml("command", name).stdout
    # The log says the same without having been asked while it ran, and stores nothing.
    read = points(platform, name, "loss", "--from-log", "auto")
    assert read == points(platform, name, "loss")
    assert points(platform, name, "acc", "--from-log", r"acc=acc=(\S+)") == points(
        platform, name, "acc"
    )
    drawn = platform.nsml(
        "plot", name, "--chart", "--from-log", r"other=score at (?P<step>\d+) is (\d+)"
    )
    assert "other" in drawn.stdout
    assert "from the log" in drawn.stderr
    again = platform.nsml("rerun", name, "--dry-run")
    assert "nothing changed" in again.stdout + again.stderr
