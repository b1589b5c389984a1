"""Folders to the platform: read once, and only what the platform lacks travels, in bounded messages.

Chunks are asked for a window at a time and sent from memory, while further ones are read, cut and hashed. What is in memory
does not depend on the size of the folder: a window that is asked for, calls that are on their way, and what is read ahead.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar

from nsml.client.content import Transfer
from nsml.client.errors import MissingBlobs, Unavailable
from nsml.common.clock import in_thread, inline
from nsml.common.concurrency import to_its_end
from nsml.content.blob_messages import Blob, PutBlobsRequest
from nsml.content.packing import batches_of
from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.common.clock import Offload
    from nsml.content.listing import FolderFiles
    from nsml.content.packing import Batch, Packed
    from nsml.content.pages import Root
    from nsml.content.reading import Piece
    from nsml.content.stat_cache import StatCache

Made = TypeVar("Made")
T = TypeVar("T")

PART_BYTES: Final = 1 << 20
"""Most bytes of one blob in one message, by contract."""
_MESSAGE_BYTES: Final = (1 << 20) - (64 << 10)
_ASKED_AT_ONCE: Final = 10_000
_WINDOW_BYTES: Final = 16 << 20
"""Bytes in memory about which the platform is asked together."""
_CALL_BYTES: Final = 16 << 20
"""Bytes that a call sends at least, but for the last one: each call is durable when it ends."""
_CALLS_AT_ONCE: Final = 2
"""While one is stored, the next one is on its way."""
_READERS: Final = 4
"""Threads that read, cut and hash: of a network file system each file takes several round trips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What an upload made, and what of it really travelled."""

    packed: Packed
    digest: str
    """Of the manifest: names the content from now on."""
    files_sent: int = 0
    """Files of which the platform lacked a part."""
    bytes_sent: int = 0


async def find_missing(
    client: Client, digests: Sequence[str], *, root: str = "", bases: Sequence[str] = ()
) -> set[str]:
    """Which of these blobs would have to be sent, for something to be made of the manifest `root`.

    What `bases` list, manifests that the user may read, is not sent again.
    """
    missing: set[str] = set()
    for start in range(0, len(digests), _ASKED_AT_ONCE):
        asked = digests[start : start + _ASKED_AT_ONCE]
        answer = await client.rpc.unary(
            "ContentService/FindMissingBlobs",
            pb.FindMissingBlobsRequest(digests=asked, root=root, bases=bases),
            pb.FindMissingBlobsResponse,
        )
        missing.update(answer.missing)
    return missing


async def push(
    client: Client,
    listed: FolderFiles,
    *,
    cache: StatCache | None = None,
    bases: Sequence[str] = (),
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
) -> Uploaded:
    """Read listed files once, and send what the user has to send of them; `bases` as for `find_missing`.

    What `cache` knows is not read unless the platform lacks it. The manifest goes last, so a broken upload leaves nothing
    that looks whole. Raises ClientError, and PackRefused when a file changes meanwhile, or there is too much.
    """
    from nsml.content.packing import described, packed_of
    from nsml.content.reading import FolderReader

    reader = await run(partial(FolderReader, listed, cache=cache))
    async with _forgotten_if_changed(listed, cache, run):
        if reader.is_known:
            packed = await run(partial(described, reader))
            root = packed.manifest.digest
            if not await find_missing(client, [root], root=root):
                return Uploaded(packed=packed, digest=root)
            return await upload(client, packed, bases=bases, progress=progress, run=run)
        async with _Sending(
            client, listed.root, total=listed.size, bases=bases, progress=progress, run=run
        ) as sending:
            with closing(reader.groups(_READERS)) as groups:
                while (pieces := await to_its_end(run(partial(next, groups, None)))) is not None:
                    await sending.add(pieces)
            packed = await run(partial(packed_of, reader))
            await sending.end(await run(lambda: packed.manifest.root))
            return await sending.uploaded(packed)


@asynccontextmanager
async def _forgotten_if_changed(
    listed: FolderFiles, cache: StatCache | None, run: Offload
) -> AsyncIterator[None]:
    """Around what sends files: one that is not what the cache says is read the next time."""
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
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
    is_unheard: bool = False,
) -> Uploaded:
    """Send what the user has to send of a packed folder, which is read again; `bases` as for `find_missing`.

    The manifest goes last, and with `is_unheard` in any case. Raises ClientError, and PackRefused when a file changed since
    it was packed.
    """
    root = await run(lambda: packed.manifest.root)
    total = sum(packed.manifest.blobs().values())
    async with _Sending(
        client, packed.listed.root, total=total, bases=bases, progress=progress, run=run
    ) as sending:
        sending.root = root.digest
        for pieces in _batched(packed.source.pieces(), _ASKED_AT_ONCE):
            await sending.add(pieces)
        await sending.end(root)
        return await sending.uploaded(packed, is_unheard=is_unheard)


async def made_of(
    client: Client,
    packed: Packed,
    make: Callable[[], Awaitable[Made]],
    *,
    cache: StatCache | None = None,
    bases: Sequence[str] = (),
    progress: Callable[[Transfer], None] | None = None,
    run: Offload = in_thread,
) -> Made:
    """What `make` makes of content that was sent, such as a session or a version of a dataset.

    Content that the platform does not have, or not of this user, is sent again, and `make` called
    again. `cache`: as for `push`, which packed it. Raises what `make` and `upload` raise.
    """
    for _ in client.rpc.ways.addresses:
        try:
            return await make()
        except MissingBlobs:
            async with _forgotten_if_changed(packed.listed, cache, run):
                await upload(
                    client, packed, bases=bases, progress=progress, run=run, is_unheard=True
                )
    return await make()


class _Sending:
    """The chunks of one folder on their way: asked for in windows, and sent in calls of bounded size.

    Attributes:
        root: digest of the manifest, once it is known: what the user may read is not sent again.
    """

    def __init__(
        self,
        client: Client,
        folder: Path,
        *,
        total: int,
        bases: Sequence[str],
        progress: Callable[[Transfer], None] | None,
        run: Offload,
    ) -> None:
        self.root = ""
        self._client = client
        self._folder = folder
        self._total = total
        self._bases = bases
        self._progress = progress
        self._run = run
        self._done = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._is_missing: dict[str, bool] = {}
        """Of each chunk that was asked for; what the platform answers are other strings, which would stay in memory."""
        self._missing_names: set[str] = set()
        """Of the blobs that name the tree."""
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
        """Take further chunks; waits while enough is on its way."""
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
        """There are no more: return when all is sent that is missing. Of the manifest it is asked, too."""
        self.root = root.digest
        await self._ask(*(page.digest for page in root.pages), self.root)
        if self._outbox:
            await self._send()
        while self._calls:
            await self._wait()

    async def uploaded(self, packed: Packed, *, is_unheard: bool = False) -> Uploaded:
        """Send the manifest, after all else, its root last; what came of it all."""
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
        missing = await find_missing(self._client, digests, root=self.root, bases=self._bases)
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
        """Begin a call with what is to be sent, when there is room for one."""
        pieces, self._outbox, self._outbox_bytes = self._outbox, [], 0
        while len(self._calls) >= _CALLS_AT_ONCE:
            await self._wait()
        self._calls.add(asyncio.create_task(self._put(lambda: self._requests(pieces))))

    async def _wait(self) -> None:
        """Until a call has ended; raises what it raised."""
        ended, self._calls = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        for error in [call.exception() for call in ended]:
            if error is not None:
                raise error

    async def _put(self, requests: Callable[[], AsyncIterator[PutBlobsRequest]]) -> None:
        """One call, once more to each further control plane while the last one is away."""
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
        while batch := await run(partial(next, batches, ())):
            for message in _messages(batch):
                yield message
            self._count(sum(len(data) for _, data in batch))

    def _count(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            # Of a call that broke, some counts twice.
            self._progress(Transfer(bytes=min(self._done, self._total), bytes_total=self._total))


def _calls(blobs: Iterable[tuple[str, bytes]]) -> Iterator[Batch]:
    """Blobs in their order, as many together as one call sends."""
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
    small = [Blob(digest, data, last=True) for digest, data in batch if len(data) <= _MESSAGE_BYTES]
    if small:
        yield PutBlobsRequest(small)
    for digest, data in batch:
        if len(data) <= _MESSAGE_BYTES:
            continue
        for start in range(0, len(data), _MESSAGE_BYTES):
            part = data[start : start + _MESSAGE_BYTES]
            last = start + _MESSAGE_BYTES >= len(data)
            yield PutBlobsRequest([Blob(digest, part, last)])


def _batched(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
