"""A wall clock that is set by an hour changes nothing of what is decided.

The same history is told twice, once with such a step in it: what is written and what is decided goes by a steady clock.
All that happens, happens on a grid of instants, and no rule's waits end close to it: the steady clock may be off by a
fiftieth of what passed while it catches up.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest

from controlplane.domain.changes import AllocationChanged, NodeChanged, SessionChanged
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    EndedAttempt,
    Priority,
    Progress,
    Replica,
    Session,
    Stop,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from nsml.common.clock import SteadyClock
from tests.unit.controlplane.builders import node, session
from tests.unit.nsml.common.test_clock import HOUR_S, SetClock

TICK_S = 1_000.0
TICKS = 12
GRACE_S = TICK_S / 2


class History:
    """Drawn by a seed; the wall clock is set by so much before one of its ticks."""

    def __init__(self, seed: int, by_s: float) -> None:
        self.rng = random.Random(seed)
        self.wall = SetClock()
        self.clock = SteadyClock(self.wall)
        self.set_at, self.by_s = self.rng.randrange(1, TICKS), by_s
        self.index = ClusterIndex()
        self.answers = QueueQueries(self.index)
        self.index.apply(NodeChanged(node=node(name, 2)) for name in "ab")
        self.running: dict[str, tuple[Session, list[tuple[str, AllocatedReplica]]]] = {}
        self.numbers = itertools.count()
        self.decided: list[object] = []

    def told(self) -> list[object]:
        for _ in range(4):
            self._submit(waited_s=TICK_S * self.rng.randrange(12))
        for tick in range(TICKS):
            self.wall.set_by = self.by_s if tick >= self.set_at else 0.0
            for _ in range(self.rng.randrange(3)):
                self._submit()
            for session_id in list(self.running):
                self._goes_on(session_id)
            self._decide()
            self.wall.passed += TICK_S
        return self.decided

    def _submit(self, waited_s: float = 0.0) -> None:
        rng, number = self.rng, next(self.numbers)
        spec = {
            "priority": rng.choice([Priority.LOW, Priority.NORMAL, Priority.HIGH]),
            "time_limit_s": rng.choice([0.0, 5_000.0]),
            "grace_s": GRACE_S,
        }
        one = session(
            1000,
            rng.choice([1, 1, 2]),
            spec=spec,
            id=f"s{number:03}",
            name=f"s{number:03}",
            owner=rng.choice(["kim", "lee"]),
            created_at=self.clock.time() - waited_s,
        )
        self.index.apply([SessionChanged(session=one)])

    def _goes_on(self, session_id: str) -> None:
        """What runs saves, ends, fails and is put off, or gives way as it was told."""
        known, held = self.running[session_id]
        chance, delay_s = self.rng.random(), TICK_S * self.rng.randrange(4) + TICK_S / 2
        now = self.clock.time()
        if known.stop is not None or chance < 0.2:
            del self.running[session_id]
            self._allocate(held, takes=False)
            began = held[0][1].placed_at
            ended = EndedAttempt(
                number=known.attempt,
                cause=Cause.PREEMPTED,
                placed_at=began,
                ended_at=now,
                gpu_thousandths=1000 * len(held),
                held_s=round((now - began) / TICK_S) * TICK_S,
            )
            known = replace(
                known,
                state=SessionState.QUEUED,
                replicas=(),
                stop=None,
                attempts=(*known.attempts, ended),
                not_before=0.0 if known.stop else now + delay_s,
            )
        elif chance < 0.5:
            progress = Progress(is_resumable=True, saved_at=now)
            known = replace(known, progress=progress)
            self.running[session_id] = known, held
        self.index.apply([SessionChanged(session=known)])

    def _allocate(self, replicas: list[tuple[str, AllocatedReplica]], *, takes: bool) -> None:
        for name in {name for name, _ in replicas}:
            others = [
                one
                for _, held in self.running.values()
                for where, one in held
                if where == name and (takes or held is not replicas)
            ]
            allocation = Allocation(node=name, replicas=tuple(others))
            self.index.apply([AllocationChanged(allocation=allocation)])

    def _decide(self) -> None:
        now = self.clock.time()
        plan = self.index.plan(now)
        placed = [self.index.cluster.started[one.session_id] for one in plan.placements]
        for one, found in zip(placed, plan.placements, strict=True):
            held = [
                (
                    at.node,
                    AllocatedReplica(
                        session_id=one.id,
                        attempt=one.attempt + 1,
                        rank=at.rank,
                        devices=at.devices,
                        cpu_thousandths=at.resources.cpu_thousandths,
                        memory_bytes=at.resources.memory_bytes,
                        placed_at=now,
                    ),
                )
                for at in found.replicas
            ]
            replicas = tuple(
                Replica(rank=at.rank, node=at.node, resources=at.resources, started_at=now)
                for at in found.replicas
            )
            runs = replace(
                one, state=SessionState.RUNNING, attempt=one.attempt + 1, replicas=replicas
            )
            self.running[one.id] = runs, held
            self._allocate(held, takes=True)
            self.index.apply([SessionChanged(session=runs)])
        for going in plan.preemptions:
            known, held = self.running[going.session_id]
            stop = Stop(grace_s=GRACE_S, cause=Cause.PREEMPTED, reason=going.why)
            known = replace(known, state=SessionState.STOPPING, stop=stop)
            self.running[known.id] = known, held
            self.index.apply([SessionChanged(session=known)])
        self.index.settle(plan, ())
        told = self.answers.deferrals(now)
        self.decided.append(
            (
                [(one.session_id, [at.node for at in one.replicas]) for one in plan.placements],
                [(one.session_id, one.for_session_id, one.why) for one in plan.preemptions],
                [(one.session_id, re.sub(r"\d+ s", "", one.explanation.reason)) for one in told],
                sorted(one.session_id for one in told if one.session_id in self.index._holding),
            )
        )


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("seed", range(40))
def test_the_same_is_decided_however_the_wall_clock_is_set(seed: int, by_s: float) -> None:
    assert History(seed, by_s).told() == History(seed, 0.0).told()


def test_the_histories_have_what_an_hour_could_change() -> None:
    told = [one for seed in range(40) for one in History(seed, 0.0).told()]
    assert any(one[1] for one in told), "some give way"
    assert any(one[3] for one in told), "nodes are held"
    assert any("tried" in why or "another" in why for one in told for _, why in one[2]), "put off"
