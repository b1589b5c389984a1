"""Resends blobs that the object store has lost, if this node has them. No order is stored."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import structlog

from nodeagent.folders import ReplicaId
from nodeagent.storage.checkpoints import blobs_of
from nodeagent.storage.transfer import put_blobs, uninterrupted
from nsml.client.errors import ClientError
from nsml.common.concurrency import BackgroundTasks
from nsml.content.digests import is_digest
from nsml.content.errors import ContentError
from nsml.v1 import agents_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nodeagent.folders import ReplicaFolders
    from nodeagent.storage.tree_folder import TreeFolder
    from nodeagent.streaming.chunk_cache import ChunkCache
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Clock, Offload

MOST_BLOBS: Final = 128
MOST_WAITING: Final = 16
"""Orders in the queue; more are refused."""
WANTED_FOR_S: Final = 15.0
"""How long the control plane waits: older orders are skipped."""

_NOTHING: Final = "it has nothing of that"

log = structlog.get_logger()


class RepairOrders:
    """Executes the orders, one after the other. A context manager: leaving it drops the rest.

    Args:
        trees: the caches of trees of this node.
        folders: of its replicas.
        chunks: cached chunks of streamed datasets.
        rpc: returns the current connection.
        answered: called when there is an answer.
    """

    def __init__(
        self,
        trees: Sequence[TreeFolder],
        folders: ReplicaFolders,
        chunks: ChunkCache,
        *,
        rpc: Callable[[], Rpc],
        answered: Callable[[], object],
        clock: Clock,
        run_long: Offload,
    ) -> None:
        self._trees = trees
        self._folders = folders
        self._chunks = chunks
        self._rpc = rpc
        self._answered = answered
        self._clock = clock
        self._run_long = run_long
        self._waiting: deque[tuple[pb.RepairOrder, float]] = deque()
        self._answers: list[pb.RepairReport] = []
        self._group = BackgroundTasks()
        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._group.__aexit__(None, None, None)

    def obey(self, order: pb.RepairOrder) -> None:
        """Queue an order; returns at once."""
        if len(self._waiting) >= MOST_WAITING:
            self._answer(pb.RepairReport(order_id=order.order_id, words="too many orders wait"))
            return
        self._waiting.append((order, self._clock.monotonic()))
        if self._working is None or self._working.done():
            self._working = self._group.create_task(self._work())

    def take_answers(self) -> list[pb.RepairReport]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def _answer(self, report: pb.RepairReport) -> None:
        self._answers.append(report)
        self._answered()

    async def _work(self) -> None:
        while self._waiting:
            order, since = self._waiting.popleft()
            if self._clock.monotonic() - since > WANTED_FOR_S:
                continue
            report = pb.RepairReport(order_id=order.order_id)
            try:
                report.sent = await self._carried_out(order)
            except FileNotFoundError:
                report.words = _NOTHING
            except (OSError, ValueError, ContentError, ClientError) as error:
                report.words = str(getattr(error, "strerror", None) or error)
            except Exception:
                log.exception("repair.failed", root=order.root[:16])
                report.words = "the agent failed; its log says more"
            else:
                if not report.sent:
                    report.words = _NOTHING
            log.info("repair.sent", root=order.root[:16], blobs=report.sent, reason=report.words)
            self._answer(report)

    async def _carried_out(self, order: pb.RepairOrder) -> int:
        """Execute an order; return how many blobs were sent, each verified."""
        wanted = {one for one in order.digests[:MOST_BLOBS] if is_digest(one)}
        for trees in self._trees:
            if trees.get(order.root) is not None:
                with closing(trees.blobs(order.root, wanted)) as blobs:
                    sent = await self._send(blobs, len(wanted))
                if sent:
                    return sent
        if sent := await self._send(_cached(self._chunks, wanted), len(wanted)):
            return sent
        if not order.HasField("replica"):
            return 0
        replica_id = ReplicaId(
            session_id=order.replica.session_id,
            attempt=order.replica.attempt,
            rank=order.replica.rank,
        )
        folder = self._folders.of(replica_id)
        with ExitStack() as stack:
            opening = blobs_of(folder, order.folder, order.root, wanted)
            saved = await uninterrupted(self._run_long, partial(stack.enter_context, opening))
            return await self._send(saved, len(wanted))

    async def _send(self, blobs: Iterator[tuple[str, bytes]], most: int) -> int:
        return await put_blobs(self._rpc(), blobs, self._run_long, most=most)


def _cached(chunks: ChunkCache, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for digest in wanted:
        if (file := chunks.open(digest)) is not None:
            with file:
                file.seek(0)
                yield digest, file.readall()
