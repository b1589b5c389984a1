"""`nsml doctor chaos` itself: a platform under faults keeps its promises, and nothing of it stays.

NSML_SOAK_FAULTS=300 asks for so many in the long run, NSML_SEED repeats one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cli.chaos.parts import processes_with
from cli.chaos.platform import MARK
from tests.e2e.nemesis import SOAKING
from tests.e2e.programs import wait_for
from tests.etcd import require_etcd


@pytest.fixture
def temporary(monkeypatch):
    """Where runs are made: nothing may stay in it. PostgreSQL's user may pass, as in /tmp."""
    require_etcd()
    folder = Path(tempfile.mkdtemp(prefix="nsml-t"))
    folder.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "doctor", "chaos", "-j", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)


def test_a_short_run_is_sound_and_leaves_nothing(temporary):
    seed = os.environ.get("NSML_SEED", "1")
    done = chaos("--seconds", "6", "--seed", seed, "--control-planes", "1", "--agents", "2",
                 "--faults", "kill,pause,stop,cut,one-way")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["faults_fired"] >= 1
    assert sum(told["violations"].values()) == 0
    assert told["operations"]["create"] >= 1
    assert list(temporary.iterdir()) == []


def test_a_run_that_is_interrupted_leaves_nothing(temporary):
    command = [sys.executable, "-m", "cli.main", "doctor", "chaos", "--control-planes", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        ledgers = wait_for(
            lambda: [path for path in temporary.glob("*/ledgers/*") if path.stat().st_size],
            timeout_s=300,
            what="a program has begun",
        )
        folder = ledgers[0].parent.parent
        assert processes_with(MARK, folder)
        run.send_signal(signal.SIGINT)
        assert run.wait(180) == 130
    wait_for(lambda: not processes_with(MARK, folder), what="no process of it")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "faults", [pytest.param(int(os.environ.get("NSML_SOAK_FAULTS", "300")), marks=SOAKING)]
)
def test_hundreds_of_faults(temporary, faults):
    """Three control planes, PostgreSQL, four agents; every kind of fault, twenty take-overs in a row."""
    arguments = ["--count", str(faults), "--seconds", str(5 * faults), "--every", "0.3-1.0"]
    if "NSML_SEED" in os.environ:
        arguments += ["--seed", os.environ["NSML_SEED"]]
    done = chaos(*arguments)
    print(done.stdout, done.stderr[-2000:])
    assert done.returncode == 0
    assert json.loads(done.stdout)["faults_fired"] >= faults
    assert list(temporary.iterdir()) == []
