"""Limits that a shim enforces by polling: those without a control group, and disk usage, which has none.

Standard library only: it runs in the shim. A look costs a fraction of a millisecond for a few processes;
looks happen once a second, sooner when a limit is near at the measured pace, and never take a tenth of the
shim's time. A replica over its limit is ended at once: its usage would only grow.
"""

from __future__ import annotations

import contextlib
import os
import time

from nodeagent.shim.disk_usage import FILE_BYTES, MOST_PENDING, Measurement
from nodeagent.shim.files import content_of
from nodeagent.shim.machine_limits import Scarce
from nodeagent.shim.unlinked import Holding, disk_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypedDict

    from nodeagent.shim.cgroups import Group

    class Watched(TypedDict):
        """What to watch; None: no limit. Sizes in bytes, `cpus` in cores."""

        memory_bytes: int | None
        cpus: float | None
        process_count: int | None
        disk_bytes: int | None
        disk_floor_bytes: int

    Excess = tuple[str, str]
    """Why it ends, and the message for people."""


OUT_OF_MEMORY, LIMIT_EXCEEDED = "OUT_OF_MEMORY", "LIMIT_EXCEEDED"
UNCOUNTED = (
    "its disk limit cannot be enforced: it sent file descriptors over Unix sockets, and no process accepts the"
    " connections or receives the messages"
)

FIRST_LOOK_S = 0.1
"""Normal delay of the first look, and shortest interval of looks."""
_LONGEST_PAUSE_S = 1.0
_SHORTEST_PAUSE_S = FIRST_LOOK_S
_MEMORY_PACE = 5e8
_PROCESS_PACE = 2_000.0
_DISK_PACE = 5e8
"""Assumed growth per second of a program without measurements."""
_AMPLE_S = 30.0
"""A disk with room for this time at that pace does not fill before a first look."""
_BEFORE_START_S = 0.5
"""Longest that a start waits for the measurement of a replica on any other disk."""
_FLOOR_SHARE, _MOST_FLOOR_FILES = 0.02, 100_000
"""Files left for others to create: share of all, and the most."""
_FLOOR_SLACK_FILES = 1_000
_FILES_PACE = 50_000.0
_SHARE = 0.1
"""Most of its time that a shim spends on looks."""
_WALK_S = 0.02
"""Longest step of a walk over files: signals wait for it."""
_WALK_SHARE = 0.05
_FLOOR_SLACK_BYTES = 1 << 20
"""What a replica may still write below the floor: logs and reports."""
_UNEXPLAINED_BYTES = 16 << 20
"""Most disk space lost without a known cause before a thorough look."""
_THOROUGH_SHARE, _THOROUGH_S = 0.01, 60.0
"""Most of its time that a shim spends on that, and its longest interval."""
_UNCOUNTED_S = 5.0
"""How long a program may have uncountable descriptors in flight."""
_FOLDERS, _OUTPUT = (
    ("app", "tmp", "run", "volumes", *(("kept",) if os.geteuid() == 0 else ())),
    "output",
)
"""Kept files of an agent without root share the blocks of `run`."""


class Watch:
    """Enforces the limits in `wanted` for one replica in `folder`, whose program is not started yet; call `look` at `next_at`.

    `processes` returns the replica's pids. `memory_peak_bytes` is the highest measured value. For a replica
    that is still, the last readings are reused: paces and pauses are the same.
    """

    def __init__(
        self,
        folder: str,
        wanted: Watched,
        processes: Callable[[], Sequence[int]],
        *,
        has_own_shm: bool,
    ) -> None:
        self.memory_peak_bytes = 0
        self._wanted = wanted
        self._used = (0, 0)
        """Bytes of memory and threads, as last read."""
        self._processes = processes
        self._has_own_shm = has_own_shm
        self._disk = _Disk(folder, wanted)
        self._scarce = Scarce()
        self._memory_pace, self._process_pace = _Pace(_MEMORY_PACE), _Pace(_PROCESS_PACE)
        self._cpus = None if wanted["cpus"] is None else _some_cpus(folder, wanted["cpus"])
        # Looks would be most of the cost of a short program. A program with limited processors
        # reads their number at its start; and on a disk that could be full by the first look,
        # the present usage is the base of comparison.
        is_soon_short = self._disk.is_soon_short()
        if is_soon_short:
            self._disk.note_start()
        is_urgent = self._cpus is not None or is_soon_short
        self.next_at = time.monotonic() + (0.0 if is_urgent else FIRST_LOOK_S)

    def look(self, *, is_still: bool = False) -> Excess | None:
        """Look once; return the exceeded limit, or None.

        `is_still`: nothing of the replica has run since a look without it.
        """
        began = time.monotonic()
        excess, pause_s = self._look(began, is_still=is_still)
        ended = time.monotonic()
        pause_s = max(min(pause_s, _LONGEST_PAUSE_S), _SHORTEST_PAUSE_S, (ended - began) / _SHARE)
        self.next_at = ended + pause_s
        return excess

    def _look(self, now: float, *, is_still: bool) -> tuple[Excess | None, float]:
        excess, pause_s = self._disk.look(now, self._processes, is_still=is_still)
        if not is_still:
            self._read()
        if excess is None and now >= self._scarce.next_at:
            # also if it is still: others may need its resources
            text = self._scarce.look(self._processes)
            excess = (LIMIT_EXCEEDED, text) if text else None
        used, threads = self._used
        limit = self._wanted["process_count"]
        if limit is not None:
            pause_s = min(pause_s, self._process_pace.seconds_to(limit, threads, now))
            if threads > limit:
                excess = (LIMIT_EXCEEDED, processes_message(threads, limit))
        limit = self._wanted["memory_bytes"]
        if limit is not None:
            pause_s = min(pause_s, self._memory_pace.seconds_to(limit, used, now))
            if used > limit:
                excess = (OUT_OF_MEMORY, memory_message(used, limit))
        return excess, pause_s

    def _read(self) -> None:
        """Read limited resource usage of its processes, and bind them to their processors."""
        limit, most = self._wanted["memory_bytes"], self._wanted["process_count"]
        if limit is None and most is None and self._cpus is None:
            return
        pids = self._processes()
        if limit is not None or most is not None:
            rss, threads, shown = _rss_and_threads(pids)
            used = 0 if limit is None else self._memory(shown, rss, limit)
            self._used = (used, threads)
            self.memory_peak_bytes = max(self.memory_peak_bytes, used)
        if self._cpus is not None:
            _pin(pids, self._cpus)

    def _memory(self, pids: Sequence[int], rss: int, limit: int) -> int:
        """Return bytes in use: by the cheap reading, which overcounts shared pages, if that is enough."""
        shm = _shm_bytes(pids) if self._has_own_shm else 0
        if rss + shm <= limit:
            return rss + shm
        private = shared = 0
        for pid in pids:
            parts = _rollup(pid)
            shared += parts.get("Pss_Shmem", 0)
            private += parts.get("Pss", 0) - parts.get("Pss_Shmem", 0)
        return private + max(shared, shm)


class _Pace:
    """Growth of a quantity over time."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._last: tuple[float, float] | None = None

    def seconds_to(self, limit: float, used: float, now: float) -> float:
        """Return half the time until `limit` at the recent pace, with a high minimum."""
        pace = self._least
        if self._last is not None and now > self._last[0]:
            pace = max(pace, (used - self._last[1]) / (now - self._last[0]))
        self._last = (now, used)
        return max(limit - used, 0.0) / pace / 2


class _Disk:
    """Disk usage of the replica, and the disk's free space: bytes, and files.

    Below a floor a replica is ended if it has grown since there was room, and holds more than is left: so
    replicas that fill the disk end, the largest first, and those that do not grow or write little stay.
    """

    def __init__(self, folder: str, wanted: Watched) -> None:
        self._folder = folder
        self._limit = wanted["disk_bytes"]
        self._floor = wanted["disk_floor_bytes"]
        self._walk: Measurement | None = None
        self._held = Holding((), None, is_thorough=False)
        self._hidden: dict[int, int] = {}
        """Result of the last thorough look, bytes by file."""
        self._uncounted_since: float | None = None
        """When uncountable descriptors were first seen."""
        self._thorough_at = 0.0
        self._held_s = 0.0
        self._base: tuple[float, int, int] | None = None
        """Time of the last thorough look, with the usage of the disk and of the replica then."""
        self._walked_s = 0.0
        self._walk_at = 0.0
        self._occupied = 0
        self._is_suspected = False
        self._was_still = self._is_settled = False
        """Still since the walk began; the last whole walk was of a replica that is still so."""
        self._files = 0
        self._with_room: tuple[int, int] | None = None
        """Its bytes and files when there was room for all; None if unknown."""
        self._limit_pace, self._free_pace = _Pace(_DISK_PACE), _Pace(_DISK_PACE)
        self._files_pace = _Pace(_FILES_PACE)

    def look(
        self, now: float, processes: Callable[[], Sequence[int]], *, is_still: bool
    ) -> tuple[Excess | None, float]:
        """Return the exceeded limit, or None, and seconds until the next look."""
        if self._limit is None and not self._floor:
            return None, _LONGEST_PAUSE_S
        free, free_files, least_files, used = self._room()
        is_short = free < self._floor or free_files < least_files
        self._was_still = self._was_still and is_still
        self._is_settled = self._is_settled and is_still
        is_whole, has_too_many = self._is_settled, False
        if not self._is_settled:
            is_whole, has_too_many = self._measure(
                now, processes, used, is_still=is_still, is_hurried=is_short
            )
            self._is_settled = is_whole and self._was_still
        excess = self._excess(now, free, has_too_many=has_too_many, is_short=is_short)
        if excess is None and free_files < least_files and self._has_made_too_many(free_files):
            excess = (LIMIT_EXCEEDED, files_floor_message(self._files, free_files))
        if excess is not None:
            return excess, 0.0
        if is_whole and (self._with_room is None or not is_short):
            self._with_room = self._occupied, self._files
        pause_s = self._pause_s(now, free)
        if least_files:
            pause_s = min(pause_s, self._files_pace.seconds_to(-least_files, -free_files, now))
        return None, pause_s

    def note_start(self) -> None:
        """Measure it before its program runs, which may fill the disk before a look; a large one is measured later."""
        ends_at = time.monotonic() + _BEFORE_START_S
        *_, used = self._room()
        while (now := time.monotonic()) < ends_at:
            is_whole, _ = self._measure(now, list, used, is_still=False, is_hurried=False)
            if is_whole:
                self._with_room = self._occupied, self._files
                return

    def is_soon_short(self) -> bool:
        """Whether the disk has less room than the floor, or may have before the first look."""
        if not self._floor:
            return False
        free, free_files, least_files, _ = self._room()
        has_few_files = least_files > 0 and free_files < least_files + _AMPLE_S * _FILES_PACE
        return has_few_files or free < self._floor + _AMPLE_S * _DISK_PACE

    def _excess(
        self, now: float, free: int, *, has_too_many: bool, is_short: bool
    ) -> Excess | None:
        """Return the exceeded limit in bytes, or what cannot be counted."""
        if has_too_many and self._limit is not None:
            return (
                LIMIT_EXCEEDED,
                f"over {MOST_PENDING:,} folders at once: its disk limit cannot be kept",
            )
        since = self._uncounted_since
        if since is not None and now - since > _UNCOUNTED_S and (is_short or self._limit):
            return LIMIT_EXCEEDED, UNCOUNTED
        if self._limit is not None and self._is_over(self._limit):
            return LIMIT_EXCEEDED, disk_message(self._occupied, self._limit, self._files)
        if free < self._floor and self._has_grown_into(free):
            return LIMIT_EXCEEDED, floor_message(self._occupied, free)
        return None

    def _pause_s(self, now: float, free: int) -> float:
        pauses = [_LONGEST_PAUSE_S if self._walk is None else _WALK_S / _WALK_SHARE]
        if self._limit is not None:
            pauses.append(self._limit_pace.seconds_to(self._limit, self._occupied, now))
        if self._floor:
            pauses.append(self._free_pace.seconds_to(-self._floor, -free, now))
        return min(pauses)

    def _has_grown_into(self, free: int) -> bool:
        """Whether it used space that others need now."""
        if self._with_room is None:
            return False
        return self._occupied > max(self._with_room[0] + _FLOOR_SLACK_BYTES, free)

    def _has_made_too_many(self, free_files: int) -> bool:
        """Return the same for files."""
        if self._with_room is None:
            return False
        return self._files > max(self._with_room[1] + _FLOOR_SLACK_FILES, free_files)

    def _is_over(self, limit: int) -> bool:
        """Whether two walks confirm it: one may have counted a moved file twice."""
        if self._occupied <= limit:
            self._is_suspected = self._is_suspected and self._walk is not None
            return False
        if self._is_suspected:
            return True
        self._is_suspected, self._occupied, self._files = True, 0, 0
        self._walk, self._walk_at, self._is_settled = None, 0.0, False
        return False

    def _room(self) -> tuple[int, int, int, int]:
        """Return free bytes, free files, files to leave free, and bytes in use.

        Some file systems report 0 files. Without a floor nothing is left free.
        """
        try:
            space = os.statvfs(self._folder)
        except OSError:
            return self._floor, 0, 0, 0  # unknown: blame nobody
        used = (space.f_blocks - space.f_bfree) * space.f_frsize
        if not self._floor:
            return 0, 0, 0, used
        least_files = min(int(space.f_files * _FLOOR_SHARE), _MOST_FLOOR_FILES)
        return space.f_bavail * space.f_frsize, space.f_favail, least_files, used

    def _is_thorough(self, now: float, used: int, *, is_hurried: bool) -> bool:
        """Whether a thorough look is due, for files with neither a name nor a descriptor.

        It is when the disk lost more than was found here, for any reason, and while any are found.
        """
        since, base_used, base_occupied = self._base or (now, used, self._occupied)
        unexplained = (used - base_used) - (self._occupied - base_occupied)
        if self._base is None or unexplained < 0:
            self._base = since, used, self._occupied
        is_decisive = bool(self._hidden) and (self._is_suspected or is_hurried)
        if now < self._thorough_at and not is_decisive:
            return False
        most = (
            _UNEXPLAINED_BYTES if self._limit is None else min(_UNEXPLAINED_BYTES, self._limit // 8)
        )
        is_late = now - since > _THOROUGH_S
        has_any = bool(self._hidden) or self._uncounted_since is not None
        is_due = has_any or is_hurried or unexplained > most or is_late
        if is_due:
            self._base = now, used, self._occupied
        return is_due

    def _measure(
        self,
        now: float,
        processes: Callable[[], Sequence[int]],
        used: int,
        *,
        is_still: bool,
        is_hurried: bool,
    ) -> tuple[bool, bool]:
        """Walk one step: return whether that ended a whole walk, and whether it skipped folders.

        Results count at once.
        """
        if self._walk is None:
            if now < self._walk_at and not is_hurried:
                return False, False
            self._walk, self._walked_s = Measurement(self._folder, _FOLDERS, (_OUTPUT,)), 0.0
            self._was_still = is_still
            disk = disk_of(os.path.join(self._folder, _OUTPUT))
            is_thorough = self._is_thorough(now, used, is_hurried=is_hurried)
            self._held = Holding(processes(), disk, is_thorough=is_thorough)
            self._held_s = 0.0
        walk, began = self._walk, time.monotonic()
        self._look_for_hidden(self._held)
        walk.advance(_WALK_S / 2)
        ended = time.monotonic()
        self._walked_s += ended - began
        nameless = {**self._hidden, **self._held.files}
        found = walk.occupied_bytes + sum(nameless.values())
        if not (walk.done and self._held.done):
            self._occupied = max(self._occupied, found)
            self._files = max(self._files, walk.file_count)
            return False, False
        self._occupied, self._files, self._walk = found, walk.file_count, None
        self._walk_at = ended + self._walked_s / _WALK_SHARE
        return True, walk.has_too_many

    def _look_for_hidden(self, held: Holding) -> None:
        """Check deleted files a little, in turn with the walk: neither waits for the other."""
        if held.done:
            return
        began = time.monotonic()
        is_whole = held.advance(_WALK_S / 2)
        ended = time.monotonic()
        self._held_s += ended - began
        if is_whole and held.is_thorough:
            self._hidden = held.files
            if not held.is_incomplete:
                self._uncounted_since = None
            elif self._uncounted_since is None:
                self._uncounted_since = began
            self._thorough_at = ended + self._held_s / _THOROUGH_SHARE


def memory_excess(group: Group, limit: int | None, peak: int) -> Excess | None:
    """Whether the kernel killed a process of a group for memory; `peak` is the highest measured value."""
    if not group.kills_for_memory():
        return None
    if limit is None or not group.has_met_its_memory(limit, peak):
        return (
            OUT_OF_MEMORY,
            f"killed for memory: the machine had none left; it used {memory(peak)}",
        )
    return OUT_OF_MEMORY, memory_message(max(peak, group.memory_peak()), limit)


_UNITS = (("T", 10**12), ("G", 10**9), ("M", 10**6))
_NEARLY_ALL = 0.9


def memory_message(used: int, limit: int, machine: int | None = None) -> str:
    """Message of a replica that used all its memory; `machine`: its bytes, by default of this one.

    More than this machine has is advised only after nearly all of that: another may have more.
    """
    machine = machine or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # As `twice` rounds, it may be a little more than twice.
    is_capped = _NEARLY_ALL * machine > limit and 2.01 * limit > machine
    more = at_most(machine) if is_capped else twice(limit)
    return f"killed for memory: used {memory(used)} of {memory(limit)} given; try --memory {more}"


def disk_message(used: int, limit: int, files: int = 0) -> str:
    """Message of a replica that wrote too much; mentions many small files."""
    counted = files * FILE_BYTES
    small = f" ({files:,} files, {size(FILE_BYTES)} each at least)" if 2 * counted > used else ""
    return (
        f"wrote too much: {size(used)} on disk{small} of {size(limit)} given;"
        f" try --disk {twice(limit)}"
    )


def floor_message(used: int, free: int) -> str:
    """Message of a replica that left others no room."""
    return (
        f"ended to protect other sessions: the node's disk is full ({size(free)} left) and this"
        f" session, which holds {size(used)} of it, kept writing"
    )


def files_floor_message(files: int, free: int) -> str:
    """Message of a replica that left others no files to create."""
    return (
        f"ended to protect other sessions: the node's disk can hold only {free:,} more files, and this"
        f" session, which has made {files:,}, went on making them"
    )


def processes_message(used: int, limit: int) -> str:
    """Message of a replica that forked too much."""
    return f"too many processes: {used} of {limit} given; try --processes {2 * limit}"


def size(count: float) -> str:
    """Bytes for people: `1.5 GB`, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if round(count, 1) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def memory(count: float) -> str:
    """Bytes of memory for people: `1.5 GiB`, powers of 1024 as for all memory."""
    for unit in ("B", "KiB", "MiB"):
        if round(count, 1) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def twice(limit: int) -> str:
    """Twice a size, in the format of options: `2G`."""
    for unit, factor in _UNITS:
        if 2 * limit >= factor:
            return f"{2 * limit / factor:.3g}{unit}"
    return str(2 * limit)


def at_most(count: int) -> str:
    """A size in the format of options, rounded down to three digits: `25.2G` of 25.276e9."""
    for unit, factor in _UNITS:
        if count >= factor:
            whole = int(count // factor)
            step = 10 ** max(3 - len(str(whole)), 0)
            return f"{int(count * step // factor) / step:g}{unit}"
    return str(count)


def _rss_and_threads(pids: Iterable[int]) -> tuple[int, int, list[int]]:
    """Return resident bytes, shared ones counted repeatedly, threads, and a thread of each for /proc."""
    pages = threads = 0
    shown = []
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, StopIteration):
            fields = _stat(pid)
            threads += int(fields[17])
            if fields[0] == b"Z" and int(fields[17]) > 1:
                # its first thread has ended: use another
                others = os.listdir(f"/proc/{pid}/task")
                pid = next(int(name) for name in others if int(name) != pid)  # noqa: PLW2901
                fields = _stat(pid)
            pages += int(fields[21])
            shown.append(pid)
    return pages * os.sysconf("SC_PAGE_SIZE"), threads, shown


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on. Raises OSError."""
    return content_of(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _rollup(pid: int) -> dict[str, int]:
    """Return the parts of a process's memory, bytes, shared pages divided among their users."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in content_of(f"/proc/{pid}/smaps_rollup").decode().splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                found[words[0].rstrip(":")] = int(words[1]) * 1024
    return found


def _shm_bytes(pids: Iterable[int]) -> int:
    """Return bytes in the replica's own /dev/shm; 0 if not visible, or the machine's.

    A process without its own root yet still has the machine's, with others' files.
    """
    for pid in pids:
        with contextlib.suppress(OSError):
            path = f"/proc/{pid}/root/dev/shm"
            if _device_of(path) != _device_of("/dev/shm"):  # noqa: S108 - only looked at
                space = os.statvfs(path)
                return (space.f_blocks - space.f_bfree) * space.f_frsize
    return 0


def _device_of(path: str) -> int | None:
    """Return the device of `path`; None if it does not exist."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_dev
    return None


def _some_cpus(folder: str, cpus: float) -> frozenset[int] | None:
    """Choose processors for `cpus` cores, by a hash of its name; None if all are needed."""
    usable = sorted(os.sched_getaffinity(0))
    count = max(-int(-cpus // 1), 1)
    if count >= len(usable):
        return None
    first = hash_of(folder) % len(usable)
    return frozenset(usable[(first + number) % len(usable)] for number in range(count))


def hash_of(text: str) -> int:
    """Return the same number for the same text, in every process."""
    value = 0
    for byte in text.encode(errors="surrogateescape"):
        value = (value * 131 + byte) % 1_000_003
    return value


def _pin(pids: Iterable[int], cpus: Collection[int]) -> None:
    """Bind every thread to these processors, also those that the program rebound."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    if not os.sched_getaffinity(int(thread)) <= set(cpus):
                        os.sched_setaffinity(int(thread), cpus)
