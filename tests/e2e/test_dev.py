"""`nsml dev` on a real platform: a program in the folder, with its environment, in a session that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
