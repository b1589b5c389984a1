"""Who holds what is short and until when, when enough is free, and what would be if: always there, always true."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    ContactChanged,
    NodeChanged,
    ProjectChanged,
    SessionChanged,
    SessionRemoved,
    UsedChanged,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Deferral
from controlplane.domain.values import (
    Budget,
    Drain,
    Network,
    Priority,
    Project,
    Quota,
    Replica,
    Resources,
    Session,
    SessionSpec,
    Stop,
    Used,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.fit import refusal, request_of
from controlplane.scheduler.fragmentation import FIRST_MIX
from controlplane.scheduler.release_times import ends_by
from controlplane.scheduler.wait_estimate import MOST_HOLDERS
from tests.support.examples import examples
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.scheduler.looks import look
from tests.unit.controlplane.scheduler.test_index import World
from tests.unit.controlplane.scheduler.test_schedule import NOW
from tests.unit.controlplane.snapshot import takes_sessions, whole_free_devices

HOUR = 3600.0
GPUS = [0, 250, 500, 1000, 1000, 2000, 3000, 8000]
MODELS = ["", "", "M", "old"]


class Cluster(World):
    """A world in which what is placed runs, with time limits."""

    def start(self, plan_now: float = NOW) -> list[str]:
        """Plan, commit all of it, and let it run; the ids."""
        plan = self.index.plan(plan_now)
        self.happen(*self.commit(plan, ()))
        self.index.settle(plan, ())
        for placement in plan.placements:
            gang = tuple(
                Replica(rank=one.rank, node=one.node, resources=one.resources, started_at=NOW - 60)
                for one in placement.replicas
            )
            known = self.sessions[placement.session_id]
            running = replace(
                known, state=SessionState.RUNNING, attempt=1, replicas=gang, started_at=NOW - 60
            )
            self.sessions[known.id] = running
            self.happen(SessionChanged(session=running))
        return [one.session_id for one in plan.placements]

    def add(self, gpu: int, replicas: int = 1, **facts: object) -> Session:
        number = next(self.numbers)
        new = session(gpu, replicas, id=f"s{number:04}", created_at=float(number), **facts)
        self.sessions[new.id] = new
        self.happen(SessionChanged(session=new))
        return new

    def held(self, session_id: str, nodes: set[str]) -> dict[str, int]:
        """What it holds on these nodes, by the contract's measures."""
        replicas = [
            one
            for name, allocation in self.snapshot.allocations.items()
            for one in allocation.replicas
            if name in nodes and one.session_id == session_id
        ]
        return {
            "GPUs": sum(one.gpu_thousandths for one in replicas),
            "cores": sum(one.cpu_thousandths for one in replicas),
            "memory": sum(one.memory_bytes for one in replicas),
        }


def specs(data: st.DataObject) -> SessionSpec:
    gpu = data.draw(st.sampled_from(GPUS))
    return SessionSpec(
        argv=("true",),
        resources=Resources(
            gpu_thousandths=gpu, cpu_thousandths=data.draw(st.sampled_from([0, 0, 4000]))
        ),
        replica_count=data.draw(st.sampled_from([1, 1, 1, 2, 3])),
        priority=data.draw(st.sampled_from(Priority)),
        preemptible=data.draw(st.booleans()),
        time_limit_s=data.draw(st.sampled_from([0.0, HOUR, HOUR, 2 * HOUR])),
        gpu_model=data.draw(st.sampled_from(MODELS)) if gpu else "",
        pod=data.draw(st.sampled_from(["", "", "", "x"])),
        network=data.draw(st.sampled_from([None, None, None, *Network])),
    )


def a_cluster(data: st.DataObject) -> Cluster:
    """Nodes, of which some are closed; sessions that run, and others that wait."""
    world = Cluster()
    for i in range(data.draw(st.integers(1, 5))):
        facts = {
            "model": data.draw(st.sampled_from(["M", "M", "old"])),
            "pod": data.draw(st.sampled_from(["", "x"])),
            "networks": data.draw(st.sampled_from([(), (Network.OWN,), tuple(Network)])),
        }
        made = node(f"n{i}", data.draw(st.sampled_from([0, 1, 2, 4, 8])), **facts)
        world.happen(NodeChanged(node=made))
    if data.draw(st.booleans()):
        quota = Quota(
            gpu_thousandths=data.draw(st.sampled_from([0, 2000, 4000])),
            sessions=data.draw(st.sampled_from([0, 1, 2])),
        )
        members = frozenset({"kim", "lee"})
        world.happen(ProjectChanged(project=Project(name="vision", members=members, quota=quota)))
    for _ in range(data.draw(st.integers(0, 12))):
        submit(world, data)
    world.start()
    if world.snapshot.nodes and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(world.snapshot.nodes)))
        known = world.snapshot.nodes[name].node
        if data.draw(st.booleans()):
            world.happen(NodeChanged(node=replace(known, drain=Drain(asked_by="root"))))
        else:
            world.happen(ContactChanged(name=name, is_silent=True))
    for _ in range(data.draw(st.integers(1, 6))):
        submit(world, data)
    world.start()
    return world


def submit(world: Cluster, data: st.DataObject) -> None:
    new = drawn(world, data)
    world.sessions[new.id] = new
    world.happen(SessionChanged(session=new))


def drawn(world: Cluster, data: st.DataObject) -> Session:
    number, owner = next(world.numbers), data.draw(st.sampled_from(["kim", "lee", "park"]))
    return Session(
        id=f"s{number:04}",
        name=f"{owner}/None/{number}",
        owner=owner,
        spec=specs(data),
        created_at=float(number),
        project=data.draw(st.sampled_from([owner, owner, "vision"])),
        not_before=data.draw(st.sampled_from([0.0, 0.0, NOW - 5, NOW + 30])),
    )


def come(world: Cluster, data: st.DataObject) -> None:
    """Some come, for whom a plan is due; perhaps so many that the next one makes another mix."""
    for _ in range(data.draw(st.integers(0, 2))):
        submit(world, data)
    if data.draw(st.booleans()):
        while world.index.cluster.arrivals._seen < FIRST_MIX - 1:
            world.add(1000)


def outlook(index: ClusterIndex, session_id: str) -> Deferral:
    found = QueueQueries(index).outlook(session_id, NOW)
    assert found is not None
    return found


def seen(index: ClusterIndex) -> list[Deferral]:
    return [outlook(index, one.session_id) for one in QueueQueries(index).deferrals(NOW)]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_whoever_waits_is_told_why_and_what_is_told_is_true(data: st.DataObject) -> None:
    world = a_cluster(data)
    nodes = world.snapshot.nodes
    waiting = {one.id: one for one in world.index.cluster.queued()}
    told = seen(world.index)
    assert [one.place for one in told] == list(range(1, len(waiting) + 1))
    assert {one.session_id for one in told} == set(waiting)
    for one in told:
        asked, why = waiting[one.session_id], one.explanation
        assert why.reason
        if why.shortages:
            assert sum(count.nodes for count in why.shortages) == len(nodes)
        request = request_of(asked.owner, asked.spec)
        hole = re.search(r"most free on one node: (\d+) \(node (\w+)\)", why.reason)
        if hole or "GPU is free" in why.reason:
            takes = [
                two
                for name, two in nodes.items()
                if takes_sessions(two)
                and not refusal(two.node, request)
                and is_open_to(world.index, name, one.session_id)
            ]
            count = int(hole[1]) if hole else 0
            assert max([whole_free_devices(two) for two in takes], default=0) == count
            assert bool(hole) == (count > 0)
            assert not hole or whole_free_devices(nodes[hole[2]]) == count
        assert len(one.holders) <= MOST_HOLDERS
        assert bool(one.short) or not one.holders
        for holder in one.holders:
            running = world.sessions[holder.session.id]
            assert running.state is SessionState.RUNNING
            assert holder.held > 0
            if holder.nodes:
                assert holder.held == world.held(running.id, set(holder.nodes))[one.short]
                assert all(takes_sessions(nodes[name]) for name in holder.nodes)
            else:
                assert (running.project, asked.project) == ("vision", "vision")
            limit = running.spec.time_limit_s
            assert holder.until == (NOW - 60 + limit + running.spec.grace_s if limit else 0.0)
        if not why.can_ever_fit:
            assert not one.expected_start


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_once_time_limits_are_used_up_there_is_room_for_whoever_was_told_when(
    data: st.DataObject,
) -> None:
    world = a_cluster(data)
    for one in seen(world.index):
        if not one.expected_start:
            continue
        kept = world.index.cluster.kept
        is_kept_for = one.session_id in kept
        giving_way = {victim for two in kept.values() for victim in two.victims if is_kept_for}
        after = Cluster()
        after.snapshot, after.index = world.snapshot, ClusterIndex.of(world.snapshot)
        after.sessions = dict(world.sessions)
        for other in world.sessions.values():
            if other.id == one.session_id:
                continue
            until = ends_by(other, NOW)
            if other.state is SessionState.QUEUED:
                after.happen(SessionRemoved(session_id=other.id))
            elif (until and until <= one.expected_start) or other.id in giving_way:
                after.end(other.id)
        started = after.index.plan(one.expected_start).placements
        assert [placement.session_id for placement in started] == [one.session_id]
        assert one.expected_start >= NOW


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_what_would_be_is_what_comes_when_it_is_asked_for(data: st.DataObject) -> None:
    world = a_cluster(data)
    if data.draw(st.booleans()):  # also while a plan is due
        submit(world, data)
    waiting = sorted(one.id for one in world.index.cluster.queued())
    if not waiting:
        return
    chosen, spec = data.draw(st.sampled_from(waiting)), specs(data)
    supposed = QueueQueries(world.index).what_if(chosen, spec, NOW)
    assert supposed is not None
    assert (supposed.placement is None) != (supposed.deferral is None)
    world.happen(SessionChanged(session=replace(world.sessions[chosen], spec=spec)))
    placed = [one for one in world.index.plan(NOW).placements if one.session_id == chosen]
    assert placed == ([supposed.placement] if supposed.placement else [])


def is_open_to(index: ClusterIndex, node: str, session_id: str) -> bool:
    """Whether a node is neither kept nor held for another."""
    room = index.cluster.rooms.get(node)
    return room is not None and not room.keeper and room.promised in ("", session_id)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_what_would_start_does_when_it_is_submitted(data: st.DataObject) -> None:
    world = a_cluster(data)
    come(world, data)
    new = drawn(world, data)
    supposed = QueueQueries(world.index).would_start(new, NOW)
    world.happen(SessionChanged(session=new))
    plan = world.index.plan(NOW)
    placed = [one for one in plan.placements if one.session_id == new.id]
    assert placed == ([supposed.placement] if supposed.placement else [])
    assert QueueQueries(world.index).deferral(new.id, NOW) == supposed.deferral


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_asking_what_would_be_changes_nothing(data: st.DataObject) -> None:
    world = a_cluster(data)
    come(world, data)
    index, shown = world.index, seen(world.index)
    # What cannot be copied is never changed.
    specs_there = [one.spec for one in world.sessions.values()]
    shared = [
        thing for one in specs_there for thing in (one.environment, one.labels, one.build_arguments)
    ]
    twin = copy.deepcopy(index, {id(one): one for one in shared})
    is_due, before = index.is_due(NOW), look(index)
    waiting = sorted(one.id for one in index.cluster.queued())
    for number in range(data.draw(st.integers(1, 4))):
        if waiting and data.draw(st.booleans()):
            QueueQueries(index).what_if(data.draw(st.sampled_from(waiting)), specs(data), NOW)
        else:
            asked = session(1000, id=f"t{number}", project="kim", created_at=NOW)
            QueueQueries(index).would_start(replace(asked, spec=specs(data)), NOW)
        assert look(index) == before
    assert seen(index) == shown
    assert index.is_due(NOW) == is_due
    assert index.cluster.newcomers() == twin.cluster.newcomers()
    assert index.plan(NOW) == twin.plan(NOW)


def test_asking_while_one_that_was_put_off_may_start_lets_it_start() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 1)))
    late = world.add(1000, not_before=NOW + 30)
    assert not world.start()
    assert world.index.due() == NOW + 30
    QueueQueries(world.index).would_start(session(1000), NOW + 30)
    assert world.index.is_due(NOW + 30)
    assert world.start(NOW + 30) == [late.id]


def test_nothing_is_kept_for_one_that_was_not_served_yet() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 3)))
    world.add(1000, spec={"priority": Priority.LOW, "preemptible": True})
    world.start()
    first, second = (world.add(1000, spec={"priority": Priority.HIGH}) for _ in range(2))
    plan = world.index.plan(NOW, 1)
    assert [one.session_id for one in plan.placements] == [first.id]
    assert not plan.preemptions
    assert "leave" not in outlook(world.index, second.id).explanation.reason


def test_nobody_gives_way_because_somebody_asked() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 1)))
    low = {"priority": Priority.LOW, "preemptible": True}
    world.add(1000, spec=low)
    world.start()
    wanted = world.add(1000, spec=low)
    world.start()
    before = outlook(world.index, wanted.id)
    raised = replace(wanted.spec, priority=Priority.HIGH)
    for _ in range(2):
        supposed = QueueQueries(world.index).what_if(wanted.id, raised, NOW)
        assert supposed is not None
        assert supposed.deferral is not None
        assert "give way" in supposed.deferral.explanation.reason
        assert outlook(world.index, wanted.id) == before
    world.happen(SessionChanged(session=replace(wanted, spec=raised)))
    assert len(world.index.plan(NOW).preemptions) == 1


def limited(hours: float, **facts: object) -> dict[str, object]:
    return {"spec": {"time_limit_s": hours * HOUR}, **facts}


def test_who_holds_it_and_until_when() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 4)))
    one, two = world.add(1000, **limited(1)), world.add(2000, owner="lee")
    world.start()
    wanted = world.add(2000)
    world.start()
    told = outlook(world.index, wanted.id)
    assert told.short == "GPUs"
    assert [(h.session.id, h.held, h.nodes) for h in told.holders] == [
        (two.id, 2000, ("a",)),
        (one.id, 1000, ("a",)),
    ]
    assert [h.until for h in told.holders] == [0.0, NOW - 60 + HOUR + 10]
    assert told.expected_start == NOW - 60 + HOUR + 10


def test_without_a_time_limit_nobody_knows_when() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 1)))
    world.add(1000)
    world.start()
    assert outlook(world.index, world.add(1000).id).expected_start == 0.0


def test_a_gang_starts_when_the_last_of_its_nodes_is_free() -> None:
    world = Cluster()
    for name in ("a", "b", "c"):
        world.happen(NodeChanged(node=node(name, 1)))
    for hours in (3, 1, 2):
        world.add(1000, **limited(hours))
    world.start()
    gang = world.add(1000, 2)
    assert outlook(world.index, gang.id).expected_start == NOW - 60 + 2 * HOUR + 10


def test_what_is_on_nodes_that_would_not_do_is_nobodys_fault() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 1, model="old")), NodeChanged(node=node("b", 1)))
    world.add(1000, spec={"gpu_model": "old", "time_limit_s": HOUR})
    on_b = world.add(1000, spec={"gpu_model": "M", "time_limit_s": 2 * HOUR})
    world.start()
    wanted = world.add(1000, spec={"gpu_model": "M"})
    told = outlook(world.index, wanted.id)
    assert [(h.session.id, h.nodes) for h in told.holders] == [(on_b.id, ("b",))]
    assert told.expected_start == NOW - 60 + 2 * HOUR + 10


def test_a_quota_names_those_who_hold_it_and_no_node() -> None:
    world = Cluster()
    quota = Quota(gpu_thousandths=1000)
    project = Project(name="vision", members=frozenset({"kim"}), quota=quota)
    world.happen(NodeChanged(node=node("a", 4)), ProjectChanged(project=project))
    one = world.add(1000, project="vision")
    world.start()
    told = outlook(world.index, world.add(1000, project="vision").id)
    assert told.explanation.reason.startswith("project vision holds 1 of its 1 GPU")
    assert [(h.session.id, h.held, h.nodes) for h in told.holders] == [(one.id, 1000, ())]
    assert (told.short, told.expected_start) == ("GPUs", 0.0)


def test_a_quota_that_ends_by_time_limits_says_when() -> None:
    world = Cluster()
    members = frozenset({"kim", "lee"})
    each = Quota(gpu_thousandths=2000)
    project = Project(
        name="vision", members=members, quota=Quota(gpu_thousandths=3000), member_quota=each
    )
    world.happen(NodeChanged(node=node("a", 8)), ProjectChanged(project=project))
    world.add(1000, project="vision", **limited(1))
    world.add(1000, project="vision", **limited(3))
    world.add(1000, owner="lee", project="vision", **limited(2))
    world.start()
    one, two = (world.add(gpus, project="vision") for gpus in (1000, 2000))
    assert outlook(world.index, one.id).expected_start == NOW - 60 + HOUR + 10
    assert outlook(world.index, two.id).expected_start == NOW - 60 + 3 * HOUR + 10, "its member's"
    endless = world.add(1000, owner="lee")
    world.start()
    assert world.sessions[endless.id].state is SessionState.RUNNING
    assert outlook(world.index, one.id).expected_start == NOW - 60 + HOUR + 10, "not of the project"


def test_a_budget_that_is_used_up_says_when_its_next_period_begins() -> None:
    world = Cluster()
    budget = Budget(gpu_seconds=100.0, period_days=30, anchor=NOW)
    project = Project(name="vision", members=frozenset({"kim"}), budget=budget)
    until = NOW + 30 * 24 * HOUR
    used = Used(project="vision", gpu_units=10**9, since=NOW, until=until)
    world.happen(NodeChanged(node=node("a", 1)), ProjectChanged(project=project))
    wanted = world.add(1000, project="vision")
    world.start()
    told = outlook(world.index, world.add(1000, project="vision").id)
    assert (told.expected_start, told.renews_at) == (0.0, 0.0), "it is being counted"
    world.happen(UsedChanged(used=used))
    told = outlook(world.index, wanted.id)
    assert told.explanation.reason.startswith("project vision has used")
    assert (told.expected_start, told.renews_at) == (until, until)
    endless = world.add(1000)
    world.start()
    assert world.sessions[endless.id].state is SessionState.RUNNING
    told = outlook(world.index, wanted.id)
    assert (told.expected_start, told.renews_at) == (0.0, until), "who runs may never end"
    free = outlook(world.index, world.add(1000).id)
    assert free.renews_at == 0.0


def test_whoever_is_put_off_starts_no_sooner_than_its_time() -> None:
    world = Cluster()
    world.happen(NodeChanged(node=node("a", 1)))
    wanted = world.add(1000, not_before=NOW + 90)
    assert outlook(world.index, wanted.id).expected_start == NOW + 90
    late = QueueQueries(world.index).explanation(wanted.id, NOW + 91)
    assert late is not None
    assert "-" not in late.reason


def test_what_never_fits_has_no_start() -> None:
    index = ClusterIndex.of(cluster(node("a", 1), session(4000, id="s1")))
    told = outlook(index, "s1")
    assert not told.explanation.can_ever_fit
    assert (told.holders, told.expected_start) == ((), 0.0)


@pytest.mark.parametrize(
    ("state", "started_at", "until"),
    [
        (SessionState.RUNNING, NOW - 60, NOW - 60 + HOUR + 10),
        (SessionState.RUNNING, 1.0, NOW),
        (SessionState.PREPARING, 0.0, NOW + HOUR + 10),
        (SessionState.UNKNOWN, NOW - 60, 0.0),
        (SessionState.STOPPING, NOW - 60, NOW + 25),
    ],
)
def test_until_when_a_session_runs_at_most(
    state: SessionState, started_at: float, until: float
) -> None:
    stop = Stop(grace_s=5, notice_s=20) if state is SessionState.STOPPING else None
    gang = (Replica(rank=0, node="a", started_at=started_at),)
    running = replace(session(**limited(1), state=state, stop=stop), replicas=gang)
    assert ends_by(running, NOW) == until


@pytest.mark.parametrize(
    ("asked_at", "until"), [(NOW, NOW + 25), (NOW - 10, NOW + 15), (NOW - 60, NOW), (0.0, NOW + 25)]
)
def test_what_is_left_of_notice_and_grace_becomes_less(asked_at: float, until: float) -> None:
    stop = Stop(grace_s=5, notice_s=20, asked_at=asked_at)
    leaving = session(**limited(1), state=SessionState.STOPPING, stop=stop)
    assert ends_by(leaving, NOW) == until
