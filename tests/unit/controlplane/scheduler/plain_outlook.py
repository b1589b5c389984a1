"""Where and when there is room, by a look at every node: what the quick answers of the scheduler are held against."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from controlplane.domain.values import AllocatedReplica, Allocation, Session
from controlplane.scheduler.fit import Request, refusal, resources_on
from controlplane.scheduler.node_capacity import Alike, NodeCapacity
from controlplane.scheduler.release_times import ends_by
from controlplane.scheduler.wait_estimate import MOST_ENDS, Opening

Known = Callable[[str], Session | None]
Ending = tuple[dict[str, int], list[tuple[float, str]]]


def ending(room: NodeCapacity, known: Known, now: float) -> Ending:
    """What each session holds of the devices of a node, and the ends of those that have one, in order."""
    held: Counter[str] = Counter()
    for replica in room.allocation.replicas:
        held[replica.session_id] += replica.gpu_thousandths
    sessions = {one: session for one in held if (session := known(one)) is not None}
    found = ((ends_by(session, now), one) for one, session in sessions.items())
    return dict(held), sorted(one for one in found if one[0])


def that_would_do(
    rooms: Iterable[NodeCapacity], request: Request
) -> Iterator[tuple[NodeCapacity, int]]:
    """The rooms of nodes that take sessions, and the replicas that each would hold if nothing ran there."""
    for room in rooms:
        if room.is_open and not refusal(room.node, request):
            most = NodeCapacity(room.node, Allocation(node=room.name)).holds(request)
            if most:
                yield room, most


def earliest(
    rooms: Iterable[NodeCapacity], request: Request, known: Known, now: float
) -> Opening | None:
    """Where and when there is room for the whole gang if all that runs uses up its time limit."""
    parts: dict[str, tuple[Alike, int]] = {}
    ahead: dict[str, tuple[NodeCapacity, list[tuple[float, str]], dict[str, int]]] = {}
    ended: dict[str, list[str]] = {}
    heap: list[tuple[float, str]] = []

    def look(room: NodeCapacity) -> tuple[Alike, int]:
        """The replicas that it holds, and those of all that are alike."""
        alike, count = parts[room.name] = room.alike_for(request), room.holds(request)
        return alike, count

    def is_enough(alike: Alike) -> bool:
        held = sum(count for other, count in parts.values() if other == alike)
        return held >= request.replica_count

    def opening(at: float, alike: Alike) -> Opening:
        wanted, chosen = request.replica_count, []
        having = [(count, name) for name, (other, count) in parts.items() if other == alike]
        for count, name in sorted(having, key=lambda one: (-one[0], one[1])):
            if wanted > 0 and count:
                chosen.append((name, min(count, wanted)))
                wanted -= count
        return Opening(at, tuple(chosen))

    def following(name: str, count: int) -> None:
        """Push when there may be more GPUs than for so many replicas."""
        room, ends, held = ahead[name]
        while len(ended[name]) < len(ends):
            at, one = ends[len(ended[name])]
            ended[name].append(one)
            free = room.free_thousandths() + sum(held[gone] for gone in ended[name])
            if not request.gpu_thousandths or free // request.gpu_thousandths > count:
                heappush(heap, (at, name))
                return

    for room, _ in that_would_do(rooms, request):
        alike, count = look(room)
        if is_enough(alike):
            return opening(now, alike)
        held, ends = ending(room, known, now)
        ahead[room.name], ended[room.name] = (room, ends, held), []
        following(room.name, count)
    heapify(heap)
    for _ in range(MOST_ENDS):
        if not heap:
            break
        at, name = heappop(heap)
        alike, count = look(ahead[name][0].without(ended[name]))
        if is_enough(alike):
            return opening(at, alike)
        following(name, count)
    return None


def leaves(room: NodeCapacity, known: Known, now: float) -> Iterator[AllocatedReplica]:
    """What those hold there that have an end, or may be preempted."""
    for replica in room.allocation.replicas:
        session = known(replica.session_id)
        if session is None:
            continue
        may_go = session.progress.is_resumable or session.spec.may_be_preempted
        if may_go or ends_by(session, now):
            yield replica


def nearest(
    rooms: Iterable[NodeCapacity], request: Request, known: Known, now: float
) -> Opening | None:
    """Where least has to leave until there is room for the whole gang; least of what neither ends nor may be preempted."""
    offers: dict[Alike, list[tuple[float, float, str, int]]] = {}
    for room, most in that_would_do(rooms, request):
        count = min(most, request.replica_count)
        on = resources_on(room.node, request)
        measures = (
            (on.gpu_thousandths, room.free_thousandths(), "gpu_thousandths"),
            (on.cpu_thousandths, room.cpu, "cpu_thousandths"),
            (on.memory_bytes, room.memory, "memory_bytes"),
        )
        endless = lacking = 0.0
        for wanted, free, name in measures:
            short = max(count * wanted - free, 0)
            leaving = sum(getattr(one, name) for one in leaves(room, known, now))
            lacking += short / (wanted or 1)
            endless += max(short - leaving, 0) / (wanted or 1)
        offer = (endless / count, lacking / count, room.name, count)
        offers.setdefault(room.alike_for(request), []).append(offer)
    found = []
    for alike, some in offers.items():
        left, parts = request.replica_count, []
        unbounded = missing = 0.0
        for endless, lacking, name, most in sorted(some):
            count = min(most, left)
            parts.append((name, count))
            left -= count
            unbounded += endless * count
            missing += lacking * count
            if not left:
                found.append((unbounded, missing, alike, tuple(parts)))
                break
    return Opening(math.inf, min(found)[-1]) if found else None
