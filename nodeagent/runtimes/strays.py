"""What a replica may have left running whose shim is gone: programs that detached themselves."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.runtimes.limits import group_of

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaFolder
    from nodeagent.shim.cgroups import Group


_WANTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this agent, or its machine, lacks for a moment; all else is said of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """What may be left of a replica whose shim is gone: programs that detached themselves.

    They are in its control group, where it has one, or have the mark in their environment, or speak to
    `output`, and run as `uid` where that is not the agent's own: who else takes the mark on must not
    keep the replica from its end. Of one that nothing encloses, whose user has no other replica here,
    all that began before `began_before` is theirs, by `uid` alone.
    """

    mark: bytes
    output: str
    uid: int | None
    began_before: int | None
    group: Group | None

    def kill(self) -> list[int]:
        """Kill them; those that were there, which a process that waits in the kernel still is."""
        found = set(self.group.members()) if self.group is not None else set()
        if self.group is not None and found:
            self.group.kill()
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            pid = int(entry.name)
            try:
                if self._is_one(entry.path):
                    os.kill(pid, signal.SIGKILL)
                    found.add(pid)
            except OSError as error:
                # what could not be looked at is looked at again: devices are freed on our word
                if error.errno in _WANTS:
                    found.add(pid)
        return sorted(found)

    def _is_one(self, process: str) -> bool:
        if self.uid is None:
            return self._is_marked(process)
        if _real_uid(process) != self.uid:
            return False
        is_old = self.began_before is not None and _began(process) < self.began_before
        return is_old or self._is_marked(process)

    def _is_marked(self, process: str) -> bool:
        return _has_mark(process, self.mark) or _speaks_to(process, self.output)


def words_of(pid: int) -> str:
    """A process as a log names it: its name and its state, where it can be seen."""
    with contextlib.suppress(OSError, IndexError):
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        return f"{pid} ({head.partition('(')[2]}, state {tail.split()[0]})"
    return str(pid)


def account_of(folder: ReplicaFolder) -> int | None:
    """Whom a replica runs as; None: the agent's own user. Its `run/` cannot be replaced by anybody."""
    try:
        uid = os.lstat(folder.run).st_uid
    except OSError:
        return None
    return uid if uid != os.geteuid() else None


def ticks_now() -> int:
    """Now in clock ticks since the boot, as /proc counts the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _real_uid(process: str) -> int | None:
    with contextlib.suppress(ValueError, IndexError):
        return int(_read(process, "status").partition(b"\nUid:")[2].split()[0])
    return None


def _began(process: str) -> float:
    """When a process began, in ticks; endless for one that is gone, or dead and not reaped."""
    with contextlib.suppress(ValueError, IndexError):
        fields = _read(process, "stat").rpartition(b")")[2].split()
        if fields[0] not in (b"Z", b"X"):
            return int(fields[19])
    return math.inf


def group_in(folder: ReplicaFolder) -> Group | None:
    """The control group of a replica, as its shim was told to make it."""
    try:
        return group_of(json.loads(folder.spec.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _has_mark(process: str, mark: bytes) -> bool:
    """Not of one that overwrote its environment with a title (setproctitle)."""
    return mark in _read(process, "environ").split(b"\0")


def _speaks_to(process: str, output: str) -> bool:
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"{process}/fd/{number}") == output:  # noqa: PTH115 - no file system is asked
                return True
    return False


def _read(process: str, name: str) -> bytes:
    """A file of a process, empty where it has gone or may not be seen; raises OSError for `_WANTS`."""
    try:
        return Path(process, name).read_bytes()
    except OSError as error:
        if error.errno in _WANTS:
            raise
        return b""
