"""What the processes of one replica take: by its control group, and by /proc what no group counts.

Processes without a group are those below the replica's shim, which is the reaper of all of them. Of what
ends, the processor time goes to who collects it, so that a process which lived shorter than from one
reading to the next is counted all the same.
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
        cpu_s: processor time from the start on, seconds; of processes without a group it can fall, when one
            ends whose parent does not collect it.
        memory_bytes: without the kernel's cache of files; of processes without a group resident memory, which
            counts what several share once for each.
        processes: how many are there, without the platform's own.
    """

    cpu_s: float
    memory_bytes: int
    processes: int


class Stat(NamedTuple):
    """What /proc says of a process: times in clock ticks, `start_ticks` since the boot."""

    is_dead: bool
    """Not collected yet: it has no memory any more, and its time is still its own."""
    parent: int
    ticks: int
    collected_ticks: int
    """Of its children that it collected, and theirs."""
    start_ticks: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """Where the processes of a replica are found.

    `shim` and `start_ticks` are its shim's. With `has_first` the oldest of its processes is the platform's own.
    A replica `in_container` is not below its shim.
    """

    shim: int
    start_ticks: int
    has_first: bool
    in_container: bool
    group: Group | None


def enclosure_of(folder: ReplicaFolder, boot_id: str) -> Enclosure | None:
    """Where those of the replica in `folder` are; None while nobody knows, or where they cannot be seen."""
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
            has_first=in_container or bool(spec.get("namespace")),
            in_container=in_container,
            group=group,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def use_of(enclosure: Enclosure) -> ReplicaUse | None:
    """What the processes there take now; None where there are none. Blocking."""
    group = enclosure.group
    if group is None:
        return below(enclosure)
    members = group.members()
    count = len(members) - enclosure.has_first
    took_s = group.took_s()
    has_memory = MEMORY in group.controllers
    memory = group.memory_used() if has_memory else 0
    if count < 0 or (count == 0 and not took_s):
        return None
    if not enclosure.in_container and (took_s is None or not has_memory):
        # That costs no look at every thread for its children.
        seen = below(enclosure, descendants=lambda _: members)
        if seen is None:
            return None
        took_s = seen.cpu_s if took_s is None else took_s
        memory = memory if has_memory else seen.memory_bytes
    return ReplicaUse(cpu_s=took_s or 0.0, memory_bytes=memory, processes=count)


def read_stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """What is said of a process; None of one that is gone, or cannot be seen."""
    try:
        # a name may have blanks and brackets in it
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
    """What all processes below the shim take; None where there are none, or the shim is gone.

    `descendants` names parents before their children. Who is gone when it is read counts no more, and a
    number that is another's by then does not count: nobody below the shim is its parent.
    """
    found = family(enclosure, read=read, descendants=descendants)
    if found is None:
        return None
    shim, ours = found
    first = platforms_own(ours) if enclosure.has_first else None
    programs = [one for pid, one in ours.items() if pid != first]
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
    """The shim, and the processes below it by pid; None where it is gone. See `below`."""
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
        return None  # by then its number may have been another's
    return shim, ours


def platforms_own(found: Mapping[int, Stat]) -> int | None:
    """The oldest of the processes whose parent is not among them."""
    roots = [pid for pid, one in found.items() if one.parent not in found]
    return min(roots, key=lambda pid: (found[pid].start_ticks, pid), default=None)
