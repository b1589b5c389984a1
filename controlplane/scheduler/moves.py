"""Places held for moving sessions (`defragmentation.py`) until they arrive."""

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
    """The place held for a moving session.

    Attributes:
        attempt: the attempt that is to end for it.
        replicas: placements of the next attempt.
        until: when the place is given up, Unix seconds.
    """

    attempt: int
    replicas: tuple[ReplicaPlacement, ...]
    until: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, each once, in the order of the replicas."""
        return tuple(dict.fromkeys(one.node for one in self.replicas))

    @property
    def words(self) -> str:
        """The explanation for its session."""
        return f"room is kept for it on {', '.join(self.nodes)}"


class Moves:
    """The places of moving sessions: taken in the rooms, and charged to their projects, until they arrive."""

    def __init__(self, rooms: NodeIndex, entitlements: Entitlements) -> None:
        self._rooms = rooms
        self._entitlements = entitlements
        self._places: dict[str, HeldPlacement] = {}

    def get(self, session_id: str) -> HeldPlacement | None:
        """Return the place held for a session, if any."""
        return self._places.get(session_id)

    def items(self) -> list[tuple[str, HeldPlacement]]:
        """List all places by session, oldest first."""
        return list(self._places.items())

    def due(self) -> float | None:
        """Return when the first place is given up, Unix seconds; None: there is none."""
        return min((place.until for place in self._places.values()), default=None)

    def hold(self, session_id: str, place: HeldPlacement) -> None:
        """Hold a place that was taken in the rooms for a session."""
        self._places[session_id] = place

    def follow(self, session: Session) -> None:
        """Update a session: charge its place once it waits; release it if the session will not use it."""
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
        """Release the place of a session, and return it."""
        place = self._places.pop(session_id, None)
        if place is not None:
            for node in place.nodes:
                self._rooms.drop(node, session_id)
            known = self._entitlements.holder(session_id)
            if known is not None and known.state is SessionState.QUEUED:
                self._entitlements.release(session_id)
        return place

    def give_up(self, now: float) -> None:
        """Release the places of sessions that did not arrive in time."""
        for session_id, place in self.items():
            if place.until <= now:
                self.release(session_id)

    def restore(
        self, before: Mapping[str, HeldPlacement], waiting: Callable[[str], Session | None]
    ) -> None:
        """Restore the places as they were before a trial."""
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
