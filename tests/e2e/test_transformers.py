"""A Trainer of Transformers on a real platform: preempted, it goes on, with no line on nsml in the program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.torch_environment import REPORTERS, require_torch
from tests.support.trainers import TRAINER

PROGRAM = (
    f"""\
import sys
sys.path.insert(0, {str(REPORTERS)!r})
"""
    + TRAINER
    + """
import time

class Held(TrainerCallback):
    "The sixth step of the first attempt ends once the platform has asked for the GPU."
    def on_step_begin(self, args, state, control, **_):
        notice = os.path.join(os.environ["NSML_RUN_DIR"], "notice.json")
        while state.global_step == 5 and os.environ["NSML_ATTEMPT"] == "1" and not os.path.exists(notice):
            time.sleep(0.05)

trainer([Held()], max_steps=12, logging_steps=1, save_strategy="no").train()
"""
)
LIMIT_S = 240
"""So long may an attempt take, most of it to import on a busy machine, in seconds."""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    options = ["--isolation", "none"]  # what is installed here is where other levels see nothing
    with Platform(simulate_gpus=1, options=options) as running:
        yield running


@pytest.mark.variant
@pytest.mark.timeout(60 + 2 * LIMIT_S)
@pytest.mark.long("two attempts import torch and Transformers")
def test_a_preempted_trainer_goes_on(platform: Platform, tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", PROGRAM)
    python = require_torch()
    platform.nsml(
        "run", "-g", "1", "--env", "OMP_NUM_THREADS=1", "--argv", "--", python, "main.py", cwd=code
    )
    name = platform.nsml("ps", "-o", "name").stdout.split()[0]

    def shown() -> dict[str, object]:
        session = next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)
        assert session["state"] != "FAILED", platform.nsml("logs", name, check=False).stdout
        return session

    wait_for(lambda: shown()["resumable"], timeout_s=LIMIT_S, what="it can be resumed")
    platform.nsml("requeue", name)
    wait_for(lambda: shown()["state"] == "SUCCEEDED", timeout_s=LIMIT_S, what="it came to its end")
    assert shown()["attempt"] == 2
    first = platform.nsml("logs", name, "--attempt", "1").stdout
    assert "saved checkpoint checkpoint-" in first
    assert "goes on from checkpoint checkpoint-" in platform.nsml("logs", name).stdout
    told = platform.nsml("events", name, "train/loss", "-o", "csv").stdout
    steps = [int(float(row["step"])) for row in csv.DictReader(io.StringIO(told))]
    assert steps == list(range(1, 13))
    assert "checkpoint-" in platform.nsml("model", "ls", name).stdout
