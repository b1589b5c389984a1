"""Brings the chunks of trees that are laid out, by a few calls at once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from nodeagent.storage.transfer import get_blobs, uninterrupted
from nsml.client.errors import Unavailable
from nsml.common.concurrency import beside_each_other

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.storage.assembly import Assembly, Batch
    from nodeagent.storage.reservations import Reservation
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Offload
    from nsml.content.manifest import ChunkRef

STREAMS: Final = 4
"""Calls at one time, for all trees of a folder; each holds a message and a chunk."""
_HELD_CHUNKS: Final = 64
_HELD_BYTES: Final = 1 << 20
"""So much of a call is written together: to hand it to a thread takes longer than to write a small chunk."""

log = structlog.get_logger()


@dataclass(slots=True)
class Tally:
    """What came from the control plane, and whether that was interrupted."""

    size: int = 0
    is_interrupted: bool = False


class Filling:
    """Fills trees with chunks from the control plane.

    Args:
        rpc: gives the connection of the moment.
        run: for the disk.
        pause: awaited before an interrupted call goes on.
    """

    def __init__(
        self, *, rpc: Callable[[], Rpc], run: Offload, pause: Callable[[], Awaitable[None]]
    ) -> None:
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._streams = asyncio.Semaphore(STREAMS)

    async def fill(
        self, root: str, assembly: Assembly, reservation: Reservation, tally: Tally
    ) -> None:
        """Have all content of the tree `root` written. Raises what its disk and the control plane do, but Unavailable."""

        async def take(batch: Batch) -> None:
            async with self._streams:
                await self._take(root, assembly, batch, reservation, tally)

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

    async def _take(
        self,
        root: str,
        assembly: Assembly,
        batch: Batch,
        reservation: Reservation,
        tally: Tally,
    ) -> None:
        """Fetch the chunks of a batch and write them, going on where a broken connection stopped."""
        left = deque(batch.places)
        held: list[tuple[ChunkRef, bytes]] = []

        async def write() -> None:
            work = partial(assembly.write, batch, tuple(held))
            held.clear()
            await uninterrupted(self._run, work, cancel=reservation.cancel)

        while left:
            size = 0
            try:
                digests = [ref.digest for ref in left]
                async with aclosing(get_blobs(self._rpc(), root, digests)) as blobs:
                    async for _, data in blobs:
                        held.append((left.popleft(), data))
                        tally.size += len(data)
                        size += len(data)
                        if size >= _HELD_BYTES or len(held) >= _HELD_CHUNKS:
                            await write()
                            size = 0
            except Unavailable as error:
                tally.is_interrupted = True
                log.warning("tree.interrupted", digest=root[:16], error=error.message)
                await self._pause()
            if held:
                await write()
