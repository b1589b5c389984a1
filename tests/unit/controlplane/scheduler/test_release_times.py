"""The nodes that have room first, as found from what is kept up, are those that a look at all of them finds."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Allocation, Drain, Stop
from controlplane.scheduler.fit import Request, resources_on
from controlplane.scheduler.release_times import Ends
from controlplane.scheduler.wait_estimate import earliest, nearest
from tests.support.examples import examples
from tests.unit.controlplane.builders import node
from tests.unit.controlplane.scheduler import plain_outlook as plain
from tests.unit.controlplane.scheduler.test_reservations import HOUR, Clocked

MODELS = ["M", "M", "old"]


def a_node(draw: random.Random, name: str) -> NodeChanged:
    """One of few kinds, so that some are alike."""
    made = node(
        name,
        draw.choice([0, 1, 2, 4, 4]),
        cpu=draw.choice([8000, 8000, 3000]),
        pod=draw.choice(["", "", "x"]),
        model=draw.choice(MODELS),
    )
    if made.devices and draw.random() < 0.1:
        first, *others = made.devices
        made = replace(made, devices=(replace(first, model="other"), *others))
    return NodeChanged(node=made)


def a_request(draw: random.Random, world: Clocked) -> Request:
    failed = [name for name in world.snapshot.nodes if draw.random() < 0.3]
    failed += [f"{name}-{draw.randrange(3)}" for name in world.snapshot.nodes]
    return Request(
        owner="\0",
        gpu_thousandths=draw.choice([0, 250, 500, 1000, 1000, 2000, 3000, 4000]),
        cpu_thousandths=draw.choice([0, 0, 3000]),
        memory_bytes=0,
        replica_count=draw.choice([1, 1, 2, 3, 5, 9]),
        gpu_model=draw.choice(["", "", "", "M", "old"]),
        pod=draw.choice(["", "", "", "x"]),
        avoids=frozenset(draw.sample(failed, min(3, len(failed))))
        if draw.random() < 0.3
        else frozenset(),
    )


def add(draw: random.Random, world: Clocked) -> None:
    world.add(
        draw.choice([0, 250, 500, 1000, 1000, 1000, 2000, 4000]),
        draw.choice([1, 1, 1, 2]),
        limit_s=draw.choice([0.0, 0.5 * HOUR, HOUR, HOUR, 3 * HOUR]),
        runs_s=draw.choice([0.5, 5.0]) * HOUR,
        cpu=draw.choice([0, 0, 0, 2000]),
    )


def change(draw: random.Random, world: Clocked) -> None:
    """Something happens to one session that holds devices, or to one node."""
    holding = sorted(
        one.session_id for a in world.snapshot.allocations.values() for one in a.replicas
    )
    names = sorted(world.snapshot.nodes)
    if holding and draw.random() < 0.6:
        known = world.sessions[draw.choice(holding)]
        asked_at = draw.choice([0.0, world.now, world.now - 10, world.now - HOUR])
        states = {
            "preemptible": replace(known, spec=replace(known.spec, preemptible=True)),
            "limited": replace(known, spec=replace(known.spec, time_limit_s=HOUR)),
            "prepares": replace(
                known,
                state=SessionState.PREPARING,
                replicas=tuple(replace(one, started_at=0.0) for one in known.replicas),
            ),
            "unknown": replace(known, state=SessionState.UNKNOWN),
            "stopping": replace(
                known,
                state=SessionState.STOPPING,
                stop=Stop(grace_s=5, notice_s=20, asked_at=asked_at),
            ),
            # Its node has not let go of it yet.
            "ended": replace(known, state=SessionState.SUCCEEDED),
            "gone": None,
        }
        after = states[draw.choice(sorted(states))]
        if after is None:
            # What it holds is told to be free later, or never.
            world.happen(SessionRemoved(session_id=known.id))
        else:
            world.sessions[known.id] = after
            world.happen(SessionChanged(session=after))
    elif names:
        name = draw.choice(names)
        known_node = world.snapshot.nodes[name].node
        world.happen(
            draw.choice(
                [
                    NodeRemoved(name=name),
                    ContactChanged(name=name, is_silent=draw.random() < 0.5),
                    NodeChanged(node=replace(known_node, drain=Drain(asked_by="root"))),
                    NodeChanged(node=replace(known_node, drain=None)),
                    a_node(draw, name),
                    AllocationChanged(allocation=Allocation(node=name)),
                ]
            )
        )


def move(draw: random.Random, world: Clocked) -> None:
    """Something is taken for one that holds devices, perhaps where it does."""
    cluster = world.index.cluster
    for room in cluster.rooms.known():
        request = Request("kim", 1000, 1, 1, 1)
        if room.is_open and room.holds(request) and draw.random() < 0.3:
            holding = sorted(cluster.entitlements._holders)
            if holding:
                wanted = resources_on(room.node, request)
                room.take(request, wanted, draw.randrange(9, 99), draw.choice(holding))
                cluster.rooms.note(room)


def compare(draw: random.Random, world: Clocked) -> None:
    """Ask of what is kept up, and look at all; at times the clock goes back a little."""
    cluster = world.index.cluster
    rooms, ends, known = cluster.rooms, cluster.ends, cluster.entitlements.holder
    now = world.now + draw.choice([0.0, 0.0, 60.0, 5 * HOUR, -HOUR])
    taken = {name for name in world.snapshot.nodes if draw.random() < 0.2}
    held = [room for room in rooms.known() if room.is_open and not room.is_offered]
    offered = [room for room in rooms.known() if room.is_offered and room.name not in taken]
    all_open = [room for room in rooms.known() if room.is_open]
    ends.keep_up(now)
    for _ in range(6):
        request = a_request(draw, world)
        assert earliest(rooms, request, ends, taken=taken) == plain.earliest(
            offered, request, known, now
        ), request
        assert earliest(rooms, request, ends, beside=held) == plain.earliest(
            all_open, request, known, now
        ), request
        assert nearest(rooms, request, ends, taken) == plain.nearest(
            offered, request, known, now
        ), request
    for room in all_open:
        assert tuple(ends.on(room)) == plain.ending(room, known, now)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_up_answers_as_a_look_at_every_node_would(seed: int) -> None:
    draw, world = random.Random(seed), Clocked()
    cluster = world.index.cluster
    for number in range(draw.randrange(1, 9)):
        world.happen(a_node(draw, f"n{number}"))
    for _ in range(draw.randrange(2, 14)):
        for _ in range(draw.randrange(6)):
            add(draw, world)
        # Looked at between a plan and what comes of it; what is dropped is given back.
        plan = world.index.plan(world.now)
        compare(draw, world)
        dropped = {one.session_id for one in plan.placements if draw.random() < 0.5}
        changes = world.commit(plan, dropped)
        world.happen(*changes)
        for one in changes:
            if isinstance(one, SessionChanged):
                world.sessions[one.session.id] = one.session
        world.index.settle(plan, dropped)
        compare(draw, world)
        world.plan()
        compare(draw, world)
        world.now += draw.choice([0.0, 60.0, HOUR])
        while world.ends and world.ends[0][0] <= world.now and draw.random() < 0.7:
            # Some run on beyond their limit.
            world.end(world.ends.pop(0)[1])
        change(draw, world)
        if draw.random() < 0.2:
            move(draw, world)
        if draw.random() < 0.3:
            for name in draw.sample(sorted(world.snapshot.nodes), len(world.snapshot.nodes) // 2):
                cluster.rooms.keep(name, draw.choice(["", "s0001"]))
        compare(draw, world)


def test_nothing_is_left_of_sessions_and_nodes_that_are_gone() -> None:
    world = Clocked()
    world.happen(*[NodeChanged(node=node(f"n{i}", 4)) for i in range(3)])
    gang = world.add(4000, 3, limit_s=HOUR)
    world.plan()
    ends = world.index.cluster.ends
    ends.keep_up(world.now)
    assert [name for _, name in ends.since(4000)] == ["n0", "n1", "n2"]
    world.happen(NodeRemoved(name="n1"))
    ends.keep_up(world.now)
    assert [name for _, name in ends.since(4000)] == ["n0", "n2"]
    world.end(gang)
    world.happen(NodeRemoved(name="n0"), NodeRemoved(name="n2"))
    ends.keep_up(world.now)
    fresh = Ends(world.index.cluster.rooms, world.index.cluster.entitlements.holder)
    kept = {one: value for one, value in vars(ends).items() if one not in ("now", "_since")}
    assert kept == {one: vars(fresh)[one] for one in kept}
    assert ends.since(4000) == []


def test_what_is_taken_for_one_that_runs_there_is_free_once_that_ends_too() -> None:
    world = Clocked()
    world.happen(NodeChanged(node=node("n0", 2)))
    running = world.add(1000, limit_s=HOUR)
    world.plan()
    cluster = world.index.cluster
    room = cluster.rooms.get("n0")
    assert room is not None
    one = Request("kim", 1000, 1, 1, 1)
    room.take(one, resources_on(room.node, one), 1, running)
    cluster.rooms.note(room)
    cluster.ends.keep_up(world.now)
    found = earliest(cluster.rooms, one._replace(replica_count=2), cluster.ends)
    assert found is not None
    assert found.parts == (("n0", 2),)
