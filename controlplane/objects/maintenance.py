"""Periodic maintenance of a packed object store: reconciles index and files, and frees wasted space."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.objects.blobs import content_of
from controlplane.objects.errors import BlobDamaged
from controlplane.objects.interface import VerifiedBlobs
from controlplane.objects.pack import (
    END_BYTES,
    PACK_BYTES,
    PACKS,
    PackDamaged,
    PackWriter,
    entries_of,
    footer_length,
    key_of,
    name_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from controlplane.history.sql.packs import SqlPacks
    from controlplane.history.values import BlobPlace, ListedPack, PackEntry
    from controlplane.objects.files import Files, FoundFile
    from controlplane.objects.loose import LooseBlobs

ADOPT_AFTER_S: Final = 3_600.0
"""Minimum age of unindexed packs: another control plane may have just written a younger one."""
EMPTY_S: Final = 3_600.0
"""How long a pack outlives its last blob."""

SMALL_BYTES: Final = 4 << 20
MANY_SMALL: Final = 16
"""Packs below SMALL_BYTES are merged once there are this many."""
COPY_BYTES: Final = 4 << 30
"""Limit of the bytes copied in one `maintain`."""
AT_ONCE: Final = 512
"""Batch size for file checks and moves of loose blobs."""

_IS_NAME: Final = re.compile("[0-9a-f]{32}")
"""Files with other names are not ours."""

_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Maintained:
    """Results of one `maintain`.

    Attributes:
        moved_in: loose blobs moved into packs.
        adopted: packs added to the index.
        lost: blobs of missing packs.
        copied, copied_bytes: blobs copied into other packs.
        removed: packs removed.
    """

    moved_in: int = 0
    adopted: int = 0
    lost: int = 0
    copied: int = 0
    copied_bytes: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies of blobs; `place` is their location as display text."""

    place: str
    blobs: Mapping[str, bytes]


class Maintenance:
    """Reconciles, merges and removes packs.

    Args:
        name: returns an unused pack name.
    """

    def __init__(
        self, files: Files, index: SqlPacks, loose: LooseBlobs, name: Callable[[], str]
    ) -> None:
        self._files = files
        self._index = index
        self._loose = loose
        self._name = name

    async def go(self, may: Callable[[], bool]) -> Maintained:
        """Run all steps once, while `may()` is true."""
        done = Maintained()
        await self.reconcile(done, adopt_after_s=ADOPT_AFTER_S)
        await self._move_all_in(done, may)
        await self._remove_empty(done, may)
        await self._copy_together(done, may)
        return done

    async def reconcile(self, done: Maintained, *, adopt_after_s: float) -> None:
        """Add unindexed packs to the index, and drop missing packs from it."""
        found = [file async for file in self._files.list(PACKS)]
        listed = {name: file for file in found if _IS_NAME.fullmatch(name := name_of(file.key))}
        known: set[str] = set()
        async for pack in self._packs():
            known.add(pack.name)
        before = await self._files.now() - adopt_after_s
        for name in sorted(listed.keys() - known):
            if listed[name].written_at <= before:
                done.adopted += await self._adopt(name, listed[name])
        gone = sorted(known - listed.keys())
        for start in range(0, len(gone), AT_ONCE):
            some = gone[start : start + AT_ONCE]
            there = await self._files.has([key_of(name) for name in some])
            lost = await self._index.forget([name for name in some if key_of(name) not in there])
            if lost:
                done.lost += lost
                _log.warning("objects.packs_lost", blobs=lost)

    async def _packs(self) -> AsyncIterator[ListedPack]:
        after = 0
        while page := await self._index.packs(after):
            for pack in page:
                yield pack
            after = page[-1].number

    async def verify(self) -> AsyncIterator[VerifiedBlobs]:
        """See ObjectStore: pack by pack, then loose blobs."""
        async for pack in self._packs():
            places = await self._index.entries(pack.name)
            if not places:
                continue
            wanted = [(place.start, place.stored) for place in places]
            found = await self._files.ranges(key_of(pack.name), wanted)
            read = partial(_damaged, places, found or [b""] * len(places))
            damaged = [
                place
                for place in await self._files.run(read)
                if not await _is_whole(self._files, place)
            ]
            for place in damaged:
                await self._index.damaged(place)
            yield VerifiedBlobs(
                count=len(places),
                stored_bytes=sum(place.stored for place in places),
                damaged=[place.digest for place in damaged],
            )
        async for loose in self._loose.list():
            framed = await self._loose.read(loose.digest)
            if framed is None:
                continue  # moved into a pack meanwhile
            is_damaged = await self._files.run(partial(_is_damaged, loose.digest, framed))
            damaged_one = [loose.digest] if is_damaged else []
            yield VerifiedBlobs(count=1, stored_bytes=loose.size, damaged=damaged_one)

    async def copies_of(self, digests: Collection[str]) -> AsyncIterator[Copies]:
        """Search all packs and loose blobs; yields each blob once, verified."""
        left = set(digests)
        async for file in self._files.list(PACKS):
            name = name_of(file.key)
            if not left or not _IS_NAME.fullmatch(name):
                continue
            try:
                entries = await self._entries(file) or []
            except PackDamaged:
                continue
            wanted = [one for one in entries if one.digest in left]
            for start in range(0, len(wanted), AT_ONCE):
                some = wanted[start : start + AT_ONCE]
                ranges = [(one.start, one.stored) for one in some]
                framed = await self._files.ranges(file.key, ranges)
                read = partial(_whole, [one.digest for one in some], framed or [])
                if blobs := await self._files.run(read):
                    left -= blobs.keys()
                    yield Copies(place=f"pack {name}", blobs=blobs)
        for digest in sorted(left):
            loose = await self._loose.read(digest)
            if loose is not None and (blobs := _whole([digest], [loose])):
                yield Copies(place="a file of its own", blobs=blobs)

    async def _adopt(self, name: str, file: FoundFile) -> bool:
        try:
            entries = await self._entries(file)
        except PackDamaged as error:
            _log.warning("objects.pack_damaged", pack=name, reason=str(error))
            return False
        if entries is None:
            return False
        await self._index.adopt(name, file.size, entries)
        return True

    async def _entries(self, file: FoundFile) -> list[PackEntry] | None:
        """Read the footer entries of a pack; None if the pack is gone."""
        at_end = max(file.size - END_BYTES, 0)
        end = await self._files.ranges(file.key, [(at_end, END_BYTES)])
        if end is None:
            return None
        length = footer_length(end[0])
        footer = await self._files.ranges(file.key, [(max(at_end - length, 0), length)])
        return None if footer is None else entries_of(footer[0], end[0], at_end - length)

    async def _move_all_in(self, done: Maintained, may: Callable[[], bool]) -> None:
        """Move loose blobs into packs."""
        some: list[tuple[str, bool]] = []
        size = 0
        async for loose in self._loose.list():
            some.append((loose.digest, loose.is_aside))
            size += loose.size
            if size >= PACK_BYTES or len(some) >= AT_ONCE:
                if not may():
                    return
                done.moved_in += await self.move_in(some)
                some, size = [], 0
        if some and may():
            done.moved_in += await self.move_in(some)
        await self._loose.look()

    async def move_in(self, some: Sequence[tuple[str, bool]]) -> int:
        """Move (digest, is_aside) loose blobs into a pack; return how many. Damaged blobs stay loose."""
        pack, aside = PackWriter(), set()
        known = await self._index.locate([digest for digest, _ in some])
        moved = [digest for digest, _ in some if digest in known]
        for digest, is_aside in some:
            framed = None if digest in known else await self._loose.read(digest)
            if framed is None:
                continue
            try:
                size = len(await self._files.run(partial(content_of, digest, framed)))
            except BlobDamaged as error:
                _log.warning("objects.blob_damaged", digest=digest, reason=error.why)
                continue
            pack.add(digest, (framed,), size)
            moved.append(digest)
            if is_aside:
                aside.add(digest)
        if pack.entries:
            name, pieces = self._name(), pack.finished()
            await self._files.put(key_of(name), pieces)
            await self._index.adopt(name, sum(map(len, pieces)), pack.entries, aside)
        await self._loose.remove(moved)
        return len(pack.entries)

    async def _remove_empty(self, done: Maintained, may: Callable[[], bool]) -> None:
        for name in await self._index.emptied(before_s=EMPTY_S):
            if not may():
                return
            # In this order: a file without a row would be adopted again.
            await self._files.remove(key_of(name))
            await self._index.forget([name])
            done.removed += 1

    async def _copy_together(self, done: Maintained, may: Callable[[], bool]) -> None:
        """Copy the remaining blobs of mostly deleted packs, and small packs, into new packs."""
        before = await self._index.now() - EMPTY_S
        wasteful, small = [], []
        async for pack in self._packs():
            if not pack.blobs or pack.put_at > before:
                continue
            if pack.stored < SMALL_BYTES:
                small.append(pack)
            elif pack.used < pack.stored // 2:
                wasteful.append(pack)
        chosen = wasteful + (small if len(small) >= MANY_SMALL else [])
        copying = _Copying(self._files, self._index, self._name, done)
        for pack in chosen:
            if not may() or done.copied_bytes > COPY_BYTES:
                return
            await copying.take(pack.name)
        await copying.finish()


async def _is_whole(files: Files, place: BlobPlace) -> bool:
    """Read a blob again and verify it: a single response of a service may be wrong."""
    found = await files.ranges(key_of(place.pack), [(place.start, place.stored)])
    if not found:
        return False
    return not await files.run(partial(_is_damaged, place.digest, found[0]))


def _whole(digests: Sequence[str], framed: Sequence[bytes]) -> dict[str, bytes]:
    """Return the content of the undamaged blobs by digest."""
    found = {}
    for digest, body in zip(digests, framed, strict=False):
        with contextlib.suppress(BlobDamaged):
            found[digest] = content_of(digest, body)
    return found


def _damaged(places: Sequence[BlobPlace], framed: Sequence[bytes]) -> list[BlobPlace]:
    pairs = zip(places, framed, strict=True)
    return [place for place, body in pairs if _is_damaged(place.digest, body)]


def _is_damaged(digest: str, framed: bytes) -> bool:
    try:
        content_of(digest, framed)
    except BlobDamaged:
        return True
    return False


class _Copying:
    """Copies blobs of several packs into new ones, in order and verified; damaged blobs stay in place."""

    def __init__(
        self, files: Files, index: SqlPacks, name: Callable[[], str], done: Maintained
    ) -> None:
        self._files = files
        self._index = index
        self._name = name
        self._done = done
        self._pack = PackWriter()
        self._moved: list[tuple[BlobPlace, PackEntry]] = []

    async def take(self, pack: str) -> None:
        places = await self._index.entries(pack)
        wanted = [(place.start, place.stored) for place in places]
        found = await self._files.ranges(key_of(pack), wanted)
        # A missing pack is handled by the next reconciliation.
        for place, framed in zip(places, found or (), strict=False):
            try:
                await self._files.run(partial(content_of, place.digest, framed))
            except BlobDamaged as error:
                if not await _is_whole(self._files, place):
                    _log.warning("objects.blob_damaged", digest=place.digest, reason=error.why)
                    await self._index.damaged(place)
                continue
            if self._pack.is_full(PACK_BYTES):
                await self.finish()
            self._moved.append((place, self._pack.add(place.digest, (framed,), place.size)))

    async def finish(self) -> None:
        if not self._moved:
            return
        name, pieces = self._name(), self._pack.finished()
        await self._files.put(key_of(name), pieces)
        await self._index.move(name, sum(map(len, pieces)), self._moved)
        self._done.copied += len(self._moved)
        self._done.copied_bytes += self._pack.size
        self._pack, self._moved = PackWriter(), []
