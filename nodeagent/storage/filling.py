"""Fetches the chunks of trees over a few parallel calls: from other sources, then from the control plane."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from nodeagent.storage.transfer import get_blobs, uninterrupted
from nsml.client.errors import Unavailable
from nsml.common.concurrency import beside_each_other

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nodeagent.peers.sources import Sources
    from nodeagent.storage.assembly import Assembly, Batch
    from nodeagent.storage.reservations import Reservation
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Offload
    from nsml.content.manifest import ChunkRef

STREAMS: Final = 4
"""Parallel calls, for all trees of a folder; each holds a message and a chunk."""
_HELD_CHUNKS: Final = 64
_HELD_BYTES: Final = 1 << 20
"""Bytes of a call that are written together: passing them to a thread takes longer than writing a small chunk."""

log = structlog.get_logger()


@dataclass(slots=True)
class Tally:
    """Received bytes, those from each other kind of source, and whether the fetch was interrupted."""

    size: int = 0
    others: Counter[str] = field(default_factory=Counter)
    is_interrupted: bool = False


class Filling:
    """Fills trees with chunks.

    Args:
        rpc: returns the current connection.
        run: runs disk work in a thread.
        pause: awaited before an interrupted call is resumed.
    """

    def __init__(
        self, *, rpc: Callable[[], Rpc], run: Offload, pause: Callable[[], Awaitable[None]]
    ) -> None:
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._streams = asyncio.Semaphore(STREAMS)

    async def fill(
        self,
        root: str,
        assembly: Assembly,
        reservation: Reservation,
        tally: Tally,
        sources: Sequence[Sources] = (),
    ) -> None:
        """Write all content of the tree `root`: each source is asked for chunks that earlier ones lack. Raises errors of the disk and of the control plane, but not Unavailable."""

        async def take(batch: Batch) -> None:
            async with self._streams:
                writing = _Writing(assembly, batch, self._run, reservation, tally)
                for one in sources:
                    if writing.left:
                        await _take_from(one, writing)
                await self._take(root, writing)

        taking: set[asyncio.Task[None]] = set()
        async with beside_each_other() as group:
            while True:
                advance = uninterrupted(self._run, assembly.advance, cancel=reservation.cancel)
                if (batch := await advance) is None:
                    return
                if batch.count:
                    taking.add(group.create_task(take(batch)))
                if len(taking) > STREAMS:
                    _, taking = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, root: str, writing: _Writing) -> None:
        """Fetch the rest of a batch, resuming after a broken connection."""
        while writing.left:
            refs = tuple(writing.left)
            try:
                blobs = get_blobs(self._rpc(), root, [ref.digest for ref in refs])
                async with aclosing(blobs):
                    coming = iter(refs)
                    async for _, data in blobs:
                        await writing.add(next(coming), data)
            except Unavailable as error:
                writing.tally.is_interrupted = True
                log.warning("tree.interrupted", digest=root[:16], error=error.message)
                await writing.flush()
                await self._pause()
        await writing.flush()


async def _take_from(source: Sources, writing: _Writing) -> None:
    """Fetch the chunks of a batch that a source has."""
    wanted = writing.batch.first_places(writing.left)
    async with aclosing(source.bring(wanted)) as chunks:
        async for ref, data in chunks:
            writing.tally.others[source.kind] += len(data)
            await writing.add(ref, data)


class _Writing:
    """Writes the chunks of a batch; `left`: chunks not received yet."""

    def __init__(
        self,
        assembly: Assembly,
        batch: Batch,
        run: Offload,
        reservation: Reservation,
        tally: Tally,
    ) -> None:
        self.batch = batch
        self.left = dict.fromkeys(batch.places)
        self.tally = tally
        self._assembly = assembly
        self._run = run
        self._cancel = reservation.cancel
        self._held: list[tuple[ChunkRef, bytes]] = []
        self._size = 0

    async def add(self, ref: ChunkRef, data: bytes) -> None:
        """Add a chunk, already compared with its digest."""
        del self.left[ref]
        self._held.append((ref, data))
        self._size += len(data)
        self.tally.size += len(data)
        if self._size >= _HELD_BYTES or len(self._held) >= _HELD_CHUNKS:
            await self.flush()

    async def flush(self) -> None:
        """Write the chunks held so far."""
        if self._held:
            work = partial(self._assembly.write, self.batch, tuple(self._held))
            self._held.clear()
            self._size = 0
            await uninterrupted(self._run, work, cancel=self._cancel)
