"""How fast the scheduler decides, in the process alone: no store, no agents.

A cluster of 1,000 and one of 10,000 nodes with 8 GPUs each, 95 % full, and 100,000 sessions in the queue, of 50
projects with budgets, in three classes, each with a dataset. 70 % ask for 1 GPU, then 2, 4, 8, 16, 32, 64 and
128 GPUs by 5, 9, 10, 3, 1.5, 1 and 0.5 %; above 8 GPUs they are gangs of replicas of 8. Gangs of 128 GPUs that
do not fit stand at the head. Figures, with N nodes:

- `core_N_placed_per_s`: sessions placed in rounds in which a fifth of what runs ends, over the time that the
  index takes for what ended, for the plan, for what the store tells of it once it is committed, and for
  settling it. What the store itself does is not in it, nor who submits.
- `core_N_planned_per_s`: the same over the time of the plans alone.
- `core_N_deferred_per_s`: place in the queue and explanation of each session that still waits, after a round.
- `literal_N_placed_per_s`: the rule as its text has it: all nodes are sorted for each placement.
- `pass_p50_ms`, `pass_p99_ms`: at 10,000 nodes, from the end of one session to the plan that it leads to. Time moves
  there by a second from pass to pass, and half of the sessions have a time limit: so passes are among them in which
  it is looked for whom nodes are to be held (`reservations.py`).
- `rss_bytes`: the most memory that the process had, what the benchmark itself keeps included.
- `python_steps_per_s`: a fixed loop in the same run, by which figures of two machines are compared.

Times are of the processor, so that what else a machine does matters less. Garbage is collected as in the control
plane's process (`nsml/common/python_gc.py`).
"""

from __future__ import annotations

import gc
import random
import resource
import sys
from bisect import bisect_left
from dataclasses import replace
from heapq import heappop, heappush
from time import process_time
from typing import TYPE_CHECKING, Final, TypeVar

from bench.report import percentile
from bench.scheduler.outcome import Outcome
from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    ProjectChanged,
    SessionChanged,
    UsedChanged,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    WHOLE_DEVICE,
    AllocatedReplica,
    Allocation,
    Budget,
    DatasetVersion,
    Device,
    DeviceShare,
    Isolation,
    Node,
    Priority,
    Project,
    Replica,
    Resources,
    Session,
    SessionSpec,
    Used,
)
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.fit import DEFAULT_CPU_THOUSANDTHS, DEFAULT_MEMORY_BYTES
from nsml.common.python_gc import collect_seldom

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.changes import Change
    from controlplane.domain.plan import Placement, Plan

T = TypeVar("T")

SEED: Final = 1
CLUSTERS: Final = {1_000: 40, 10_000: 8}
"""Nodes, and the rounds that are timed there."""
LARGEST: Final = 10_000
GPUS_PER_NODE: Final = 8
FULL: Final = 0.95
QUEUED: Final = 100_000
AT_THE_HEAD: Final = 50
PROJECTS: Final = 50
DATASETS: Final = 20
SIZES: Final = {1: 70, 2: 5, 4: 9, 8: 10, 16: 3, 32: 1.5, 64: 1, 128: 0.5}
"""GPUs that a session asks for, and how many in a hundred do."""
CLASSES: Final = (Priority.LOW, Priority.NORMAL, Priority.HIGH)
ENDING: Final = 0.2
PASSES: Final = 400
WARMING: Final = 20
PASS_S: Final = 1.0
"""Between two passes, by the clock of the cluster."""
LIMITED: Final = 0.5
"""Of the sessions, those with a time limit while passes are measured."""
LIMITS_S: Final = (24 * 3_600.0, 72 * 3_600.0, 168 * 3_600.0)
COMMITTED_TOGETHER: Final = 100
"""Decisions in one transaction of the store: it tells of each node once for all of them."""
LITERAL_PLACEMENTS: Final = 2000
STEPS: Final = 2_000_000
NOW: Final = 1_800_000_000.0
_MILLISECONDS: Final = 1000.0
_NODE: Final = Resources(
    gpu_thousandths=GPUS_PER_NODE * WHOLE_DEVICE, cpu_thousandths=96_000, memory_bytes=768 * 2**30
)
_DEFAULT: Final = Resources(
    cpu_thousandths=DEFAULT_CPU_THOUSANDTHS, memory_bytes=DEFAULT_MEMORY_BYTES
)


def measure() -> Outcome:
    """Every figure, for each size of cluster."""
    print(f"seed {SEED}", file=sys.stderr)
    collect_seldom()
    figures = {"python_steps_per_s": _steps()}
    for nodes, rounds in CLUSTERS.items():
        figures |= _measure(Cluster(nodes, random.Random(SEED)), rounds)
    figures |= _passes(Cluster(LARGEST, random.Random(SEED), limited=LIMITED))
    figures["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return Outcome(figures=figures)


def _measure(cluster: Cluster, rounds: int) -> dict[str, float]:
    index, size = _loaded(cluster), len(cluster.nodes)
    figures = {f"core_{size}_{name}": rate for name, rate in _rounds(index, cluster, rounds)}
    figures[f"literal_{size}_placed_per_s"] = _literal(cluster)
    return figures


def _loaded(cluster: Cluster) -> ClusterIndex:
    """An index that knows the cluster, and has planned for it once."""
    # The one that was measured before is of no use any more, and would count as memory of this one.
    gc.collect()
    index = ClusterIndex()
    index.apply(cluster.everything())
    cluster.commit(index, index.plan(cluster.now))
    index.apply(cluster.refill())
    return index


class Cluster:
    """What the store holds, and tells of as it changes.

    Args:
        nodes: how many.
        draw: what is random here.
        limited: share of the sessions that have a time limit.

    Attributes:
        now: Unix seconds.
    """

    def __init__(self, nodes: int, draw: random.Random, *, limited: float = 0.0) -> None:
        self.draw = draw
        self.now = NOW
        self._limited = limited
        self.nodes = [_node(number) for number in range(nodes)]
        self.allocations = {one.name: Allocation(node=one.name) for one in self.nodes}
        self.running: dict[str, Session] = {}
        self.queued: dict[str, Session] = {}
        self._limits: list[tuple[float, str]] = []
        self._count = 0
        self._fill()
        for _ in range(AT_THE_HEAD):
            self._submit(max(SIZES))
        self.refill()

    def everything(self) -> Iterator[Change]:
        """All that there is."""
        for number in range(PROJECTS):
            name = _project(number)
            budget = Budget(gpu_seconds=1e12, period_days=28, anchor=0.0)
            since, until = budget.period(NOW)
            yield ProjectChanged(
                project=Project(name=name, members=frozenset({_user(number)}), budget=budget)
            )
            yield UsedChanged(used=Used(project=name, gpu_units=1, since=since, until=until))
        yield from (NodeChanged(node=node) for node in self.nodes)
        yield from (AllocationChanged(allocation=one) for one in self.allocations.values())
        yield from (SessionChanged(session=one) for one in self.running.values())
        yield from (SessionChanged(session=one) for one in self.queued.values())

    def refill(self) -> list[Change]:
        """Let as many wait as there were."""
        come = [self._submit(self._size()) for _ in range(QUEUED - len(self.queued))]
        return [SessionChanged(session=one) for one in come]

    def end(self, share: float = 0.0) -> list[Change]:
        """A share of what runs ends, or one session: one that is at its limit, if there is any."""
        count = max(1, int(len(self.running) * share))
        changes: list[Change] = []
        ending = [] if share else self._at_its_limit()
        for some in _batches(ending or self.draw.sample(list(self.running), count)):
            left = set(some)
            touched = {r.node for session_id in some for r in self.running[session_id].replicas}
            for name in sorted(touched):
                held = self.allocations[name].replicas
                changes.append(
                    self._allocate(name, tuple(r for r in held if r.session_id not in left))
                )
            for session_id in some:
                ended = replace(self.running.pop(session_id), state=SessionState.SUCCEEDED)
                changes.append(SessionChanged(session=ended))
        return changes

    def _at_its_limit(self) -> list[str]:
        while self._limits and self._limits[0][0] <= self.now:
            _, session_id = heappop(self._limits)
            if session_id in self.running:
                return [session_id]
        return []

    def commit(self, index: ClusterIndex, plan: Plan) -> float:
        """Write a plan, and let the index have what the store tells of it; the seconds of that."""
        changes = list(self._write(plan.placements))
        began = process_time()
        index.apply(changes)
        index.settle(plan, ())
        return process_time() - began

    def _write(self, placements: Iterable[Placement]) -> Iterator[Change]:
        for some in _batches(list(placements)):
            added: dict[str, list[AllocatedReplica]] = {}
            for placement in some:
                for replica in placement.replicas:
                    added.setdefault(replica.node, []).append(
                        AllocatedReplica(
                            session_id=placement.session_id,
                            attempt=1,
                            rank=replica.rank,
                            devices=replica.devices,
                            cpu_thousandths=replica.resources.cpu_thousandths,
                            memory_bytes=replica.resources.memory_bytes,
                            placed_at=self.now,
                        )
                    )
            for name, replicas in added.items():
                yield self._allocate(name, (*self.allocations[name].replicas, *replicas))
            for placement in some:
                placed = _placed(self.queued.pop(placement.session_id), placement, self.now)
                self._run_on(placed, self.now)
                yield SessionChanged(session=placed)

    def _allocate(self, node: str, replicas: tuple[AllocatedReplica, ...]) -> AllocationChanged:
        after = self.allocations[node] = Allocation(node=node, replicas=replicas)
        return AllocationChanged(allocation=after)

    def _fill(self) -> None:
        """Let sessions run on all but a few of the GPUs, the largest alone on their nodes."""
        left = int(len(self.nodes) * GPUS_PER_NODE * FULL)
        sizes = []
        while left:
            size = self._size()
            sizes.append(size if size <= left else 1)
            left -= sizes[-1]
        devices = iter([(node.name, one.uuid) for node in self.nodes for one in node.devices])
        for size in sorted(sizes, reverse=True):
            # All are powers of two: the next devices are always of one node.
            session = self._session(*_gang(size))
            replicas = []
            since = self.now - self.draw.random() * session.spec.time_limit_s
            for rank in range(session.spec.replica_count):
                some = [next(devices) for _ in range(size // session.spec.replica_count)]
                replicas.append(self._run(session.id, rank, some, since))
            running = replace(
                session, state=SessionState.RUNNING, attempt=1, replicas=tuple(replicas)
            )
            self._run_on(running, since)

    def _run_on(self, session: Session, since: float) -> None:
        self.running[session.id] = session
        if session.spec.time_limit_s:
            heappush(self._limits, (since + session.spec.time_limit_s, session.id))

    def _run(
        self, session_id: str, rank: int, devices: list[tuple[str, str]], since: float
    ) -> Replica:
        node = devices[0][0]
        wanted = replace(_DEFAULT, gpu_thousandths=len(devices) * WHOLE_DEVICE)
        held = AllocatedReplica(
            session_id=session_id,
            attempt=1,
            rank=rank,
            devices=tuple(DeviceShare(uuid=uuid, thousandths=WHOLE_DEVICE) for _, uuid in devices),
            cpu_thousandths=wanted.cpu_thousandths,
            memory_bytes=wanted.memory_bytes,
        )
        self._allocate(node, (*self.allocations[node].replicas, held))
        return Replica(rank=rank, node=node, resources=wanted, started_at=since)

    def _submit(self, size: int) -> Session:
        session = self._session(*_gang(size))
        self.queued[session.id] = session
        return session

    def _size(self) -> int:
        return self.draw.choices(list(SIZES), weights=list(SIZES.values()))[0]

    def _session(self, count: int, gpus: int) -> Session:
        self._count += 1
        number = self.draw.randrange(PROJECTS)
        dataset = f"set{self.draw.randrange(DATASETS)}"
        is_limited = self._limited and self.draw.random() < self._limited
        return Session(
            id=f"s{self.draw.getrandbits(80):016x}",
            name=f"{_user(number)}/{dataset}/{self._count}",
            owner=_user(number),
            project=_project(number),
            created_at=NOW - 1_000_000 + self._count,
            spec=SessionSpec(
                entry="train.py",
                datasets=(
                    DatasetVersion(owner="lab", name=dataset, version=1, digest=f"d-{dataset}"),
                ),
                resources=Resources(gpu_thousandths=gpus * WHOLE_DEVICE),
                replica_count=count,
                priority=self.draw.choice(CLASSES),
                time_limit_s=self.draw.choice(LIMITS_S) if is_limited else 0.0,
            ),
        )


def _node(number: int) -> Node:
    name = f"node{number:05}"
    return Node(
        name=name,
        boot_id="boot",
        capacity=_NODE,
        devices=tuple(
            Device(uuid=f"GPU-{number:05}-{i}", index=i, model="H100") for i in range(GPUS_PER_NODE)
        ),
        isolation=Isolation.CONTAINER,
        pod=f"pod{number // 32}",
    )


def _user(number: int) -> str:
    return f"user{number:02}"


def _project(number: int) -> str:
    return f"project{number:02}"


def _gang(size: int) -> tuple[int, int]:
    """How many replicas so many GPUs are asked for in, and how many each has."""
    return max(1, size // GPUS_PER_NODE), min(size, GPUS_PER_NODE)


def _placed(session: Session, placement: Placement, now: float) -> Session:
    return replace(
        session,
        state=SessionState.RUNNING,
        attempt=1,
        replicas=tuple(
            Replica(rank=one.rank, node=one.node, resources=one.resources, started_at=now)
            for one in placement.replicas
        ),
    )


def _batches(things: list[T]) -> Iterator[list[T]]:
    for first in range(0, len(things), COMMITTED_TOGETHER):
        yield things[first : first + COMMITTED_TOGETHER]


def _rounds(index: ClusterIndex, cluster: Cluster, rounds: int) -> Iterator[tuple[str, float]]:
    placed, took, planning = 0, 0.0, 0.0
    for _ in range(rounds):
        changes = cluster.end(ENDING)
        began = process_time()
        index.apply(changes)
        planned_from = process_time()
        plan = index.plan(NOW)
        ended = process_time()
        took += ended - began + cluster.commit(index, plan)
        planning += ended - planned_from
        placed += len(plan.placements)
        index.apply(cluster.refill())
    yield "placed_per_s", placed / took
    yield "planned_per_s", placed / planning
    began = process_time()
    deferrals = QueueQueries(index).deferrals(NOW)
    yield "deferred_per_s", len(deferrals) / (process_time() - began)


def _passes(cluster: Cluster) -> dict[str, float]:
    index, times = _loaded(cluster), []
    for _ in range(WARMING + PASSES):
        cluster.now += PASS_S
        changes = cluster.end()
        began = process_time()
        index.apply(changes)
        plan = index.plan(cluster.now)
        times.append((process_time() - began) * _MILLISECONDS)
        cluster.commit(index, plan)
        index.apply(cluster.refill())
    del times[:WARMING]
    return {"pass_p50_ms": percentile(times, 0.5), "pass_p99_ms": percentile(times, 0.99)}


def _literal(cluster: Cluster) -> float:
    """The rule as text, on what is left of the cluster after the rounds and one more end.

    For each session that is placed all nodes are sorted by what is free there: GPUs, cores, memory,
    name. What did not fit once is not tried again, and what was sorted before is sorted again, which
    is far less work than the text asks for.
    """
    cluster.end(ENDING)
    nodes = [_free(node, cluster.allocations[node.name]) for node in cluster.nodes]
    queue = sorted(
        cluster.queued.values(), key=lambda one: (-one.spec.priority, one.created_at, one.id)
    )
    placed, barred = 0, set[tuple[int, int]]()
    began = process_time()
    for session in queue:
        wanted, count = session.spec.resources.gpu_thousandths, session.spec.replica_count
        if (wanted, count) in barred:
            continue
        nodes.sort()
        tightest = bisect_left(nodes, (wanted, 0, 0, ""))
        if tightest + count > len(nodes):
            barred.add((wanted, count))
            continue
        for position in range(tightest, tightest + count):
            gpu, cpu, memory, name = nodes[position]
            cpu, memory = cpu - DEFAULT_CPU_THOUSANDTHS, memory - DEFAULT_MEMORY_BYTES
            nodes[position] = (gpu - wanted, cpu, memory, name)
        placed += 1
        if placed == LITERAL_PLACEMENTS:
            break
    return placed / (process_time() - began)


def _free(node: Node, allocation: Allocation) -> tuple[int, int, int, str]:
    held = allocation.replicas
    return (
        node.capacity.gpu_thousandths - sum(one.gpu_thousandths for one in held),
        node.capacity.cpu_thousandths - sum(one.cpu_thousandths for one in held),
        node.capacity.memory_bytes - sum(one.memory_bytes for one in held),
        node.name,
    )


def _steps() -> float:
    """How many steps of a plain loop this machine does in a second."""
    known: dict[int, int] = {}
    began = process_time()
    for step in range(STEPS):
        known[step & 1023] = known.get(step & 511, 0) + 1
    return STEPS / (process_time() - began)
