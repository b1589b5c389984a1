"""Estimates for queued sessions: holders of the short resource, until when, and where and when enough is free.

Holders are computed on request. Passes, too, search where and when enough is free, for the reservation
(see reservations.py): by the nodes that may have room first, in the order of release_times.py.
"""

from __future__ import annotations

import math
from collections import Counter
from heapq import heappop, heappush, merge
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.models import is_model
from controlplane.domain.plan import Holder
from controlplane.domain.values import Allocation
from controlplane.scheduler.explain import shortages_of
from controlplane.scheduler.fit import refusal, resources_on
from controlplane.scheduler.node_capacity import CLOSED, NodeCapacity
from controlplane.scheduler.release_times import ends_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import AllocatedReplica, Node, Session
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import Alike
    from controlplane.scheduler.node_index import NodeIndex
    from controlplane.scheduler.release_times import Ends, Likeness

MOST_HOLDERS: Final = 3
MOST_ENDS: Final = 5_000
"""Maximum number of node examinations as sessions end there; beyond, the time is unknown."""

QUOTA_WORDS: Final = {
    "gpu_thousandths": "GPUs",
    "cpu_thousandths": "cores",
    "memory_bytes": "memory",
    "sessions": "sessions",
}
"""Name of the short resource, by the measure of a quota."""


class Free(NamedTuple):
    """Free devices on nodes that accept sessions: in all, and the most whole ones on one node."""

    gpu_thousandths: int
    largest_hole: int
    node: str


def free_in(rooms: Iterable[NodeCapacity]) -> Free:
    """Sum up free devices; `node` is "" if no whole device is free."""
    total, widest, where = 0, 0, ""
    for room in rooms:
        if room.is_open:
            total += room.free_thousandths()
            if (hole := room.hole_for("")) > widest:
                widest, where = hole, room.node.name
    return Free(total, widest, where)


def short_of(explanation: Explanation, request: Request) -> str:
    """Return what is short on most suitable nodes: "GPUs", "cores", "memory"; "" if none of these."""
    counts = shortages_of({one.what: one.nodes for one in explanation.shortages})
    if counts:
        return max(counts, key=lambda what: counts[what])
    # A gang that fits in part: it needs more of this in all.
    is_torn = request.replica_count > 1 and explanation.shortages
    return ("GPUs" if request.gpu_thousandths else "cores") if is_torn else ""


def holders(
    rooms: Iterable[NodeCapacity],
    request: Request,
    short: str,
    known: Callable[[str], Session | None],
    now: float,
) -> tuple[Holder, ...]:
    """Return the largest holders of the short resource on suitable nodes, largest first.

    Args:
        rooms: of all nodes.
        request: of the queued session.
        short: as of `short_of`.
        known: returns the session of an id, if it holds something.
        now: Unix seconds.
    """
    held = Counter[str]()
    nodes: dict[str, list[str]] = {}
    for room in _that_would_do(rooms, request):
        counts = _counted(room.node, request, short)
        for replica in room.allocation.replicas:
            if amount := counts(replica):
                held[replica.session_id] += amount
                where = nodes.setdefault(replica.session_id, [])
                if room.node.name not in where:
                    where.append(room.node.name)
    return most_of(
        Holder(
            session=session,
            held=amount,
            nodes=tuple(sorted(nodes[one])),
            until=ends_by(session, now),
        )
        for one, amount in held.items()
        if (session := known(one)) is not None
    )


def most_of(found: Iterable[Holder]) -> tuple[Holder, ...]:
    """Return the few largest holders, largest first."""
    ordered = sorted(found, key=lambda one: (-one.held, one.session.id))
    return tuple(ordered[:MOST_HOLDERS])


class Opening(NamedTuple):
    """Where a gang will have room, and when at the latest.

    Attributes:
        at: Unix seconds; infinity: not bounded by time limits.
        parts: nodes, and how many replicas each is to take.
    """

    at: float
    parts: tuple[tuple[str, int], ...]


def earliest(
    rooms: NodeIndex,
    request: Request,
    ends: Ends,
    *,
    taken: Container[str] = (),
    beside: Collection[NodeCapacity] = (),
) -> Opening | None:
    """Return where and when the whole gang has room if running sessions use up their limits; None: unknown.

    Args:
        rooms: of all nodes; only rooms offered to all count.
        request: of the queued session.
        ends: updated to the earliest possible start.
        taken: nodes that do not count.
        beside: rooms that count though they are not offered.
    """
    if not ends.twice and not _may_do(rooms, request, ends):
        return None
    together = _Together(request)
    here = [*_holding_now(rooms, together, taken), *beside]
    if any(together.look(room) and together.is_enough for room in here):
        return _here(rooms, request, ends, {room.name for room in here})
    names = {room.name for room in beside}

    def counts(room: NodeCapacity) -> bool:
        return room.name not in taken and (room.is_offered or room.name in names)

    ahead = _Ahead(rooms, request, ends, counts)
    for _ in range(MOST_ENDS):
        first = ahead.first(together)
        if first is None:
            break
        at, one = first
        count = together.look(one.room.without(one.ended))
        if together.is_enough:
            return together.opening(at)
        ahead.go_on(one, count)
    return None


class _Ahead:
    """Ends on suitable nodes, in order; nodes are examined lazily.

    Args:
        rooms: of all nodes.
        request: of the queued session.
        ends: of all nodes.
        counts: whether a room counts.
    """

    def __init__(
        self, rooms: NodeIndex, request: Request, ends: Ends, counts: Callable[[NodeCapacity], bool]
    ) -> None:
        self._rooms = rooms
        self._request = request
        self._ends = ends
        self._counts = counts
        self._empty = _Empty(request)
        self._following = iter(ends.since(request.gpu_thousandths))
        self._next = next(self._following, None)
        self._heap: list[tuple[float, str, _Ending]] = []

    def first(self, together: _Together) -> tuple[float, _Ending] | None:
        """Return the next instant at which a node may hold more replicas than when last examined; None: none."""
        while self._next is not None and (not self._heap or self._next <= self._heap[0][:2]):
            name, self._next = self._next[1], next(self._following, None)
            room = self._rooms.get(name)
            if room is not None and self._counts(room) and self._empty.holds(room):
                self.go_on(_Ending(room, self._request, self._ends), together.held(name))
        if not self._heap:
            return None
        at, _, one = heappop(self._heap)
        return at, one

    def go_on(self, one: _Ending, count: int) -> None:
        """Schedule a node's next end that allows more than `count` replicas."""
        if (at := one.next(count)) is not None:
            heappush(self._heap, (at, one.room.name, one))


def _may_do(rooms: NodeIndex, request: Request, ends: Ends) -> bool:
    """Return whether GPUs are enough after all bounded ends: a cheap test."""
    anywhere = request._replace(pod="", avoids=frozenset())
    empty, width = _Empty(anywhere), request.gpu_thousandths
    most: Counter[Alike] = Counter()
    for one, names in ends.alike():
        room = rooms.get(names[0])
        if room is not None and (count := empty.holds(room)):
            each = min(count, (one.free[0] + one.ending) // width) if width else count
            most[room.alike_for(anywhere)] += each * len(names)
    return max(most.values(), default=0) >= request.replica_count


def _holding_now(
    rooms: NodeIndex, together: _Together, taken: Container[str]
) -> Iterator[NodeCapacity]:
    """Yield the rooms offered to all that hold a replica now."""
    least, is_picky = together.request.whole_devices, bool(together.request.avoids)
    for tie in rooms.ties():
        if tie.whole >= least and (is_picky or together.holds(tie.first())):
            yield from (room for name, room in tie.rooms.items() if name not in taken)


def _here(rooms: NodeIndex, request: Request, ends: Ends, names: Container[str]) -> Opening | None:
    """Return the opening now, on the first of these nodes that are enough."""
    together = _Together(request)
    for room in rooms.known():
        if room.name in names and together.look(room) and together.is_enough:
            return together.opening(ends.now)
    return None


class _Together:
    """Counts replicas of a gang in rooms, grouped by alike replicas.

    Attributes:
        request: of the gang.
        is_enough: whether the group of the last examined room is enough for the gang.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._parts: dict[str, tuple[Alike, int]] = {}
        self._held: Counter[Alike] = Counter()
        self._known: dict[object, tuple[Alike, int]] = {}
        self._last: Alike | None = None
        self.is_enough = False

    def look(self, room: NodeCapacity) -> int:
        """Return how many replicas a room holds, and replace its earlier count."""
        alike, count = self._part(room)
        if (before := self._parts.get(room.name)) is not None:
            self._held[before[0]] -= before[1]
        self._parts[room.name] = (alike, count)
        self._held[alike] += count
        self._last, self.is_enough = alike, self._held[alike] >= self.request.replica_count
        return count

    def holds(self, room: NodeCapacity) -> int:
        """Return the same without counting it."""
        return self._part(room)[1]

    def held(self, name: str) -> int:
        """Return a room's replicas when last examined."""
        return self._parts[name][1] if name in self._parts else 0

    def _part(self, room: NodeCapacity) -> tuple[Alike, int]:
        # Rooms in one state are alike; and their pod makes no difference, unless requested.
        key = room.tie if self.request.pod else room.tie.alike
        found = self._known.get(key)
        if found is None:
            found = room.alike_for(self.request), room.holds(self.request)
            if room.is_offered and room.tie is not CLOSED and not self.request.avoids:
                self._known[key] = found
        return found

    def opening(self, at: float) -> Opening:
        """Return the last examined group as an opening, on as few nodes as possible."""
        wanted, parts = self.request.replica_count, []
        having = [(count, name) for name, (one, count) in self._parts.items() if one == self._last]
        for count, name in sorted(having, key=lambda one: (-one[0], one[1])):
            if wanted > 0 and count:
                parts.append((name, min(count, wanted)))
                wanted -= count
        return Opening(at, tuple(parts))


class _Ending:
    """Sessions on one node in the order of their latest ends.

    Attributes:
        room: the current room.
        ended: sessions whose end was counted.
    """

    __slots__ = ("_ends", "_free", "_held", "_left", "_wanted", "ended", "room")

    def __init__(self, room: NodeCapacity, request: Request, ends: Ends) -> None:
        self.room = room
        self.ended: set[str] = set()
        self._wanted = request.gpu_thousandths
        self._held, self._ends = ends.on(room)
        self._free = room.free_thousandths()
        self._left = 0

    def next(self, count: int) -> float | None:
        """Return when there may be room for more than so many replicas; None: never.

        By the GPUs only, a cheap test: the caller checks the rest.
        """
        for at, ended in self._ends[self._left :]:
            self._left += 1
            self.ended.add(ended)
            self._free += self._held[ended]
            if not self._wanted or self._free // self._wanted > count:
                return at
        return None


class _Empty:
    """Capacity of empty nodes for a request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._by_kind: dict[int, int] = {}

    def holds(self, room: NodeCapacity) -> int:
        """Return the number of replicas; 0 also if the node refuses such sessions."""
        if refusal(room.node, self._request):
            return 0
        if self._request.avoids:
            return self._look(room)
        found = self._by_kind.get(room.kind)
        if found is None:
            found = self._by_kind[room.kind] = self._look(room)
        return found

    def _look(self, room: NodeCapacity) -> int:
        return NodeCapacity(room.node, Allocation(node=room.name)).holds(self._request)


def nearest(
    rooms: NodeIndex, request: Request, ends: Ends, taken: Container[str] = ()
) -> Opening | None:
    """Return where the least has to leave for the whole gang; first the least that neither ends nor is preemptible.

    Arguments as those of `earliest`. None if it would not fit on empty nodes.
    """
    offers: dict[Alike, list[_Offer]] = {}
    for room, most, likeness, names in _like_each_other(rooms, request, ends):
        count = min(most, request.replica_count)
        endless = lacking = 0.0
        on = resources_on(room.node, request)
        wanted = (on.gpu_thousandths, on.cpu_thousandths, on.memory_bytes)
        for each, free, leaving in zip(wanted, likeness.free, likeness.leaving, strict=True):
            short = max(count * each - free, 0)
            lacking += short / (each or 1)
            endless += max(short - leaving, 0) / (each or 1)
        offer = _Offer(endless / count, lacking / count, count, names)
        offers.setdefault(room.alike_for(request), []).append(offer)
    found = []
    for alike, some in offers.items():
        left, parts = request.replica_count, []
        unbounded = missing = 0.0
        for name, one in _in_order(some):
            here = rooms.get(name)
            if here is None or not here.is_offered or name in taken:
                continue
            if request.pod not in ("", here.node.pod):
                continue
            count = min(one.most, left)
            parts.append((name, count))
            left -= count
            unbounded += one.endless * count
            missing += one.lacking * count
            if not left:
                found.append((unbounded, missing, alike, tuple(parts)))
                break
    return Opening(math.inf, min(found)[-1]) if found else None


class _Offer(NamedTuple):
    """Nodes on which equally much has to leave.

    Attributes:
        endless: the parts of a replica's needs that are held without an end: 1 if all of its GPUs are, 3
            if all of its GPUs, cores and memory are.
        lacking: the same for capacity that is not free.
        most: replicas that each node would hold, up to the needed number.
        names: of the nodes, in order.
    """

    endless: float
    lacking: float
    most: int
    names: Sequence[str]


def _in_order(offers: list[_Offer]) -> Iterator[tuple[str, _Offer]]:
    """Yield nodes, first those where the least has to leave, then by name."""
    for _, some in groupby(sorted(offers, key=_loss), key=_loss):
        yield from merge(*(zip(one.names, repeat(one)) for one in some), key=itemgetter(0))


def _loss(offer: _Offer) -> tuple[float, float]:
    return offer.endless, offer.lacking


def _like_each_other(
    rooms: NodeIndex, request: Request, ends: Ends
) -> Iterator[tuple[NodeCapacity, int, Likeness, Sequence[str]]]:
    """Yield groups of suitable nodes: one of them, the replicas of each if empty, what is free, all names."""
    anywhere = request._replace(pod="", avoids=frozenset())
    empty, picky = _Empty(anywhere), _Empty(request._replace(pod=""))
    # Few: the session failed there.
    apart = {
        room.name
        for room in (rooms.known() if request.avoids else ())
        if room.is_open and room.has_any(request.avoids)
    }
    for alike, names in ends.alike():
        room = rooms.get(names[0])
        if room is None or not (most := empty.holds(room)):
            continue
        left = [name for name in names if name not in apart] if apart else names
        if left:
            yield room, most, alike, left
        for name in names if len(left) < len(names) else ():
            one = rooms.get(name) if name in apart else None
            if one is not None and (most := picky.holds(one)):
                yield one, most, alike, (name,)


def _that_would_do(rooms: Iterable[NodeCapacity], request: Request) -> Iterator[NodeCapacity]:
    """Yield open rooms that would hold a replica if empty."""
    empty = _Empty(request)
    return (room for room in rooms if room.is_open and empty.holds(room))


def _counted(node: Node, request: Request, short: str) -> Callable[[AllocatedReplica], int]:
    """Return a function for a replica's part of the short resource; of devices only suitable ones."""
    if short == "cores":
        return lambda replica: replica.cpu_thousandths
    if short == "memory":
        return lambda replica: replica.memory_bytes
    would_do = {
        one.uuid
        for one in node.devices
        if is_model(one.model, request.gpu_model)
        and not one.withheld
        and one.uuid not in request.avoids
    }
    return lambda replica: sum(
        share.thousandths for share in replica.devices if share.uuid in would_do
    )
