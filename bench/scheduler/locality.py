"""How much is fetched when sessions come to their data, and when they do not.

48 nodes of 8 GPUs, half of them behind a network of 1 Gbit/s and half of 10, and 3,000 sessions of 1, 2, 4 and 8 GPUs that come over
time, each with one of 80 datasets: few are asked for often, most seldom (Zipf), and they have 1 to 200 GB. Nodes keep
what they fetched, and tell of it once it is there. The index is the product's, as it is and without being told what nodes
have. Figures, means of the printed seeds; `_untold` without being told:

- `locality_fetched_bytes`: what all nodes fetched together.
- `locality_fetching_s`: how long a session fetches before it begins, on average.
- `locality_wait_s`: how long it waits for GPUs, on average; what differs comes of sessions that end at other instants, either way.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Final

from bench.scheduler.outcome import Outcome
from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    SessionChanged,
    SessionRemoved,
    StockChanged,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    WHOLE_DEVICE,
    AllocatedReplica,
    Allocation,
    DatasetVersion,
    Device,
    Isolation,
    Node,
    Replica,
    Resources,
    Session,
    SessionSpec,
    Stock,
)
from controlplane.scheduler import ClusterIndex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from controlplane.domain.changes import Change
    from controlplane.domain.plan import Placement

SEEDS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
NODES: Final = 48
GPUS_PER_NODE: Final = 8
SESSIONS: Final = 3000
DATASETS: Final = 80
ZIPF: Final = 1.1
SIZES: Final = {1: 70, 2: 12, 4: 10, 8: 8}
"""GPUs that a session asks for, and how many in a hundred do."""
BYTES: Final = (1e9, 200e9)
NETWORKS: Final = (1.1e8, 1.1e9)
"""Bytes per second that a node fetches."""
RUNS_S: Final = 4 * 3600.0
LOAD: Final = 0.8
"""Of all GPUs, on average."""
_GIB: Final = 1 << 30


def measure(_traces: Path) -> Outcome:
    """Every figure; no trace tells of datasets."""
    print(f"locality: seeds {', '.join(map(str, SEEDS))}", file=sys.stderr)
    figures = {}
    for is_told in (True, False):
        runs = [Run(random.Random(seed), is_told=is_told).play() for seed in SEEDS]
        for name in runs[0]:
            suffix = "" if is_told else "_untold"
            figures[f"locality_{name}{suffix}"] = fmean(run[name] for run in runs)
    return Outcome(figures=figures)


class Run:
    """One cluster and what happens to it.

    Args:
        draw: what is random here; the same whatever the index is told.
        is_told: whether it is told what nodes have.
    """

    def __init__(self, draw: random.Random, *, is_told: bool) -> None:
        self._draw = draw
        self._is_told = is_told
        self._index = ClusterIndex()
        self._allocations: dict[str, Allocation] = {}
        self._sessions: dict[str, Session] = {}
        self._lasts: dict[str, float] = {}
        self._bytes = [round(draw.uniform(*BYTES)) for _ in range(DATASETS)]
        self._has: dict[str, dict[str, float]] = {}
        self._networks: dict[str, float] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], list[Change]]]] = []
        self._fetched = 0.0
        self._fetching: list[float] = []
        self._waits: list[float] = []

    def play(self) -> dict[str, float]:
        """The figures, once all sessions have been placed."""
        self._index.apply([NodeChanged(node=self._node(number)) for number in range(NODES)])
        self._arrive()
        while self._events:
            now, _, happens = heappop(self._events)
            self._index.apply(happens())
            plan = self._index.plan(now)
            for placement in plan.placements:
                self._index.apply(self._begin(placement, now))
            self._index.settle(plan, ())
        return {
            "fetched_bytes": self._fetched,
            "fetching_s": fmean(self._fetching),
            "wait_s": fmean(self._waits),
        }

    def _node(self, number: int) -> Node:
        name = f"n{number:02}"
        # Neighbours by name have other networks: a tie that is broken by name prefers none.
        self._networks[name] = NETWORKS[number % len(NETWORKS)]
        self._allocations[name] = Allocation(node=name)
        self._has[name] = {}
        return Node(
            name=name,
            boot_id="boot",
            capacity=Resources(
                gpu_thousandths=GPUS_PER_NODE * WHOLE_DEVICE,
                cpu_thousandths=96_000,
                memory_bytes=768 * _GIB,
            ),
            devices=tuple(
                Device(uuid=f"{name}-{i}", index=i, model="H100") for i in range(GPUS_PER_NODE)
            ),
            isolation=Isolation.NAMESPACE,
        )

    def _arrive(self) -> None:
        gpus = sum(size * share for size, share in SIZES.items()) / sum(SIZES.values())
        every_s = gpus * RUNS_S / (NODES * GPUS_PER_NODE * LOAD)
        popular = [1 / rank**ZIPF for rank in range(1, DATASETS + 1)]
        now = 0.0
        for number in range(SESSIONS):
            now += self._draw.expovariate(1 / every_s)
            dataset = self._draw.choices(range(DATASETS), weights=popular)[0]
            size = self._draw.choices(list(SIZES), weights=list(SIZES.values()))[0]
            session = Session(
                id=f"s{number:05}",
                name=f"u/d{dataset}/{number}",
                owner=f"u{self._draw.randrange(20)}",
                created_at=now,
                spec=SessionSpec(
                    entry="train.py",
                    datasets=(
                        DatasetVersion(
                            owner="lab", name=f"d{dataset}", version=1, digest=str(dataset)
                        ),
                    ),
                    resources=Resources(gpu_thousandths=size * WHOLE_DEVICE),
                ),
            )
            self._sessions[session.id] = session
            self._lasts[session.id] = self._draw.expovariate(1 / RUNS_S)
            self._later(now, partial(_submitted, session))

    def _later(self, at: float, happens: Callable[[], list[Change]]) -> None:
        heappush(self._events, (at, next(self._numbers), happens))

    def _begin(self, placement: Placement, now: float) -> list[Change]:
        """What the store tells of a placement; its fetch and its end come later."""
        session, [replica] = self._sessions[placement.session_id], placement.replicas
        self._waits.append(now - session.created_at)
        fetching_s = self._fetch(replica.node, session.spec.datasets[0].digest, now)
        held = AllocatedReplica(
            session_id=session.id,
            attempt=1,
            rank=0,
            devices=replica.devices,
            cpu_thousandths=replica.resources.cpu_thousandths,
            memory_bytes=replica.resources.memory_bytes,
        )
        begun = replace(
            session,
            state=SessionState.RUNNING,
            attempt=1,
            replicas=(Replica(rank=0, node=replica.node, resources=replica.resources),),
        )
        ends_at = now + fetching_s + self._lasts[session.id]
        self._later(ends_at, partial(self._end, session.id, replica.node))
        return [self._hold(replica.node, held), SessionChanged(session=begun)]

    def _hold(self, node: str, *added: AllocatedReplica, without: str = "") -> AllocationChanged:
        left = [one for one in self._allocations[node].replicas if one.session_id != without]
        after = self._allocations[node] = Allocation(node=node, replicas=(*left, *added))
        return AllocationChanged(allocation=after)

    def _end(self, session_id: str, node: str) -> list[Change]:
        return [self._hold(node, without=session_id), SessionRemoved(session_id=session_id)]

    def _fetch(self, node: str, digest: str, now: float) -> float:
        """For how long a session waits there for its dataset: nobody fetches what is on its way already."""
        size, network = self._bytes[int(digest)], self._networks[node]
        here_at = self._has[node].get(digest)
        if here_at is None:
            self._fetched += size
            here_at = self._has[node][digest] = now + size / network
            self._later(here_at, partial(self._tell, node, here_at))
        self._fetching.append(max(here_at - now, 0.0))
        return self._fetching[-1]

    def _tell(self, node: str, now: float) -> list[Change]:
        if not self._is_told:
            return []
        has = {
            digest: self._bytes[int(digest)] for digest, at in self._has[node].items() if at <= now
        }
        return [StockChanged(name=node, stock=Stock(things=has, bytes_per_s=self._networks[node]))]


def _submitted(session: Session) -> list[Change]:
    return [SessionChanged(session=session)]
