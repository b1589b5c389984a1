"""Our scheduler in a replay: the very index of the control plane, told what happens, asked for plans, and obeyed.

What waits are sessions with the time limit that their users stated; those that can be resumed save every
`SAVE_EVERY_S`, and on notice. Who is to give way does so at once, and waits again; what that costs
is the simulator's to count (`Cluster.preemption_s`). Nobody has a project, and all are of one user.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from bench.scheduler.records import Records, node_of
from controlplane.domain.values import WHOLE_DEVICE, Progress, Resources, Session, SessionSpec
from controlplane.scheduler import InClass, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scheduler.simulator import Cluster, Live, Spots
    from controlplane.domain.plan import Placement, Plan
    from controlplane.domain.values import Node

RULES: Final = Rules(in_class=InClass.SERVICE)
"""All are of one class and user, and many state no time limit: those give way to each other by what they had. It is a
setting of the control plane (`give_way_in_class`, docs/giving-way.md), and not the one that it has by itself."""

EPOCH: Final = 1_000_000_000.0
"""Unix seconds at the instant 0 of a replay: to the index an instant 0 means none."""

ROUND_S: Final = 600.0
"""How long after a pass the next one begins at the earliest, where nothing has happened."""

SAVE_EVERY_S: Final = 1_800.0
"""How often those save that can be resumed."""

_GPU_CPU_THOUSANDTHS: Final = 4_000
_GPU_MEMORY_BYTES: Final = 32 << 30
"""Of a node for each of its GPUs: more than a session gets that does not say what it wants."""


class Indexed:
    """`ClusterIndex` decides."""

    def __init__(self) -> None:
        self.records = Records(())
        self._width = 0
        self._lives: dict[str, Live] = {}
        self._came: list[Live] = []
        self._saves: list[tuple[float, str, int]] = []

    def submitted(self, live: Live) -> None:
        """It waits from the next decision on."""
        self._came.append(live)

    def ended(self, live: Live) -> None:
        """Its devices are free."""
        del self._lives[_id_of(live)]
        self.records.end(_id_of(live))

    def decide(self, cluster: Cluster) -> float:
        """Do what the index plans, until it has nothing to do: who gave way may fit elsewhere."""
        if not self._width:
            self._width = cluster.floor.width
            self.records = Records(_nodes(cluster), RULES)
        now = EPOCH + cluster.now
        for live in self._came:
            self._lives[_id_of(live)] = live
            self.records.submit(_session_of(live, self._width))
        self._came.clear()
        self._save(now)
        index = self.records.index
        while self._obey(index.plan(now), cluster) and index.is_due(now):
            pass
        due = index.due()
        return math.inf if due is None else max(due - EPOCH, cluster.now + ROUND_S)

    def _obey(self, plan: Plan, cluster: Cluster) -> bool:
        """Whether there was anything to do."""
        now = EPOCH + cluster.now
        self.records.commit(plan, now)
        for placement in plan.placements:
            live = self._lives[placement.session_id]
            cluster.start(live, _spots_of(placement))
            if live.arrival.is_resumable:
                attempt = self.records.sessions[placement.session_id].attempt
                heappush(self._saves, (now + SAVE_EVERY_S, placement.session_id, attempt))
        for one in plan.preemptions:
            cluster.preempt(self._lives[one.session_id])
            self.records.requeue(one.session_id, now)
        return bool(plan.placements or plan.preemptions)

    def _save(self, now: float) -> None:
        """Let the index know of what was saved by now."""
        while self._saves and self._saves[0][0] <= now:
            at, session_id, attempt = heappop(self._saves)
            session = self.records.sessions.get(session_id)
            if session is None or session.attempt != attempt or not session.replicas:
                continue
            at += (now - at) // SAVE_EVERY_S * SAVE_EVERY_S
            self.records.submit(replace(session, progress=replace(session.progress, saved_at=at)))
            heappush(self._saves, (at + SAVE_EVERY_S, session_id, attempt))


def _nodes(cluster: Cluster) -> Iterator[Node]:
    width = cluster.floor.width
    cpu, memory = width * _GPU_CPU_THOUSANDTHS, width * _GPU_MEMORY_BYTES
    for node in range(len(cluster.floor.free)):
        yield node_of(f"{node:05}", "GPU", width, cpu_thousandths=cpu, memory_bytes=memory)


def _id_of(live: Live) -> str:
    return f"{live.number:08}"


def replicas_of(gpus: int, width: int) -> tuple[int, int]:
    """In how many replicas, all alike, so many GPUs are asked for of nodes of this width, and the GPUs of each."""
    size = gpus if gpus <= width else math.gcd(gpus, width)
    return gpus // size, size


def _session_of(live: Live, width: int) -> Session:
    count, size = replicas_of(live.gpus, width)
    return Session(
        id=_id_of(live),
        name=f"trace/None/{live.number}",
        owner="trace",
        created_at=EPOCH + live.arrival.submitted_at,
        spec=SessionSpec(
            resources=Resources(gpu_thousandths=size * WHOLE_DEVICE),
            replica_count=count,
            time_limit_s=live.arrival.limit_s,
        ),
        progress=Progress(is_resumable=live.arrival.is_resumable),
    )


def _spots_of(placement: Placement) -> Spots:
    parts = Counter[int]()
    for replica in placement.replicas:
        parts[int(replica.node)] += len(replica.devices)
    return tuple(parts.items())
