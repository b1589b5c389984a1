"""Records and telemetry from nodes: stored, then acknowledged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import structlog

from controlplane.domain.errors import NotFound
from controlplane.history.values import Channel, Checkpoint, Chunk, NodeSample, StreamKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.operations.references import References

_log = structlog.get_logger("operations.ingest")


class Rights:
    """For which replicas a node may speak: those that run or ran there."""

    def __init__(self, *, references: References) -> None:
        self._references = references

    async def check(
        self, node: str, session_id: str, attempt: int, rank: int | None = None
    ) -> None:
        """Return if the replica (any of the attempt, without a rank) is the node's.

        Raises:
            NotFound: it is not.
            StoreError: what is not known here cannot be looked up.
        """
        session = await self._references.by_id(session_id)
        if session is None or node not in nodes_of(session, attempt, rank):
            # The leader may have placed it a moment ago, and we may not have heard of that.
            session = await self._references.newest(session_id)
        if session is None or node not in nodes_of(session, attempt, rank):
            raise NotFound(f"session {session_id} has no replica on node {node}")


def nodes_of(session: Session, attempt: int, rank: int | None) -> tuple[str, ...]:
    """Nodes of one replica, or of all of an attempt."""
    nodes: tuple[str, ...] = ()
    if session.attempt == attempt and session.replicas:
        nodes = tuple(one.node for one in sorted(session.replicas, key=lambda one: one.rank))
    else:
        for ended in session.attempts:
            if ended.number == attempt:
                nodes = ended.nodes
    if rank is None:
        return nodes
    return nodes[rank : rank + 1] if rank >= 0 else ()


class Ingestor:
    """Takes what agents read from spools."""

    def __init__(self, *, history: History, rights: Rights) -> None:
        self._history = history
        self._rights = rights

    async def ingest(
        self, caller: NodeCaller, chunks: Sequence[Chunk], sample: NodeSample | None
    ) -> dict[StreamKey, int]:
        """Store chunks and give the first position that is wanted of each stream; on disk then.

        Chunks of replicas that are not the node's, or of sessions that were removed, are answered
        as stored and dropped, so that a node does not send them for ever.
        """
        if sample is not None:
            await self._history.telemetry.record([sample])
        wanted: dict[StreamKey, int] = {}
        kept = []
        for chunk in chunks:
            key = chunk.stream
            try:
                await self._rights.check(caller.node, key.session_id, key.attempt, key.rank)
            except NotFound as error:
                _log.warning("chunk.refused", node=caller.node, reason=error.message)
                wanted[key] = chunk.last + 1
            else:
                kept.append(chunk)
        for chunk in kept:
            for checkpoint in checkpoints_in(chunk, caller.node):
                await self._history.catalogue.put_checkpoint(checkpoint)
        if kept:
            wanted |= await self._history.streams.append(kept)
        return wanted


def checkpoints_in(chunk: Chunk, node: str) -> Iterator[Checkpoint]:
    """The checkpoints that a chunk's records tell of."""
    if chunk.stream.channel is not Channel.METRIC:
        return
    for record in chunk.records:
        if b'"checkpoint"' not in record:
            continue
        try:
            told = json.loads(record)
            if told["kind"] == "checkpoint":
                yield _checkpoint(chunk.stream, told, node)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            # Records are user data: a broken one is kept as it is and means nothing.
            _log.info("record.unreadable", session=chunk.stream.session_id, reason=str(error))


def _checkpoint(stream: StreamKey, told: dict[str, Any], node: str) -> Checkpoint:
    step = told.get("step")
    return Checkpoint(
        session_id=stream.session_id,
        name=str(told["name"]),
        saved_at=float(told["time"]),
        size_bytes=int(told["size"]),
        file_count=len(told["files"]),
        elapsed_s=float(told.get("elapsed") or 0.0),
        summary=json.dumps(told.get("summary") or {}),
        step=None if step is None else float(step),
        attempt=stream.attempt,
        rank=stream.rank,
        node=node,
        folder=str(told["folder"]),
    )
