"""What is read from the history is read in turns: many calls of one user do not hold up those of others."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from controlplane.domain.identity import Role
from controlplane.domain.values import Visibility
from controlplane.history.values import (
    Channel,
    Checkpoint,
    Chunk,
    Dataset,
    Media,
    SessionRecord,
    StreamKey,
)
from controlplane.limits.concurrency_limits import Turns
from controlplane.stored import etcd_codec
from controlplane.wire import chunking as parts
from nsml.v1 import audit_pb2, checkpoints_pb2, datasets_pb2, media_pb2, nodes_pb2, telemetry_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform, until

HEAVY = {
    "ended sessions": lambda one, _: one.sessions.ListSessions(
        pb.ListSessionsRequest(filter=pb.SessionFilter(include_ended=True))
    ),
    "values by name": lambda one, _: one.sessions.ListSessions(
        pb.ListSessionsRequest(summary_names=["loss"])
    ),
    "metrics": lambda one, of: one.sessions.ListMetrics(pb.ListMetricsRequest(session=of)),
    "points": lambda one, of: _all(one.sessions.ReadMetrics(pb.ReadMetricsRequest(session=of))),
    "series": lambda one, of: _all(
        one.sessions.ReadSeries(pb.ReadSeriesRequest(sessions=[of], width=5))
    ),
    "logs": lambda one, of: _all(one.sessions.ReadLogs(pb.ReadLogsRequest(session=of))),
    "search": lambda one, of: _all(
        one.sessions.SearchLogs(
            pb.SearchLogsRequest(log=pb.ReadLogsRequest(session=of), pattern="x")
        )
    ),
    "checkpoints": lambda one, of: one.checkpoints.ListCheckpoints(
        checkpoints_pb2.ListCheckpointsRequest(session=of)
    ),
    "a checkpoint": lambda one, of: _none(
        one.checkpoints.GetCheckpoint(checkpoints_pb2.GetCheckpointRequest(session=of, name="none"))
    ),
    "newest checkpoint": lambda one, of: _none(
        one.checkpoints.GetCheckpoint(checkpoints_pb2.GetCheckpointRequest(session=of))
    ),
    "media": lambda one, of: one.media.ListMedia(media_pb2.ListMediaRequest(session=of)),
    "datasets": lambda one, _: one.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest()),
    "telemetry of a session": lambda one, of: one.telemetry.ReadTelemetry(
        telemetry_pb2.ReadTelemetryRequest(session=of)
    ),
    "telemetry": lambda one, _: one.telemetry.ReadTelemetry(
        telemetry_pb2.ReadTelemetryRequest(cluster=True)
    ),
    "audit": lambda one, _: one.audit.ListAuditRows(audit_pb2.ListAuditRowsRequest()),
}
LIGHT = {
    "live sessions": lambda one, _: one.sessions.ListSessions(pb.ListSessionsRequest()),
    "a session": lambda one, of: one.get(of),
    "the platform": lambda one, _: one.nodes.GetCluster(nodes_pb2.GetClusterRequest()),
}


async def _none(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="has no checkpoint"):
        await call


async def _all(stream: Any) -> list[Any]:
    return [answer async for answer in stream]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as started:
        yield started


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Turns, str]]:
    """All turns that are taken."""
    taken: list[tuple[Turns, str]] = []
    take = Turns.take

    async def noted(self: Turns, who: str) -> None:
        if self._what in {"to read", "to read logs", "to search logs"}:
            taken.append((self, who))
        await take(self, who)

    monkeypatch.setattr(Turns, "take", noted)
    return taken


@pytest.mark.parametrize("what", [*HEAVY, *LIGHT])
async def test_reads_of_the_history_take_turns(
    rig: Rig, turns: list[tuple[Turns, str]], what: str
) -> None:
    root = await rig.user("root", role=Role.ADMIN)
    session = await root.submit()
    await (HEAVY | LIGHT)[what](root, session.id)
    assert {who for _, who in turns} == ({"root"} if what in HEAVY else set())
    assert not any(one._held for one, _ in turns)


async def test_whoever_waits_for_news_holds_no_turn(
    rig: Rig, turns: list[tuple[Turns, str]]
) -> None:
    kim = await rig.user("kim")
    session = await kim.submit()
    log = pb.ReadLogsRequest(session=session.id, follow=True)
    following = [
        asyncio.ensure_future(_all(call))
        for _ in range(20)
        for call in (
            kim.sessions.ReadLogs(log),
            kim.sessions.ReadMetrics(pb.ReadMetricsRequest(session=session.id, follow=True)),
            kim.sessions.SearchLogs(pb.SearchLogsRequest(log=log, pattern="x")),
        )
    ]

    async def is_waiting() -> bool:
        return len(turns) >= len(following) and not any(one._held for one, _ in turns)

    try:
        await until(is_waiting, "all of them wait for news")
        await asyncio.wait_for(HEAVY["metrics"](kim, session.id), 60)
    finally:
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)


MADE = {
    "a session": "sessions.session_views.struct",
    "metrics": "sessions.service._metrics",
    "points": "sessions.service.point_message",
    "series": "sessions.service.series_message",
    "checkpoints": "checkpoints.service.checkpoint_message",
    "media": "media.service._message",
    "datasets": "datasets.service.dataset_message",
    "telemetry of a session": "usage.service._series",
    "audit": "audit.service._message",
}
"""What makes the parts of answers that are as large as what users stored."""


async def _store(rig: Rig, session: pb.Session, term: int) -> None:
    """Something of each kind, and an ended session."""
    history, now = rig.on.history, time.time()
    metrics = StreamKey(session.id, 1, 0, Channel.METRIC, 0)
    reports = tuple(
        json.dumps(
            {"kind": "metric", "time": now, "summary": True, "values": {"loss": one}}
        ).encode()
        for one in range(10)
    )
    await history.streams.append(
        [Chunk(stream=metrics, first=1, last=len(reports), records=reports)]
    )
    await history.catalogue.put_checkpoint(
        Checkpoint(session_id=session.id, name="c", saved_at=now, size_bytes=1, file_count=1)
    )
    medium = Media(
        session_id=session.id, attempt=1, rank=0, file="f", name="m", kind="image", time=now
    )
    await history.media.tell([medium])
    await history.catalogue.put_dataset_version(
        Dataset(owner="root", name="d", created_at=now, visibility=Visibility.PRIVATE),
        digest="0" * 64,
        size_bytes=1,
        file_count=1,
    )
    ended = replace(rig.plane.core.state.session(session.id), id="0" * 26, name="root/ended/1")
    await history.catalogue.put_session(
        SessionRecord(
            id=ended.id,
            name=ended.name,
            owner="root",
            state="SUCCEEDED",
            created_at=now,
            ended_at=now,
            record=etcd_codec.encode_session(ended),
        ),
        term=term,
    )


@pytest.mark.parametrize("what", MADE)
async def test_large_answers_are_made_beside_the_event_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """However much a user stored, the calls of others are answered meanwhile."""
    monkeypatch.setattr(parts, "AT_ONCE", 0)
    root = await rig.user("root", role=Role.ADMIN)
    agent = await (await rig.agent()).connect()
    session = await root.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await root.reaches(session.id, "RUNNING")
    await _store(rig, session, (await LIGHT["the platform"](root, "")).term)
    threads: set[bool] = set()
    module, _, name = f"controlplane.{MADE[what]}".rpartition(".")
    make = getattr(importlib.import_module(module), name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return make(*args, **kwargs)

    monkeypatch.setattr(f"{module}.{name}", noted)
    await (HEAVY | LIGHT)[what](root, session.id)
    assert threads == {False}
