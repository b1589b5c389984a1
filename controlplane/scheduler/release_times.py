"""When what runs ends at the latest, node by node: kept up by what changes, never by looking at all nodes.

Time limits are upper bounds of how long a session runs (EASY backfill: Lifka, "The ANL/IBM SP scheduling system",
1995). Whoever looks for nodes for a blocked session asks here which nodes may have room first, and which lack least.
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
"""Widths of requests for which nodes are kept in order; that which nobody asked for longest is forgotten."""
_MANY: Final = 8
"""Where more than one in so many nodes changed, an order is made anew."""

Since = tuple[float, str]
"""A node, and an instant before which nothing ends there that makes room; Unix seconds."""


def ends_by(session: Session, now: float) -> float:
    """When its node has ended a session at the latest, Unix seconds; 0: nothing bounds it.

    One that is being prepared counts as if its program started now, and so does a stop that says not since when.
    """
    spec = session.spec
    if session.state is SessionState.UNKNOWN:
        # It keeps its devices until there is proof of its end.
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
    """What each session holds of the devices of a node, in thousandths, and those that end, in order."""

    held: dict[str, int]
    ends: list[tuple[float, str]]


class Likeness(NamedTuple):
    """Nodes that are equal but for their names, of which as much is free and may leave.

    Attributes:
        kind: of their rooms.
        free: of devices, cores and memory, as `Resources` counts them.
        leaving: the same of sessions whose end is bounded, and of those that may be preempted.
        ending: thousandths of devices that those hold whose end is bounded.
    """

    kind: int
    free: Amounts
    leaving: Amounts
    ending: int


class _Node(NamedTuple):
    """What is known of a node that takes sessions.

    Attributes:
        alike: where it stands.
        steps: instants at which something ends, and the thousandths that are free from then on.
        sessions: all that hold something there.
    """

    alike: Likeness
    steps: tuple[tuple[float, int], ...]
    sessions: tuple[str, ...]

    def since(self, width: int) -> float | None:
        """When at the earliest something ends after which so many thousandths are free; None: never."""
        return next((at for at, free in self.steps if free >= width), None)


class Ends:
    """When what runs ends, on all nodes that take sessions.

    Args:
        rooms: of all nodes.
        known: the session of an id, where it holds something; whoever changes what that says tells by `heard`.

    Attributes:
        now: the instant as of which it answers, Unix seconds.
        twice: nodes where something is taken for one that has something there already: more is free once that
            ends than what it held.
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
        """A session is another one than it was, or holds nothing any more."""
        if where := self._where.get(session_id):
            self._touched.update(where)

    def keep_up(self, now: float) -> None:
        """Answer as of this instant from now on: costs a look at the nodes that changed."""
        self._rooms.tell()
        touched = self._touched
        if now < self.now:
            # What is being prepared would end sooner than was thought.
            touched.update(self._nodes)
        self.now = now
        self._exact.clear()
        if len(touched) > len(self._rooms) // _MANY:
            self._since.clear()
        for name in touched:
            self._look(name)
        touched.clear()

    def on(self, room: NodeCapacity) -> Ending:
        """What holds a node, and the ends of that."""
        found = self._exact.get(room.name)
        if found is None:
            found = self._exact[room.name] = self._ending(room)
        return found

    def since(self, width: int) -> list[Since]:
        """Nodes where something ends after which so many thousandths are free, those where it may be first in front.

        It is then, or later: what is being prepared counts as if it had started when the node changed last.
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
        """All nodes that take sessions, by name, those together that are alike."""
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
        """Take what there is of a node now."""
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
        """What those hold that end some time, or that may be preempted."""
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
