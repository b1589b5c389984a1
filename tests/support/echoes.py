"""Programs that report to other libraries, run as in a session: the SDK in PYTHONPATH, and a run folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nsml._frames import parse
from nsml._install import write_sdk

LIMIT_S: Final = 240
"""So long may a program take, most of it to import libraries on a busy machine, in seconds."""


@dataclass(frozen=True, slots=True)
class Echoed:
    """A program that has ended: its output, and the records of its session."""

    returncode: int
    stdout: str
    stderr: str
    run_dir: Path

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind, of all processes."""
        return records_in(self.run_dir, kind)

    def points(self) -> list[tuple[str, float | None, Any]]:
        """Name, step and value of each recorded number, in order."""
        return [
            (name, one["step"], value)
            for one in self.records("metric")
            for name, value in one["values"].items()
        ]

    def series(self, name: str) -> list[tuple[float | None, Any]]:
        """Steps and values of one metric."""
        return [(step, value) for found, step, value in self.points() if found == name]

    def config(self) -> dict[str, Any]:
        """The configuration of all records, as it is in the end."""
        found: dict[str, Any] = {}
        for one in self.records("config"):
            found |= one["values"]
        return found


def records_in(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """All records of a kind in a run folder, also while programs write there."""
    found = []
    for path in sorted(run_dir.glob("spool/*.records")):
        found += [json.loads(payload) for _, payload in parse(path.read_bytes())[0]]
    return [record for record in found if record["kind"] == kind]


def environment_of(folder: Path, *paths: Path, **more: str) -> dict[str, str]:
    """The environment of a session whose run folder is `folder`/run; `paths`: before all others of PYTHONPATH."""
    sdk = folder / "sdk"
    if not sdk.exists():
        write_sdk(sdk)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, (sdk, *paths))),
        "NSML_RUN_DIR": str(folder / "run"),
        "NSML_SESSION_NAME": "anna/digits/3",
        "OMP_NUM_THREADS": "1",  # tests run beside each other
        **more,
    }


def run_echoed(
    folder: Path, program: str, *paths: Path, python: str = sys.executable, **more: str
) -> Echoed:
    """Run a program in `folder` as in a session.

    Args:
        folder: of the test; it becomes the program's home and working directory.
        program: its text.
        paths: further entries of PYTHONPATH, such as `torch_environment.REPORTERS`.
        python: the interpreter.
        more: further variables.
    """
    (folder / "main.py").write_text(program)
    done = subprocess.run(
        [python, "main.py"],
        cwd=folder,
        env=environment_of(folder, *paths, **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Echoed(done.returncode, done.stdout, done.stderr, folder / "run")
