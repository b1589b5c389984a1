"""Logs, with parts in the history or in blocks in the object store."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from controlplane.domain.errors import RETRY_AFTER_S, NsmlError, Unavailable
from controlplane.history.blocks import unpack
from controlplane.history.errors import HistoryCorrupt, LogElsewhere
from controlplane.objects.errors import BlobDamaged, BlobNotFound, ObjectsUnavailable
from nsml.content.digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.history.blocks import Block, Blocks
    from controlplane.history.sql.history import History
    from controlplane.history.values import Gap, LetGo, LogPage, LogPlace, Recorded, StreamKey
    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Offload

T = TypeVar("T")

BLOCKS_HELD: Final = 32
"""Size of the block cache, 1 MiB each: the next page of a log is mostly in the same block."""

_log = structlog.get_logger()


class Logs:
    """Reads logs, and moves those of ended sessions out of the history.

    Reads raise Unavailable while a needed object store does not answer, and LogLost if it has lost a
    part of the log.
    """

    def __init__(self, *, history: History, objects: ObjectStore, run: Offload) -> None:
        self._history = history
        self._objects = objects
        self._run = run
        self._held: OrderedDict[str, Block] = OrderedDict()

    async def read(
        self,
        session_id: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        tail_lines: int | None = None,
        stop: int | None = None,
        limit_bytes: int = 64 << 10,
    ) -> LogPage:
        """See SqlStreams.read_log."""
        return await self._with_blocks(
            lambda blocks: self._history.streams.read_log(
                session_id,
                attempt=attempt,
                rank=rank,
                offset=offset,
                tail_lines=tail_lines,
                stop=stop,
                limit_bytes=limit_bytes,
                blocks=blocks,
            )
        )

    async def at(
        self, session_id: str, moment: float, *, attempt: int | None = None, rank: int = 0
    ) -> LogPlace:
        """See SqlStreams.log_at."""
        return await self._with_blocks(
            lambda blocks: self._history.streams.log_at(
                session_id, moment, attempt=attempt, rank=rank, blocks=blocks
            )
        )

    async def parts(self, log: StreamKey, start: int) -> tuple[Recorded | Gap | LetGo, ...]:
        """See SqlStreams.read."""
        return await self._with_blocks(
            lambda blocks: self._history.streams.read(log, start, blocks=blocks)
        )

    async def archive(self, log: StreamKey) -> bool:
        """Move the next part of a log into the object store; False when there was nothing (left) to do."""
        return await self._history.streams.archive(log, self._keep)

    async def _keep(self, content: bytes) -> str:
        digest = await self._run(partial(digest_of, content))
        await self._objects.put(digest, content)
        return digest

    async def _with_blocks(self, read: Callable[[Blocks], Awaitable[T]]) -> T:
        blocks = dict(self._held)
        while True:
            try:
                return await read(blocks)
            except LogElsewhere as elsewhere:
                blocks[elsewhere.digest] = await self._block(elsewhere.digest)

    async def _block(self, digest: str) -> Block:
        try:
            content = await self._objects.get(digest)
            block = await self._run(partial(unpack, content))
        except ObjectsUnavailable as error:
            _log.warning("logs.out_of_reach", block=digest, reason=error.why or error.message)
            raise Unavailable(
                "this log is in the platform's object store, which does not answer",
                attempt="nsml status    shows what is wrong, since when, and what ends it",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        except (BlobNotFound, BlobDamaged, HistoryCorrupt) as error:
            _log.error("logs.block_lost", block=digest, reason=error.why or error.message)
            raise LogLost from error
        self._held[digest] = block
        while len(self._held) > BLOCKS_HELD:
            self._held.popitem(last=False)
        return block


class LogLost(NsmlError):
    """The object store has lost a part of a log."""

    reason = "LOG_LOST"

    def __init__(self) -> None:
        super().__init__(
            "the platform's object store has lost a part of this log",
            attempt="nsml logs --tail N or --since TIME    for what came after it",
        )
