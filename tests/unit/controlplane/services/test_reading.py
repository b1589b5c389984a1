"""What is read from the history is read in turns: many calls of one user do not hold up those of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.domain.identity import Role
from controlplane.operations.turns import Turns
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
