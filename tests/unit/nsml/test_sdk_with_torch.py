"""Runs what needs torch in the environment that has it, and nothing that nsml needs outside of sessions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.torch_environment import require_torch

ROOT = Path(__file__).parents[3]


def test_the_sdk_with_torch_itself(tmp_path: Path) -> None:
    command = [require_torch(), "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["--basetemp", str(tmp_path / "t"), "tests/unit/nsml/test_sdk_torch.py"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    *_, last = done.stdout.splitlines() or [done.stderr]
    assert done.returncode == 0, f"{last}\n{done.stdout}{done.stderr}"
    assert "passed" in last
    assert "skipped" not in last
