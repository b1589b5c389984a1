"""Trainers of Transformers as programs use them: what they log, save and resume from, with no line on nsml in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nsml._leaving import EXIT_CODE
from tests.support.echoes import Echoed, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch
from tests.support.trainers import NOTICE, TRAINER

QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
    "NSML_ATTEMPT": "1",
}
imports = pytest.mark.long("it imports torch and Transformers in each program")


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


@imports
def test_all_that_a_trainer_logs_is_recorded(tmp_path: Path) -> None:
    program = (
        TRAINER
        + """
import copy, pickle
one = trainer()
[ours] = [one for one in one.callback_handler.callbacks if type(one).__name__ == "NsmlCallback"]
assert isinstance(ours, TrainerCallback)
assert type(pickle.loads(pickle.dumps(ours))) is type(copy.deepcopy(ours)) is type(ours)
import nsml._session
points, seen = nsml._session._SESSION.points, []
names = {"__name__": "nsml.probe", "points": points, "seen": seen, "step": points.step}
points.step = eval("lambda number: (seen.append((number, points._scope().get('mine'))), step(number))", names)

def main():
    mine = "a variable of the program"
    one.train()

main()
assert seen == [(number, "a variable of the program") for number in range(1, 13)], seen
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
        *("save_total_limit", "disable_tqdm", "use_cpu", "dataloader_pin_memory", "model"),
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


@pytest.mark.variant
@imports
def test_with_other_reporters_there_is_one_set_of_curves(tmp_path: Path) -> None:
    program = (
        TRAINER
        + """
one = trainer(report_to=["tensorboard", "wandb", "mlflow"], save_strategy="no")
one.train()
print(json.dumps(one.state.log_history))
"""
    )
    done = run(tmp_path, program, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    points = [point for point in done.points() if point[0].startswith(("train/", "eval/"))]
    whole = expected(json.loads(done.stdout.splitlines()[-1]))
    assert whole <= set(points)
    for name in ("train/loss", "train/learning_rate", "eval/loss"):
        series = done.series(name)
        assert len(series) == len(dict(series)), name  # one point of each step
    assert not any(name.count("train/loss") for name, _, _ in points if name != "train/loss")
    assert not {"loss", "eval_loss", "learning_rate"} & {name for name, *_ in done.points()}


@imports
def test_it_goes_on_after_a_preemption_as_if_nothing_had_been(tmp_path: Path) -> None:
    program = (
        TRAINER
        + NOTICE
        + """
one = trainer([Notice(6)], max_steps=12, save_total_limit=None, load_best_model_at_end=True, eval_steps=4)
one.train()
print(digest(one), one.state.global_step, one.state.best_model_checkpoint)
assert os.environ["NSML_ATTEMPT"] == "2"
whole = trainer(output_dir="whole", save_total_limit=None, load_best_model_at_end=True, eval_steps=4)
whole.train()  # all of it
print(digest(whole), whole.state.global_step, whole.state.best_model_checkpoint)
"""
    )
    first = run(tmp_path, program)
    assert first.returncode == EXIT_CODE, first.stderr
    assert json.loads((first.run_dir / "left.json").read_text()) == {"checkpoint": "checkpoint-7"}
    assert "saved checkpoint checkpoint-7 on notice: gives way" in first.stderr
    steps = [step for step, _ in first.series("train/loss")]
    assert steps == [2, 4, 6, 7]  # the last one says what the steps since the last log were
    shutil.rmtree(tmp_path / "out")  # as in another container
    (first.run_dir / "notice.json").unlink()
    second = run(tmp_path, program, NSML_ATTEMPT="2", NSML_RESUME="checkpoint-7")
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("goes on from checkpoint checkpoint-7") == 1
    resumed, whole = (line.split() for line in second.stdout.splitlines() if "checkpoint" in line)
    assert resumed[:2] == whole[:2]  # the same parameters
    assert resumed[2] == whole[2].replace("whole", "out")
    series = second.series("train/loss")
    assert [step for step, _ in series] == [*steps, 8, 10, 12]
    undisturbed = dict(second.series("whole/train/loss"))
    for step, loss in series:
        if step not in (7, 8):  # the mean of one step each
            assert loss == pytest.approx(undisturbed[step], abs=1e-6)
    names = [one["name"] for one in second.records("checkpoint")][:5]
    assert names == [
        "checkpoint-4",
        "checkpoint-7",
        "checkpoint-8",
        "checkpoint-12",
        "checkpoint-4",
    ]
    assert second.config()["output_dir"] == "whole"


@pytest.mark.variant
@imports
def test_processes_save_in_one_step_and_leave_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAINER
        + NOTICE
        + """
one = trainer([Notice(3)], max_steps=8, eval_strategy="no")
one.train()
print(digest(one), one.state.global_step, one.args.world_size)
"""
    )
    program = """
import os, sys
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
os.execv(sys.executable, [sys.executable, *torchrun])
"""
    first = run(tmp_path, program, NSML_ATTEMPT="1")
    assert first.returncode != 0
    assert json.loads((first.run_dir / "left.json").read_text()) == {"checkpoint": "checkpoint-5"}
    last = first.records("checkpoint")[-1]
    names = {name for name, _ in last["files"]}
    assert last["name"] == "checkpoint-5"
    assert names >= {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"}
    shutil.rmtree(tmp_path / "out")
    (first.run_dir / "notice.json").unlink()
    second = run(tmp_path, program, NSML_ATTEMPT="2", NSML_RESUME="checkpoint-5")
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("goes on from checkpoint checkpoint-5") == 1
    digests = [line.split() for line in second.stdout.splitlines() if len(line.split()) == 3]
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert digests[0][1:] == ["8", "2"]
    assert [step for step, _ in second.series("train/loss")] == [2, 4, 5, 6, 8]  # of one process
