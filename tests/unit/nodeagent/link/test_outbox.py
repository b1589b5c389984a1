"""What is said until it is acknowledged."""

from __future__ import annotations

from nodeagent.folders import ReplicaId
from nodeagent.link.outbox import Outbox
from nodeagent.link.reports import report_of
from nsml.v1 import agents_pb2 as pb

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
PREPARING, RUNNING = pb.REPLICA_PHASE_PREPARING, pb.REPLICA_PHASE_RUNNING


def test_an_acknowledgement_of_the_same_phase_does_not_lose_what_was_not_said_yet() -> None:
    outbox = Outbox()
    outbox.put(REPLICA, report_of(REPLICA, PREPARING, at=1.0, waiting="waiting for other builds"))
    assert [one.waiting for one in outbox.take()] == ["waiting for other builds"]
    outbox.put(REPLICA, report_of(REPLICA, PREPARING, at=2.0))
    outbox.acknowledge(REPLICA, PREPARING)
    assert [one.waiting for one in outbox.take()] == [""]
    outbox.acknowledge(REPLICA, RUNNING)
    outbox.repeat()
    assert len(outbox.take()) == 1
    outbox.acknowledge(REPLICA, PREPARING)
    outbox.repeat()
    assert outbox.take() == []
