"""Loops with Accelerate as programs write them: what they log is recorded once, whatever `log_with` says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.echoes import run_echoed
from tests.support.torch_environment import REPORTERS, require_torch

imports = pytest.mark.long("it imports torch and Accelerate in each program")

PROGRAM = """
import os, sys, torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

class Mine(GeneralTracker):
    name, requires_logging_directory, tracker = "mine", False, None
    seen = []
    def log(self, values, step=None, **_):
        self.seen.append((values, step))

def train(number, log_with, loss):
    accelerator = Accelerator(log_with=log_with, cpu=True)
    accelerator.init_trackers("project", config={"lr": 0.1, "number": number, "deep": {"layers": (1, 2)}})
    for step in range(3):
        accelerator.log({loss: step / 2, "text": "x", "tensor": torch.tensor(1.5)}, step=step)
    if log_with == "nsml":
        accelerator.get_tracker("nsml").log({"direct": 1.0}, step=9)
    accelerator.end_training()
    return accelerator

train(1, None, "none")
train(2, Mine(), "other")
train(3, "nsml", "ours")
assert len(Mine.seen) == 3, Mine.seen
"""
SAVING = """
import os, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(torch.nn.Linear(2, 1), torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]))
first = 0
if os.path.isdir("out"):  # --resume_from_checkpoint latest
    folder = max(os.listdir("out"), key=lambda name: int(name[5:]))
    accelerator.load_state(f"out/{folder}")
    first = int(folder[5:])
    print(f"goes on from {folder}:", float(model.weight.sum()))
for step in range(first, first + 2):
    with torch.no_grad():
        model.weight.fill_(step + 1)
    accelerator.save_state(f"out/step_{step + 1}")
"""


@imports
def test_what_is_logged_is_recorded_once(tmp_path: Path) -> None:
    done = run_echoed(tmp_path, PROGRAM, REPORTERS, python=require_torch())
    assert done.returncode == 0, done.stderr
    assert "nsml: " not in done.stderr
    for loss in ("none", "other", "ours"):
        assert done.series(loss) == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert done.series("tensor") == [(step, 1.5) for _ in range(3) for step in range(3)]
    assert done.series("direct") == [(9, 1.0)]
    assert {one["origin"] for one in done.records("metric")} == {"accelerate"}
    assert done.config() == {"lr": 0.1, "number": 3, "deep": {"layers": [1, 2]}}
    assert len(done.records("config")) == 3


@imports
def test_saved_states_are_checkpoints_and_come_back(tmp_path: Path) -> None:
    first = run_echoed(tmp_path, SAVING, REPORTERS, python=require_torch(), NSML_ATTEMPT="1")
    assert first.returncode == 0, first.stderr
    assert [one["name"] for one in first.records("checkpoint")] == ["step_1", "step_2"]
    assert not (first.run_dir / "resumable.json").exists()  # it may ignore what is there
    shutil.rmtree(tmp_path / "out")  # as in another container
    resume = {"NSML_ATTEMPT": "2", "NSML_RESUME": "step_2"}
    second = run_echoed(tmp_path, SAVING, REPORTERS, python=require_torch(), **resume)
    assert second.returncode == 0, second.stderr
    assert second.stdout == "goes on from step_2: 4.0\n"
    names = [one["name"] for one in second.records("checkpoint")]
    assert names == ["step_1", "step_2", "step_3", "step_4"]
