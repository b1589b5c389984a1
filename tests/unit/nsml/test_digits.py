"""The digits example learns, on the platform's terms and without the platform."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nsml._frames import parse
from nsml._install import write_sdk

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples/digits"


def train(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-u", str(DIGITS / "main.py"), *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def held_out_accuracy(output: str) -> float:
    (accuracy,) = re.findall(r"held-out digits:.*accuracy ([\d.]+)", output)
    return float(accuracy)


def test_the_data_is_what_its_page_says() -> None:
    for split, count in (("train", 1438), ("test", 359)):
        images = np.loadtxt(DIGITS / f"data/{split}/{split}_data", delimiter=",")
        labels = np.loadtxt(DIGITS / f"data/{split}/{split}_label")
        assert images.shape == (count, 64)
        assert (images.min(), images.max()) == (0, 16)
        assert labels.shape == (count,)
        assert set(labels) == set(range(10))
    assert "CC BY 4.0" in (DIGITS / "data/README.md").read_text()


def test_plain_python_reads_at_least_95_percent_of_the_held_out_digits(tmp_path: Path) -> None:
    output = train(tmp_path, "--epochs", "20", "--lr", "0.1")
    assert held_out_accuracy(output) >= 0.95
    assert train(tmp_path, "--epochs", "20", "--lr", "0.1") == output, "not repeatable"


@pytest.fixture
def session(tmp_path: Path) -> dict[str, str]:
    """The environment of a session, with the SDK as the agent lays it out and a copy of the data."""
    write_sdk(tmp_path / "sdk")
    return {
        "PYTHONPATH": str(tmp_path / "sdk"),
        "NSML_RUN_DIR": str(tmp_path / "run"),
        "NSML_SESSION_NAME": "anna/digits/1",
        "NSML_DATASET_NAME": "digits",
        "NSML_DATASET_PATH": str(DIGITS / "data"),
    }


def test_a_session_reports_each_epoch_and_saves_each_fifth_and_the_best(
    tmp_path: Path, session: dict[str, str]
) -> None:
    train(tmp_path, "--epochs", "10", "--lr", "0.1", **session)
    frames, _ = parse((tmp_path / "run/spool/1.records").read_bytes())
    records = [json.loads(payload) for _, payload in frames]
    metrics = [record for record in records if record["kind"] == "metric"]
    assert [record["step"] for record in metrics] == [*range(1, 11), 10]
    assert all(record["summary"] for record in metrics)
    assert {"train/loss", "train/accuracy", "val/accuracy"} <= metrics[0]["values"].keys()
    assert metrics[-1]["values"].keys() == {"test/loss", "test/accuracy"}
    assert metrics[9]["values"]["train/loss"] < metrics[0]["values"]["train/loss"]
    names = [record["name"] for record in records if record["kind"] == "checkpoint"]
    assert [name for name in names if name != "best"] == ["5", "10"]
    assert names[0] == "best"


def test_a_resumed_session_ends_where_an_unbroken_one_does(
    tmp_path: Path, session: dict[str, str]
) -> None:
    unbroken = train(tmp_path, "--epochs", "8", **session)
    train(tmp_path, "--epochs", "5", **session)
    resumed = train(tmp_path, "--epochs", "8", "--pause", "1", "--iteration", "5", **session)
    assert resumed.startswith("Paused.\nepoch   6/8")
    assert resumed.splitlines()[-4:] == unbroken.splitlines()[-4:]


def test_mode_test_only_measures(tmp_path: Path, session: dict[str, str]) -> None:
    train(tmp_path, "--epochs", "5", **session)
    output = train(tmp_path, "--mode", "test", "--pause", "1", "--iteration", "best", **session)
    assert "epoch" not in output
    assert held_out_accuracy(output) > 0.8


def test_hidden_held_out_digits_are_no_error(tmp_path: Path, session: dict[str, str]) -> None:
    hidden = tmp_path / "data"
    hidden.mkdir()
    (hidden / "train").symlink_to(DIGITS / "data/train")
    output = train(tmp_path, "--epochs", "1", **{**session, "NSML_DATASET_PATH": str(hidden)})
    assert "not visible" in output
