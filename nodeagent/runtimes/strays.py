"""Remaining processes of a replica whose shim is gone: programs that detached themselves."""

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
"""Errors of this agent, or its machine, for a moment; all others concern the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """Possible remains of a replica whose shim is gone: programs that detached themselves.

    They are in its control group, if it has one, or have the mark in their environment, or write to
    `output`, and run as `uid` if that is not the agent's own: others that copy the mark must not
    delay the replica's end. `id_group` is a group that its programs alone have. Replicas of earlier agents have none: then,
    without an enclosure (a control group, or a pid namespace of its own), if the user has no other replica here, all
    processes of `uid` that began before `began_before` are included.
    """

    mark: bytes
    output: str
    uid: int | None
    began_before: int | None
    group: Group | None
    id_group: int | None = None

    def kill(self) -> list[int]:
        """Kill them; return those found, including processes stuck in the kernel."""
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
                # retry those not readable now: devices are freed after this
                if error.errno in _WANTS:
                    found.add(pid)
        return sorted(found)

    def _is_one(self, process: str) -> bool:
        if self.uid is None:
            return self._is_marked(process)
        status = _read(process, "status")
        if _numbers(status, "Uid")[:1] != [self.uid]:
            return False
        if self.id_group is not None and self.id_group in _numbers(status, "Groups"):
            return _began(process) < math.inf
        is_old = self.began_before is not None and _began(process) < self.began_before
        return is_old or self._is_marked(process)

    def _is_marked(self, process: str) -> bool:
        return _has_mark(process, self.mark) or _speaks_to(process, self.output)


def words_of(pid: int) -> str:
    """Describe a process for logs: its name and state, if visible."""
    with contextlib.suppress(OSError, IndexError):
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        return f"{pid} ({head.partition('(')[2]}, state {tail.split()[0]})"
    return str(pid)


def account_of(folder: ReplicaFolder) -> int | None:
    """Return a replica's uid; None: the agent's own user. Nobody can replace its `run/`."""
    try:
        uid = os.lstat(folder.run).st_uid
    except OSError:
        return None
    return uid if uid != os.geteuid() else None


def ticks_now() -> int:
    """Return the present in clock ticks since the boot, as /proc counts starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _numbers(status: bytes, name: str) -> list[int]:
    """Return the numbers of a line of /proc/PID/status; none if the process is gone."""
    _, _, rest = status.partition(f"\n{name}:".encode())
    return [int(word) for word in rest.partition(b"\n")[0].split()]


def _began(process: str) -> float:
    """Return when a process began, in ticks; infinite if it is gone, or a zombie."""
    with contextlib.suppress(ValueError, IndexError):
        fields = _read(process, "stat").rpartition(b")")[2].split()
        if fields[0] not in (b"Z", b"X"):
            return int(fields[19])
    return math.inf


def group_in(folder: ReplicaFolder) -> Group | None:
    """Return the control group of a replica, as ordered of its shim."""
    try:
        return group_of(json.loads(folder.spec.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def id_group_in(folder: ReplicaFolder) -> int | None:
    """Return the group that a replica's programs alone have; None: they have none."""
    try:
        mark = json.loads(folder.spec.read_bytes())["mark"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mark if isinstance(mark, int) else None


def has_own_pids(folder: ReplicaFolder) -> bool:
    """Return whether its programs are in a pid namespace of their own, which ends with its shim: none can leave it."""
    try:
        return bool(json.loads(folder.spec.read_bytes())["namespace"]["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _has_mark(process: str, mark: bytes) -> bool:
    """False for one that overwrote its environment with a title (setproctitle)."""
    return mark in _read(process, "environ").split(b"\0")


def _speaks_to(process: str, output: str) -> bool:
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"{process}/fd/{number}") == output:  # noqa: PTH115 - no file system is asked
                return True
    return False


def _read(process: str, name: str) -> bytes:
    """Return a file of a process, empty if it is gone or not visible; raises OSError for `_WANTS`."""
    try:
        return Path(process, name).read_bytes()
    except OSError as error:
        if error.errno in _WANTS:
            raise
        return b""
