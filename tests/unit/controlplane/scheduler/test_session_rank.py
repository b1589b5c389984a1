"""Who is served first: class, then what an account holds over what it is entitled to, then age."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import PastChanged, ProjectChanged, SessionChanged
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import FairShare, Plan
from controlplane.domain.values import (
    Cause,
    EndedAttempt,
    Priority,
    Project,
    Replica,
    Session,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.session_rank import LEAST_PATIENCE_S, MOST_PATIENCE_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW
from tests.unit.controlplane.snapshot import schedule


def ask(gpu: int = 1000, priority: Priority = Priority.NORMAL, **facts: object) -> Session:
    return session(gpu, spec={"priority": priority}, **facts)


def order(plan: Plan) -> list[str]:
    return [one.session_id for one in plan.placements]


def running(one: Session) -> Session:
    """The session, placed with what it asks for."""
    replica = Replica(rank=0, node="elsewhere", resources=one.spec.resources)
    return replace(one, state=SessionState.RUNNING, attempt=1, replicas=(replica,))


def test_a_higher_class_comes_first() -> None:
    low, normal, high = (ask(2000, one) for one in (Priority.LOW, Priority.NORMAL, Priority.HIGH))
    plan = schedule(cluster(node("a", 4), low, normal, high), NOW)
    assert order(plan) == [high.id, normal.id]
    assert [one.session_id for one in plan.deferrals] == [low.id]


def test_within_a_class_accounts_take_turns() -> None:
    kims = [ask(owner="kim") for _ in range(4)]
    lees = [ask(owner="lee") for _ in range(2)]
    plan = schedule(cluster(node("a", 4), *kims, *lees), NOW)
    assert order(plan) == [kims[0].id, lees[0].id, kims[1].id, lees[1].id]
    assert [one.session_id for one in plan.deferrals] == [kims[2].id, kims[3].id]


def test_who_held_more_lately_comes_later() -> None:
    kims, lees = [ask(owner="kim") for _ in range(2)], [ask(owner="lee") for _ in range(4)]
    holding = [running(ask(owner=one)) for one in ("kim", "lee")]
    snapshot = cluster(node("a", 4), *kims, *lees, *holding)
    plan = schedule(snapshot.apply([PastChanged(lately={"kim": 1.5})]), NOW)
    assert order(plan) == [lees[0].id, lees[1].id, kims[0].id, lees[2].id]
    # What is told anew stands in place of what was told before.
    plan = schedule(snapshot.apply([PastChanged(lately={"kim": 1.5}), PastChanged(lately={})]), NOW)
    assert order(plan) == order(schedule(snapshot, NOW)) != []


def test_what_is_held_now_counts_at_once() -> None:
    """Who just got many comes after one who holds nothing and used less than that of late."""
    kim, lee = ask(owner="kim"), ask(2000, owner="lee")
    snapshot = cluster(node("a", 2), kim, lee, running(ask(50_000, owner="kim")))
    plan = schedule(snapshot.apply([PastChanged(lately={"lee": 49.0})]), NOW)
    assert order(plan) == [lee.id]


def test_the_past_of_a_project_counts_over_its_weight_and_is_told() -> None:
    kims, lees = ask(owner="kim", project="vision"), ask(owner="lee")
    record = Project(name="vision", members=frozenset({"kim"}), weight=4.0)
    holding = [running(ask(owner=one, project="q")) for one in ("kim", "lee")]
    snapshot = cluster(node("a", 1), kims, lees, *holding).apply(
        [ProjectChanged(project=record), PastChanged(lately={"vision": 3.9, "lee": 1.0})]
    )
    index = ClusterIndex.of(snapshot)
    assert order(index.plan(NOW)) == [kims.id]
    waiting = QueueQueries(index).outlook(lees.id, NOW)
    assert waiting is not None
    assert waiting.share == FairShare("lee", held=0.0, lately=1.0, weight=1.0, value=1.0)


def test_whoever_holds_nothing_gets_one_small_session_whatever_they_used() -> None:
    kims, lee = [ask(owner="kim") for _ in range(3)], ask(owner="lee")
    snapshot = cluster(node("a", 2), *kims, lee, running(ask(owner="kim")))
    plan = schedule(snapshot.apply([PastChanged(lately={"lee": 1e6})]), NOW)
    assert order(plan) == [lee.id, kims[0].id]


def test_what_runs_already_counts() -> None:
    kims, lees = [ask(owner="kim") for _ in range(2)], [ask(owner="lee") for _ in range(3)]
    holding = running(ask(2000, owner="kim"))
    snapshot = cluster(node("a", 4), *kims, *lees, holding)
    assert order(schedule(snapshot, NOW))[:3] == [lees[0].id, lees[1].id, kims[0].id]


def test_a_heavier_project_gets_more() -> None:
    projects = [
        ProjectChanged(
            project=Project(name=name, owner="kim", members=frozenset({"kim"}), weight=weight)
        )
        for name, weight in (("vision", 3.0), ("speech", 1.0))
    ]
    asked = [ask(owner="kim", project=name) for _ in range(6) for name in ("vision", "speech")]
    snapshot = cluster(node("a", 8), *asked).apply(projects)
    placed = order(schedule(snapshot, NOW))
    of = {one.id: one.project for one in asked}
    assert [of[one] for one in placed].count("vision") == 6
    assert [of[one] for one in placed[:4]].count("vision") == 3


def test_who_holds_nothing_gets_a_small_one_before_anybody_gets_more() -> None:
    urgent = [ask(priority=Priority.HIGH, owner="lee") for _ in range(3)]
    modest = ask(priority=Priority.NORMAL, owner="kim")
    plan = schedule(cluster(node("a", 2), *urgent, modest), NOW)
    assert order(plan) == [urgent[0].id, modest.id]
    wide = ask(2000, Priority.NORMAL, owner="kim")
    plan = schedule(cluster(node("a", 2), *urgent, wide), NOW)
    assert order(plan) == [urgent[0].id, urgent[1].id]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Priority)),
            st.sampled_from(["kim", "lee", "park"]),
            st.sampled_from([250, 1000, 2000]),
        ),
        min_size=1,
        max_size=15,
    )
)
def test_the_place_of_one_is_its_place_among_all(
    asked: list[tuple[Priority, str, int]],
) -> None:
    full = running(ask(8000, owner="kim"))
    waiting = [ask(gpu, priority, owner=owner) for priority, owner, gpu in asked]
    index = ClusterIndex.of(cluster(full, *waiting))
    put_off = replace(waiting[0], not_before=NOW + 9)
    index.apply([SessionChanged(session=put_off)])
    deferrals = QueueQueries(index).deferrals(NOW)
    assert [one.place for one in deferrals] == list(range(1, len(asked) + 1))
    assert deferrals[-1].session_id == put_off.id
    assert [QueueQueries(index).deferral(one.session_id, NOW) for one in deferrals] == list(
        deferrals
    )


def limited(hours: float, gpu: int = 1000, **facts: Any) -> Session:
    facts.setdefault("created_at", NOW)
    return session(gpu, spec={"time_limit_s": hours * 3600}, **facts)


def test_within_an_account_what_ends_sooner_comes_first() -> None:
    long, short, wide = limited(100), limited(1), limited(1, 4000)
    plan = schedule(cluster(node("a", 4), long, wide, short), NOW)
    assert order(plan) == [short.id, long.id]
    plan = schedule(cluster(node("a", 5), long, wide, short), NOW)
    assert order(plan) == [short.id, wide.id]


def test_who_waited_beyond_patience_comes_before_what_ends_sooner() -> None:
    old = limited(100, created_at=NOW - 2 * MOST_PATIENCE_S)
    young = limited(1)
    assert order(schedule(cluster(node("a", 1), old, young), NOW)) == [old.id]
    old = limited(100, created_at=NOW - LEAST_PATIENCE_S / 2)
    assert order(schedule(cluster(node("a", 1), old, young), NOW)) == [young.id]


def test_what_it_had_so_far_counts_for_what_has_no_limit() -> None:
    had = EndedAttempt(
        number=1,
        cause=Cause.PREEMPTED,
        placed_at=1.0,
        ended_at=2.0,
        gpu_thousandths=1000,
        held_s=100_000.0,
    )
    tried, fresh = session(attempt=1, attempts=(had,)), session()
    assert order(schedule(cluster(node("a", 1), tried, fresh), NOW)) == [fresh.id]


def test_who_ran_until_a_moment_ago_is_due_no_more() -> None:
    """Else whoever is old, and gave way once, would go before all that are expected to need less, for ever."""
    old = ask(4000, created_at=NOW - 2 * MOST_PATIENCE_S)
    new = ask(created_at=NOW - 1)
    ran = EndedAttempt(
        number=1,
        cause=Cause.PREEMPTED,
        placed_at=NOW - 90_000,
        ended_at=NOW - 10,
        gpu_thousandths=4000,
        held_s=89_990.0,
    )
    begun = ask(created_at=NOW - MOST_PATIENCE_S)
    for attempts, first in (((), old), ((ran,), new)):
        index = ClusterIndex.of(cluster(replace(old, attempts=attempts), new, running(begun)))
        index.plan(NOW)
        assert QueueQueries(index).in_order(NOW)[0].id == first.id
