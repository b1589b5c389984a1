"""The processes of one replica one by one, with their usage, like `ps` and `top`.

Programs choose their names, command lines and number: all of these and any text are bounded. Only processes of the
replica's own control group, or below its shim, are read; a reused pid is detected by its start.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.probes.processes import family, platforms_own, read_stat
from nodeagent.runtimes.launcher import shim_command
from nodeagent.shim.command_lines import HEADER

if TYPE_CHECKING:
    from nodeagent.probes.processes import Enclosure, Stat

MOST_PROCESSES = 500
MOST_COMMAND = 4096
_MOST_READ = 4096
"""Most processes read to find the busiest ones."""
_COMMANDS_WITHIN_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_MOST_STATUS = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProcess:
    """One process; `pid` is that in its pid namespace, `cpu_cores` its usage between two looks."""

    pid: int
    node_pid: int
    cpu_cores: float
    cpu_s: float
    memory_bytes: int
    age_s: float
    command: str
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The processes at one moment."""

    at: float
    stats: Mapping[int, Stat]
    count: int


def look(enclosure: Enclosure, proc: Path = _PROC) -> Look | None:
    """Return the present processes, without the platform's own; None if not visible. Blocking."""

    def read(pid: int) -> Stat | None:
        return read_stat(pid, proc)

    if enclosure.group is None:
        # a container's processes are not below its shim
        found = None if enclosure.in_container else family(enclosure, read=read)
        if found is None:
            return None
        stats, count = found[1], len(found[1])
    else:
        members = enclosure.group.members()
        some = {pid: read(pid) for pid in members[:_MOST_READ]}
        stats, count = {pid: one for pid, one in some.items() if one is not None}, len(members)
    own = platforms_own(stats, enclosure.own)
    count -= len(own)
    stats = {pid: one for pid, one in stats.items() if pid not in own}
    return Look(at=time.monotonic(), stats=stats, count=count)


def why_unseen(enclosure: Enclosure | None) -> str:
    """Return why a look found nothing, for people; None: the place of its processes is unknown."""
    if enclosure is None:
        return "its program is just beginning"
    if enclosure.in_container:
        return "a container without a control group that the agent can read"
    return "its program has just ended"


def listed(
    before: Look,
    after: Look,
    *,
    proc: Path = _PROC,
    commands: Callable[[Sequence[int]], Mapping[int, bytes]] | None = None,
) -> Sequence[ListedProcess]:
    """Return the processes of both looks, by their usage in between. Blocking.

    Each was in the replica twice with the same start, so its pid was not reused in between.
    """
    took = {
        pid: now.ticks - then.ticks
        for pid, now in after.stats.items()
        if (then := before.stats.get(pid)) is not None and then.start_ticks == now.start_ticks
    }
    chosen = sorted(took, key=lambda pid: (-took[pid], -after.stats[pid].pages, pid))
    chosen = chosen[:MOST_PROCESSES]
    lines = (commands or read_commands)(chosen)
    said = {pid: _status(pid, proc) for pid in chosen}
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    span_s = max(after.at - before.at, 1 / _TICKS_PER_S)
    found = []
    for pid in chosen:
        now, again = after.stats[pid], read_stat(pid, proc)
        if again is None or again.start_ticks != now.start_ticks:
            continue  # later readings may be of another process
        name, inner = said[pid]
        command, is_cut = _command(lines.get(pid, b""), name, is_dead=again.is_dead)
        found.append(
            ListedProcess(
                pid=inner or pid,
                node_pid=pid,
                cpu_cores=max(took[pid], 0) / _TICKS_PER_S / span_s,
                cpu_s=now.ticks / _TICKS_PER_S,
                memory_bytes=max(now.pages, 0) * _PAGE_BYTES,
                age_s=max(uptime_s - now.start_ticks / _TICKS_PER_S, 0.0),
                command=command,
                is_cut=is_cut,
            )
        )
    return found


def read_commands(pids: Sequence[int]) -> Mapping[int, bytes]:
    """Return the command lines of processes, as far as read in time, and one byte more than is shown."""
    if not pids:
        return {}
    command = shim_command("command_lines", str(MOST_COMMAND + 1), *map(str, pids))
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMANDS_WITHIN_S,
            check=False,
            env={},
        ).stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    found, at = {}, 0
    while at + HEADER.size <= len(said):
        pid, size = HEADER.unpack_from(said, at)
        at += HEADER.size
        found[pid] = said[at : at + size]
        at += size
    return found


def inner_pid(pid: int) -> int:
    """Return a process's pid in its innermost pid namespace. Blocking."""
    return _status(pid, _PROC)[1] or pid


def command_of(line: bytes) -> str:
    """Return the shown part of a command line read by `read_commands`."""
    return _command(line, "?", is_dead=False)[0]


def _command(line: bytes, name: str, *, is_dead: bool) -> tuple[str, bool]:
    """Return the shown part of a command line, and whether it is longer."""
    whole = line.rstrip(b"\0")
    if is_dead:
        return f"[{name}] <defunct>", False
    if not whole:
        return f"[{name}]", False
    shown = whole[:MOST_COMMAND].replace(b"\0", b" ").decode(errors="ignore")
    return shown, len(whole) > MOST_COMMAND


def _status(pid: int, proc: Path) -> tuple[str, int]:
    """Return name and innermost pid of a process; "?" and 0 if unknown."""
    name, inner = b"?", 0
    try:
        with (proc / str(pid) / "comm").open("rb") as file:
            name = file.read(64).removesuffix(b"\n")
        with (proc / str(pid) / "status").open("rb") as file:
            # the kernel escapes line breaks in the name at the beginning
            for line in file.read(_MOST_STATUS).split(b"\n"):
                if line.startswith(b"NSpid:"):
                    inner = int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return name.decode(errors="replace"), inner
