"""EASY backfill, a reference."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from bench.scheduler.reserving import Held, Outlook, reserve

if TYPE_CHECKING:
    from bench.scheduler.simulator import Cluster, Live, Spots


class LineKey(NamedTuple):
    """What those of one line have in common: when the first does not start, nobody behind it does."""

    gpus: int
    limit_s: float


Place = tuple[float, int]
"""Since when it waits, and its number."""


class Easy:
    """EASY backfill: in order of submission, one reservation for the first that is blocked."""

    def __init__(self) -> None:
        self._lines: dict[LineKey, list[Place]] = {}
        self._waiting: dict[int, tuple[Live, LineKey]] = {}
        self._outlooks: dict[int, Outlook] = {}
        self._spots: dict[int, Spots] = {}

    def submitted(self, live: Live) -> None:
        """It stands in line."""
        self._wait(live)

    def ended(self, live: Live) -> None:
        """Its nodes look otherwise."""
        self._left(live)

    def decide(self, cluster: Cluster) -> float:
        """Start those that may; nothing is to be done before the next change."""
        self._pass(cluster)
        return math.inf

    def _pass(self, cluster: Cluster) -> None:
        """All heads of lines in order; each that is blocked blocks its line."""
        held = Held()
        heads = [(line[0], key) for key, line in self._lines.items()]
        heapify(heads)
        while heads:
            (_, number), key = heads[0]
            live, _ = self._waiting[number]
            spots = self._fit(live, cluster, held) if key.gpus <= cluster.floor.total else None
            if spots is not None:
                self._start(live, spots, cluster)
                if key in self._lines:
                    heapreplace(heads, (self._lines[key][0], key))
                    continue
            elif not held:
                nodes = range(len(cluster.floor.free))
                outlooks = {node: self._outlook(node, cluster) for node in nodes}
                reservation = reserve(cluster.floor.shape(key.gpus), outlooks, cluster.now, held)
                if reservation is not None:
                    held.add(reservation)
            heappop(heads)

    def _fit(self, live: Live, cluster: Cluster, held: Held) -> Spots | None:
        limit_s = live.arrival.limit_s
        until = cluster.now + (limit_s - live.attained_s if limit_s else math.inf)

        def may(node: int, part: int) -> bool:
            return not held.on(node) or held.leave_room(
                node, part, self._outlook(node, cluster), until
            )

        return cluster.floor.place(live.gpus, may)

    def _outlook(self, node: int, cluster: Cluster) -> Outlook:
        outlook = self._outlooks.get(node)
        if outlook is None:
            ends = sorted(
                (live.started_at + live.arrival.limit_s - live.attained_s, part)
                for live in cluster.on_node[node].values()
                if live.arrival.limit_s
                for at, part in live.spots
                if at == node
            )
            outlook = self._outlooks[node] = Outlook(cluster.floor.free[node], tuple(ends))
        return outlook

    def _start(self, live: Live, spots: Spots, cluster: Cluster) -> None:
        _, key = self._waiting.pop(live.number)
        line = self._lines[key]
        del line[bisect_left(line, (live.waiting_since, live.number))]
        if not line:
            del self._lines[key]
        cluster.start(live, spots)
        self._spots[live.number] = spots
        for node, _ in spots:
            self._outlooks.pop(node, None)

    def _wait(self, live: Live) -> None:
        key = LineKey(live.gpus, live.arrival.limit_s)
        self._waiting[live.number] = (live, key)
        insort(self._lines.setdefault(key, []), (live.waiting_since, live.number))

    def _left(self, live: Live) -> None:
        for node, _ in self._spots.pop(live.number):
            self._outlooks.pop(node, None)
