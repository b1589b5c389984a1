"""Telemetry through real gRPC: who may ask of what, and what fits into an answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controlplane.history.values import DeviceSample, NodeSample
from controlplane.usage import service as telemetry
from nsml.v1 import agents_pb2, resources_pb2, sessions_pb2
from nsml.v1 import telemetry_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform
from tests.unit.controlplane.services.test_sessions import refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def record(rig: Rig, seconds: int, *uuids: str) -> None:
    """So many readings of node `a`, the last one now."""
    now = rig.on.clock.time()
    for number in range(seconds):
        devices = tuple(DeviceSample(uuid=uuid, utilization_percent=50.0) for uuid in uuids)
        at = now - seconds + number + 1
        sample = NodeSample(node="a", boot_id="b", sequence=number, at=at, devices=devices)
        await rig.on.history.telemetry.record([sample])


async def test_what_devices_did_is_told_to_who_may_see_the_session(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent("a")).connect()
    private = await kim.submit()
    public = await kim.submit(visibility=resources_pb2.VISIBILITY_PUBLIC)
    await agent.assignments(2)
    for who, session, is_told in ((kim, private, True), (lee, private, False), (lee, public, True)):
        asked = who.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(session=session.name))
        if is_told:
            assert all(one.node == "a" for one in (await asked).series)
        else:
            assert (await refused(asked))[0] == "NOT_FOUND"
    told = await kim.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(session=private.name))
    assert [
        (one.attempt, one.thousandths, one.simulated)
        for one in told.series
        if not one.HasField("rank")
    ] == [(1, 1000, True)]
    long_before = {"seconds": int(rig.on.clock.time()) - 600}
    asked = pb.ReadTelemetryRequest(session=private.name, since=long_before)
    of_ten_minutes = await kim.telemetry.ReadTelemetry(asked)
    assert of_ten_minutes.since == told.since  # nothing is told of the time before it ran
    await record(rig, 2, told.series[0].device_uuid, "GPU-real")
    told = await kim.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(node="a"))
    assert [one.simulated for one in told.series] == [True, False, True]


async def test_what_processes_take_is_told_of_replicas_that_are_placed_where_it_was_read(
    rig: Rig,
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agents = [await (await rig.agent(name, gpus=1)).connect() for name in ("a", "b")]
    mine, other = await kim.submit(), await lee.submit()
    for agent in agents:
        await agent.assignments(1)
    nodes = {
        one.id: rig.plane.core.state.session(one.id).replicas[0].node  # type: ignore[union-attr]
        for one in (mine, other)
    }
    placed = nodes[mine.id]
    now = rig.on.clock.time()
    # The first stands for a second in which nothing was placed.
    for number, agent in enumerate([*agents, *agents]):
        sample = agents_pb2.NodeSample(sequence=number, boot_id="b")
        sample.at.FromMicroseconds(round(rig.on.clock.time() * 1e6))
        for session in (mine, other):  # each node claims both
            cores = 3.5 if nodes[session.id] == agent.node else 77.0
            sample.replicas.add(
                replica=agents_pb2.ReplicaId(session_id=session.id, attempt=1, rank=0),
                cpu_cores=cores,
                memory_used_bytes=1 << 30,
                process_count=2,
            )
        sample.replicas.add(
            replica=agents_pb2.ReplicaId(session_id=mine.id, attempt=9, rank=0), cpu_cores=77.0
        )
        sample.replicas.add(
            replica=agents_pb2.ReplicaId(session_id="nobody", attempt=1, rank=0), cpu_cores=77.0
        )
        sending = agent.stubs.agents.Ingest(iter([agents_pb2.IngestRequest(sample=sample)]))
        assert [one async for one in sending] == []
    known = rig.on.history.telemetry.known()
    assert sorted(known) == ["a", "b"]
    assert all([one.cpu_cores for one in node.replicas] == [3.5] for node in known.values())
    shown = await kim.sessions.GetSession(sessions_pb2.GetSessionRequest(session=mine.name))
    [replica] = shown.session.replicas
    assert (replica.use.cpu_cores, replica.use.process_count) == (3.5, 2)
    told = await kim.telemetry.ReadTelemetry(
        pb.ReadTelemetryRequest(session=mine.name, since={"seconds": int(now) - 60})
    )
    [series] = [one for one in told.series if one.HasField("rank")]
    assert (series.node, series.attempt, series.device_uuid) == (placed, 1, "")
    assert {one.name: list(one.most) for one in series.figures} == {
        "cpu_cores": [3.5],
        "memory_used_bytes": [float(1 << 30)],
        "process_count": [2.0],
    }
    # Whoever asks for the node is told nothing of sessions.
    told = await lee.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(node=placed))
    assert [one.device_uuid for one in told.series] == [""]
    asked = lee.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(session=mine.name))
    assert (await refused(asked))[0] == "NOT_FOUND"


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
async def test_nonsense_of_a_node_is_passed_on_to_nobody(rig: Rig, nonsense: float) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a", gpus=1)).connect()
    mine = await kim.submit()
    await agent.assignments(1)
    sample = agents_pb2.NodeSample(sequence=1, boot_id="b", cpu_percent=nonsense)
    sample.at.FromMicroseconds(round(rig.on.clock.time() * 1e6))
    sample.devices.add(
        uuid="GPU-a-0",
        utilization_percent=nonsense,
        power_watts=nonsense,
        temperature_celsius=nonsense,
        memory_used_bytes=(1 << 64) - 1,
    )
    sample.replicas.add(
        replica=agents_pb2.ReplicaId(session_id=mine.id, attempt=1, rank=0),
        cpu_cores=nonsense,
        memory_used_bytes=(1 << 64) - 1,
        process_count=2,
    )
    sending = agent.stubs.agents.Ingest(iter([agents_pb2.IngestRequest(sample=sample)]))
    assert [one async for one in sending] == []
    known = rig.on.history.telemetry.known()["a"]
    (device,) = known.devices
    assert (known.cpu_percent, device.memory_used_bytes) == (0.0, 0)
    assert (device.utilization_percent, device.power_watts, device.temperature_celsius) == (0, 0, 0)
    shown = await kim.sessions.GetSession(sessions_pb2.GetSessionRequest(session=mine.name))
    [replica] = shown.session.replicas
    assert (replica.use.cpu_cores, replica.use.memory_used_bytes) == (0.0, 0)
    assert replica.use.process_count == 2


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "INVALID_ARGUMENT"),
        ({"cluster": False}, "INVALID_ARGUMENT"),
        ({"node": "nobody"}, "NOT_FOUND"),
        ({"session": "kim/None/7"}, "NOT_FOUND"),
        (
            {"cluster": True, "since": {"seconds": 2000}, "until": {"seconds": 1000}},
            "INVALID_ARGUMENT",
        ),
    ],
)
async def test_questions_that_mean_nothing_are_refused(
    rig: Rig, asked: dict[str, Any], code: str
) -> None:
    kim = await rig.user("kim")
    refusal = await refused(kim.telemetry.ReadTelemetry(pb.ReadTelemetryRequest(**asked)))
    assert refusal[0] == code


async def test_of_many_devices_an_answer_has_fewer_pieces_of_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MOST_NUMBERS", 16 * 4 * 5)
    kim = await rig.user("kim")
    await (await rig.agent("a")).connect()
    await record(rig, 20, "GPU-1", "GPU-2", "GPU-3")
    request = pb.ReadTelemetryRequest(node="a", width=1000)
    request.since.FromSeconds(int(rig.on.clock.time()) - 20)
    told = await kim.telemetry.ReadTelemetry(request)
    assert [one.device_uuid for one in told.series] == ["", "GPU-1", "GPU-2", "GPU-3"]
    for one in told.series:
        assert 4 <= len(one.at) <= 6
        if one.device_uuid:
            assert set(one.figures[0].mean) == {50.0}
