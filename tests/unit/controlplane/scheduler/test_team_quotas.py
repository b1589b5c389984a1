"""Quotas of competitions' teams: whatever happens, no plan gives a team more than its competition says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    Change,
    ProjectChanged,
    SessionChanged,
    SessionRemoved,
    TeamQuotaChanged,
    TeamQuotaRemoved,
)
from controlplane.domain.plan import Plan
from controlplane.domain.values import Project, Quota, Session, TeamQuota, Visibility
from controlplane.scheduler import ClusterIndex, QueueQueries
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.test_entitlement import placed, running
from tests.unit.controlplane.scheduler.test_schedule import NOW, places, reason
from tests.unit.controlplane.snapshot import ClusterSnapshot, schedule


def quota(gpus: float = 4, id: str = "c1", **facts: Any) -> TeamQuota:  # noqa: A002
    values: dict[str, Any] = {"competition": "reviews", "gpu_thousandths": round(gpus * 1000)}
    return TeamQuota(competition_id=id, **{**values, **facts})


def held(gpu: int = 1000, *teams: str, **facts: Any) -> Session:
    return running(gpu, project="", competition_teams=teams or ("c1/alpha",), **facts)


def wanted(gpu: int = 1000, *teams: str, **facts: Any) -> Session:
    return session(gpu, competition_teams=teams or ("c1/alpha",), **facts)


def world(*things: Any, quotas: tuple[TeamQuota, ...] = (quota(),)) -> ClusterSnapshot:
    return cluster(*things).apply([TeamQuotaChanged(quota=one) for one in quotas])


def test_the_sessions_of_one_team_together_hold_so_much() -> None:
    there = held(2000, name="lee/reviews/3", owner="lee", visibility=Visibility.PUBLIC)
    also = held(2000, owner="kim")
    waits, others, nobodys = wanted(owner="park"), wanted(1000, "c1/beta"), session(1000)
    plan = schedule(world(node(gpus=8), there, also, waits, others, nobodys), NOW)
    assert places(plan).keys() == {others.id, nobodys.id}
    text = reason(plan, waits)
    assert text.startswith("team alpha holds 4 of 4 GPUs of competition reviews; ")
    assert text.endswith(" holds 2 of them")


def test_what_is_left_of_a_quota_is_told() -> None:
    waits = wanted(3000)
    plan = schedule(world(node(gpus=8), held(500, owner="lee"), held(2000, owner="lee"), waits), NOW)  # fmt: skip
    assert reason(plan, waits) == (
        "team alpha holds 2.5 of 4 GPUs of competition reviews, and this asks for 3 GPUs;"
        " lee holds 2 of them"
    )


def test_who_holds_a_quota_is_said_with_until_when() -> None:
    until = replace(held(3000).spec, time_limit_s=100.0)
    there, waits = replace(held(3000), spec=until, started_at=NOW), wanted(2000)
    index = ClusterIndex.of(world(node(gpus=8), there, waits))
    index.plan(NOW)
    outlook = QueueQueries(index).outlook(waits.id, NOW)
    assert outlook is not None
    assert [(one.session, one.held) for one in outlook.holders] == [(there, 3000)]
    assert outlook.expected_start == outlook.holders[0].until > NOW


def test_a_project_and_a_team_both_let_a_session_start() -> None:
    until = replace(held(4000).spec, time_limit_s=100.0)
    there = replace(held(4000, owner="lee"), spec=until, started_at=NOW)
    endless, waits = running(1000, project="kim"), wanted(1000, project="kim")
    own = Project(name="kim", owner="kim", members=frozenset({"kim"}), quota=Quota(sessions=1))
    snapshot = world(node(gpus=8), there, endless, waits).apply([ProjectChanged(project=own)])
    index = ClusterIndex.of(snapshot)
    assert not index.plan(NOW).placements
    outlook = QueueQueries(index).outlook(waits.id, NOW)
    assert outlook is not None
    assert outlook.explanation.reason.startswith("project kim holds 1 of its 1 session")
    assert not outlook.expected_start
    index.apply([SessionRemoved(session_id=endless.id)])
    assert not index.plan(NOW).placements
    outlook = QueueQueries(index).outlook(waits.id, NOW)
    assert outlook is not None
    assert outlook.explanation.reason.startswith("team alpha holds 4 of 4 GPUs")
    assert outlook.expected_start > NOW


def test_what_is_larger_than_a_quota_never_starts() -> None:
    gang = wanted(1000, replicas=5)
    plan = schedule(world(node(gpus=8), gang), NOW)
    [deferral] = plan.deferrals
    text = "asks for 5 GPUs; a team of competition reviews may hold 4 GPUs at once"
    assert deferral.explanation.reason == text
    assert not deferral.explanation.can_ever_fit


def test_no_gpu_needs_no_quota_and_no_record_bounds_nothing() -> None:
    there, without, unlimited, over = (
        held(4000),
        wanted(0),
        wanted(1000, "c2/alpha"),
        wanted(1000, "c3/alpha"),
    )
    quotas = (quota(), quota(0, "c2"))
    plan = schedule(world(node(gpus=8), there, without, unlimited, over, quotas=quotas), NOW)
    assert places(plan).keys() == {without.id, unlimited.id, over.id}


def test_each_of_several_competitions_bounds_a_session() -> None:
    quotas = (quota(4, "c1"), quota(1, "c2", competition="digits"))
    there, waits = held(1000, "c2/x"), wanted(1000, "c1/alpha", "c2/x")
    plan = schedule(world(node(gpus=8), there, waits, quotas=quotas), NOW)
    assert reason(plan, waits).startswith("team x holds 1 of 1 GPU of competition digits")


def test_teams_that_merged_count_together_and_what_runs_goes_on() -> None:
    both = (held(3000, "c1/alpha"), held(3000, "c1/beta"))
    mine, theirs = wanted(1000, "c1/alpha"), wanted(1000, "c1/beta")
    index = ClusterIndex.of(world(node(gpus=16), *both, mine))
    index.apply([TeamQuotaChanged(quota=quota(merged={"alpha": "both", "beta": "both"}))])
    index.apply([SessionChanged(session=theirs)])
    assert not index.plan(NOW).placements
    why = QueueQueries(index).explanation(mine.id, NOW)
    assert why is not None
    assert why.reason.startswith("team both holds 6 of 4 GPUs of competition reviews; ")
    for one in both:
        index.apply([SessionRemoved(session_id=one.id)])
    assert {one.session_id for one in index.plan(NOW).placements} == {mine.id, theirs.id}


def test_another_limit_acts_on_what_waits_at_once() -> None:
    there, waits = held(1000), wanted(1000)
    index = ClusterIndex.of(world(node(gpus=8), there, waits, quotas=(quota(1),)))
    assert not index.plan(NOW).placements
    assert not index.is_due(NOW)
    index.apply([TeamQuotaChanged(quota=quota(2))])
    assert index.is_due(NOW)
    plan = index.plan(NOW)
    assert [one.session_id for one in plan.placements] == [waits.id]
    index.settle(plan, {waits.id})
    index.apply([TeamQuotaChanged(quota=quota(1))])
    assert not index.plan(NOW).placements
    index.apply([TeamQuotaRemoved(competition_id="c1")])
    assert [one.session_id for one in index.plan(NOW).placements] == [waits.id]


def test_what_ends_gives_its_part_back_and_so_does_what_was_not_committed() -> None:
    there, first, second = held(4000), wanted(4000), wanted(4000)
    index = ClusterIndex.of(world(node(gpus=8), there, first, second))
    assert not index.plan(NOW).placements
    index.apply([SessionRemoved(session_id=there.id)])
    assert index.is_due(NOW)
    plan = index.plan(NOW)
    assert [one.session_id for one in plan.placements] == [first.id]
    index.settle(plan, {first.id})
    assert [one.session_id for one in index.plan(NOW).placements] == [first.id]


def test_a_session_counts_for_a_team_that_its_user_joined_meanwhile() -> None:
    there, waits = replace(held(4000), competition_teams=()), wanted(1000)
    index = ClusterIndex.of(world(node(gpus=8), there, waits))
    index.apply([SessionChanged(session=replace(there, competition_teams=("c1/alpha",)))])
    assert not index.plan(NOW).placements


def test_what_if_and_no_queue_go_by_it_and_change_nothing() -> None:
    there, waits = held(3000), wanted(2000)
    index = ClusterIndex.of(world(node(gpus=8), there, waits))
    assert not index.plan(NOW).placements
    queries = QueueQueries(index)
    smaller = replace(waits.spec, resources=replace(waits.spec.resources, gpu_thousandths=1000))
    supposed = queries.what_if(waits.id, smaller, NOW)
    assert supposed is not None
    assert supposed.placement
    assert queries.would_start(wanted(2000), NOW).deferral
    assert queries.would_start(wanted(1000), NOW).placement
    assert not index.plan(NOW).placements


LIMITS = st.sampled_from([0, 500, 1000, 2500, 4000])
TEAMS = st.sampled_from([(), ("c1/a",), ("c1/b",), ("c1/c",), ("c2/a",), ("c1/a", "c2/b")])
MERGED: tuple[Mapping[str, str], ...] = ({}, {"a": "b"}, {"a": "d", "b": "d"})


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_no_plan_gives_a_team_more_than_its_competition_says(data: st.DataObject) -> None:
    nodes = [node(f"n{number}", 64, cpu=640_000, memory=10**13) for number in range(3)]
    index = ClusterIndex.of(world(*nodes, quotas=()))
    quotas: dict[str, TeamQuota] = {}
    sessions: dict[str, Session] = {}
    there: dict[str, Session] = {}
    steps = ["submit", "submit", "submit", "plan", "plan", "end", "quota", "over"]
    for _ in range(data.draw(st.integers(1, 25))):
        changes: list[Change] = []
        match data.draw(st.sampled_from(steps)):
            case "submit":
                new = wanted(
                    data.draw(st.sampled_from([0, 250, 500, 1000, 2000])),
                    replicas=data.draw(st.integers(1, 3)),
                    owner=data.draw(st.sampled_from(["kim", "lee"])),
                    id=f"s{len(sessions):04}",
                    created_at=float(len(sessions)),
                )
                new = replace(new, competition_teams=data.draw(TEAMS))
                sessions[new.id] = new
                changes = [SessionChanged(session=new)]
            case "end" if there:
                changes = [SessionRemoved(session_id=there.popitem()[0])]
            case "quota":
                one = quota(0, data.draw(st.sampled_from(["c1", "c2"])))
                one = replace(
                    one,
                    gpu_thousandths=data.draw(LIMITS),
                    merged=data.draw(st.sampled_from(MERGED)),
                )
                quotas[one.competition_id] = one
                changes = [TeamQuotaChanged(quota=one)]
            case "over" if quotas:
                changes = [TeamQuotaRemoved(competition_id=quotas.popitem()[0])]
            case _:
                before = dict(there)
                plan = index.plan(NOW)
                chosen = [one.session_id for one in plan.placements]
                dropped = data.draw(st.sets(st.sampled_from(chosen))) if chosen else set()
                check_quotas(plan, sessions, before, quotas)
                for placement in plan.placements:
                    if placement.session_id not in dropped:
                        one_placed = placed(sessions[placement.session_id], placement)
                        there[placement.session_id] = one_placed
                index.apply([SessionChanged(session=one) for one in there.values()])
                index.settle(plan, dropped)
                check_explained(index)
        index.apply(changes)


def totals(sessions: Mapping[str, Session], quotas: Mapping[str, TeamQuota]) -> Counter[str]:
    """Thousandths of GPUs by team, as mergers are now."""
    found = Counter[str]()
    for one in sessions.values():
        keys = set()
        for team in one.competition_teams:
            competition_id, _, name = team.partition("/")
            merged = quotas[competition_id].merged if competition_id in quotas else {}
            keys.add(f"{competition_id}/{merged.get(name, name)}")
        for key in keys:
            found[key] += sum(replica.resources.gpu_thousandths for replica in one.replicas)
    return found


def check_quotas(
    plan: Plan,
    sessions: Mapping[str, Session],
    before: Mapping[str, Session],
    quotas: Mapping[str, TeamQuota],
) -> None:
    """No team above its limit has got more: it may have been above it, by a lower limit or a merger."""
    after = dict(before)
    for placement in plan.placements:
        after[placement.session_id] = placed(sessions[placement.session_id], placement)
    had = totals(before, quotas)
    for key, held_now in totals(after, quotas).items():
        limit = quotas[key[:2]].gpu_thousandths if key[:2] in quotas else 0
        assert not limit or held_now <= max(limit, had[key]), key


def check_explained(index: ClusterIndex) -> None:
    """The cluster has room for everybody: who waits was just dropped, or does so for a quota and reads of which."""
    for deferral in QueueQueries(index).deferrals(NOW):
        text = deferral.explanation.reason
        assert "of competition reviews" in text or "room for" in text, text
        assert deferral.explanation.can_ever_fit == (not text.startswith("asks for "))
