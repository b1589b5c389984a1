"""Nodes from which another node may fetch a dataset.

Nodes that last reported to have it, and nodes that began to fetch it earlier: of nodes that begin together the first
fetches from the control plane, and the others from one another. There are no circular waits, since each gets only
earlier nodes. A node gets only datasets of sessions placed on it; no code and no checkpoints.
For the leader only, since agents report their stock to it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
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
"""Validity of a capability: so long may a drained node serve, and a node read after its session ended."""
MOST_QUESTIONS: Final = 200
"""Per agent within `PERIOD_S`; further ones get no peers."""
PERIOD_S: Final = 10.0
_CLOSED: Final = frozenset({"fenced", "held", "drained"})
"""States of nodes that serve nobody. A node with a failed container engine may serve."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A node that fetches a root; its `number` is greater than those of nodes that began earlier."""

    number: int
    at: float
    """Time of its last question, in monotonic seconds."""
    peers: frozenset[str]
    """The nodes named to it."""


class Fetches:
    """The nodes that fetch one root. A question costs time per named peer, however many nodes fetch."""

    def __init__(self) -> None:
        self._by_node: OrderedDict[str, Fetch] = OrderedDict()  # by the time of the last question
        self._load: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether any node fetches it."""
        return bool(self._by_node)

    def get(self, node: str) -> Fetch | None:
        """Return a node's fetch."""
        return self._by_node.get(node)

    def load(self, peer: str) -> int:
        """Return the number of nodes that `peer` was named to."""
        return self._load[peer]

    def note(self, node: str, fetch: Fetch) -> None:
        """Record a node's question as the last one."""
        self._forget(node)
        self._by_node[node] = fetch
        self._load.update(fetch.peers)

    def expire(self, since: float) -> None:
        """Forget nodes that last asked at `since` or earlier."""
        while self._by_node:
            node, oldest = next(iter(self._by_node.items()))
            if oldest.at > since:
                return
            self._forget(node)

    def _forget(self, node: str) -> None:
        if (fetch := self._by_node.pop(node, None)) is None:
            return
        for peer in fetch.peers:
            self._load[peer] -= 1
            if not self._load[peer]:
                del self._load[peer]


class Peering:
    """Answers agents that are about to fetch a dataset."""

    def __init__(self, *, state: LiveState, contacts: AgentConnections, clock: Clock) -> None:
        self._state = state
        self._contacts = contacts
        self._clock = clock
        self._fetches: OrderedDict[str, Fetches] = OrderedDict()  # by the time of the last question
        self._number = 0
        self._questions: Counter[str] = Counter()
        self._period = 0

    def find(self, node: str, root: str, *, is_stream: bool = False) -> FoundPeers:
        """Return nodes from which `node` may fetch the dataset version `root`, or stream it.

        A stream serves no other nodes, and gets only nodes that have the dataset already.
        """
        now = self._clock.monotonic()
        if self._asks_too_much(node, now) or not self._may_read(node, root):
            return FoundPeers(root=root, peers=())
        fetches = self._live(root, now - LIFE_S)
        before = Fetch(0, now, frozenset()) if is_stream else fetches.get(node)
        if before is None:
            self._number += 1
            before = Fetch(self._number, now, frozenset())
        candidates = self._candidates(node, root, fetches, before)
        peers = [link for *_, link in heapq.nsmallest(MOST_PEERS, candidates)]
        if not is_stream:
            named = frozenset(link.node for link in peers)
            fetches.note(node, Fetch(before.number, now, named))
        capable = (self._capable(link, node, root) for link in peers)
        return FoundPeers(root=root, peers=tuple(filter(None, capable)))

    def _asks_too_much(self, node: str, now: float) -> bool:
        period = int(now / PERIOD_S)
        if period != self._period:
            self._period = period
            self._questions.clear()
        self._questions[node] += 1
        return self._questions[node] > MOST_QUESTIONS

    def _live(self, root: str, since: float) -> Fetches:
        """Return its current fetches: active nodes ask again before they expire. Drops other roots without fetches."""
        fetches = self._fetches.setdefault(root, Fetches())
        self._fetches.move_to_end(root)
        fetches.expire(since)
        while (oldest := next(iter(self._fetches))) != root:
            self._fetches[oldest].expire(since)
            if self._fetches[oldest]:
                break
            del self._fetches[oldest]
        return fetches

    def _candidates(
        self, node: str, root: str, fetches: Fetches, asks: Fetch
    ) -> Iterator[tuple[bool, int, bool, int, str, AgentConnection]]:
        """Yield possible peers, each after its sort keys."""
        pod = self._pod_of(node)
        for link in self._contacts.links():
            if link.peer_offer is None or link.node == node:
                continue
            has_it = root in self._state.stock(link.node).things
            fetch = fetches.get(link.node)
            if not has_it and (fetch is None or fetch.number >= asks.number):
                continue
            if not self._serves(link):
                continue
            load = fetches.load(link.node) - (link.node in asks.peers)
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
