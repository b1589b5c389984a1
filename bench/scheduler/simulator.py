"""A cluster on a virtual clock: sessions come, run, give way and end as a policy decides.

Event driven: nothing happens between two instants of interest, so a replay costs what happens in it, not how
long it lasts. It draws no random number; a policy that does is given its seed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

INSTANT_S: Final = 1e-6
"""Two instants nearer than this are one: sums of floats differ by less."""


class Arrival(NamedTuple):
    """One session of a trace: seconds, and GPUs of the whole gang."""

    submitted_at: float
    gpus: int
    run_time_s: float
    limit_s: float = 0.0
    """The most that it may run, as its user stated it; 0: not stated."""
    is_resumable: bool = False


Spots = tuple[tuple[int, int], ...]
"""Where a gang is: a node, and GPUs on it."""


class Live:
    """One session on its way through a replay.

    Attributes:
        attained_s: for how long it held its GPUs in attempts that ended.
        left_s: run time that it still needs, without what a preemption costs.
        restart_s: of its next seconds on GPUs, those in which it starts again and gets nowhere.
        waiting_since: when it began to wait this time.
    """

    __slots__ = (
        "arrival",
        "attained_s",
        "ended_at",
        "gpus",
        "left_s",
        "number",
        "restart_s",
        "spots",
        "started_at",
        "waiting_since",
    )

    def __init__(self, number: int, arrival: Arrival) -> None:
        self.number = number
        self.arrival = arrival
        self.gpus = arrival.gpus
        self.left_s = arrival.run_time_s
        self.attained_s = 0.0
        self.restart_s = 0.0
        self.waiting_since = arrival.submitted_at
        self.started_at = math.nan
        self.ended_at = math.nan
        self.spots: Spots = ()

    @property
    def ends_at(self) -> float:
        """When it will be through; only while it runs."""
        return self.started_at + self.restart_s + self.left_s

    def attained_at(self, now: float) -> float:
        """For how long it held its GPUs until now, seconds."""
        return self.attained_s + (now - self.started_at if self.spots else 0.0)


class Floor:
    """What is free on each node, whole GPUs; nodes are kept by how many are free.

    This is the seam for placement: `place` proposes, `take` and `release` carry out.
    """

    def __init__(self, nodes: int, width: int) -> None:
        self.width = width
        self.free = [width] * nodes
        self.total = nodes * width
        self._by_free: list[list[int]] = [[] for _ in range(width)] + [list(range(nodes))]

    def shape(self, gpus: int) -> tuple[int, ...]:
        """GPUs on each node: as few nodes as can be, all but one of them whole."""
        whole, rest = divmod(gpus, self.width)
        return (self.width,) * whole + ((rest,) if rest else ())

    def place(self, gpus: int, may: Callable[[int, int], bool] | None = None) -> Spots | None:
        """The tightest nodes that hold the gang; None when it does not fit.

        Args:
            gpus: of the whole gang.
            may: whether so many GPUs of a node may be taken; all that are free by default.
        """
        spots: list[tuple[int, int]] = []
        for part in self.shape(gpus):
            found = self._tightest(part, {node for node, _ in spots}, may)
            if found is None:
                return None
            spots.append((found, part))
        return tuple(spots)

    def _tightest(
        self, part: int, taken: set[int], may: Callable[[int, int], bool] | None
    ) -> int | None:
        for free in range(part, self.width + 1):
            for node in self._by_free[free]:
                if node not in taken and (may is None or may(node, part)):
                    return node
        return None

    def nodes_with(self, part: int) -> Iterable[int]:
        """Nodes with so many free GPUs, tightest first."""
        return (node for free in range(part, self.width + 1) for node in self._by_free[free])

    def take(self, spots: Spots) -> None:
        """Occupy what `place` proposed."""
        for node, part in spots:
            self._change(node, -part)

    def release(self, spots: Spots) -> None:
        """Free it again."""
        for node, part in spots:
            self._change(node, part)

    def refill(self, held: Iterable[Spots]) -> None:
        """Free everything, then occupy these."""
        self.free = [self.width] * len(self.free)
        for spots in held:
            for node, part in spots:
                self.free[node] -= part
        self.total = sum(self.free)
        self._by_free = [[] for _ in range(self.width + 1)]
        for node, free in enumerate(self.free):
            self._by_free[free].append(node)

    def _change(self, node: int, by: int) -> None:
        before = self.free[node]
        at = self._by_free[before]
        del at[bisect_left(at, node)]
        self.free[node] = before + by
        self.total += by
        insort(self._by_free[before + by], node)


class Cluster:
    """What a policy sees and does: the floor, what runs on it, starting and preempting.

    Attributes:
        preemption_s: seconds of the whole gang that each preemption costs: stop, save and restart.
        on_node: what runs on each node.
    """

    def __init__(self, floor: Floor, *, preemption_s: float = 0.0) -> None:
        self.floor = floor
        self.preemption_s = preemption_s
        self.now = 0.0
        self.running: dict[int, Live] = {}
        self.on_node: list[dict[int, Live]] = [{} for _ in floor.free]
        self.lost_gpu_s = 0.0
        self.preemptions = 0
        self._ends: list[tuple[float, int]] = []

    def start(self, live: Live, spots: Spots) -> None:
        """Run it there from now on."""
        self.floor.take(spots)
        live.spots, live.started_at = spots, self.now
        self.running[live.number] = live
        for node, _ in spots:
            self.on_node[node][live.number] = live
        heappush(self._ends, (live.ends_at, live.number))

    def preempt(self, live: Live) -> None:
        """Stop it with all that it did saved; it waits from now on."""
        ran = self.now - live.started_at
        self._leave(live)
        # A restart that is cut short cost only what it took, and is gone through again.
        restarting = min(ran, live.restart_s)
        live.left_s -= ran - restarting
        self.lost_gpu_s += (restarting - live.restart_s + self.preemption_s) * live.gpus
        live.restart_s = self.preemption_s
        live.waiting_since = self.now
        self.preemptions += 1

    def move(self, moves: Mapping[int, Spots]) -> None:
        """Have those that run elsewhere, at no cost: for the rules of others, whose simulators do so."""
        for number, spots in moves.items():
            self.running[number].spots = spots
        self.floor.refill(live.spots for live in self.running.values())
        for held in self.on_node:
            held.clear()
        for number, live in self.running.items():
            for node, _ in live.spots:
                self.on_node[node][number] = live

    def next_end(self) -> float:
        """When the next one is through; infinity when nothing runs."""
        while self._ends:
            at, number = self._ends[0]
            live = self.running.get(number)
            if live is not None and live.ends_at == at:
                return at
            heappop(self._ends)
        return math.inf

    def end_due(self) -> list[Live]:
        """Take away those that are through by now."""
        ended = []
        while self.next_end() <= self.now + INSTANT_S:
            live = self.running[heappop(self._ends)[1]]
            self._leave(live)
            live.ended_at = self.now
            live.left_s = 0.0
            ended.append(live)
        return ended

    def _leave(self, live: Live) -> None:
        live.attained_s += self.now - live.started_at
        del self.running[live.number]
        for node, _ in live.spots:
            del self.on_node[node][live.number]
        self.floor.release(live.spots)
        live.spots = ()


class Policy(Protocol):
    """Who runs: told of what happened, it starts and preempts."""

    def submitted(self, live: Live) -> None:
        """A session is new."""

    def ended(self, live: Live) -> None:
        """A session that ran is through."""

    def decide(self, cluster: Cluster) -> float:
        """Start and preempt; the next instant at which to be asked though nothing happened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What a replay came to; a wait is all the time from submission to end in which a session did not advance."""

    mean_jct_s: float
    mean_wait_s: float
    max_wait_s: float
    lost_gpu_pct: float
    """Of the GPU time that sessions held."""
    preemptions: int


class Stuck(Exception):
    """Nothing runs and nothing more comes, and still something waits."""


def replay(arrivals: Sequence[Arrival], cluster: Cluster, policy: Policy) -> Waits:
    """Run all of them to their end.

    Args:
        arrivals: in order of submission.
        cluster: empty.
        policy: who runs.

    Raises:
        Stuck: the policy never starts some of them
    """
    lives = [Live(number, arrival) for number, arrival in enumerate(arrivals)]
    came = through = 0
    wake = math.inf
    while through < len(lives):
        comes = arrivals[came].submitted_at if came < len(lives) else math.inf
        at = min(comes, cluster.next_end(), wake)
        if at == math.inf:
            raise Stuck(f"{len(lives) - through} sessions never start")
        cluster.now = max(cluster.now, at)
        for live in cluster.end_due():
            policy.ended(live)
            through += 1
        while came < len(lives) and arrivals[came].submitted_at <= cluster.now:
            policy.submitted(lives[came])
            came += 1
        wake = policy.decide(cluster)
    return _summed_up(lives, cluster)


def _summed_up(lives: Sequence[Live], cluster: Cluster) -> Waits:
    jcts = [live.ended_at - live.arrival.submitted_at for live in lives]
    waits = [max(jct - live.arrival.run_time_s, 0.0) for jct, live in zip(jcts, lives, strict=True)]
    held = sum(live.attained_s * live.gpus for live in lives)
    return Waits(
        mean_jct_s=sum(jcts) / len(jcts),
        mean_wait_s=sum(waits) / len(waits),
        max_wait_s=max(waits),
        lost_gpu_pct=100 * cluster.lost_gpu_s / held,
        preemptions=cluster.preemptions,
    )
