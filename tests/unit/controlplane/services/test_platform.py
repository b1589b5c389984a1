"""Sessions from submission to listing, through real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import Delete, NoSpace, Put, Transaction
from nsml.common.clock import SystemClock, inline
from nsml.v1 import sessions_pb2
from tests.unit.controlplane.rig import Rig, platform, until
from tests.unit.controlplane.services.test_sessions import refusal


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def test_a_session_runs_and_is_listed(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit("true", memo="first")
    assert session.name == "kim/None/1"
    [assignment] = await agent.assignments(1)
    assert list(assignment.spec.argv) == ["true"]
    assert assignment.session_name == session.name
    assert list(assignment.device_uuids) == ["SIM-a-0"]
    assert list(assignment.hosts) == ["a.example"]
    await agent.report(assignment.replica, "RUNNING")
    running = await kim.reaches(session.id, "RUNNING")
    assert running.simulated
    assert running.replicas[0].devices[0].uuid == "SIM-a-0"
    await agent.report(assignment.replica, "FINALIZED", cause="PROGRAM_FAILED", code=3)
    ended = await kim.reaches(session.id, "FAILED")
    assert (ended.end.cause, ended.end.exit_code) == (sessions_pb2.CAUSE_PROGRAM_FAILED, 3)
    await agent.assignments(0)
    listed = await kim.sessions.ListSessions(
        sessions_pb2.ListSessionsRequest(filter=sessions_pb2.SessionFilter(include_ended=True))
    )
    assert [one.id for one in listed.sessions] == [session.id]
    assert listed.sessions[0].memo == "first"


async def test_ended_sessions_leave_the_store(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    agent.runs_at_once = True
    sessions = await asyncio.gather(*[kim.submit("true") for _ in range(30)])
    assert sorted(one.name for one in sessions) == sorted(f"kim/None/{n}" for n in range(1, 31))
    for session in sessions:
        await kim.reaches(session.id, "SUCCEEDED")

    async def exported() -> bool:
        return not (await rig.on.store.list("session/")).items

    await until(exported, "all are exported")
    assert not (await rig.on.store.list("name/")).items
    assert not (await rig.on.store.list("request/")).items
    for item in (await rig.on.store.list("alloc/")).items:
        assert len(item.value) < 8
    assert (await kim.get("@last")).id in {one.id for one in sessions}


async def test_a_full_store_ends_nothing_and_all_goes_on_when_there_is_room() -> None:
    clock = SystemClock()
    async with (
        EmbeddedStore(":memory:", clock=clock, run=inline, quota_bytes=1 << 20) as store,
        platform(store=store, clock=clock) as rig,
    ):
        kim = await rig.user("kim")
        agent = await (await rig.agent()).connect()
        session = await kim.submit()
        [assignment] = await agent.assignments(1)

        async def fill() -> None:
            while True:
                await store.commit(Transaction(success=(Put(key="filling", value=b"x" * 20_000),)))

        with pytest.raises(NoSpace):
            await fill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kim.submit(request_id="full")
        assert refusal(caught.value)[:2] == ("UNAVAILABLE", "UNAVAILABLE")
        await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.id))
        assert refusal(caught.value)[:2] == ("UNAVAILABLE", "UNAVAILABLE")
        await store.commit(Transaction(success=(Delete(key="filling"),)))
        await store.reclaim()
        await kim.reaches(session.id, "SUCCEEDED")
        await kim.submit(request_id="full")
        await agent.assignments(1)
