"""`nsml dev` on a real platform: a program in the folder, with its environment, in a session that goes on."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("-g", "0", "-c", "0.1", "--memory", "1G", "--grace", "1s")


def live(platform: Platform) -> list[str]:
    return platform.nsml("ps", "-o", "name").stdout.split()


def test_one_works_in_it_and_it_goes_on_or_not(tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", "print('trained')\n")
    with Platform(simulate_gpus=1) as platform:
        program = ("--", "sh", "-c", "python main.py; echo new > notes.txt; exit 7")
        worked = platform.nsml("dev", *SMALL, *program, cwd=code, check=False)
        assert worked.returncode == 7
        name = worked.stdout.split()[1]
        assert worked.stdout.startswith("Session ")
        assert worked.stdout.endswith("\ntrained\n")
        assert f"session {name} continues until it is idle for 2h" in worked.stderr
        assert platform.nsml("sh", name, "--", "cat", "notes.txt").stdout == "new\n"
        once = platform.nsml("dev", "--stop", *SMALL, "--", "true", cwd=code)
        assert "is stopped" in once.stderr
        wait_for(lambda: live(platform) == [name], what="the other one has ended")
        platform.nsml("stop", "-y", name)


def test_its_folder_follows_this_one(tmp_path: Path) -> None:
    code = write_program(tmp_path / "code", "import model\nprint(model.NAME)\n")
    (code / "model.py").write_text("NAME = 'first'\n")
    (code / "old").mkdir()
    (code / "old/file").write_text("old")
    with Platform(simulate_gpus=1) as platform:
        said = tmp_path / "said"
        with (
            said.open("w") as errors,
            subprocess.Popen(
                [str(PROGRAMS / "nsml"), "dev", *SMALL, "--sync", "--", "sleep", "600"],
                cwd=code,
                env=platform.environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            ) as syncing,
        ):
            try:
                wait_for(lambda: "in step with" in said.read_text(), what="it is in step")
                [there] = (platform.folder / "data/agent/replicas").glob("*/app")
                (code / "old/file").unlink()
                (code / "old").rmdir()
                (code / "model.py").write_text("NAME = 'second'\n")
                (code / "run.sh").write_text("#!/bin/sh\n")
                (code / "run.sh").chmod(0o755)
                wait_for(lambda: not (there / "old").exists(), what="it is removed there")
                wait_for((there / "run.sh").exists, what="it is made there")
                wait_for(lambda: "second" in (there / "model.py").read_text(), what="it is sent")
                assert (there / "run.sh").stat().st_mode & 0o111
                (there / "notes.txt").write_text("theirs")
                (code / "notes.txt").write_text("ours")
                wait_for(
                    lambda: "kept in the session: notes.txt" in said.read_text(), what="it is told"
                )
                assert (there / "notes.txt").read_text() == "theirs"
            finally:
                syncing.send_signal(signal.SIGKILL)
        # what was changed meanwhile comes with the next call, in the same session
        (code / "model.py").write_text("NAME = 'third'\n")
        (code / "run.sh").unlink()
        again = platform.nsml("dev", "--sync", "--stop", "--", "python", "main.py", cwd=code)
        assert again.stdout.splitlines()[1:] == ["third"]
        assert "attached" in again.stdout
        assert "kept in the session: notes.txt was made there too" in again.stderr
        assert not (there / "run.sh").exists()
        wait_for(lambda: not live(platform), what="it has ended")
