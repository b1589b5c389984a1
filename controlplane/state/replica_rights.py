"""The replicas that a node may act for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.errors import NotFound

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.state.live_state import LiveState
    from controlplane.state.references import References


class Rights:
    """Checks which replicas a node may act for: those that run or ran there."""

    def __init__(self, *, references: References, state: LiveState) -> None:
        self._references = references
        self._state = state

    def placed(self, node: str) -> frozenset[tuple[str, int, int]]:
        """Return session, attempt and rank of replicas currently placed on a node, as far as known here."""
        stored = self._state.allocations.get(node)
        replicas = stored.value.replicas if stored else ()
        return frozenset((one.session_id, one.attempt, one.rank) for one in replicas)

    async def check(
        self,
        node: str,
        session_id: str,
        attempt: int,
        rank: int | None = None,
        *,
        joined_at: float = 0.0,
    ) -> Session:
        """Return the session, if the replica (any of the attempt, without a rank) is the node's.

        Attempts ended before `joined_at` ran on another machine of that name.

        Raises:
            NotFound: it is not.
            StoreError: the session is unknown here and cannot be looked up.
        """
        session = await self._references.by_id(session_id)
        if session is None or node not in nodes_of(session, attempt, rank, joined_at):
            # The leader may have placed it a moment ago, and our state may be older.
            session = await self._references.newest(session_id)
        if session is None or node not in nodes_of(session, attempt, rank, joined_at):
            raise NotFound(f"session {session_id} has no replica on node {node}")
        return session


def nodes_of(
    session: Session, attempt: int, rank: int | None, since: float = 0.0
) -> tuple[str, ...]:
    """Return nodes of one replica, or of all of an attempt, unless it ended before `since`."""
    ended = next((one for one in session.attempts if one.number == attempt), None)
    if ended is not None and ended.ended_at < since:
        return ()
    nodes = ended.nodes if ended is not None else ()
    if session.attempt == attempt and session.replicas:
        nodes = tuple(one.node for one in sorted(session.replicas, key=lambda one: one.rank))
    if rank is None:
        return nodes
    return nodes[rank : rank + 1] if rank >= 0 else ()
