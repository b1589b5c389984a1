"""A run of the tests that is interrupted leaves nothing, however it ends: `tests/support/leftovers.py` itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.programs import wait_for
from tests.support.leftovers import (
    MARK,
    PREFIX,
    _forget_old_folders,
    end_processes,
    remove_containers,
    remove_places,
)

ROOT = Path(__file__).parents[2]
INNER = '''\
"""Everything that a test may start, and no end."""
import os, subprocess, time
from contextlib import ExitStack
from pathlib import Path
import pytest
from tests.support.in_process import Platform
from tests.e2e.hosts import two_hosts
from tests.e2e.platforms import contained_platform

def test_that_never_ends(tmp_path):
    with ExitStack() as stack:
        if os.environ["INNER_KIND"] == "containers":
            platform = stack.enter_context(contained_platform())
        else:
            platform = stack.enter_context(Platform(simulate_gpus=1))
        code = tmp_path / "code"
        code.mkdir()
        platform.nsml("run", "--argv", "--", "sleep", "1000", cwd=code)
        while "RUNNING" not in platform.nsml("ps", "-o", "json").stdout.upper():
            time.sleep(0.1)
        if os.geteuid() == 0:
            stack.enter_context(two_hosts())
            place = tmp_path / "mounted"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        # as a shim whose agent was killed: without an environment, and nobody's child
        orphan = subprocess.run(
            ["/bin/sh", "-c", "sleep 1000 >/dev/null & echo $!"],
            env={}, cwd="/", start_new_session=True, stdout=subprocess.PIPE, text=True, check=True,
        )
        text = f"{os.environ['TEST_RUN_FOLDER']} {orphan.stdout}"
        Path(os.environ["INNER_READY"]).write_text(text)
        time.sleep(1000)
'''


def interrupt(run: subprocess.Popen[bytes]) -> None:
    """Ctrl-C: the terminal tells each process of the run."""
    os.killpg(run.pid, signal.SIGINT)


def terminate(run: subprocess.Popen[bytes]) -> None:
    run.terminate()


def kill(run: subprocess.Popen[bytes]) -> None:
    run.kill()


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        # What is killed can clean up nothing itself: all is left to the guardian.
        (kill, "processes"),
        pytest.param(interrupt, "processes", marks=pytest.mark.variant),
        pytest.param(terminate, "containers", marks=pytest.mark.variant),
    ],
)
def test_an_interrupted_run_leaves_nothing(
    end: Callable[[subprocess.Popen[bytes]], None], kind: str, tmp_path: Path
):
    if kind == "containers" and os.environ.get("NSML_REQUIRE_DOCKER") != "1":
        kind = "processes"
    ready, inner = tmp_path / "ready", tmp_path / "test_inner.py"
    inner.write_text(INNER)
    environment = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.support.leftovers", "-n", "1"),
                *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)),
                str(inner),
            ],
            cwd=ROOT,
            env={**environment, "INNER_READY": str(ready), "INNER_KIND": kind},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(
            lambda: ready.exists() or run.poll() is not None, what="the run has all", timeout_s=120
        )
        assert run.poll() is None, (tmp_path / "log").read_text()
        name, orphan = ready.read_text().split()
        folder = Path(name)
        assert folder.name.startswith(PREFIX)
        assert any(folder.iterdir())
    finally:
        end(run)
        run.wait(60)
    wait_for(lambda: not folder.exists(), what="the folder of the run is gone", timeout_s=90)
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(orphan)).status() == psutil.STATUS_ZOMBIE
    assert end_processes(folder, ()) == []
    assert remove_containers(folder) == []
    assert remove_places(folder) == []


def test_a_folder_of_a_run_that_ends_meanwhile_ends_no_guardian(tmp_path: Path):
    folders = [tmp_path / f"{PREFIX}{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        os.utime(folder, (number, number))
    gone = tmp_path / f"{PREFIX}gone"
    gone.symlink_to(tmp_path / "nowhere")
    _forget_old_folders(folders[3])
    assert [folder for folder in folders if folder.exists()] == folders[1:]


def test_what_a_test_leaves_fails_the_run_and_is_ended(tmp_path: Path):
    inner, number = tmp_path / "test_inner.py", tmp_path / "pid"
    inner.write_text(
        "import subprocess, sys\n"
        "def test_that_leaves_a_process():\n"
        "    left = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"    open({str(number)!r}, 'w').write(str(left.pid))\n"
    )
    run = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "tests.support.leftovers",
                "-p",
                "no:cacheprovider",
            ),
            *("-c", os.devnull, "--rootdir", str(tmp_path), str(inner)),
        ],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != MARK},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"process {number.read_text()}: sleep 1000" in run.stdout
    assert "1 passed" in run.stdout


def test_what_is_logged_is_no_part_of_the_answer(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, tests.support.leftovers as it\n"
        "it._forget_old_folders = lambda _: print('2026-11-27 [warning] no program nft')\n"
        f"it.guard(pathlib.Path({str(tmp_path)!r}), os.getppid())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        input="keep\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
    assert "no program nft" in done.stderr
