"""Transfers trees of files to and from the object store, blob by blob, through ContentService.

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
"""An interrupted upload is repeated from the last complete call."""
_MOST_ROOT_BYTES = 64 << 20
"""The largest manifest that an earlier version stored as one blob."""
_ASKED_AT_ONCE = 10_000
_FETCHED_AT_ONCE = 2_000

_OF_THE_PLATFORM = (Unavailable, MissingBlobs, NotSignedIn, NotEnough, PlatformFault)
_OF_THE_NODE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


def is_passing(error: BaseException) -> bool:
    """Return whether the error is temporary: then the upload is retried, and not lost.

    That is, the platform cannot take it now, or the node is short of descriptors, memory or room.
    """
    if isinstance(error, _OF_THE_PLATFORM):
        return True
    cause = error.__cause__ if isinstance(error, ContentError) else error
    return isinstance(cause, OSError) and cause.errno in _OF_THE_NODE


async def uninterrupted(
    run: Offload, work: Callable[[], T], *, cancel: Callable[[], object] | None = None
) -> T:
    """`run(work)`; a cancelled caller still waits for its end, since no thread can be cancelled.

    `cancel` tells the work that its result is not needed any more.
    """
    return await to_its_end(run(work), cancel=cancel)


@dataclass(slots=True)
class Weighed:
    """Progress of weighing a tree over several tries: a digest of its missing chunks, and number and bytes of those weighed."""

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
    """Upload the missing blobs of a session's packed folder; return the digest of its manifest, once all are durable.

    Raises NotEnough before the upload if not all of it may be kept.
    `session_id`: the session of the files, which count towards its owner's limit. `weighed`: from earlier tries with
    the same tree; updated here.
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
        # The root comes last, so an interrupted upload leaves nothing that looks whole.
        while (blob := await uninterrupted(run, lambda: next(blobs, None))) is not None:
            await sender.add((blob,))
        await sender.flush()
    return root.digest


async def _weigh(
    packed: Packed, missing: Collection[str], room: KeptRoom, run: Offload, weighed: Weighed
) -> None:
    """Raise NotEnough unless these chunks may be kept, by their stored size.

    Each is read and compressed once for that, over all tries with the same missing chunks.
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
    """Return the wanted chunks in reading order, and a digest of all their names."""
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
    """Upload at most `most` blobs, for no session; return how many, all durable."""
    sender, sent = _Sender(rpc, ""), 0
    while sent < most and (blob := await uninterrupted(run, lambda: next(blobs, None))) is not None:
        await sender.add((blob,))
        sent += 1
    await sender.flush()
    return sent


async def get_manifest(rpc: Rpc, root: str, write: Callable[[bytes], Awaitable[object]]) -> None:
    """Pass the encoding of the manifest `root` to `write`, in parts or pages.

    It matches the digest when this returns; its reader checks whether it is a manifest.
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
    """Pass the blob `root` to `take`, in parts; verified when this returns."""
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
    """Yield whole blobs of the manifest `root` in the order of `digests`, repeats included.

    Each is verified by its digest.
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
    """Return the missing ones, and how many more bytes may be kept; None: no limit."""
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
        """Add whole blobs; sends them when a call is full."""
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
        """Send the held blobs; on return they are durable."""
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
