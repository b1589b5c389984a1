"""Finds processes on the devices that belong to no session.

A process is a session's if it or an ancestor is the pid of a replica known to the runtime,
or has the mark of one in its environment: a detached process still has the
mark, one that overwrote its environment still has the ancestors. Pids are the host's, like the driver's:
those of containers, too. An invisible process (of another pid namespace, or hidden) has
no owner, and is not counted.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.probes.interface import DeviceSample
from nsml.spec.foreign_processes import USED_BY

STRANGE_AFTER_S = 10.0
"""A process is reported as foreign after this time: a session's process may be dying, and
the runtime may not know a new one yet. Those that existed before the first look are reported
at once, so that a starting agent offers no device in use."""

_MARK = b"NSML_REPLICA="
_MOST_ANCESTORS = 64
_DRIVERS_OWN = frozenset({"nvidia-cuda-mps"})
"""Names of servers for sessions' computations; the kernel keeps 15 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; `start_ticks` distinguishes it from a later one with its pid."""

    pid: int
    start_ticks: int
    parent: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The runtime's replicas: their ids, and the pids of running ones."""

    marks: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Occupants:
    """Remembers the owners of processes on the devices. Blocking: it reads /proc."""

    proc: Path = Path("/proc")
    _ours: set[tuple[int, int]] = field(default_factory=set)
    _strange_at: dict[tuple[int, int], float] = field(default_factory=dict)
    _grace_s: float = 0.0

    def unknown(self, samples: Iterable[DeviceSample], now: float) -> bool:
        """Whether a process with an undecided owner is on a device."""
        return any(
            process_key(one) not in self._ours and now < self._settled_at(one)
            for one in self._visible(samples).values()
        )

    def strangers(
        self, samples: Sequence[DeviceSample], replicas: Replicas, now: float
    ) -> Mapping[str, str]:
        """Describe the foreign processes of each device, by uuid."""
        visible = self._visible(samples)
        self._forget(visible.values())
        for one in visible.values():
            key = process_key(one)
            if key in self._ours or now >= self._settled_at(one):
                continue
            if belongs(one, replicas, self.proc):
                self._ours.add(key)
                self._strange_at.pop(key, None)
            else:
                self._strange_at.setdefault(key, now + self._grace_s)
        self.looked()
        said = {}
        for sample in samples:
            found = [visible[one.pid] for one in sample.processes if one.pid in visible]
            strange = [one for one in found if self._is_strange(one, now)]
            if strange:
                said[sample.uuid] = self._words(strange)
        return said

    def looked(self) -> None:
        """The first look is complete; later processes are new."""
        self._grace_s = STRANGE_AFTER_S

    def _visible(self, samples: Iterable[DeviceSample]) -> dict[int, Process]:
        pids = {one.pid for sample in samples for one in sample.processes}
        found = {pid: read_process(self.proc, pid) for pid in sorted(pids)}
        return {pid: one for pid, one in found.items() if one and one.name not in _DRIVERS_OWN}

    def _forget(self, visible: Iterable[Process]) -> None:
        keys = {process_key(one) for one in visible}
        self._ours &= keys
        self._strange_at = {key: at for key, at in self._strange_at.items() if key in keys}

    def _settled_at(self, process: Process) -> float:
        return self._strange_at.get(process_key(process), float("inf"))

    def _is_strange(self, process: Process, now: float) -> bool:
        return process_key(process) not in self._ours and now >= self._settled_at(process)

    def _words(self, strange: Sequence[Process]) -> str:
        first = strange[0]
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        return f"{USED_BY}{first.pid} ({first.name} of {self._user_of(first.pid)}){more}, of no session"

    def _user_of(self, pid: int) -> str:
        try:
            uid = (self.proc / str(pid)).stat().st_uid
            return pwd.getpwuid(uid).pw_name
        except OSError:
            return "somebody"
        except KeyError:
            return f"user {uid}"


def belongs(process: Process | None, replicas: Replicas, proc: Path) -> bool:
    """Whether a process, or an ancestor, belongs to a replica: by pid, or by the mark in its environment."""
    at = process
    for _ in range(_MOST_ANCESTORS):
        if at is None or at.pid <= 1:
            return False
        if at.pid in replicas.pids or _mark_of(proc, at.pid) in replicas.marks:
            return True
        at = read_process(proc, at.parent)
    return False


def _mark_of(proc: Path, pid: int) -> str | None:
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(_MARK):
            return entry.removeprefix(_MARK).decode(errors="replace")
    return None


def process_key(process: Process) -> tuple[int, int]:
    """Return the process's unique key since the boot."""
    return process.pid, process.start_ticks


def read_process(proc: Path, pid: int) -> Process | None:
    """Return a visible process that is no zombie; its name without unprintable characters."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    head, _, tail = stat.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    shown = "".join(one if one.isprintable() else "?" for one in name)
    return Process(pid=pid, start_ticks=int(fields[19]), parent=int(fields[1]), name=shown)
