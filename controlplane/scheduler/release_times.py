"""Latest ends of running sessions by node: updated incrementally, never by a full scan.

Time limits are upper bounds of run times (EASY backfill: Lifka, "The ANL/IBM SP scheduling system", 1995). For a
blocked session this index returns the nodes that may have room first, and those that lack least.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.lifecycle import SessionState
from controlplane.scheduler.preemption_policy import may_give_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from controlplane.domain.values import Session
    from controlplane.scheduler.node_capacity import NodeCapacity
    from controlplane.scheduler.node_index import NodeIndex

MOST_WIDTHS: Final = 32
"""Cached orders of nodes, by width of requests; the least recently used one is dropped."""
_MANY: Final = 8
"""If more than one in so many nodes changed, the orders are rebuilt."""

Since = tuple[float, str]
"""A lower bound of the instant at which a session's end makes room on a node, Unix seconds; and the node."""


def ends_by(session: Session, now: float) -> float:
    """Return the latest end of a session on its node, Unix seconds; 0: unbounded.

    A session in preparation counts as if its program started now, a stop without a time as if requested now.
    """
    spec = session.spec
    if session.state is SessionState.UNKNOWN:
        # It holds its devices until its end is proven.
        return 0.0
    if session.state is SessionState.STOPPING and session.stop is not None:
        stop = session.stop.since(now) if not session.stop.asked_at else session.stop
        return max(stop.ends_by, now)
    if not spec.time_limit_s:
        return 0.0
    starts = [replica.started_at for replica in session.replicas]
    started = max(starts) if starts and all(starts) else now
    return max(started + spec.time_limit_s + spec.grace_s, now)


Amounts = tuple[int, int, int]
"""Of devices, cores and memory, as `Resources` counts them."""


class Ending(NamedTuple):
    """Thousandths of a node's devices held by each session, and the bounded ends, in order."""

    held: dict[str, int]
    ends: list[tuple[float, str]]


class Likeness(NamedTuple):
    """Nodes that are equal but for their names, with equal free and releasable capacity.

    Attributes:
        kind: of their rooms.
        free: devices, cores and memory, in the units of `Resources`.
        leaving: the same, held by sessions with a bounded end and by preemptible ones.
        ending: thousandths of devices held by sessions with a bounded end.
    """

    kind: int
    free: Amounts
    leaving: Amounts
    ending: int


class _Node(NamedTuple):
    """A node that accepts sessions.

    Attributes:
        alike: its group.
        steps: instants of ends, and the free thousandths from then on.
        sessions: all sessions that hold something there.
    """

    alike: Likeness
    steps: tuple[tuple[float, int], ...]
    sessions: tuple[str, ...]

    def since(self, width: int) -> float | None:
        """Return the earliest end after which so many thousandths are free; None: never."""
        return next((at for at, free in self.steps if free >= width), None)


class Ends:
    """Ends of running sessions, on all nodes that accept sessions.

    Args:
        rooms: of all nodes.
        known: returns the session of an id, if it holds something; report changes by `heard`.

    Attributes:
        now: the instant of its answers, Unix seconds.
        twice: nodes with a pending placement of a session that already holds something there: its end frees
            more than it held.
    """

    def __init__(self, rooms: NodeIndex, known: Callable[[str], Session | None]) -> None:
        self.now = 0.0
        self.twice: set[str] = set()
        self._rooms = rooms
        self._touched = rooms.follow()
        self._known = known
        self._nodes: dict[str, _Node] = {}
        self._where: dict[str, tuple[str, ...]] = {}
        self._alike: dict[Likeness, list[str]] = {}
        self._since: dict[int, list[Since]] = {}
        self._exact: dict[str, Ending] = {}

    def heard(self, session_id: str) -> None:
        """Note that a session changed, or holds nothing any more."""
        if where := self._where.get(session_id):
            self._touched.update(where)

    def keep_up(self, now: float) -> None:
        """Update to an instant: costs a pass over the changed nodes."""
        self._rooms.tell()
        touched = self._touched
        if now < self.now:
            # Sessions in preparation would end sooner than estimated.
            touched.update(self._nodes)
        self.now = now
        self._exact.clear()
        if len(touched) > len(self._rooms) // _MANY:
            self._since.clear()
        for name in touched:
            self._look(name)
        touched.clear()

    def on(self, room: NodeCapacity) -> Ending:
        """Return the sessions on a node, and their ends."""
        found = self._exact.get(room.name)
        if found is None:
            found = self._exact[room.name] = self._ending(room)
        return found

    def since(self, width: int) -> list[Since]:
        """Return nodes with an end after which so many thousandths are free, earliest first.

        The times are lower bounds: a session in preparation counts as started when the node last changed.
        """
        found = self._since.pop(width, None)
        if found is None:
            nodes = self._nodes.items()
            found = [(at, name) for name, one in nodes if (at := one.since(width)) is not None]
            found.sort()
            if len(self._since) == MOST_WIDTHS:
                del self._since[next(iter(self._since))]
        self._since[width] = found
        return found

    def alike(self) -> Iterator[tuple[Likeness, list[str]]]:
        """Iterate over groups of alike nodes that accept sessions, with their sorted names."""
        return iter(self._alike.items())

    def _ending(self, room: NodeCapacity) -> Ending:
        held: dict[str, int] = {}
        for replica in room.allocation.replicas:
            one = replica.session_id
            held[one] = held.get(one, 0) + replica.gpu_thousandths
        ends = []
        for one in held:
            session = self._known(one)
            if session is not None and (until := ends_by(session, self.now)):
                ends.append((until, one))
        ends.sort()
        return Ending(held, ends)

    def _look(self, name: str) -> None:
        """Update the record of a node."""
        room, before = self._rooms.get(name), self._nodes.get(name)
        after = None if room is None or not room.is_open else self._node(room)
        has_twice = room is not None and room.has_twice
        (self.twice.add if has_twice else self.twice.discard)(name)
        if before == after:
            return
        if before is not None:
            self._forget(name, before)
        if after is not None:
            self._nodes[name] = after
            insort(self._alike.setdefault(after.alike, []), name)
            for one in after.sessions:
                self._where[one] = (*self._where.get(one, ()), name)
            for width, order in self._since.items():
                if (at := after.since(width)) is not None:
                    insort(order, (at, name))

    def _node(self, room: NodeCapacity) -> _Node:
        held, ends = self._ending(room)
        left = free = room.free_thousandths()
        steps = []
        for at, one in ends:
            left += held[one]
            steps.append((at, left))
        alike = Likeness(
            room.kind, (free, room.cpu, room.memory), self._leaving(room, ends), left - free
        )
        return _Node(alike, tuple(steps), tuple(held))

    def _leaving(self, room: NodeCapacity, ends: list[tuple[float, str]]) -> Amounts:
        """Sum up the resources of sessions with a bounded end, and of preemptible ones."""
        ending = {one for _, one in ends}
        gpus = cores = memory = 0
        for replica in room.allocation.replicas:
            one = replica.session_id
            if one in ending or ((session := self._known(one)) and may_give_way(session)):
                gpus += replica.gpu_thousandths
                cores += replica.cpu_thousandths
                memory += replica.memory_bytes
        return (gpus, cores, memory)

    def _forget(self, name: str, node: _Node) -> None:
        del self._nodes[name]
        names = self._alike[node.alike]
        del names[bisect_left(names, name)]
        if not names:
            del self._alike[node.alike]
        for one in node.sessions:
            where = tuple(other for other in self._where[one] if other != name)
            if where:
                self._where[one] = where
            else:
                del self._where[one]
        for width, order in self._since.items():
            if (at := node.since(width)) is not None:
                del order[bisect_left(order, (at, name))]
