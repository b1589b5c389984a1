"""Rules of others for who runs when, as their papers and simulators have them; some know true run times."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

from bench.scheduler.simulator import INSTANT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scheduler.simulator import Cluster, Floor, Live, Spots

TIRESIAS_LEVELS: Final = (3_250.0, 7_200.0)
"""GPU seconds at which a session falls to the next queue, as in Muri's artifact."""

Order = tuple[float, ...]

Line = list[tuple[float, int]]
"""Sessions of one size: what they are ordered by, and their numbers."""


class Lines:
    """Who waits, by size: those of one size differ in their order alone, so only the heads are looked at."""

    def __init__(self, order: Callable[[Live], float]) -> None:
        self._order = order
        self._lines: dict[int, Line] = {}
        self._lives: dict[int, Live] = {}

    def add(self, live: Live) -> None:
        """Take one in."""
        self._lives[live.number] = live
        insort(self._lines.setdefault(live.gpus, []), (self._order(live), live.number))

    def remove(self, live: Live) -> None:
        """Take it out."""
        line = self._lines[live.gpus]
        del line[bisect_left(line, (self._order(live), live.number))]
        del self._lives[live.number]
        if not line:
            del self._lines[live.gpus]

    def start_what_fits(self, start: Callable[[Live], bool]) -> None:
        """Offer all in order; once one did not start, none of its size is offered."""
        heads = [(*line[0], gpus) for gpus, line in self._lines.items()]
        heapify(heads)
        while heads:
            _, number, gpus = heads[0]
            live = self._lives[number]
            if not start(live):
                heappop(heads)
                continue
            self.remove(live)
            line = self._lines.get(gpus)
            if line:
                heapreplace(heads, (*line[0], gpus))
            else:
                heappop(heads)


class Skipping:
    """In order, and whoever does not fit blocks nobody: nothing is ever stopped."""

    def __init__(
        self, order: Callable[[Live], float], place: Callable[[Floor, int], Spots | None]
    ) -> None:
        self._lines = Lines(order)
        self._place = place

    def submitted(self, live: Live) -> None:
        """It stands in line."""
        self._lines.add(live)

    def ended(self, live: Live) -> None:
        """Nothing to remember."""

    def decide(self, cluster: Cluster) -> float:
        """Start what fits."""

        def start(live: Live) -> bool:
            spots = self._place(cluster.floor, live.gpus)
            if spots is not None:
                cluster.start(live, spots)
            return spots is not None

        if cluster.floor.total:
            self._lines.start_what_fits(start)
        return math.inf


def by_submission(live: Live) -> float:
    """First come, first served."""
    return live.arrival.submitted_at


def by_run_time(live: Live) -> float:
    """Shortest first, by an oracle."""
    return live.arrival.run_time_s


def tightest(floor: Floor, gpus: int) -> Spots | None:
    """Best fit."""
    return floor.place(gpus)


def widest(floor: Floor, gpus: int) -> Spots | None:
    """Worst fit."""
    return _each(floor, gpus, lambda nodes: nodes[-1])


def drawn(seed: int) -> Callable[[Floor, int], Spots | None]:
    """Any node that fits, at random."""
    rng = random.Random(seed)
    return lambda floor, gpus: _each(floor, gpus, rng.choice)


def _each(floor: Floor, gpus: int, choose: Callable[[list[int]], int]) -> Spots | None:
    spots: list[tuple[int, int]] = []
    for part in floor.shape(gpus):
        taken = {node for node, _ in spots}
        nodes = [node for node in floor.nodes_with(part) if node not in taken]
        if not nodes:
            return None
        spots.append((choose(nodes), part))
    return tuple(spots)


class Repacking:
    """Muri's simulator: at each event the cluster is emptied and filled anew in order, at no cost to anybody.

    Args:
        order: of a session at an instant; it stays the same while the session waits.
        changes_at: when the order of one that runs changes of itself; infinity for never.
    """

    def __init__(
        self,
        order: Callable[[Live, float], Order],
        changes_at: Callable[[Live, float], float] = lambda _live, _now: math.inf,
    ) -> None:
        self._order = order
        self._changes_at = changes_at
        self._lines: dict[int, list[tuple[Order, int]]] = {}
        self._waiting: dict[int, Live] = {}

    def submitted(self, live: Live) -> None:
        """It stands in line."""
        self._wait(live, live.arrival.submitted_at)

    def ended(self, live: Live) -> None:
        """Nothing to remember."""

    def decide(self, cluster: Cluster) -> float:
        """Those first in order run, wherever it is."""
        if not self._waiting:
            return math.inf
        chosen = self._fill(cluster)
        news = {number: self._waiting[number] for number in chosen if number in self._waiting}
        stopped = [live for number, live in cluster.running.items() if number not in chosen]
        for live in stopped:
            cluster.preempt(live)
        for number, live in news.items():
            line = self._lines[live.gpus]
            del line[bisect_left(line, (self._order(live, cluster.now), number))]
            if not line:
                del self._lines[live.gpus]
            del self._waiting[number]
        self._start(cluster, news, chosen)
        for live in stopped:
            self._wait(live, cluster.now)
        if not self._waiting:
            return math.inf
        return min(self._changes_at(live, cluster.now) for live in cluster.running.values())

    def _start(self, cluster: Cluster, news: dict[int, Live], chosen: dict[int, Spots]) -> None:
        """Start these, where they fit beside what runs; else all move to where they were chosen to be."""
        left = dict(news)
        for number, live in news.items():
            spots = cluster.floor.place(live.gpus)
            if spots is None:
                break
            cluster.start(live, spots)
            del left[number]
        if left:
            cluster.move({number: chosen[number] for number in cluster.running})
        for number, live in left.items():
            cluster.start(live, chosen[number])

    def _wait(self, live: Live, now: float) -> None:
        self._waiting[live.number] = live
        insort(self._lines.setdefault(live.gpus, []), (self._order(live, now), live.number))

    def _fill(self, cluster: Cluster) -> dict[int, Spots]:
        """Who runs and where, were all of it empty."""
        running = sorted(
            (self._order(live, cluster.now), number) for number, live in cluster.running.items()
        )
        lines = [iter(line) for line in self._lines.values()]
        lines.append(iter(running))
        empty = _Empty(len(cluster.floor.free), cluster.floor.width)
        chosen: dict[int, Spots] = {}
        heads = [(*head, at) for at, line in enumerate(lines) if (head := next(line, None))]
        heapify(heads)
        while heads and empty.total:
            _, number, at = heads[0]
            live = cluster.running.get(number) or self._waiting[number]
            spots = empty.place(live.gpus)
            if spots is not None:
                chosen[number] = spots
            elif at < len(lines) - 1:
                heappop(heads)  # room only shrinks: nobody else of this size fits
                continue
            head = next(lines[at], None)
            if head is None:
                heappop(heads)
            else:
                heapreplace(heads, (*head, at))
        return chosen


class _Empty:
    """An empty cluster that is filled first fit: room only shrinks, so each search goes on where it ended."""

    def __init__(self, nodes: int, width: int) -> None:
        self.total = nodes * width
        self._width = width
        self._free = [width] * nodes
        self._first = [0] * (width + 1)

    def place(self, gpus: int) -> Spots | None:
        if gpus > self.total:
            return None
        if gpus <= self._width:
            node = self._next(gpus, self._first[gpus])
            if node is None:
                return None
            spots: Spots = ((node, gpus),)
        else:
            found = self._spread(gpus)
            if found is None:
                return None
            spots = found
        for node, part in spots:
            self._free[node] -= part
        self.total -= gpus
        return spots

    def _next(self, part: int, start: int) -> int | None:
        """The first node from `start` on with so much free; where it stands is kept."""
        for node in range(start, len(self._free)):
            if self._free[node] >= part:
                self._first[part] = node
                return node
        self._first[part] = len(self._free)
        return None

    def _spread(self, gpus: int) -> Spots | None:
        whole, rest = divmod(gpus, self._width)
        nodes = [node for node, free in enumerate(self._free) if free == self._width]
        if len(nodes) < whole:
            return None
        spots = [(node, self._width) for node in nodes[:whole]]
        if rest:
            taken = set(nodes[:whole])
            last = next(
                (n for n, free in enumerate(self._free) if free >= rest and n not in taken), None
            )
            if last is None:
                return None
            spots.append((last, rest))
        return tuple(spots)


def remaining_time(live: Live, now: float) -> Order:
    """SRTF, by an oracle."""
    return (_left(live, now),)


def remaining_service(live: Live, now: float) -> Order:
    """SRSF: remaining run time times GPUs, by an oracle."""
    return (_left(live, now) * live.gpus,)


def _left(live: Live, now: float) -> float:
    return live.ends_at - now if live.spots else live.left_s


def attained_service(live: Live, now: float) -> Order:
    """2D-LAS in Tiresias' queues: who runs stays before who waits, these by since when."""
    level = bisect_right(TIRESIAS_LEVELS, live.attained_at(now) * live.gpus + INSTANT_S)
    if live.spots:
        return (level, 0.0, live.started_at)
    return (level, 1.0, live.waiting_since)


def falls_at(live: Live, now: float) -> float:
    """When one that runs falls to the next of Tiresias' queues."""
    attained = live.attained_at(now) * live.gpus
    level = bisect_right(TIRESIAS_LEVELS, attained + INSTANT_S)
    if level == len(TIRESIAS_LEVELS):
        return math.inf
    return now + (TIRESIAS_LEVELS[level] - attained) / live.gpus
