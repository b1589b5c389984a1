"""Images that users ask nodes for: who may, what agents answer, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from controlplane.domain.identity import Role
from controlplane.nodes.feature import node_images
from nsml.v1 import agents_pb2, resources_pb2
from nsml.v1 import nodes_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_leader_forwarding import two
from tests.unit.controlplane.services.test_sessions import refused

CONTAINERS = {"isolation": resources_pb2.ISOLATION_CONTAINER}


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def pull(user: Stubs, node: str = "a", image: str = "lab/torch:2") -> Any:
    return user.nodes.PullImage(pb.PullImageRequest(node=node, image=image))


async def ordered(agent: Agent, count: int = 1) -> agents_pb2.ImageOrder:
    """The last of so many orders about images."""

    async def they_came() -> bool:
        return len(agent.image_orders) == count

    await until(they_came, f"{agent.node} is asked {count} times")
    return agent.image_orders[-1]


async def answers(agent: Agent, order: agents_pb2.ImageOrder, **facts: Any) -> None:
    status = resources_pb2.ImageStatus(image=order.image, **facts)
    report = agents_pb2.ImageReport(order_id=order.order_id, status=status)
    await agent.say(agents_pb2.ControlRequest(image_report=report))


async def test_an_image_is_asked_for_and_the_agent_says_how_it_stands(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a", **CONTAINERS)).connect()
    pulling = asyncio.ensure_future(pull(kim))
    order = await ordered(agent)
    assert (order.action, order.image) == (agents_pb2.IMAGE_ACTION_PULL, "lab/torch:2")
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_PULLING)
    assert (await pulling).status.state == resources_pb2.IMAGE_STATE_PULLING
    request = pb.GetImagePullRequest(node="a", image="lab/torch:2")
    looking = asyncio.ensure_future(kim.nodes.GetImagePull(request))
    again = await ordered(agent, 2)
    assert (again.action, again.owner_id) == (agents_pb2.IMAGE_ACTION_LOOK, order.owner_id)
    await answers(agent, again, state=resources_pb2.IMAGE_STATE_FAILED, words="w" * 10_000)
    status = (await looking).status
    assert (status.state, len(status.words)) == (resources_pb2.IMAGE_STATE_FAILED, 500)


async def test_the_leader_alone_asks_agents_for_whichever_control_plane_is_asked() -> None:
    async with two() as (leader, standby):
        kim = await standby.also(await leader.user("kim"))
        agent = await (await leader.agent("a", **CONTAINERS)).connect()
        pulling = asyncio.ensure_future(pull(kim))
        await answers(agent, await ordered(agent), state=resources_pb2.IMAGE_STATE_PRESENT)
        assert (await pulling).status.state == resources_pb2.IMAGE_STATE_PRESENT


async def test_only_the_node_that_was_asked_answers_and_once(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a", **CONTAINERS)).connect()
    other = await (await rig.agent("b", **CONTAINERS)).connect()
    pulling = asyncio.ensure_future(pull(kim))
    order = await ordered(agent)
    await answers(other, order, state=resources_pb2.IMAGE_STATE_PRESENT)
    removed = resources_pb2.IMAGE_STATE_REMOVED
    await answers(other, agents_pb2.ImageOrder(order_id="unknown"), state=removed)
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_FAILED)
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_PRESENT)
    assert (await pulling).status.state == resources_pb2.IMAGE_STATE_FAILED


async def test_removing_is_for_administrators_since_an_image_is_everybodys(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root1", role=Role.ADMIN)
    agent = await (await rig.agent("a", **CONTAINERS)).connect()
    request = pb.RemoveImageRequest(node="a", image="lab/torch:2")
    assert (await refused(kim.nodes.RemoveImage(request)))[0] == "PERMISSION_DENIED"
    assert agent.image_orders == []
    removing = asyncio.ensure_future(root.nodes.RemoveImage(request))
    order = await ordered(agent)
    assert order.action == agents_pb2.IMAGE_ACTION_REMOVE
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_KEPT, words="it is used")
    assert (await removing).status.words == "it is used"


async def test_what_cannot_be_asked_is_refused_at_once(rig: Rig) -> None:
    kim = await rig.user("kim")
    own = {"only_owner": "its agent has no root", "owner": "lee"}
    agents = [
        await (await rig.agent("a", **CONTAINERS)).connect(),
        await (await rig.agent("b")).connect(),
        await (await rig.agent("c", **CONTAINERS, **own)).connect(),
    ]
    for name in ("x;reboot", "", "169.254.169.254/a/b", "sha256:" + "0" * 64):
        assert (await refused(pull(kim, image=name)))[0] == "INVALID_ARGUMENT"
    assert (await refused(pull(kim, node="nowhere")))[0] == "NOT_FOUND"
    assert (await refused(pull(kim, node="b")))[0] == "FAILED_PRECONDITION"
    assert (await refused(pull(kim, node="c")))[0] == "FAILED_PRECONDITION"
    assert [order for agent in agents for order in agent.image_orders] == []
    await agents[0].close()

    async def is_gone() -> bool:
        return rig.plane.core.contacts.link("a") is None

    await until(is_gone, "the agent has left")
    assert (await refused(pull(kim)))[0] == "UNAVAILABLE"


async def test_an_agent_that_knows_no_orders_about_images_is_not_asked(rig: Rig) -> None:
    kim = await rig.user("kim")
    old = {"abilities": [], "agent_version": "0.1.0"}
    agent = await (await rig.agent("a", **CONTAINERS, **old)).connect()
    assert (await refused(pull(kim)))[0] == "FAILED_PRECONDITION"
    assert agent.image_orders == []
    with pytest.raises(grpc.aio.AioRpcError, match=r"the nsml of node a is too old for this"):
        await pull(kim)


async def test_an_agent_that_says_nothing_is_not_waited_for_for_ever(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a", **CONTAINERS)).connect()
    within = rig.plane.core.shared(node_images)._within_s
    monkeypatch.setattr(
        rig.plane.core.shared(node_images), "_within_s", dict.fromkeys(within, 0.05)
    )
    assert (await refused(pull(kim)))[0] == "UNAVAILABLE"
    order = await ordered(agent)
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_PRESENT)
    assert rig.plane.core.shared(node_images)._questions._asked == {}


async def test_one_user_keeps_agents_busy_with_a_bounded_number_of_orders(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.state.agent_questions.MOST_ASKED", 2)
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent("a", **CONTAINERS)).connect()
    waiting = [asyncio.ensure_future(pull(kim)) for _ in range(2)]
    await ordered(agent, 2)
    assert (await refused(pull(kim)))[:2] == ("RESOURCE_EXHAUSTED", "LIMIT_REACHED")
    other = asyncio.ensure_future(pull(lee))
    await ordered(agent, 3)
    for order in agent.image_orders:
        await answers(agent, order, state=resources_pb2.IMAGE_STATE_PRESENT)
    await asyncio.gather(*waiting, other)
