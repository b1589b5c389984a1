"""Nodes that are held for the first that is blocked, so that it starts and what runs ahead never delays it.

The first blocked gang or wide request in the order gets a reservation: the nodes where, by the time limits of what
runs, it fits earliest, and the instant at which it does at the latest (EASY backfill: Lifka, JSSPP'95). From then
on these nodes are offered only to those who leave it room: who end before that instant by their own limit, or who
leave beside themselves what is reserved. A higher class may pass, as it may everywhere.

There is one at a time. More hold nodes back that others could use: on ten weeks of Philly (`bench.scheduler`) the mean
wait was 83,660 s with 1, 88,582 with 2 and 308,065 with 4, and the longest 1.05, 1.00 and 0.89 times that of EASY;
traces without time limits see no difference.

Where no limits promise an end, only who is *due* (see session_rank.py) gets nodes: those where least has to leave, of that
without a limit the least. Nothing new that takes of what is reserved starts there, whatever its own limit.

Classes go first even so: where neither helps, the first that is blocked in the highest class has its nodes held against
lower classes, whatever it asks for, small or wide. Its own class passes as ever, and what gives way to it counts as
leaving. Otherwise a stream of small sessions, of cores alone for instance, would go round a higher class for ever.

The bound on starvation: among those of its class, the one that has been due for longest gets nodes before all others;
it starts at the latest when all that ran there at that instant has ended, or at the instant that was promised.
What makes it longer is only: a higher class, a bar of a quota or budget, and a node of them that is lost. So nobody
of the highest class that waits is passed over for longer than its patience, and then for as long as those that were
due before it and what runs on the nodes take to end.

Pure: no clock. Nodes are looked for when a reservation comes or goes, and every `REVIEW_S`: those that changed since,
and those that may have room before it is found (see release_times.py). A pass costs no more than the nodes that are held.
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
"""How often it is looked for whom nodes should be held, and whether there is an earlier instant, seconds."""
BROKEN_REVIEW_S: Final = 5.0
"""The same while somebody of its class has taken of what is held against lower ones: less of it is left than may be elsewhere."""
MOST_LOOKED_FOR: Final = 3
"""Requests for which nodes are looked for at one time."""
STARTING_S: Final = 600.0
"""What preparing a session may take, seconds: who is to run ahead ends before a reservation even so."""


class Candidate(NamedTuple):
    """One that is blocked, and may get a reservation.

    Attributes:
        session_id: of it.
        priority: its class.
        request: what it asks for.
        is_due: whether it waited for its patience.
        is_small: whether one GPU at most is enough for it: until it is due, nodes are held for it against lower
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
        session_id: whose it is.
        priority: its class.
        request: what it asks for, without what makes no difference to where it fits.
        at: when it starts at the latest, Unix seconds; infinity: no limits promise it.
        parts: nodes, and how many of its replicas each is to take.
        leaving: the sessions that are gone from there by then.
        bars_own_class: whether its own class may not take of it either; a higher class always may.
        is_broken: whether somebody took of it who may.
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
        """Whether limits promise an instant."""
        return self.at < math.inf

    @property
    def words(self) -> str:
        """What its session is told."""
        count = len(self.parts)
        held = "1 node is held for it" if count == 1 else f"{count} nodes are held for it"
        if not self.bars_own_class:
            return f"{held}, ahead of lower priorities"
        return held if self.is_bounded else f"{held}, as it waits longest"

    def yields_to(self, priority: Priority) -> bool:
        """Whether a session of that class may take of it whatever that delays."""
        return priority > self.priority or (priority == self.priority and not self.bars_own_class)


class Held(NamedTuple):
    """All that a trial has to put back."""

    promise: Promise | None
    looked_at: float
    lowest: int


class Holding:
    """The reservation, and the rooms that are withdrawn for it.

    Attributes:
        looked_at: when it was looked for whom to hold nodes last, Unix seconds.
        is_spent: whether it was used in this pass: its other nodes are everybody's again.
        lowest: the lowest class that waits, as of the last pass.
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
        """The reservation of a session."""
        return self._promise if session_id in self else None

    @property
    def holder(self) -> str:
        """The session that has it; "": nobody."""
        return self._promise.session_id if self._promise else ""

    @property
    def is_felt(self) -> bool:
        """Whether there is anybody who is to leave the nodes alone."""
        promise = self._promise
        return promise is not None and (promise.bars_own_class or self.lowest < promise.priority)

    def due(self) -> float | None:
        """When to look again, Unix seconds; None where nothing is held."""
        return self.looked_at + self._review_s if self._promise else None

    @property
    def _review_s(self) -> float:
        is_broken = self._promise is not None and self._promise.is_broken
        return BROKEN_REVIEW_S if is_broken else REVIEW_S

    def open(self, stands: Callable[[Promise], bool]) -> None:
        """Offer every room to everybody, at the start of a pass, and forget a reservation that does not stand."""
        self._full.clear()
        self.is_spent = False
        self.release()
        promise = self._promise
        if promise is None:
            return
        # What its own class may take of is taken of in each pass where that class starts something: what is left of
        # it is held until it is time to look again, which is soon.
        is_void = promise.is_broken and promise.bars_own_class
        if is_void or not self._has_nodes(promise) or not stands(promise):
            self.forget()

    def _has_nodes(self, promise: Promise) -> bool:
        rooms = map(self._rooms.get, promise.parts)
        return all(room is not None and room.is_offered for room in rooms)

    def is_stale(self, now: float) -> bool:
        """Whether to look for whom nodes are to be held."""
        return not 0 <= now - self.looked_at < self._review_s

    def look(self, candidates: Iterable[Candidate], now: float) -> None:
        """Reserve for the first that can have nodes; `candidates` come in order, class by class."""
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
        """Hold nothing, and look again as soon as somebody is blocked."""
        self._promise, self.looked_at = None, -math.inf

    def _promised(self, one: Candidate) -> Promise | None:
        """The reservation that it has, unless there is an earlier one."""
        rooms, ends, request = self._rooms, self._ends, one.request
        before = self._before(one)
        if before is not None and not before.bars_own_class:
            before = None
        found = earliest(rooms, request, ends)
        until = math.inf if found is None else found.at
        # Nodes that no limits promise stay the same: else there might be something new to wait for each time.
        if before is not None and before.at > ends.now and until >= before.at:
            return before
        if found is None and one.is_due:
            found = nearest(rooms, request, ends)
        return None if found is None else self._new(one, found)

    def _before(self, one: Candidate) -> Promise | None:
        """The reservation that it has, for what it asks for."""
        before = self.get(one.session_id)
        return before if before is not None and before.request == one.request else None

    def _against_lower(self, one: Candidate) -> Promise | None:
        """Nodes that lower classes leave alone; the same as before as long as nobody took of them."""
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
        """Withdraw the rooms that are reserved, where somebody is to leave them alone."""
        for node in self._parts() if self.is_felt else ():
            self._rooms.promise(node, self.holder)

    def release(self) -> None:
        """Offer them to everybody."""
        for node in self._parts():
            self._rooms.promise(node, "")

    def _parts(self) -> Mapping[str, int]:
        return self._promise.parts if self._promise else {}

    def drop(self, session_id: str) -> None:
        """A session waits no more, or started: its nodes are everybody's."""
        if self._promise is not None and session_id == self._promise.session_id:
            self.release()
            self.forget()
            self.is_spent = True

    def drop_all_but(self, waiting: Container[str]) -> None:
        """The same where who has it waits no more."""
        if self.holder not in waiting:
            self.drop(self.holder)

    def lets(self, session: Session, now: float) -> bool:
        """Whether it may have of any held room: its own, of a lower class, or as it ends before it is used."""
        promise = self._promise
        return (
            promise is None
            or session.id == promise.session_id
            or promise.yields_to(session.spec.priority)
            or ends_in_time(session, promise, now)
        )

    def bars(self, room: NodeCapacity, session_id: str, priority: Priority) -> bool:
        """Whether nobody is to give way there to a session of this class."""
        promise = self.get(room.promised)
        if promise is None or session_id == room.promised:
            return False
        return not promise.yields_to(priority)

    def took(self, session: Session, placed: Iterable[ReplicaPlacement], now: float) -> None:
        """One that it `lets` was placed."""
        promise, nodes = self._promise, {one.node for one in placed}
        if promise is None or session.id == self.holder or not nodes & promise.parts.keys():
            return
        if ends_in_time(session, promise, now):
            self._promise = promise._replace(leaving=promise.leaving | {session.id})
        else:
            self._promise = promise._replace(is_broken=True)

    def spares(self, request: Request) -> bool:
        """Whether some held room may have something beside what is reserved; quickly told, and not too seldom."""
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
        """One replica on a held room that leaves what is reserved, taken from it; none where none does."""
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
        """What `restore` takes."""
        return Held(self._promise, self.looked_at, self.lowest)

    def restore(self, held: Held) -> None:
        """Hold again what was held then."""
        self.release()
        self._promise, self.looked_at, self.lowest = held
        self.hold()


def ends_in_time(session: Session, promise: Promise, now: float) -> bool:
    """Whether it would be gone before a reservation is used, if it were placed now."""
    limit_s = session.spec.time_limit_s
    if not limit_s or not promise.is_bounded:
        return False
    return now + STARTING_S + limit_s + session.spec.grace_s <= promise.at


def _may_spare(room: NodeCapacity, promise: Promise, request: Request) -> bool:
    """Whether its GPUs could do for both, which costs little to say."""
    staying = room.held_thousandths(promise.leaving)
    reserved = promise.parts[room.node.name] * promise.request.gpu_thousandths
    spare = len(room.models) * WHOLE_DEVICE - staying - reserved
    return spare >= request.gpu_thousandths
