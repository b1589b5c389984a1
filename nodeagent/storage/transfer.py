"""Trees of files to and from the object store, blob by blob, through ContentService.

Errors are those of `nsml.client.errors` and `nsml.content.errors`.
"""

from __future__ import annotations

import errno
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nsml.client.errors import (
    MissingBlobs,
    NotEnough,
    NotSignedIn,
    PlatformFault,
    Unavailable,
)
from nsml.client.kept_room import KeptRoom, room_in
from nsml.client.rpc import Rpc
from nsml.common.clock import Offload
from nsml.common.concurrency import to_its_end
from nsml.content.blob_messages import Blob, GetBlobsResponse, PutBlobsRequest
from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.counted_bytes import blob_bytes, stored_bytes
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt, ContentError
from nsml.content.packing import Packed
from nsml.content.pages import is_root, pages_in
from nsml.v1 import content_pb2 as pb

T = TypeVar("T")

_PART_BYTES = 1 << 20
_CALL_BYTES = 64 << 20
"""An upload that breaks is repeated from the last whole call."""
_MOST_ROOT_BYTES = 64 << 20
"""As large as a manifest is that an earlier version stored as one blob."""
_ASKED_AT_ONCE = 10_000
_FETCHED_AT_ONCE = 2_000

_OF_THE_PLATFORM = (Unavailable, MissingBlobs, NotSignedIn, NotEnough, PlatformFault)
_OF_THE_NODE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


def is_passing(error: BaseException) -> bool:
    """Whether it says nothing of what was to be sent: that may go later, and is not lost.

    The platform is away, or the node is short of something: of descriptors, memory or room.
    """
    if isinstance(error, _OF_THE_PLATFORM):
        return True
    cause = error.__cause__ if isinstance(error, ContentError) else error
    return isinstance(cause, OSError) and cause.errno in _OF_THE_NODE


async def uninterrupted(
    run: Offload, work: Callable[[], T], *, cancel: Callable[[], object] | None = None
) -> T:
    """`run(work)`; a cancelled caller still waits for its end, since no thread can be cancelled.

    `cancel` tells the work that its result is not wanted any more.
    """
    return await to_its_end(run(work), cancel=cancel)


@dataclass(slots=True)
class Weighed:
    """Which chunks of a tree were weighed at earlier tries, of those that were missing then, and how much they count."""

    of: str = ""
    chunks: int = 0
    bytes: int = 0


async def put_tree(
    rpc: Rpc,
    packed: Packed,
    run: Offload,
    *,
    session_id: str = "",
    weighed: Weighed | None = None,
) -> str:
    """Send what is missing of a session's packed folder; the digest of its manifest, all durable.

    Raises NotEnough before anything is sent where not all of it may be kept.
    `session_id`: the session whose files they are: they count for what its owner may send. `weighed`: of earlier tries of
    the same tree; what is weighed now is noted there.
    """
    manifest = packed.manifest
    root = await uninterrupted(run, lambda: manifest.root)
    naming = [*(page.digest for page in root.pages), root.digest]
    missing, room = await _missing(rpc, [*manifest.blobs(), *naming], session_id)
    sizes = {name: size for name, size in manifest.blobs().items() if name in missing}
    chunks = list(sizes)
    if room is not None and blob_bytes(sizes.values()) > room:
        found = KeptRoom(rpc, room, session_id=session_id)
        await _weigh(packed, set(chunks), found, run, weighed or Weighed())
    sender = _Sender(rpc, session_id)
    with (
        closing(packed.source.batches(chunks, max_bytes=_PART_BYTES)) as batches,
        closing(manifest.naming_blobs(missing)) as blobs,
    ):
        while (batch := await uninterrupted(run, lambda: next(batches, None))) is not None:
            await sender.add(batch)
        # The root comes last, so a broken upload leaves nothing that looks whole.
        while (blob := await uninterrupted(run, lambda: next(blobs, None))) is not None:
            await sender.add((blob,))
        await sender.flush()
    return root.digest


async def _weigh(
    packed: Packed, missing: Collection[str], room: KeptRoom, run: Offload, weighed: Weighed
) -> None:
    """Raise NotEnough unless these chunks may be kept, as they count once they are stored.

    Each is read and compressed once for that, however often it is tried while the same are missing.
    """
    chunks, which = await uninterrupted(run, partial(_in_order, packed, missing))
    if weighed.of != which:
        weighed.of, weighed.chunks, weighed.bytes = which, 0, 0
    await room.add(weighed.bytes)
    left = chunks[weighed.chunks :]
    with closing(packed.source.batches(left, max_bytes=_PART_BYTES)) as batches:
        while (batch := await uninterrupted(run, lambda: next(batches, None))) is not None:
            size = await uninterrupted(run, partial(stored_bytes, [data for _, data in batch]))
            weighed.chunks, weighed.bytes = weighed.chunks + len(batch), weighed.bytes + size
            await room.add(size)


def _in_order(packed: Packed, wanted: Collection[str]) -> tuple[list[str], str]:
    """Those chunks as they are read, and a digest of all their names."""
    from blake3 import blake3  # noqa: PLC0415 - as in nsml.content.digests

    chunks, found = [], blake3()
    for piece in packed.source.pieces():
        if piece.ref.digest in wanted:
            chunks.append(piece.ref.digest)
            found.update(piece.ref.digest.encode())
    return chunks, found.hexdigest()


async def put_blobs(
    rpc: Rpc, blobs: Iterator[tuple[str, bytes]], run: Offload, *, most: int
) -> int:
    """Send `most` of these at most, as of no session; how many, all durable."""
    sender, sent = _Sender(rpc, ""), 0
    while sent < most and (blob := await uninterrupted(run, lambda: next(blobs, None))) is not None:
        await sender.add((blob,))
        sent += 1
    await sender.flush()
    return sent


async def get_manifest(rpc: Rpc, root: str, write: Callable[[bytes], Awaitable[object]]) -> None:
    """Give `write` the encoding of the manifest that `root` names, part by part, or page by page.

    It is what the digest names when this returns; whether it is a manifest, its reader sees.
    """
    listed, is_paged = bytearray(), None

    async def take(data: bytes) -> None:
        nonlocal is_paged
        if is_paged is None:
            is_paged = is_root(data)
        if is_paged:
            listed.extend(data)
        else:
            await write(data)

    await _get_root(rpc, root, take)
    pages = pages_in(bytes(listed)) or ()
    async with aclosing(get_blobs(rpc, root, [page.digest for page in pages])) as blobs:
        async for _, data in blobs:
            await write(data)


async def _get_root(rpc: Rpc, root: str, take: Callable[[bytes], Awaitable[object]]) -> None:
    """Give `take` the blob `root`, part by part; verified when this returns."""
    from blake3 import blake3  # noqa: PLC0415 - as in nsml.content.digests

    found, held, is_whole = blake3(), 0, False
    request = pb.GetBlobsRequest(root=root)
    answers = rpc.stream("ContentService/GetBlobs", request, GetBlobsResponse)
    async with aclosing(answers):
        async for answer in answers:
            for blob in answer.blobs:
                held += len(blob.data)
                if blob.digest != root or is_whole:
                    raise BlobCorrupt(f"the store sent {blob.digest[:16]}, not {root[:16]}")
                if held > _MOST_ROOT_BYTES:
                    raise BlobCorrupt(f"manifest {root[:16]} is over {held} bytes")
                found.update(blob.data)
                await take(bytes(blob.data))
                is_whole = blob.last
    if not is_whole:
        raise BlobCorrupt(f"the store sent nothing for {root[:16]}")
    if found.hexdigest() != root:
        raise BlobCorrupt(f"the store sent other content for {root[:16]}")


async def get_blobs(
    rpc: Rpc, root: str, digests: Sequence[str]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Whole blobs of the manifest `root` in the order of `digests`, repeats included.

    Each is held against its digest.
    """
    for start in range(0, len(digests), _FETCHED_AT_ONCE):
        wanted = digests[start : start + _FETCHED_AT_ONCE]
        request = pb.GetBlobsRequest(root=root, digests=wanted)
        position = 0
        answers = rpc.stream("ContentService/GetBlobs", request, GetBlobsResponse)
        async with aclosing(_whole_blobs(answers)) as blobs:
            async for digest, data in blobs:
                if position == len(wanted) or digest != wanted[position]:
                    raise BlobCorrupt(f"the store sent {digest[:16]}, which was not its turn")
                verify(digest, data)
                position += 1
                yield digest, data
        if position != len(wanted):
            raise BlobCorrupt(f"the store sent {position} of {len(wanted)} blobs")


async def _whole_blobs(
    answers: AsyncIterator[GetBlobsResponse],
) -> AsyncGenerator[tuple[str, bytes], None]:
    parts: list[bytes | memoryview] = []
    held = 0
    async with aclosing(answers):  # type: ignore[type-var]
        async for answer in answers:
            for blob in answer.blobs:
                parts.append(blob.data)
                held += len(blob.data)
                if held > LARGEST_CHUNK:
                    raise BlobCorrupt(f"blob {blob.digest[:16]} is over {LARGEST_CHUNK} bytes")
                if blob.last:
                    yield blob.digest, b"".join(parts)
                    parts, held = [], 0


async def _missing(
    rpc: Rpc, digests: Sequence[str], session_id: str
) -> tuple[set[str], int | None]:
    """Which have to be sent, and how much more may be kept; None: without a limit."""
    missing: set[str] = set()
    room = None
    for start in range(0, len(digests), _ASKED_AT_ONCE):
        request = pb.FindMissingBlobsRequest(
            digests=digests[start : start + _ASKED_AT_ONCE], session_id=session_id
        )
        answer = await rpc.unary(
            "ContentService/FindMissingBlobs", request, pb.FindMissingBlobsResponse
        )
        missing.update(answer.missing)
        room = room_in(answer)
    return missing, room


class _Sender:
    """Groups blobs into calls of PutBlobs of bounded size."""

    def __init__(self, rpc: Rpc, session_id: str) -> None:
        self._rpc = rpc
        self._session_id = session_id
        self._messages: list[PutBlobsRequest] = []
        self._held = 0

    async def add(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Take whole blobs; sends them when a call is full."""
        size = sum(len(data) for _, data in batch)
        if size <= _PART_BYTES:
            blobs = [Blob(digest, data, last=True) for digest, data in batch]
            self._messages.append(PutBlobsRequest(blobs))
        else:
            for digest, data in batch:
                self._messages.extend(_parts(digest, data))
        self._held += size
        if self._held >= _CALL_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what is held; on return it is durable."""
        if not self._messages:
            return
        messages, self._messages, self._held = self._messages, [], 0
        messages[0].session_id = self._session_id
        await self._rpc.upload("ContentService/PutBlobs", _each(messages), pb.PutBlobsResponse)


def _parts(digest: str, data: bytes) -> Iterator[PutBlobsRequest]:
    for start in range(0, len(data), _PART_BYTES):
        part = memoryview(data)[start : start + _PART_BYTES]
        yield PutBlobsRequest([Blob(digest, part, last=start + len(part) == len(data))])


async def _each(messages: list[PutBlobsRequest]) -> AsyncIterator[PutBlobsRequest]:
    for message in messages:
        yield message
