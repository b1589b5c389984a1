"""The object store: blobs in packs, and an index in the history that says which is where.

A put is one pack (`pack.py`): one file that is flushed, or one upload to a bucket, and then one transaction of the
index. So it is acknowledged only once both are durable, and a blob is there when its row is. A pack is never changed.
What the index has and the files do not, or the other way round, after a crash or a backup that was put back, is found
by `maintenance.py`: packs that the index does not know are taken in, by what they say of themselves;
rows of packs that are gone are removed, so that their blobs are missing and can be sent again.

Blobs are put aside, taken back and deleted in the index alone. A pack is removed once nothing has been read from it
for `EMPTY_S`: who had asked the index before gets its blob still. Packs that are mostly deleted blobs, and many small
ones, are copied together into new ones.
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
        name: gives a name that no pack has.
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
        """Make the index one of these objects; before anything is asked of them."""
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

        All are written, also those that are here: nobody can tell by the time that it takes.
        """
        for pack in await self._files.run(lambda: _packed(blobs)):
            with _translated():
                await self._put(pack)

    async def _put(self, pack: PackWriter) -> None:
        name = self._name()
        pieces = pack.finished()
        await self._files.put(key_of(name), pieces)
        # Where it is not known whether the index took it in, the pack stays, and is adopted.
        if not await self._index.put(name, sum(map(len, pieces)), pack.entries):
            await self._files.remove(key_of(name))

    async def get(self, digest: str) -> bytes:
        """See ObjectStore."""
        check_digest(digest)
        with _translated():
            # The second time: it may have been moved while the first looked for it, and one answer of a
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
        """The first of these that can be read: `get` says why another one cannot be."""
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
        """See ObjectStore. What is in no pack yet is not put aside before it is."""
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
                # Those that are in a pack, too, were told of above.
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
        """See ObjectStore: from any pack that has it, also where the index says that it is elsewhere."""
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
    """The places of the first of these blobs, up to so many bytes together or the first that is in no pack."""
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
    """What the index says, as the object store's: without it nothing is found."""
    try:
        yield
    except HistoryUnavailable as error:
        kind = ObjectsFull if isinstance(error, HistoryFull) else ObjectsUnavailable
        raise kind(
            "the index of the object store cannot be used now",
            why=": ".join(filter(None, (error.message, error.why))),
            attempt=error.attempt,
        ) from error
