"""`nsml doctor chaos` itself: a platform under faults keeps its promises, and nothing of it stays.

NSML_SOAK_FAULTS=3000 asks for a longer one than 300 in five minutes, NSML_SEED repeats one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from chaos.processes import MARK, command_of, processes_with
from chaos.reaper import end_all
from chaos.trainer import LEDGERS
from tests.e2e.nemesis import SOAKING
from tests.e2e.programs import wait_for
from tests.support.etcd import require_etcd


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


def of_folder(folder: Path) -> list[str]:
    """Commands that run with this folder among their arguments."""
    names = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [line for name in names if str(folder) in (line := command_of(int(name)))]


def shims_of(ledgers: Path) -> list[psutil.Process]:
    """The parents of programs that run."""
    found = []
    for pid in processes_with(LEDGERS, ledgers):
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid).parent()
            found += [parent] if parent is not None and parent.pid > 1 else []
    return found


def stands(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


@pytest.mark.long("faults need time to show")
def test_a_short_run_is_sound_and_leaves_nothing(temporary):
    seed = os.environ.get("NSML_SEED", "1")
    done = chaos("--seconds", "6", "--seed", seed, "--control-planes", "1", "--agents", "2",
                 "--faults", "kill,pause,stop,cut,one-way,program,disk")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["faults_fired"] >= 1
    assert sum(told["violations"].values()) == 0
    assert told["operations"]["create"] >= 1
    assert list(temporary.iterdir()) == []


@pytest.mark.variant  # of the one that is killed, which can end nothing itself
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
        shims = wait_for(lambda: shims_of(folder / "ledgers"), what="a program runs")
        run.send_signal(signal.SIGINT)
        assert run.wait(180) == 130
    wait_for(lambda: not processes_with(MARK, folder), what="no process of it")
    wait_for(lambda: not processes_with(LEDGERS, folder / "ledgers"), what="no program of it")
    wait_for(lambda: not any(one.is_running() for one in shims), what="no shim of it")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_run_has_started_ends_with_it(temporary):
    """SIGKILL: it can end nothing itself. Agents leave their programs, paused parts take no signal but that."""
    command = [sys.executable, "-m", "cli.main", "doctor", "chaos", "--control-planes", "1",
               "--seconds", "300", "--faults", "pause"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        # tempfile tries the folder first, with a file that it removes.
        [folder] = wait_for(
            lambda: [one for one in temporary.iterdir() if one.is_dir()],
            timeout_s=300,
            what="it has begun",
        )
        ledgers = folder / "ledgers"
        shims = wait_for(lambda: shims_of(ledgers), timeout_s=300, what="a program runs")
        wait_for(lambda: any(map(stands, processes_with(MARK, folder))), what="a part is paused")
        assert of_folder(folder)
        run.kill()
    try:
        wait_for(lambda: not processes_with(MARK, folder), timeout_s=120, what="no process of it")
        wait_for(lambda: not processes_with(LEDGERS, ledgers), what="no program of it")
        wait_for(lambda: not any(one.is_running() for one in shims), what="no shim of it")
        wait_for(lambda: not of_folder(folder), what="nobody who watched over it")
    finally:
        end_all(folder)


@pytest.mark.parametrize(
    "faults", [pytest.param(int(os.environ.get("NSML_SOAK_FAULTS", "300")), marks=SOAKING)]
)
def test_hundreds_of_faults_in_five_minutes(temporary, faults):
    """Three control planes, PostgreSQL, four agents; every kind of fault, twenty take-overs in a row.

    What programs reported, printed and showed is there once and in order, and gaps are told.
    """
    arguments = ["--count", str(faults), "--seconds", str(5 * faults), "--every", "0.3-1.0"]
    if "NSML_SEED" in os.environ:
        arguments += ["--seed", os.environ["NSML_SEED"]]
    done = chaos(*arguments)
    print(done.stdout, done.stderr[-2000:])
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["faults_fired"] >= faults
    wanted = {"program program", "kill agent", "kill control plane", "kill database"}
    if not any("no full disks" in why for why in told["left_out"]):
        wanted |= {"disk agent", "disk database", "disk objects"}
        assert told["missing"] > 0
    assert wanted <= told["fired"].keys()
    assert list(temporary.iterdir()) == []
