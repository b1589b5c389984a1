"""Nothing is lost on a cluster where nothing happens: the index says when its plan may be another one by time alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    ContactChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.plan import Plan
from controlplane.domain.values import Allocation, Priority
from controlplane.scheduler import ClusterIndex, InClass, Rules
from controlplane.scheduler.index import MOST_TRIED
from controlplane.scheduler.preemption import AGAIN_S
from controlplane.scheduler.preemption_policy import IDLE_LEAST_RUN_S, LEAST_RUN_S
from controlplane.scheduler.reservations import REVIEW_S
from controlplane.scheduler.session_rank import LEAST_PATIENCE_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_preemption import ask, held, runs, victims
from tests.unit.controlplane.scheduler.test_schedule import NOW
from tests.unit.controlplane.snapshot import ClusterSnapshot

HORIZON_S = 6 * 3_600.0


def decided_at(
    index: ClusterIndex, until: float, *, stops_at_holds: bool = False
) -> tuple[float, Plan | None]:
    """Let time pass, with a plan whenever the index says that one is due: the first that decides anything.

    With `stops_at_holds` not further than until nodes are held for somebody.
    """
    now, plans = NOW, 0
    while True:
        plan = index.plan(now)
        if stops_at_holds and index._holding:
            return now, None
        if plan.placements or plan.preemptions:
            return now, plan
        due = index.due()
        if due is None or due > until:
            return until, None
        assert due > now, "it plans again and again"
        now, plans = due, plans + 1
        assert plans < 20_000


@pytest.mark.parametrize(
    ("priority", "least_s"),
    [(Priority.IDLE, IDLE_LEAST_RUN_S), (Priority.LOW, LEAST_RUN_S)],
)
def test_one_that_starts_after_the_blocked_one_was_looked_at_gives_way_in_time(
    priority: Priority, least_s: float
) -> None:
    before, wanted = runs("a", range(1), Priority.HIGH), ask(1000, Priority.HIGH)
    index = ClusterIndex.of(cluster(node("a", 1), *held("a", before), wanted))
    assert not index.plan(NOW).preemptions
    began, replica = runs("a", range(1), priority, ran_s=0.0)
    allocation = Allocation(node="a", replicas=(replica,))
    index.apply(
        [
            SessionRemoved(session_id=before[0].id),
            SessionChanged(session=began),
            AllocationChanged(allocation=allocation),
        ]
    )
    at, plan = decided_at(index, NOW + HORIZON_S)
    assert plan is not None
    assert victims(plan) == [began.id]
    assert at == pytest.approx(NOW + least_s, abs=AGAIN_S)


def test_one_that_can_be_resumed_only_later_gives_way_then() -> None:
    """Its program says so once it has loaded what it needs: nothing else happens after that."""
    low, replica = runs("a", range(2), saved_s_ago=None)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", (low, replica)), ask(2000)))
    assert not index.plan(NOW).preemptions
    assert not index.is_due(NOW + 1)
    bound = replace(low, progress=replace(low.progress, is_resumable=True))
    index.apply([SessionChanged(session=bound)])
    due = index.due()
    assert due is not None
    assert due <= NOW + AGAIN_S
    assert victims(index.plan(due)) == [low.id]


def test_one_behind_many_that_nobody_can_help_is_looked_at_too() -> None:
    index = ClusterIndex.of(
        cluster(
            node("a", 2),
            node("b", 1000),
            *held("a", runs("a", range(2))),
            *held("b", runs("b", range(1000), Priority.HIGH)),
            *[
                ask(1000 * gpus, Priority.HIGH, owner="lee")
                for gpus in range(8, 8 + 5 * MOST_TRIED)
            ],
            wanted := ask(2000, Priority.NORMAL, owner="park"),
        )
    )
    at, plan = decided_at(index, NOW + HORIZON_S)
    assert plan is not None
    assert [one.for_session_id for one in plan.preemptions] == [wanted.id]
    assert at <= NOW + 10 * AGAIN_S


def test_a_barred_one_takes_no_try_from_those_behind_it() -> None:
    barred = [
        ask(2000, Priority.HIGH, owner=f"lee{i}", project="gone") for i in range(2 * MOST_TRIED)
    ]
    wanted = ask(2000, Priority.NORMAL, owner="park")
    things = cluster(node("a", 2), *held("a", runs("a", range(2))), *barred, wanted)
    index = ClusterIndex.of(things)
    assert [one.for_session_id for one in index.plan(NOW).preemptions] == [wanted.id]


def test_nodes_are_held_once_somebody_is_due_or_came_just_after_a_look() -> None:
    limited, theirs = runs("a", range(4), Priority.HIGH)
    limited = replace(limited, spec=replace(limited.spec, time_limit_s=50_000.0))
    alone = session(4000, spec={"gpu_model": "N"})
    index = ClusterIndex.of(cluster(node("a", 4), *held("a", (limited, theirs)), alone))
    index.plan(NOW)
    wide = session(4000, created_at=NOW)
    index.apply([SessionChanged(session=wide)])
    index.plan(NOW + 1)
    assert not index.cluster.holding, "it was looked for a moment ago"
    due = index.due()
    assert due is not None
    assert due <= NOW + REVIEW_S
    index.plan(due)
    assert index.cluster.holding.holder == wide.id
    # Without a limit it is only held for one that waited for all of its patience.
    endless = runs("a", range(4), Priority.HIGH)
    short = session(4000, created_at=NOW - 60, spec={"time_limit_s": 60.0})
    index = ClusterIndex.of(cluster(node("a", 4), *held("a", endless), short))
    index.plan(NOW)
    promise = index.cluster.holding.get(short.id)
    assert promise is not None
    assert not promise.bars_own_class, "against lower classes alone"
    due = index.due()
    assert due is not None
    assert due <= NOW + REVIEW_S
    index.plan(NOW - 60 + LEAST_PATIENCE_S)
    promise = index.cluster.holding.get(short.id)
    assert promise is not None
    assert promise.bars_own_class


def test_a_preemption_that_is_refused_is_looked_at_again() -> None:
    low, wanted = runs("a", range(2)), ask(2000)
    index = ClusterIndex.of(cluster(node("a", 2), *held("a", low), wanted))
    plan = index.plan(NOW)
    assert victims(plan) == [low[0].id]
    index.settle(plan, set(), {low[0].id})
    due = index.due()
    assert due is not None
    assert due <= NOW + AGAIN_S
    assert victims(index.plan(due)) in ([], [low[0].id])


@st.composite
def states(draw: st.DrawFn) -> ClusterSnapshot:
    """Nodes that are full of sessions of any age, and others that wait."""
    things: list[object] = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        things.append(node(name, 4))
        running = []
        for device in range(0, 4, 2):
            one, replica = runs(
                name,
                range(device, device + 2),
                draw(st.sampled_from(Priority)),
                ran_s=draw(st.sampled_from([0.0, 30.0, 59.0, 200.0, 1_700.0, 5_000.0])),
                saved_s_ago=draw(st.sampled_from([None, 0.0, 100.0])),
                preemptible=draw(st.booleans()),
            )
            owner = draw(st.sampled_from(["kim", "lee"]))
            spec = replace(one.spec, time_limit_s=draw(st.sampled_from([0.0, 0.0, 7_200.0])))
            running.append((replace(one, owner=owner, spec=spec), replica))
        things += held(name, *running)
    for _ in range(draw(st.integers(1, 4))):
        things.append(
            ask(
                draw(st.sampled_from([1000, 2000, 4000])),
                draw(st.sampled_from(Priority)),
                owner=draw(st.sampled_from(["kim", "lee", "park"])),
                created_at=NOW - draw(st.sampled_from([0.0, 100.0, LEAST_PATIENCE_S - 200])),
                not_before=draw(st.sampled_from([0.0, 0.0, NOW + 40.0])),
            )
        )
    return cluster(*things)  # type: ignore[arg-type]


@settings(max_examples=examples(200), deadline=None)
@given(
    states(),
    st.booleans(),
    st.sampled_from(InClass),
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
)
def test_no_plan_made_before_the_index_says_so_is_another_one(
    snapshot: ClusterSnapshot, is_new_leader: bool, in_class: InClass, parts: list[float]
) -> None:
    """What a look at everything would decide, at any instant, is decided within `AGAIN_S` though nothing happens.

    Until nodes are held for a session: what others may do depends on since when they are.
    """
    rules = Rules(in_class=in_class, moves=False)
    index = ClusterIndex.of(snapshot, rules)
    if is_new_leader:
        # It hears of the nodes a moment after its first plan.
        index.apply([ContactChanged(name=name, is_silent=True) for name in snapshot.nodes])
        index.plan(NOW - 1.0)
        index.apply([ContactChanged(name=name, is_silent=False) for name in snapshot.nodes])
    until, _ = decided_at(index, NOW + HORIZON_S, stops_at_holds=True)
    late_s = 2 * AGAIN_S if is_new_leader else AGAIN_S
    assume(until > NOW)
    for instant in (
        until - late_s - 0.01,
        *[NOW + part * (until - NOW - late_s) for part in parts],
    ):
        if not NOW <= instant < until - late_s:
            continue
        afresh = ClusterIndex.of(snapshot, rules).plan(instant)
        assert not afresh.preemptions, (
            f"decided {instant - NOW:.1f} s after, not found by {until - NOW:.1f} s"
        )
        assert not afresh.placements
