"""The index that is kept by changes is the one that a look at everything would give."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    PastChanged,
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
    StockChanged,
    TeamQuotaChanged,
    TeamQuotaRemoved,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Plan
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    DatasetVersion,
    Drain,
    Priority,
    Project,
    Replica,
    Session,
    Stock,
    TeamQuota,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.explain import UNREADY_WORDS
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, held, node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW
from tests.unit.controlplane.snapshot import ClusterSnapshot, schedule

HOUR_S = 3600.0
SIZES = [0, 250, 500, 1000, 1000, 2000, 4000]


class World:
    """A cluster in which things happen, told to an index as they do."""

    def __init__(self) -> None:
        self.snapshot = ClusterSnapshot()
        self.index = ClusterIndex()
        self.sessions: dict[str, Session] = {}
        self.numbers = itertools.count(1)

    def happen(self, *changes: Change) -> None:
        self.snapshot = self.snapshot.apply(changes)
        self.index.apply(changes)

    def submit(
        self,
        gpu: int,
        replicas: int,
        owner: str,
        *digests: str,
        priority: Priority = Priority.NORMAL,
        teams: tuple[str, ...] = (),
    ) -> None:
        number = next(self.numbers)
        datasets = tuple(DatasetVersion(owner="l", name=d, version=1, digest=d) for d in digests)
        spec = {"datasets": datasets, "priority": priority}
        facts = {"id": f"s{number:04}", "created_at": float(number), "spec": spec}
        new = session(gpu, replicas, owner=owner, competition_teams=teams, **facts)
        self.sessions[new.id] = new
        self.happen(SessionChanged(session=new))

    def commit(self, plan: Plan, dropped: Iterable[str]) -> list[Change]:
        """What the store tells once the placements of a plan are written, but for some."""
        changes: list[Change] = []
        held = dict(self.snapshot.allocations)
        for placement in plan.placements:
            if placement.session_id in dropped:
                continue
            for replica in placement.replicas:
                before = held.get(replica.node, Allocation(node=replica.node))
                added = AllocatedReplica(
                    session_id=placement.session_id,
                    attempt=1,
                    rank=replica.rank,
                    devices=replica.devices,
                    cpu_thousandths=replica.resources.cpu_thousandths,
                    memory_bytes=replica.resources.memory_bytes,
                )
                held[replica.node] = replace(before, replicas=(*before.replicas, added))
            gang = [
                Replica(rank=one.rank, node=one.node, resources=one.resources)
                for one in placement.replicas
            ]
            known = self.sessions[placement.session_id]
            placed = replace(known, state=SessionState.PREPARING, attempt=1, replicas=tuple(gang))
            changes.append(SessionChanged(session=placed))
        changes += [AllocationChanged(allocation=one) for one in held.values()]
        return changes

    def end(self, session_id: str) -> None:
        for allocation in self.snapshot.allocations.values():
            left = tuple(one for one in allocation.replicas if one.session_id != session_id)
            if len(left) < len(allocation.replicas):
                self.happen(AllocationChanged(allocation=replace(allocation, replicas=left)))
        self.happen(SessionRemoved(session_id=session_id))


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_an_index_kept_by_changes_plans_like_a_fresh_one(data: st.DataObject) -> None:
    world = World()
    names = [f"n{i}" for i in range(data.draw(st.integers(1, 5)))]
    for name in names:
        world.happen(NodeChanged(node=node(name, data.draw(st.sampled_from([1, 2, 4, 8])))))
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(
            st.sampled_from(
                [
                    "submit",
                    "submit",
                    "submit",
                    "plan",
                    "plan",
                    "end",
                    "node",
                    "contact",
                    "past",
                    "project",
                    "quota",
                    "stock",
                ]
            )
        )
        if step == "submit":
            gpu, count = data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from([1, 1, 2, 3]))
            owner = data.draw(st.sampled_from(["kim", "lee"]))
            priority = data.draw(st.sampled_from(Priority))
            digests = data.draw(st.sets(st.sampled_from("de")))
            teams = data.draw(st.sampled_from([(), (), ("c1/a",), ("c1/b",), ("c1/a", "c2/a")]))
            world.submit(gpu, count, owner, *digests, priority=priority, teams=teams)
        elif step == "quota":
            competition_id = data.draw(st.sampled_from(["c1", "c2"]))
            if data.draw(st.booleans()):
                quota = TeamQuota(
                    competition_id=competition_id,
                    competition="cup",
                    gpu_thousandths=data.draw(st.sampled_from([0, 500, 1000, 3000])),
                    merged=data.draw(st.sampled_from([{}, {"a": "b"}])),
                )
                world.happen(TeamQuotaChanged(quota=quota))
            else:
                world.happen(TeamQuotaRemoved(competition_id=competition_id))
        elif step == "project":
            name = data.draw(st.sampled_from(["kim", "lee"]))
            if data.draw(st.booleans()):
                highest = data.draw(st.sampled_from(Priority))
                made = Project(name=name, members=frozenset({name}), most_priority=highest)
                world.happen(ProjectChanged(project=made))
            else:
                world.happen(ProjectRemoved(name=name))
        elif step == "plan":
            fresh = schedule(world.snapshot, NOW)
            # Nodes are held by plans alone, which the second index has not made.
            holder = world.index.cluster.holding.holder
            kept, anew = (
                [one for one in QueueQueries(index).deferrals(NOW) if one.session_id != holder]
                for index in (world.index, ClusterIndex.of(world.snapshot))
            )
            assert kept == anew
            plan = world.index.plan(NOW)
            assert plan.placements == fresh.placements
            assert QueueQueries(world.index).deferrals(NOW) == fresh.deferrals
            chosen = [one.session_id for one in plan.placements]
            dropped = data.draw(st.sets(st.sampled_from(chosen))) if chosen else set()
            world.happen(*world.commit(plan, dropped))
            # Nobody gives way here, and what is kept for those who would start by that is in no snapshot.
            world.index.settle(plan, dropped, {one.session_id for one in plan.preemptions})
            for session_id in list(world.index.cluster.kept):
                world.index.cluster.let_go(session_id)
        elif step == "end":
            running = sorted(
                {r.session_id for a in world.snapshot.allocations.values() for r in a.replicas}
            )
            if running:
                world.end(data.draw(st.sampled_from(running)))
        elif step == "past":
            lately = data.draw(
                st.dictionaries(st.sampled_from(["kim", "lee"]), st.sampled_from([0.5, 1.0, 9.0]))
            )
            world.happen(PastChanged(lately=lately))
        elif step == "node":
            name = data.draw(st.sampled_from(names))
            known = world.snapshot.nodes.get(name)
            if known is None:
                world.happen(NodeChanged(node=node(name, 2)))
            elif data.draw(st.booleans()):
                drain = None if known.node.drain else Drain(asked_by="root")
                world.happen(NodeChanged(node=replace(known.node, drain=drain)))
            else:
                world.happen(NodeRemoved(name=name))
        elif step == "stock":
            things = data.draw(st.dictionaries(st.sampled_from("de"), st.sampled_from([7, 9])))
            stock = Stock(things=things, bytes_per_s=data.draw(st.sampled_from([0.0, 5.0])))
            world.happen(StockChanged(name=data.draw(st.sampled_from(names)), stock=stock))
        else:
            name, is_silent = data.draw(st.sampled_from(names)), data.draw(st.booleans())
            world.happen(ContactChanged(name=name, is_silent=is_silent))
    assert world.index.plan(NOW).placements == schedule(world.snapshot, NOW).placements


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_plans_that_are_cut_short_come_to_what_one_whole_plan_does(data: st.DataObject) -> None:
    world = World()
    for i in range(data.draw(st.integers(1, 5))):
        world.happen(NodeChanged(node=node(f"n{i}", data.draw(st.sampled_from([1, 2, 4, 8])))))
    for number in range(data.draw(st.integers(1, 20))):
        new = session(
            data.draw(st.sampled_from(SIZES)),
            data.draw(st.sampled_from([1, 1, 2])),
            owner=data.draw(st.sampled_from(["kim", "lee", "park"])),
            spec={
                "priority": data.draw(st.sampled_from(Priority)),
                "time_limit_s": data.draw(st.sampled_from([600.0, 24 * HOUR_S])),
            },
            id=f"s{number:04}",
            # Some are due, and fewer wait as plans go on: patience would shrink.
            created_at=NOW - data.draw(st.sampled_from([0.0, 3 * HOUR_S, 5 * HOUR_S, 9 * HOUR_S])),
        )
        world.sessions[new.id] = new
        world.happen(SessionChanged(session=new))
    whole, placed = ClusterIndex.of(world.snapshot).plan(NOW), []
    most = data.draw(st.integers(1, 3))
    for later in itertools.count():
        plan = world.index.plan(NOW + later * HOUR_S, most)
        assert len(plan.placements) <= most
        placed += plan.placements
        world.happen(*world.commit(plan, ()))
        world.index.settle(plan, ())
        if not world.index.is_due(NOW + later * HOUR_S):
            break
    assert tuple(placed) == whole.placements


def test_what_comes_between_two_parts_of_a_plan_is_looked_at() -> None:
    index = ClusterIndex.of(cluster(node("a", 2), session(1000, id="a"), session(1000, id="b")))
    first = index.plan(NOW, 1)
    assert [one.session_id for one in first.placements] == ["a"]
    index.settle(first, ())
    assert index.is_due(NOW)
    index.apply([SessionChanged(session=session(1000, id="c", spec={"priority": Priority.HIGH}))])
    assert [one.session_id for one in index.plan(NOW, 1).placements] == ["c"]


def test_who_was_put_off_waits_until_its_time_comes() -> None:
    late = session(1000, id="late", not_before=NOW + 20)
    index = ClusterIndex.of(cluster(node("a", 1), late))
    assert not index.plan(NOW).placements
    assert index.due() == NOW + 20
    assert not index.plan(NOW + 19).placements
    why = QueueQueries(index).explanation(late.id, NOW + 10)
    assert why is not None
    assert "the next one begins in 10 s" in why.reason
    # What is heard of it meanwhile changes nothing, nor does asking.
    index.apply([SessionChanged(session=replace(late, memo="changed"))])
    assert QueueQueries(index).would_start(session(1000), NOW + 19).placement
    assert index.due() == NOW + 20
    assert [one.session_id for one in index.plan(NOW + 20).placements] == [late.id]


def test_nobody_is_put_off_until_a_clock_that_was_wrong_comes_round_again() -> None:
    late = session(1000, id="late", not_before=NOW + 20)
    index = ClusterIndex.of(cluster(node("a", 1), late))
    assert not index.plan(NOW).placements
    before = NOW - 9 * HOUR_S
    assert index.is_due(before)
    assert [one.session_id for one in index.plan(before).placements] == [late.id]
    assert not index.is_due(before)


def test_what_was_not_committed_waits_again_and_its_room_is_free() -> None:
    one, two = session(2000), session(2000)
    index = ClusterIndex.of(cluster(node("a"), one, two))
    plan = index.plan(NOW)
    assert [placed.session_id for placed in plan.placements] == [one.id]
    index.settle(plan, {one.id})
    assert index.is_due(NOW)
    assert index.plan(NOW).placements == plan.placements


def test_who_cannot_start_yet_is_passed_over_until_then() -> None:
    first, second = session(2000), session(2000)
    index = ClusterIndex.of(cluster(node("a"), first, second))
    queries = QueueQueries(index)
    index.settle(index.plan(NOW), {first.id}, put_off={first.id: NOW + 5, "gone": NOW + 5})
    assert queries.would_start(first, NOW).placement, "asking gives back that it was put off"
    assert queries.explanation(first.id, NOW).reason == UNREADY_WORDS
    plan = index.plan(NOW)
    assert [placed.session_id for placed in plan.placements] == [second.id]
    index.settle(plan, {second.id})
    assert index.due() == NOW + 5
    assert [placed.session_id for placed in index.plan(NOW + 5).placements] == [first.id]


def test_one_that_was_stopped_while_its_placement_was_written_does_not_come_back() -> None:
    one = session(2000)
    index = ClusterIndex.of(cluster(node("a"), one))
    plan = index.plan(NOW)
    index.apply([SessionRemoved(session_id=one.id)])
    index.settle(plan, {one.id})
    assert not list(index.cluster.queued())
    two = session(2000)
    index.apply([SessionChanged(session=two)])
    assert [placed.session_id for placed in index.plan(NOW).placements] == [two.id]


def test_a_placement_that_ended_before_it_was_told_of_leaves_its_room() -> None:
    one, two = session(2000), session(2000)
    index = ClusterIndex.of(cluster(node("a"), one, two))
    plan = index.plan(NOW)
    ended = replace(one, state=SessionState.FAILED, attempt=1)
    index.apply([AllocationChanged(allocation=Allocation(node="a")), SessionChanged(session=ended)])
    index.settle(plan, set())
    assert [placed.session_id for placed in index.plan(NOW).placements] == [two.id]


@pytest.mark.parametrize("members", [frozenset[str](), frozenset({"kim"})])
def test_nothing_new_is_no_reason_to_plan(members: frozenset[str]) -> None:
    named = {"project": "p"} if members else {}
    one, two = session(2000, **named), session(2000, **named)
    index = ClusterIndex.of(cluster(node("a"), one, two))
    if members:
        index.apply([ProjectChanged(project=Project(name="p", members=members))])
    plan = index.plan(NOW)
    [replica] = plan.placements[0].replicas
    written = AllocatedReplica(
        session_id=one.id,
        attempt=1,
        rank=0,
        devices=replica.devices,
        cpu_thousandths=replica.resources.cpu_thousandths,
        memory_bytes=replica.resources.memory_bytes,
    )
    running = replace(
        one,
        state=SessionState.PREPARING,
        attempt=1,
        replicas=(Replica(rank=0, node="a", resources=replica.resources),),
    )
    allocation = Allocation(node="a", replicas=(written,))
    index.apply([AllocationChanged(allocation=allocation), SessionChanged(session=running)])
    index.settle(plan, set())
    assert not index.is_due(NOW)
    index.apply([AllocationChanged(allocation=Allocation(node="a"))])
    assert index.is_due(NOW)


@pytest.mark.parametrize("gpu", [1000, 500])
def test_changes_beyond_what_is_remembered_are_looked_up_anew(gpu: int) -> None:
    world = World()
    world.happen(*[NodeChanged(node=node(f"n{i}", 2)) for i in range(2)])
    world.submit(gpu, 1, "kim")
    world.index.plan(NOW)
    for turn in range(3000):
        world.happen(ContactChanged(name="n0", is_silent=turn % 2 == 0))
    world.submit(gpu, 1, "kim")
    assert world.index.plan(NOW).placements


def test_what_is_asked_for_often_keeps_its_room() -> None:
    """Best fit alone would break the node that holds one of four GPUs exactly."""
    index = ClusterIndex.of(cluster(node("x", 4), node("y", 5)))
    for _ in range(40):
        usual = session(4000)
        index.apply([SessionChanged(session=usual), SessionRemoved(session_id=usual.id)])
    index.apply([SessionChanged(session=session(1000))])
    [placement] = index.plan(NOW).placements
    assert [replica.node for replica in placement.replicas] == ["y"]


def test_a_share_comes_from_the_device_that_leaves_most_of_use() -> None:
    """Halves are asked for: a quarter leaves a device of 700 with none, and the quarters where they are."""
    shares = (("a-0", 300), ("a-1", 250))
    index = ClusterIndex.of(cluster(node("a", 3, cpu=64_000), held("a", *shares)))
    for _ in range(40):
        usual = session(500)
        index.apply([SessionChanged(session=usual), SessionRemoved(session_id=usual.id)])
    index.apply([SessionChanged(session=session(250))])
    [placement] = index.plan(NOW).placements
    assert placement.replicas[0].devices[0].uuid == "a-1"


def test_a_device_that_was_withheld_while_a_placement_was_written_is_not_offered_again() -> None:
    whole = node("a", 1)
    index = ClusterIndex.of(cluster(whole, one := session()))
    plan = index.plan(NOW)
    assert plan.placements
    [device] = whole.devices
    unwell = replace(whole, devices=(replace(device, withheld="it failed"),))
    index.apply([NodeChanged(node=unwell)])
    index.settle(plan, {one.id})
    assert not index.plan(NOW).placements
