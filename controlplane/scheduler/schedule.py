"""The decision: which queued sessions start now, and why the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.plan import Deferral, Explanation, Placement, Plan
from controlplane.scheduler.explain import explain
from controlplane.scheduler.fit import Request, request_of
from controlplane.scheduler.gangs import place_gang
from controlplane.scheduler.rooms import Rooms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.snapshot import ClusterSnapshot
    from controlplane.domain.values import Session


def schedule(snapshot: ClusterSnapshot, now: float) -> Plan:
    """Propose placements for what is queued; the same snapshot and instant give the same plan.

    Args:
        snapshot: the cluster at one revision.
        now: Unix seconds; sessions whose `not_before` is later wait.
    """
    if not snapshot.queued:
        return Plan(revision=snapshot.revision)
    rooms = Rooms(snapshot.nodes.values())
    placements: list[Placement] = []
    deferrals: list[Deferral] = []
    blocked: dict[Request, Explanation] = {}
    for session in in_order(snapshot.queued.values()):
        place = len(deferrals) + 1
        if session.not_before > now:
            waits = f"tried before; waits another {session.not_before - now:.0f} s"
            deferrals.append(
                Deferral(session_id=session.id, place=place, explanation=Explanation(reason=waits))
            )
            continue
        request = request_of(session.owner, session.spec)
        # Room only shrinks while a plan is made: what did not fit before does not fit now.
        replicas = () if request in blocked else place_session(rooms, request)
        if replicas:
            placements.append(Placement(session_id=session.id, replicas=replicas))
            continue
        if request not in blocked:
            blocked[request] = explain(snapshot, rooms, request)
        deferrals.append(Deferral(session_id=session.id, place=place, explanation=blocked[request]))
    return Plan(
        revision=snapshot.revision, placements=tuple(placements), deferrals=tuple(deferrals)
    )


def in_order(queued: Iterable[Session]) -> Iterable[Session]:
    """First come, first served. Whoever does not fit blocks nobody behind.

    This is the seam for priority classes, fair share and reservations.
    """
    return queued


def place_session(rooms: Rooms, request: Request) -> tuple[ReplicaPlacement, ...]:
    """All replicas, taken from `rooms`, or none."""
    if request.replica_count > 1:
        return place_gang(rooms, request)
    room = rooms.tightest_for(request)
    return () if room is None else (rooms.take(room, request, 0),)
