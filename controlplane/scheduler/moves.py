"""The places that are held for sessions that move (`defragmentation.py`) until they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.lifecycle import SessionState
from controlplane.scheduler.entitlement import claim_of
from controlplane.scheduler.fit import asked_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.values import Session
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.node_index import NodeIndex


class HeldPlacement(NamedTuple):
    """What is held for a session that moves.

    Attributes:
        attempt: the one that leaves for it.
        replicas: where the next one is to run.
        until: when it is everybody's again if nobody came, Unix seconds.
    """

    attempt: int
    replicas: tuple[ReplicaPlacement, ...]
    until: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, in the order of their replicas."""
        return tuple(dict.fromkeys(one.node for one in self.replicas))

    @property
    def words(self) -> str:
        """What its session is told."""
        return f"room is kept for it on {', '.join(self.nodes)}"


class Moves:
    """The places of those that move: taken in the rooms, and counted for their projects, until they come."""

    def __init__(self, rooms: NodeIndex, entitlements: Entitlements) -> None:
        self._rooms = rooms
        self._entitlements = entitlements
        self._places: dict[str, HeldPlacement] = {}

    def get(self, session_id: str) -> HeldPlacement | None:
        """What is held for a session."""
        return self._places.get(session_id)

    def items(self) -> list[tuple[str, HeldPlacement]]:
        """All that is held, by session, oldest first."""
        return list(self._places.items())

    def due(self) -> float | None:
        """When the first place is given up, Unix seconds."""
        return min((place.until for place in self._places.values()), default=None)

    def hold(self, session_id: str, place: HeldPlacement) -> None:
        """Keep from now on what was taken in the rooms for a session."""
        self._places[session_id] = place

    def follow(self, session: Session) -> None:
        """A session is as it says now: whether it still comes, and what is counted for it once it waits."""
        place = self._places.get(session.id)
        if place is None:
            return
        if session.attempt != place.attempt:
            self.release(session.id)
        elif session.state is SessionState.QUEUED:
            self._entitlements.hold(session, claim_of(asked_by(session)))
        elif not session.state.holds_devices:
            self.release(session.id)

    def release(self, session_id: str) -> HeldPlacement | None:
        """Offer what is held for a session to everybody; what that was."""
        place = self._places.pop(session_id, None)
        if place is not None:
            for node in place.nodes:
                self._rooms.drop(node, session_id)
            known = self._entitlements.holder(session_id)
            if known is not None and known.state is SessionState.QUEUED:
                self._entitlements.release(session_id)
        return place

    def give_up(self, now: float) -> None:
        """Hold nothing any more for those who did not come in time."""
        for session_id, place in self.items():
            if place.until <= now:
                self.release(session_id)

    def restore(
        self, before: Mapping[str, HeldPlacement], waiting: Callable[[str], Session | None]
    ) -> None:
        """Hold again what was held before a trial, and nothing else."""
        for session_id, place in self.items():
            if before.get(session_id) is not place:
                self.release(session_id)
        for session_id, place in before.items():
            if session_id in self._places:
                continue
            self._places[session_id] = place
            for one in place.replicas:
                self._rooms.put(one, session_id)
            if (session := waiting(session_id)) is not None:
                self.follow(session)
        self._places = {session_id: self._places[session_id] for session_id in before}
