"""Nodes where somebody gives way are found as by a look at all of them, whatever has happened meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    EndedAttempt,
    Priority,
    Progress,
    Project,
    Replica,
    Session,
    Stop,
)
from controlplane.scheduler import Cluster
from controlplane.scheduler import preemption_candidates as yielders
from controlplane.scheduler.entitlement import held_by
from controlplane.scheduler.node_capacity import NodeCapacity
from controlplane.scheduler.preemption_candidates import MOST_ROOMS, Giving
from controlplane.scheduler.preemption_policy import DUE, InClass, Preemptor, Rules, ground
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW

NAMES = [f"n{i}" for i in range(6)]
OWNERS = ["kim", "lee", "park"]
AGES_S = [0.0, 59.0, 60.0, 299.0, 300.0, 1_799.5, 1_800.0, 3_600.0, 80_000.0]
STEPS_S = [0.25, 1.0, 60.0, 299.9, 900.0, 1_799.9, 7_200.0, -500.0]
LIMITS_S = [0.0, 3_600.0, 86_400.0]


class Nodes:
    """A cluster of which the nodes alone matter where somebody gives way."""

    def __init__(self, rules: Rules) -> None:
        self.cluster = Cluster(rules)
        self.allocations = {name: Allocation(node=name) for name in NAMES}
        self.sessions: dict[str, Session] = {}
        self.now = NOW
        for name in NAMES:
            self.set(name, is_silent=False)

    def set(self, name: str, *, is_silent: bool) -> None:
        self.cluster.rooms.set(node(name), self.allocations[name], is_silent=is_silent)

    def run(self, data: st.DataObject) -> None:
        """A session starts, which its node is told of before, after, or not yet."""
        gpus = data.draw(st.sampled_from([0, 500, 1000, 2000]))
        where = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
        spec = {
            "priority": data.draw(st.sampled_from(Priority)),
            "preemptible": data.draw(st.booleans()),
            "time_limit_s": data.draw(st.sampled_from(LIMITS_S)),
        }
        one = session(gpus, len(where), owner=data.draw(st.sampled_from(OWNERS)), spec=spec)
        since = self.now - data.draw(st.sampled_from(AGES_S))
        before_s = data.draw(st.sampled_from([0.0, 0.0, 5_000.0]))
        ended = EndedAttempt(
            number=1,
            cause=Cause.PREEMPTED,
            placed_at=since - before_s,
            ended_at=since,
            gpu_thousandths=gpus,
            held_s=before_s,
        )
        attempts = (ended,) if before_s else ()
        resources = one.spec.resources
        placed = replace(
            one,
            state=SessionState.RUNNING,
            attempt=len(attempts) + 1,
            attempts=attempts,
            replicas=tuple(
                Replica(rank=i, node=name, resources=resources) for i, name in enumerate(where)
            ),
            progress=self._progress(data, since),
        )
        steps = [lambda: self.take(placed), lambda: self._allocate(placed, since)]
        for step in data.draw(st.permutations(steps))[: data.draw(st.sampled_from([1, 2, 2, 2]))]:
            step()

    def _progress(self, data: st.DataObject, since: float) -> Progress:
        is_resumable = data.draw(st.booleans())
        saved_at = data.draw(st.sampled_from([0.0, since + 10.0])) if is_resumable else 0.0
        return Progress(is_resumable=is_resumable, saved_at=saved_at)

    def take(self, one: Session) -> None:
        self.sessions[one.id] = one
        self.cluster.entitlements.hold(one, held_by(one))
        self.cluster.yielders.put(one)

    def _allocate(self, one: Session, since: float) -> None:
        for replica in one.replicas:
            known = self.allocations[replica.node]
            added = AllocatedReplica(
                session_id=one.id, attempt=one.attempt, rank=replica.rank, placed_at=since
            )
            self._tell(replace(known, replicas=(*known.replicas, added)))

    def _tell(self, allocation: Allocation) -> None:
        self.allocations[allocation.node] = allocation
        self.cluster.rooms.change(allocation)
        self.cluster.rooms.settle()

    def change(self, data: st.DataObject) -> None:
        """A session saves, is asked to leave, is stopped, or ends."""
        if not self.sessions:
            return
        one = self.sessions[data.draw(st.sampled_from(sorted(self.sessions)))]
        what = data.draw(st.sampled_from(["saves", "leaves", "is stopped", "ends", "ends"]))
        if what == "saves":
            self.take(replace(one, progress=Progress(is_resumable=True, saved_at=self.now)))
        elif what == "ends":
            del self.sessions[one.id]
            self.cluster.entitlements.release(one.id)
            self.cluster.yielders.drop(one.id)
            for known in list(self.allocations.values()):
                left = tuple(other for other in known.replicas if other.session_id != one.id)
                self._tell(replace(known, replicas=left))
        else:
            cause = Cause.PREEMPTED if what == "leaves" else Cause.STOP_REQUESTED
            self.take(replace(one, stop=Stop(grace_s=1.0, cause=cause)))

    def plain(self, taker: Preemptor, asked: set[str], barred: set[str]) -> dict[str, Giving]:
        """What is to be found: by a look at every node."""
        found: dict[str, Giving] = {}
        for name in sorted(NAMES):
            room = self.cluster.rooms.get(name)
            if room is None or not room.is_open or room.keeper or name in barred:
                continue
            giving = Giving([], [])
            for one in self.cluster.yielders.on(room):
                runner = one.runner(self.cluster.entitlements, self.now)
                if one.is_leaving or one.session.id in asked:
                    giving.leaving.append(one.session.id)
                elif ground(runner, taker, self.cluster.rules):
                    giving.runners.append(runner)
            if (giving.leaving or giving.runners) and len(found) < yielders.MOST_ROOMS:
                found[name] = giving
        return found


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_nodes_are_found_as_by_a_look_at_all(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yielders, "MOST_ROOMS", data.draw(st.sampled_from([2, MOST_ROOMS])))
        nodes = Nodes(Rules(in_class=data.draw(st.sampled_from(InClass))))
        for _ in range(data.draw(st.integers(1, 25))):
            _happen(nodes, data)
            _check(nodes, data)


def _happen(nodes: Nodes, data: st.DataObject) -> None:
    cluster, name = nodes.cluster, data.draw(st.sampled_from(NAMES))
    what = data.draw(
        st.sampled_from(["run", "run", "run", "change", "time", "node", "keep", "weight"])
    )
    if what == "run":
        nodes.run(data)
    elif what == "change":
        nodes.change(data)
    elif what == "time":
        nodes.now += data.draw(st.sampled_from(STEPS_S))
    elif what == "keep":
        cluster.rooms.keep(name, data.draw(st.sampled_from(["", "s"])))
    elif what == "weight":
        owner, weight = data.draw(st.sampled_from(OWNERS)), data.draw(st.sampled_from([0.5, 2.0]))
        cluster.entitlements.set_project(
            Project(name=owner, members=frozenset({owner}), weight=weight)
        )
    elif data.draw(st.booleans()):
        nodes.set(name, is_silent=data.draw(st.booleans()))
    else:
        cluster.rooms.remove(name)


def _check(nodes: Nodes, data: st.DataObject) -> None:
    taker = Preemptor(
        level=data.draw(st.sampled_from([DUE, 0, 2, 3, 6])),
        priority=data.draw(st.sampled_from(Priority)),
        has_limit=data.draw(st.booleans()),
        account=data.draw(st.sampled_from(OWNERS)),
        share=data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, float("inf")])),
    )
    ids = sorted(nodes.sessions)
    asked = data.draw(st.sets(st.sampled_from(ids), max_size=2)) if ids else set()
    barred = data.draw(st.sets(st.sampled_from(NAMES), max_size=1))

    def bars(room: NodeCapacity) -> bool:
        return room.name in barred

    found = nodes.cluster.yielders.rooms(taker, asked, nodes.now, bars)
    told = [(room.name, giving) for room, giving in found.items()]
    assert told == list(nodes.plain(taker, asked, barred).items())


def test_at_an_earlier_instant_they_are_found_as_they_were_then() -> None:
    nodes = Nodes(Rules())
    one = session(1000, owner="kim", spec={"time_limit_s": 86_400.0})
    replica = Replica(rank=0, node="n0", resources=one.spec.resources)
    saved = Progress(is_resumable=True, saved_at=NOW)
    nodes.take(replace(one, state=SessionState.RUNNING, replicas=(replica,), progress=saved))
    held = AllocatedReplica(session_id=one.id, attempt=1, rank=0, placed_at=NOW - 80_000.0)
    nodes.cluster.rooms.change(Allocation(node="n0", replicas=(held,)))
    nodes.cluster.rooms.settle()
    taker = Preemptor(level=5, priority=Priority.NORMAL, account="kim")
    for earlier_s, count in ((0.0, 0), (50_000.0, 1)):
        found = nodes.cluster.yielders.rooms(taker, (), NOW - earlier_s, lambda _: False)
        assert len(found) == count
