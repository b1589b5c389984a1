"""Reservations of disk space for fetches, checked while they write.

Trees come from users, and a manifest of a few bytes may describe a large tree. So a fetch begins only when
the whole tree fits beside other reservations, in bytes and in files; unused trees are evicted for it,
least recently used first. Trees requested by one user's sessions, and fetches for them, take at most a
share of the space of all trees, while sessions of other users have trees here or fetch some: the only user
of a node may take all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from nodeagent.storage.eviction import Cache, NoRoom, kept_free, space_of
from nodeagent.storage.transfer import uninterrupted
from nsml.common.clock import Offload, in_own_thread
from nsml.common.units import counted, size_text
from nsml.spec.request_limits import LEAST_FILE_BYTES

_MOST_TRIES: Final = 5

log = structlog.get_logger()


class Cancelled(Exception):
    """Nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Size:
    """Disk space: bytes, and files and folders."""

    bytes: int = 0
    files: int = 0

    @classmethod
    def of(cls, size: int, files: int) -> Size:
        """Return the most that so many files and folders with `size` bytes take."""
        return cls(size + files * LEAST_FILE_BYTES, files)

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.files + other.files)

    def __sub__(self, other: Size) -> Size:
        return Size(self.bytes - other.bytes, self.files - other.files)

    def __le__(self, other: Size) -> bool:
        return self.bytes <= other.bytes and self.files <= other.files

    def at_least(self, other: Size) -> Size:
        """Return the maximum of both, in bytes and in files."""
        return Size(max(self.bytes, other.bytes), max(self.files, other.files))

    def times(self, share: float) -> Size:
        """Return a share (0 to 1) of it; of negative space, 0."""
        return Size(int(max(self.bytes, 0) * share), int(max(self.files, 0) * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A cached tree: `kind` and `key` name it, `users` have requested it, `used_at` in Unix seconds."""

    kind: str
    key: str
    size: Size
    users: frozenset[str]
    used_at: float
    is_used: bool


@dataclass(slots=True, kw_only=True)
class Claim:
    """The reservation of a user's fetch; `left` is not written yet."""

    user: str
    whole: Size
    left: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Free space of a disk, and how much of it must stay free."""

    free: Size
    keep: Size


def plan(
    need: Size,
    user: str,
    *,
    disk: Disk,
    kept: Iterable[Kept],
    claims: Collection[Claim],
    share: float,
) -> list[Kept]:
    """Return the unused trees to evict so that `need` fits, for `user`.

    `share` (0 to 1) is one user's part of the space of all trees and fetches beside others; 0: no limit, as without a user
    (""). Others are users of trees in use and of fetches: unused trees are evicted for anyone.

    Raises:
        NoRoom: it does not fit, even after evictions.
    """
    trees = sorted(kept, key=lambda one: one.used_at)
    unused = [one for one in trees if not one.is_used]
    free = disk.free - disk.keep
    gone: list[Kept] = []
    if share and user and _has_others(user, trees, claims):
        written = _sum(one.whole - one.left for one in claims)
        most = (free + _sum(one.size for one in trees) + written).times(share)
        own = _sum(one.size for one in trees if user in one.users)
        own += _sum(one.whole for one in claims if one.user == user)
        for one in unused:
            if own + need <= most:
                break
            if user in one.users:
                gone.append(one)
                own -= one.size
        if not own + need <= most:
            say = _teller(need, most - own)
            raise NoRoom(
                f"no room for {say(need)}: the data of one user's sessions may take {say(most)} of this"
                f" node (user_cache_share), and {say(own)} are in use",
                is_of_user=True,
            )
    room = free - _sum(one.left for one in claims) + _sum(one.size for one in gone)
    for one in unused:
        if need <= room:
            break
        if one not in gone:
            gone.append(one)
            room += one.size
    if not need <= room:
        say = _teller(need, room)
        raise NoRoom(
            f"no room for {say(need)}: the rest of the disk is reserved for running sessions"
        )
    return gone


def _has_others(user: str, trees: Iterable[Kept], claims: Iterable[Claim]) -> bool:
    """Return whether sessions of other users use the space."""
    return any(one.is_used and one.users - {user} for one in trees) or any(
        one.user not in {user, ""} for one in claims
    )


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, start=Size())


def _teller(need: Size, room: Size) -> Callable[[Size], str]:
    """Return how to format sizes for people: in bytes or in files, whichever is short."""
    if need.bytes > room.bytes:
        return lambda size: size_text(max(size.bytes, 0))
    return lambda size: counted(max(size.files, 0), "file")


class Trees(Cache, Protocol):
    """A cache of trees; blocking."""

    def kept(self) -> Iterable[Kept]:
        """Return all removable trees; `is_used` if this cache itself needs them now."""
        ...

    def recount(self) -> None:
        """Compute the disk space of each tree again, if trees share files and some were added or removed."""
        ...


@dataclass(slots=True)
class Reservation:
    """Disk space of one fetch, while it lasts; thread-safe."""

    place: Path
    floor_bytes: int
    claim: Claim
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Make the next `look` raise Cancelled."""
        self._cancelled.set()

    def look(self) -> None:
        """Raise Cancelled after `cancel`, and NoRoom if others have filled the disk meanwhile."""
        if self._cancelled.is_set():
            raise Cancelled
        disk = disk_of(self.place, self.floor_bytes)
        if not disk.keep <= disk.free:
            raise NoRoom("no room any more: the disk of this node ran full meanwhile")

    def spend(self, size: int, files: int = 0) -> None:
        """Count what will be written now; raises as `look`, and NoRoom beyond the reservation."""
        self.look()
        with self._turn:
            left = self.claim.left - Size.of(size, files)
            if not Size() <= left:
                raise NoRoom("no room: it is larger than it was said to be")
            self.claim.left = left

    def extend(self, size: Size) -> None:
        """Reserve more, for files that were expected in the cache; a full disk shows in `look`."""
        with self._turn:
            self.claim.whole += size
            self.claim.left += size


class Room:
    """The disk space of one node for all its fetches.

    Args:
        place: a folder on the disk; created by its caches.
        floor_bytes: free bytes at which sessions are ended.
        share: of one user; see `plan`.
        uses: returns what replicas need, as "KIND KEY"; blocking.
        run, run_long: run disk work in threads; the second for work of minutes.
    """

    def __init__(
        self,
        place: Path,
        *,
        run: Offload,
        run_long: Offload = in_own_thread,
        floor_bytes: int = 0,
        share: float = 0.0,
        uses: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._place = place
        self._floor_bytes = floor_bytes
        self._share = share
        self._uses = uses
        self._run = run
        self._run_long = run_long
        self._stores: dict[str, Trees] = {}
        self._claims: list[Claim] = []
        self._turn = asyncio.Lock()

    def add(self, kind: str, trees: Trees) -> None:
        """Count these trees, and evict them for others; `kind` is their kind in uses."""
        self._stores[kind] = trees

    @asynccontextmanager
    async def reserved(
        self,
        whole: Size,
        user: str,
        *,
        here: Size = Size(),
    ) -> AsyncIterator[Reservation]:
        """Reserve `whole`, for a session of `user`, while the context lasts; `here` is on disk already.

        Raises:
            NoRoom: there is not enough space, even after evictions.
            OSError: the disk refused.
        """
        claim, need = Claim(user=user, whole=whole, left=whole), (whole - here).at_least(Size())
        async with self._turn:
            tries_left = _MOST_TRIES
            while not self._fits(need, user):
                going = await uninterrupted(self._run_long, partial(self._plan, need, user))
                if not going:
                    break
                # Trees that share files may free less than expected: the rest is planned again.
                if not await uninterrupted(self._run_long, partial(self._remove, going)):
                    tries_left -= 1
                if not tries_left:
                    raise NoRoom(
                        f"no room for {size_text(need.bytes)}: what goes for it is in use again"
                    )
            self._claims.append(claim)
        try:
            yield Reservation(self._place, self._floor_bytes, claim)
        finally:
            self._claims.remove(claim)

    def _fits(self, need: Size, user: str) -> bool:
        """Return whether it fits without evictions: the common case, checked quickly."""
        try:
            return not self._planned(need, user, lambda _: True)
        except NoRoom:
            return False

    def _plan(self, need: Size, user: str) -> list[Kept]:
        used = self._uses()
        for trees in self._stores.values():
            trees.recount()
        return self._planned(need, user, lambda thing: thing in used)

    def _planned(self, need: Size, user: str, is_used: Callable[[str], bool]) -> list[Kept]:
        kept = [
            replace(one, is_used=one.is_used or is_used(f"{one.kind} {one.key}"))
            for trees in self._stores.values()
            for one in trees.kept()
        ]
        return plan(
            need,
            user,
            disk=disk_of(self._place, self._floor_bytes),
            kept=kept,
            claims=list(self._claims),
            share=self._share,
        )

    def discard(self, kind: str, key: str) -> bool:
        """Remove a tree, unless a replica needs it; return whether it is gone. Blocking; OSError if the uses are unknown."""
        thing = f"{kind} {key}"
        return self._stores[kind].remove(key, lambda: thing in self._uses())

    def _remove(self, going: Sequence[Kept]) -> bool:
        """Remove trees; return whether any is gone."""
        is_any_gone = False
        for one in going:
            if self.discard(one.kind, one.key):
                is_any_gone = True
                log.info("tree.made_room", kind=one.kind, key=one.key[:16], size=one.size.bytes)
        return is_any_gone


def disk_of(place: Path, floor_bytes: int) -> Disk:
    """Return the free space of the disk of `place`; unlimited files if it counts none."""
    space = space_of(place)
    if space is None:
        return Disk(free=Size(1 << 62, 1 << 62), keep=Size())
    keep_bytes, keep_files = kept_free(space, floor_bytes)
    files = space.free_files if space.files else 1 << 62
    return Disk(free=Size(space.free, files), keep=Size(keep_bytes, keep_files))
