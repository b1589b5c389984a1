"""Who moves so that free devices lie together: only where it helps, to a place of its own, and never in circles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    NodeChanged,
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
    Device,
    DeviceShare,
    Drain,
    EndedAttempt,
    Node,
    Priority,
    Project,
    Quota,
    Replica,
    Resources,
    Session,
    Stop,
)
from controlplane.scheduler import RULES, ClusterIndex, QueueQueries
from controlplane.scheduler.defragmentation import HELD_FOR_S, LOOK_AGAIN_S, MOST_MOVED
from controlplane.scheduler.preemption_policy import MIN_RUN_S, InClass
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_preemption import held, runs, victims
from tests.unit.controlplane.scheduler.test_schedule import NOW

WIDTH = 4
NORMAL = Priority.NORMAL
Held = tuple[Session, AllocatedReplica]


def wide(gpus: int = WIDTH, **facts: object) -> Session:
    return session(gpus * 1000, **facts)  # type: ignore[arg-type]


def small(name: str, device: int = 0, **facts: object) -> Held:
    return runs(name, range(device, device + 1), NORMAL, **facts)  # type: ignore[arg-type]


def stays(name: str, devices: range) -> Held:
    return runs(name, devices, NORMAL, saved_s_ago=None)


def scattered(*more: Session, a: Held | None = None, b: Held | None = None) -> ClusterIndex:
    """Two nodes with one small session each, that of a being the one that moves for less."""
    on_a, on_b = a or small("a"), b or small("b", saved_s_ago=100)
    nodes = (node("a", WIDTH), node("b", WIDTH))
    return ClusterIndex.of(cluster(*nodes, *held("a", on_a), *held("b", on_b), *more))


def leave(mover: Held, stays: tuple[AllocatedReplica, ...] = (), **facts: object) -> list[Change]:
    """What is told when one that moves has left its node."""
    one, replica = mover
    ended = EndedAttempt(
        number=one.attempt,
        cause=Cause.PREEMPTED,
        placed_at=replica.placed_at,
        ended_at=NOW,
        gpu_thousandths=1000,
        held_s=NOW - replica.placed_at,
    )
    again = replace(one, state=SessionState.QUEUED, replicas=(), attempts=(ended,), **facts)  # type: ignore[arg-type]
    node_name = one.replicas[0].node
    allocation = Allocation(node=node_name, replicas=stays)
    return [AllocationChanged(allocation=allocation), SessionChanged(session=again)]


def told_to_go(mover: Held) -> Change:
    stop = Stop(grace_s=1, cause=Cause.PREEMPTED)
    return SessionChanged(session=replace(mover[0], state=SessionState.STOPPING, stop=stop))


def carry_out(index: ClusterIndex, plan: Plan) -> None:
    """Let all that is placed run."""
    for one in plan.placements:
        waits = index.cluster.started[one.session_id]
        for replica in one.replicas:
            room = index.cluster.rooms.get(replica.node)
            assert room is not None
            added = AllocatedReplica(
                session_id=one.session_id,
                attempt=waits.attempt + 1,
                rank=replica.rank,
                devices=replica.devices,
                cpu_thousandths=replica.resources.cpu_thousandths,
                memory_bytes=replica.resources.memory_bytes,
                placed_at=NOW,
            )
            known = room.allocation
            index.apply(
                [AllocationChanged(allocation=replace(known, replicas=(*known.replicas, added)))]
            )
        replicas = tuple(
            Replica(rank=r.rank, node=r.node, resources=r.resources) for r in one.replicas
        )
        runs_now = replace(
            waits, state=SessionState.RUNNING, attempt=waits.attempt + 1, replicas=replicas
        )
        index.apply([SessionChanged(session=runs_now)])
    index.settle(plan, set())


def where(plan: Plan) -> dict[str, set[str]]:
    return {one.session_id: {r.node for r in one.replicas} for one in plan.placements}


def why(index: ClusterIndex, one: Session, now: float = NOW) -> str:
    told = QueueQueries(index).deferral(one.id, now)
    assert told is not None
    return told.explanation.reason


def state(index: ClusterIndex) -> object:
    """All that a trial has to give back."""
    known = index.cluster
    return (
        {room.name: (room.state, room.keeper, room.occupants()) for room in known.rooms.known()},
        dict(known.kept),
        dict(known.moves.items()),
        {one: known.entitlements.holding(one) for one in ("kim", "lee", "park")},
        sorted((one.id, known.queue.line_of(one.id) is None) for one in known.queued()),
    )


def test_one_moves_the_wide_one_starts_and_the_other_goes_on_at_once() -> None:
    mover, other, wanted = small("a"), small("b", saved_s_ago=100), wide()
    index = scattered(wanted, a=mover, b=other)
    plan = index.plan(NOW)
    [moved] = plan.preemptions
    assert (moved.session_id, moved.attempt, moved.for_session_id) == (mover[0].id, 1, wanted.id)
    assert moved.why == f"moves to make room for {wanted.name}"
    index.settle(plan, set())
    assert why(index, wanted) == "one session will move soon, to make room for it"
    index.apply([told_to_go(mover)])
    # Of the three that are free beside it, one is the mover's.
    others = [session(1000, owner="lee") for _ in range(3)]
    index.apply([SessionChanged(session=one) for one in others])
    between = index.plan(NOW + 1)
    assert where(between) == {one.id: {"b"} for one in others[:2]}
    assert not between.preemptions
    carry_out(index, between)
    index.apply(leave(mover))
    after = index.plan(NOW + 2)
    assert where(after) == {wanted.id: {"a"}, mover[0].id: {"b"}}
    assert not index.cluster.kept
    assert not index.cluster.moves.items()


def test_who_moves_is_told_no_name_that_others_may_not_see() -> None:
    mover, wanted = small("a"), wide(owner="lee")
    [moved] = scattered(wanted, a=mover).plan(NOW).preemptions
    assert moved.why == "moves to make room for a session of lee"


@pytest.mark.parametrize(
    ("facts", "ran_s"),
    [
        ({"saved_s_ago": None}, 10_000.0),
        # It would be worth it, but began anew.
        ({"saved_s_ago": None, "preemptible": True}, MIN_RUN_S),
        ({}, MIN_RUN_S - 1),
        # It lost more than a tenth of what is gained.
        ({"saved_s_ago": 9_000.0}, 9_000.0),
    ],
)
def test_who_does_not_move(facts: dict[str, object], ran_s: float) -> None:
    a, b = (small(name, ran_s=ran_s, **facts) for name in "ab")
    assert not scattered(wide(), a=a, b=b).plan(NOW).preemptions


def test_nobody_moves_for_a_lower_class() -> None:
    low = wide(spec={"priority": Priority.LOW})
    assert not scattered(low).plan(NOW).preemptions


def test_a_lower_class_moves_after_its_own_least_run() -> None:
    # Nobody of the lower class alone makes room by giving way: with it one of the same class goes.
    low = runs("a", range(1), Priority.LOW, ran_s=400.0)
    equal, full = small("a", 1, saved_s_ago=10), stays("b", range(2))
    things = (node("a", WIDTH), node("b", WIDTH), *held("a", low, equal), *held("b", full))
    index = ClusterIndex.of(cluster(*things, wide()))
    assert sorted(victims(index.plan(NOW))) == sorted([low[0].id, equal[0].id])


def test_nobody_moves_where_it_is_switched_off() -> None:
    nodes = (node("a", WIDTH), node("b", WIDTH))
    things = cluster(*nodes, *held("a", small("a")), *held("b", small("b")), wide())
    for in_class in (InClass.LIMITS, InClass.NOBODY):
        off = replace(RULES, moves=False, in_class=in_class)
        assert not ClusterIndex.of(things, off).plan(NOW).preemptions
        assert len(ClusterIndex.of(things, replace(off, moves=True)).plan(NOW).preemptions) == 1


def test_nobody_moves_for_what_does_not_fit_even_then_and_nothing_stays_taken() -> None:
    # Four are free, but the one in the way needs two on one node.
    pair = runs("a", range(2), NORMAL)
    full = [stays(name, range(3)) for name in "bc"]
    nodes = [node(name, WIDTH) for name in "abc"]
    things = [*nodes, *held("a", pair), *held("b", full[0]), *held("c", full[1])]
    index = ClusterIndex.of(cluster(*things, wide()))
    before = state(index)
    assert not index.plan(NOW).preemptions
    assert state(index) == before


def test_another_set_moves_where_the_cheapest_has_no_place() -> None:
    # Who loses least has no place anywhere; two that are narrower have.
    pair = runs("a", range(2), NORMAL, saved_s_ago=0)
    first, second = (small("d", i, saved_s_ago=200) for i in range(2))
    full = [stays(name, range(3)) for name in "bc"]
    nodes = [node(name, WIDTH) for name in "abcd"]
    things = [*held("a", pair, stays("a", range(2, 3))), *held("b", full[0]), *held("c", full[1])]
    index = ClusterIndex.of(cluster(*nodes, *things, *held("d", first, second), wide()))
    plan = index.plan(NOW)
    assert sorted(victims(plan)) == sorted([first[0].id, second[0].id])
    places = {one: place.nodes for one, place in index.cluster.moves.items()}
    # No two are promised the same room.
    assert len(set(places.values())) == 2


def test_for_a_gang_only_what_it_lacks_is_made_free() -> None:
    gang = session(2000, replicas=3)
    mover, spared = small("c", saved_s_ago=50), small("b", saved_s_ago=5)
    other = stays("c", range(1, 3))
    nodes = [node(name, WIDTH) for name in "abcd"]
    things = [
        *held("a", stays("a", range(2))),
        *held("b", spared, stays("b", range(1, 2))),
        *held("c", mover, other),
        *held("d", stays("d", range(3))),
    ]
    index = ClusterIndex.of(cluster(*nodes, *things, gang))
    plan = index.plan(NOW)
    assert victims(plan) == [mover[0].id]
    assert index.cluster.moves.get(mover[0].id).nodes == ("d",)  # type: ignore[union-attr]
    index.settle(plan, set())
    index.apply([told_to_go(mover)])
    index.apply(leave(mover, (other[1],)))
    assert where(index.plan(NOW + 1)) == {gang.id: {"a", "b", "c"}, mover[0].id: {"d"}}


def test_nobody_moves_for_one_gpu() -> None:
    half, nodes = DeviceShare(uuid="", thousandths=500), [node("a", 1), node("b", 1)]
    things: list[Session | Allocation] = []
    for name in "ab":
        one, replica = small(name)
        spec = replace(one.spec, resources=Resources(gpu_thousandths=500))
        one = replace(one, spec=spec)
        part = replace(replica, devices=(replace(half, uuid=f"{name}-0"),))
        things += held(name, (one, part))
    assert not ClusterIndex.of(cluster(*nodes, *things, session(1000))).plan(NOW).preemptions


def test_at_most_so_many_move_for_one() -> None:
    width = 2 * (MOST_MOVED + 1)
    movers = [small("a", i) for i in range(MOST_MOVED + 1)]
    nodes = (node("a", width, cpu=64_000), node("b", width, cpu=64_000))
    others = [stays("b", range(1))]
    things = (*nodes, *held("a", *movers), *held("b", *others))
    index = ClusterIndex.of(cluster(*things, session(width * 1000, cpu=1000)))
    assert not index.plan(NOW).preemptions


def test_a_place_that_is_lost_leaves_the_usual_order() -> None:
    mover, other, wanted = small("a"), small("b", saved_s_ago=100), wide()
    index = scattered(wanted, a=mover, b=other)
    plan = index.plan(NOW)
    index.settle(plan, set())
    index.apply([told_to_go(mover)])
    closed = replace(node("b", WIDTH), drain=Drain(asked_by="root"))
    index.apply([NodeChanged(node=closed)])
    index.apply(leave(mover))
    after = index.plan(NOW + 2)
    assert where(after) == {wanted.id: {"a"}}
    carry_out(index, after)
    index.apply([NodeChanged(node=node("b", WIDTH))])
    assert where(index.plan(NOW + 3)) == {mover[0].id: {"b"}}


def test_its_place_and_its_quota_are_held_while_what_it_saved_is_made_safe() -> None:
    mover, other, wanted = small("a"), stays("b", range(2)), wide(owner="lee")
    quota = Quota(gpu_thousandths=3000)
    project = Project(name="kim", members=frozenset({"kim"}), quota=quota)
    index = ClusterIndex()
    index.apply([ProjectChanged(project=project)])
    changes: list[Node | Session | Allocation] = [node("a", WIDTH), node("b", WIDTH), wanted]
    things = cluster(*changes, *held("a", mover), *held("b", other))
    index.apply([NodeChanged(node=one.node) for one in things.nodes.values()])
    index.apply([AllocationChanged(allocation=one) for one in things.allocations.values()])
    index.apply([SessionChanged(session=one) for one in (mover[0], other[0], wanted)])
    plan = index.plan(NOW)
    assert victims(plan) == [mover[0].id]
    index.settle(plan, set())
    index.apply([told_to_go(mover)])
    index.apply(leave(mover, settling=frozenset({0}), not_before=NOW + 600))
    eager = [session(1000, owner="kim") for _ in range(2)]
    index.apply([SessionChanged(session=one) for one in eager])
    middle = index.plan(NOW + 2)
    # b has two free: one is held, and the project is full with what is held.
    assert where(middle) == {wanted.id: {"a"}}
    carry_out(index, middle)
    queued = index.cluster.queue.get(mover[0].id)
    assert queued is not None
    assert not index.cluster.lacks(SessionChanged(session=queued))
    assert why(index, queued).endswith("; room is kept for it on b")
    index.apply([SessionChanged(session=replace(queued, settling=frozenset(), not_before=0.0))])
    assert where(index.plan(NOW + 3)) == {mover[0].id: {"b"}}


def test_a_place_is_not_held_for_ever() -> None:
    mover, wanted = small("a"), wide()
    index = scattered(wanted, a=mover)
    carry_out(index, index.plan(NOW))
    index.apply([told_to_go(mover)])
    index.apply(leave(mover, settling=frozenset({0}), not_before=NOW + 2 * HELD_FOR_S))
    carry_out(index, index.plan(NOW + 1))
    eager = session(3000, owner="lee")
    index.apply([SessionChanged(session=eager)])
    carry_out(index, index.plan(NOW + HELD_FOR_S - 1))
    assert eager.id in index.cluster.queue
    due = index.due()
    assert due is not None
    assert due <= NOW + HELD_FOR_S
    assert where(index.plan(NOW + HELD_FOR_S)) == {eager.id: {"b"}}
    assert index.cluster.entitlements.holding("kim") == WIDTH + 1


@pytest.mark.parametrize("how", ["ended", "removed", "stays"])
def test_a_place_is_everybodys_again_when_its_session_does_not_come(how: str) -> None:
    mover, wanted = small("a"), wide()
    index = scattered(wanted, a=mover)
    plan = index.plan(NOW)
    ended = replace(mover[0], state=SessionState.SUCCEEDED, replicas=())
    index.settle(plan, set(), {mover[0].id} if how == "stays" else set())
    if how != "stays":
        index.apply([AllocationChanged(allocation=Allocation(node="a"))])
        change = SessionChanged(session=ended)
        index.apply([change if how == "ended" else SessionRemoved(session_id=ended.id)])
    assert not index.cluster.moves.items()
    eager = session(3000, owner="lee")
    index.apply([SessionChanged(session=eager)])
    placed = where(index.plan(NOW + 1))
    assert placed[eager.id] <= {"a", "b"}
    assert (wanted.id in placed) is (how != "stays")


def test_who_is_barred_by_then_waits_for_what_bars_it() -> None:
    mover, wanted = small("a"), wide(owner="lee")
    index = scattered(wanted, a=mover)
    carry_out(index, index.plan(NOW))
    index.apply([told_to_go(mover)])
    closed = Project(name="kim", members=frozenset({"lee"}))
    index.apply([ProjectChanged(project=closed)])
    index.apply(leave(mover))
    assert where(index.plan(NOW + 1)) == {wanted.id: {"a"}}
    assert not index.cluster.moves.items()
    assert mover[0].id in index.cluster.queue


def test_it_goes_on_on_devices_of_its_model() -> None:
    mover = small("a")
    device = Device(uuid="a-0", index=0, model="M")
    replicas = (replace(mover[0].replicas[0], devices=(device,)),)
    mover = (replace(mover[0], replicas=replicas), mover[1])
    # b would be tighter.
    others = [*held("b", stays("b", range(3))), *held("c", stays("c", range(1)))]
    nodes = [node("a", WIDTH), node("b", WIDTH, model="N"), node("c", WIDTH)]
    index = ClusterIndex.of(cluster(*nodes, *held("a", mover), *others, wide()))
    assert victims(index.plan(NOW)) == [mover[0].id]
    assert index.cluster.moves.get(mover[0].id).nodes == ("c",)  # type: ignore[union-attr]


def test_it_is_not_looked_again_at_once() -> None:
    young = [small(name, ran_s=MIN_RUN_S - 10) for name in "ab"]
    index = scattered(wide(), a=young[0], b=young[1])
    assert not index.plan(NOW).preemptions
    assert not index.plan(NOW + 20).preemptions
    assert len(index.plan(NOW + LOOK_AGAIN_S).preemptions) == 1


def test_asking_what_if_gives_back_every_place() -> None:
    mover, wanted = small("a"), wide()
    index = scattered(wanted, a=mover)
    answers = QueueQueries(index)

    def ask() -> None:
        before = state(index)
        answers.would_start(session(1000, owner="park"), NOW + 1)
        assert state(index) == before
        answers.would_start(session(WIDTH * 1000, owner="park"), NOW + 1)
        assert state(index) == before
        answers.would_start(session(WIDTH * 1000, owner="park"), NOW + 2 * HELD_FOR_S)
        assert state(index) == before

    ask()
    carry_out(index, index.plan(NOW))
    ask()
    index.apply([told_to_go(mover)])
    ask()
    index.apply(leave(mover))
    ask()
    assert where(index.plan(NOW + 2)) == {wanted.id: {"a"}, mover[0].id: {"b"}}
