"""Nodes that are held for who is blocked first: it starts when that was promised, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Plan
from controlplane.domain.values import Priority, Replica
from controlplane.scheduler import QueueQueries
from controlplane.scheduler.node_capacity import HELD
from controlplane.scheduler.reservations import BROKEN_REVIEW_S, REVIEW_S, STARTING_S
from controlplane.scheduler.session_rank import LEAST_PATIENCE_S, MOST_PATIENCE_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.scheduler.test_index import World

NOW = 10_000_000.0
HOUR = 3600.0
GRACE_S = 10.0


class Clocked(World):
    """A cluster in which time passes: what is placed runs for as long as it takes, its limit at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.runs_s: dict[str, float] = {}
        self.ends: list[tuple[float, str]] = []
        self.began: dict[str, float] = {}
        self.plans: list[Plan] = []

    def add(
        self,
        gpu: int,
        replicas: int = 1,
        *,
        limit_s: float = 0.0,
        runs_s: float = 0.0,
        **facts: object,
    ) -> str:
        number = next(self.numbers)
        facts.setdefault("created_at", self.now)
        spec = {"time_limit_s": limit_s, "priority": facts.pop("priority", Priority.NORMAL)}
        new = session(gpu, replicas, id=f"s{number:04}", spec=spec, **facts)
        self.runs_s[new.id] = runs_s or limit_s or 1e9
        self.sessions[new.id] = new
        self.happen(SessionChanged(session=new))
        return new.id

    def plan(self) -> list[str]:
        """Plan until nothing is left to decide; who began."""
        began: list[str] = []
        for _ in range(20):
            plan = self.index.plan(self.now)
            self.plans.append(plan)
            changes = self.commit(plan, ())
            for placement in plan.placements:
                self.began[placement.session_id] = self.now
                gang = tuple(
                    Replica(rank=r.rank, node=r.node, resources=r.resources, started_at=self.now)
                    for r in placement.replicas
                )
                running = replace(
                    self.sessions[placement.session_id],
                    state=SessionState.RUNNING,
                    attempt=1,
                    replicas=gang,
                    started_at=self.now,
                )
                self.sessions[running.id] = running
                changes.append(SessionChanged(session=running))
                heappush(self.ends, (self.now + self.runs_s[running.id], running.id))
            self.happen(*changes)
            self.index.settle(plan, ())
            began += [one.session_id for one in plan.placements]
            if not self.index.is_due(self.now):
                return began
        raise AssertionError("it plans again and again")

    def until(self, at: float) -> Iterator[None]:
        """Let time pass; after each thing that ends it is planned, if that may make a difference."""
        while self.ends and self.ends[0][0] <= at:
            self.now, ended = heappop(self.ends)
            self.end(ended)
            if self.index.is_due(self.now):
                self.plan()
            yield
        self.now = at

    def pass_to(self, at: float) -> None:
        for _ in self.until(at):
            pass

    def promised(self, session_id: str) -> float:
        """When it starts at the latest, if nodes are held for it; 0: none are, infinity: nobody knows."""
        promise = self.index.cluster.holding.get(session_id)
        return promise.at if promise and promise.bars_own_class else 0.0

    def why(self, session_id: str) -> str:
        found = QueueQueries(self.index).deferral(session_id, self.now)
        assert found is not None
        return found.explanation.reason


def clocked(*gpus: int) -> Clocked:
    world = Clocked()
    world.happen(*[NodeChanged(node=node(f"n{i}", one)) for i, one in enumerate(gpus)])
    return world


def test_a_blocked_gang_is_not_delayed_by_what_runs_ahead() -> None:
    world = clocked(2, 2)
    world.add(1000, limit_s=2 * HOUR)
    world.add(1000, limit_s=4 * HOUR)
    world.add(1000, limit_s=4 * HOUR)
    world.plan()
    gang = world.add(2000, 2, owner="lee")
    world.plan()
    at = world.promised(gang)
    assert at == NOW + 4 * HOUR + GRACE_S
    endless = world.add(1000)
    long = world.add(1000, limit_s=4 * HOUR)
    assert world.plan() == []
    short = world.add(1000, limit_s=4 * HOUR - STARTING_S - 60)
    assert world.plan() == [short]
    assert world.promised(gang) == at
    world.pass_to(at)
    assert world.began[gang] <= at
    assert {endless, long} & world.began.keys() == set()
    world.pass_to(at + REVIEW_S)
    assert not world.index.cluster.holding or gang not in world.index.cluster.holding


def test_what_leaves_enough_beside_a_reservation_runs_ahead() -> None:
    world = clocked(4)
    world.add(2000, limit_s=HOUR)
    world.plan()
    gang = world.add(3000, owner="lee")
    beside = world.add(1000)
    assert world.plan() == [beside]
    assert world.promised(gang) == NOW + HOUR + GRACE_S
    world.add(1000)
    assert world.plan() == []
    world.pass_to(NOW + HOUR + GRACE_S)
    assert world.began[gang] == NOW + HOUR


def test_a_higher_class_passes_and_another_instant_is_promised() -> None:
    world = clocked(2)
    world.add(1000, limit_s=HOUR)
    world.plan()
    gang = world.add(2000, owner="lee")
    world.plan()
    assert world.promised(gang) == NOW + HOUR + GRACE_S
    high = world.add(1000, limit_s=3 * HOUR, priority=Priority.HIGH)
    assert world.plan() == [high]
    world.add(500)  # anything new
    world.plan()
    assert world.promised(gang) == NOW + 3 * HOUR + GRACE_S


@pytest.mark.parametrize("runs_s", [HOUR, 60.0])
def test_what_becomes_free_on_held_nodes_is_planned_at_once(runs_s: float) -> None:
    world = clocked(2)
    world.add(2000, limit_s=HOUR, runs_s=runs_s)
    world.plan()
    waits = world.add(2000, owner="lee")
    world.plan()
    assert world.promised(waits) == NOW + HOUR + GRACE_S
    assert not world.index.is_due(NOW)
    world.now, ended = world.ends.pop()
    world.end(ended)
    world.index.cluster.holding.looked_at = world.now
    assert world.index.is_due(world.now), "it is not left to the next look at reservations"
    assert world.plan() == [waits]


@pytest.mark.parametrize("loss", ["removed", "silent", "left"])
def test_a_reservation_ends_with_its_nodes_or_who_has_it(loss: str) -> None:
    world = clocked(2, 2)
    world.add(2000, limit_s=2 * HOUR)
    world.add(1000, limit_s=HOUR)
    world.plan()
    gang = world.add(2000, owner="lee")
    small = world.add(1000)
    assert world.plan() == []
    assert world.promised(gang) == NOW + HOUR + GRACE_S
    if loss == "left":
        world.happen(SessionRemoved(session_id=gang))
        assert world.index.is_due(NOW)
        assert world.plan() == [small]
        return
    lost = next(iter(world.index.cluster.holding.get(gang).parts))  # type: ignore[union-attr]
    world.happen(
        NodeRemoved(name=lost) if loss == "removed" else ContactChanged(name=lost, is_silent=True)
    )
    world.plan()
    assert world.promised(gang) == NOW + 2 * HOUR + GRACE_S


def test_without_limits_only_who_is_due_gets_nodes_those_nearest_to_having_room() -> None:
    world = clocked(2, 2)
    first, second, third = (world.add(1000, runs_s=HOUR * i) for i in (50, 60, 70))
    assert len(world.plan()) == 3
    gang = world.add(2000, owner="lee", created_at=NOW - MOST_PATIENCE_S + HOUR)
    small = world.add(1000)
    assert world.plan() == [small], "nobody is due"
    world.end(first)
    world.ends = [one for one in world.ends if one[1] != first]
    world.now = NOW + 2 * HOUR
    brief, endless = world.add(1000, limit_s=600.0), world.add(1000)
    assert world.plan() == []
    assert world.promised(gang) == float("inf")
    assert "1 node is held for it, as it waits longest" in world.why(gang)
    why = QueueQueries(world.index).explanation(endless, world.now)
    assert why is not None
    assert {one.what: one.nodes for one in why.shortages}[HELD] == 1
    assert brief not in world.began
    held = world.snapshot.allocations[next(iter(world.index.cluster.holding.get(gang).parts))]  # type: ignore[union-attr]
    left = {one.session_id for one in held.replicas}
    assert left < {second, third, small}
    for one in left:
        world.end(one)
    assert gang in world.plan()


@pytest.mark.parametrize("limit_s", [0.0, 600.0])
@pytest.mark.parametrize("gpus", [1, 2])
def test_small_sessions_of_lower_classes_do_not_go_round_one_that_needs_all_cores(
    gpus: int, limit_s: float
) -> None:
    world = Clocked()
    world.happen(NodeChanged(node=node("n0", gpus, cpu=2000)))
    facts = {"limit_s": limit_s, "runs_s": 40.0, "cpu": 500}
    world.add(0, **facts)
    world.add(1000, priority=Priority.IDLE, cpu=500, runs_s=100.0)
    assert len(world.plan()) == 2
    high = world.add(1000 * gpus, priority=Priority.HIGH, cpu=2000)
    for _ in range(20):
        small, idle = world.add(0, **facts), world.add(1000, priority=Priority.IDLE, cpu=500)
        world.plan()
        if high in world.began:
            break
        assert {small, idle}.isdisjoint(world.began)
        said = ("1 node is held for it, ahead of lower priorities", "one session will leave soon")
        assert any(words in world.why(high) for words in said)
        world.pass_to(world.now + 15.0)
    assert world.began[high] == NOW + 100.0, "when what ran there by then has ended"


def test_nodes_held_against_lower_classes_are_open_to_all_others_and_to_what_fits_beside() -> None:
    world = Clocked()
    world.happen(NodeChanged(node=node("n0", 4, cpu=8000)))
    world.add(1000, cpu=1000)
    world.plan()
    high = world.add(4000, priority=Priority.HIGH, cpu=4000)
    world.plan()
    beside, too_wide = world.add(0, cpu=2000), world.add(0, cpu=3000)
    assert world.plan() == [beside], "it leaves four cores beside itself and what ends"
    same_class = world.add(3000, priority=Priority.HIGH, cpu=1000)
    assert world.plan() == [same_class], "smaller ones of its class pass until it is due"
    assert {high, too_wide}.isdisjoint(world.began)


def test_nodes_of_which_its_own_class_took_stay_held_until_it_is_looked_for_others() -> None:
    world = clocked(8)
    world.add(7000, priority=Priority.HIGH)
    world.plan()
    high = world.add(8000, priority=Priority.HIGH)
    world.plan()
    holding, looked_at = world.index.cluster.holding, NOW
    lower = world.add(1000)
    for _ in range(3):
        same = world.add(1000, priority=Priority.HIGH, runs_s=1.0)
        assert world.plan() == [same]
        promise = holding.get(high)
        assert promise is not None
        assert (promise.is_broken, promise.bars_own_class) == (True, False)
        world.pass_to(world.now + 1.0)
        assert lower not in world.began, "its nodes are held between two passes, too"
        assert holding.looked_at == looked_at, "nodes are not looked for in each pass"
    assert world.index.due() == looked_at + BROKEN_REVIEW_S
    world.pass_to(looked_at + BROKEN_REVIEW_S)
    assert world.plan() == []
    promise = holding.get(high)
    assert promise is not None
    assert holding.looked_at == looked_at + BROKEN_REVIEW_S
    assert not promise.is_broken


def test_where_its_own_class_took_most_of_what_is_held_another_node_is_soon() -> None:
    world = clocked(8, 8)
    world.add(5000, priority=Priority.HIGH)
    world.add(6000, priority=Priority.HIGH)
    world.plan()
    high = world.add(8000, priority=Priority.HIGH)
    lower = world.add(8000)
    world.plan()
    promise = world.index.cluster.holding.get(high)
    assert promise is not None
    [first] = promise.parts
    same = world.add(3000, priority=Priority.HIGH)
    assert world.plan() == [same]
    world.pass_to(world.now + BROKEN_REVIEW_S)
    small = world.add(1000)
    assert world.plan() == []
    promise = world.index.cluster.holding.get(high)
    assert promise is not None
    assert first not in promise.parts
    assert {lower, small}.isdisjoint(world.began)


def test_nodes_are_held_where_least_stays_counting_cores_and_what_may_be_preempted() -> None:
    world = clocked(4, 4, 4)
    stays = world.add(0, cpu=8000)
    world.plan()
    widest = world.add(3000, cpu=1000, priority=Priority.IDLE)
    endless = world.add(2000, cpu=1000)
    world.plan()
    where = {
        one.session_id: name
        for name, allocation in world.snapshot.allocations.items()
        for one in allocation.replicas
    }
    assert len({where[stays], where[widest], where[endless]}) == 3
    high = world.add(4000, priority=Priority.HIGH, cpu=8000)
    world.plan()
    promise = world.index.cluster.holding.get(high)
    assert promise is not None
    assert list(promise.parts) == [where[widest]]


def test_who_is_due_gets_nodes_before_whoever_has_a_smaller_share() -> None:
    world = clocked(2, 2, 4)
    world.add(4000, owner="lee")
    world.plan()
    world.add(1000, owner="park", limit_s=HOUR)
    world.add(1000, owner="park", limit_s=2 * HOUR)
    world.plan()
    longest = world.add(2000, 2, owner="lee", created_at=NOW - MOST_PATIENCE_S - HOUR)
    later = world.add(2000, 2, owner="kim", created_at=NOW - MOST_PATIENCE_S)
    young = world.add(2000, 2, owner="kim")
    assert world.plan() == []
    assert [one for one in (longest, later, young) if world.promised(one)] == [longest]


def test_a_due_one_takes_the_place_of_one_that_is_not() -> None:
    world = clocked(2)
    world.add(1000, limit_s=100 * HOUR)
    world.add(500)
    world.plan()
    world.end("s0002")
    young = world.add(2000, owner="lee")
    without_limit = world.add(2000, owner="park", created_at=NOW - MOST_PATIENCE_S + HOUR)
    world.plan()
    assert world.promised(young) or world.promised(without_limit)
    world.now += HOUR + REVIEW_S
    world.add(2000, owner="kim")
    world.plan()
    assert world.promised(without_limit)
    assert not world.promised(young)


def test_who_has_a_reservation_is_told_when_and_others_why() -> None:
    world = clocked(2)
    world.add(1000, limit_s=HOUR)
    world.plan()
    gang, small = world.add(2000, owner="lee"), world.add(1000)
    world.plan()
    told = QueueQueries(world.index).outlook(gang, world.now)
    assert told is not None
    assert told.expected_start == world.promised(gang) == NOW + HOUR + GRACE_S
    assert "most free on one node: 1 (node n0); 1 node is held for it" in world.why(gang)
    assert "1 node is held for a session ahead of it" in world.why(small)


def test_room_that_is_held_for_others_is_told_beside_what_is_full() -> None:
    world = clocked(2, 2)
    for gpus in (2000, 1000):
        world.add(gpus, limit_s=HOUR)
    world.plan()
    gang = world.add(2000, owner="lee")
    world.plan()
    assert world.promised(gang)
    half = world.add(500)
    world.plan()
    words = "no GPU has 0.5 free; 1 node with room for it is held for others"
    assert words in world.why(half)
    told = QueueQueries(world.index).outlook(half, world.now)
    assert told is not None
    assert told.is_held
    assert told.expected_start == NOW + HOUR + GRACE_S, "not now: that room is the other one's"


def test_where_all_room_is_held_for_others_it_is_not_said_to_be_free_now() -> None:
    world = clocked(2)
    world.add(1000, limit_s=HOUR)
    world.plan()
    gang = world.add(2000, owner="lee")
    world.plan()
    waits = world.add(500)
    world.plan()
    told = QueueQueries(world.index).outlook(waits, world.now)
    assert world.promised(gang)
    assert told is not None
    assert (told.is_held, told.expected_start) == (True, 0.0)


def a_stream(draw: random.Random, world: Clocked, *, limited: bool, most_s: float) -> None:
    """One more session, of any width that some node holds."""
    limit_s = draw.choice([0.2, 0.5, 1.0]) * most_s
    runs_s = limit_s * draw.choice([0.1, 0.5, 1.0])
    is_limited = limited or draw.random() < 0.5
    world.add(
        draw.choice([250, 500, 1000, 1000, 1000, 2000]),
        draw.choice([1, 1, 1, 1, 2]),
        limit_s=limit_s if is_limited else 0.0,
        runs_s=runs_s,
        owner=draw.choice(["kim", "lee", "park"]),
        cpu=draw.choice([0, 0, 0, 3000]),
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_delays_a_reservation_while_limits_are_kept(seed: int) -> None:
    draw = random.Random(seed)
    world = clocked(*[draw.choice([1, 2, 4]) for _ in range(draw.randrange(1, 5))])
    promised: dict[str, float] = {}
    while world.now < NOW + LEAST_PATIENCE_S - 1:  # nobody is due
        a_stream(draw, world, limited=True, most_s=HOUR)
        world.plan()
        check_promises(world, promised)
        step = min(world.now + draw.choice([1.0, 60.0, 600.0]), NOW + LEAST_PATIENCE_S - 1)
        for _ in world.until(step):
            check_promises(world, promised)


def check_promises(world: Clocked, promised: dict[str, float]) -> None:
    waiting = {one.id for one in world.index.cluster.queued()}
    for one in waiting:
        at = world.promised(one)
        if one in promised:
            # Nothing that was promised is taken back.
            assert world.now <= at <= promised[one]
        if at:
            promised[one] = at
    for one, at in promised.items():
        assert one in waiting or world.began[one] <= at


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_nobody_waits_longer_than_the_bound(seed: int) -> None:
    """Its patience, and then for as long as those that were due before it and what runs take to end."""
    draw = random.Random(seed)
    sizes = [draw.choice([1, 2, 4]) for _ in range(draw.randrange(1, 4))]
    world = clocked(*sizes)
    due_at = NOW + HOUR
    widest = max(sizes)
    gangs = [
        world.add(
            1000 * widest,
            draw.randrange(1, sizes.count(widest) + 1),
            runs_s=draw.choice([0.2, 1.0]) * HOUR,
            owner="gang",
            created_at=due_at - MOST_PATIENCE_S + number,
        )
        for number in range(draw.randrange(1, 3))
    ]
    bound = due_at + 2 * len(gangs) * (HOUR + REVIEW_S)
    while world.now < bound and not set(gangs) <= world.began.keys():
        for _ in range(draw.randrange(1, 8)):
            a_stream(draw, world, limited=False, most_s=HOUR)
        world.plan()
        world.pass_to(world.now + draw.choice([60.0, 300.0]))
    for one in gangs:
        assert world.began[one] <= bound


def history(seed: int, world: Clocked) -> list[Plan]:
    draw = random.Random(seed)
    for _ in range(25):
        a_stream(draw, world, limited=draw.random() < 0.5, most_s=HOUR)
        if draw.random() < 0.1:
            waiting = sorted(one.id for one in world.index.cluster.queued())
            if waiting:
                world.happen(SessionRemoved(session_id=draw.choice(waiting)))
        world.plan()
        world.pass_to(world.now + draw.choice([1.0, 60.0, 3600.0, 40_000.0]))
    return world.plans


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_history_leads_to_the_same_plans(seed: int) -> None:
    assert history(seed, clocked(2, 4, 4)) == history(seed, clocked(2, 4, 4))
