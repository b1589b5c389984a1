"""Trees that sessions share read-only, by digest: dataset versions and bundles.

A tree is fetched once per node, whoever asks and however often. Chunks that another cached tree
holds are taken from there, so a new version of a dataset costs what changed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from nodeagent.folders import flush_filesystem, write_atomically
from nodeagent.pressure import has_room_for
from nodeagent.stock import MOST_TOLD, Stock
from nodeagent.transfer import get_blobs, get_manifest, uninterrupted
from nsml.client.errors import Unavailable
from nsml.client.rpc import Rpc
from nsml.clock import Clock, Offload, SystemClock
from nsml.content.digests import digest_of, is_digest
from nsml.content.errors import ContentError
from nsml.content.extract import Extraction, remove_tree
from nsml.content.manifest import ChunkRef, Manifest, decode
from nsml.view.units import size_text

_DONORS = 8
_DONOR_MANIFEST_BYTES = 8 << 20
_FETCHED_AT_ONCE = 500
_MANIFEST = ".manifest"
_SIZE = ".bytes"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a chunk is in a tree that is here already."""

    path: Path
    offset: int


_FILE_BYTES = 4096
"""What a file takes at least."""


@dataclass(slots=True)
class _Tally:
    """What came from the control plane, and whether that was interrupted."""

    size: int = 0
    is_interrupted: bool = False


class Trees:
    """The trees below one folder, named by the digest of their manifests.

    Args:
        folder: made when missing; private to the agent.
        boot: of the machine; trees given one are kept for that boot alone, and need not be on disk
            before they count as whole. Without one a tree outlives a loss of power.
        rpc: gives the connection of the moment.
        run: for the disk.
        pause: awaited before an interrupted fetch goes on.
        clock: by which fetches are timed.
        stock: is told what is here, and how fast it came; None: nobody asks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
        boot: str = "",
        clock: Clock | None = None,
        stock: Stock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._stock = stock or Stock()
        self._folder = folder / boot
        self._is_lasting = not boot
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._locks: dict[str, asyncio.Lock] = {}

    def create(self) -> None:
        """Make the folder, and remove what an interrupted fetch or an earlier boot left."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.glob(".*.partial"):
            remove_tree(left)
        if not self._is_lasting:
            for earlier in set(self._folder.parent.iterdir()) - {self._folder}:
                if earlier.is_dir():
                    remove_tree(earlier)
                else:
                    earlier.unlink()

    async def get(self, digest: str) -> Path:
        """The folder of the tree; waits for the control plane when it is away.

        Raises:
            ClientError: it is not there, or not for this node.
            ContentError: what came is not what the digest names.
            OSError: the disk refused.
        """
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        path = self._folder / digest
        lock = self._locks.setdefault(digest, asyncio.Lock())
        # The one who waits goes on when the one who fetches is cancelled.
        async with lock:
            if not await self._run(path.is_dir):
                manifest = await self._fetch(digest, path, read_only=True)
                await self._run(partial(self._describe, path, manifest))
                self._stock.used(digest, manifest.size)
            else:
                self._stock.used(digest)
        return path

    async def fetch(self, digest: str, target: Path) -> None:
        """Lay the tree out as the new folder `target`, writable and not shared; errors as `get`."""
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        await self._fetch(digest, target, read_only=False)

    async def _fetch(self, digest: str, target: Path, *, read_only: bool) -> Manifest:
        manifest = await self._patiently(lambda: get_manifest(self._rpc(), digest, self._run))
        await self._run(partial(_check_room, manifest, target.parent))
        donors = await uninterrupted(self._run, partial(self._donors, manifest))
        tally, began = _Tally(), self._clock.monotonic()
        extraction = Extraction(manifest, target, read_only=read_only)
        try:
            await uninterrupted(self._run, extraction.__enter__)
            async with aclosing(self._chunks(digest, manifest, donors, tally)) as chunks:
                async for data in chunks:
                    await uninterrupted(self._run, partial(extraction.write, data))
            if read_only and self._is_lasting:
                # Once it has its name nobody looks at its bytes again, after a power loss neither.
                await uninterrupted(self._run, partial(flush_filesystem, self._folder))
            await uninterrupted(self._run, extraction.finish)
        finally:
            await uninterrupted(self._run, partial(extraction.__exit__, None, None, None))
        if not tally.is_interrupted:
            self._stock.fetched(tally.size, self._clock.monotonic() - began)
        log.info("tree.fetched", digest=digest[:16], size=manifest.size, reused=len(donors))
        return manifest

    async def _chunks(
        self, root: str, manifest: Manifest, donors: dict[str, _Place], tally: _Tally
    ) -> AsyncGenerator[bytes, None]:
        """The chunks in the order of `manifest.refs()`."""
        wanted: list[str] = []
        for ref in manifest.refs():
            data = await self._local(ref, donors)
            if data is None:
                wanted.append(ref.digest)
                if len(wanted) < _FETCHED_AT_ONCE:
                    continue
            async with aclosing(self._remote(root, wanted, tally)) as fetched:
                async for piece in fetched:
                    yield piece
            wanted = []
            if data is not None:
                yield data
        async with aclosing(self._remote(root, wanted, tally)) as fetched:
            async for piece in fetched:
                yield piece

    async def _local(self, ref: ChunkRef, donors: dict[str, _Place]) -> bytes | None:
        place = donors.get(ref.digest)
        if place is None:
            return None
        return await self._run(partial(_read_chunk, place, ref))

    async def _remote(
        self, root: str, digests: Sequence[str], tally: _Tally
    ) -> AsyncGenerator[bytes, None]:
        """Chunks from the store, going on where a broken connection stopped."""
        done = 0
        while done < len(digests):
            try:
                async with aclosing(get_blobs(self._rpc(), root, digests[done:])) as blobs:
                    async for _, data in blobs:
                        done += 1
                        tally.size += len(data)
                        yield data
            except Unavailable as error:
                tally.is_interrupted = True
                log.warning("tree.interrupted", digest=root[:16], error=error.message)
                await self._pause()

    async def _patiently(self, call: Callable[[], Awaitable[Manifest]]) -> Manifest:
        while True:
            try:
                return await call()
            except Unavailable:
                await self._pause()

    def _donors(self, manifest: Manifest) -> dict[str, _Place]:
        """Where chunks of `manifest` are in the trees fetched last."""
        wanted = manifest.blobs()
        places: dict[str, _Place] = {}
        for path in self._newest_manifests():
            tree = path.with_name(path.name.removesuffix(_MANIFEST))
            try:
                donor = decode(path.read_bytes(), digest=tree.name)
            except (OSError, ContentError):
                continue
            for entry in donor.entries:
                offset = 0
                for ref in entry.chunks:
                    if ref.digest in wanted:
                        places.setdefault(ref.digest, _Place(tree / entry.path, offset))
                    offset += ref.size
        return places

    def _newest_manifests(self) -> list[Path]:
        found = []
        for path in self._folder.glob(f"*{_MANIFEST}"):
            facts = path.stat()
            if facts.st_size <= _DONOR_MANIFEST_BYTES:
                found.append((facts.st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:_DONORS]]

    def _describe(self, tree: Path, manifest: Manifest) -> None:
        """Note what a whole tree is made of, and how much it is: manifests are long to read."""
        write_atomically(tree.with_name(tree.name + _SIZE), str(manifest.size).encode())
        write_atomically(tree.with_name(tree.name + _MANIFEST), manifest.encode())

    def left(self) -> list[tuple[str, int]]:
        """Digest and bytes of the trees that earlier agents fetched last, oldest first; blocking.

        Of those that were noted so; raises OSError.
        """
        noted = sorted(self._folder.glob(f"*{_SIZE}"), key=lambda path: path.stat().st_mtime)
        left = []
        for path in noted[-MOST_TOLD:]:
            tree = path.with_name(path.name.removesuffix(_SIZE))
            with suppress(OSError, ValueError):
                if tree.is_dir():
                    left.append((tree.name, int(path.read_bytes())))
        return left


def _check_room(manifest: Manifest, folder: Path) -> None:
    """Raise OSError for a tree that would leave sessions no room: it comes when there is some, or elsewhere."""
    size = manifest.size + len(manifest.entries) * _FILE_BYTES
    if not has_room_for(size, folder):
        raise OSError(
            errno.ENOSPC,
            f"no room for {size_text(size)}: the rest of the disk is kept for what runs here",
        )


def _read_chunk(place: _Place, ref: ChunkRef) -> bytes | None:
    """The chunk, or None when the file does not hold it any more."""
    try:
        with place.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), ref.size, place.offset)
    except OSError:
        return None
    return data if digest_of(data) == ref.digest else None
