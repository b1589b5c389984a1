"""The list that is shown is the order that is decided: the first of it with enough room starts, then it is made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    NodeChanged,
    PastChanged,
    ProjectChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.values import Priority, Project, Quota, Session
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.session_rank import MOST_PATIENCE_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, cluster, node, session
from tests.unit.controlplane.scheduler.test_index import World
from tests.unit.controlplane.scheduler.test_schedule import NOW
from tests.unit.controlplane.scheduler.test_session_rank import running
from tests.unit.controlplane.snapshot import ClusterSnapshot

OWNERS = ("kim", "lee", "park")
PROJECTS = ("", "", "vision", "speech")
sizes = st.sampled_from([0, 250, 500, 1000, 1000, 2000, 4000])


@st.composite
def asked(draw: st.DrawFn, number: int, sizes: st.SearchStrategy[int] = sizes) -> Session:
    """A session that asks for anything."""
    waited = draw(st.sampled_from([0.0, 60.0, 3_600.0, 2 * MOST_PATIENCE_S]))
    return session(
        draw(sizes),
        draw(st.sampled_from([1, 1, 1, 2])),
        owner=draw(st.sampled_from(OWNERS)),
        project=draw(st.sampled_from(PROJECTS)),
        cpu=draw(st.sampled_from([0, 0, 1000, 4000])),
        memory=draw(st.sampled_from([0, 0, GIB])),
        id=f"s{number:04}",
        created_at=NOW - waited + number / 100,
        not_before=draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 60.0])),
        spec={
            "priority": draw(st.sampled_from(Priority)),
            "gpu_model": draw(st.sampled_from(["", "", "M", "N"])),
        },
    )


@st.composite
def records(draw: st.DrawFn) -> list[Change]:
    """Projects with quotas and weights, and what everybody held lately."""
    bounds = st.sampled_from([0, 0, 1000, 4000])
    projects = [
        ProjectChanged(
            project=Project(
                name=name,
                members=frozenset(OWNERS),
                weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
                quota=Quota(gpu_thousandths=draw(bounds), sessions=draw(st.sampled_from([0, 2]))),
                member_quota=Quota(gpu_thousandths=draw(bounds)),
            )
        )
        for name in ("vision", "speech")
    ]
    lately = {name: draw(st.sampled_from([0.0, 0.5, 2.0])) for name in (*OWNERS, "vision")}
    return [*projects, PastChanged(lately=lately)]


def starts_alone(snapshot: ClusterSnapshot, one: Session) -> bool:
    """Whether there is room for a session, and its quota lets it start, where nobody else waits."""
    others = [SessionRemoved(session_id=other) for other in snapshot.queued if other != one.id]
    return bool(ClusterIndex.of(snapshot.apply(others)).plan(NOW).placements)


def shown(index: ClusterIndex) -> list[str]:
    return [one.id for one in QueueQueries(index).in_order(NOW)]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_the_first_that_is_shown_and_has_room_starts(data: st.DataObject) -> None:
    world = World()
    nodes = [
        node(f"n{i}", data.draw(st.sampled_from([1, 2, 4])), model=data.draw(st.sampled_from("MN")))
        for i in range(data.draw(st.integers(1, 3)))
    ]
    waiting = [data.draw(asked(number)) for number in range(data.draw(st.integers(1, 12)))]
    world.sessions = {one.id: one for one in waiting}
    world.happen(*data.draw(records()))
    world.happen(*[NodeChanged(node=one) for one in nodes])
    world.happen(*[SessionChanged(session=one) for one in waiting])
    for _ in range(len(waiting) + 1):
        order = shown(world.index)
        plan = world.index.plan(NOW, 1)
        if world.index.cluster.holding:
            return  # nodes are held for one that waits longest: its reason says so
        placed = [one.session_id for one in plan.placements]
        ahead = order[: order.index(placed[0])] if placed else order
        passed = [one for one in ahead if starts_alone(world.snapshot, world.snapshot.queued[one])]
        assert not passed, f"{placed} started before {passed}; shown was {order}"
        if not placed:
            break
        world.happen(*_young(world.commit(plan, ())))
        world.index.settle(plan, ())


def _young(changes: list[Change]) -> list[Change]:
    """The same with attempts that have just begun: nobody gives way."""
    return [
        AllocationChanged(
            allocation=replace(
                one.allocation,
                replicas=tuple(replace(r, placed_at=NOW) for r in one.allocation.replicas),
            )
        )
        if isinstance(one, AllocationChanged)
        else one
        for one in changes
    ]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_where_there_is_room_for_all_they_start_in_the_order_that_is_shown(
    data: st.DataObject,
) -> None:
    """Of several accounts with sessions of one size, or of one account whatever it asks for.

    In a project of several users they are of one class: a lower one has no right until the higher has started. And no
    user has several accounts: which of them is first changes with what others hold there.
    """
    is_alone = data.draw(st.booleans())
    waiting = []
    for number in range(data.draw(st.integers(1, 15))):
        one = data.draw(asked(number, sizes if is_alone else st.just(1000)))
        spec = replace(one.spec, gpu_model="")
        if is_alone:
            one = replace(one, owner="kim", project="")
        else:
            gpu = replace(spec.resources, cpu_thousandths=0, memory_bytes=0)
            priority = Priority.NORMAL if one.project else spec.priority
            spec = replace(spec, resources=gpu, replica_count=1, priority=priority)
            one = replace(one, owner=one.owner + one.project)
        waiting.append(replace(one, spec=spec, not_before=0.0))
    bounds = [one for one in data.draw(records()) if isinstance(one, PastChanged)]
    bounds += [
        ProjectChanged(
            project=Project(
                name=name, members=frozenset(one + name for one in OWNERS), weight=weight
            )
        )
        for name, weight in (("vision", 3.0), ("speech", 1.0))
    ]
    rooms = [node(f"n{i}", 8, cpu=10**6, memory=10**6 * GIB) for i in range(20)]
    # One that holds nothing has a right to whichever small one has room.
    holding = [running(session(owner="kim"))] if is_alone else []
    index = ClusterIndex.of(cluster(*rooms, *waiting, *holding).apply(bounds))
    order = shown(index)
    assert [one.session_id for one in index.plan(NOW).placements] == order


@pytest.mark.parametrize("lower", [Priority.NORMAL, Priority.LOW, Priority.IDLE])
def test_a_higher_class_of_an_account_goes_before_the_right_to_a_small_one(
    lower: Priority,
) -> None:
    high = session(4000, owner="kim", spec={"priority": Priority.HIGH})
    small = session(1000, owner="kim", spec={"priority": lower})
    index = ClusterIndex.of(cluster(node("a", 4), small, high))
    assert shown(index) == [high.id, small.id]
    assert [one.session_id for one in index.plan(NOW).placements] == [high.id]


@pytest.mark.parametrize("lower", [Priority.LOW, Priority.IDLE])
def test_low_and_idle_have_no_right_before_the_classes_of_others(lower: Priority) -> None:
    high = session(4000, owner="lee", spec={"priority": Priority.HIGH})
    small, normal = (
        session(owner="kim", spec={"priority": one}) for one in (lower, Priority.NORMAL)
    )
    index = ClusterIndex.of(cluster(node("a", 4), small, high))
    assert shown(index) == [high.id, small.id]
    assert [one.session_id for one in index.plan(NOW).placements] == [high.id]
    index = ClusterIndex.of(cluster(node("a", 4), normal, high))
    assert shown(index) == [normal.id, high.id]
    assert [one.session_id for one in index.plan(NOW).placements] == [normal.id]


def test_a_user_has_the_right_again_once_the_higher_class_of_the_project_has_started() -> None:
    """Before others get more: the last of the class starts in the same plan."""
    project = Project(name="vision", members=frozenset({"kim", "lee"}))
    first = session(owner="kim", project="vision", spec={"priority": Priority.HIGH})
    second = session(owner="lee", project="vision")
    others = [session(owner="park", spec={"priority": Priority.HIGH}) for _ in range(3)]
    things = cluster(node("a", 3), second, *others, first)
    index = ClusterIndex.of(things.apply([ProjectChanged(project=project)]))
    placed = [one.session_id for one in index.plan(NOW).placements]
    assert placed == [first.id, others[0].id, second.id]
