"""Resource usage of one replica's processes: by its control group, otherwise by /proc.

Processes without a group are those below the replica's shim, which reaps all of them. The CPU time of an
ended process is added to its parent's, so that a process shorter than the interval of
readings is counted, too.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.runtimes.limits import group_of
from nodeagent.runtimes.records import read_claim
from nodeagent.shim.cgroups import MEMORY
from nodeagent.shim.forked import children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.folders import ReplicaFolder
    from nodeagent.shim.cgroups import Group

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = frozenset({b"Z", b"X"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUse:
    """One reading.

    Attributes:
        cpu_s: CPU time since the start, seconds; without a group it can decrease, when a process ends
            whose parent does not reap it.
        memory_bytes: without the kernel's cache of files; without a group resident memory, which
            counts shared pages once for each process.
        processes: number of present ones, without the platform's own.
    """

    cpu_s: float
    memory_bytes: int
    processes: int


class Stat(NamedTuple):
    """A process in /proc: times in clock ticks, `start_ticks` since the boot."""

    is_dead: bool
    """A zombie: it has no memory any more, and its CPU time is still its own."""
    parent: int
    ticks: int
    collected_ticks: int
    """Of its reaped children, and theirs."""
    start_ticks: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """The place of a replica's processes.

    `shim` and `start_ticks` are its shim's. Its oldest `own` processes are the platform's: none, the first, or also a shell below it.
    A replica `in_container` is not below its shim.
    """

    shim: int
    start_ticks: int
    own: int
    in_container: bool
    group: Group | None


def enclosure_of(folder: ReplicaFolder, boot_id: str) -> Enclosure | None:
    """Return the place of the processes of the replica in `folder`; None if unknown, or not visible."""
    try:
        claim = read_claim(folder)
        if claim is None or claim.boot_id != boot_id:
            return None
        spec = json.loads(folder.spec.read_bytes())
        in_container = bool(spec.get("container"))
        group = group_of(json.loads(folder.group.read_bytes()) if in_container else spec)
        return Enclosure(
            shim=claim.pid,
            start_ticks=claim.start_ticks,
            own=int(spec["container"].get("own_processes", 1))
            if in_container
            else bool(spec.get("namespace")),
            in_container=in_container,
            group=group,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def use_of(enclosure: Enclosure) -> ReplicaUse | None:
    """Return the usage of the processes there now; None without any. Blocking."""
    group = enclosure.group
    if group is None:
        return below(enclosure)
    members = group.members()
    count = len(members) - enclosure.own
    took_s = group.took_s()
    has_memory = MEMORY in group.controllers
    memory = group.memory_used() if has_memory else 0
    if count < 0 or (count == 0 and not took_s):
        return None
    if not enclosure.in_container and (took_s is None or not has_memory):
        # Cheaper than reading every thread for its children.
        seen = below(enclosure, descendants=lambda _: members)
        if seen is None:
            return None
        took_s = seen.cpu_s if took_s is None else took_s
        memory = memory if has_memory else seen.memory_bytes
    return ReplicaUse(cpu_s=took_s or 0.0, memory_bytes=memory, processes=count)


def read_stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """Return a process's facts; None if it is gone, or not visible."""
    try:
        # the name may contain blanks and brackets
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return Stat(
            is_dead=fields[0] in _DEAD,
            parent=int(fields[1]),
            ticks=int(fields[11]) + int(fields[12]),
            collected_ticks=int(fields[13]) + int(fields[14]),
            start_ticks=int(fields[19]),
            pages=int(fields[21]),
        )
    except (OSError, ValueError, IndexError):
        return None


def below(
    enclosure: Enclosure,
    *,
    read: Callable[[int], Stat | None] = read_stat,
    descendants: Callable[[int], list[int]] = children_of,
) -> ReplicaUse | None:
    """Return the usage of all processes below the shim; None without any, or if the shim is gone.

    `descendants` lists parents before their children. Processes that are gone when read do not count, nor do
    reused pids: their parent is not below the shim.
    """
    found = family(enclosure, read=read, descendants=descendants)
    if found is None:
        return None
    shim, ours = found
    own = platforms_own(ours, enclosure.own)
    programs = [one for pid, one in ours.items() if pid not in own]
    if not programs:
        return None
    ticks = shim.collected_ticks + sum(one.ticks + one.collected_ticks for one in ours.values())
    return ReplicaUse(
        cpu_s=ticks / _TICKS_PER_S,
        memory_bytes=_PAGE_BYTES * sum(one.pages for one in programs),
        processes=sum(not one.is_dead for one in programs),
    )


def family(
    enclosure: Enclosure,
    *,
    read: Callable[[int], Stat | None] = read_stat,
    descendants: Callable[[int], list[int]] = children_of,
) -> tuple[Stat, dict[int, Stat]] | None:
    """Return the shim, and the processes below it by pid; None if it is gone. See `below`."""
    shim = read(enclosure.shim)
    if shim is None or shim.start_ticks != enclosure.start_ticks:
        return None
    read_first = {pid: read(pid) for pid in descendants(enclosure.shim)}
    known = {pid: one for pid, one in read_first.items() if one is not None}
    family = {enclosure.shim, *known}
    ours = {
        pid: one
        for pid, one in known.items()
        if one.parent in family and one.start_ticks >= enclosure.start_ticks
    }
    again = read(enclosure.shim)
    if again is None or again.start_ticks != enclosure.start_ticks:
        return None  # its pid may have been reused
    return shim, ours


def platforms_own(found: Mapping[int, Stat], count: int) -> set[int]:
    """Return the oldest of the processes without a parent among them, and the oldest below that one."""
    own: list[int] = []
    while len(own) < count:
        below = [
            pid
            for pid, one in found.items()
            if (one.parent == own[-1] if own else one.parent not in found)
        ]
        first = min(below, key=lambda pid: (found[pid].start_ticks, pid), default=None)
        if first is None:
            break
        own.append(first)
    return set(own)
