"""Chunks of streamed datasets, from the node's cache, other sources or the control plane: each is fetched once for all readers.

Sequential reads are prefetched. While the control plane is unreachable, readers wait without a timeout.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from io import FileIO
from typing import Final

import structlog

from nodeagent.peers.sources import ChunkLocation, Sources
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.other_sources import OtherSources
from nodeagent.storage.transfer import get_blobs, uninterrupted
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.index import Chunk
from nsml.client.errors import ClientError, Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Offload
from nsml.content.errors import ContentError
from nsml.content.manifest import ChunkRef

AHEAD_BYTES: Final = 32 << 20
"""Bytes to prefetch for sequential reads."""
_FETCHES_AT_ONCE: Final = 8
_MOST_AHEAD: Final = 2 * _FETCHES_AT_ONCE
"""With this many fetches in progress nothing is prefetched."""
_TRIES: Final = 3
"""On a disk without room, a fetched chunk may be evicted before it is read."""

log = structlog.get_logger()


class ChunkSource:
    """Provides chunks of datasets; `close` cancels the fetches.

    Args:
        cache: stores the chunks.
        others: sources that are tried before the control plane.
        came: called with the number of received bytes, and those by kind of other source.
        rpc: returns the current connection.
        run: runs disk work in a thread.
        pause: awaited before an interrupted fetch is resumed.
    """

    def __init__(
        self,
        cache: ChunkCache,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
        others: OtherSources | None = None,
        came: Callable[[int, Mapping[str, int]], object] = lambda _, __: None,
    ) -> None:
        self._others = others or OtherSources()
        self._came_from = came
        self._shared: dict[str, _SharedSources] = {}
        self._cache = cache
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._coming: dict[str, _Fetch] = {}
        self._fetching: set[_Fetch] = set()
        self._room = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._is_closed = False

    def close(self) -> None:
        """Stop fetching."""
        self._is_closed = True
        for fetch in self._fetching:
            if fetch.task is not None:
                fetch.task.cancel()

    @asynccontextmanager
    async def reading(self, root: str) -> AsyncIterator[None]:
        """Use other sources for chunks of the manifest `root`, too, while the context lasts."""
        async with self._sources(root):
            yield

    @asynccontextmanager
    async def _sources(self, root: str) -> AsyncIterator[Sequence[Sources]]:
        """Share sources between all readers of the manifest, and their fetches; the last one closes them."""
        shared = self._shared.get(root)
        if shared is None:
            shared = _SharedSources(partial(self._others.of, root, is_stream=True))
            self._shared[root] = shared
        shared.users += 1
        try:
            yield await shared.opened()
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[root]
                await shared.close()

    async def open(self, root: str, path: str, chunk: Chunk, ahead: Sequence[Chunk] = ()) -> FileIO:
        """Return a chunk of the file `path` of the manifest `root`, open for reading; `ahead`: the chunks to be read next.

        Raises:
            ClientError: it does not exist, or is not for this node.
            ContentError: the received content does not match the digest.
            OSError: the disk refused.
        """
        for _ in range(_TRIES):
            file = await uninterrupted(self._run, partial(self._cache.open, chunk.digest))
            if file is not None:
                self._fetch_ahead(root, path, ahead)
                return file
            if self._is_missing(chunk):
                self._begin(root, path, [chunk, *ahead])
            if (fetch := self._coming.get(chunk.digest)) is not None:  # else it has just arrived
                await fetch.wait(chunk.digest)
        raise NoRoom("no room for streamed data: it is gone before it is read")

    def _fetch_ahead(self, root: str, path: str, ahead: Sequence[Chunk]) -> None:
        """Prefetch once much of `ahead` is missing: many small calls would take longer."""
        missing = [one for one in ahead if self._is_missing(one)]
        is_due = missing and (missing[0] is ahead[0] or 2 * _size(missing) >= _size(ahead))
        if is_due and len(self._fetching) < _MOST_AHEAD:
            self._begin(root, path, missing)

    def _is_missing(self, chunk: Chunk) -> bool:
        return chunk.digest not in self._coming and not self._cache.has(chunk.digest)

    def _begin(self, root: str, path: str, chunks: Sequence[Chunk]) -> _Fetch:
        if self._is_closed:
            raise Unavailable("the agent of this node is ending")
        first, *rest = chunks
        wanted = [first, *(one for one in rest if self._is_missing(one))]
        places = [ChunkLocation(ChunkRef(one.digest, one.size), path, one.start) for one in wanted]
        fetch = _Fetch({place.ref.digest: place for place in places})
        self._coming.update(dict.fromkeys(fetch.left, fetch))
        fetch.task = asyncio.ensure_future(self._fetch(root, fetch))
        self._fetching.add(fetch)
        fetch.task.add_done_callback(partial(self._end, fetch))
        return fetch

    def _end(self, fetch: _Fetch, task: asyncio.Task[None]) -> None:
        """Pass the error to waiters for missing chunks; after a cancelled fetch they retry."""
        self._fetching.discard(fetch)
        error = None if task.cancelled() else task.exception()
        for digest in list(fetch.left):
            self._came(fetch, digest, error)

    def _came(self, fetch: _Fetch, digest: str, error: BaseException | None = None) -> None:
        if self._coming.get(digest) is fetch:
            del self._coming[digest]
        fetch.came(digest, error)

    async def _fetch(self, root: str, fetch: _Fetch) -> None:
        others: Counter[str] = Counter()
        try:
            async with self._room:
                await self._fetch_from_others(root, fetch, others)
                await self._fetch_from_platform(root, fetch, others)
        finally:
            self._came_from(others.total(), {kind: others[kind] for kind in others if kind})

    async def _fetch_from_others(self, root: str, fetch: _Fetch, came: Counter[str]) -> None:
        if root not in self._shared:
            return
        async with self._sources(root) as sources:
            for source in sources:
                if not fetch.left:
                    return
                wanted = [fetch.places[digest] for digest in fetch.left]
                async with aclosing(source.bring(wanted)) as chunks:
                    async for ref, data in chunks:
                        await uninterrupted(self._run, partial(self._cache.add, ref.digest, data))
                        came[source.kind] += len(data)
                        self._came(fetch, ref.digest)

    async def _fetch_from_platform(self, root: str, fetch: _Fetch, came: Counter[str]) -> None:
        while fetch.left:
            try:
                blobs = get_blobs(self._rpc(), root, list(fetch.left))
                async with aclosing(blobs):
                    async for digest, data in blobs:
                        await uninterrupted(self._run, partial(self._cache.add, digest, data))
                        came[""] += len(data)
                        self._came(fetch, digest)
            except Unavailable:
                await self._pause()
            except (ClientError, ContentError, OSError) as error:
                log.warning("chunk.not_fetched", root=root[:16], error=str(error))
                raise


class _SharedSources:
    """Other sources of one manifest, opened by their first user.

    Attributes:
        users: their number.
    """

    def __init__(self, of: Callable[[], AbstractAsyncContextManager[Sequence[Sources]]]) -> None:
        self.users = 0
        self._of = of
        self._sources: Sequence[Sources] | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def opened(self) -> Sequence[Sources]:
        """Open them, unless they are open."""
        async with self._opening:
            if self._sources is None:
                self._sources = await self._stack.enter_async_context(self._of())
            return self._sources

    async def close(self) -> None:
        await self._stack.aclose()


class _Fetch:
    """Chunks of one call, in this order. It is cancelled when its last waiter is.

    Attributes:
        places: of the chunks in the dataset.
    """

    def __init__(self, places: Mapping[str, ChunkLocation]) -> None:
        loop = asyncio.get_running_loop()
        self.places = places
        self.left: dict[str, asyncio.Future[None]] = {
            digest: loop.create_future() for digest in places
        }
        self.task: asyncio.Task[None] | None = None
        self._waiting = 0

    async def wait(self, digest: str) -> None:
        """Return when that chunk is here. Raises the error of its fetch."""
        self._waiting += 1
        try:
            await asyncio.shield(self.left[digest])
        except asyncio.CancelledError:
            if self._waiting == 1 and self.task is not None:
                self.task.cancel()
            raise
        finally:
            self._waiting -= 1

    def came(self, digest: str, error: BaseException | None) -> None:
        """Mark a chunk as received, or as failed."""
        future = self.left.pop(digest)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # marked as retrieved: prefetched chunks have no waiter


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(one.size for one in chunks)
