"""Data waiting for one Ingest stream, with a bounded amount in flight.

Replicas take turns, chunk by chunk: output of one does not wait behind earlier output of
another. That holds only for data waiting here, so little is sent ahead of acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from nsml.v1 import agents_pb2 as pb

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaId

MESSAGE_BYTES = 1 << 20
MESSAGE_CHUNKS = 64
"""Most chunks of a message, however small: the control plane works by chunks, too."""
MESSAGES_AHEAD = 4
"""Most unanswered messages with chunks."""
REPLICA_CHUNKS = 64
"""Most waiting chunks of one replica."""


class SendQueue:
    """Chunks by replica, and the newest reading of the node. For one connection."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[ReplicaId, deque[pb.Chunk]] = OrderedDict()
        """Only replicas with chunks, in the order of their turns."""
        self._sample: pb.NodeSample | None = None
        self._unanswered = 0
        self._changed = asyncio.Event()
        self._taken: dict[ReplicaId, asyncio.Event] = {}

    async def put(self, replica_id: ReplicaId, chunk: pb.Chunk) -> None:
        """Add a chunk of a replica; waits while it has too many here. One task a replica."""
        while len(self._chunks.get(replica_id, ())) >= REPLICA_CHUNKS:
            taken = self._taken[replica_id] = asyncio.Event()
            await taken.wait()
        self._chunks.setdefault(replica_id, deque()).append(chunk)
        self._changed.set()

    def offer(self, sample: pb.NodeSample) -> None:
        """Send this reading, replacing one that still waits."""
        self._sample = sample
        self._changed.set()

    def answered(self) -> None:
        """The control plane has answered a message."""
        self._unanswered = max(self._unanswered - 1, 0)
        self._changed.set()

    async def next_message(self) -> pb.IngestRequest:
        """Return the next message, once there is one and it may be sent."""
        while self._unanswered >= MESSAGES_AHEAD or not (self._chunks or self._sample):
            self._changed.clear()
            await self._changed.wait()
        message = pb.IngestRequest()
        if self._sample is not None:
            message.sample.CopyFrom(self._sample)
            self._sample = None
        held = 0
        # Chunks are at most a quarter of a message, except single large records.
        while (
            self._chunks and len(message.chunks) < MESSAGE_CHUNKS and held <= MESSAGE_BYTES * 3 // 4
        ):
            chunk = self._take()
            message.chunks.append(chunk)
            held += chunk.ByteSize()
        if message.chunks:
            self._unanswered += 1
        return message

    def _take(self) -> pb.Chunk:
        """Return the first chunk of the replica next in turn."""
        replica_id, waiting = next(iter(self._chunks.items()))
        chunk = waiting.popleft()
        self._chunks.move_to_end(replica_id)
        if not waiting:
            del self._chunks[replica_id]
        if taken := self._taken.pop(replica_id, None):
            taken.set()
        return chunk
