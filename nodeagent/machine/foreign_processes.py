"""Which processes on the devices are no session's.

A process is a session's when it or an ancestor of it is the pid of a replica that the runtime knows,
or carries the mark of one in its environment: of what detached itself from its ancestors the mark
is left, of what overwrote its environment the ancestors. Pids are the host's, as the driver's are:
those of containers, too. A process that cannot be seen (of another pid namespace, or hidden) is
nobody's, and not counted.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.probes.interface import DeviceSample
from nsml.spec.foreign_processes import USED_BY

STRANGE_AFTER_S = 10.0
"""A process is called a stranger when it was one for so long: what a session left may be dying, and
of what has just begun the runtime may not know yet. Who was there before the first look is one at
once, so that an agent that starts offers nothing that is used."""

_MARK = b"NSML_REPLICA="
_MOST_ANCESTORS = 64
_DRIVERS_OWN = frozenset({"nvidia-cuda-mps"})
"""Names, of which the kernel keeps 15 characters, of servers through which sessions compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; `start_ticks` tells it from a later one with its pid."""

    pid: int
    start_ticks: int
    parent: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas that the runtime knows: their ids, and the pids of those that run."""

    marks: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Occupants:
    """Keeps in mind whose the processes on the devices are. Blocking: it reads /proc."""

    proc: Path = Path("/proc")
    _ours: set[tuple[int, int]] = field(default_factory=set)
    _strange_at: dict[tuple[int, int], float] = field(default_factory=dict)
    _grace_s: float = 0.0

    def unknown(self, samples: Iterable[DeviceSample], now: float) -> bool:
        """Whether a process is on a device of which it is not settled whose it is."""
        return any(
            process_key(one) not in self._ours and now < self._settled_at(one)
            for one in self._visible(samples).values()
        )

    def strangers(
        self, samples: Sequence[DeviceSample], replicas: Replicas, now: float
    ) -> Mapping[str, str]:
        """What to say of each device, by uuid, that a process of nobody's uses."""
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
        """Who is there was seen once; whoever is found from now on has come since."""
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
    """Whether a process, or an ancestor of it, is a replica's: by pid, or by the mark in its environment."""
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
    """What tells a process from all others since the boot."""
    return process.pid, process.start_ticks


def read_process(proc: Path, pid: int) -> Process | None:
    """A process that can be seen and is no zombie; its name without what no screen should get."""
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
