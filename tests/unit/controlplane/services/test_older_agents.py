"""What an agent of an earlier version would do otherwise than it is told is not done there, but elsewhere."""

from __future__ import annotations

import pytest

from nsml.v1 import agents_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform, until
from tests.unit.controlplane.services.test_content import push, send, tree

STREAMED = agents_pb2.AGENT_ABILITY_STREAMED_DATASETS


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def test_an_agent_that_would_fetch_a_streamed_dataset_does_not_start_the_session(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    manifest, blobs = tree(a=b"data")
    await send(kim, blobs)
    await push(kim, "big", manifest)
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != STREAMED]
    old = await (await rig.agent("old", abilities=knows)).connect()
    fetched = await kim.submit(datasets=[pb.DatasetReference(name="big")])
    (order,) = await old.assignments(1)
    assert order.replica.session_id == fetched.id
    assert not order.HasField("stop")

    made = await kim.submit(datasets=[pb.DatasetReference(name="big", streamed=True)])
    new = await rig.agent("new")
    for attempt in (1, 2):

        async def ordered(number: int = attempt) -> agents_pb2.Assignment | None:
            found = old.orders.assignments if old.orders else ()
            return next((one for one in found if _is(one, made.id, number)), None)

        order = await until(ordered, f"attempt {attempt} is ordered")
        assert order.stop.cause == pb.CAUSE_NODE_REFUSED
        assert order.stop.reason == (
            "the nsml of its node is too old to stream a dataset, and would fetch it whole"
        )
        if attempt == 2:  # it is avoided from now on, where another node could run it
            new = await new.connect()
        await old.report(order.replica, "FINALIZED", cause="NODE_REFUSED")
    (order,) = await new.assignments(1)
    assert _is(order, made.id, 3)
    assert not order.HasField("stop")


def _is(order: agents_pb2.Assignment, session: str, attempt: int) -> bool:
    return (order.replica.session_id, order.replica.attempt) == (session, attempt)
