"""The object store: blobs in packs, and an index of their places in the history database.

A put writes one pack (`pack.py`), as one flushed file or one upload to a bucket, and then commits one transaction of
the index. It is acknowledged once both are durable: a blob exists when its row does. Packs are immutable.
Differences between index and files, after a crash or a restored backup, are reconciled by `maintenance.py`:
unindexed packs are added from their footers; rows of missing packs are removed, so that their blobs are reported
missing and can be sent again.

Blobs are put aside, taken back and deleted in the index only. A pack is removed once it has been without blobs
for `EMPTY_S`, so that reads with an earlier index lookup still succeed. Mostly deleted packs, and many small
ones, are merged into new packs.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.names import check_digest
from controlplane.history.errors import HistoryFull, HistoryUnavailable
from controlplane.objects.blobs import content_of
from controlplane.objects.checking import check_blobs
from controlplane.objects.errors import (
    BlobDamaged,
    BlobNotFound,
    ObjectsFull,
    ObjectsUnavailable,
)
from controlplane.objects.interface import StoredBlob, VerifiedBlobs
from controlplane.objects.loose import LooseBlobs
from controlplane.objects.maintenance import ADOPT_AFTER_S, Maintained, Maintenance
from controlplane.objects.pack import PACK_BYTES, PackWriter, key_of
from nsml.content.framing import frame_pieces

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterator,
        Mapping,
        Sequence,
    )

    from controlplane.history.sql.packs import SqlPacks
    from controlplane.history.values import BlobPlace
    from controlplane.objects.files import Files

READ_AT_ONCE: Final = 512

_log = structlog.get_logger()


class PackedObjects:
    """See interface.ObjectStore.

    Args:
        name: returns an unused pack name.
    """

    def __init__(
        self,
        files: Files,
        index: SqlPacks,
        *,
        name: Callable[[], str] | None = None,
    ) -> None:
        self._files = files
        self._index = index
        self._name = name or partial(secrets.token_hex, 16)
        self._loose = LooseBlobs(files)
        self._maintenance = Maintenance(files, index, self._loose, self._name)
        self._maintaining = asyncio.Lock()

    async def prepare(self) -> None:
        """Reconcile the index with these objects; call before any other method."""
        with _translated():
            mark = await self._files.mark()
            is_theirs = bool(mark) and await self._index.made_for() == mark
            if self._files.is_folder or not is_theirs:
                await self._maintenance.reconcile(
                    Maintained(), adopt_after_s=ADOPT_AFTER_S * is_theirs
                )
            await self._loose.look()
            if mark and not is_theirs:
                await self._index.is_made_for(mark)

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        wanted = {check_digest(digest) for digest in digests}
        with _translated():
            absent = await self._index.missing(wanted)
            absent -= await self._loose.named(absent)
        await self._files.check_there()
        return absent

    async def losses(self) -> str:
        """See ObjectStore."""
        with _translated():
            return await self._index.losses()

    async def put(self, digest: str, data: bytes) -> None:
        """See ObjectStore."""
        await self.put_many({digest: data})

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """See ObjectStore.

        Existing blobs are written again, too: timing must not reveal their presence.
        """
        for pack in await self._files.run(lambda: _packed(blobs)):
            with _translated():
                await self._put(pack)

    async def _put(self, pack: PackWriter) -> None:
        name = self._name()
        pieces = pack.finished()
        await self._files.put(key_of(name), pieces)
        # If the index write has an unknown outcome, the pack stays and is adopted later.
        if not await self._index.put(name, sum(map(len, pieces)), pack.entries):
            await self._files.remove(key_of(name))

    async def get(self, digest: str) -> bytes:
        """See ObjectStore."""
        check_digest(digest)
        with _translated():
            # Retry once: the blob may have been moved during the first lookup, or one response of a
            # service may be wrong.
            for is_last in (False, True):
                place = (await self._index.locate([digest])).get(digest)
                framed = await self._framed(place) if place else await self._loose.read(digest)
                if framed is None:
                    continue
                try:
                    return await self._files.run(partial(content_of, digest, framed))
                except BlobDamaged:
                    if not is_last:
                        continue
                    if place:
                        await self._index.damaged(place)
                    raise
            if place:
                await self._index.damaged(place)
        await self._files.check_there()
        raise BlobNotFound(f"there is no blob {digest}")

    async def _framed(self, place: BlobPlace) -> bytes | None:
        found = await self._files.ranges(key_of(place.pack), [(place.start, place.stored)])
        return found[0] if found else None

    async def get_first(self, digests: Sequence[str], most_bytes: int) -> list[bytes]:
        """See ObjectStore."""
        for digest in digests:
            check_digest(digest)
        some: list[bytes] = []
        if len(digests) > 1:
            with _translated():
                places = await self._index.locate(digests[:READ_AT_ONCE])
                some = await self._read_first(_first(digests, places, most_bytes))
        return some or [await self.get(digests[0])]

    async def _read_first(self, places: Sequence[BlobPlace]) -> list[bytes]:
        """Read these blobs up to the first unreadable one; `get` raises its error."""
        by_pack: dict[str, list[BlobPlace]] = defaultdict(list)
        for place in places:
            by_pack[place.pack].append(place)
        framed: dict[BlobPlace, bytes] = {}
        for pack, theirs in by_pack.items():
            wanted = [(place.start, place.stored) for place in theirs]
            found = await self._files.ranges(key_of(pack), wanted)
            framed.update(zip(theirs, found or (), strict=False))

        def contents() -> list[bytes]:
            read: list[bytes] = []
            with contextlib.suppress(KeyError, BlobDamaged):
                for place in places:
                    read.append(content_of(place.digest, framed.pop(place)))  # noqa: PERF401
            return read

        return await self._files.run(contents)

    async def put_aside(self, digests: Collection[str], may: Callable[[], bool]) -> set[str]:
        """See ObjectStore. Loose blobs are not put aside before they are in a pack."""
        return await self._changed(partial(self._index.put_aside, may=may), digests)

    async def take_back(self, digests: Collection[str]) -> None:
        """See ObjectStore."""
        with _translated():
            aside = await self._loose.aside({check_digest(digest) for digest in digests})
            if aside:
                await self._maintenance.move_in([(digest, False) for digest in sorted(aside)])
        await self._changed(self._index.take_back, digests)

    async def delete(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        return await self._changed(self._index.delete, digests)

    async def _changed(self, change: Callable[..., object], digests: Collection[str]) -> set[str]:
        wanted = {check_digest(digest) for digest in digests}
        await self._files.check_there()
        with _translated():
            return await change(wanted)  # type: ignore[misc, no-any-return]

    def list(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        return self._list(is_aside=False)

    def list_aside(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        return self._list(is_aside=True)

    async def _list(self, *, is_aside: bool) -> AsyncIterator[StoredBlob]:
        await self._files.check_there()
        with _translated():
            after = ""
            while page := await self._index.blobs(after, is_aside=is_aside):
                for blob in page:
                    yield StoredBlob(*blob)
                after = page[-1].digest
            async for loose in self._loose.list():
                # Blobs that are in a pack, too, were listed above.
                if loose.is_aside == is_aside and not await self._index.locate([loose.digest]):
                    yield StoredBlob(loose.digest, loose.size, loose.at)

    async def now(self) -> float:
        """See ObjectStore."""
        await self._files.check_there()
        with _translated():
            return await self._index.now()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore."""
        return await self._files.mark(fresh)

    async def verify(self) -> AsyncIterator[VerifiedBlobs]:
        """See ObjectStore."""
        await self._files.check_there()
        with _translated():
            async for verified in self._maintenance.verify():
                yield verified

    async def recover(self, digests: Collection[str]) -> dict[str, str]:
        """See ObjectStore: searches all packs, even if the index has another place."""
        left = {check_digest(digest) for digest in digests}
        found: dict[str, str] = {}
        if not left:
            return found
        await self._files.check_there()
        with _translated():
            async for copy in self._maintenance.copies_of(left):
                for digest in copy.blobs:
                    found[digest] = copy.place
                left -= copy.blobs.keys()
                await self.put_many(copy.blobs)
        return found

    async def maintain(self, may: Callable[[], bool]) -> None:
        """See ObjectStore."""
        async with self._maintaining:
            with _translated():
                done = await self._maintenance.go(may)
            if any(asdict(done).values()):
                _log.info("objects.maintained", **asdict(done))


def _packed(blobs: Mapping[str, bytes | memoryview]) -> list[PackWriter]:
    check_blobs(blobs)
    packs = [PackWriter()]
    for digest, data in blobs.items():
        if packs[-1].is_full(PACK_BYTES):
            packs.append(PackWriter())
        packs[-1].add(digest, frame_pieces(data), len(data))
    return [pack for pack in packs if pack.entries]


def _first(
    digests: Sequence[str], places: Mapping[str, BlobPlace], most_bytes: int
) -> list[BlobPlace]:
    """Return places until `most_bytes` are reached (at least one) or a blob is in no pack."""
    found: list[BlobPlace] = []
    size = 0
    for digest in digests:
        if digest not in places or (found and size >= most_bytes):
            break
        found.append(places[digest])
        size += places[digest].size
    return found


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the index to errors of the object store, which needs it."""
    try:
        yield
    except HistoryUnavailable as error:
        kind = ObjectsFull if isinstance(error, HistoryFull) else ObjectsUnavailable
        raise kind(
            "the index of the object store cannot be used now",
            why=": ".join(filter(None, (error.message, error.why))),
            attempt=error.attempt,
        ) from error
