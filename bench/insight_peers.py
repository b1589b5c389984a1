"""tensorboardX, W&B offline, Aim and MLflow on SQLite, doing what `bench.insight_reporting` does.

Part of `bench.insight`. Each is installed from PyPI into one throw-away environment of this interpreter, and
runs in a process of its own with a folder of its own: one metric a call, then steps of four metrics, for as
long as nsml had. Where a library has no call for several metrics, a step is four calls. What cannot be
installed or does not run is said on standard error and has no figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.insight_reporting import TIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INSTALLED_WITHIN_S: Final = 900
RUN_WITHIN_S: Final = 180

PACKAGES: Final = {
    "tensorboardx": "tensorboardX",
    "wandb": "wandb",
    "aim": "aim",
    "mlflow": "mlflow",
}

_FOLDER: Final = "import os, sys\nos.chdir(sys.argv[1])\n"
_SAY: Final = 'print("\\n" + json.dumps({"calls": timed(one), "steps": timed(four, close)}))\n'

PROGRAMS: Final = {
    "tensorboardx": """
from tensorboardX import SummaryWriter
writer = SummaryWriter("runs")
close = writer.close

def one(step):
    writer.add_scalar("train/loss", 1 / (1 + step), step)

def four(step):
    for name, value in zip(NAMES, values(step)):
        writer.add_scalar(name, value, step)
""",
    "wandb": """
import wandb
run = wandb.init(project="bench", mode="offline", dir=".", settings=wandb.Settings(silent=True))
close = run.finish

def one(step):
    run.log({"train/loss": 1 / (1 + step)})

def four(step):
    run.log(dict(zip(NAMES, values(step))))
""",
    "aim": """
from aim import Run
run = Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
close = run.close

def one(step):
    run.track(1 / (1 + step), name="train/loss", step=step)

def four(step):
    for name, value in zip(NAMES, values(step)):
        run.track(value, name=name, step=step)
""",
    "mlflow": """
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
mlflow.set_experiment("bench")
mlflow.start_run()
close = mlflow.end_run

def one(step):
    mlflow.log_metric("train/loss", 1 / (1 + step), step=step)

def four(step):
    mlflow.log_metrics(dict(zip(NAMES, values(step))), step=step)
""",
}
_NAMES: Final = 'NAMES = ("train/loss", "train/accuracy", "lr", "grad_norm")\n'


def measure(names: Sequence[str], *, before_each: Callable[[], None]) -> dict[str, float]:
    """Figures of those that run, as NAME.FIGURE; all are installed before the first runs."""
    with tempfile.TemporaryDirectory(prefix="nsml-peers-") as folder:
        place = Path(folder)
        pythons = {name: _installed(place / "venv", PACKAGES[name]) for name in names}
        found: dict[str, float] = {}
        for name, python in pythons.items():
            if python is None:
                continue
            before_each()
            (place / name).mkdir()
            found |= {f"{name}.{key}": value for key, value in _run(python, name, place)}
        return found


def _installed(environment: Path, package: str) -> str | None:
    python = environment / "bin/python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*command, package],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALLED_WITHIN_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _say(f"{package} cannot be installed", error)
        return None
    return str(python)


def _run(python: str, name: str, place: Path) -> list[tuple[str, float]]:
    program = _FOLDER + _NAMES + TIMED + PROGRAMS[name] + _SAY
    # Nothing of a user's own settings, and no word to anybody outside.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / name),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    try:
        done = subprocess.run(
            [python, "-c", program, str(place / name)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN_S,
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError) as error:
        _say(f"{name} does not run", error)
        return []
    return [
        ("report_calls_per_s", told["calls"][0]),
        ("report_steps_per_s", told["steps"][0]),
        ("written_points_per_s", told["steps"][1] * 4),
    ]


def _say(what: str, error: Exception) -> None:
    said = getattr(error, "stderr", None) or str(error)
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    last = (said.strip().splitlines() or [""])[-1]
    print(f"bench.insight: {what}: {last}", file=sys.stderr)
