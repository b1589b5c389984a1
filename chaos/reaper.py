"""Ends what a run has started when the run itself is killed, which can then end nothing any more.

`python -m chaos.reaper FOLDER` waits until its standard input ends. Where that ends without a word, whoever
held the other end has died: then everything that runs of the run in FOLDER is killed.

The system could kill children with their parent (PR_SET_PDEATHSIG), but not theirs: agents leave programs
running on purpose. It also takes the thread that started a child for its parent.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.processes import MARK, processes_with
from cli.local.processes import find, recorded, signal_program

if TYPE_CHECKING:
    from cli.local.processes import Program

_WITHIN_S: Final = 90.0
_QUIET_S: Final = 0.5
"""For so long nothing is found: what is just being started cannot be told by anything yet."""
_POLL_S: Final = 0.05
_DISMISSED: Final = b"dismissed"


class Reaper:
    """A process in a session of its own that outlives this one, and is on watch from now on."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "chaos.reaper", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Let it go: everything has been ended."""
        self._process.communicate(_DISMISSED)


def end_all(folder: Path) -> None:
    """Kill whatever runs of a run, until nothing does."""
    now = time.monotonic()
    ends_at, quiet_at = now + _WITHIN_S, now + _QUIET_S
    while now < min(ends_at, quiet_at):
        for program in _left_of(folder):
            signal_program(program, signal.SIGKILL)
            quiet_at = now + _QUIET_S
        time.sleep(_POLL_S)
        now = time.monotonic()


def _left_of(folder: Path) -> list[Program]:
    """Parts, by their mark, and the shims of sessions, which have an empty environment.

    With its shim a session's program ends.
    """
    parts = [find(pid) for pid in processes_with(MARK, folder)]
    shims = [recorded(claim) for claim in folder.glob("*/agent/replicas/*/shim.json")]
    return [program for program in (*parts, *shims) if program is not None]


def main() -> None:
    """Wait for the end of standard input."""
    if sys.stdin.buffer.read() != _DISMISSED:
        end_all(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
