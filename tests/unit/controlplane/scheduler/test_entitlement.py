"""Quotas and budgets: whatever happens, no plan gives a project more than its record says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
    UsedChanged,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Placement, Plan
from controlplane.domain.values import (
    DAY_S,
    GPU_UNITS,
    Budget,
    Project,
    Quota,
    Replica,
    Resources,
    Session,
    Used,
    Visibility,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.entitlement import Claim, claim_of, date_text, gpu_hours, never
from controlplane.scheduler.fit import request_of
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW, places, reason
from tests.unit.controlplane.snapshot import ClusterSnapshot, schedule

HOUR_S = 3600


def project(name: str = "vision", **facts: Any) -> Project:
    facts.setdefault("members", frozenset({"kim", "lee"}))
    return Project(name=name, owner="kim", **facts)


def running(gpu: int = 1000, replicas: int = 1, **facts: Any) -> Session:
    facts = {"project": "vision", "state": SessionState.RUNNING, "attempt": 1, **facts}
    waiting = session(gpu, replicas, **facts)
    resources = replace(
        waiting.spec.resources,
        cpu_thousandths=waiting.spec.resources.cpu_thousandths or 1000,
        memory_bytes=waiting.spec.resources.memory_bytes or 10**9,
    )
    gang = tuple(Replica(rank=rank, node="z", resources=resources) for rank in range(replicas))
    return replace(waiting, replicas=gang)


def wanted(gpu: int = 1000, **facts: Any) -> Session:
    return session(gpu, **{"project": "vision", **facts})


def world(
    *things: Any, records: tuple[Project, ...] = (), used: float | None = None
) -> ClusterSnapshot:
    changes: list[Any] = [ProjectChanged(project=one) for one in records]
    if used is not None:
        units = round(used * GPU_UNITS)
        changes += [
            UsedChanged(used=Used(project=one.name, gpu_units=units, since=0.0, until=30.0 * DAY_S))
            for one in records
        ]
    return cluster(*things).apply(changes)


def test_who_has_no_record_may_hold_anything() -> None:
    mine = wanted(2000, project="kim")
    assert places(schedule(world(node(), mine), NOW)) == {mine.id: ["a"]}


def test_a_quota_is_what_a_project_holds_at_once() -> None:
    there = running(8000, name="kim/mnist/3", owner="kim")
    other = running(7000, owner="lee")
    records = (project(quota=Quota(gpu_thousandths=16_000)),)
    fits, waits = wanted(1000), wanted(1000)
    plan = schedule(world(node(gpus=8), there, other, fits, waits, records=records), NOW)
    assert places(plan) == {fits.id: ["a"]}
    text = "project vision holds 16 of its 16 GPUs; kim/mnist/3 holds 8 of them"
    assert reason(plan, waits) == text


def test_what_is_left_of_a_quota_is_told() -> None:
    there = running(6000)
    waits = wanted(4000, owner="lee")
    records = (project(quota=Quota(gpu_thousandths=8_000)),)
    plan = schedule(world(node(gpus=8), there, waits, records=records), NOW)
    text = "project vision holds 6 of its 8 GPUs, and this asks for 4 GPUs; kim holds 6 of them"
    assert reason(plan, waits) == text


@pytest.mark.parametrize(
    ("theirs", "mine", "is_named"),
    [
        ({"visibility": Visibility.PUBLIC, "owner": "lee"}, {}, True),
        ({"visibility": Visibility.PRIVATE, "owner": "lee"}, {}, False),
        ({"visibility": Visibility.PRIVATE}, {"visibility": Visibility.PUBLIC}, False),
        ({"visibility": Visibility.TEAM, "team": "t"}, {"visibility": Visibility.TEAM, "team": "t"}, True),
        ({"visibility": Visibility.TEAM, "team": "t"}, {"visibility": Visibility.TEAM, "team": "u"}, False),
        ({"visibility": Visibility.TEAM, "team": "t", "owner": "lee"}, {"team": "t"}, False),
    ],
)  # fmt: skip
def test_a_holder_is_named_where_all_who_read_it_see_the_holder(
    theirs: dict[str, Any], mine: dict[str, Any], is_named: bool
) -> None:
    there = running(1000, **theirs)
    waits = wanted(1000, **mine)
    records = (project(quota=Quota(gpu_thousandths=1000)),)
    text = reason(schedule(world(node(), there, waits, records=records), NOW), waits)
    assert (there.name in text) == is_named
    assert f"{there.name if is_named else there.owner} holds 1 of them" in text


def test_each_member_has_a_bound_of_their_own() -> None:
    records = (project(member_quota=Quota(gpu_thousandths=1000)),)
    kims, lees = wanted(1000, owner="kim"), wanted(1000, owner="lee")
    there = running(1000, owner="kim", name="kim/None/7")
    plan = schedule(world(node(), there, kims, lees, records=records), NOW)
    assert places(plan) == {lees.id: ["a"]}
    assert reason(plan, kims) == (
        "kim holds 1 of 1 GPU in project vision; kim/None/7 holds 1 of them"
    )


def test_sessions_cores_and_memory_are_bounded_too() -> None:
    records = (
        project("few", quota=Quota(sessions=1)),
        project("cores", quota=Quota(cpu_thousandths=4000)),
        project("memory", quota=Quota(memory_bytes=4 << 30)),
    )
    there = [running(0, project=one.name, cpu=3000, memory=3 << 30) for one in records]
    waiting = [wanted(0, project=one.name, cpu=2000, memory=5 << 29) for one in records]
    plan = schedule(world(node(), *there, *waiting, records=records), NOW)
    assert not plan.placements
    few, cores, memory = (reason(plan, one) for one in waiting)
    assert few == "project few holds 1 of its 1 session"
    assert cores.startswith("project cores holds 3 of its 4 cores, and this asks for 2 cores")
    assert memory.startswith(
        "project memory holds 3 of its 4 GiB of memory, and this asks for 2.5 GiB"
    )


def test_what_is_larger_than_a_quota_never_starts() -> None:
    records = (project(quota=Quota(gpu_thousandths=1000)),)
    gang = wanted(1000, replicas=2)
    plan = schedule(world(node(), gang, records=records), NOW)
    [deferral] = plan.deferrals
    assert deferral.explanation.reason == "asks for 2 GPUs; project vision may hold 1 GPU at once"
    assert not deferral.explanation.can_ever_fit


def test_an_exhausted_budget_starts_nothing_that_has_a_gpu() -> None:
    budget = Budget(gpu_seconds=100 * HOUR_S, period_days=30, anchor=0.0)
    records = (project(budget=budget),)
    waits, without = wanted(500), wanted(0)
    things = (node(), running(1000), waits, without)
    plan = schedule(world(*things, records=records, used=100 * HOUR_S), NOW)
    assert places(plan) == {without.id: ["a"]}
    text = "project vision has used 100 of 100 GPU-hours until 1970-01-31"
    assert reason(plan, waits) == text
    left = schedule(world(*things, records=records, used=100 * HOUR_S - 0.001), NOW)
    assert places(left).keys() == {waits.id, without.id}


def test_nothing_starts_before_it_is_known_what_was_used() -> None:
    budget = Budget(gpu_seconds=1.0, period_days=1, anchor=0.0)
    waits = wanted()
    plan = schedule(world(node(), waits, records=(project(budget=budget),)), NOW)
    assert reason(plan, waits) == "what project vision has used of its budget is being counted"


def test_who_was_taken_out_of_a_project_starts_nothing_more_in_it() -> None:
    waits = wanted(owner="eve")
    plan = schedule(world(node(), waits, records=(project(),)), NOW)
    assert reason(plan, waits) == "eve is no member of project vision any more"


def test_nothing_starts_in_a_project_that_is_gone() -> None:
    waits = wanted()
    plan = schedule(world(node(), waits), NOW)
    assert reason(plan, waits) == "there is no project vision any more"


def test_more_is_started_as_soon_as_a_record_allows_it() -> None:
    waits = wanted(2000)
    small = project(quota=Quota(gpu_thousandths=1000))
    index = ClusterIndex.of(world(node(), waits, records=(small,)))
    assert not index.plan(NOW).placements
    assert not index.is_due(NOW)
    index.apply([ProjectChanged(project=project(quota=Quota(gpu_thousandths=2000)))])
    assert index.is_due(NOW)
    assert len(index.plan(NOW).placements) == 1


def test_what_ends_gives_its_share_of_the_quota_back() -> None:
    records = (project(quota=Quota(sessions=1)),)
    there, waits = running(), wanted()
    index = ClusterIndex.of(world(node(), there, waits, records=records))
    assert not index.plan(NOW).placements
    ended = replace(there, state=SessionState.FINALIZING)
    index.apply([SessionChanged(session=ended)])
    assert index.is_due(NOW)
    assert [one.session_id for one in index.plan(NOW).placements] == [waits.id]


def test_a_session_that_goes_on_is_no_reason_to_plan() -> None:
    records = (project(quota=Quota(sessions=1)),)
    there, waits = running(state=SessionState.PREPARING), wanted()
    index = ClusterIndex.of(world(node(), there, waits, records=records))
    index.plan(NOW)
    index.apply([SessionChanged(session=replace(there, state=SessionState.RUNNING))])
    assert not index.is_due(NOW)
    assert not index.plan(NOW).placements


def test_what_was_not_committed_holds_nothing() -> None:
    records = (project(quota=Quota(sessions=1)),)
    first, second = wanted(), wanted()
    index = ClusterIndex.of(world(node(), first, second, records=records))
    plan = index.plan(NOW)
    assert [one.session_id for one in plan.placements] == [first.id]
    index.settle(plan, {first.id})
    again = index.plan(NOW)
    assert [one.session_id for one in again.placements] == [first.id]
    index.settle(again, {first.id})
    index.apply([SessionRemoved(session_id=first.id)])
    assert [one.session_id for one in index.plan(NOW).placements] == [second.id]


def test_periods_follow_one_another_from_the_anchor() -> None:
    budget = Budget(gpu_seconds=1.0, period_days=2, anchor=DAY_S)
    assert budget.period(DAY_S) == (DAY_S, 3 * DAY_S)
    assert budget.period(3 * DAY_S - 1) == (DAY_S, 3 * DAY_S)
    assert budget.period(3 * DAY_S) == (3 * DAY_S, 5 * DAY_S)
    assert budget.period(0.0) == (-DAY_S, DAY_S)
    assert project(budget=budget, created_at=2.0 * DAY_S).period(DAY_S) == (2 * DAY_S, 3 * DAY_S)


def test_words() -> None:
    assert [gpu_hours(one) for one in (1800, 3600, 1234.5 * HOUR_S)] == ["0.5", "1", "1,234.5"]
    assert date_text(DAY_S) == "1970-01-02"
    assert date_text(DAY_S + 60) == "1970-01-02 00:01 UTC"


@given(st.integers(0, 4 * 10**9))
def test_dates_are_those_of_the_calendar(seconds: int) -> None:
    at = datetime.fromtimestamp(seconds // 60 * 60, UTC)
    assert date_text(seconds) == (f"{at:%Y-%m-%d}" if seconds % DAY_S == 0 else f"{at:%Y-%m-%d %H:%M} UTC")  # fmt: skip


QUOTAS = st.builds(
    Quota,
    gpu_thousandths=st.sampled_from([0, 500, 1000, 2500, 6000]),
    cpu_thousandths=st.sampled_from([0, 0, 4000, 9000]),
    memory_bytes=st.sampled_from([0, 0, 30 * 10**9]),
    sessions=st.sampled_from([0, 0, 1, 3]),
)
BUDGETS = st.sampled_from([None, Budget(gpu_seconds=10.0, period_days=1, anchor=0.0)])


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_no_plan_gives_a_project_more_than_its_record_says(data: st.DataObject) -> None:
    names = ["p", "q"]
    records = tuple(
        project(name, quota=data.draw(QUOTAS), member_quota=data.draw(QUOTAS), budget=data.draw(BUDGETS))
        for name in names
    )  # fmt: skip
    sizes, owners = st.sampled_from([0, 250, 500, 1000, 2000]), st.sampled_from(["kim", "lee"])
    used = data.draw(st.sampled_from([None, 0.0, 9.0, 10.0]))
    nodes = [node(f"n{number}", 8, cpu=64_000, memory=10**12) for number in range(3)]
    index = ClusterIndex.of(world(*nodes, records=records, used=used))
    sessions: dict[str, Session] = {}
    held: dict[str, Session] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        step = data.draw(st.sampled_from(["submit", "submit", "submit", "plan", "end"]))
        if step == "submit":
            new = wanted(
                data.draw(sizes),
                replicas=data.draw(st.integers(1, 3)),
                owner=data.draw(owners),
                project=data.draw(st.sampled_from(names)),
                cpu=data.draw(st.sampled_from([0, 1000])),
                id=f"s{len(sessions):04}",
                created_at=float(len(sessions)),
            )
            sessions[new.id] = new
            index.apply([SessionChanged(session=new)])
        elif step == "end" and held:
            gone = held.pop(data.draw(st.sampled_from(list(held))))
            index.apply([SessionRemoved(session_id=gone.id)])
        else:
            plan = index.plan(NOW)
            chosen = [one.session_id for one in plan.placements]
            dropped = data.draw(st.sets(st.sampled_from(chosen))) if chosen else set()
            for placement in plan.placements:
                check_budget(sessions[placement.session_id], records, used)
                if placement.session_id not in dropped:
                    held[placement.session_id] = placed(sessions[placement.session_id], placement)
            check_quotas(plan, sessions, held, records)
            index.apply(SessionChanged(session=one) for one in held.values())
            index.settle(plan, dropped)
            check_explained(index, records)


def placed(waiting: Session, placement: Placement) -> Session:
    gang = tuple(
        Replica(rank=one.rank, node=one.node, resources=one.resources) for one in placement.replicas
    )
    return replace(waiting, state=SessionState.PREPARING, attempt=1, replicas=gang)


def check_quotas(
    plan: Plan,
    sessions: dict[str, Session],
    held: dict[str, Session],
    records: tuple[Project, ...],
) -> None:
    """Of what is held with all that was just planned, the dropped, too."""
    there = dict(held)
    for placement in plan.placements:
        there[placement.session_id] = placed(sessions[placement.session_id], placement)
    for one in records:
        mine = [session for session in there.values() if session.project == one.name]
        check_within(mine, one.quota)
        for owner in ("kim", "lee"):
            check_within([session for session in mine if session.owner == owner], one.member_quota)


def check_within(sessions: list[Session], quota: Quota) -> None:
    total = Counter[str]()
    for one in sessions:
        total["sessions"] += 1
        for replica in one.replicas:
            for measure in ("gpu_thousandths", "cpu_thousandths", "memory_bytes"):
                total[measure] += getattr(replica.resources, measure)
    for measure, count in total.items():
        bound = getattr(quota, measure)
        assert not bound or count <= bound, (measure, count, bound)


def check_budget(placed_one: Session, records: tuple[Project, ...], used: float | None) -> None:
    budget = next(one.budget for one in records if one.name == placed_one.project)
    if budget is not None and placed_one.spec.resources.gpu_thousandths:
        assert used is not None
        assert used < budget.gpu_seconds


def check_explained(index: ClusterIndex, records: tuple[Project, ...]) -> None:
    """Who waits for a quota is told so: the cluster itself has room for everybody."""
    for deferral in QueueQueries(index).deferrals(NOW):
        waiting = next(one for one in index.cluster.queued() if one.id == deferral.session_id)
        one = next(one for one in records if one.name == waiting.project)
        claim = claim_of(request_of(waiting.owner, waiting.spec))
        assert deferral.explanation.can_ever_fit == (not never(one, claim))


def test_a_record_that_comes_late_counts_what_runs() -> None:
    there, waits = running(project="kim"), wanted(project="kim")
    index = ClusterIndex.of(world(node(), there, waits))
    records = project("kim", quota=Quota(sessions=1), member_quota=Quota(sessions=1))
    index.apply([ProjectChanged(project=records)])
    assert not index.plan(NOW).placements
    index.apply([ProjectRemoved(name="kim")])
    assert len(index.plan(NOW).placements) == 1


def test_a_claim_is_the_most_that_a_session_may_get() -> None:
    asked = session(1000, replicas=2).spec
    assert claim_of(request_of("kim", asked)) == Claim(2000, 4000, 48 * 10**9, 1)
    named = replace(asked, resources=Resources(cpu_thousandths=500, memory_bytes=7))
    assert claim_of(request_of("kim", named)) == Claim(0, 1000, 14, 1)
