"""A lock of several agents over a folder of a shared file system, NFS included. Blocking.

It is the file `lock.N`. A file is made by one agent alone (O_EXCL), and who has it sets its time again and again. Where that has
stopped, another one makes the next number. Whoever made a file looks once more, and steps back where there is another
one in use: of two that come at once the later one sees the file of the earlier one. Times are the file server's, by a file
that each agent has for that, so that no clock of a node counts.

A holder that was stopped for a while may not know yet that it has lost the lock. So nothing is safe by this lock alone:
see `pod_trees.py`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

LEASE_S: Final = 60.0
"""So long after its last sign a holder is gone."""
BEAT_S: Final = 10.0
"""How often it gives one."""
_NAME: Final = re.compile(r"lock\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock, while nobody has taken it over."""

    path: Path

    def beat(self) -> None:
        """Give a sign. FileNotFoundError: another agent has taken it over."""
        os.utime(self.path)

    def release(self) -> None:
        """Let others have it."""
        with suppress(FileNotFoundError):
            self.path.unlink()


@dataclass(frozen=True, slots=True)
class PodLock:
    """Of the folder; `agent` is its name in names of files, unique among those that share it."""

    folder: Path
    agent: str

    def now(self) -> float:
        """The time of the file server, Unix seconds. Raises OSError."""
        place = self.folder / f"clock.{self.agent}"
        place.touch(mode=0o600)
        os.utime(place)
        return place.stat().st_mtime

    def acquire(self) -> HeldLock | None:
        """The lock, or None where another agent has it. Raises OSError."""
        found = self._found()
        if any(self._is_held(found)):
            return None
        made = self.folder / f"lock.{max(found, default=0) + 1}"
        try:
            os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return None
        others = {number: path for number, path in self._found().items() if path != made}
        if any(self._is_held(others)):
            made.unlink()
            return None
        for path in others.values():
            path.unlink(missing_ok=True)
        return HeldLock(made)

    def _found(self) -> dict[int, Path]:
        # By a listing, and not by name: that asks the server.
        matches = filter(None, map(_NAME.fullmatch, os.listdir(self.folder)))  # noqa: PTH208
        return {int(match[1]): self.folder / match[0] for match in matches}

    def _is_held(self, found: dict[int, Path]) -> list[bool]:
        now = self.now() if found else 0.0
        held = []
        for path in found.values():
            with suppress(FileNotFoundError):
                held.append(now - path.stat().st_mtime < LEASE_S)
        return held
