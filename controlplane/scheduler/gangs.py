"""Where a gang goes: all of it or nothing, on few nodes, inside one pod when it fits."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.rooms import Alike, Room, Rooms

Hold = tuple["Room", int]


def place_gang(rooms: Rooms, request: Request) -> tuple[ReplicaPlacement, ...]:
    """Placements of all replicas, taken from `rooms`; empty when they do not fit together."""
    chosen = _choose([(room, count) for room in rooms if (count := room.holds(request))], request)
    placed: list[ReplicaPlacement] = []
    for room, count in chosen:
        placed += [rooms.take(room, request, len(placed) + rank) for rank in range(count)]
    return tuple(placed)


def _choose(holds: list[Hold], request: Request) -> list[Hold]:
    """Nodes and replicas on each: the first kind of group that is large enough decides."""
    for groups in (_by_pod(holds, request), _by_kind(holds, request)):
        fitting = [group for group in groups if _total(group) >= request.replica_count]
        if fitting:
            # The smallest pod that does, so that wide ones stay whole.
            return _fewest(min(fitting, key=_total), request.replica_count)
    return []


def _total(group: list[Hold]) -> int:
    return sum(count for _, count in group)


def _by_pod(holds: list[Hold], request: Request) -> list[list[Hold]]:
    groups: dict[tuple[str, Alike], list[Hold]] = defaultdict(list)
    for room, count in holds:
        # A node without a pod is near to nothing but itself.
        pod = room.node.pod or f"\0{room.node.name}"
        groups[pod, room.alike_for(request)].append((room, count))
    return list(groups.values())


def _by_kind(holds: list[Hold], request: Request) -> list[list[Hold]]:
    groups: dict[Alike, list[Hold]] = defaultdict(list)
    for room, count in holds:
        groups[room.alike_for(request)].append((room, count))
    return list(groups.values())


def _fewest(group: list[Hold], wanted: int) -> list[Hold]:
    """The widest nodes first, the rest on the tightest one that holds it."""
    # `group` comes tightest first and sorting is stable: ties stay in that order.
    left = sorted(group, key=lambda hold: -hold[1])
    chosen: list[Hold] = []
    while wanted:
        enough = [hold for hold in left if hold[1] >= wanted]
        room, count = min(enough, key=lambda hold: hold[1]) if enough else left[0]
        left = [hold for hold in left if hold[0] is not room]
        chosen.append((room, min(count, wanted)))
        wanted -= min(count, wanted)
    return chosen
