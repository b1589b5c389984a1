"""Who gives way: lower classes, to whom it helps, those that lose least; never in circles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    ProjectChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Plan
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    DeviceShare,
    Priority,
    Progress,
    Project,
    Replica,
    Session,
    Stop,
    Visibility,
)
from controlplane.scheduler import ClusterIndex, QueueQueries, Rules
from controlplane.scheduler.preemption import AGAIN_S
from controlplane.scheduler.preemption_policy import LEAST_RUN_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW

LONG = 10_000.0


def ask(gpu: int = 1000, priority: Priority = Priority.NORMAL, **facts: object) -> Session:
    return session(gpu, spec={"priority": priority}, **facts)  # type: ignore[arg-type]


def runs(
    name: str,
    devices: range,
    priority: Priority = Priority.LOW,
    *,
    ran_s: float = LONG,
    saved_s_ago: float | None = 0.0,
    preemptible: bool = False,
) -> tuple[Session, AllocatedReplica]:
    """A session that holds these devices of a node; `saved_s_ago` None: it cannot be resumed."""
    spec = {"priority": priority, "preemptible": preemptible}
    one = session(len(devices) * 1000, spec=spec)
    shares = tuple(DeviceShare(uuid=f"{name}-{i}", thousandths=1000) for i in devices)
    resources = one.spec.resources
    placed = replace(
        one,
        state=SessionState.RUNNING,
        attempt=1,
        started_at=NOW - ran_s,
        replicas=(Replica(rank=0, node=name, resources=resources),),
        progress=Progress()
        if saved_s_ago is None
        else Progress(is_resumable=True, saved_at=NOW - saved_s_ago),
    )
    return placed, AllocatedReplica(
        session_id=one.id, attempt=1, rank=0, devices=shares, placed_at=NOW - ran_s
    )


def held(name: str, *running: tuple[Session, AllocatedReplica]) -> list[Session | Allocation]:
    allocation = Allocation(node=name, replicas=tuple(replica for _, replica in running))
    return [*[one for one, _ in running], allocation]


def victims(plan: Plan) -> list[str]:
    return [one.session_id for one in plan.preemptions]


def left(name: str, stays: AllocatedReplica | None, *gone: Session) -> list[Change]:
    """What is told once these have left a node and are queued again."""
    allocation = Allocation(node=name, replicas=(stays,) if stays else ())
    again = [replace(one, state=SessionState.QUEUED, replicas=()) for one in gone]
    return [AllocationChanged(allocation=allocation), *[SessionChanged(session=s) for s in again]]


def test_a_lower_class_gives_way_and_what_it_leaves_is_kept() -> None:
    low, wanted = runs("a", range(2)), ask(2000)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", low), wanted))
    plan = index.plan(NOW)
    [preemption] = plan.preemptions
    assert (preemption.session_id, preemption.attempt) == (low[0].id, 1)
    assert preemption.for_session_id == wanted.id
    assert preemption.why == f"gives way to {wanted.name} (normal)"
    index.settle(plan, set())
    assert (
        "one session will leave soon"
        in QueueQueries(index).deferral(wanted.id, NOW).explanation.reason
    )
    other = ask(1000, owner="park")
    index.apply([SessionChanged(session=other)])
    [shortage] = QueueQueries(index).deferral(other.id, NOW).explanation.shortages
    assert (shortage.what, shortage.nodes) == ("is kept for another", 1)
    index.apply([SessionRemoved(session_id=other.id)])
    assert not index.plan(NOW + 1).preemptions
    eager = ask(1000, owner="lee")
    stopping = replace(low[0], stop=Stop(grace_s=1, cause=Cause.PREEMPTED))
    index.apply([SessionChanged(session=eager), SessionChanged(session=stopping)])
    index.apply(left("a", None, low[0]))
    again = index.plan(NOW + 2)
    assert [one.session_id for one in again.placements] == [wanted.id]
    assert not again.preemptions


def test_when_others_give_way_is_told_before_and_after_they_were_told() -> None:
    low, wanted = runs("a", range(2)), ask(2000)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", low)), Rules(notice_s=30.0))
    supposed = QueueQueries(index).would_start(wanted, NOW).deferral
    assert supposed is not None
    assert supposed.explanation.reason == "one session will leave soon, to give way to it"
    idle = replace(wanted, spec=replace(wanted.spec, priority=Priority.IDLE))
    index.apply([SessionChanged(session=idle)])
    answer = QueueQueries(index).what_if(wanted.id, wanted.spec, NOW)
    by = NOW + 30.0 + low[0].spec.grace_s
    assert answer is not None
    assert answer.deferral is not None
    assert answer.deferral.expected_start == by
    index.apply([SessionChanged(session=wanted)])
    index.settle(index.plan(NOW), set())
    stop = Stop(grace_s=low[0].spec.grace_s, notice_s=30.0, cause=Cause.PREEMPTED)
    told = replace(low[0], state=SessionState.STOPPING, stop=stop)
    index.apply([SessionChanged(session=told)])
    assert QueueQueries(index).start(wanted.id, NOW, {}).at == by


def test_who_leaves_for_another_reason_is_not_said_to_give_way() -> None:
    low, wanted = runs("a", range(2), Priority.NORMAL), ask(2000)
    stop = Stop(grace_s=10.0, notice_s=60.0, cause=Cause.PREEMPTED, reason="requeued by kim")
    leaving = (replace(low[0], state=SessionState.STOPPING, stop=stop), low[1])
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", leaving), wanted))
    plan = index.plan(NOW)
    assert not plan.preemptions
    found = QueueQueries(index).outlook(wanted.id, NOW)
    assert found is not None
    assert found.explanation.reason == "those that leave already make room for it"
    assert found.expected_start == NOW + 70.0


def test_one_whose_project_may_have_no_higher_class_any_more_gives_way_like_others() -> None:
    high, wanted = runs("a", range(2), Priority.HIGH), ask(2000, owner="lee")
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", high), wanted))
    assert not index.plan(NOW).preemptions
    name = high[0].project or high[0].owner
    bounded = Project(
        name=name, members=frozenset({high[0].owner, wanted.owner}), most_priority=Priority.LOW
    )
    index.apply([ProjectChanged(project=bounded)])
    assert victims(index.plan(NOW + AGAIN_S)) == [high[0].id]
    raised = replace(bounded, most_priority=Priority.HIGH)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", high), wanted))
    index.apply([ProjectChanged(project=bounded), ProjectChanged(project=raised)])
    assert not index.plan(NOW).preemptions


def test_for_whom_is_named_only_where_everybody_who_reads_it_may_see_that() -> None:
    low, wanted = runs("a", range(2)), ask(2000, owner="park")
    [preemption] = (
        ClusterIndex.of(cluster(node("a", 2), *held("a", low), wanted)).plan(NOW).preemptions
    )
    assert preemption.why == "gives way to a session of park (normal)"
    wanted = replace(wanted, visibility=Visibility.PUBLIC)
    [preemption] = (
        ClusterIndex.of(cluster(node("a", 2), *held("a", low), wanted)).plan(NOW).preemptions
    )
    assert preemption.why == f"gives way to {wanted.name} (normal)"


@pytest.mark.parametrize(
    ("priority", "facts"),
    [
        (Priority.NORMAL, {}),
        (Priority.HIGH, {}),
        (Priority.LOW, {"saved_s_ago": None}),
        (Priority.LOW, {"ran_s": LEAST_RUN_S - 1}),
    ],
)
def test_who_does_not_give_way(priority: Priority, facts: dict[str, float]) -> None:
    stays, wanted = runs("a", range(2), priority, **facts), ask(2000)  # type: ignore[arg-type]
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", stays), wanted))
    assert not index.plan(NOW).preemptions


def test_who_is_too_young_gives_way_in_time() -> None:
    young = runs("a", range(2), ran_s=LEAST_RUN_S - 3)
    wanted = ask(2000)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", young), wanted))
    assert not index.plan(NOW).preemptions
    due = index.due()
    assert due == NOW + AGAIN_S
    assert index.is_due(due)
    assert victims(index.plan(due)) == [young[0].id]


def test_its_owner_may_allow_what_cannot_be_resumed() -> None:
    allowed, wanted = runs("a", range(2), saved_s_ago=None, preemptible=True), ask(2000)
    idle = runs("b", range(2), Priority.IDLE, saved_s_ago=None, ran_s=LONG / 2)
    nodes = (node("a", 2), node("b", 2))
    index = ClusterIndex.of(cluster(*nodes, *held("a", allowed), *held("b", idle), wanted))
    assert victims(index.plan(NOW)) == [idle[0].id]


def test_those_that_lose_least_go() -> None:
    fresh, stale = runs("a", range(1), saved_s_ago=10), runs("a", range(1, 2), saved_s_ago=500)
    wide = runs("b", range(2), saved_s_ago=50)
    nodes = (node("a", 2), node("b", 2))
    things = (*nodes, *held("a", fresh, stale), *held("b", wide))
    assert victims(ClusterIndex.of(cluster(*things, ask(1000))).plan(NOW)) == [fresh[0].id]
    assert victims(ClusterIndex.of(cluster(*things, ask(2000))).plan(NOW)) == [wide[0].id]


def test_nobody_goes_who_need_not() -> None:
    cheap, dear = runs("a", range(1), saved_s_ago=1), runs("a", range(1, 4), saved_s_ago=100)
    index = ClusterIndex.of(cluster(node("a", 4), *held("a", cheap, dear), ask(3000)))
    assert victims(index.plan(NOW)) == [dear[0].id]


def test_nobody_goes_where_it_would_not_help() -> None:
    small, stays = runs("a", range(2)), runs("a", range(2, 4), Priority.HIGH)
    index = ClusterIndex.of(cluster(node("a", 4), *held("a", small, stays), ask(4000)))
    assert not index.plan(NOW).preemptions


def test_a_gang_gets_room_on_several_nodes() -> None:
    one, two = runs("a", range(2)), runs("b", range(2))
    gang = session(2000, replicas=2)
    nodes = (node("a", 2), node("b", 2))
    index = ClusterIndex.of(cluster(*nodes, *held("a", one), *held("b", two), gang))
    plan = index.plan(NOW)
    assert sorted(victims(plan)) == sorted([one[0].id, two[0].id])
    index.settle(plan, set())
    index.apply(left("a", None, one[0]))
    index.apply([SessionChanged(session=ask(1000, owner="lee"))])
    assert not index.plan(NOW + 1).placements
    index.apply(left("b", None, two[0]))
    placed = index.plan(NOW + 2).placements
    assert placed[0].session_id == gang.id
    assert {replica.node for replica in placed[0].replicas} == {"a", "b"}


def test_what_leaves_already_is_not_asked_again_by_a_new_leader() -> None:
    low, replica = runs("a", range(2))
    leaving = replace(low, state=SessionState.STOPPING, stop=Stop(grace_s=1, cause=Cause.PREEMPTED))
    other = runs("b", range(2))
    wanted, nodes = ask(2000), (node("a", 2), node("b", 2))
    things = (*nodes, *held("a", (leaving, replica)), *held("b", other), wanted)
    assert not ClusterIndex.of(cluster(*things)).plan(NOW).preemptions


def test_who_does_not_leave_after_all_is_replaced() -> None:
    stays, other = runs("a", range(2), saved_s_ago=1), runs("b", range(2), saved_s_ago=2)
    wanted, nodes = ask(2000), (node("a", 2), node("b", 2))
    index = ClusterIndex.of(cluster(*nodes, *held("a", stays), *held("b", other), wanted))
    plan = index.plan(NOW)
    assert victims(plan) == [stays[0].id]
    ended = replace(stays[0], state=SessionState.SUCCEEDED)
    holder = runs("a", range(2), Priority.HIGH)
    index.apply([SessionRemoved(session_id=ended.id)])
    index.apply(
        [
            SessionChanged(session=holder[0]),
            AllocationChanged(allocation=Allocation(node="a", replicas=(holder[1],))),
        ]
    )
    index.settle(plan, set(), {stays[0].id})
    assert victims(index.plan(NOW + 1)) == [other[0].id]


def test_room_is_not_kept_for_one_that_is_gone() -> None:
    low, wanted, eager = runs("a", range(2)), ask(2000), ask(2000, Priority.LOW, owner="lee")
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", low), wanted, eager))
    plan = index.plan(NOW)
    index.settle(plan, set())
    index.apply([SessionRemoved(session_id=wanted.id), *left("a", None)])
    assert [one.session_id for one in index.plan(NOW).placements] == [eager.id]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(Priority)), st.integers(1, 4), st.integers(0, 600)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.tuples(st.sampled_from(list(Priority)), st.integers(1, 8)), min_size=1, max_size=4),
)
def test_preemption_comes_to_rest(
    running: list[tuple[Priority, int, int]], waiting: list[tuple[Priority, int]]
) -> None:
    """Every victim is of a lower class than whom it gives way to, and no two plans undo each other."""
    things: list[Session | Allocation] = []
    nodes = []
    sessions: dict[str, Session] = {}
    for number, (priority, gpus, ran_s) in enumerate(running):
        name = f"n{number}"
        nodes.append(node(name, 4))
        made = runs(name, range(gpus), priority, ran_s=float(ran_s))
        things += held(name, made)
        sessions[made[0].id] = made[0]
    asked = [ask(gpus * 1000, priority) for priority, gpus in waiting]
    sessions |= {one.id: one for one in asked}
    index = ClusterIndex.of(cluster(*nodes, *things, *asked))
    allocations = {one.node: one for one in things if isinstance(one, Allocation)}
    for turn in range(40):
        plan = index.plan(NOW + turn)
        if not plan.placements and not plan.preemptions:
            break
        for one in plan.preemptions:
            gone, comes = sessions[one.session_id], sessions[one.for_session_id]
            assert gone.spec.priority < comes.spec.priority
            [replica] = gone.replicas
            allocations[replica.node] = Allocation(node=replica.node)
            index.apply(left(replica.node, None, gone))
        index.settle(plan, {one.session_id for one in plan.placements})
        for placement in plan.placements:
            index.apply([SessionRemoved(session_id=placement.session_id)])
    else:
        pytest.fail("never at rest")
