"""The contract of AgentService: registration, orders, silence and proof, other leaders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from nsml.v1 import agents_pb2, nodes_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import (
    Agent,
    Rig,
    Stubs,
    platform,
    report_of,
    serving,
    surroundings,
    until,
)
from tests.unit.controlplane.services.test_sessions import refusal


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def nodes(rig: Rig, user) -> dict[str, nodes_pb2.Node]:
    response = await user.nodes.ListNodes(nodes_pb2.ListNodesRequest())
    return {one.name: one for one in response.nodes}


async def test_a_node_registers_and_is_seen(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent("gpu1", pod="x")).connect()
    assert agent.registered.cluster_id == rig.plane.core.cluster_id
    assert agent.registered.term == rig.plane.core.leading.term > 0
    session = await kim.submit()
    await agent.assignments(1)
    node = (await nodes(rig, kim))["gpu1"]
    assert (node.state, node.pod, node.host) == (nodes_pb2.NODE_STATE_READY, "x", "gpu1.example")
    assert [use.allocated_thousandths for use in node.devices] == [1000, 0]
    assert list(node.devices[0].sessions) == [session.name]
    assert node.devices[0].device.simulated
    assert not (await nodes(rig, lee))["gpu1"].devices[0].sessions
    cluster = await kim.nodes.GetCluster(nodes_pb2.GetClusterRequest())
    assert cluster.simulated
    assert cluster.leader == rig.plane.core.config.member
    assert (cluster.nodes_ready, cluster.sessions_running, cluster.sessions_queued) == (1, 1, 0)
    assert cluster.allocated.gpu_thousandths == 1000
    await agent.close()

    async def silent() -> bool:
        return (await nodes(rig, kim))["gpu1"].state == nodes_pb2.NODE_STATE_SILENT

    await until(silent, "it is not ready any more")
    cluster = await kim.nodes.GetCluster(nodes_pb2.GetClusterRequest())
    found = (cluster.capacity.gpu_thousandths, cluster.allocated.gpu_thousandths)
    assert found == (0, 0), "no more is used than there is"


async def test_a_second_agent_supersedes_the_first(rig: Rig) -> None:
    first = await (await rig.agent("a")).connect()
    second = await (await rig.agent("a")).connect()

    async def superseded() -> bool:
        return first.error is not None

    await until(superseded, "the first is told")
    assert refusal(first.error)[:2] == ("FAILED_PRECONDITION", "SUPERSEDED")
    kim = await rig.user("kim")
    await kim.submit()
    await second.assignments(1)


async def test_an_agent_speaks_for_its_own_node_only(rig: Rig) -> None:
    liar = await rig.agent("a")
    liar.register.node = "b"
    await liar.connect()
    assert refusal(liar.error)[:2] == ("PERMISSION_DENIED", "DENIED")
    kim = await rig.user("kim")
    agent, other = await (await rig.agent("a")).connect(), await (await rig.agent("b")).connect()
    session = await kim.submit()

    async def assigned() -> bool:
        return any(one.orders and one.orders.assignments for one in (agent, other))

    await until(assigned, "it is placed")
    holder, stranger = (
        (agent, other) if agent.orders and agent.orders.assignments else (other, agent)
    )
    replica = holder.orders.assignments[0].replica
    await stranger.report(replica, "FINALIZED", cause="COMPLETED")

    async def answered() -> bool:
        return bool(stranger.acknowledged)

    await until(answered, "the stranger is answered")
    assert await kim.state(session.id) == "PREPARING"


async def test_an_agent_of_another_platform_is_refused(rig: Rig) -> None:
    foreign = await rig.agent("a")
    foreign.register.cluster_id = "cother"
    await foreign.connect()
    assert refusal(foreign.error)[:2] == ("FAILED_PRECONDITION", "STATE_CONFLICT")


async def test_what_no_record_would_hold_is_no_fact_of_a_node(rig: Rig) -> None:
    """Sessions name their devices: a gang on such nodes would be more than the store takes."""
    kim = await rig.user("kim")
    wordy, wide = await rig.agent("a", gpus=8), await rig.agent("b", gpus=257)
    for device in wordy.register.devices:
        device.uuid += "x" * 200_000
    for agent in (wordy, wide):
        await agent.connect()
        assert refusal(agent.error)[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    noted = await (await rig.agent("c", device_note="w" * 100_000)).connect()
    assert len((await nodes(rig, kim))["c"].device_note) == 4096
    await kim.submit()
    await noted.assignments(1)


async def test_the_first_message_must_register(rig: Rig) -> None:
    agent = await rig.agent("a")
    call = agent.stubs.agents._stub.Control(metadata=agent.stubs.metadata)
    await call.write(agents_pb2.ControlRequest(heartbeat=agents_pb2.Heartbeat()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_reports_are_acknowledged_also_when_repeated(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    for _ in range(3):
        await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")

    async def answered() -> bool:
        return len(agent.acknowledged) == 3

    await until(answered, "three answers")
    unknown = agents_pb2.ReplicaId(session_id="saaaaaaaaaaaaaaaa", attempt=1)
    await agent.report(unknown, "FINALIZED", cause="COMPLETED")

    async def dropped() -> bool:
        return len(agent.acknowledged) == 4

    await until(dropped, "what nobody knows is acknowledged too")
    assert await kim.state(session.id) == "SUCCEEDED"


@contextlib.asynccontextmanager
async def heard(agent: Agent) -> AsyncIterator[None]:
    """Have an agent send heartbeats meanwhile."""

    async def beat() -> None:
        while True:
            await agent.say(agents_pb2.ControlRequest(heartbeat=agents_pb2.Heartbeat()))
            await asyncio.sleep(0.05)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def test_silence_and_return() -> None:
    async with platform(character={"silent_after_s": 1.0}) as rig:
        kim = await rig.user("kim")
        agent = await (await rig.agent()).connect()
        async with heard(agent):
            session = await kim.submit()
            [assignment] = await agent.assignments(1)
            await agent.report(assignment.replica, "RUNNING")
            await kim.reaches(session.id, "RUNNING")
        # It says nothing more, though its stream is open.
        await kim.reaches(session.id, "UNKNOWN")

        async def closed() -> bool:
            return agent.error is not None

        await until(closed, "its stream is closed")
        waiting = await kim.submit()
        running = report_of(assignment.replica, "RUNNING")
        again = await (await rig.agent(replicas=(running,))).connect()
        async with heard(again):
            await again.assignments(2)
        assert {one.session_name for one in again.orders.assignments} == {
            session.name,
            waiting.name,
        }
        await until(lambda: _is(kim, session.id, "RUNNING", "UNKNOWN"), "it is known again")


async def _is(user, session: str, *states: str) -> bool:
    return await user.state(session) in states


async def test_a_reboot_is_proof(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session, repeated = await kim.submit(), await kim.submit(retry_count=1)
    for assignment in await agent.assignments(2):
        await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    await kim.reaches(repeated.id, "RUNNING")
    await agent.close()
    again = await (await rig.agent(boot_id="boot2")).connect()
    lost = await kim.reaches(session.id, "FAILED")
    assert lost.end.cause == sessions_pb2.CAUSE_NODE_LOST

    async def second() -> bool:
        return [one.replica.attempt for one in again.orders.assignments] == [2]

    await until(second, "the one with a retry is ordered again")


async def test_a_gang_over_two_nodes(rig: Rig) -> None:
    kim = await rig.user("kim")
    agents = [await (await rig.agent(name, gpus=1)).connect() for name in ("a", "b")]
    session = await kim.submit(replica_count=2)
    parts = [(await one.assignments(1))[0] for one in agents]
    assert sorted(part.replica.rank for part in parts) == [0, 1]
    assert {tuple(part.hosts) for part in parts} in (
        {("a.example", "b.example")},
        {("b.example", "a.example")},
    )
    for agent, part in zip(agents, parts, strict=True):
        await agent.report(part.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    await agents[0].report(parts[0].replica, "FINALIZED", cause="PROGRAM_FAILED", code=7)

    async def ordered() -> bool:
        return agents[1].orders.assignments[0].HasField("stop")

    await until(ordered, "the other is told to stop")
    assert agents[1].orders.assignments[0].stop.cause == sessions_pb2.CAUSE_GANG_MEMBER_FAILED
    await agents[1].report(parts[1].replica, "FINALIZED", cause="GANG_MEMBER_FAILED", code=143)
    ended = await kim.reaches(session.id, "FAILED")
    assert (ended.end.cause, ended.end.exit_code) == (sessions_pb2.CAUSE_PROGRAM_FAILED, 7)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"isolation": resources_pb2.ISOLATION_NONE}, "it runs sessions without isolation"),
        ({"only_owner": "its agent has no root"}, "its agent has no root"),
    ],
)
async def test_a_node_that_does_not_part_users_keeps_to_its_owner(
    rig: Rig, facts: dict[str, Any], why: str
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent("n1", owner="kim", **facts)).connect()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lee.submit()
    assert refusal(caught.value)[1] == "CANNOT_EVER_FIT"
    assert (await nodes(rig, kim))["n1"].owner_note == f"runs only sessions of kim: {why}"
    own = await kim.submit()
    [assignment] = await agent.assignments(1)
    assert assignment.session_name == own.name


async def test_the_other_control_plane_takes_over() -> None:
    """Two on one store: agents are sent to the leader; its end makes the other one lead."""
    async with surroundings() as on, serving(on) as one:
        await until(lambda: _leads(one), "the first leads")
        async with serving(on, address="two.example:1") as two:
            kim = await one.user("kim")
            agent = await one.agent()
            lost = await two.agent()
            await lost.connect()
            code, reason, _ = refusal(lost.error)
            assert (code, reason) == ("UNAVAILABLE", "NOT_LEADER")
            await agent.connect()
            session = await kim.submit()
            [assignment] = await agent.assignments(1)
            term = one.plane.core.leading.term
            # It is paused for longer than its lease, as far as the store can tell.
            leader = await on.store.get("leader")
            from controlplane.store.interface import Delete, Transaction  # noqa: PLC0415

            await on.store.commit(Transaction(success=(Delete(key="leader"),)))
            assert leader.create_revision == term
            await until(lambda: _either_leads(one, two, term), "somebody leads with a later term")

            async def told() -> bool:
                return agent.error is not None

            await until(told, "the agent is told")
            assert refusal(agent.error)[:2] == ("UNAVAILABLE", "NOT_LEADER")
            now = one if one.plane.core.leading.term > term else two
            fresh = await now.agent(replicas=(report_of(assignment.replica, "RUNNING"),))
            await fresh.connect()
            [again] = await fresh.assignments(1)
            assert again.replica == assignment.replica
            assert fresh.orders.term > agent.orders.term
            await fresh.report(assignment.replica, "FINALIZED", cause="COMPLETED")
            await kim.reaches(session.id, "SUCCEEDED")


async def test_an_agent_that_registers_while_the_lead_is_lost_is_sent_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = rig.plane.core.contacts.connect

    def connect_too_late(*facts: Any) -> Any:
        monkeypatch.setattr(type(rig.plane.core.leading), "term", 0)
        return connect(*facts)

    monkeypatch.setattr(rig.plane.core.contacts, "connect", connect_too_late)
    agent = await (await rig.agent()).connect()

    async def told() -> bool:
        return agent.error is not None

    await until(told, "the agent is told")
    assert refusal(agent.error)[:2] == ("UNAVAILABLE", "NOT_LEADER")


class LateToTell:
    """A store whose watches of everything tell nothing while `tells` is not set."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.tells = asyncio.Event()
        self.tells.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Any]:
        async with contextlib.aclosing(self._store.watch(prefix, from_revision)) as batches:
            async for batch in batches:
                if not prefix:
                    await self.tells.wait()
                yield batch


async def test_a_stop_that_the_leader_hears_of_late_is_ordered_all_the_same() -> None:
    """What it wrote itself is newer, known earlier, and has been ordered by then."""
    async with surroundings() as on:
        late = LateToTell(on.store)
        async with serving(replace(on, store=late)) as leader:
            await until(lambda: _leads(leader), "the first leads")
            async with serving(on, address="two.example:1") as other:
                kim = await leader.user("kim")
                agent = await (await leader.agent()).connect()
                session = await kim.submit()
                [assignment] = await agent.assignments(1)
                await agent.report(assignment.replica, "RUNNING")
                await kim.reaches(session.id, "RUNNING")
                kim_there = Stubs(await other.channel(), _token_of(kim))

                async def is_known_there() -> bool:
                    return await kim_there.state(session.id) == "RUNNING"

                await until(is_known_there, "the other one knows that it runs")
                late.tells.clear()
                await kim_there.sessions.StopSession(
                    sessions_pb2.StopSessionRequest(session=session.id)
                )
                await kim.submit()
                await agent.assignments(2)
                late.tells.set()

                async def stops() -> bool:
                    return any(one.HasField("stop") for one in agent.orders.assignments)

                await until(stops, "the agent is told to stop it")


def _token_of(user: Stubs) -> str:
    [(_, value)] = user.metadata
    return value.removeprefix("Bearer ")


async def _leads(rig: Rig) -> bool:
    return rig.plane.core.committer.is_leading


async def _either_leads(one: Rig, two: Rig, term: int) -> bool:
    return any(rig.plane.core.leading.term > term for rig in (one, two))


async def test_a_store_that_comes_and_goes_does_not_end_the_platform(rig: Rig) -> None:
    """Leadership is lost again and again; what was submitted runs all the same."""
    from controlplane.store.interface import Delete, Transaction  # noqa: PLC0415

    kim = await rig.user("kim")
    sessions = [await kim.submit() for _ in range(6)]
    for _ in range(3):
        await rig.on.store.commit(Transaction(success=(Delete(key="leader"),)))
        await until(lambda: _leads(rig), "it leads again")
    done: set[str] = set()
    stays_s = 0.05

    async def worked() -> bool:
        nonlocal stays_s
        agent = await rig.agent()
        agent.runs_at_once = True
        await agent.connect()
        await asyncio.sleep(stays_s)
        await agent.close()
        stays_s *= 1.5  # on a busy machine its orders may come later
        done.update({one.id for one in sessions if await kim.state(one.id) == "SUCCEEDED"})
        return len(done) == len(sessions)

    await until(worked, "all ended")


async def test_a_session_that_its_node_refuses_waits_again_at_no_cost(rig: Rig) -> None:
    host = resources_pb2.NETWORK_HOST
    kim, agent = await rig.user("kim"), await rig.agent("gpu1", networks=[host])
    await agent.connect()
    session = await kim.submit(network=host)
    (order,) = await agent.assignments(1)
    report = report_of(order.replica, "FINALIZED", cause="START_FAILED")
    report.exit.node_refused, report.exit.message = True, "host_network is never"
    await agent.say(agents_pb2.ControlRequest(report=report))
    await kim.reaches(session.id, "QUEUED")
    again = await kim.get(session.id)
    (attempt,) = again.attempts
    assert (attempt.cause, attempt.reason) == (
        sessions_pb2.CAUSE_NODE_REFUSED,
        "host_network is never",
    )
    assert not again.HasField("end")
