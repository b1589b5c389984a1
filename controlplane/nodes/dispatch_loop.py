"""Sends connected agents their orders when these have changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from controlplane.domain.changes import AllocationChanged, SessionChanged, SessionRemoved
from controlplane.state.desired_replicas import replicas_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from controlplane.domain.changes import Change
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription

REMOVALS_WAIT_S: Final = 0.05
"""Delay of mere removals from orders: agents already know which replicas have ended."""


class Ordering:
    """Wakes the Control streams of nodes affected by a change."""

    def __init__(self, *, state: LiveState, contacts: AgentConnections) -> None:
        self._state = state
        self._contacts = contacts
        self._program_changes: dict[str, Hashable] = {}
        """The last program change sent to the nodes of each changed session."""

    async def run(self) -> None:
        """Follow changes until cancelled."""
        time = asyncio.get_running_loop().time
        later: set[str] = set()
        due: float | None = None
        with self._state.subscribed() as changes:
            for connected in self._contacts.links():
                connected.order()
            while True:
                taken = await self._take(changes, until=due)
                now = {node for change in taken for node in self._urgent(change)}
                later = (later | {node for one in taken for node in _concerned(one)}) - now
                if due is not None and time() >= due:
                    now, later = now | later, set()
                    due = None
                if later and due is None:
                    due = time() + REMOVALS_WAIT_S
                for node in sorted(now):
                    link = self._contacts.link(node)
                    if link is not None:
                        link.order()

    @staticmethod
    async def _take(changes: Subscription, *, until: float | None) -> list[Change]:
        """Return changes; none after `until`, in event loop time."""
        try:
            async with asyncio.timeout_at(until):
                return await changes.take()
        except TimeoutError:
            return []

    def _urgent(self, change: Change) -> set[str]:
        """Return nodes with something to start, stop or change."""
        match change:
            case AllocationChanged(allocation=allocation):
                link = self._contacts.link(allocation.node)
                known = link.ordered if link else frozenset()
                return set() if replicas_of(allocation.replicas) <= known else {allocation.node}
            case SessionChanged(session=session) if session.stop is not None:
                return {one.node for one in session.replicas}
            case SessionChanged(session=session) if session.changes:
                last = session.changes[-1]
                news = (session.attempt, last.number, last.phase, last.point)
                if self._program_changes.get(session.id) == news:
                    return set()
                self._program_changes[session.id] = news
                return {one.node for one in session.replicas}
            case SessionRemoved(session_id=session_id):
                self._program_changes.pop(session_id, None)
        return set()


def _concerned(change: Change) -> set[str]:
    return {change.allocation.node} if isinstance(change, AllocationChanged) else set()
