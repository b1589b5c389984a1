"""Who moves so that free devices lie together: for what would fit if they did, and fits on no node as they are.

What is moved saves, leaves, and goes on at once elsewhere (2018 paper, "migration"; KAI-Scheduler's consolidation,
which too moves only what it has seen to fit elsewhere). It is done for the head of a line that is a gang or wider
than one GPU, where nobody gives way to it (`preemption.py`). Who moves

- can go on from what it saves: so it gets on between two moves, which what begins anew might never;
- is of no higher class, and held its devices for as long as before it gives way to that one: an attempt of the same
  class for `least_run_in_class_s`;
- stands on one node, and avoids none: a gang that is spread would need room on several at once;
- fits elsewhere now, on devices of its model: all who move are placed at one time, on what is free beside the nodes
  that are kept for the one it is done for. These places are taken at once and held until they come (`Moves`), with
  what their project's quota counts for them, so that nobody gets in between. Where a place is lost meanwhile, or they
  did not come within `HELD_FOR_S`, they wait in the usual order, as old as they are.

What is lost, unsaved work and `RESTART_S` of all that move, is less than `MOST_LOST` of what is unlocked: the GPUs of
the one that waits for as long as it would have to, at most, until those who move have ended by themselves. That is
what their time limits say; without a limit one is thought to run as long again as it did, and an hour
(`order.expected_s`). No more counts than until its reservation begins, or than its own time limit lets it use.

Nothing goes in circles. Who moves takes nobody's place and loses none: nobody waits who did not before, and each set
of moves, of `MOST_MOVED` sessions at most, lets one session start that waited. So there are no more moves than
`MOST_MOVED` for each start; and a session is moved at most once in its least run, which begins anew where it goes.

Pure. A look costs the states in which rooms are, `MOST_ROOMS` of the rooms closely, and the places of who would move;
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
"""Of the GPU time that is unlocked: no more than this share of it may be lost by moving."""
MOST_MOVED: Final = 8
"""Sessions that move for one."""
MOST_ROOMS: Final = 16
"""Nodes of which it is looked at who might leave them, for one session."""
MOST_PASSED: Final = 500
"""Nodes from which nobody may move before no more are looked for."""
MOST_TRIES: Final = 8
"""How many are left out in turn, for want of a place, until no other set of movers is looked for."""
LOOK_AGAIN_S: Final = 30.0
"""How long nobody is looked for again who would move for a kind of session, after nobody was found."""
HELD_FOR_S: Final = 900.0
"""How long a place is held for one that moves: notice, grace, and until what it saved is safe."""


class Consolidation(NamedTuple):
    """The moves that make room for a session.

    Attributes:
        nodes: where it is to start.
        places: by session, where each that moves goes; taken in the rooms already.
    """

    nodes: tuple[str, ...]
    places: dict[str, HeldPlacement]


class Defragmentation:
    """Looks for moves.

    Args:
        cluster: in which.
        fits_of: where a request fits there.
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
        """Moves that let the head of a line start; None where there are none that are worth it.

        The places of those that move are taken in the rooms, and the nodes kept for the head.

        Args:
            line: whose head fits nowhere.
            asked: those that are to leave already, and have not been told yet maybe.
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
        """Rooms that somebody may leave, and who; for a gang also those that hold some of it as they are.

        None where less is free on all that would do than it needs. Nodes that are kept or reserved for others are in
        no state of those that are offered, and so not among them.
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
        # Those first where least has to leave for one replica more.
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
        """The places of all who move, taken; or who of them has none, and nothing is taken."""
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
    """Whether an attempt may move for a session of a class now, where it fits elsewhere."""
    session = one.session
    if session.spec.priority > priority or not session.progress.is_resumable or session.avoids:
        return False
    if len({replica.node for replica in session.replicas}) != 1:
        return False
    is_lower = session.spec.priority < priority
    least_s = rules.least_run_of(session.spec.priority) if is_lower else rules.least_run_in_class_s
    return now - one.since >= least_s - _ROUNDING_S


def unlocked(line: QueueClass, movers: Iterable[Running], wait_s: float, now: float) -> float:
    """What the head of a line gains when these move, GPU seconds: see the module.

    `wait_s`: for how long it waits at most in any case.
    """
    head = line.head
    wait_s = min(wait_s, max((remaining_s(one, now) for one in movers), default=0.0))
    if head.spec.time_limit_s:
        wait_s = min(wait_s, expected_s(demand_of(head)))
    return wait_s * line.claim.gpu_thousandths / WHOLE_DEVICE


def remaining_s(one: Running, now: float) -> float:
    """For how long a session still runs: at most, by its time limit; without one as is to be expected."""
    if until := ends_by(one.session, now):
        return until - now
    demand = demand_of(one.session)
    return expected_s(demand._replace(attained_s=demand.attained_s + max(now - one.since, 0.0)))


def why(session: Session, mover: Session | None) -> str:
    """For whom one moves, for people, after "it"; it names nothing that whoever sees the mover may not see."""
    return f"{MOVES_FOR}{name_for(session, mover)}"


def _taker(line: QueueClass) -> Preemptor:
    """The head of a line: it takes nothing of what any account holds."""
    return Preemptor(level=DUE, priority=line.priority, share=-math.inf)


def _width(one: Running) -> tuple[int, str]:
    spec = one.session.spec
    return (spec.resources.gpu_thousandths * spec.replica_count, one.session.id)


def _as_it_runs(session: Session) -> Request:
    """What it asks for, on devices of the model that it has now."""
    request = asked_by(session)
    models = {device.model for one in session.replicas for device in one.devices}
    return request._replace(gpu_model=models.pop()) if len(models) == 1 else request


_ROUNDING_S: Final = 1e-6
