"""Tells the agents that are connected when their orders have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.snapshot import AllocationChanged, SessionChanged

if TYPE_CHECKING:
    from controlplane.operations.contacts import Contacts
    from controlplane.operations.state import LiveState


class Ordering:
    """Wakes the Control streams of the nodes that a change concerns."""

    def __init__(self, *, state: LiveState, contacts: Contacts) -> None:
        self._state = state
        self._contacts = contacts

    async def run(self) -> None:
        """Follow changes until cancelled."""
        with self._state.subscribed() as changes:
            for connected in self._contacts.links():
                connected.order()
            while True:
                concerned: set[str] = set()
                for change in await changes.take():
                    match change:
                        case AllocationChanged(allocation=allocation):
                            concerned.add(allocation.node)
                        case SessionChanged(session=session) if session.stop is not None:
                            concerned.update(one.node for one in session.replicas)
                for node in sorted(concerned):
                    link = self._contacts.link(node)
                    if link is not None:
                        link.order()
