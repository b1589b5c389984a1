"""Folders to the platform and back: only what the other end lacks travels, in bounded messages."""

from __future__ import annotations

from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from nsml.client.errors import MissingBlobs, NotFound, PlatformFault, Unavailable
from nsml.common.clock import in_thread
from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.common.clock import Offload
    from nsml.content.manifest import ChunkRef, Manifest
    from nsml.content.packing import Batch, Packed

Made = TypeVar("Made")
T = TypeVar("T")

PART_BYTES = 1 << 20
"""Most bytes of one blob in one message, by contract."""
_MESSAGE_BYTES = (1 << 20) - (64 << 10)
_ASKED_AT_ONCE = 10_000
_FETCHED_AT_ONCE = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What an upload made, and what of it really travelled."""

    digest: str
    """Of the manifest: names the content from now on."""
    files_sent: int
    """Files of which the platform lacked a part."""
    bytes_sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How far a transfer has come."""

    bytes: int
    bytes_total: int


async def find_missing(
    client: Client, digests: Sequence[str], *, root: str = "", bases: Sequence[str] = ()
) -> set[str]:
    """Which of these blobs would have to be sent, for something to be made of the manifest `root`.

    What `bases` list, manifests that the user may read, is not sent again.
    """
    missing: set[str] = set()
    for asked in _batched(digests, _ASKED_AT_ONCE):
        answer = await client.rpc.unary(
            "ContentService/FindMissingBlobs",
            pb.FindMissingBlobsRequest(digests=asked, root=root, bases=bases),
            pb.FindMissingBlobsResponse,
        )
        missing.update(answer.missing)
    return missing


async def upload(
    client: Client,
    packed: Packed,
    *,
    bases: Sequence[str] = (),
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
    is_unheard: bool = False,
) -> Uploaded:
    """Send what the user has to send of a packed folder; `bases` as for `find_missing`.

    The manifest goes last, so a broken upload leaves nothing that looks whole. With `is_unheard` it goes
    in any case. Raises ClientError, and PackRefused when a file changed since it was packed.
    """
    from nsml.content.digests import digest_of

    sizes = packed.manifest.blobs()
    encoded = packed.manifest.encode()
    root = digest_of(encoded)
    always = {root} if is_unheard else set()
    missing = always | await find_missing(client, [*sizes, root], root=root, bases=bases)
    left = missing
    for address in (ways := client.rpc.ways).addresses:
        wanted = {digest: size for digest, size in sizes.items() if digest in left}
        last = [(root, encoded)] if root in left else []
        try:
            await _send(client, packed, wanted, last, progress=progress, run=run)
            break
        except Unavailable:
            if address == ways.addresses[-1]:
                raise
            # What has arrived is kept, whichever control plane took it.
            left = always | await find_missing(client, [*sizes, root], root=root, bases=bases)
    return Uploaded(
        digest=root,
        files_sent=sum(
            any(ref.digest in missing for ref in entry.chunks) for entry in packed.manifest.entries
        ),
        bytes_sent=sum(size for digest, size in sizes.items() if digest in missing),
    )


async def made_of(
    client: Client,
    packed: Packed,
    make: Callable[[], Awaitable[Made]],
    *,
    bases: Sequence[str] = (),
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
) -> Made:
    """What `make` makes of content that was sent, such as a session or a version of a dataset.

    Content that the platform does not have, or not of this user, is sent again, and `make` called
    again. Raises what `make` and `upload` raise.
    """
    for _ in client.rpc.ways.addresses:
        try:
            return await make()
        except MissingBlobs:
            await upload(client, packed, bases=bases, progress=progress, run=run, is_unheard=True)
    return await make()


async def _send(
    client: Client,
    packed: Packed,
    wanted: Mapping[str, int],
    last: Sequence[tuple[str, bytes]],
    *,
    progress: Callable[[Transfer], None] | None,
    run: Offload,
) -> None:
    """Send what is `wanted` of a folder, with its sizes, to one control plane, and then what is `last`."""
    sending = _Sending(packed, list(wanted), sum(wanted.values()), progress, run)
    if wanted:
        await client.rpc.upload("ContentService/PutBlobs", sending.requests(), pb.PutBlobsResponse)
    if last:
        await client.rpc.upload("ContentService/PutBlobs", _in_messages(last), pb.PutBlobsResponse)


class _Sending:
    """The messages of one upload, read from disk as the stream takes them."""

    def __init__(
        self,
        packed: Packed,
        wanted: list[str],
        total: int,
        progress: Callable[[Transfer], None] | None,
        run: Offload,
    ) -> None:
        self._batches = packed.source.batches(wanted, max_bytes=_MESSAGE_BYTES)
        self._total = total
        self._progress = progress
        self._run = run

    async def requests(self) -> AsyncIterator[pb.PutBlobsRequest]:
        sent = 0
        while (batch := await self._run(self._next)) is not None:
            for message in _messages(batch):
                yield message
                sent += sum(len(blob.data) for blob in message.blobs)
                if self._progress is not None:
                    self._progress(Transfer(bytes=sent, bytes_total=self._total))

    def _next(self) -> Batch | None:
        return next(self._batches, None)


async def _in_messages(batch: Sequence[tuple[str, bytes]]) -> AsyncIterator[pb.PutBlobsRequest]:
    for message in _messages(batch):
        yield message


def _messages(batch: Sequence[tuple[str, bytes]]) -> Iterator[pb.PutBlobsRequest]:
    """A batch of small blobs as one message; a large blob as parts of at most PART_BYTES."""
    small = [item for item in batch if len(item[1]) <= _MESSAGE_BYTES]
    if small:
        yield pb.PutBlobsRequest(
            blobs=[pb.Blob(digest=digest, data=data, last=True) for digest, data in small]
        )
    for digest, data in batch:
        if len(data) <= _MESSAGE_BYTES:
            continue
        for start in range(0, len(data), _MESSAGE_BYTES):
            part = data[start : start + _MESSAGE_BYTES]
            last = start + _MESSAGE_BYTES >= len(data)
            yield pb.PutBlobsRequest(blobs=[pb.Blob(digest=digest, data=part, last=last)])


async def read_blobs(
    client: Client,
    root: str,
    digests: Sequence[str],
    *,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Whole blobs below `root`, in the order asked for; without digests the manifest alone.

    `shown_by` is the call that gave `root`. Each control plane knows by itself whom it has shown what:
    one that answers NotFound is asked for that first.
    """
    came = 0
    breaks_left = len(client.rpc.ways.addresses) - 1
    shows_left = len(client.rpc.ways.addresses) if shown_by is not None else 0
    while came < max(len(digests), 1):
        blobs = _read_blobs(client, root, digests[came:])
        try:
            async with aclosing(blobs):
                async for blob in blobs:
                    came += 1
                    yield blob
        except Unavailable:
            if not breaks_left:
                raise
            breaks_left -= 1
        except NotFound:
            if shown_by is None or not shows_left:
                raise
            shows_left -= 1
            await shown_by()
        else:
            return


async def _read_blobs(
    client: Client, root: str, digests: Sequence[str]
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Like `read_blobs`, from one control plane."""
    request = pb.GetBlobsRequest(root=root, digests=digests)
    stream = client.rpc.stream("ContentService/GetBlobs", request, pb.GetBlobsResponse)
    parts: list[bytes] = []
    async with aclosing(stream):
        async for answer in stream:
            for blob in answer.blobs:
                parts.append(blob.data)
                if blob.last:
                    yield blob.digest, b"".join(parts)
                    parts = []
    if parts:
        raise PlatformFault("the content ended within a blob")


async def read_manifest(
    client: Client, root: str, *, shown_by: Callable[[], Awaitable[object]] | None = None
) -> Manifest:
    """The manifest that `root` names, checked in full; `shown_by` as for `read_blobs`."""
    from nsml.content.manifest import decode

    blobs = read_blobs(client, root, (), shown_by=shown_by)
    async with aclosing(blobs):
        async for _, data in blobs:
            return decode(data, digest=root)
    raise PlatformFault(f"the manifest {root[:16]} came back empty")


async def checked_blobs(
    client: Client,
    root: str,
    refs: Sequence[ChunkRef],
    *,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[bytes, None]:
    """The bytes of each chunk, held against its digest and size; nothing is asked for none; `shown_by` as for `read_blobs`."""
    from nsml.content.digests import verify

    for some in _batched(refs, _FETCHED_AT_ONCE):
        asked = iter(some)
        blobs = read_blobs(client, root, [ref.digest for ref in some], shown_by=shown_by)
        async with aclosing(blobs):
            async for digest, data in blobs:
                ref = next(asked, None)
                if ref is None or digest != ref.digest:
                    raise PlatformFault("the content came back in another order")
                verify(digest, data)
                if len(data) != ref.size:
                    raise PlatformFault("a part of the content has another size than it should")
                yield data
        if next(asked, None) is not None:
            raise PlatformFault("the content ended before its file did")


async def download(
    client: Client,
    root: str,
    target: Path,
    *,
    progress: Callable[[Transfer], None] | None = None,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> Manifest:
    """Lay out the tree that `root` names as the new folder `target`: whole or not at all.

    Every chunk is held against its digest; `shown_by` as for `read_blobs`. Raises ClientError and ContentError (TargetExists when
    the folder is there, ExtractRefused when the disk has no room for all of it).
    """
    from nsml.content.extract import extract_stream

    with _nothing_left_over(target):
        manifest = await read_manifest(client, root, shown_by=shown_by)
        _refuse_without_room(manifest, target)
        chunks = _chunks(client, root, manifest, progress, shown_by)
        async with aclosing(chunks):
            await extract_stream(manifest, chunks, target)
        return manifest


@contextmanager
def _nothing_left_over(target: Path) -> Iterator[None]:
    """Around what makes a folder: when that fails, those above it that were made for it go as well."""
    made = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _refuse_without_room(manifest: Manifest, target: Path) -> None:
    """Raise ExtractRefused before the first byte: a few kilobytes of somebody else's may be laid out as terabytes."""
    from shutil import disk_usage

    from nsml.common.units import size_text
    from nsml.content.errors import ExtractRefused

    place = next(one for one in target.absolute().parents if one.is_dir())
    free = disk_usage(place).free
    if manifest.size > free:
        raise ExtractRefused(
            f"there is no room for {size_text(manifest.size)} in {place}: {size_text(free)} are free"
        )


async def _chunks(
    client: Client,
    root: str,
    manifest: Manifest,
    progress: Callable[[Transfer], None] | None,
    shown_by: Callable[[], Awaitable[object]] | None,
) -> AsyncGenerator[bytes, None]:
    """The chunks of all files in order, repeats included, few thousand a call."""
    refs = manifest.refs()
    received = 0
    while asked := [ref.digest for ref in islice(refs, _FETCHED_AT_ONCE)]:
        blobs = read_blobs(client, root, asked, shown_by=shown_by)
        expected = iter(asked)
        async with aclosing(blobs):
            async for digest, data in blobs:
                if digest != next(expected, None):
                    raise PlatformFault("the content came back in another order")
                received += len(data)
                if progress is not None:
                    progress(Transfer(bytes=received, bytes_total=manifest.size))
                yield data
        if next(expected, None) is not None:
            raise PlatformFault("the content ended before its manifest did")


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
