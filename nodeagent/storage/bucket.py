"""Reads chunks of datasets directly from the platform's bucket, by URLs from the control plane.

A URL is a secret: anyone with it can read a pack for a few minutes. It is in no log and no message of ours. Nothing
received is trusted: each chunk is compared with its digest. A bucket that this node cannot read is not used for a while;
the control plane sends the missing chunks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from nodeagent.storage.bucket_reader import BucketReader, Gone, NotRead, Reading
from nodeagent.storage.transfer import uninterrupted
from nsml.client.errors import ClientError
from nsml.content.digests import digest_of
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import unframe
from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from nodeagent.peers.sources import ChunkLocation
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Clock, Offload
    from nsml.content.manifest import ChunkRef

BUCKET: Final = "bucket"
_ASKED_AT_ONCE: Final = 2_000
_PART_BYTES: Final = 4 << 20
"""Bytes of one request,"""
_GAP_BYTES: Final = 64 << 10
"""with gaps between chunks up to this size."""
_LOCATED_FOR_S: Final = 240.0
"""How long URLs are used: they are valid for five minutes, and a read begins before they expire."""
_LONGEST_S: Final = 60.0
"""Timeout of one read: a slower bucket is not used."""
_AWAY_FOR_S: Final = 300.0
"""How long an unreadable bucket is not used."""

log = structlog.get_logger()


class _Frame(NamedTuple):
    """A chunk, and where its frame is in a pack."""

    ref: ChunkRef
    start: int
    stored: int

    @property
    def end(self) -> int:
        return self.start + self.stored


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a pack read by one request; never printed, since the URL is a secret."""

    url: str
    frames: Sequence[_Frame]

    def __repr__(self) -> str:
        return f"_Part({len(self.frames)} frames)"


class Bucket:
    """The platform's bucket, as read by one agent; `close` ends its connections.

    Args:
        rpc: returns the current connection.
        run_long: runs work of a minute in a thread.
        allows_plaintext: see BucketReader.
        changed: called with each new note for people.
    """

    def __init__(
        self,
        *,
        rpc: Callable[[], Rpc],
        run_long: Offload,
        clock: Clock,
        allows_plaintext: bool,
        changed: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.is_offered = False
        """Whether the control plane may send URLs."""
        self._rpc = rpc
        self._run = run_long
        self._clock = clock
        self._allows_plaintext = allows_plaintext
        self._changed = changed
        self._readers: dict[bytes, BucketReader] = {}
        self._turn = threading.Lock()
        self._left_alone_until = 0.0
        self._note = ""

    def close(self) -> None:
        """Close connections."""
        for reader in self._readers.values():
            reader.close()

    def of(self, root: str) -> BucketChunks:
        """Return the source of a dataset version's chunks."""
        return BucketChunks(self, root)

    def is_used(self) -> bool:
        """Whether it may be read now."""
        return self.is_offered and self._clock.monotonic() >= self._left_alone_until

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    async def locate(self, root: str, digests: Sequence[str]) -> pb.LocateBlobsResponse:
        """Return the locations of these blobs; some or all may be missing."""
        request = pb.LocateBlobsRequest(root=root, digests=digests)
        try:
            return await self._rpc().unary(
                "ContentService/LocateBlobs", request, pb.LocateBlobsResponse
            )
        except ClientError as error:
            # If GetBlobs fails too, its caller gets the reason.
            log.info("bucket.not_located", digest=root[:16], error=error.message)
            return pb.LocateBlobsResponse()

    async def read(self, part: _Part, authority: bytes) -> list[tuple[ChunkRef, bytes]]:
        """Return the chunks of a part that match their digests."""
        reading = Reading()
        work = partial(self._read, part, authority, reading)
        try:
            async with asyncio.timeout(_LONGEST_S):
                found = await uninterrupted(self._run, work, cancel=reading.end)
        except TimeoutError:
            self._leave_alone("it is too slow")
            return []
        except Gone:
            return []  # moved since, which says nothing about the bucket
        except NotRead as error:
            self._leave_alone(str(error))
            return []
        if len(found) < len(part.frames):
            self._leave_alone("it sent other content")
        elif self._note and self.is_used():
            self._tell("")
        return found

    def _read(
        self, part: _Part, authority: bytes, reading: Reading
    ) -> list[tuple[ChunkRef, bytes]]:
        start = part.frames[0].start
        length = part.frames[-1].end - start
        data = memoryview(self._reader(authority).read(part.url, start, length, reading))
        found = []
        for ref, begin, stored in part.frames:
            try:
                chunk = unframe(data[begin - start : begin - start + stored], max_bytes=ref.size)
            except BlobCorrupt:
                continue
            if len(chunk) == ref.size and digest_of(chunk) == ref.digest:
                found.append((ref, chunk))
        return found

    def _reader(self, authority: bytes) -> BucketReader:
        with self._turn:
            reader = self._readers.get(authority)
            if reader is None:
                try:
                    reader = BucketReader(authority, allows_plaintext=self._allows_plaintext)
                except (OSError, ValueError):
                    raise NotRead("the authority of its certificate cannot be read") from None
                # A bucket has one CA, except on the day of its replacement.
                for old in self._readers.values():
                    old.close()
                self._readers = {authority: reader}
            return reader

    def _leave_alone(self, reason: str) -> None:
        self._left_alone_until = self._clock.monotonic() + _AWAY_FOR_S
        log.warning("bucket.not_read", reason=reason, for_s=_AWAY_FOR_S)
        self._tell(
            f"the platform's bucket cannot be read from here ({reason}): datasets come through the"
            f" control plane; it is tried again {_AWAY_FOR_S / 60:.0f} min later"
        )

    def _tell(self, note: str) -> None:
        if note != self._note:
            self._note = note
            self._changed(note)


@dataclass(frozen=True, slots=True)
class BucketChunks:
    """See `Sources` of peers/sources.py."""

    bucket: Bucket
    root: str
    kind: str = BUCKET

    async def bring(
        self, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
        """See `Sources`."""
        refs = [one.ref for one in wanted][:_ASKED_AT_ONCE]
        came: set[ChunkRef] = set()
        while refs and self.bucket.is_used():
            located = await self.bucket.locate(self.root, [ref.digest for ref in refs])
            ends_at = self.bucket.now() + _LOCATED_FOR_S
            left = deque(_parts(located, refs))
            while left and self.bucket.is_used() and self.bucket.now() < ends_at:
                for ref, data in await self.bucket.read(left.popleft(), located.authority):
                    if ref not in came:
                        came.add(ref)
                        yield ref, data
            refs = [frame.ref for part in left for frame in part.frames if frame.ref not in came]


def _parts(located: pb.LocateBlobsResponse, refs: Sequence[ChunkRef]) -> Iterator[_Part]:
    for pack in located.packs:
        yield from _parts_of(pack.url, sorted(_frames(pack.blobs, refs), key=lambda one: one.start))


def _frames(blobs: Iterable[pb.LocatedBlob], refs: Sequence[ChunkRef]) -> Iterator[_Frame]:
    """Yield plausible frames: a frame is at most a byte longer than its chunk."""
    for one in blobs:
        if one.index < len(refs) and 0 < one.stored <= refs[one.index].size + 1:
            yield _Frame(refs[one.index], one.start, one.stored)


def _parts_of(url: str, frames: Sequence[_Frame]) -> Iterator[_Part]:
    part: list[_Frame] = []
    for frame in frames:
        if part and (
            frame.start > part[-1].end + _GAP_BYTES or frame.end - part[0].start > _PART_BYTES
        ):
            yield _Part(url, part)
            part = []
        if not part or frame.start >= part[-1].end:
            part.append(frame)
    if part:
        yield _Part(url, part)
