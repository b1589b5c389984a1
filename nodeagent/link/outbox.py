"""Reports not acknowledged by the control plane: the newest of each replica."""

from __future__ import annotations

import asyncio

from nodeagent.folders import ReplicaId
from nsml.v1 import agents_pb2 as pb


def replica_of(message: pb.ReplicaId) -> ReplicaId:
    """Return the id in a message; raises ValueError if it is no valid folder name."""
    return ReplicaId(
        session_id=message.session_id, attempt=int(message.attempt), rank=int(message.rank)
    )


def replica_message(replica_id: ReplicaId) -> pb.ReplicaId:
    """Return an id as a message."""
    return pb.ReplicaId(
        session_id=replica_id.session_id, attempt=replica_id.attempt, rank=replica_id.rank
    )


class Outbox:
    """Unacknowledged reports, and those sent on the current stream."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        """Set when a report was added."""
        self._pending: dict[ReplicaId, pb.ReplicaReport] = {}
        self._sent: dict[ReplicaId, pb.ReplicaReport] = {}

    def put(self, replica_id: ReplicaId, report: pb.ReplicaReport) -> None:
        """Send `report` as soon as possible, and again until it is acknowledged or replaced."""
        self._pending[replica_id] = report
        self.wake.set()

    def take(self) -> list[pb.ReplicaReport]:
        """Return the reports not sent on this stream."""
        self.wake.clear()
        fresh = {
            replica_id: report
            for replica_id, report in self._pending.items()
            if self._sent.get(replica_id) is not report
        }
        self._sent.update(fresh)
        return list(fresh.values())

    def repeat(self) -> None:
        """Send all reports again: on a new stream, or after long without acknowledgement."""
        self._sent.clear()
        if self._pending:
            self.wake.set()

    def acknowledge(self, replica_id: ReplicaId, phase: pb.ReplicaPhase) -> None:
        """Stop repeating the report of that phase, unless a newer one is unsent."""
        pending = self._pending.get(replica_id)
        is_said = pending is self._sent.get(replica_id)
        if pending is not None and is_said and pending.phase == phase:
            del self._pending[replica_id]
            self._sent.pop(replica_id, None)
