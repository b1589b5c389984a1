"""Trainers of Transformers as programs use them: what they log, save and resume from, with no line on nsml in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsml._leaving import EXIT_CODE
from tests.support.echoes import LIMIT_S, Echoed, environment_of, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch

TRAINER = """
import json, os, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

class Words(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.words = torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(seed))
    def __len__(self):
        return len(self.words)
    def __getitem__(self, number):
        return {"input_ids": self.words[number], "labels": self.words[number]}

def trainer(callbacks=(), seed=1, **more):
    set_seed(seed)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=8, bos_token_id=0, eos_token_id=0)
    given = dict(
        output_dir="out", max_steps=12, logging_steps=2, eval_strategy="steps", eval_steps=6, save_strategy="steps",
        save_steps=4, save_total_limit=2, per_device_train_batch_size=4, report_to="none", disable_tqdm=True,
        use_cpu=True, learning_rate=1e-3, hub_token="hidden",
    )
    args = TrainingArguments(**{**given, **more})
    return Trainer(
        GPT2LMHeadModel(config), args, train_dataset=Words(64, 1), eval_dataset=Words(8, 2), callbacks=list(callbacks)
    )

def digest(trainer):
    import hashlib
    parts = (value.numpy().tobytes() for _, value in sorted(trainer.model.state_dict().items()))
    return hashlib.sha256(b"".join(parts)).hexdigest()
"""
NOTICE = """
class Notice(TrainerCallback):
    "Gives notice at the end of a step, as the agent does."
    def __init__(self, at, goes=True):
        self.at, self.goes = at, goes
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.at and os.environ["NSML_ATTEMPT"] == "1" and state.is_world_process_zero:
            run = os.environ["NSML_RUN_DIR"]
            with open(f"{run}/staged", "w") as file:
                json.dump({"goes": self.goes, "reason": "gives way"}, file)
            os.rename(f"{run}/staged", f"{run}/notice.json")
            import time
            time.sleep(0.3)  # a notice is looked for four times a second
"""
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "NSML_ATTEMPT": "1"}


def run(folder: Path, program: str, **more: str) -> Echoed:
    return run_echoed(folder, program, REPORTERS, python=require_torch(), **{**QUIET, **more})


def expected(history: list[dict[str, Any]]) -> set[tuple[str, int, float]]:
    """The points of a Trainer's own history, by the names of its callbacks for W&B and TensorBoard."""
    found = set()
    for logs in history:
        for name, value in logs.items():
            place = f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}"
            found |= {(place, logs["step"], value)} if name != "step" else set()
    return found


def test_all_that_a_trainer_logs_is_recorded(tmp_path: Path) -> None:
    program = (
        TRAINER
        + """
import copy, pickle
one = trainer()
[ours] = [one for one in one.callback_handler.callbacks if type(one).__name__ == "NsmlCallback"]
assert isinstance(ours, TrainerCallback)
assert type(pickle.loads(pickle.dumps(ours))) is type(copy.deepcopy(ours)) is type(ours)
one.train()
one.predict(Words(8, 3))
print(json.dumps(one.state.log_history))
assert sorted(os.listdir("out")) == ["checkpoint-12", "checkpoint-8"], os.listdir("out")
assert "nsml" not in open("out/checkpoint-12/trainer_state.json").read().lower()
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "nsml: " not in done.stderr
    history = json.loads(done.stdout.splitlines()[-1])
    points = done.points()
    assert {point for point in points if not point[0].startswith("test/")} == expected(history)
    assert [step for step, _ in done.series("train/loss")] == [2, 4, 6, 8, 10, 12]
    assert [step for step, _ in done.series("eval/loss")] == [6, 12]
    assert [step for step, _ in done.series("test/loss")] == [12]
    assert {name for name, _, _ in points} >= {"train/learning_rate", "train/train_runtime"}
    summary = {name for one in done.records("metric") if one["summary"] for name in one["values"]}
    assert summary == {"train/loss", "eval/loss"}
    assert {one["origin"] for one in done.records("metric")} == {"transformers"}
    config = done.config()
    assert config["learning_rate"] == 1e-3
    assert config["model"]["model_type"] == "gpt2"
    assert config["model"]["n_layer"] == 2
    assert config["model"]["num_parameters"] > 5_000
    assert set(config) == {
        *("learning_rate", "per_device_train_batch_size", "num_train_epochs", "output_dir", "seed"),
        *("max_steps", "logging_steps", "eval_strategy", "eval_steps", "save_steps"),
        *("save_total_limit", "disable_tqdm", "use_cpu", "model"),
    }
    assert "hidden" not in json.dumps(config)
    checkpoints = done.records("checkpoint")
    assert [(one["name"], one["step"]) for one in checkpoints] == [
        (f"checkpoint-{step}", step) for step in (4, 8, 12)
    ]
    assert set(checkpoints[-1]["summary"]) == {"train/loss", "eval/loss"}
    names = {name for name, _ in checkpoints[-1]["files"]}
    assert names >= {"config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"}
    resumable = json.loads((done.run_dir / "resumable.json").read_text())
    assert resumable == {"save": False, "load": True}  # since it has ended


def test_it_goes_on_after_a_preemption_as_if_nothing_had_been(tmp_path: Path) -> None:
    program = (
        TRAINER
        + NOTICE
        + """
one = trainer([Notice(6)], load_best_model_at_end=False)
one.train()
print(digest(one), one.state.global_step)
"""
    )
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    whole.mkdir()
    moved.mkdir()
    undisturbed = run(whole, program, NSML_ATTEMPT="0")
    assert undisturbed.returncode == 0, undisturbed.stderr
    first = run(moved, program)
    assert first.returncode == EXIT_CODE, first.stderr
    assert json.loads((first.run_dir / "left.json").read_text()) == {"checkpoint": "checkpoint-7"}
    assert "saved checkpoint checkpoint-7 on notice: gives way" in first.stderr
    steps = [step for step, _ in first.series("train/loss")]
    assert steps == [2, 4, 6, 7]  # the last one says what the steps since the last log were
    shutil.rmtree(moved / "out")  # as in another container
    (first.run_dir / "notice.json").unlink()
    second = run(moved, program, NSML_ATTEMPT="2", NSML_RESUME="checkpoint-7")
    assert second.returncode == 0, second.stderr
    assert "goes on from checkpoint checkpoint-7" in second.stderr
    assert second.stdout == undisturbed.stdout  # the same parameters
    assert [step for step, _ in second.series("train/loss")] == [*steps, 8, 10, 12]
    alike = dict(undisturbed.series("train/loss"))
    for step, loss in second.series("train/loss"):
        if step not in (7, 8):  # the mean of one step each
            assert loss == pytest.approx(alike[step], abs=1e-6)
    names = [one["name"] for one in second.records("checkpoint")]
    assert names == ["checkpoint-4", "checkpoint-7", "checkpoint-8", "checkpoint-12"]
