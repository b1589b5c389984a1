"""Giving way through real gRPC: what agents are told, what users see, and from what a session goes on."""

from __future__ import annotations

import time

import pytest

from controlplane.domain.identity import Role
from nsml.v1 import agents_pb2, checkpoints_pb2, nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import send, tree
from tests.unit.controlplane.services.test_sessions import refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def running(user: Stubs, agent: Agent, **spec) -> tuple[pb.Session, agents_pb2.ReplicaId]:
    session = await user.submit(**spec)
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await user.reaches(session.id, "RUNNING")
    return session, assignment.replica


async def tell(agent: Agent, replica: agents_pb2.ReplicaId, since_s: int | None = 4) -> None:
    report = agents_pb2.ProgressReport(replica=replica, resumable=True)
    if since_s is not None:
        report.since_saved.seconds = since_s
    await agent.say(agents_pb2.ControlRequest(progress=report))


async def is_resumable(user: Stubs, session: pb.Session) -> pb.Session:
    async def told() -> bool:
        return (await user.get(session.id)).progress.resumable

    await until(told, "it is seen to be resumable")
    return await user.get(session.id)


async def commit(agent: Agent, session: pb.Session, name: str, attempt: int, at: int) -> str:
    manifest, blobs = tree(weights=f"{name} of {attempt}".encode())
    await send(agent.stubs, blobs)
    saved = checkpoints_pb2.CommitCheckpointRequest(
        session_id=session.id,
        attempt=attempt,
        name=name,
        digest=manifest.digest,
        size_bytes=1,
        file_count=1,
    )
    saved.saved_at.seconds = at
    await agent.stubs.checkpoints.CommitCheckpoint(saved)
    return manifest.digest


async def newest(agent: Agent, session: pb.Session) -> checkpoints_pb2.Checkpoint:
    request = checkpoints_pb2.GetCheckpointRequest(session=session.id, for_session=session.id)
    return (await agent.stubs.checkpoints.GetCheckpoint(request)).checkpoint


async def test_what_is_queued_again_is_told_and_goes_on_once_it_is_safe(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session, replica = await running(kim, agent)
    await tell(agent, replica)
    seen = await is_resumable(kim, session)
    assert seen.progress.saved_at.seconds > 0
    request = pb.RequeueSessionRequest(session=session.id, reason="let others go first")
    why = "requeued by kim: let others go first"
    before = time.time()
    told = (await kim.sessions.RequeueSession(request)).session
    assert told.state == pb.SESSION_STATE_STOPPING
    assert (told.stop.cause, told.stop.reason) == (pb.CAUSE_PREEMPTED, why)
    assert told.stop.asked_by == "kim"
    # What is decided goes by a clock that follows this one.
    assert before + 69 < told.stop.until.seconds < time.time() + 71

    async def ordered() -> bool:
        return agent.orders.assignments[0].HasField("stop")

    await until(ordered, "it is told")
    stop = agent.orders.assignments[0].stop
    assert (stop.cause, stop.reason) == (pb.CAUSE_PREEMPTED, why)
    assert (stop.notice.seconds, stop.grace.seconds) == (60, 10)
    await agent.report(replica, "EXITED", cause="PREEMPTED", code=75)
    waiting = await kim.reaches(session.id, "QUEUED")

    async def explained() -> bool:
        return "being stored" in (await kim.get(session.id)).waiting

    await until(explained, "it is said what it waits for")
    assert waiting.attempt == 1
    assert not waiting.HasField("stop")
    digest = await commit(agent, session, "resume", 1, at=100)
    await commit(agent, session, "best", 1, at=70)
    await agent.report(replica, "FINALIZED", cause="PREEMPTED", code=75)

    async def again() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(again, "its next attempt is placed")
    assert (await newest(agent, session)).name == "resume"

    async def pulled() -> checkpoints_pb2.Checkpoint:
        asked = checkpoints_pb2.GetCheckpointRequest(session=session.id)
        return (await kim.checkpoints.GetCheckpoint(asked)).checkpoint

    # The newest is of the later attempt, though the clock of its node is behind; that attempt itself goes on from
    # the same whenever a replica of it asks, also once another one saved under that name.
    for name, at in (("epoch2", 40), ("resume", 50), ("epoch3", 60)):
        saved = await commit(agent, session, name, 2, at=at)
        assert ((await pulled()).name, (await pulled()).digest) == (name, saved)
        found = await newest(agent, session)
        assert (found.name, found.digest) == ("resume", digest)
        assert found.state == checkpoints_pb2.CHECKPOINT_STATE_DURABLE
    removing = checkpoints_pb2.RemoveCheckpointsRequest(session=session.id, names=["resume"])
    assert (await refused(kim.checkpoints.RemoveCheckpoints(removing)))[1] == "STATE_CONFLICT"


async def test_an_attempt_that_begins_anew_does_so_on_all_nodes(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session, replica = await running(kim, agent)
    await kim.sessions.RequeueSession(pb.RequeueSessionRequest(session=session.id, force=True))
    await agent.report(replica, "EXITED", cause="PREEMPTED", code=75)
    await agent.report(replica, "FINALIZED", cause="PREEMPTED", code=75)

    async def again() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(again, "its next attempt is placed")
    assert (await refused(newest(agent, session)))[0] == "NOT_FOUND"
    await commit(agent, session, "epoch1", 2, at=40)
    assert (await refused(newest(agent, session)))[0] == "NOT_FOUND", "a sibling saved that"


async def test_only_what_runs_and_could_go_on_is_queued_again(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    root = await rig.user("root1", role=Role.ADMIN)
    queued = await kim.submit()
    request = pb.RequeueSessionRequest(session=queued.id)
    assert (await refused(kim.sessions.RequeueSession(request)))[1] == "STATE_CONFLICT"
    await kim.sessions.StopSession(pb.StopSessionRequest(session=queued.id))
    assert (await refused(kim.sessions.RequeueSession(request)))[1] == "ALREADY_ENDED"
    agent = await (await rig.agent()).connect()
    session, _ = await running(kim, agent)
    request = pb.RequeueSessionRequest(session=session.id)
    assert (await refused(lee.sessions.RequeueSession(request)))[0] == "NOT_FOUND"
    code, reason, details = await refused(kim.sessions.RequeueSession(request))
    assert (code, reason) == ("FAILED_PRECONDITION", "STATE_CONFLICT")
    assert "nsml requeue --force" in details["try"]
    request.reason = "x" * 1025
    assert (await refused(kim.sessions.RequeueSession(request)))[1] == "TOO_LARGE"
    request.reason, request.force = "", True
    told = (await root.sessions.RequeueSession(request)).session
    assert told.state == pb.SESSION_STATE_STOPPING
    assert (await refused(kim.sessions.RequeueSession(request)))[1] == "STATE_CONFLICT"


async def test_the_newest_is_what_was_saved_last(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session, _ = await running(kim, agent)
    assert (await refused(newest(agent, session)))[0] == "NOT_FOUND"
    await commit(agent, session, "best", 1, at=5000)
    await commit(agent, session, "last", 1, at=6000)
    assert (await newest(agent, session)).name == "last"


async def test_of_nodes_only_its_own_may_speak_of_a_session(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session, replica = await running(kim, agent)
    other = await (await rig.agent("b")).connect()
    await tell(other, replica)
    await other.say(agents_pb2.ControlRequest(progress=agents_pb2.ProgressReport()))
    await tell(agent, replica, since_s=None)
    assert not (await is_resumable(kim, session)).progress.HasField("saved_at")


async def test_what_an_attempt_held_and_saved_is_kept_with_its_charge(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session, replica = await running(kim, agent, priority=pb.PRIORITY_LOW)
    saved_at = int(time.time()) + 1
    await until(lambda: has_come(saved_at), "a whole second is over")
    await commit(agent, session, "first", 1, at=saved_at)
    await kim.sessions.RequeueSession(pb.RequeueSessionRequest(session=session.id, force=True))
    await agent.report(replica, "EXITED", cause="PREEMPTED", code=75)
    [attempt] = (await kim.reaches(session.id, "QUEUED")).attempts
    assert attempt.gpu_models == {"S": 1000}
    assert attempt.durable_until.seconds == saved_at
    # What it saved on notice arrives once it has left; by its node's clock it was saved long after that.
    await commit(agent, session, "on notice", 1, at=saved_at + 9_000)
    [attempt] = (await kim.get(session.id)).attempts
    assert attempt.durable_until == attempt.ended_at
    await agent.report(replica, "FINALIZED", cause="PREEMPTED", code=75)

    async def again() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(again, "its next attempt is placed")
    [order] = agent.orders.assignments
    await agent.report(order.replica, "FINALIZED", cause="PROGRAM_FAILED", code=1)
    await kim.reaches(session.id, "FAILED")

    async def is_exported() -> bool:
        return rig.plane.core.state.by_name(session.name) is None

    await until(is_exported, "it leaves the store")
    first, second = await rig.on.history.ledger.charges(session.project, since=0.0)
    for row, cause in ((first, "PREEMPTED"), (second, "PROGRAM_FAILED")):
        assert (row.gpu_models, row.priority, row.cause) == ('{"S": 1000}', pb.PRIORITY_LOW, cause)
    assert (first.durable_until, second.durable_until) == (first.ended_at, 0)
    kept = (await kim.get(session.id)).attempts
    assert kept[0] == attempt
    assert not kept[1].HasField("durable_until")


async def test_what_an_attempt_ran_with_is_kept_though_its_node_has_another_now(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await rig.agent(gpus=1, python_version="3.12.4")
    [device] = agent.register.devices
    device.driver_version, device.cuda_version = "535.129.03", "12.2"
    await agent.connect()
    session, replica = await running(kim, agent)
    python = agents_pb2.ReplicaReport(
        replica=replica, phase="REPLICA_PHASE_PAUSED", python_version="3.11.9" + 40 * "x"
    )
    await agent.say(agents_pb2.ControlRequest(report=python))
    [ran] = (await kim.reaches(session.id, "PAUSED")).replicas
    assert ran.devices == [device]
    assert ran.python_version == "3.11.9" + 26 * "x", "an agent cannot fill a record"
    await agent.report(replica, "RUNNING")
    device.driver_version = "550.54.14"
    await agent.offer([device])

    async def node_has_another() -> bool:
        answer = await kim.nodes.GetNode(nodes_pb2.GetNodeRequest(name=ran.node))
        [use] = answer.node.devices
        assert answer.node.python_version == "3.12.4"
        return use.device.driver_version == "550.54.14"

    await until(node_has_another, "its driver is seen to be another one")
    await kim.sessions.RequeueSession(pb.RequeueSessionRequest(session=session.id, force=True))
    await agent.report(replica, "EXITED", cause="PREEMPTED", code=75)
    [attempt] = (await kim.reaches(session.id, "QUEUED")).attempts
    assert attempt.driver_versions == ["535.129.03"]
    assert attempt.python_versions == [ran.python_version]


async def has_come(seconds: int) -> bool:
    return time.time() > seconds
