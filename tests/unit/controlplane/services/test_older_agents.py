"""What an agent of an earlier version would do otherwise than it is told is not done there, but elsewhere."""

from __future__ import annotations

import pytest

from nsml.v1 import agents_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform, until
from tests.unit.controlplane.services.submissions import Board
from tests.unit.controlplane.services.test_content import push, send, tree

STREAMED = agents_pb2.AGENT_ABILITY_STREAMED_DATASETS
STEPS = agents_pb2.AGENT_ABILITY_SUBMISSION_STEPS
PREPARING = agents_pb2.REPLICA_PHASE_PREPARING


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


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_agent_that_would_not_keep_a_step_of_a_submission_apart_does_not_run_it(
    rig: Rig,
    has_begun: bool,
) -> None:
    board = await Board.of(rig)
    await board.submit()
    step = await board.step(pb.SESSION_STAGE_PREDICT)
    assert not step.HasField("stop")
    reported = []
    if has_begun:
        await board.node.report(step.replica, "PREPARING")
        reported = [agents_pb2.ReplicaReport(replica=step.replica, phase=PREPARING)]
    await board.node.close()
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != STEPS]
    facts = {"abilities": knows, "agent_version": "0.1.0", "replicas": reported}
    old = await (await rig.agent("a", gpus=8, **facts)).connect()

    async def ordered() -> agents_pb2.Assignment | None:
        found = old.orders.assignments if old.orders else ()
        return next((one for one in found if one.replica == step.replica), None)

    order = await until(ordered, "the step is ordered again")
    assert order.stop.cause == pb.CAUSE_NODE_REFUSED
    assert order.stop.reason == (
        "the nsml of its node is too old to keep a step of a submission apart"
    )
    await old.report(order.replica, "FINALIZED", cause="NODE_REFUSED")

    async def waits() -> bool:
        session = await board.lee.get(step.replica.session_id)
        return session.state == pb.SESSION_STATE_QUEUED

    await until(
        waits, "it waits for another node: this one offers no session to be without a network"
    )


def _is(order: agents_pb2.Assignment, session: str, attempt: int) -> bool:
    return (order.replica.session_id, order.replica.attempt) == (session, attempt)
