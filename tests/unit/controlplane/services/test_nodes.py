"""The contract of what administrators do with nodes: drain, resume, fence, remove; and the hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.domain.identity import Role
from nsml.v1 import agents_pb2, nodes_pb2, sessions_pb2
from nsml.v1 import nodes_pb2 as pb
from tests.unit.controlplane.rig import (
    Agent,
    Rig,
    Stubs,
    one_leads,
    platform,
    report_of,
    serving,
    surroundings,
    until,
)
from tests.unit.controlplane.services.test_sessions import refused

NOWHERE = "saaaaaaaaaaaaaaaa"


@pytest.fixture
async def rig(request: pytest.FixtureRequest):
    async with platform(character=getattr(request, "param", {})) as rig:
        yield rig


falls_silent = pytest.mark.parametrize(
    "rig", [{"silent_after_s": 1.0}], ids=["silence"], indirect=True
)
"""Only where an agent goes for good: on a busy machine even one whose heart beats is not heard for a second."""


async def root_of(rig: Rig) -> Stubs:
    return await rig.user("root1", role=Role.ADMIN)


async def shown(user: Stubs, name: str = "a") -> pb.Node:
    return (await user.nodes.GetNode(pb.GetNodeRequest(name=name))).node


async def is_in(user: Stubs, *states: str, name: str = "a") -> None:
    async def it_is() -> bool:
        state = pb.NodeState.Name((await shown(user, name)).state)
        return state.removeprefix("NODE_STATE_") in states

    await until(it_is, f"node {name} is one of {states}")


async def drain(user: Stubs, name: str = "a", **facts: Any) -> pb.Node:
    after = facts.pop("after", None)
    request = pb.DrainNodeRequest(name=name, **facts)
    if after is not None:
        request.move_after.FromMilliseconds(round(after * 1000))
    return (await user.nodes.DrainNode(request)).node


async def running(user: Stubs, agent: Agent, **spec: Any) -> tuple[Any, agents_pb2.ReplicaId]:
    session = await user.submit(**spec)
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await user.reaches(session.id, "RUNNING")
    return session, assignment.replica


async def keep_alive(agent: Agent) -> None:
    """Heartbeats until its stream is over."""
    while agent.error is None:
        await agent.say(agents_pb2.ControlRequest(heartbeat=agents_pb2.Heartbeat()))
        await asyncio.sleep(0.05)


@pytest.fixture
async def alive():
    """Starts the heart of an agent."""
    tasks = []

    def beat(agent: Agent) -> Agent:
        tasks.append(asyncio.ensure_future(keep_alive(agent)))
        return agent

    yield beat
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_users_look_and_administrators_decide(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    await (await rig.agent()).connect()
    assert (await shown(kim)).name == "a"
    for call in (
        kim.nodes.DrainNode(pb.DrainNodeRequest(name="a")),
        kim.nodes.ResumeNode(pb.ResumeNodeRequest(name="a")),
        kim.nodes.FenceNode(pb.FenceNodeRequest(name="a", force=True)),
        kim.nodes.RemoveNode(pb.RemoveNodeRequest(name="a")),
    ):
        assert (await refused(call))[:2] == ("PERMISSION_DENIED", "DENIED")
    for call in (
        root.nodes.GetNode(pb.GetNodeRequest(name="b")),
        root.nodes.DrainNode(pb.DrainNodeRequest(name="b")),
        root.nodes.ResumeNode(pb.ResumeNodeRequest(name="b")),
        root.nodes.FenceNode(pb.FenceNodeRequest(name="b")),
        root.nodes.RemoveNode(pb.RemoveNodeRequest(name="b")),
    ):
        assert (await refused(call))[:2] == ("NOT_FOUND", "NOT_FOUND")
    bad = root.nodes.DrainNode(pb.DrainNodeRequest(name="../etc"))
    assert (await refused(bad))[0] == "INVALID_ARGUMENT"
    long = root.nodes.DrainNode(pb.DrainNodeRequest(name="a", reason="x" * 1025))
    assert (await refused(long))[1] == "TOO_LARGE"
    early = pb.DrainNodeRequest(name="a")
    early.move_after.FromSeconds(-1)
    assert (await refused(root.nodes.DrainNode(early)))[0] == "INVALID_ARGUMENT"


async def test_names_of_sessions_that_one_may_not_see_are_counted(rig: Rig, alive: Any) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = alive(await (await rig.agent()).connect())
    session, _ = await running(kim, agent)
    seen = await kim.nodes.GetNode(pb.GetNodeRequest(name="a"))
    assert (list(seen.sessions), seen.hidden_sessions) == ([session.name], 0)
    unseen = await lee.nodes.GetNode(pb.GetNodeRequest(name="a"))
    assert (list(unseen.sessions), unseen.hidden_sessions) == ([], 1)


async def test_a_drained_node_takes_nothing_and_ends_nothing(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    node = await drain(root, reason="new disks")
    assert node.state == pb.NODE_STATE_DRAINING
    assert (node.drain.asked_by, node.drain.reason) == ("root1", "new disks")
    assert not node.drain.HasField("move_at")
    waiting = await kim.submit()

    async def told() -> str:
        return (await kim.get(waiting.id)).waiting

    why = await until(told, "it is said why it waits")
    assert "node a is drained by root1: new disks" in why
    cluster = await kim.nodes.GetCluster(pb.GetClusterRequest())
    assert list(cluster.closed_nodes) == ["node a is drained by root1: new disks"]
    assert cluster.nodes_ready == 0
    assert await kim.state(session.id) == "RUNNING"
    await agent.close()
    running_ = report_of(replica, "RUNNING")
    again = alive(await (await rig.agent(boot_id="boot1", replicas=(running_,))).connect())
    await is_in(kim, "DRAINING")
    assert len(await again.assignments(1)) == 1
    await root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a"))
    await again.assignments(2)
    assert (await shown(kim)).state == pb.NODE_STATE_READY


async def test_what_is_moved_runs_elsewhere_without_a_retry(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    other = alive(await (await rig.agent("b")).connect())
    await drain(root, reason="new disks", after=0.2)

    async def stopped() -> bool:
        return agent.orders.assignments[0].HasField("stop")

    await until(stopped, "it is told to stop")
    order = agent.orders.assignments[0].stop
    assert order.cause == sessions_pb2.CAUSE_PREEMPTED
    assert order.grace.seconds == 10, "its own grace: it can save"
    assert order.reason == "node a is drained by root1: new disks"
    # An agent that was started again meanwhile may not know why it ended.
    await agent.report(replica, "FINALIZED", cause="STOP_REQUESTED", code=143)
    [moved] = await other.assignments(1)
    assert (moved.replica.session_id, moved.replica.attempt) == (session.id, 2)
    assert not moved.HasField("stop")
    assert (await kim.get(session.id)).attempt == 2


async def test_a_gang_is_moved_whole(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agents = [alive(await (await rig.agent(name, gpus=1)).connect()) for name in ("a", "b")]
    session = await kim.submit(replica_count=2)
    for agent in agents:
        [assignment] = await agent.assignments(1)
        await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    third = alive(await (await rig.agent("c", gpus=1)).connect())
    await drain(root, after=0)

    async def stopped() -> bool:
        return all(one.orders.assignments[0].HasField("stop") for one in agents)

    await until(stopped, "both are told to stop")
    for agent in agents:
        await agent.report(
            agent.orders.assignments[0].replica, "FINALIZED", cause="PREEMPTED", code=143
        )
    for agent in (agents[1], third):

        async def has_second(agent: Agent = agent) -> bool:
            orders = agent.orders
            return orders is not None and [o.replica.attempt for o in orders.assignments] == [2]

        await until(has_second, f"{agent.node} has the second attempt")


async def test_a_stop_by_its_owner_ends_what_is_being_moved(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    await drain(root, after=0)
    await kim.reaches(session.id, "STOPPING")
    await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.id))
    await agent.report(replica, "FINALIZED", cause="STOP_REQUESTED", code=143)
    await kim.reaches(session.id, "STOPPED")


async def test_only_what_is_silent_is_fenced(rig: Rig, alive: Any) -> None:
    root = await root_of(rig)
    alive(await (await rig.agent()).connect())
    code, reason, details = await refused(root.nodes.FenceNode(pb.FenceNodeRequest(name="a")))
    assert (code, reason) == ("FAILED_PRECONDITION", "STATE_CONFLICT")
    assert "nsml node drain a" in details["try"]
    assert (await shown(root)).state == pb.NODE_STATE_READY


async def test_a_control_plane_that_does_not_lead_says_so(alive: Any) -> None:
    """It knows of no agent, so nothing that it says of one would be true."""
    async with surroundings() as on, serving(on) as one, serving(on) as other:
        await until(lambda: one_leads(one, other), "one leads")
        leader, follower = (one, other) if one.plane.core.committer.is_leading else (other, one)
        root = await root_of(leader)
        alive(await (await leader.agent()).connect())
        token = await leader.plane.core.accounts.create_token("root1", 3600)
        there = Stubs(await follower.channel(), token.secret.text)
        await until(lambda: _known_to(there), "it has heard of the node")
        for call in (
            there.nodes.DrainNode(pb.DrainNodeRequest(name="a")),
            there.nodes.ResumeNode(pb.ResumeNodeRequest(name="a")),
            there.nodes.FenceNode(pb.FenceNodeRequest(name="a")),
            there.nodes.FenceNode(pb.FenceNodeRequest(name="a", force=True)),
            there.nodes.RemoveNode(pb.RemoveNodeRequest(name="a")),
        ):
            assert (await refused(call))[:2] == ("UNAVAILABLE", "NOT_LEADER")
        assert (await shown(root)).state == pb.NODE_STATE_READY


async def _known_to(user: Stubs) -> bool:
    return bool((await user.nodes.ListNodes(pb.ListNodesRequest())).nodes)


async def fenced(rig: Rig, kim: Stubs, root: Stubs, alive: Any, **spec: Any) -> Any:
    """A session of a node that fell silent and was fenced: with its replica."""
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent, **spec)
    await agent.close()
    await kim.reaches(session.id, "UNKNOWN")
    answer = await root.nodes.FenceNode(pb.FenceNodeRequest(name="a", reason="burnt"))
    assert answer.node.state == pb.NODE_STATE_FENCED
    assert answer.node.fence.asked_by == "root1"
    assert answer.node.allocated.gpu_thousandths == 0
    return session, replica


@falls_silent
async def test_whether_a_fence_would_be_refused_is_told_before(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, _ = await running(kim, agent)
    told = await root.nodes.GetNode(pb.GetNodeRequest(name="a"))
    assert told.fence_refusal.message == "node a is not silent"
    assert told.fence_refusal.attempt == "nsml node drain a --move-after 0s"
    await agent.close()
    await kim.reaches(session.id, "UNKNOWN")
    told = await root.nodes.GetNode(pb.GetNodeRequest(name="a"))
    assert not told.HasField("fence_refusal")


@falls_silent
async def test_a_fenced_nodes_sessions_end_or_run_elsewhere(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    session, _ = await fenced(rig, kim, root, alive)
    lost = await kim.reaches(session.id, "FAILED")
    assert lost.end.cause == sessions_pb2.CAUSE_NODE_LOST
    assert lost.end.message == "node a is fenced by root1: burnt"
    repeated = await kim.submit(retry_count=1)
    assert await kim.state(repeated.id) == "QUEUED", "nothing is placed on a fenced node"
    code, reason, _ = await refused(root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a")))
    assert (code, reason) == ("FAILED_PRECONDITION", "STATE_CONFLICT")


@falls_silent
async def test_an_agent_back_in_the_same_boot_ends_everything_first(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    session, replica = await fenced(rig, kim, root, alive, retry_count=1)
    await kim.reaches(session.id, "QUEUED")
    still = report_of(replica, "RUNNING")
    again = alive(await (await rig.agent(replicas=(still,))).connect())
    await again.assignments(0)
    await is_in(kim, "FENCED")
    await again.report(replica, "RUNNING")
    await again.report(replica, "PAUSED")
    assert await kim.state(session.id) == "QUEUED", "its late reports change nothing"
    assert list(again.orders.assignments) == []
    await again.report(replica, "EXITED", cause="PROGRAM_FAILED", code=9)
    await is_in(kim, "READY")
    [second] = await again.assignments(1)
    assert (second.replica.session_id, second.replica.attempt) == (session.id, 2)
    await again.report(replica, "FINALIZED", cause="PROGRAM_FAILED", code=9)
    await again.report(second.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")


@falls_silent
@pytest.mark.parametrize("fences", [1, 2])
async def test_what_was_fenced_and_removed_is_ended_and_holds_nothing_up(
    rig: Rig, alive: Any, fences: int
) -> None:
    """Its session is known no more, as if the store had never had it."""
    kim, root = await rig.user("kim"), await root_of(rig)
    session, replica = await fenced(rig, kim, root, alive)
    for _ in range(1, fences):  # in other words: it still is what was given up
        await root.nodes.FenceNode(pb.FenceNodeRequest(name="a", reason="burnt down"))
    await kim.reaches(session.id, "FAILED")
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=session.id))
    for _ in range(2):  # it comes and goes before it has ended anything
        agent = await (await rig.agent(replicas=(report_of(replica, "RUNNING"),))).connect()
        await agent.assignments(0)
        assert (await shown(kim)).state == pb.NODE_STATE_FENCED
        await agent.close()
    again = alive(await (await rig.agent(replicas=(report_of(replica, "RUNNING"),))).connect())
    waiting = await kim.submit()
    assert await kim.state(waiting.id) == "QUEUED", "the device of what still runs is not free"
    await again.report(replica, "EXITED", cause="STOP_REQUESTED", code=143)
    [next_one] = await again.assignments(1)
    assert next_one.replica.session_id == waiting.id
    assert (await shown(kim)).state == pb.NODE_STATE_READY


@falls_silent
async def test_a_fence_covers_what_it_gave_up_and_nothing_else(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    session, replica = await fenced(rig, kim, root, alive)
    await kim.reaches(session.id, "FAILED")
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=session.id))
    unknown = replica_of(NOWHERE)
    both = (report_of(replica, "RUNNING"), report_of(unknown, "RUNNING"))
    agent = alive(await (await rig.agent(replicas=both)).connect())
    assert list((await shown(root)).hold.replicas) == [f"{NOWHERE}.1.0"]
    assert agent.orders is None, "what was never placed there is not stopped with the rest"


@falls_silent
async def test_a_new_boot_is_simply_ready(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    session, _ = await fenced(rig, kim, root, alive, retry_count=1)
    again = alive(await (await rig.agent(boot_id="boot2")).connect())
    [second] = await again.assignments(1)
    assert second.replica.session_id == session.id
    assert not (await shown(kim)).HasField("fence")


async def test_by_force_a_node_that_is_heard_ends_all_that_it_runs(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    answer = await root.nodes.FenceNode(pb.FenceNodeRequest(name="a", force=True))
    assert list(answer.sessions) == [session.name]
    await kim.reaches(session.id, "FAILED")

    async def sent_away() -> bool:
        return agent.error is not None

    await until(sent_away, "its stream is ended")
    again = await rig.agent(replicas=(report_of(replica, "RUNNING"),))
    alive(await again.connect())
    await again.assignments(0)
    await is_in(kim, "FENCED")


@falls_silent
async def test_a_node_is_removed_when_it_is_away_and_holds_nothing(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    remove = pb.RemoveNodeRequest(name="a")
    assert (await refused(root.nodes.RemoveNode(remove)))[1] == "STATE_CONFLICT"
    await agent.close()
    await kim.reaches(session.id, "UNKNOWN")
    assert (await refused(root.nodes.RemoveNode(remove)))[1] == "STILL_LIVE"
    await root.nodes.FenceNode(pb.FenceNodeRequest(name="a"))
    await root.nodes.RemoveNode(remove)
    listed = await kim.nodes.ListNodes(nodes_pb2.ListNodesRequest())
    assert not listed.nodes
    still = report_of(replica, "RUNNING")
    again = alive(await (await rig.agent(replicas=(still,))).connect())
    waiting = await kim.submit()
    await again.assignments(0)
    await is_in(kim, "HELD")
    assert await kim.state(waiting.id) == "QUEUED", "the device of what still runs is not free"
    await again.report(replica, "EXITED", cause="STOP_REQUESTED", code=143)
    await again.assignments(1)


def replica_of(session_id: str, attempt: int = 1) -> agents_pb2.ReplicaId:
    return agents_pb2.ReplicaId(session_id=session_id, attempt=attempt, rank=0)


async def test_what_was_never_placed_there_is_not_stopped_until_somebody_says_so(
    rig: Rig, alive: Any
) -> None:
    """The store was restored from a copy that is older than what the node runs."""
    kim, root = await rig.user("kim"), await root_of(rig)
    unknown = replica_of(NOWHERE)
    facts = {"cluster_id": rig.plane.core.cluster_id, "replicas": (report_of(unknown, "RUNNING"),)}
    agent = alive(await (await rig.agent(**facts)).connect())
    node = await shown(kim)
    assert node.state == pb.NODE_STATE_HELD
    assert node.hold.why == "it runs a replica that this platform never placed there"
    assert not (await shown(kim)).hold.replicas, "whose it is nobody knows"
    node = await shown(root)
    assert list(node.hold.replicas) == [f"{NOWHERE}.1.0"]
    waiting = await kim.submit()

    async def told() -> str:
        return (await kim.get(waiting.id)).waiting

    assert "node a is held" in await until(told, "it is said why it waits")
    assert agent.orders is None, "not even empty orders: it would stop all"
    await root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a"))
    await until(lambda: _over(agent), "it must register again")
    again = alive(await (await rig.agent(**facts)).connect())
    await again.assignments(0)
    await is_in(kim, "HELD")
    await again.report(unknown, "EXITED", cause="STOP_REQUESTED", code=143)
    await again.assignments(1)
    await is_in(kim, "READY")


def introduced(replica: agents_pb2.ReplicaId, name: str) -> agents_pb2.ReplicaReport:
    """As an agent introduces a replica of a session of that name on its first device."""
    report = report_of(replica, "RUNNING")
    placed = report.placed_as
    placed.session_name = name
    placed.device_uuids.extend(["SIM-a-0", "of no device here", "SIM-a-0"])
    placed.started_at.FromSeconds(1_700_000_000)
    return report


async def test_administrators_see_what_runs_on_a_held_node(rig: Rig, alive: Any) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    unknown = replica_of(NOWHERE)
    alive(await (await rig.agent(replicas=(introduced(unknown, "kim/mnist/7" * 99),))).connect())
    [foreign] = (await shown(root)).hold.foreign
    assert foreign.replica == f"{NOWHERE}.1.0"
    assert foreign.session_name.startswith("kim/mnist/7")
    assert len(foreign.session_name) <= 256
    assert list(foreign.device_uuids) == ["SIM-a-0"]
    assert foreign.started_at.seconds == 1_700_000_000
    assert not (await shown(kim)).hold.foreign, "whose it is nobody knows"
    told = await root.nodes.GetNode(pb.GetNodeRequest(name="a"))
    assert told.fence_refusal.attempt == "nsml node resume a", "a drain does nothing there"


async def test_only_so_many_replicas_are_described(rig: Rig, alive: Any) -> None:
    root = await root_of(rig)
    many = tuple(
        introduced(replica_of(NOWHERE, attempt), f"kim/None/{attempt}") for attempt in range(1, 71)
    )
    alive(await (await rig.agent(replicas=many)).connect())
    hold = (await shown(root)).hold
    assert (len(hold.replicas), len(hold.foreign)) == (70, 50)


async def test_a_resumed_node_on_which_nothing_runs_says_nothing_of_an_end(
    rig: Rig, alive: Any
) -> None:
    root = await root_of(rig)
    unknown = replica_of(NOWHERE)
    facts = {
        "cluster_id": rig.plane.core.cluster_id,
        "highest_term": 1 << 40,
        "replicas": (introduced(unknown, "kim/None/1"),),
    }
    agent = alive(await (await rig.agent(**facts)).connect())
    await agent.report(unknown, "EXITED", cause="COMPLETED")

    async def forgotten() -> bool:
        hold = (await shown(root)).hold
        return not (hold.replicas or hold.foreign)

    await until(forgotten, "what ended is not named any more")
    resumed = (await root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a"))).node
    assert "ends" not in resumed.hold.why
    assert "resumed by root" in resumed.hold.why


async def _leaves_out(agent: Agent, replica: agents_pb2.ReplicaId) -> bool:
    return agent.orders is not None and all(
        one.replica != replica for one in agent.orders.assignments
    )


async def _over(agent: Agent) -> bool:
    return agent.error is not None


async def test_what_ends_by_itself_lets_go_of_the_node(rig: Rig, alive: Any) -> None:
    kim = await rig.user("kim")
    unknown = replica_of(NOWHERE)
    agent = await rig.agent(replicas=(report_of(unknown, "RUNNING"),))
    alive(await agent.connect())
    await is_in(kim, "HELD")
    await agent.report(unknown, "EXITED", cause="COMPLETED")
    await is_in(kim, "READY")


@pytest.mark.parametrize("attempt", [2, 7])
async def test_a_later_attempt_than_ours_is_of_a_lost_history(
    rig: Rig, alive: Any, attempt: int
) -> None:
    kim = await rig.user("kim")
    other = alive(await (await rig.agent("b")).connect())
    session, _ = await running(kim, other)
    later = report_of(replica_of(session.id, attempt), "RUNNING")
    agent = alive(await (await rig.agent("a", replicas=(later,))).connect())
    assert (await shown(kim)).state == pb.NODE_STATE_HELD
    assert agent.orders is None
    assert await kim.state(session.id) == "RUNNING"


async def test_an_earlier_attempt_is_simply_stopped(rig: Rig, alive: Any) -> None:
    kim = await rig.user("kim")
    agent = alive(await (await rig.agent()).connect())
    session, replica = await running(kim, agent)
    await agent.report(replica, "FINALIZED", cause="DATA_FAILED")
    await kim.reaches(session.id, "QUEUED")
    await agent.close()
    again = alive(await (await rig.agent(replicas=(report_of(replica, "RUNNING"),))).connect())
    # A later attempt may be on the node by now: sessions are repeated after some seconds.
    await until(lambda: _leaves_out(again, replica), "the earlier attempt has no order")
    assert (await shown(kim)).hold.lifted_by == "the platform"
    await again.report(replica, "EXITED", cause="STOP_REQUESTED", code=143)
    await is_in(kim, "READY")


@pytest.mark.parametrize("lost", ["term", "revision", "number used again"])
async def test_orders_that_our_store_never_had_hold_a_node(rig: Rig, alive: Any, lost: str) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    term = rig.plane.core.leading.term
    facts = {
        "highest_term": 1 << 40 if lost == "term" else term,
        "highest_revision": 2 if lost == "number used again" else 1 << 41,
        "cluster_id": rig.plane.core.cluster_id,
    }
    agent = alive(await (await rig.agent(**facts)).connect())
    assert not agent.registered.starts_anew
    assert (await shown(kim)).state == pb.NODE_STATE_HELD
    assert agent.orders is None
    await root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a"))
    await until(lambda: _over(agent), "it must register again")
    again = await (await rig.agent(**facts)).connect()
    assert again.registered.starts_anew
    await again.close()  # before it heard the orders: it is told again
    again = alive(await (await rig.agent(**facts)).connect())
    assert again.registered.starts_anew
    await again.assignments(0)
    accepted = agents_pb2.OrdersAccepted(term=again.orders.term, revision=again.orders.revision)
    await again.say(agents_pb2.ControlRequest(orders_accepted=accepted))
    await is_in(kim, "READY")


async def test_what_a_held_node_lacks_is_not_lost(rig: Rig, alive: Any) -> None:
    """It may have ended in the history that is no more."""
    kim, root = await rig.user("kim"), await root_of(rig)
    agent = alive(await (await rig.agent()).connect())
    session, _ = await running(kim, agent)
    await agent.close()
    unknown = report_of(replica_of(NOWHERE), "RUNNING")
    alive(await (await rig.agent(replicas=(unknown,))).connect())
    await is_in(kim, "HELD")
    assert await kim.state(session.id) in {"RUNNING", "UNKNOWN"}
    await root.nodes.ResumeNode(pb.ResumeNodeRequest(name="a"))
    alive(await (await rig.agent(replicas=(unknown,))).connect())
    await kim.reaches(session.id, "FAILED")


async def test_all_control_planes_are_told_and_who_of_them_answers_and_leads() -> None:
    async with surroundings() as on, serving(on, member="one", instance="1") as one:
        await until(lambda: one_leads(one), "one leads")
        async with serving(on, member="two", instance="2", user_address="two:1") as two:
            kim = await one.user("kim")
            asking = Stubs(await two.channel(), kim.metadata[0][1].removeprefix("Bearer "))

            async def both() -> pb.GetClusterResponse | None:
                answer = await asking.nodes.GetCluster(pb.GetClusterRequest())
                return answer if len(answer.members) == 2 else None

            answer = await until(both, "both are there")
            assert answer.answered_by == "two"
            assert [(one.name, one.is_leader) for one in answer.members] == [
                ("one", True),
                ("two", False),
            ]
            assert answer.members[1].user_address == "two:1"
