"""What the SDK costs training: nanoseconds per report, milliseconds of `import nsml`.

python -m bench.sdk [--json]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import report
from nsml._install import write_sdk

REPORTS = 20_000
STEPS = 1_000_000
STARTS = 15

REPORTING = """
import time, nsml
report = nsml.report
report(step=0, train__loss=1.0)
rounds = []
for _ in range(5):
    begin = time.perf_counter_ns()
    for step in range({count}):
        report(summary=True, step=step, train__loss=0.125, train__accuracy=0.875)
    rounds.append((time.perf_counter_ns() - begin) / {count})
print(min(rounds))
"""


STEPPING = """
import time, nsml
step = nsml.step
knob = nsml.knob
def unused(number): pass
def read(number): knob("lr", 0.01, min=0.0, max=1.0)
rounds, bare, reads = [], [], []
for _ in range(5):
    for call, to in ((step, rounds), (unused, bare), (read, reads)):
        begin = time.perf_counter_ns()
        for number in range({count}):
            call(number)
        to.append((time.perf_counter_ns() - begin) / {count})
print(min(rounds), min(bare), min(reads) - min(bare))
"""
"""A safe point at which nothing is asked, beside a function that does nothing, and the read of a knob."""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        report(measure(Path(folder)))


def measure(folder: Path) -> dict[str, float]:
    """The figures, in a session folder below `folder`."""
    write_sdk(folder / "sdk")
    on_platform = {"PYTHONPATH": str(folder / "sdk"), "NSML_RUN_DIR": str(folder / "run")}
    environment = {**os.environ, **on_platform}
    reporting = REPORTING.format(count=REPORTS)
    per_report = float(run([sys.executable, "-c", reporting], environment))
    run_folder = folder / "run"
    run_folder.mkdir(exist_ok=True)
    (run_folder / "orders").write_bytes(bytes(64))
    stepping = STEPPING.format(count=STEPS)
    per_step, per_call, per_knob = map(
        float, run([sys.executable, "-c", stepping], environment).split()
    )
    base, imported, reported = [], [], []
    run([sys.executable, "-c", "import nsml; nsml.report(a=1)"], environment)
    for _ in range(STARTS):
        base.append(start_ms("pass", {**os.environ}))
        imported.append(start_ms("import nsml", environment))
        reported.append(start_ms("import nsml; nsml.report(a=1)", environment))
    return {
        "ns_per_report": per_report,
        "ns_per_step": per_step,
        "ns_per_knob": per_knob,
        "ns_per_bare_call": per_call,
        "import_ms": statistics.median(imported) - statistics.median(base),
        "first_report_ms": statistics.median(reported) - statistics.median(imported),
        "python_ms": statistics.median(base),
    }


def start_ms(program: str, environment: dict[str, str]) -> float:
    """How long a fresh interpreter takes for `program`."""
    begin = time.perf_counter()
    run([sys.executable, "-c", program], environment)
    return (time.perf_counter() - begin) * 1000


def run(command: list[str], environment: dict[str, str]) -> str:
    """Its standard output; a failure raises."""
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
