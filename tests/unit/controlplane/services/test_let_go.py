"""Points of sessions that ended long ago are let go, and whoever reads them is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql import series
from controlplane.records.downsampling_loop import Folding
from controlplane.records.retention_loop import Thinning
from nsml.v1 import agents_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import platform, until
from tests.unit.controlplane.services.test_sessions import Ingest, _all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.history.values import Ages
    from tests.unit.controlplane.rig import Rig


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    for loop in (Folding, Thinning):
        monkeypatch.setattr(loop, "look_every_s", 0.01)
        monkeypatch.setattr(loop, "retry_s", 0.01)
    monkeypatch.setattr(series, "FOLD_BYTES", 1)
    monkeypatch.setattr(series, "FOLD_SERIES_BYTES", 0)
    character = {"keep_points_s": 1e-6, "keep_levels_s": 1e-6}
    async with platform(character=character) as rig:
        yield rig


async def test_who_reads_is_told_what_was_let_go_and_when(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, sound = rig.on.history.streams, rig.on.history.series.thin
    tries: list[str] = []

    async def thin(session_id: str, ages: Ages) -> bool:
        tries.append(session_id)
        if len(tries) == 1:
            raise HistoryUnavailable("the history does not answer")
        return await sound(session_id, ages)

    monkeypatch.setattr(rig.on.history.series, "thin", thin)
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    ids = []
    for _ in range(2):
        session = await kim.submit()
        [assignment] = await agent.assignments(1)
        ids.append(session.id)
        record = b'{"kind":"metric","time":5.5,"values":{"loss":0.5}}'
        chunk = agents_pb2.Chunk(first=1, last=40, records=[record] * 40)
        chunk.stream.replica.session_id = session.id
        chunk.stream.replica.attempt = 1
        chunk.stream.channel = agents_pb2.CHANNEL_METRIC
        assert await Ingest(agent.stubs).send(chunk) == [41]
        if len(ids) == 1:
            await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
            await kim.reaches(session.id, "SUCCEEDED")
    ended, running = ids

    async def is_let_go() -> bool:
        return bool(await streams.let_go_at(ended))

    await until(is_let_go, "its points are let go")
    for session_id in ids:
        metrics = kim.sessions.ReadMetrics(pb.ReadMetricsRequest(session=session_id))
        answers = await _all(metrics)
        request = pb.ReadSeriesRequest(sessions=[session_id], width=100)
        [said] = await _all(kim.sessions.ReadSeries(request))
        listed = await kim.sessions.ListMetrics(pb.ListMetricsRequest(session=session_id))
        told = [any(one.HasField("let_go") for one in answers), said.HasField("let_go")]
        assert [*told, listed.HasField("let_go")] == [session_id == ended] * 3
        assert sum(len(one.points) for one in answers) == (0 if session_id == ended else 40)
        assert sum(one.missing_reports for one in answers) == said.missing_reports == 0
        assert sum(said.series[0].finite) == listed.metrics[0].count == 40
    assert tries[0] == ended
    assert running not in tries
