"""Which nodes another node may fetch a dataset from.

Those that have it, as they said last, and those that have begun to fetch it before: of nodes that begin together the first
one fetches from the control plane, and the others from one another. Nobody waits in a circle, since each is given earlier
ones only. A node gets nothing but datasets of sessions that are placed on it; no code and no checkpoints.

For the leader alone, whom agents tell what they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.state.agent_connections import FoundPeer, FoundPeers
from nsml.common.peer_capabilities import mac_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.state.agent_connections import AgentConnection, AgentConnections
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

MOST_PEERS: Final = 3
UPLOADS: Final = 4
"""Nodes that one node serves before another one is preferred."""
LIFE_S: Final = 300.0
"""How long a capability counts: as long may a node serve that was drained, and one read whose session has ended."""
_CLOSED: Final = frozenset({"fenced", "held", "drained"})
"""Nodes that serve nobody. One whose container engine does not answer may."""


@dataclass(frozen=True, slots=True)
class _Fetching:
    """A node that has asked, at this time (monotonic); `number` grows with each new one."""

    number: int
    at: float
    peers: frozenset[str]


class Peering:
    """Answers agents that are about to fetch a dataset."""

    def __init__(self, *, state: LiveState, contacts: AgentConnections, clock: Clock) -> None:
        self._state = state
        self._contacts = contacts
        self._clock = clock
        self._fetching: dict[str, dict[str, _Fetching]] = {}
        self._number = 0

    def find(self, node: str, root: str) -> FoundPeers:
        """Nodes from which `node` may fetch the dataset version `root`."""
        if not self._may_read(node, root):
            return FoundPeers(root=root, peers=())
        fetching = self._live(root)
        before = fetching.get(node)
        if before is None:
            self._number += 1
        number = before.number if before is not None else self._number
        found = sorted(self._candidates(node, root, fetching, number))[:MOST_PEERS]
        peers = [link for *_, link in found]
        now = self._clock.monotonic()
        fetching[node] = _Fetching(number, now, frozenset(link.node for link in peers))
        self._fetching[root] = fetching
        capable = (self._capable(link, node, root) for link in peers)
        return FoundPeers(root=root, peers=tuple(filter(None, capable)))

    def _live(self, root: str) -> dict[str, _Fetching]:
        """Who fetches it, as far as is known: nodes ask again before this ends. Forgets the fetches of all roots that are over."""
        since = self._clock.monotonic() - LIFE_S
        self._fetching = {
            one: live
            for one, asked in self._fetching.items()
            if (live := {name: fetch for name, fetch in asked.items() if fetch.at > since})
        }
        return self._fetching.get(root, {})

    def _candidates(
        self, node: str, root: str, fetching: dict[str, _Fetching], number: int
    ) -> Iterator[tuple[bool, int, bool, int, str, AgentConnection]]:
        """Each that may be asked, after what it is sorted by."""
        pod = self._pod_of(node)
        for link in self._contacts.links():
            if link.peer_offer is None or link.node == node or not self._serves(link):
                continue
            has_it = root in self._state.stock(link.node).things
            fetch = fetching.get(link.node)
            if not has_it and (fetch is None or fetch.number >= number):
                continue
            load = sum(link.node in one.peers for name, one in fetching.items() if name != node)
            is_far = not pod or self._pod_of(link.node) != pod
            began = 0 if has_it or fetch is None else fetch.number
            yield is_far, load // UPLOADS, not has_it, began, link.node, link

    def _serves(self, link: AgentConnection) -> bool:
        stored = self._state.nodes.get(link.node)
        return link.failure is None and stored is not None and stored.value.closed_by not in _CLOSED

    def _pod_of(self, node: str) -> str:
        stored = self._state.nodes.get(node)
        return stored.value.pod if stored is not None else ""

    def _may_read(self, node: str, root: str) -> bool:
        stored = self._state.allocations.get(node)
        sessions = (
            self._state.session(held.session_id)
            for held in (stored.value.replicas if stored is not None else ())
        )
        return any(
            root == dataset.digest
            for session in sessions
            if session is not None
            for dataset in session.spec.datasets
        )

    def _capable(self, link: AgentConnection, node: str, root: str) -> FoundPeer | None:
        offer = link.peer_offer
        if offer is None:
            return None
        ahead_s = self._contacts.clock_ahead_s(link.node)
        expires_at = round(self._clock.time() + ahead_s + LIFE_S)
        mac = mac_of(offer.key, root=root, node=node, expires_at=expires_at)
        return FoundPeer(node=link.node, offer=offer, expires_at=expires_at, mac=mac)
