"""Nodes held for the first blocked session, so that it starts and backfilled sessions never delay it.

The first blocked gang or wide request in the order gets a reservation: the nodes where, by the time limits of
running sessions, it fits earliest, and the latest instant of that (EASY backfill: Lifka, JSSPP'95). From then
on these nodes are offered only to sessions that do not delay it: they end before that instant by their own limit,
or leave the reserved capacity free. A higher class may overtake, as everywhere.

There is one reservation at a time. More hold back nodes that others could use: on ten weeks of Philly
(`bench.scheduler`) the mean wait was 83,660 s with 1, 88,582 with 2 and 308,065 with 4, and the longest 1.05, 1.00
and 0.89 times that of EASY; traces without time limits see no difference.

Without limits that promise an end, only a *due* session (see session_rank.py) gets nodes: those where the least has to
leave, first the least without a limit. No new session takes reserved capacity there, whatever its own limit.

Classes go first even so: if neither helps, nodes of the first blocked session of the highest class are held against
lower classes, whatever it requests, small or wide. Its own class passes as usual, and its preemption victims count as
leaving. Otherwise a stream of small sessions, of cores alone for instance, would overtake a higher class for ever.

The bound on starvation: in its class, the session that has been due for longest gets nodes before all others; it
starts at the latest when all sessions that ran there at that instant have ended, or at the promised instant. Only
a higher class, a quota or budget, or the loss of one of the nodes delays it longer. So no session of the highest
waiting class is passed over for longer than its patience, plus the time until earlier due sessions and those running
on the nodes have ended.

Pure: no clock. Nodes are searched when a reservation is made or ends, and every `REVIEW_S`: those that changed since,
and those that may have room earlier (see release_times.py). A pass costs no more than the held nodes.
"""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE, Priority
from controlplane.scheduler.wait_estimate import Opening, earliest, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.values import Session
    from controlplane.scheduler.eligibility import Eligibility
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import NodeCapacity
    from controlplane.scheduler.node_index import NodeIndex
    from controlplane.scheduler.release_times import Ends

REVIEW_S: Final = 30.0
"""Interval of reviews: for which session to hold nodes, and whether an earlier instant is possible, seconds."""
BROKEN_REVIEW_S: Final = 5.0
"""The same after its own class has taken capacity held against lower ones: other nodes may be better now."""
MOST_LOOKED_FOR: Final = 3
"""Maximum number of requests for which nodes are searched at one time."""
STARTING_S: Final = 600.0
"""Allowance for a session's preparation, seconds: a backfilled session ends before the reservation even so."""


class Candidate(NamedTuple):
    """A blocked session that may get a reservation.

    Attributes:
        session_id: its id.
        priority: its class.
        request: its request.
        is_due: whether it waited for all of its patience.
        is_small: whether it needs at most one GPU: until it is due, nodes are held for it against lower
            classes only.
    """

    session_id: str
    priority: Priority
    request: Request
    is_due: bool
    is_small: bool


class Promise(NamedTuple):
    """A reservation.

    Attributes:
        session_id: the reserving session.
        priority: its class.
        request: its request, without fields that do not affect where it fits.
        at: when it starts at the latest, Unix seconds; infinity: not bounded by limits.
        parts: nodes, and how many of its replicas each is to take.
        leaving: sessions that are gone from there by then.
        bars_own_class: whether its own class may not take of it either; a higher class always may.
        is_broken: whether a session with permission took of it.
    """

    session_id: str
    priority: Priority
    request: Request
    at: float
    parts: Mapping[str, int]
    leaving: frozenset[str]
    bars_own_class: bool = True
    is_broken: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether limits bound its start."""
        return self.at < math.inf

    @property
    def words(self) -> str:
        """The explanation for its session."""
        count = len(self.parts)
        held = "1 node is held for it" if count == 1 else f"{count} nodes are held for it"
        if not self.bars_own_class:
            return f"{held}, ahead of lower priorities"
        return held if self.is_bounded else f"{held}, as it waits longest"

    def yields_to(self, priority: Priority) -> bool:
        """Return whether a session of that class may take of it even if that delays it."""
        return priority > self.priority or (priority == self.priority and not self.bars_own_class)


class Held(NamedTuple):
    """State that a trial has to restore."""

    promise: Promise | None
    looked_at: float
    lowest: int


class Holding:
    """The reservation, and the rooms withdrawn for it.

    Attributes:
        looked_at: time of the last review, Unix seconds.
        is_spent: whether it was used in this pass: its other nodes are offered to all again.
        lowest: the lowest waiting class, as of the last pass.
    """

    def __init__(self, rooms: NodeIndex, ends: Ends) -> None:
        self._rooms = rooms
        self._ends = ends
        self._promise: Promise | None = None
        self._full: set[Request] = set()
        self.looked_at = -math.inf
        self.is_spent = False
        self.lowest: int = Priority.IDLE

    def __bool__(self) -> bool:
        return self._promise is not None

    def __contains__(self, session_id: object) -> bool:
        return self._promise is not None and session_id == self._promise.session_id

    def get(self, session_id: str) -> Promise | None:
        """Return the reservation of a session, if any."""
        return self._promise if session_id in self else None

    @property
    def holder(self) -> str:
        """The session that has it; "": none."""
        return self._promise.session_id if self._promise else ""

    @property
    def is_felt(self) -> bool:
        """Whether any waiting session must not use the nodes."""
        promise = self._promise
        return promise is not None and (promise.bars_own_class or self.lowest < promise.priority)

    def due(self) -> float | None:
        """Return the time of the next review, Unix seconds; None if nothing is held."""
        return self.looked_at + self._review_s if self._promise else None

    @property
    def _review_s(self) -> float:
        is_broken = self._promise is not None and self._promise.is_broken
        return BROKEN_REVIEW_S if is_broken else REVIEW_S

    def open(self, stands: Callable[[Promise], bool]) -> None:
        """Offer every room to all, at the start of a pass, and drop a reservation that is no longer valid."""
        self._full.clear()
        self.is_spent = False
        self.release()
        promise = self._promise
        if promise is None:
            return
        # If its own class may take of it, each pass that starts sessions of that class may break it: the rest
        # is held until the next review, which is soon.
        is_void = promise.is_broken and promise.bars_own_class
        if is_void or not self._has_nodes(promise) or not stands(promise):
            self.forget()

    def _has_nodes(self, promise: Promise) -> bool:
        rooms = map(self._rooms.get, promise.parts)
        return all(room is not None and room.is_offered for room in rooms)

    def is_stale(self, now: float) -> bool:
        """Return whether a review is due."""
        return not 0 <= now - self.looked_at < self._review_s

    def look(self, candidates: Iterable[Candidate], now: float) -> None:
        """Reserve for the first candidate that can have nodes; `candidates` are in order, class by class."""
        promise: Promise | None = None
        self._ends.keep_up(now)
        looked_for: set[Request] = set()
        for priority, of_class in groupby(candidates, key=attrgetter("priority")):
            first = None
            for one in of_class:
                first = first or one
                if promise is not None or len(looked_for) == MOST_LOOKED_FOR:
                    break
                if one.request not in looked_for and (one.is_due or not one.is_small):
                    looked_for.add(one.request)
                    promise = self._promised(one)
            if promise is None and first is not None and priority > Priority.IDLE:
                promise = self._against_lower(first)
            if promise is not None or len(looked_for) == MOST_LOOKED_FOR:
                break
        self._promise, self.looked_at = promise, now

    def forget(self) -> None:
        """Drop the reservation, and review again as soon as a session is blocked."""
        self._promise, self.looked_at = None, -math.inf

    def _promised(self, one: Candidate) -> Promise | None:
        """Return its current reservation, unless there is an earlier one."""
        rooms, ends, request = self._rooms, self._ends, one.request
        before = self._before(one)
        if before is not None and not before.bars_own_class:
            before = None
        found = earliest(rooms, request, ends)
        until = math.inf if found is None else found.at
        # Nodes without bounded ends stay the same: else each review might choose new sessions to wait for.
        if before is not None and before.at > ends.now and until >= before.at:
            return before
        if found is None and one.is_due:
            found = nearest(rooms, request, ends)
        return None if found is None else self._new(one, found)

    def _before(self, one: Candidate) -> Promise | None:
        """Return its current reservation, if it is for the same request."""
        before = self.get(one.session_id)
        return before if before is not None and before.request == one.request else None

    def _against_lower(self, one: Candidate) -> Promise | None:
        """Reserve nodes against lower classes; the same as before unless they are broken."""
        before = self._before(one)
        if before is not None and not before.bars_own_class and not before.is_broken:
            return before
        found = nearest(self._rooms, one.request, self._ends)
        return None if found is None else self._new(one, found)._replace(bars_own_class=False)

    def _new(self, one: Candidate, found: Opening) -> Promise:
        parts = dict(found.parts)
        rooms = [room for node in parts if (room := self._rooms.get(node)) is not None]
        if found.at < math.inf:
            on = self._ends.on
            leaving = {gone for room in rooms for at, gone in on(room).ends if at <= found.at}
        else:
            leaving = {gone for room in rooms for gone in room.occupants()}
        return Promise(
            one.session_id, one.priority, one.request, found.at, parts, frozenset(leaving)
        )

    def hold(self) -> None:
        """Withdraw the reserved rooms, if any waiting session must not use them."""
        for node in self._parts() if self.is_felt else ():
            self._rooms.promise(node, self.holder)

    def release(self) -> None:
        """Offer the reserved rooms to all."""
        for node in self._parts():
            self._rooms.promise(node, "")

    def _parts(self) -> Mapping[str, int]:
        return self._promise.parts if self._promise else {}

    def drop(self, session_id: str) -> None:
        """Offer a session's nodes to all: it started, or no longer waits."""
        if self._promise is not None and session_id == self._promise.session_id:
            self.release()
            self.forget()
            self.is_spent = True

    def drop_all_but(self, waiting: Container[str]) -> None:
        """Drop the reservation if its session no longer waits."""
        if self.holder not in waiting:
            self.drop(self.holder)

    def lets(self, session: Session, now: float) -> bool:
        """Return whether it may use any held room: its own, a lower class's, or until the reservation begins."""
        promise = self._promise
        return (
            promise is None
            or session.id == promise.session_id
            or promise.yields_to(session.spec.priority)
            or ends_in_time(session, promise, now)
        )

    def bars(self, room: NodeCapacity, session_id: str, priority: Priority) -> bool:
        """Return whether no session may be preempted there for a session of this class."""
        promise = self.get(room.promised)
        if promise is None or session_id == room.promised:
            return False
        return not promise.yields_to(priority)

    def took(self, session: Session, placed: Iterable[ReplicaPlacement], now: float) -> None:
        """Note the placement of a session that `lets` allowed."""
        promise, nodes = self._promise, {one.node for one in placed}
        if promise is None or session.id == self.holder or not nodes & promise.parts.keys():
            return
        if ends_in_time(session, promise, now):
            self._promise = promise._replace(leaving=promise.leaving | {session.id})
        else:
            self._promise = promise._replace(is_broken=True)

    def spares(self, request: Request) -> bool:
        """Return whether a held room may have unreserved capacity: fast, with false positives only."""
        promise = self._promise
        if promise is None or request.replica_count > 1:
            return False
        return any(
            room.holds(request) and _may_spare(room, promise, request)
            for node in promise.parts
            if (room := self._rooms.get(node)) is not None
        )

    def beside(
        self, request: Request, suits: Eligibility, session_id: str
    ) -> tuple[ReplicaPlacement, ...]:
        """Take one replica from a held room, beside the reserved capacity; () if there is no room."""
        promise = self._promise
        if promise is None or request.replica_count > 1 or request in self._full:
            return ()
        for node, count in promise.parts.items():
            room = self._rooms.get(node)
            if room is None or not _may_spare(room, promise, request) or not room.holds(request):
                continue
            placed = room.take(request, suits.wanted(room), 0, session_id)
            if room.without(promise.leaving).holds(promise.request) >= count:
                self._rooms.note(room)
                return (placed,)
            room.drop(session_id)
        self._full.add(request)
        return ()

    def state(self) -> Held:
        """Return the state for `restore`."""
        return Held(self._promise, self.looked_at, self.lowest)

    def restore(self, held: Held) -> None:
        """Restore an earlier state."""
        self.release()
        self._promise, self.looked_at, self.lowest = held
        self.hold()


def ends_in_time(session: Session, promise: Promise, now: float) -> bool:
    """Return whether it would end before a reservation begins, if it were placed now."""
    limit_s = session.spec.time_limit_s
    if not limit_s or not promise.is_bounded:
        return False
    return now + STARTING_S + limit_s + session.spec.grace_s <= promise.at


def _may_spare(room: NodeCapacity, promise: Promise, request: Request) -> bool:
    """Return whether its GPUs could be enough for both: a cheap test."""
    staying = room.held_thousandths(promise.leaving)
    reserved = promise.parts[room.node.name] * promise.request.gpu_thousandths
    spare = len(room.models) * WHOLE_DEVICE - staying - reserved
    return spare >= request.gpu_thousandths
