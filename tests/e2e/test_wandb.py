"""A script that reports to W&B, unmodified and without an account, has curves while it runs: on a real platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.torch_environment import REPORTERS, require_torch

PROGRAM = """\
import time
import wandb

run = wandb.init(project="digits", config={"lr": 0.02})
for step in range(10_000):
    run.log({"train/loss": 1 / (step + 1), "wandb_runs": 1})
    time.sleep(0.2)
"""


@pytest.mark.long("W&B loads for seconds and starts a service of its own")
def test_a_script_for_w_and_b_has_curves_while_it_runs(tmp_path: Path) -> None:
    python = require_torch()
    # What is installed here is where other levels of isolation see nothing.
    with Platform(simulate_gpus=1, options=["--isolation", "none"]) as platform:
        code = write_program(tmp_path / "code", PROGRAM)
        options = ("-g", "0", "--env", f"PYTHONPATH={REPORTERS}", "--argv", "--", python, "main.py")
        platform.nsml("run", *options, cwd=code)
        [name] = platform.nsml("ps", "-o", "name").stdout.split()

        def is_drawn() -> str:
            drawn = platform.nsml("plot", name, "-m", "train/loss", "--table", check=False)
            return drawn.stdout if drawn.returncode == 0 and "train/loss" in drawn.stdout else ""

        wait_for(is_drawn, what="a curve of train/loss")
        assert "Running" in platform.nsml("ps").stdout
        chart = platform.nsml("plot", name, "-m", "train/loss", "--chart").stdout
        assert "train/loss" in chart
        platform.nsml("stop", "-y", name)
