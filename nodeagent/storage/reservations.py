"""Room on the disk for what is fetched: reserved before, looked at while it is written.

Trees come from users, and a manifest of a few bytes may lay out many. So a fetch begins only when all of
what it will lay out fits beside what others have reserved, in bytes and in files; trees that nobody uses
go for it, least recently used first. Trees that one user's sessions have asked for, and what is being
fetched for them, take at most a share of what all trees may take, as long as sessions of others have trees here or
fetch some: who is alone on a node has all of it.
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
    """Nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Size:
    """Room on a disk: bytes, and files and folders."""

    bytes: int = 0
    files: int = 0

    @classmethod
    def of(cls, size: int, files: int) -> Size:
        """What so many files and folders with `size` bytes take at most."""
        return cls(size + files * LEAST_FILE_BYTES, files)

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.files + other.files)

    def __sub__(self, other: Size) -> Size:
        return Size(self.bytes - other.bytes, self.files - other.files)

    def __le__(self, other: Size) -> bool:
        return self.bytes <= other.bytes and self.files <= other.files

    def at_least(self, other: Size) -> Size:
        """The larger of both, in bytes and in files."""
        return Size(max(self.bytes, other.bytes), max(self.files, other.files))

    def times(self, share: float) -> Size:
        """A part of it; of less than nothing, nothing."""
        return Size(int(max(self.bytes, 0) * share), int(max(self.files, 0) * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tree that is here: `kind` and `key` name it, `users` have asked for it, `used_at` in Unix seconds."""

    kind: str
    key: str
    size: Size
    users: frozenset[str]
    used_at: float
    is_used: bool


@dataclass(slots=True, kw_only=True)
class Claim:
    """What is reserved for a fetch of a user, and how much of that is not written yet."""

    user: str
    whole: Size
    left: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What is free of a disk, and how much of that is to stay free."""

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
    """The trees that go so that `need` fits, for `user`; none are used.

    `share` is the part (0 to 1) of the room of all trees and fetches that one user has beside others; 0: no limit, as for
    nobody (""). Others are users of trees in use and of fetches: what nobody uses goes for whoever comes.

    Raises:
        NoRoom: it does not fit, whatever goes.
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
    """Whether sessions of anybody else use the room."""
    return any(one.is_used and one.users - {user} for one in trees) or any(
        one.user not in {user, ""} for one in claims
    )


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, start=Size())


def _teller(need: Size, room: Size) -> Callable[[Size], str]:
    """How to say sizes for people: by what there is too little of."""
    if need.bytes > room.bytes:
        return lambda size: size_text(max(size.bytes, 0))
    return lambda size: counted(max(size.files, 0), "file")


class Trees(Cache, Protocol):
    """A cache of trees; blocking."""

    def kept(self) -> Iterable[Kept]:
        """All that can be removed; `is_used` where this cache itself needs it now."""
        ...

    def recount(self) -> None:
        """Look again how much of the disk each takes, where trees share files and some came or went."""
        ...


@dataclass(slots=True)
class Reservation:
    """Room for one fetch, as long as it lasts; for any thread."""

    place: Path
    floor_bytes: int
    claim: Claim
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Have the next `look` raise Cancelled."""
        self._cancelled.set()

    def look(self) -> None:
        """Raise Cancelled after `cancel`, and NoRoom when others have filled the disk meanwhile."""
        if self._cancelled.is_set():
            raise Cancelled
        disk = disk_of(self.place, self.floor_bytes)
        if not disk.keep <= disk.free:
            raise NoRoom("no room any more: the disk of this node ran full meanwhile")

    def spend(self, size: int, files: int = 0) -> None:
        """So much will be written now; raises as `look`, and NoRoom for more than was reserved."""
        self.look()
        with self._turn:
            left = self.claim.left - Size.of(size, files)
            if not Size() <= left:
                raise NoRoom("no room: it is larger than it was said to be")
            self.claim.left = left

    def extend(self, size: Size) -> None:
        """So much will be written that was expected to be here already; that others filled the disk shows in `look`."""
        with self._turn:
            self.claim.whole += size
            self.claim.left += size


class Room:
    """The room on the disk of one node for all that it fetches.

    Args:
        place: a folder on it; made by whoever has trees there.
        floor_bytes: the room at which sessions are ended.
        share: of one user; see `plan`.
        uses: what replicas need, as "KIND KEY"; blocking.
        run, run_long: for the disk; the second for what may take minutes.
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
        """These trees are counted, and go for others that come; `kind` is what they are called in uses."""
        self._stores[kind] = trees

    @asynccontextmanager
    async def reserved(
        self,
        whole: Size,
        user: str,
        *,
        here: Size = Size(),
    ) -> AsyncIterator[Reservation]:
        """Room for `whole`, for a session of `user`, while the context lasts; `here` is on the disk already.

        Raises:
            NoRoom: there is not so much, whatever goes.
            OSError: the disk refused.
        """
        claim, need = Claim(user=user, whole=whole, left=whole), (whole - here).at_least(Size())
        async with self._turn:
            tries_left = _MOST_TRIES
            while not self._fits(need, user):
                going = await uninterrupted(self._run_long, partial(self._plan, need, user))
                if not going:
                    break
                # Trees that share files may free less than expected: those that are left are looked at again.
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
        """Whether nothing has to go, as mostly: that is known at once."""
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
        """Remove a tree, unless a replica needs it; whether it is gone. Blocking; OSError when the uses cannot be known."""
        thing = f"{kind} {key}"
        return self._stores[kind].remove(key, lambda: thing in self._uses())

    def _remove(self, going: Sequence[Kept]) -> bool:
        """Whether any is gone."""
        is_any_gone = False
        for one in going:
            if self.discard(one.kind, one.key):
                is_any_gone = True
                log.info("tree.made_room", kind=one.kind, key=one.key[:16], size=one.size.bytes)
        return is_any_gone


def disk_of(place: Path, floor_bytes: int) -> Disk:
    """What is free of the disk of `place`; of one that counts no files, any number."""
    space = space_of(place)
    if space is None:
        return Disk(free=Size(1 << 62, 1 << 62), keep=Size())
    keep_bytes, keep_files = kept_free(space, floor_bytes)
    files = space.free_files if space.files else 1 << 62
    return Disk(free=Size(space.free, files), keep=Size(keep_bytes, keep_files))
