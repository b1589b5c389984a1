"""Defragmentation: move sessions so that their free devices together fit a session that fits on no node now.

A moved session saves, ends, and resumes at once elsewhere (2018 paper, "migration"; KAI-Scheduler's consolidation,
which also moves only sessions found to fit elsewhere). It is done for the head of a line that is a gang or wider
than one GPU, if no session can be preempted for it (`preemption.py`). A moved session

- can resume from its checkpoints: so it progresses between two moves; one that starts from scratch might never;
- is of no higher class, and held its devices for the minimum time before a preemption by that one: within the same
  class `least_run_in_class_s`;
- runs on one node, and avoids none: a spread gang would need room on several at once;
- fits elsewhere now, on devices of its model: all movers are placed together, on free capacity outside the nodes
  kept for the waiting session. These places are taken at once and held until they arrive (`Moves`), including the
  charge to their project's quota, so that no other session takes them. If a place is lost meanwhile, or they do not
  arrive within `HELD_FOR_S`, they wait in the usual order, with their age.

The loss, unsaved work and `RESTART_S` of all movers, is less than `MOST_LOST` of the gain: the GPUs of the waiting
session for its maximum wait until the movers have ended by themselves, by their time limits; without a limit a
session is expected to run as long again as it did, and an hour (`order.expected_s`). The gain is also bounded by the
begin of its reservation, and by its own time limit.

There are no cycles. A mover takes no other session's place and loses none: no further session waits, and each set
of moves, of `MOST_MOVED` sessions at most, lets one waiting session start. So there are at most `MOST_MOVED` moves
for each start; and a session is moved at most once in its minimum run time, which restarts after a move.

Pure. A search costs the states of rooms, `MOST_ROOMS` of the rooms in detail, and the places of the movers;
there is one in a pass, and none for the same kind of session for `LOOK_AGAIN_S`.
"""

from __future__ import annotations

import math
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler.explain import MOVES_FOR
from controlplane.scheduler.fit import asked_by, refusal
from controlplane.scheduler.moves import HeldPlacement
from controlplane.scheduler.preemption import cheapest, name_for
from controlplane.scheduler.preemption_candidates import Giving, Running
from controlplane.scheduler.preemption_policy import DUE, Preemptor
from controlplane.scheduler.queue_classes import demand_of
from controlplane.scheduler.release_times import ends_by
from controlplane.scheduler.session_rank import expected_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from controlplane.domain.values import Session
    from controlplane.scheduler.cluster import Cluster
    from controlplane.scheduler.feasibility import AnyFeasible
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import NodeCapacity
    from controlplane.scheduler.preemption import Going
    from controlplane.scheduler.preemption_policy import Rules
    from controlplane.scheduler.queue_classes import QueueClass
    from controlplane.scheduler.reservations import Promise

MOST_LOST: Final = 0.1
"""Maximum loss by moves, as a share of the gained GPU time."""
MOST_MOVED: Final = 8
"""Maximum number of sessions moved for one."""
MOST_ROOMS: Final = 16
"""Nodes examined for movers, for one session."""
MOST_PASSED: Final = 500
"""Nodes without movers after which the search ends."""
MOST_TRIES: Final = 8
"""Maximum number of tried sets of movers; each excludes one more session without a place."""
LOOK_AGAIN_S: Final = 30.0
"""Delay of the next search for a kind of session after a search without result."""
HELD_FOR_S: Final = 900.0
"""How long a place is held for a mover: notice, grace, and the transfer of its checkpoint."""


class Consolidation(NamedTuple):
    """Moves that make room for a session.

    Attributes:
        nodes: its future nodes.
        places: the movers' places by session; taken in the rooms already.
    """

    nodes: tuple[str, ...]
    places: dict[str, HeldPlacement]


class Defragmentation:
    """Searches moves.

    Args:
        cluster: the cluster.
        fits_of: returns the index of rooms for a request.
    """

    def __init__(self, cluster: Cluster, fits_of: Callable[[Request], AnyFeasible]) -> None:
        self._rooms = cluster.rooms
        self._yielders = cluster.yielders
        self._entitlements = cluster.entitlements
        self._locality = cluster.locality
        self._rules = cluster.rules
        self._fits_of = fits_of

    def look(
        self,
        line: QueueClass,
        *,
        asked: Collection[str],
        promise: Promise | None,
        now: float,
    ) -> Consolidation | None:
        """Find moves that let the head of a line start; None if there are none that are worth it.

        The places of the movers are taken in the rooms, and the nodes kept for the head.

        Args:
            line: its head fits nowhere.
            asked: sessions that are already to leave; the request may still be unsent.
            promise: the reservation of the head.
            now: Unix seconds.
        """
        request = line.shape
        own = list(promise.parts) if promise is not None else []
        rooms = self._candidates(line, asked, own, now)
        if not rooms:
            return None
        running = {one.session.id: one for room in rooms for one in self._yielders.on(room)}
        wait_s = promise.at - now if promise is not None and promise.at > now else math.inf
        suits = self._fits_of(request).suits
        for _ in range(MOST_TRIES):
            found = cheapest(request, suits, rooms, _taker(line))
            if found is None or not 0 < len(found.runners) <= MOST_MOVED:
                return None
            movers = [running[one.name] for one in found.runners]
            if found.loss >= MOST_LOST * unlocked(line, movers, wait_s, now):
                return None
            places = self._place_all(line.head.id, found, movers, now)
            if not isinstance(places, str):
                return Consolidation(found.nodes, places)
            for giving in rooms.values():
                giving.runners[:] = [one for one in giving.runners if one.name != places]
        return None

    def _candidates(
        self,
        line: QueueClass,
        asked: Collection[str],
        own: Iterable[str],
        now: float,
    ) -> dict[NodeCapacity, Giving]:
        """Return rooms with possible movers; for a gang also rooms that hold some of it now.

        Empty if all suitable nodes together have too little free. Nodes kept or reserved for others are in
        no offered state, and so excluded.
        """
        found: dict[NodeCapacity, Giving] = {}
        request, passed = line.shape, 0
        reserved = [
            room
            for name in own
            if (room := self._rooms.get(name)) is not None and room.is_open and not room.keeper
        ]
        ties = [
            tie
            for tie in self._rooms.ties()
            if not refusal(tie.first().node, request._replace(avoids=frozenset()))
        ]
        free = sum(
            (tie.whole * WHOLE_DEVICE + sum(tie.state.shares)) * len(tie.rooms) for tie in ties
        )
        free += sum(room.free_thousandths() for room in reserved)
        if free < line.claim.gpu_thousandths:
            return found
        size = max(request.whole_devices, 1)
        # First the rooms where the least has to leave for one more replica.
        most = MOST_ROOMS + MOST_PASSED
        nearest = nsmallest(
            most, ties, key=lambda tie: (size - tie.whole % size, -tie.whole, tie.order)
        )
        open_rooms: Iterator[NodeCapacity] = chain.from_iterable(
            (tie.rooms[name] for name in nsmallest(most, tie.rooms)) for tie in nearest
        )
        for room in chain(reserved, open_rooms):
            giving = self._giving(room, line, asked, now)
            if giving.runners:
                found[room] = giving
            else:
                passed += 1
            if len(found) == MOST_ROOMS or passed == MOST_PASSED:
                break
        if found and line.count > 1:
            fits = self._fits_of(request)
            for room in chain(reserved, fits.holding(min(line.count, MOST_PASSED))):
                found.setdefault(room, Giving([], []))
        return found

    def _giving(
        self, room: NodeCapacity, line: QueueClass, asked: Collection[str], now: float
    ) -> Giving:
        giving = Giving([], [])
        for one in self._yielders.on(room):
            if one.is_leaving or one.session.id in asked:
                giving.leaving.append(one.session.id)
            elif may_move(one, line.priority, now, self._rules):
                giving.runners.append(one.runner(self._entitlements, now))
        return giving

    def _place_all(
        self, for_id: str, going: Going, movers: Iterable[Running], now: float
    ) -> dict[str, HeldPlacement] | str:
        """Take the places of all movers; or take nothing, and return a mover without a place."""
        for node in going.nodes:
            self._rooms.keep(node, for_id)
        places: dict[str, HeldPlacement] = {}
        for one in sorted(movers, key=_width, reverse=True):
            session = one.session
            request = self._rooms.shape_of(_as_it_runs(session))
            near = self._locality.nearest_to(session.spec) if self._locality else None
            replicas = self._fits_of(request).place(request.replica_count, session.id, near)
            if not replicas:
                for session_id, place in places.items():
                    for node in place.nodes:
                        self._rooms.drop(node, session_id)
                for node in going.nodes:
                    self._rooms.keep(node, "")
                return session.id
            places[session.id] = HeldPlacement(session.attempt, replicas, now + HELD_FOR_S)
        return places


def may_move(one: Running, priority: int, now: float, rules: Rules) -> bool:
    """Return whether an attempt may move for a session of a class now, if it fits elsewhere."""
    session = one.session
    if session.spec.priority > priority or not session.progress.is_resumable or session.avoids:
        return False
    if len({replica.node for replica in session.replicas}) != 1:
        return False
    is_lower = session.spec.priority < priority
    least_s = rules.least_run_of(session.spec.priority) if is_lower else rules.least_run_in_class_s
    return now - one.since >= least_s - _ROUNDING_S


def unlocked(line: QueueClass, movers: Iterable[Running], wait_s: float, now: float) -> float:
    """Return the gain of the head of a line by these moves, GPU seconds: see the module.

    `wait_s`: its maximum wait without them.
    """
    head = line.head
    wait_s = min(wait_s, max((remaining_s(one, now) for one in movers), default=0.0))
    if head.spec.time_limit_s:
        wait_s = min(wait_s, expected_s(demand_of(head)))
    return wait_s * line.claim.gpu_thousandths / WHOLE_DEVICE


def remaining_s(one: Running, now: float) -> float:
    """Return a session's remaining run time: the maximum by its time limit, else the expected one."""
    if until := ends_by(one.session, now):
        return until - now
    demand = demand_of(one.session)
    return expected_s(demand._replace(attained_s=demand.attained_s + max(now - one.since, 0.0)))


def why(session: Session, mover: Session | None) -> str:
    """Say for whom a session moves, after "it"; names nothing that is hidden from viewers of the mover."""
    return f"{MOVES_FOR}{name_for(session, mover)}"


def _taker(line: QueueClass) -> Preemptor:
    """Build the preemptor for the head of a line: moves reduce no account's share."""
    return Preemptor(level=DUE, priority=line.priority, share=-math.inf)


def _width(one: Running) -> tuple[int, str]:
    spec = one.session.spec
    return (spec.resources.gpu_thousandths * spec.replica_count, one.session.id)


def _as_it_runs(session: Session) -> Request:
    """Build its request, for devices of its current model."""
    request = asked_by(session)
    models = {device.model for one in session.replicas for device in one.devices}
    return request._replace(gpu_model=models.pop()) if len(models) == 1 else request


_ROUNDING_S: Final = 1e-6
