"""Media that their nodes will not send any more, and more of them than are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from controlplane.checkpoints.lost_uploads import Overdue, why_lost
from controlplane.domain.identity import NodeCaller
from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.values import Cause, EndedAttempt, Replica, Session
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Channel,
    Checkpoint,
    Chunk,
    Media,
    MediaQuery,
    MediaState,
    StreamKey,
)
from controlplane.records.ingest import Ingestor
from controlplane.state.replica_reports import SETTLED_WITHIN_S
from nsml.common.clock import SystemClock, inline
from tests.unit.controlplane.builders import session as made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.history.sqlite.history import SqliteHistory

ENDED_AT = 1_000.0
OVERDUE = ENDED_AT + SETTLED_WITHIN_S


def ended(*numbers: int, phases: tuple[ReplicaPhase, ...] = (), **facts: Any) -> Session:
    """A session whose attempts of these numbers ended on the nodes a and b."""
    attempts = tuple(
        EndedAttempt(
            number=number,
            cause=Cause.NODE_LOST,
            placed_at=0.0,
            ended_at=ENDED_AT,
            gpu_thousandths=0,
            held_s=0.0,
            nodes=("a", "b"),
        )
        for number in numbers
    )
    replicas = tuple(
        Replica(rank=rank, node="ab"[rank], phase=phase) for rank, phase in enumerate(phases)
    )
    return replace(made(replicas=2), attempts=attempts, replicas=replicas, **facts)


def test_what_may_still_come_is_not_lost() -> None:
    assert not why_lost(ended(attempt=1), 1, 0, OVERDUE), "it runs"
    assert not why_lost(ended(1, attempt=1), 1, 0, OVERDUE - 1)
    sending = ended(1, attempt=1, phases=(ReplicaPhase.FINALIZED, ReplicaPhase.EXITED))
    assert why_lost(sending, 1, 0, OVERDUE)
    assert not why_lost(sending, 1, 1, OVERDUE), "it is sending still"


def test_whose_node_did_not_send_it_is_said() -> None:
    said = why_lost(ended(1, attempt=2), 1, 1, OVERDUE)
    assert said == "b did not send it within 10 minutes of its attempt's end"
    assert why_lost(ended(1, attempt=1), 1, 7, OVERDUE).startswith("its node did not")


@pytest.fixture
async def history() -> AsyncIterator[SqliteHistory]:
    opened = await open_history(":memory:", clock=SystemClock(), run=inline)
    yield opened
    await opened.close()


class Clock(SystemClock):
    def time(self) -> float:
        return OVERDUE


class Known:
    """The sessions that there are."""

    def __init__(self, *sessions: Session) -> None:
        self._by_id = {one.id: one for one in sessions}

    async def by_id(self, session_id: str) -> Session | None:
        return self._by_id.get(session_id)


async def test_only_what_is_overdue_is_lost(history: SqliteHistory) -> None:
    over, runs = ended(1, attempt=1), ended(attempt=1)
    for session_id in (over.id, runs.id, "removed"):
        one = Media(
            session_id=session_id,
            attempt=1,
            rank=0,
            file="0" * 64 + "-1",
            name="x",
            kind="image",
            time=1.0,
        )
        await history.media.tell([one])
        await history.catalogue.put_checkpoint(
            Checkpoint(
                session_id=session_id,
                name="best",
                saved_at=1.0,
                size_bytes=1,
                file_count=1,
                attempt=1,
            )
        )
    known: Any = Known(over, runs)
    await Overdue(history=history, references=known, clock=Clock()).settle()
    states = {}
    for session_id in (over.id, runs.id, "removed"):
        [one] = (await history.media.list(MediaQuery(session_id=session_id))).media
        states[session_id] = one.state
        [saved] = await history.catalogue.checkpoints(session_id)
        assert saved.state.value == one.state.value
        assert saved.why_lost == one.why_lost
    assert states == {
        over.id: MediaState.LOST,
        runs.id: MediaState.SAVED,
        "removed": MediaState.SAVED,
    }


class Everything:
    async def check(self, *_: object, **__: object) -> Session:
        return made()


async def test_that_more_is_shown_than_is_kept_is_logged_once(
    history: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.history.sql.media.MOST_OF_SESSION", 1)
    anything: Any = Everything()
    ingestor = Ingestor(history=history, rights=anything)
    with capture_logs() as logs:
        for number in range(4):
            told = {"kind": "media", "time": 1.0, "name": "x", "type": "image"}
            record = json.dumps(told | {"file": f"{number:064x}-1"}).encode()
            key = StreamKey("s1", 1, 0, Channel.METRIC)
            chunk = Chunk(stream=key, first=number + 1, last=number + 1, records=(record,))
            wanted = await ingestor.ingest(NodeCaller(node="a"), [chunk], None)
            assert wanted == {key: number + 2}, "the record itself is kept"
    said = [one for one in logs if one["event"] == "media.left_out"]
    assert [(one["session"], one["files"]) for one in said] == [("s1", 1)]
