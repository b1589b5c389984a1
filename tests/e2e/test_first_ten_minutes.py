"""The README's commands, as whole processes, on real data."""

import csv
import subprocess
import sys

import pytest

from bench.platform import ROOT
from nsml.client import contexts
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.living_folders import files_below


@pytest.fixture(scope="module")
def trained(platform: Platform) -> str:
    platform.nsml("dataset", "push", "digits", str(ROOT / "examples/digits/data"))
    done = platform.nsml(
        *("run", "-d", "digits", "-g", "1", "-a", "--epochs 20 --lr 0.1", "-m", "first try"),
        cwd=ROOT / "examples/digits",
    )
    assert "started" in done.stdout + done.stderr
    platform.nsml("logs", "-f", "@last", timeout_s=300)
    name = platform.nsml("ps", "-a", "-o", "name").stdout.split()[0]
    wait_for(lambda: session(platform, name)["state"] == "SUCCEEDED", what="training ended well")
    return name


def session(platform: Platform, name: str) -> dict:
    return next(item for item in platform.json("ps", "-a")["items"] if item["name"] == name)


@pytest.mark.every_time
def test_training_reaches_its_accuracy(platform, trained):
    summary = session(platform, trained)["summary"]
    assert max(value for key, value in summary.items() if "accuracy" in key) >= 0.95


def test_logs_are_there_after_the_end(platform, trained):
    logs = platform.nsml("logs", trained).stdout
    assert "epoch" in logs.lower()
    assert platform.nsml("logs", trained).stdout == logs


def test_metrics_are_there_one_a_report(platform, trained):
    lines = platform.nsml("eventlen", trained, "-o", "csv").stdout.splitlines()
    counts = {row["name"]: row["count"] for row in csv.DictReader(lines)}
    assert counts["train/loss"] == counts["val/accuracy"] == "20", counts


def test_a_checkpoint_can_be_pulled(platform, trained, tmp_path):
    models = platform.json("model", "ls", trained)["items"]
    assert {"best"} <= {model["name"] for model in models}
    assert all(model["state"] == "DURABLE" for model in models)
    platform.nsml("model", "pull", trained, "best", str(tmp_path))
    folder = tmp_path / trained.replace("/", "_") / "best" / "model"
    pulled = list(files_below(folder))
    assert sum(path.stat().st_size for path in pulled) > 0


def test_every_screen_says_simulated(platform, trained):
    for command in (["ps", "-a"], ["gpustat"], ["status"]):
        assert "simulated" in platform.nsml(*command).stdout.lower(), command


def test_another_session_is_stopped(platform, tmp_path):
    write_program(tmp_path / "code", "import time\nprint('on', flush=True)\ntime.sleep(3600)\n")
    platform.nsml("run", "-g", "1", cwd=tmp_path / "code")
    name = platform.nsml("ps", "-o", "name").stdout.split()[0]
    wait_for(lambda: platform.nsml("logs", name).stdout == "on\n", what="it runs")
    platform.nsml("stop", name, "-y")
    wait_for(lambda: session(platform, name)["state"] == "STOPPED", what="it is stopped")
    again = platform.nsml("stop", name, "-y", check=False)
    assert again.returncode == 6, again.stderr


def test_the_command_line_can_be_repeated(platform, trained):
    command = platform.nsml("command", trained).stdout
    assert command.startswith("nsml run")
    assert "--epochs 20 --lr 0.1" in command


def test_a_script_needs_only_the_contract(platform):
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    assert context.token_file
    script = ROOT / "examples/clients/submit_and_watch.py"
    done = subprocess.run(
        [sys.executable, str(script), context.server, context.token_file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train/loss step 4: 0.2000" in done.stdout
    assert "ended SESSION_STATE_SUCCEEDED" in done.stdout
