"""Upload folders: files are read once, and only missing chunks are sent, in messages of bounded size.

Missing chunks are queried a window at a time and sent from memory, while further ones are read, cut and hashed. Memory use
does not depend on the size of the folder: one queried window, the calls in flight, and the read-ahead.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

from nsml.client.content import Transfer
from nsml.client.errors import MissingBlobs, NotEnough, Unavailable
from nsml.client.kept_room import KeptRoom, room_in
from nsml.common.clock import in_thread, inline
from nsml.common.concurrency import to_its_end
from nsml.common.units import size_text
from nsml.content.blob_messages import Blob, PutBlobsRequest
from nsml.content.counted_bytes import LEAST_BLOB_BYTES, stored_bytes
from nsml.content.packing import batches_of
from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from nsml.client.calls import Client
    from nsml.common.clock import Offload
    from nsml.content.listing import FolderFiles
    from nsml.content.packing import Batch, Packed
    from nsml.content.pages import Root
    from nsml.content.reading import FolderReader, Piece
    from nsml.content.stat_cache import StatCache

Made = TypeVar("Made")
T = TypeVar("T")

PART_BYTES: Final = 1 << 20
"""Most bytes of one blob in one message, by contract."""
_MESSAGE_BYTES: Final = (2 << 20) - (64 << 10)
"""Most bytes of blobs in one message. A message costs both ends processor time, however small."""
_ASKED_AT_ONCE: Final = 10_000
_WINDOW_BYTES: Final = 16 << 20
"""Bytes read into memory per query for missing blobs."""
_CALL_BYTES: Final = 16 << 20
"""Fewest bytes of a call, except the last one: each call is durable when it ends."""
_CALLS_AT_ONCE: Final = 3
"""While one is flushed to disk and one is checked, a third is being sent."""
_READERS: Final = 4
"""Threads that read, cut and hash: on a network file system each file takes several round trips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """The result of an upload, and how much was really sent."""

    packed: Packed
    digest: str
    """Digest of the manifest, which names the content."""
    files_sent: int = 0
    """Files with chunks that were missing."""
    bytes_sent: int = 0


async def find_missing(
    client: Client, digests: Sequence[str], *, root: str = "", bases: Sequence[str] = ()
) -> set[str]:
    """Return the digests of blobs that the user must send before the manifest `root` can be used.

    Blobs listed by `bases`, manifests that the user may read, are not missing.
    """
    missing, _ = await _find_missing(client, digests, root=root, bases=bases)
    return missing


async def _find_missing(
    client: Client,
    digests: Sequence[str],
    *,
    root: str = "",
    bases: Sequence[str] = (),
    project: str = "",
) -> tuple[set[str], int | None]:
    """As `find_missing`, and the quota left, in bytes: None without a limit."""
    missing: set[str] = set()
    room = None
    for start in range(0, len(digests), _ASKED_AT_ONCE):
        asked = digests[start : start + _ASKED_AT_ONCE]
        answer = await client.rpc.unary(
            "ContentService/FindMissingBlobs",
            pb.FindMissingBlobsRequest(digests=asked, root=root, bases=bases, project=project),
            pb.FindMissingBlobsResponse,
        )
        missing.update(answer.missing)
        room = room_in(answer)
    return missing, room


async def push(
    client: Client,
    listed: FolderFiles,
    *,
    cache: StatCache | None = None,
    bases: Sequence[str] = (),
    project: str = "",
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
) -> Uploaded:
    """Read the listed files once and send their missing chunks; `bases` as for `find_missing`.

    Files in `cache` are read only if the platform lacks them. The manifest is sent last, so an interrupted upload leaves
    nothing that looks complete. If the files may exceed the quota of the user or of `project` ("" for the user's own), they
    are read an extra time before, and nothing is sent unless the new content fits. Raises ClientError, and PackRefused if a
    file changes meanwhile or there is too much.
    """
    from nsml.content.packing import described
    from nsml.content.reading import FolderReader

    reader = await run(partial(FolderReader, listed, cache=cache))
    async with _forgotten_if_changed(listed, cache, run):
        if reader.is_known:
            packed = await run(partial(described, reader))
            root = packed.manifest.digest
            if not await find_missing(client, [root], root=root):
                return Uploaded(packed=packed, digest=root)
            return await upload(
                client, packed, bases=bases, project=project, progress=progress, run=run
            )
        to = _Target(client=client, bases=bases, project=project, progress=progress, run=run)
        try:
            async with _Sending(to, listed, most=_most_bytes(listed)) as sending:
                return await sending.uploaded(await _read_through(reader, sending, run))
        except _MayNotFit as found:
            # The cache has the files read so far.
            reader = await run(partial(FolderReader, listed, cache=cache))
            async with _Weighing(to, listed, room=found.room) as weighing:
                packed = await _read_through(reader, weighing, run)
        return await _send_packed(to, packed)


async def _read_through(reader: FolderReader, sending: _Sending, run: Offload) -> Packed:
    """Pass all chunks, then the root, to `sending`."""
    from nsml.content.packing import packed_of

    with closing(reader.groups(_READERS)) as groups:
        while (pieces := await to_its_end(run(partial(next, groups, None)))) is not None:
            await sending.add(pieces)
    packed = await run(partial(packed_of, reader))
    await sending.end(await run(lambda: packed.manifest.root))
    return packed


@asynccontextmanager
async def _forgotten_if_changed(
    listed: FolderFiles, cache: StatCache | None, run: Offload
) -> AsyncIterator[None]:
    """Drop a file from the cache if it changed during the upload: the next one reads it."""
    from nsml.content.errors import ChangedWhilePacking

    try:
        yield
    except ChangedWhilePacking as error:
        if cache is not None:
            changed = [file for file in listed.files if file.path == error.path]
            await run(partial(cache.forget, listed.root, changed))
        raise


async def upload(
    client: Client,
    packed: Packed,
    *,
    bases: Sequence[str] = (),
    project: str = "",
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
    is_unheard: bool = False,
) -> Uploaded:
    """Read a packed folder again and send its missing chunks; `bases` and `project` as for `push`.

    The manifest is sent last, with `is_unheard` even if it is not missing. Raises ClientError, and PackRefused if a file
    changed since it was packed.
    """
    to = _Target(client=client, bases=bases, project=project, progress=progress, run=run)
    try:
        most = _most_bytes(packed.listed)
        return await _send_packed(to, packed, most=most, is_unheard=is_unheard)
    except _MayNotFit as found:
        async with _Weighing(to, packed.listed, room=found.room) as weighing:
            await _pass_through(packed, weighing, run)
    return await _send_packed(to, packed, is_unheard=is_unheard)


async def _send_packed(
    to: _Target, packed: Packed, *, most: int = 0, is_unheard: bool = False
) -> Uploaded:
    total = sum(packed.manifest.blobs().values())
    async with _Sending(to, packed.listed, total=total, most=most) as sending:
        await _pass_through(packed, sending, to.run)
        return await sending.uploaded(packed, is_unheard=is_unheard)


async def _pass_through(packed: Packed, sending: _Sending, run: Offload) -> None:
    root = await run(lambda: packed.manifest.root)
    sending.root = root.digest
    for pieces in _batched(packed.source.pieces(), _ASKED_AT_ONCE):
        await sending.add(pieces)
    await sending.end(root)


def _most_bytes(listed: FolderFiles) -> int:
    """The most quota that the files can use, in bytes: if all are new and none can be compressed."""
    return listed.size + LEAST_BLOB_BYTES * len(listed.files)


async def made_of(
    client: Client,
    packed: Packed,
    make: Callable[[], Awaitable[Made]],
    *,
    cache: StatCache | None = None,
    bases: Sequence[str] = (),
    project: str = "",
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
) -> Made:
    """Return the result of `make`, such as a session or a dataset version, for uploaded content.

    If the platform lacks the content, or has it from other users only, it is sent again and `make`
    retried. `cache`: as for `push`, which packed it. Raises what `make` and `upload` raise.
    """
    for _ in client.rpc.ways.addresses:
        try:
            return await make()
        except MissingBlobs:
            async with _forgotten_if_changed(packed.listed, cache, run):
                await upload(
                    client,
                    packed,
                    bases=bases,
                    project=project,
                    progress=progress,
                    run=run,
                    is_unheard=True,
                )
    return await make()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Destination and options of an upload; see `push`."""

    client: Client
    bases: Sequence[str]
    project: str
    progress: Callable[[Transfer], None] | None
    run: Offload


class _MayNotFit(Exception):
    """Raised before anything is sent: the folder would exceed the quota if all were new."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


class _Sending:
    """Sends the missing chunks of one folder, in calls of bounded size; queries them in windows.

    Attributes:
        root: digest of the manifest, "" until known; if the user may read it, nothing is missing.

    Args:
        total: total bytes for progress; by default the size of the listed files.
        most: raise _MayNotFit if the quota left is less, before anything is sent; 0: do not check.
    """

    is_weighed: ClassVar = False

    def __init__(
        self, to: _Target, listed: FolderFiles, *, total: int | None = None, most: int = 0
    ) -> None:
        self.root = ""
        self._to = to
        self._client = to.client
        self._folder = listed.root
        self._total = listed.size if total is None else total
        self._most = most
        self._progress = to.progress
        self._run = to.run
        self._done = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._is_missing: dict[str, bool] = {}
        """By the digest of each queried chunk; a set of missing digests would keep the responses' strings in memory."""
        self._missing_names: set[str] = set()
        """Missing blobs of the manifest."""
        self._bytes_sent = 0
        self._window: list[Piece] = []
        self._window_bytes = 0
        self._outbox: list[Piece] = []
        self._outbox_bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def add(self, pieces: Sequence[Piece]) -> None:
        """Add chunks; waits while enough calls are in flight."""
        for piece in pieces:
            if piece.ref.digest in self._is_missing:
                self._count(piece.ref.size)
                continue
            self._is_missing[piece.ref.digest] = False
            self._window.append(piece)
            self._window_bytes += len(piece.data or b"")
            if self._window_bytes >= _WINDOW_BYTES or len(self._window) >= _ASKED_AT_ONCE:
                await self._ask()

    async def end(self, root: Root) -> None:
        """Query the rest and the manifest, and wait until all missing chunks are sent."""
        self.root = root.digest
        await self._ask(*(page.digest for page in root.pages), self.root)
        if self._outbox:
            await self._send()
        while self._calls:
            await self._wait()

    async def uploaded(self, packed: Packed, *, is_unheard: bool = False) -> Uploaded:
        """Send the manifest after `end`, its root last; return the result."""
        wanted = self._missing_names | {self.root} if is_unheard else self._missing_names
        calls = _calls(packed.manifest.naming_blobs(wanted))
        while blobs := await self._run(partial(next, calls, ())):
            await self._put(partial(_in_messages, blobs))
        entries = packed.manifest.entries
        return Uploaded(
            packed=packed,
            digest=self.root,
            files_sent=sum(
                any(self._is_missing[ref.digest] for ref in entry.chunks) for entry in entries
            ),
            bytes_sent=self._bytes_sent,
        )

    async def _ask(self, *further: str) -> None:
        window, self._window, self._window_bytes = self._window, [], 0
        digests = [*(piece.ref.digest for piece in window), *further]
        missing, room = await _find_missing(
            self._client, digests, root=self.root, bases=self._to.bases, project=self._to.project
        )
        most, self._most = self._most, 0
        if room is not None and most > room:
            raise _MayNotFit(room)
        self._missing_names |= missing.intersection(further)
        for piece in window:
            if piece.ref.digest in missing:
                self._is_missing[piece.ref.digest] = True
                self._outbox.append(piece)
                self._outbox_bytes += piece.ref.size
                self._bytes_sent += piece.ref.size
            else:
                self._count(piece.ref.size)
            if self._outbox_bytes >= _CALL_BYTES:
                await self._send()

    async def _send(self) -> None:
        """Start a call with the outbox, once fewer than _CALLS_AT_ONCE run."""
        pieces, self._outbox, self._outbox_bytes = self._outbox, [], 0
        while len(self._calls) >= _CALLS_AT_ONCE:
            await self._wait()
        self._calls.add(asyncio.create_task(self._put(lambda: self._requests(pieces))))

    async def _wait(self) -> None:
        """Wait until a call ends; raises its error."""
        ended, self._calls = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        for error in [call.exception() for call in ended]:
            if error is not None:
                raise error

    async def _put(self, requests: Callable[[], AsyncIterator[PutBlobsRequest]]) -> None:
        """Make a call, and retry it on each other control plane if it is unavailable."""
        rpc = self._client.rpc
        for further in reversed(range(len(rpc.ways.addresses))):
            try:
                await rpc.upload("ContentService/PutBlobs", requests(), pb.PutBlobsResponse)
            except Unavailable:
                if not further:
                    raise
            else:
                return

    async def _requests(self, pieces: Sequence[Piece]) -> AsyncIterator[PutBlobsRequest]:
        batches = batches_of(self._folder, pieces, max_bytes=_MESSAGE_BYTES)
        run = inline if all(piece.data is not None for piece in pieces) else self._run
        yield PutBlobsRequest(())  # the first message of a call has a minute, on the slowest line
        while batch := await run(partial(next, batches, ())):
            for message in _messages(batch):
                yield message
            self._count(sum(len(data) for _, data in batch))

    def _count(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            # A retry counts some bytes twice.
            done = min(self._done, self._total)
            self._progress(
                Transfer(
                    bytes=done,
                    bytes_total=self._total,
                    is_weighed=self.is_weighed,
                    is_sent=bool(self._bytes_sent),
                )
            )


class _Weighing(_Sending):
    """Sends nothing: checks the missing chunks of a folder, as they count once stored, against the quota."""

    is_weighed: ClassVar = True

    def __init__(self, to: _Target, listed: FolderFiles, *, room: int) -> None:
        super().__init__(to, listed)
        self._room = KeptRoom(to.client.rpc, room, project=to.project)

    async def _send(self) -> None:
        """Count the outbox; raises NotEnough as soon as it exceeds the quota."""
        pieces, self._outbox, self._outbox_bytes = self._outbox, [], 0
        with closing(batches_of(self._folder, pieces, max_bytes=_MESSAGE_BYTES)) as batches:
            while batch := await self._run(partial(next, batches, ())):
                blobs = [data for _, data in batch]
                try:
                    await self._room.add(await self._run(partial(stored_bytes, blobs)))
                except NotEnough as error:
                    raise self._refused(error) from error
                self._count(sum(map(len, blobs)))

    def _refused(self, error: NotEnough) -> NotEnough:
        wanted, total = size_text(self._room.wanted), size_text(self._total)
        nothing = f"nothing was sent: the new content of these {total} takes at least {wanted}"
        return NotEnough(
            error.message,
            reason=error.reason,
            why=f"{error.why}; {nothing}" if error.why else nothing,
            advice=error.advice,
            metadata=error.metadata,
        )


def _calls(blobs: Iterable[tuple[str, bytes]]) -> Iterator[Batch]:
    """Group blobs, in order, into calls of at least _CALL_BYTES."""
    some: list[tuple[str, bytes]] = []
    held = 0
    for digest, data in blobs:
        some.append((digest, data))
        if (held := held + len(data)) >= _CALL_BYTES:
            yield tuple(some)
            some, held = [], 0
    if some:
        yield tuple(some)


async def _in_messages(blobs: Batch) -> AsyncIterator[PutBlobsRequest]:
    for blob in blobs:
        for message in _messages((blob,)):
            yield message


def _messages(batch: Batch) -> Iterator[PutBlobsRequest]:
    """A batch of small blobs as one message; a large blob as parts of at most PART_BYTES."""
    small = [Blob(digest, data, last=True) for digest, data in batch if len(data) <= PART_BYTES]
    if small:
        yield PutBlobsRequest(small)
    for digest, data in batch:
        if len(data) <= PART_BYTES:
            continue
        for start in range(0, len(data), PART_BYTES):
            part = data[start : start + PART_BYTES]
            last = start + PART_BYTES >= len(data)
            yield PutBlobsRequest([Blob(digest, part, last)])


def _batched(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
