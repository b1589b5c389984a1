"""Ray Tune and Ray Train: results of trials and reports of workers are recorded, with the real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.echoes import run_echoed
from tests.support.torch_environment import RAY, require_torch

pytestmark = [pytest.mark.variant, pytest.mark.timeout(280)]

TUNE = """
import ray
from ray import tune

def objective(config):
    for step in range(4):
        tune.report({"score": config["a"] * step, "deep": {"x": step}})

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
results = tune.Tuner(objective, param_space={"a": tune.grid_search([1, 2])}).fit()
print("best", results.get_best_result("score", "max").metrics["score"])
"""
TRAIN = """
import ray, ray.train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def loop():
    for step in range(4):
        rank = ray.train.get_context().get_world_rank()
        ray.train.report({"loss": 1 / (1 + step), "rank": rank})

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})
DataParallelTrainer(loop, scaling_config=scaling).fit()
"""


def test_each_trial_has_its_curves_and_its_configuration(tmp_path: Path) -> None:
    done = run_echoed(tmp_path, TUNE, RAY, python=require_torch())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "best 6"
    for number in (0, 1):
        steps = range(4)
        expected = [(step + 1, (number + 1) * step) for step in steps]
        assert done.series(f"trial_0000{number}/score") == expected
        assert done.series(f"trial_0000{number}/deep/x") == [(step + 1, step) for step in steps]
    assert {name.split("/", 1)[1] for name, *_ in done.points()} == {"score", "deep/x"}
    configs = {(one["run"], one["values"]["a"]) for one in done.records("config")}
    assert configs == {("trial_00000", 1), ("trial_00001", 2)}


def test_the_reports_of_rank_0_are_recorded(tmp_path: Path) -> None:
    done = run_echoed(tmp_path, TRAIN, RAY, python=require_torch())
    assert done.returncode == 0, done.stderr
    assert done.series("loss") == [(step + 1, 1 / (1 + step)) for step in range(4)]
    assert done.series("rank") == [(step + 1, 0) for step in range(4)]
