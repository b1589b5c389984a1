"""Rate a node's room for a request, and take one replica's resources from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from controlplane.scheduler.fit import refusal, resources_on
from controlplane.scheduler.fragmentation import Shape

if TYPE_CHECKING:
    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.values import Resources
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.fragmentation import Taking
    from controlplane.scheduler.node_capacity import NodeCapacity, Tie
    from controlplane.scheduler.node_index import NodeIndex

Choice: TypeAlias = "tuple[NodeCapacity, int, bool]"
"""A room, its number of replicas, and whether it was chosen for its cached data."""
Rank = tuple[int, ...]
"""Rank of a room: the lowest is best."""
_MOST_KNOWN = 100_000
_NONE: tuple[int, Rank] = (0, ())


class Eligibility:
    """Rates rooms for a request, once for equal states."""

    def __init__(self, rooms: NodeIndex, request: Request) -> None:
        self._rooms = rooms
        self._request = request
        self._is_share = request.is_share
        self._whole = 0 if request.avoids else request.whole_devices
        self._scores = rooms.scores
        self._known: dict[object, tuple[int, Rank]] = {}
        self._wanted: dict[int, Resources] = {}

    def of(self, tie: Tie) -> tuple[int, Rank]:
        """Return how many replicas its rooms hold, 0 if none, and their rank."""
        # A room's pod makes no difference, unless requested.
        key = tie if self._request.pod else tie.alike
        if self._scores is not self._rooms.scores:
            self._scores = self._rooms.scores
            self._known.clear()
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._look(tie.first())
        return found

    def _look(self, room: NodeCapacity) -> tuple[int, Rank]:
        wanted = self.wanted(room)
        is_refused = refusal(room.node, self._request)
        count = 0 if is_refused else room.holds_of(self._request, wanted)
        if not count:
            return _NONE
        tightness = room.state.tightness
        if (taking := self.taking(room)) is not None:
            return count, (-taking.score, *tightness)
        if not self._is_share:
            return count, tightness
        # A share goes to the opened device that it fills best, on any node.
        opened = room.opened_for(self._request)
        return count, (0, min(opened)[0], *tightness) if opened else (1, 0, *tightness)

    def taking(self, room: NodeCapacity) -> Taking | None:
        """Return the best way to take one replica, by fragmentation; None if unknown."""
        request, scores = self._request, self._rooms.scores
        if scores is None or room.is_mixed or request.replica_count > 1 or request.avoids:
            return None
        wanted = self.wanted(room)
        shape = Shape(request.gpu_thousandths, wanted.cpu_thousandths, wanted.memory_bytes)
        return scores.best_taking(room.free, shape)

    def take(self, room: NodeCapacity, rank: int, session_id: str) -> ReplicaPlacement:
        """Take one replica from a room that holds it, a share from the device with the lowest cost."""
        wanted = self.wanted(room)
        if self._whole and not room.is_mixed:
            return room.take_whole(self._whole, wanted, rank, session_id)
        taking = self.taking(room) if self._is_share else None
        left = taking.from_left if taking else 0
        return room.take(self._request, wanted, rank, session_id, left)

    def wanted(self, room: NodeCapacity) -> Resources:
        """Return one replica's resources there, defaults filled in."""
        try:
            return self._wanted[room.kind]
        except KeyError:
            wanted = self._wanted[room.kind] = resources_on(room.node, self._request)
            return wanted
