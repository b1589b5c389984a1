"""What reports to other libraries cost with their echo: microseconds of one call, with and without hooks in the same run.

python -m bench.echo [--json]

Needs the environment of `make torch`. Each library is a program in `PROGRAMS`: it defines `call(step)`, which is timed.
Also: seconds until 100 MB of event files are recorded, and until a platform that was started for this answers with a
point of a script. The other figures are processor time, the least of many rounds: a busy machine changes them little.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.insight_reporting import watched
from bench.platform import Platform
from bench.report import percentile, report
from nsml._echo._event_files import EventReader
from nsml._install import write_sdk
from nsml.client import contexts
from nsml.client.connect import connect
from nsml.tensorboard import tfevents
from tests.support.torch_environment import REPORTERS

PYTHON: Final = REPORTERS.parent / "bin/python"
ROUNDS: Final = 3
"""Processes of each program, with and without hooks in turn."""
POINTS: Final = 300_000
BACKLOG_BYTES: Final = 100_000_000

PROGRAMS: Final = {
    "tensorboard": """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("logs")
def call(step):
    writer.add_scalar("train/loss", 0.125, step)
""",
    "tensorboardX": """
from tensorboardX import SummaryWriter
writer = SummaryWriter("logs")
def call(step):
    writer.add_scalar("train/loss", 0.125, step)
""",
    "wandb": """
import wandb
run = wandb.init(mode="offline")
def call(step):
    run.log({"train/loss": 0.125})
""",
    "mlflow": """
import mlflow
mlflow.start_run()
def call(step):
    mlflow.log_metric("train/loss", 0.125, step=step)
""",
    "nsml_report": """
import nsml
def call(step):
    nsml.report(step=step, train__loss=0.125)
""",
}
"""Programs by name of the library. Add one here to measure it."""
TIMED: Final = """
import gc, os, time
rounds = []
for number in range(21):
    gc.collect()
    begin = time.thread_time_ns()
    for step in range(100 * number, 100 * number + 100):
        call(step)
    rounds.append((time.thread_time_ns() - begin) / 100 / 1000)
print(min(rounds[1:]), flush=True)
os._exit(0)
"""
"""Processor time of the calling thread: the library writes in another one, and the machine may be busy."""
WRITE: Final = """
import os
file = os.open("records", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
data = bytes(140)
def call(step):
    os.write(file, data)
"""
"""What no record can be without: one system call."""
FOLLOW: Final = """
import sys, time
from nsml._echo._follow import Follower, _File
follower = Follower(sys.argv[1], 0, 0.0)
with open(sys.argv[2], "rb", buffering=0) as file:
    follower._files[0, 0] = _File(file, "logs")
    begin = time.process_time()
    follower.read()
    print(time.process_time() - begin)
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    report(figures | script_to_curve())


def measure(folder: Path) -> dict[str, float]:
    """What calls take, and a backlog."""
    write_sdk(folder / "sdk")
    figures: dict[str, float] = {}
    for name, program in PROGRAMS.items():
        taken: dict[str, list[float]] = {"none": [], "all": []}
        for round_number in range(ROUNDS):
            for chosen, rounds in taken.items():  # in turn
                rounds.append(call_us(folder / f"{name}-{chosen}-{round_number}", program, chosen))
        without, hooked = (min(rounds) for rounds in taken.values())
        figures |= {
            f"{name}_us": without,
            f"{name}_echoed_us": hooked,
            f"{name}_added_us": hooked - without,
        }
    figures["write_us"] = call_us(folder / "write", WRITE, "none")
    figures["event_file_points_per_s"] = points_per_s()
    figures["backlog_100_mb_s"] = min(
        backlog_s(folder / f"backlog-{number}") for number in range(ROUNDS)
    )
    return figures


def call_us(folder: Path, program: str, chosen: str) -> float:
    """Return what a call takes, in a session folder of its own."""
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join((str(folder.parent / "sdk"), str(REPORTERS))),
        "NSML_RUN_DIR": str(folder / "run"),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    if chosen != "all":
        environment["NSML_ECHO"] = chosen
    (folder / "main.py").write_text(program + TIMED)
    done = subprocess.run(
        [str(PYTHON), "main.py"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.splitlines()[-1])


def backlog_s(folder: Path) -> float:
    """Return the processor time from event files of 100 MB to their records, extrapolated from a tenth."""
    folder.mkdir()
    data = event_file(POINTS)[: BACKLOG_BYTES // 10]
    (folder / "events").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(folder / "run"), str(folder / "events")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder.parent / "sdk")},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout) * BACKLOG_BYTES / len(data)


def script_to_curve() -> dict[str, float]:
    """Seconds from `nsml.report` in a script to the answer of the platform that has the point."""

    async def waits_ms() -> list[float]:
        context = contexts.choose(contexts.load(platform.environment), platform.environment)
        async with connect(context) as client:
            return await watched(client)

    with Platform(options=["--embedded"]) as platform:
        waits = asyncio.run(waits_ms())
    return {
        "script_to_curve_p50_s": percentile(waits, 0.5) / 1000,
        "script_to_curve_max_s": max(waits) / 1000,
    }


def event_file(points: int) -> bytes:
    """Return an event file of a metric."""
    return tfevents.head(1e9) + b"".join(
        tfevents.scalar("train/loss", 0.5, step=step, wall_time_s=1e9 + step)
        for step in range(points)
    )


def points_per_s() -> float:
    """Return how many scalars of an event file are read in a second of processor time."""
    data = event_file(POINTS)
    rates = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        count = sum(map(len, EventReader().read(io.BytesIO(data))))
        rates.append(count / (time.process_time() - begin))
    return max(rates)


if __name__ == "__main__":
    main()
