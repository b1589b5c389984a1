"""When a blocked gang can start at the latest, and who may run ahead without delaying it.

The first blocked gangs hold reservations, and others run ahead only where they keep none of them waiting: EASY
backfill (Lifka, JSSPP'95), with more than one reservation. All instants are upper bounds, made of time limits:
what runs without a limit is not expected to end, and a gang that would have to wait for such gets no
reservation. While everything ends by its limit, no reservation is ever kept waiting by what ran ahead of it.

For the simulator, whose nodes have GPUs and nothing else; `controlplane.scheduler.reservations` does it for all that a
node has. Plain values and functions: which nodes suit a gang, and which GPUs are free, is asked by the caller.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Outlook(NamedTuple):
    """What is free on one node, and when at the latest more will be; in any one unit of capacity.

    Attributes:
        free: now.
        ends: when what runs there ends at the latest, Unix seconds, and what it holds; sorted.
    """

    free: int
    ends: tuple[tuple[float, int], ...] = ()

    def free_at(self, at: float) -> int:
        """What is free then, if nothing new starts."""
        free = self.free
        for ends_at, held in self.ends:
            if ends_at > at:
                break
            free += held
        return free

    def free_from(self, wanted: int, now: float) -> float:
        """Since when so much is free together; infinity when no limit promises it."""
        free = self.free
        if free >= wanted:
            return now
        for ends_at, held in self.ends:
            free += held
            if free >= wanted:
                return max(ends_at, now)
        return math.inf


class Reservation(NamedTuple):
    """Capacity held for a blocked gang: `parts` of nodes, from the instant `at` on for as long as it takes."""

    at: float
    parts: tuple[tuple[int, int], ...]


def reserve(
    parts: Sequence[int], outlooks: Mapping[int, Outlook], now: float, held: Held
) -> Reservation | None:
    """The earliest instant at which the whole gang fits, and where; None when no limits promise one.

    Args:
        parts: what the gang needs on each node, the widest first.
        outlooks: of the nodes that suit it.
        now: Unix seconds.
        held: earlier reservations, which this one keeps out of.
    """
    at = now
    chosen: list[tuple[int, int]] = []
    left = dict(outlooks)
    for part in parts:
        best = math.inf
        found = None
        for node, outlook in left.items():
            since = outlook.free_from(part + held.on(node), now)
            if since < best:
                best, found = since, node
                if since <= at:
                    break
        if found is None:
            return None
        del left[found]
        at = max(at, best)
        chosen.append((found, part))
    return Reservation(at, tuple(chosen))


class Held:
    """The reservations of one plan, by node."""

    __slots__ = ("_at", "_on")

    def __init__(self, reservations: Iterable[Reservation] = ()) -> None:
        self._on: dict[int, int] = {}
        self._at: dict[int, list[tuple[float, int]]] = {}
        for one in reservations:
            self.add(one)

    def __bool__(self) -> bool:
        return bool(self._on)

    def add(self, reservation: Reservation) -> None:
        """Hold another one."""
        for node, part in reservation.parts:
            self._on[node] = self._on.get(node, 0) + part
            self._at.setdefault(node, []).append((reservation.at, part))

    def on(self, node: int) -> int:
        """What is held of this node, whenever."""
        return self._on.get(node, 0)

    def leave_room(self, node: int, part: int, outlook: Outlook, until: float) -> bool:
        """Whether something that takes `part` of this node now, until then, keeps no reservation waiting."""
        held = self._at.get(node)
        if held is None:
            return True
        taken = 0
        for at, reserved in sorted(held):
            taken += reserved
            if until > at and outlook.free_at(at) - taken < part:
                return False
        return True
