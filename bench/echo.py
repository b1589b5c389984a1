"""What reports to other libraries cost with their echo: microseconds of one call, with and without hooks in the same run.

python -m bench.echo [--json]

Needs the environment of `make torch`. Each library is a program in `PROGRAMS`: it defines `call(step)`, which is timed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from nsml._echo._event_files import EventReader
from nsml._install import write_sdk
from nsml.tensorboard import tfevents
from tests.support.torch_environment import REPORTERS

PYTHON: Final = REPORTERS.parent / "bin/python"
ROUNDS: Final = 5
CALLS: Final = 2_000
POINTS: Final = 300_000

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
}
"""Programs by name of the library. Add one here to measure it."""
TIMED: Final = """
import gc, time
for step in range({calls}):
    call(step)
gc.collect()
begin = time.thread_time_ns()
for step in range({calls}, 2 * {calls}):
    call(step)
print((time.thread_time_ns() - begin) / {calls} / 1000)
"""
"""Processor time of the calling thread: the library writes in another one, and the machine may be busy."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    if options.json:
        host = {"python": platform.python_version(), "cpus": os.cpu_count() or 0}
        print(json.dumps({"figures": figures, "peers": {}, "host": host}))
    else:
        for name, value in figures.items():
            print(f"{name:40} {value:14.2f}")


def measure(folder: Path) -> dict[str, float]:
    """All figures."""
    write_sdk(folder / "sdk")
    figures: dict[str, float] = {}
    for name, program in PROGRAMS.items():
        taken: dict[str, list[float]] = {"none": [], "all": []}
        for round_number in range(ROUNDS):
            for chosen, rounds in taken.items():  # in turn
                rounds.append(call_us(folder / f"{name}-{chosen}-{round_number}", program, chosen))
        without, hooked = (statistics.median(rounds) for rounds in taken.values())
        figures |= {
            f"{name}_us": without,
            f"{name}_echoed_us": hooked,
            f"{name}_added_us": hooked - without,
        }
    figures["event_file_points_per_s"] = points_per_s()
    return figures


def call_us(folder: Path, program: str, chosen: str) -> float:
    """Return what a call takes, in a session folder of its own."""
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join((str(folder.parent / "sdk"), str(REPORTERS))),
        "NSML_RUN_DIR": str(folder / "run"),
    }
    if chosen != "all":
        environment["NSML_ECHO"] = chosen
    (folder / "main.py").write_text(program + TIMED.format(calls=CALLS))
    done = subprocess.run(
        [str(PYTHON), "main.py"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.splitlines()[-1])


def points_per_s() -> float:
    """Return how many scalars of an event file are read in a second of processor time."""
    data = tfevents.head(1e9) + b"".join(
        tfevents.scalar("train/loss", 0.5, step=step, wall_time_s=1e9 + step)
        for step in range(POINTS)
    )
    rates = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        count = sum(map(len, EventReader().read(io.BytesIO(data))))
        rates.append(count / (time.process_time() - begin))
    return max(rates)


if __name__ == "__main__":
    main()
