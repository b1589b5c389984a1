"""A lock of several agents on a folder of a shared file system, NFS included. Blocking.

The lock is the file `lock.N` with the highest number. Only one agent can create a file (O_EXCL), and the holder
refreshes its mtime. Once that stops, or the holder dates its file back to release it, another agent creates the next
number. After creating a file an agent checks again, and backs off if another file is in use, or has a higher number: of
two agents at once the later one sees the file of the earlier one. Times are the file server's, from a file that each
agent has for this, so that the clocks of nodes do not matter.

A file is removed only by who has a higher one. So the highest number stays, no name comes again, and an agent that takes
its time to remove an old file cannot remove the lock of another one.

A suspended holder may not know yet that it has lost the lock. So nothing is safe by this lock alone:
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
"""A holder's lease ends this long after its last refresh."""
BEAT_S: Final = 10.0
"""Time between refreshes."""
_NAME: Final = re.compile(r"lock\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock, until another agent takes it over."""

    path: Path

    def beat(self) -> None:
        """Refresh the lease. FileNotFoundError: another agent has taken the lock over."""
        os.utime(self.path)

    def release(self) -> None:
        """Release the lock, if it is still held."""
        with suppress(FileNotFoundError):
            os.utime(self.path, (0, 0))


@dataclass(frozen=True, slots=True)
class PodLock:
    """The lock of `folder`; `agent` is this agent's name in file names, unique among agents with this folder."""

    folder: Path
    agent: str

    def now(self) -> float:
        """Return the time of the file server, Unix seconds. Raises OSError."""
        place = self.folder / f"clock.{self.agent}"
        place.touch(mode=0o600)
        os.utime(place)
        return place.stat().st_mtime

    def acquire(self) -> HeldLock | None:
        """Return the lock, or None if another agent holds it. Raises OSError."""
        found = self._found()
        if any(self._is_held(found)):
            return None
        number = max(found, default=0) + 1
        made = self.folder / f"lock.{number}"
        try:
            os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return None
        lock = HeldLock(made)
        others = self._found()
        others.pop(number, None)
        if max(others, default=0) > number or any(self._is_held(others)):
            lock.release()
            return None
        for path in others.values():
            path.unlink(missing_ok=True)
        return lock

    def _found(self) -> dict[int, Path]:
        # A listing asks the server; lookups by name may be cached.
        matches = filter(None, map(_NAME.fullmatch, os.listdir(self.folder)))  # noqa: PTH208
        return {int(match[1]): self.folder / match[0] for match in matches}

    def _is_held(self, found: dict[int, Path]) -> list[bool]:
        now = self.now() if found else 0.0
        held = []
        for path in found.values():
            with suppress(FileNotFoundError):
                held.append(now - path.stat().st_mtime < LEASE_S)
        return held
