"""A machine of the tests: whole programs on a data folder and a configuration of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cli.local import processes
from cli.local.processes import Program
from tests.support.in_process import look, only_looks
from tests.support.said import words_of

NSML = Path(sys.executable).parent / "nsml"


class Machine:
    """A data folder and a configuration of their own.

    Attributes:
        refused: what the last command that failed said, for what a failing test says.
    """

    def __init__(self, folder: Path) -> None:
        self.refused = ""
        self.data = folder / "data"
        self.config = folder / "config"

    def nsml(
        self,
        *arguments: str,
        stdin: str = "",
        cwd: Path | None = None,
        program: Sequence[str] = (str(NSML),),
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        own = {**self._environment(), **environment}
        is_here = program == (str(NSML),) and not stdin and only_looks(arguments)
        done = (look(arguments, own) if is_here else None) or subprocess.run(
            [*program, *arguments],
            env=own,
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return self._noted(done, arguments)

    def _noted(
        self, done: subprocess.CompletedProcess[str], arguments: Sequence[str]
    ) -> subprocess.CompletedProcess[str]:
        if done.returncode != 0:
            words = "; ".join(line.strip() for line in done.stderr.splitlines()[-3:])
            self.refused = f"nsml {' '.join(arguments[:2])} ended with {done.returncode}: {words}"
        return done

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that the test ends, or waits for."""
        return subprocess.Popen(
            [str(NSML), *arguments], env=self._environment(), stderr=subprocess.PIPE, text=True
        )

    def _environment(self) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("NSML_")}
        return {**base, "NSML_DATA": str(self.data), "NSML_CONFIG_DIR": str(self.config)}

    def up(self, *arguments: str, embedded: bool = True):
        kind = ["--embedded"] if embedded and "--etcd" not in arguments else []
        return self.nsml("up", "--no-agent", *kind, *arguments)

    def program(self) -> Program:
        found = processes.recorded(self.data / "controlplane.pid")
        assert found is not None
        return found

    def ready(self) -> dict[str, str]:
        return json.loads((self.data / "controlplane" / "ready.json").read_text())

    def leftovers(self) -> list[str]:
        """Command lines of processes that work in the data folder or name it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                program = processes.find(int(entry.name))
                if program and program.is_alive and processes._belongs_to(program.pid, self.data):
                    found.append((entry / "cmdline").read_bytes().decode())
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.nsml("down", "-y")
    assert made.leftovers() == []


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; between looks the processor is left alone for three times as long."""
    ends_at = (began := time.monotonic()) + 60
    while not condition():
        assert time.monotonic() < ends_at, f"not within 60 s: {words_of(condition)}"
        time.sleep(min(max(3 * (time.monotonic() - began), 0.02), 0.5))
        began = time.monotonic()
