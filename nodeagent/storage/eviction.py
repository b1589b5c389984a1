"""Eviction on the node's disks: of data that can be fetched again, the least recently used goes first.

A replica notes what it needs in its folder before looking for it (`assignments.note_use`), so that
nothing in use is evicted, however long ago it was first requested.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

log = structlog.get_logger()


class NoRoom(OSError):
    """The disk has no room for it: it may fit later, or elsewhere. `is_of_user`: within the user's share."""

    def __init__(self, message: str, *, is_of_user: bool = False) -> None:
        super().__init__(errno.ENOSPC, message)
        self.is_of_user = is_of_user


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A filesystem: its bytes, and free ones; its files, and how many more can be created.

    With 0 `files` it counts none.
    """

    size: int
    free: int
    files: int
    free_files: int


def space_of(place: Path) -> Space | None:
    """Return the filesystem of `place`; None if it is missing, or cannot be read."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return Space(
        size=found.f_blocks * found.f_frsize,
        free=found.f_bavail * found.f_frsize,
        files=found.f_files,
        free_files=found.f_favail,
    )


class Cache(Protocol):
    """Entries that can be fetched again, by key; blocking."""

    def stored(self) -> Mapping[str, float]:
        """Return the last use of each, Unix seconds."""
        ...

    def touch(self, key: str) -> None:
        """Mark it as used now; unknown keys are ignored."""
        ...

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it, unless it is used or being made; return whether it is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A cache, the kind of its entries in a replica's uses, and their place on disk."""

    kind: str
    cache: Cache
    place: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFree:
    """Space to keep free on a filesystem: the smaller of a share of it (0 to 1) and of bytes."""

    share: float
    bytes: int

    def is_short(self, space: Space) -> bool:
        """Return whether fewer bytes than that are free."""
        return space.free < min(self.share * space.size, self.bytes)


_NOTHING = Space(size=0, free=0, files=0, free_files=0)
"""Of a missing place: it is short of nothing."""
_LAST = KeepFree(share=0.04, bytes=4 << 30)
"""Space that no build and no pull may take,"""
_OVER_FLOOR = 2
"""and this many times the floor of sessions: builds and pulls end before running sessions."""
_SHORT = KeepFree(share=0.04, bytes=4 << 30)
"""With less, people are warned."""


def relieve(stores: Sequence[Store], keep: KeepFree, uses: Callable[[], frozenset[str]]) -> None:
    """Evict unused entries from stores whose filesystem is short of room or files, oldest use first.

    `uses` returns what replicas need, as "KIND KEY"; this counts as used now. Blocking. Raises
    OSError if the uses are unknown.
    """
    used = uses()
    unused: list[tuple[float, Store, str]] = []
    for store in stores:
        for kind, _, key in (thing.partition(" ") for thing in used):
            if kind == store.kind:
                store.cache.touch(key)
        if _is_short(store.place, keep):
            unused += (
                (at, store, key)
                for key, at in store.cache.stored().items()
                if f"{store.kind} {key}" not in used
            )
    for _, store, key in sorted(unused, key=lambda one: one[0]):
        if _is_short(store.place, keep):
            _remove(store, key, uses)


def is_full(place: Path, floor_bytes: int) -> bool:
    """Return whether builds and pulls on the disk of `place` must end, since others need some of it too.

    `floor_bytes`: free bytes below which sessions are ended.
    """
    return room_for_builds(place, floor_bytes) < 0


def room_for_builds(place: Path, floor_bytes: int) -> int:
    """Return the bytes that builds may write to the disk of `place` before they are ended; negative: now.

    `floor_bytes` as of `is_full`.
    """
    space = space_of(place) or _NOTHING
    kept, _ = kept_free(space, floor_bytes)
    return space.free - kept


def lacks_files(place: Path) -> bool:
    """Return whether the filesystem of `place` can hold few further files, however small; False if it counts none."""
    return _lacks(_LAST.share, place)


def shortage(place: Path) -> str:
    """Describe low space on the disk of `place`, for people, before anything is ended; "" for enough."""
    space = space_of(place) or _NOTHING
    if not _SHORT.is_short(space):
        return ""
    return f"{size_text(space.free)} of {size_text(space.size)} are free on the disk of {place}"


def kept_free(space: Space, floor_bytes: int) -> tuple[int, int]:
    """Return bytes and files of a disk that fetches and builds leave free: see `is_full`."""
    most = min(round(_LAST.share * space.size), _LAST.bytes)
    return max(most, min(_OVER_FLOOR * floor_bytes, space.size)), round(_LAST.share * space.files)


def most_data(place: Path, floor_bytes: int) -> int:
    """Return the bytes of datasets that the disk of `place` could hold if empty; 0: unknown.

    In whole GB, so that disks of one model are equal.
    """
    space = space_of(place)
    if space is None:
        return 0
    most = max(space.size - kept_free(space, floor_bytes)[0], 1)
    return most - most % 10**9 if most > 10**10 else most


def _remove(store: Store, key: str, uses: Callable[[], frozenset[str]]) -> None:
    """Remove an entry; a failure must not keep the others."""
    try:
        if store.cache.remove(key, lambda: f"{store.kind} {key}" in uses()):
            log.info("disk.relieved", kind=store.kind, key=key)
    except Exception as error:  # noqa: BLE001 - an engine's and a disk's errors alike
        log.warning("disk.not_relieved", kind=store.kind, key=key, error=str(error))


def _is_short(place: Path, keep: KeepFree) -> bool:
    return keep.is_short(space_of(place) or _NOTHING) or (
        bool(keep.bytes) and _lacks(keep.share, place)
    )


def _lacks(share: float, place: Path) -> bool:
    space = space_of(place) or _NOTHING
    return space.free_files < share * space.files
