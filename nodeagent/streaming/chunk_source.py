"""Chunks of streamed datasets, from the node's cache or the platform: each is fetched once, whoever waits for it.

What is read in order is fetched ahead. While the control plane is away readers wait, as long as they like.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import structlog

from nodeagent.storage.transfer import get_blobs, uninterrupted
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.index import Chunk
from nsml.client.errors import ClientError, Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Offload
from nsml.content.errors import ContentError

AHEAD_BYTES: Final = 32 << 20
"""How far what is read in order is fetched ahead."""
_FETCHES_AT_ONCE: Final = 8
_TRIES: Final = 3
"""A chunk that was fetched may have to go again before it is read, on a disk without room."""

log = structlog.get_logger()


class ChunkSource:
    """Gives chunks of datasets; `close` ends what is being fetched.

    Args:
        cache: where they are kept.
        rpc: gives the connection of the moment.
        run: for the disk.
        pause: awaited before an interrupted fetch goes on.
    """

    def __init__(
        self,
        cache: ChunkCache,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._cache = cache
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._coming: dict[str, asyncio.Future[None]] = {}
        self._fetching: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_FETCHES_AT_ONCE)

    def close(self) -> None:
        """Fetch nothing any more."""
        for task in self._fetching:
            task.cancel()

    async def open(self, root: str, chunk: Chunk, ahead: Sequence[Chunk] = ()) -> int:
        """A descriptor of a chunk of the manifest `root`; `ahead` are those that will be read next.

        Raises:
            ClientError: it is not there, or not for this node.
            ContentError: what came is not what the digest names.
            OSError: the disk refused.
        """
        for _ in range(_TRIES):
            descriptor = await uninterrupted(self._run, partial(self._cache.open, chunk.digest))
            if descriptor is not None:
                self._fetch_ahead(root, ahead)
                return descriptor
            if chunk.digest not in self._coming:
                self._begin(root, [chunk, *ahead])
            await asyncio.shield(self._coming[chunk.digest])
        raise OSError("the disk of this node has no room for streamed data")

    def _fetch_ahead(self, root: str, ahead: Sequence[Chunk]) -> None:
        """Fetch what comes next once much of it is missing: many small calls would take longer."""
        missing = [one for one in ahead if self._is_missing(one)]
        if missing and (missing[0] is ahead[0] or 2 * _size(missing) >= _size(ahead)):
            self._begin(root, missing)

    def _is_missing(self, chunk: Chunk) -> bool:
        return chunk.digest not in self._coming and not self._cache.has(chunk.digest)

    def _begin(self, root: str, chunks: Sequence[Chunk]) -> None:
        first, *rest = chunks
        wanted = list(
            dict.fromkeys([first.digest, *(one.digest for one in rest if self._is_missing(one))])
        )
        loop = asyncio.get_running_loop()
        self._coming.update((digest, loop.create_future()) for digest in wanted)
        task = asyncio.ensure_future(self._fetch(root, wanted))
        self._fetching.add(task)
        task.add_done_callback(partial(self._end, wanted))

    def _end(self, wanted: Sequence[str], task: asyncio.Task[None]) -> None:
        """Whoever waits for what did not come learns why."""
        self._fetching.discard(task)
        error = None if task.cancelled() else task.exception()
        for digest in wanted:
            self._came(digest, error or Unavailable("the agent of this node is ending"))

    def _came(self, digest: str, error: BaseException | None = None) -> None:
        coming = self._coming.pop(digest, None)
        if coming is None or coming.done():
            return
        if error is None:
            coming.set_result(None)
        else:
            coming.set_exception(error)
            coming.exception()  # it need not be anybody's: of what was fetched ahead nobody waits

    async def _fetch(self, root: str, wanted: Sequence[str]) -> None:
        async with self._room:
            left = list(wanted)
            while left:
                try:
                    blobs = get_blobs(self._rpc(), root, left)
                    async with aclosing(blobs):
                        async for digest, data in blobs:
                            await uninterrupted(self._run, partial(self._cache.add, digest, data))
                            self._came(digest)
                except Unavailable:
                    await self._pause()
                except (ClientError, ContentError, OSError) as error:
                    log.warning("chunk.not_fetched", root=root[:16], error=str(error))
                    raise
                left = [digest for digest in left if digest in self._coming]


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(one.size for one in chunks)
