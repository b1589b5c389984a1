"""The room left in the stores, and the floor below which only the platform itself writes.

Ends, releases and acknowledgements need room even when users have filled all of theirs: so users' data
is refused before a store is full. Each store is checked every second; admitted bytes are subtracted
until the next check. For PostgreSQL, with its disk on another machine, the operator sets the largest size.
If the room is unknown (a bucket) there is no floor; the service's own limit applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import structlog

from controlplane.domain.conditions import ConditionName
from controlplane.domain.errors import LowOnRoom
from controlplane.store.interface import StoreError
from nsml.common.clock import in_own_thread
from nsml.common.concurrency import TaskGroup
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from controlplane.state.conditions import Conditions
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

LOOK_S: Final = 1.0
"""Interval between checks of each store."""
DATABASE_LOOK_S: Final = 10.0
"""The same for a database, which reads the size of each of its files."""
STALE_S: Final = 0.25
"""Maximum age of a check for admitting bulk data."""
WITHIN_S: Final = 5.0
"""Timeout of a check; the store's last values stay: its outage is another condition."""

SHARE: Final = 0.02
LEAST_BYTES: Final = 64 << 20
MOST_BYTES: Final = 2 << 30
LARGEST_SHARE: Final = 0.1
"""The default floor: 2 % of the disk, at least 64 MiB (on small disks a tenth), at most 2 GiB."""
WARNED_BYTES: Final = 8 << 20
"""Room above the floor at which a warning starts: bulk data does not fit any more."""
INODE_SHARE: Final = 0.02
MOST_INODES: Final = 100_000
QUOTA_SHARE: Final = 0.25
"""Part of the coordination store's quota reserved for the platform."""

STORE: Final = "store"
HISTORY: Final = "history"
OBJECTS: Final = "objects"

WORDS: Final[Mapping[str, str]] = {
    STORE: "the platform's store",
    HISTORY: "the platform's history",
    OBJECTS: "the platform's object store",
}

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Look:
    """A check's result: the bytes and files left for users (negative: none), and the evidence.

    At `warned_bytes` or less administrators are warned: larger data is refused already.
    `size_bytes`: bytes for users when it is empty; 0: unknown.
    """

    room_bytes: int
    has_files: bool
    evidence: str
    warned_bytes: int = 0
    size_bytes: int = 0

    @property
    def is_low(self) -> bool:
        """Whether users may write no more."""
        return self.room_bytes <= 0 or not self.has_files

    @property
    def is_warned_of(self) -> bool:
        """Whether it is low, or soon will be."""
        return self.room_bytes <= self.warned_bytes or not self.has_files


class Database(NamedTuple):
    """A database with an unknown disk: a query of its size, and its largest size; 0: not set."""

    size: Callable[[], Awaitable[int]]
    most_bytes: int


class FreeSpace:
    """The known room of each store.

    Args:
        database: of the history, if that has no folder.
        folders: the stores' folders, by store.
        store: queried for its quota.
        floor_bytes: to keep free on each disk; None: by its size, 0: no floor anywhere.
        stat: reads a folder's disk.
    """

    def __init__(
        self,
        *,
        folders: Mapping[str, Path],
        store: KeyValueStore,
        conditions: Conditions,
        clock: Clock,
        floor_bytes: int | None = None,
        database: Database | None = None,
        stat: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._store = store
        self._conditions = conditions
        self._clock = clock
        self._floor_bytes = floor_bytes
        self._stat = stat
        self._looks: dict[str, Callable[[], Awaitable[Look]]] = {}
        self._every_s: dict[str, float] = {}
        if floor_bytes != 0:
            self._looks = {
                f"{part} disk": lambda folder=folder: self._look_at(folder)  # type: ignore[misc]
                for part, folder in folders.items()
            }
            self._looks[STORE] = self._look_at_store
            if HISTORY not in folders and database is not None and database.most_bytes:
                name = f"{HISTORY} disk"
                self._looks[name] = lambda: self._look_at_database(database)
                self._every_s[name] = DATABASE_LOOK_S
        self._found: dict[str, tuple[Look, float]] = {}
        self._writing: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        """Bytes written since the last check, or being written."""

    async def run(self) -> None:
        """Check until cancelled; each store by itself: a hanging one does not block the others."""
        async with TaskGroup() as group:
            for name in self._looks:
                group.create_task(self._keep_looking(name), name=f"room.{name}")

    async def _keep_looking(self, name: str) -> NoReturn:
        while True:
            await self._look(name)
            await self._clock.sleep(self._every_s.get(name, LOOK_S))

    async def look(self) -> None:
        """Check all stores once."""
        for name in self._looks:
            await self._look(name)

    async def _look(self, name: str) -> None:
        # Bytes written during the check are subtracted once more, at most until the next one.
        written = self._taken[name] - self._writing[name]
        try:
            async with asyncio.timeout(WITHIN_S):
                found = await self._looks[name]()
        except (OSError, TimeoutError, StoreError) as error:
            _log.debug("room.unknown", store=name, reason=repr(error))
            return
        self._found[name] = found, self._clock.monotonic()
        self._taken[name] = max(self._taken[name] - written, 0)
        self._tell(name.partition(" ")[0])

    def _tell(self, part: str) -> None:
        looks = (self._found.get(name) for name in self._names(part))
        low = next((known[0] for known in looks if known and known[0].is_warned_of), None)
        self._conditions.set(
            ConditionName.LOW_ON_ROOM, part, stands=bool(low), evidence=low.evidence if low else ""
        )

    def _names(self, part: str) -> tuple[str, str]:
        return part, f"{part} disk"

    def _low(self, part: str) -> Look | None:
        for name in self._names(part):
            known = self._found.get(name)
            if known and (known[0].is_low or self._taken[name] >= known[0].room_bytes):
                return known[0]
        return None

    def room_bytes(self, part: str) -> int | None:
        """Return the bytes left for users on a store's disk; None if unknown."""
        name = f"{part} disk"
        known = self._found.get(name)
        return None if known is None else known[0].room_bytes - self._taken[name]

    def size_bytes(self, part: str) -> int | None:
        """Return the bytes for users on a store's disk when it is empty; None if unknown."""
        known = self._found.get(f"{part} disk")
        return (known[0].size_bytes or None) if known else None

    def is_low(self, part: str) -> bool:
        """Whether a store is at its floor."""
        return self._low(part) is not None

    @contextlib.asynccontextmanager
    async def taking(self, part: str, size: int) -> AsyncIterator[None]:
        """Admit bytes to a store; they are written in the context.

        Raises:
            LowOnRoom: together with others' writes they would go below its floor.
        """
        name = f"{part} disk"
        if name in self._looks:
            known = self._found.get(name)
            if known is None or self._clock.monotonic() - known[1] > STALE_S:
                await self._look(name)
        room = self.room_bytes(part)
        if self.is_low(part) or (room is not None and size > room):
            raise low_on_room(part)
        self.spend(part, size)
        self._writing[name] += size
        try:
            yield
        finally:
            self._writing[name] -= size

    def spend(self, part: str, size: int) -> None:
        """Subtract bytes being written to a store, until the next check; negative: they were not written."""
        name = f"{part} disk"
        if name in self._found:
            self._taken[name] = max(self._taken[name] + size, 0)

    async def _look_at(self, folder: Path) -> Look:
        # A network mount may hang.
        found = await in_own_thread(lambda: self._stat(folder))
        return look_of(found, folder, self._floor_bytes)

    async def _look_at_database(self, database: Database) -> Look:
        used, most = await database.size(), database.most_bytes
        floor = floor_of(most) if self._floor_bytes is None else self._floor_bytes
        evidence = f"{size_text(used)} of {size_text(most)} (history_bytes) are used"
        warned_bytes = max(floor // 2, min(WARNED_BYTES, most // 100))
        return Look(
            most - floor - used, has_files=True, evidence=evidence, warned_bytes=warned_bytes
        )

    async def _look_at_store(self) -> Look:
        space = await self._store.space()
        if not space.quota_bytes:
            return Look(1 << 62, has_files=True, evidence="")
        room = int(space.quota_bytes * (1 - QUOTA_SHARE)) - space.used_bytes
        used, quota = size_text(space.used_bytes), size_text(space.quota_bytes)
        return Look(room, has_files=True, evidence=f"{used} of a quota of {quota} are used")


def look_of(found: os.statvfs_result, folder: Path, floor_bytes: int | None) -> Look:
    """Return the room of a disk above its floor."""
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    floor = floor_of(size) if floor_bytes is None else floor_bytes
    least_files = min(int(found.f_files * INODE_SHARE), MOST_INODES)
    has_files = not found.f_files or found.f_favail > least_files
    evidence = (
        f"{size_text(free)} are free on the disk of {folder}; users may fill it to {size_text(floor)}"
        if has_files
        else f"{found.f_favail:,} more files can be created on the disk of {folder}"
    )
    warned = max(floor // 2, WARNED_BYTES)
    return Look(free - floor, has_files, evidence, warned_bytes=warned, size_bytes=size - floor)


def floor_of(size: int) -> int:
    """Return the default floor of a disk of this size."""
    wanted = min(max(int(size * SHARE), LEAST_BYTES), MOST_BYTES)
    return min(wanted, int(size * LARGEST_SHARE))


def low_on_room(part: str) -> LowOnRoom:
    """Build the refusal of users' data."""
    return LowOnRoom(
        f"{WORDS[part]} is almost full",
        why="the rest of its room is kept for the platform itself",
        attempt="again later; nsml status    shows since when, and what ends it",
    )
