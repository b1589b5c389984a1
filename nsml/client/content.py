"""Download folders, in messages of bounded size; for uploads see `nsml.client.uploads`."""

from __future__ import annotations

from contextlib import (
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from nsml.client.errors import NotFound, PlatformFault, Unavailable
from nsml.common.clock import in_thread
from nsml.content.blob_messages import GetBlobsResponse
from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Sequence,
    )
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.content.manifest import ChunkRef, Manifest
    from nsml.content.stored_manifest import Extent, StoredManifest

T = TypeVar("T")

_FETCHED_AT_ONCE = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Progress of a transfer."""

    bytes: int
    bytes_total: int
    is_weighed: bool = False
    """The bytes are read to check the new ones against the quota; nothing is sent yet."""
    is_sent: bool = True
    """Some bytes had to be sent."""


async def read_blobs(
    client: Client,
    root: str,
    digests: Sequence[str],
    *,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yield whole blobs below `root`, in the order of `digests`; without digests the manifest alone.

    `shown_by` is the call that returned `root`. Each control plane has its own record of who may read
    what: after NotFound, `shown_by` is called before a retry.
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
    stream = client.rpc.stream("ContentService/GetBlobs", request, GetBlobsResponse)
    parts: list[bytes | memoryview] = []
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
    """Load the tree named `root` into memory, fully checked; `shown_by` as for `read_blobs`."""
    async with open_tree(client, root, shown_by=shown_by) as tree:
        return await in_thread(tree.read)


@asynccontextmanager
async def open_tree(
    client: Client, root: str, *, shown_by: Callable[[], Awaitable[object]] | None = None
) -> AsyncIterator[StoredManifest]:
    """Open the tree named `root`, fully checked; a paged one is in a temporary file, not in memory.

    `shown_by` as for `read_blobs`.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from nsml.content.digests import verify
    from nsml.content.manifest import ChunkRef
    from nsml.content.pages import pages_in
    from nsml.content.stored_manifest import StoredManifest

    async with aclosing(read_blobs(client, root, (), shown_by=shown_by)) as blobs:
        encoded = b"".join([data async for _, data in blobs])
    verify(root, encoded)
    with ExitStack() as stack:
        source: Path | bytes = encoded
        if (pages := pages_in(encoded)) is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="nsml-tree-"))
            source = Path(folder, "manifest")
            refs = [ChunkRef(page.digest, page.size) for page in pages]
            with source.open("wb") as file:  # noqa: ASYNC230 - a file of its own
                async with aclosing(checked_blobs(client, root, refs, shown_by=shown_by)) as found:
                    async for page in found:
                        file.write(page)
        tree = stack.enter_context(StoredManifest(source))
        await in_thread(tree.check)
        yield tree


async def checked_blobs(
    client: Client,
    root: str,
    refs: Sequence[ChunkRef],
    *,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of each chunk, checked by digest and size; no call for no chunks; `shown_by` as for `read_blobs`."""
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
    below: Sequence[str] = (),
    absent: Callable[[str], None] = lambda _: None,
) -> Extent:
    """Extract the tree named `root` to the new folder `target`, completely or not at all; return its extent.

    `below`: only these files and folders. `absent` is called with each missing one; NotFound if all are missing.
    Every chunk is checked by digest; `shown_by` as for `read_blobs`. Raises ClientError and ContentError
    (TargetExists if the folder exists, ExtractRefused if the disk has too little space).
    """
    from nsml.content.extract import extract_stream

    with _nothing_left_over(target):
        async with open_tree(client, root, shown_by=shown_by) as whole:
            with _part_of(whole, below, absent) if below else nullcontext(whole) as tree:
                _refuse_without_room(tree.size, target)
                chunks = tree_chunks(client, root, tree, progress=progress, shown_by=shown_by)
                async with aclosing(chunks):
                    await extract_stream(tree, chunks, target, limits=None)
                return tree.extent


@contextmanager
def _part_of(
    tree: StoredManifest, below: Sequence[str], absent: Callable[[str], None]
) -> Iterator[StoredManifest]:
    """Select the files and folders `below` of a tree, in a temporary file, since they may be many."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from nsml.content.manifest import encoded
    from nsml.content.stored_manifest import StoredManifest
    from nsml.content.tree_parts import Chosen

    chosen = Chosen(below)
    with TemporaryDirectory(prefix="nsml-tree-") as folder:
        source = Path(folder, "part")
        with source.open("wb") as file:
            file.writelines(encoded(one for one in tree.entries if chosen.has(one.path)))
        missing = chosen.absent()
        for path in missing:
            absent(path)
        if len(missing) == len(below):
            raise NotFound(
                f"there is no file or folder {', '.join(map(repr, below[:5]))} among these files"
            )
        with StoredManifest(source) as part:
            part.check()
            yield part


@contextmanager
def _nothing_left_over(target: Path) -> Iterator[None]:
    """If the block fails, remove the parent folders of `target` that did not exist before."""
    made = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _refuse_without_room(size: int, target: Path) -> None:
    """Raise ExtractRefused before the first byte: a stranger's few kilobytes may expand to terabytes."""
    from shutil import disk_usage

    from nsml.common.units import size_text
    from nsml.content.errors import ExtractRefused

    place = next(one for one in target.absolute().parents if one.is_dir())
    free = disk_usage(place).free
    if size > free:
        raise ExtractRefused(
            f"there is no room for {size_text(size)} in {place}: {size_text(free)} are free"
        )


async def tree_chunks(
    client: Client,
    root: str,
    tree: StoredManifest,
    *,
    progress: Callable[[Transfer], None] | None = None,
    shown_by: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of all files in order, with repeats, a few thousand per call; digests are not checked."""
    refs = tree.refs()
    received, total = 0, tree.size
    while asked := [ref.digest for ref in islice(refs, _FETCHED_AT_ONCE)]:
        blobs = read_blobs(client, root, asked, shown_by=shown_by)
        expected = iter(asked)
        async with aclosing(blobs):
            async for digest, data in blobs:
                if digest != next(expected, None):
                    raise PlatformFault("the content came back in another order")
                received += len(data)
                if progress is not None:
                    progress(Transfer(bytes=received, bytes_total=total))
                yield data
        if next(expected, None) is not None:
            raise PlatformFault("the content ended before its manifest did")


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
