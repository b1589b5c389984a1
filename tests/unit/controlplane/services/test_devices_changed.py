"""What an agent says of its devices while it is connected."""

from __future__ import annotations

import pytest

from controlplane.nodes.convert_agents import to_changed_offer
from controlplane.nodes.feature import node_keeper
from controlplane.nodes.registration import Registrar
from controlplane.state.replica_rights import Rights
from nsml.common.clock import SystemClock
from nsml.v1 import agents_pb2, nodes_pb2, resources_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import refusal


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def devices_of(user: Stubs, node: str = "a") -> list[nodes_pb2.DeviceUse]:
    response = await user.nodes.ListNodes(nodes_pb2.ListNodesRequest())
    return list(next(one for one in response.nodes if one.name == node).devices)


def withheld(agent: Agent, *indexes: int, why: str = "it failed") -> list[resources_pb2.Device]:
    devices = []
    for device in agent.register.devices:
        copy = resources_pb2.Device()
        copy.CopyFrom(device)
        copy.withheld = why if device.index in indexes else ""
        devices.append(copy)
    return devices


async def seen(user: Stubs, *reasons: str) -> None:
    async def are_said() -> bool:
        return [use.device.withheld for use in await devices_of(user)] == list(reasons)

    await until(are_said, f"its devices are {reasons}")


async def test_a_withheld_device_is_drained_alone(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    first = await kim.submit()
    (held,) = await agent.assignments(1)
    await agent.report(held.replica, "RUNNING")
    await agent.offer(withheld(agent, 0), note="1 of 2")
    await seen(kim, "it failed", "")
    second, third = await kim.submit(), await kim.submit()
    await agent.assignments(2)
    assert {uuid for one in agent.orders.assignments for uuid in one.device_uuids} == {
        "SIM-a-0",
        "SIM-a-1",
    }
    assert await kim.state(first.id) == "RUNNING"
    assert await kim.state(third.id) == "QUEUED"
    uses = await devices_of(kim)
    assert [use.allocated_thousandths for use in uses] == [1000, 1000]
    assert list(uses[0].sessions) == [first.name]
    await agent.report(held.replica, "FINALIZED", cause="COMPLETED")

    async def is_ended() -> bool:
        return await kim.state(first.id) == "SUCCEEDED"

    await until(is_ended, "what ran there ends well")
    assert await kim.state(third.id) == "QUEUED"
    await agent.offer(withheld(agent))
    (_, again) = await agent.assignments(2)
    assert again.replica.session_id in {second.id, third.id}


async def test_a_device_that_vanishes_in_use_is_not_given_again(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    await kim.submit()
    (held,) = await agent.assignments(1)
    await agent.report(held.replica, "RUNNING")
    await agent.offer([])

    async def nothing() -> bool:
        return not await devices_of(kim)

    await until(nothing, "it has no devices")
    await agent.offer(withheld(agent))
    await seen(kim, "", "")
    await kim.submit()
    third = await kim.submit()
    both = await agent.assignments(2)
    assert len({uuid for one in both for uuid in one.device_uuids}) == 2
    assert await kim.state(third.id) == "QUEUED"


async def test_of_many_changes_the_last_one_stands(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    for count in range(40):
        await agent.offer(withheld(agent, 0, why=f"for the {count}th time"))
    await seen(kim, "for the 39th time", "")


async def test_a_stream_that_was_superseded_changes_nothing(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    link = rig.plane.core.contacts.link("a")
    newer = await (await rig.agent("a")).connect()
    plane = rig.plane
    registrar = Registrar(
        state=plane.core.state,
        committer=plane.core.committer,
        contacts=plane.core.contacts,
        keeper=plane.core.shared(node_keeper),
        rights=Rights(references=plane.core.references, state=plane.core.state),
        clock=SystemClock(),
        cluster_id=plane.core.cluster_id,
    )
    late = agents_pb2.DevicesChanged(devices=withheld(agent, 0))
    await registrar.change_offer(link, to_changed_offer(late))
    await newer.offer(withheld(newer, 1))
    await seen(kim, "", "it failed")


@pytest.mark.parametrize("what", ["twice", "many", "long"])
async def test_what_cannot_be_is_refused(rig: Rig, what: str) -> None:
    agent = await (await rig.agent("a")).connect()
    devices = {
        "twice": [*agent.register.devices, agent.register.devices[0]],
        "many": [resources_pb2.Device(uuid=f"{i}", index=i) for i in range(257)],
        "long": withheld(agent, 0, why="w" * 257),
    }[what]
    await agent.offer(devices)

    async def refused() -> bool:
        return agent.error is not None

    await until(refused, "the stream ends")
    assert refusal(agent.error)[0] == "INVALID_ARGUMENT"


async def test_a_node_that_is_not_ready_gets_no_sessions_until_it_is(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    devices = list(agent.register.devices)

    async def is_shown(state: nodes_pb2.NodeState, why: str) -> bool:
        node, *_ = (await kim.nodes.ListNodes(nodes_pb2.ListNodesRequest())).nodes
        return (node.state, node.not_ready) == (state, why)

    await agent.offer(devices, not_ready="no engine answers")
    await until(lambda: is_shown(nodes_pb2.NODE_STATE_NOT_READY, "no engine answers"), "why")
    cluster = await kim.nodes.GetCluster(nodes_pb2.GetClusterRequest())
    assert list(cluster.closed_nodes) == ["node a is not ready: no engine answers"]
    waiting = await kim.submit()
    elsewhere = await (await rig.agent("b")).connect()
    assert [one.replica.session_id for one in await elsewhere.assignments(1)] == [waiting.id]
    for _ in range(2):
        await kim.submit()
    await elsewhere.assignments(2)
    assert not agent.orders.assignments
    await agent.offer(devices)
    await until(lambda: is_shown(nodes_pb2.NODE_STATE_READY, ""), "ready by itself")
    assert len(await agent.assignments(1)) == 1


async def test_a_node_that_registers_without_its_engine_is_not_ready(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await rig.agent("a")
    agent.register.not_ready, agent.register.engine_note = "no engine answers", "no live-restore"
    await agent.connect()
    (node,) = (await kim.nodes.ListNodes(nodes_pb2.ListNodesRequest())).nodes
    assert (node.state, node.engine_note) == (nodes_pb2.NODE_STATE_NOT_READY, "no live-restore")
