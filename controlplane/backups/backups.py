"""Contents of a backup: read while the platform runs, written on restore.

The order makes it consistent: first the store's records, at one revision; then the history, at one later
time; then the list of blobs. A session exported in between is in both of the first two, never in neither
(the history's record is newer: see `startup/restore.py`), and no blob that they refer to is missing,
because blobs are stored before references to them.
"""

from __future__ import annotations

import struct
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.domain.cluster import DATA_VERSION
from controlplane.domain.errors import NotFound, NsmlError, TooLarge
from controlplane.domain.names import check_digest
from controlplane.history.portable import Batch
from controlplane.objects.errors import BlobDamaged
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.store.interface import KeyValue, KeyValueStore
    from nsml.common.clock import Clock

MOST_ASKED: Final = 1_000
PIECE_BYTES: Final = 1 << 20

_LENGTH: Final = struct.Struct(">I")
_MOST_FRAME_BYTES: Final = 512 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_records = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


class BackupDamaged(NsmlError):
    """A part of a backup cannot be read."""

    reason = "BACKUP_DAMAGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The platform, and the time of the backup."""

    cluster_id: str
    data_version: int
    revision: int
    taken_at: float


@dataclass(frozen=True, slots=True)
class Piece:
    """The next bytes of a part."""

    part: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LostBlob:
    """A blob that is missing, or does not match its digest."""

    digest: str
    why: str


class Backups:
    """Reads the platform's data."""

    def __init__(
        self, *, store: KeyValueStore, history: History, objects: ObjectStore, clock: Clock
    ) -> None:
        self._store = store
        self._history = history
        self._objects = objects
        self._clock = clock

    async def create(self, *, without_objects: bool) -> AsyncGenerator[Taken | Piece, None]:
        """Yield the platform, then its parts in order."""
        listing = await self._store.list("")
        kept = [item for item in listing.items if item.lease is None]
        cluster = next((item for item in kept if item.key == etcd_codec.CLUSTER), None)
        if cluster is None:
            raise NotFound("there is no platform in the store")
        yield Taken(
            cluster_id=etcd_codec.decode_cluster(cluster.value).id,
            data_version=DATA_VERSION,
            revision=listing.revision,
            taken_at=self._clock.time(),
        )
        # In order of creation: a restore decides ownership by it.
        for data in _record_frames(sorted(kept, key=lambda item: item.create_revision)):
            yield Piece("store", data)
        async with aclosing(self._history.dump()) as batches:
            async for batch in batches:
                yield Piece("history", _frame(batch))
        if not without_objects:
            digests = sorted(await self._digests())
            for start in range(0, len(digests), 10_000):
                lines = "".join(f"{digest}\n" for digest in digests[start : start + 10_000])
                yield Piece("objects", lines.encode())

    async def _digests(self) -> set[str]:
        """List all blobs. Those set aside may be referenced (`content/object_gc.py`), and may move meanwhile."""
        found = {blob.digest async for blob in self._objects.list_aside()}
        found.update([blob.digest async for blob in self._objects.list()])
        found.update([blob.digest async for blob in self._objects.list_aside()])
        return found

    async def blobs(self, digests: Sequence[str]) -> AsyncIterator[tuple[str, bytes] | LostBlob]:
        """Yield each blob, or LostBlob.

        Raises:
            TooLarge: more than MOST_ASKED digests.
        """
        if len(digests) > MOST_ASKED:
            raise TooLarge(f"at most {MOST_ASKED} digests at a time")
        for digest in map(check_digest, digests):
            try:
                yield digest, await self._objects.get(digest)
            except (NotFound, BlobDamaged) as error:
                yield LostBlob(digest, error.why or error.message)


def records_in(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield keys and values of the part "store", in order of creation; raises BackupDamaged."""
    for frame in _frames(pieces):
        try:
            yield from _decode_records(frame)
        except msgspec.DecodeError as error:
            raise BackupDamaged("the part store cannot be read", why=str(error)) from error


def batches_in(pieces: Iterable[bytes]) -> Iterator[Batch]:
    """Yield rows of the part "history"; BackupDamaged."""
    for frame in _frames(pieces):
        try:
            yield _decode_batch(frame)
        except msgspec.DecodeError as error:
            raise BackupDamaged("the part history cannot be read", why=str(error)) from error


def _record_frames(items: Sequence[KeyValue]) -> Iterator[bytes]:
    gathered: list[tuple[str, bytes]] = []
    size = 0
    for item in items:
        gathered.append((item.key, item.value))
        size += len(item.key) + len(item.value)
        if size >= PIECE_BYTES:
            yield _frame(gathered)
            gathered, size = [], 0
    if gathered:
        yield _frame(gathered)


def _frame(value: object) -> bytes:
    body = _encode(value)
    return _LENGTH.pack(len(body)) + body


def _frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Split a byte stream into frames."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(held)
            if size > _MOST_FRAME_BYTES:
                raise BackupDamaged("a part cannot be read", why=f"a frame of {size} bytes")
            if len(held) < _LENGTH.size + size:
                break
            yield bytes(held[_LENGTH.size : _LENGTH.size + size])
            del held[: _LENGTH.size + size]
    if held:
        raise BackupDamaged("a part cannot be read", why="it ends within a frame")
