"""Connected agents, and the time of each one's last contact."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.errors import NsmlError, StateConflict, Superseded
from controlplane.domain.values import Stock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from controlplane.domain.values import RegistryLogin
    from controlplane.state.live_state import LiveState
    from controlplane.state.replica_reports import Report
    from nsml.common.clock import Clock
    from nsml.v1 import agents_pb2


_CLOCKS: Final = 5


class ImageAction(enum.Enum):
    """Orders to an agent about an image."""

    PULL = enum.auto()
    LOOK = enum.auto()
    REMOVE = enum.auto()


class Ability(enum.Enum):
    """Features of agents that earlier versions lack."""

    IMAGES = "images of the node"
    PORTS = "TCP ports of sessions"
    SERVICES = "what runs inside a session"
    NODE_SERVICES = "programs on the node itself"
    DIRECT = "tunnels of its own machine"
    CHANGES = "knobs and pauses of running programs"
    RELAY = "tunnels by way of a relay"
    SSH_ENTRANCE = "ssh servers behind a jump host"
    INITIAL_CHECKPOINTS = "checkpoints that sessions begin with"
    DATASET_FOLDERS = "datasets under other names"
    PAGED_TREES = "code, datasets and checkpoints with very many files or chunks"
    STREAMED_DATASETS = "datasets that sessions stream"
    ENVIRONMENTS = "environments of the node"
    OUTPUTS = "files that sessions leave"
    REPAIRS = "copies of what the object store has lost"
    ENVIRONMENT_BUILDS = "builds of environments before a session needs them"
    DOCKERFILES = "Dockerfiles of sessions"
    CONDA = "environments of conda packages"
    DOCKERFILE_BUILDS = "builds of Dockerfiles before a session needs them"
    SUBMISSION_STEPS = "steps of submissions"
    LAUNCHERS = "launchers of sessions"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayEnd:
    """Where one end of a tunnel meets the other, and its key for that."""

    address: str
    """HOST:PORT."""
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshEntrance:
    """An ssh server's identity for a client behind a jump host, and the keys that may log in."""

    host_key: bytes = field(repr=False)
    """Private key (Ed25519, 32 bytes), for one connection only."""
    certificate: str
    """The platform's certificate for it, as in a -cert.pub file."""
    authorized_keys: tuple[bytes, ...]
    """SHA-256 of each public key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOrder:
    """An order to dial, with this id, for a service of a replica; without a session, of the node.

    `direct_key`: key of a client on the agent's machine, or behind the `relay`; empty for other clients.
    """

    tunnel_id: str
    service: str
    session_id: str = ""
    attempt: int = 0
    rank: int = 0
    only_checks: bool = False
    user: str = ""
    """The requesting user."""
    direct_key: bytes = b""
    relay: RelayEnd | None = None
    ssh_entrance: SshEntrance | None = None
    """For an ssh server that authenticates its clients itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """An order to an agent about an image, for the user with this id."""

    order_id: str
    action: ImageAction
    image: str
    owner_id: str
    logins: Sequence[RegistryLogin] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOffer:
    """Where an agent serves datasets to others, and its key for checking their capabilities."""

    address: str
    """HOST:PORT."""
    certificate: bytes
    """DER."""
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPeer:
    """A node to fetch from, and the capability for it."""

    node: str
    offer: PeerOffer
    expires_at: int
    """Unix seconds, by that node's clock."""
    mac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPeers:
    """Nodes from which an agent may fetch a dataset version, best first."""

    root: str
    peers: tuple[FoundPeer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBytes:
    """Bytes of datasets that an agent has fetched since its start, by source, and served to others."""

    from_platform: int = 0
    from_peers: int = 0
    to_peers: int = 0
    dropped_peers: int = 0
    """How many times a peer was dropped."""
    from_bucket: int = 0
    bucket_note: str = ""
    """Why it does not read from the bucket now, although it may."""


class EnvironmentOrder(NamedTuple):
    """An order about environments: remove one by key, build one, or, without either, list them.

    `owner_id`: only this user's and shared ones; empty: all. `logins`: the user's registry logins, for a build.
    """

    order_id: str
    remove: str = ""
    owner_id: str = ""
    build: agents_pb2.EnvironmentBuildOrder | None = None
    logins: Sequence[RegistryLogin] = ()


class RepairOrder(NamedTuple):
    """Blobs of a tree lost by the object store, and where the agent may have it as a checkpoint."""

    order_id: str
    root: str
    digests: tuple[str, ...]
    session_id: str = ""
    attempt: int = 0
    rank: int = 0
    folder: str = ""


class AgentConnection:
    """One agent's Control stream: the messages to send next.

    Attributes:
        acknowledged: committed reports that the agent need not repeat.
        wants_orders: its allocation changed.
        tunnels: tunnels that the agent must dial.
        image_orders: orders about images.
        environment_orders: the same about environments.
        repair_orders: requests for content lost by the object store.
        abilities: its features, as sent on connecting.
        boot_id: of its machine; empty until it is known.
        peer_offer: where it serves datasets to others; None: nowhere.
        found_peers: answers to its questions for peers.
        fetched: its transfers, as last reported.
        control_planes: addresses of all control planes for agents, as far as we know.
        told_control_planes: the addresses last sent to the agent.
        ordered: the replicas in its last orders: session id, attempt, rank.
        given: of these, replicas with confirmed orders: it has all their inputs.
        owed: unwanted replicas still running there: the node takes no sessions before they ended.
        starts_anew: the agent must reset the term and revision of its newest orders, and has not yet
            confirmed ours.
        failure: set when the stream must end.
        turn: held while the agent's device changes are written.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.acknowledged: list[Report] = []
        self.wants_orders = True
        self.tunnels: list[TunnelOrder] = []
        self.image_orders: list[ImageOrder] = []
        self.environment_orders: list[EnvironmentOrder] = []
        self.repair_orders: list[RepairOrder] = []
        self.abilities: frozenset[Ability] = frozenset()
        self.agent_version = ""
        self.boot_id = ""
        self.peer_offer: PeerOffer | None = None
        self.found_peers: list[FoundPeers] = []
        self.fetched = FetchedBytes()
        self.control_planes: tuple[str, ...] = ()
        self.told_control_planes: tuple[str, ...] = ()
        self.ordered: frozenset[tuple[str, int, int]] = frozenset()
        self.given: frozenset[tuple[str, int, int]] = frozenset()
        self.owed: set[tuple[str, int, int]] = set()
        self.starts_anew = False
        self.failure: NsmlError | None = None
        self.turn = asyncio.Lock()
        self._wake = asyncio.Event()

    def acknowledge(self, report: Report) -> None:
        """Tell the agent that a report is committed."""
        self.acknowledged.append(report)
        self._wake.set()

    def order(self) -> None:
        """Send the agent its orders."""
        self.wants_orders = True
        self._wake.set()

    def open_tunnel(self, order: TunnelOrder) -> None:
        """Ask the agent to dial a tunnel."""
        self.tunnels.append(order)
        self._wake.set()

    def order_image(self, order: ImageOrder) -> None:
        """Send the agent an order about an image."""
        self.image_orders.append(order)
        self._wake.set()

    def answer_peers(self, found: FoundPeers) -> None:
        """Send the agent the nodes from which it may fetch a dataset."""
        self.found_peers.append(found)
        self._wake.set()

    def order_environment(self, order: EnvironmentOrder) -> None:
        """Send the agent an order about environments."""
        self.environment_orders.append(order)
        self._wake.set()

    def order_repair(self, order: RepairOrder) -> None:
        """Request content lost by the object store."""
        self.repair_orders.append(order)
        self._wake.set()

    def check(self, ability: Ability) -> None:
        """Raise StateConflict if the agent lacks the ability."""
        if ability not in self.abilities:
            raise too_old(self.node, self.agent_version, ability)

    @property
    def keeps_logins_in_memory(self) -> bool:
        """Whether it may get registry logins: earlier versions write unknown parts of orders to disk."""
        return Ability.DOCKERFILES in self.abilities  # new with the logins

    def find_control_planes(self, addresses: tuple[str, ...]) -> None:
        """Send the agent the addresses of the control planes, if they have changed."""
        if addresses != self.control_planes:
            self.control_planes = addresses
            self._wake.set()

    def close(self, failure: NsmlError) -> None:
        """End the stream with an error."""
        self.failure = self.failure or failure
        self._wake.set()

    async def wait(self) -> None:
        """Return when there is something to send."""
        await self._wake.wait()
        self._wake.clear()


def too_old(node: str, agent_version: str, ability: Ability) -> StateConflict:
    """Build the error about an agent that lacks an ability."""
    return StateConflict(
        f"the nsml of node {node} is too old for this",
        why=f"its agent ({agent_version or 'version unknown'}) cannot be asked about {ability.value}",
        attempt=f"an administrator upgrades nsml on {node}",
    )


class AgentConnections:
    """The agents connected to this control plane.

    Attributes:
        unheard: nodes silent for so long that their sessions are UNKNOWN.
        sent: the newest revision of the orders sent to each node in our term.
    """

    def __init__(self, *, state: LiveState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._links: dict[str, AgentConnection] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        self._registered_heard: dict[str, float] = {}
        self._ahead_s: dict[str, deque[float]] = {}
        self._since = clock.monotonic()
        self.unheard: frozenset[str] = frozenset()
        self.sent: dict[str, int] = {}

    def connect(self, node: str) -> AgentConnection:
        """Add a registered agent's stream; an older stream of the same node ends."""
        older = self._links.get(node)
        if older is not None:
            older.close(Superseded(f"another agent speaks for node {node} now"))
        link = self._links[node] = AgentConnection(node)
        self._ahead_s.pop(node, None)
        self.heard(node)
        self._state.set_stock(node, Stock())
        self._state.set_contact(node, is_silent=False)
        return link

    def stocks(self, link: AgentConnection, stock: Stock) -> None:
        """Set an agent's stock; does nothing if another stream has replaced this one."""
        if self._links.get(link.node) is link:
            self._state.set_stock(link.node, stock)

    def disconnect(self, link: AgentConnection) -> None:
        """Remove a stream that has ended."""
        if self._links.get(link.node) is link:
            del self._links[link.node]
            self._state.set_contact(link.node, is_silent=True)
            self._state.set_stock(link.node, Stock())

    def heard(self, node: str) -> None:
        """Record a contact with the agent."""
        now = self._clock.time()
        self._heard[node] = (self._clock.monotonic(), now)
        if node in self._links:
            self._registered_heard[node] = now

    def clock_said(self, link: AgentConnection, at: float, now: float) -> None:
        """Record an agent's clock `at`, from a message received `now`; both Unix seconds."""
        self._ahead_s.setdefault(link.node, deque(maxlen=_CLOCKS)).append(at - now)

    def clocks_ahead_s(self) -> dict[str, float]:
        """Return how far the clock of each connected node is ahead of ours, in seconds; negative for behind.

        A late message makes a clock seem behind: the quickest of the last ones counts.
        """
        return {node: max(said) for node, said in self._ahead_s.items() if node in self._links}

    def clock_ahead_s(self, node: str) -> float:
        """The same for one node; 0 if unknown."""
        said = self._ahead_s.get(node)
        return max(said) if said else 0.0

    def fetched(self) -> dict[str, FetchedBytes]:
        """Return the transfers of each connected node with any."""
        return {
            node: link.fetched
            for node, link in self._links.items()
            if link.fetched != FetchedBytes()
        }

    def last_heard(self, node: str) -> float:
        """Monotonic seconds of its last contact, or of the election if that was later."""
        return max(self._heard.get(node, (0.0, 0.0))[0], self._since)

    def last_contact_at(self, node: str) -> float:
        """Unix seconds of its last contact with this control plane; 0 if none."""
        return self._heard.get(node, (0.0, 0.0))[1]

    def last_registered_at(self, node: str) -> float:
        """Unix seconds of its last contact while registered with this leader; 0 if none.

        Messages of a restarted machine before it registers say nothing about its earlier replicas.
        """
        return self._registered_heard.get(node, 0.0)

    def link(self, node: str) -> AgentConnection | None:
        """Return the node's stream, if any."""
        return self._links.get(node)

    def links(self) -> Iterator[AgentConnection]:
        """All streams."""
        return iter(tuple(self._links.values()))

    def connected(self) -> list[str]:
        """Return the nodes with connected agents."""
        return sorted(node for node in self._links if self._is_connected(node))

    def restart(self, handed_over: frozenset[str] = frozenset()) -> None:
        """Start over after our election: all nodes get the full time to connect; until then none is used.

        Except for nodes handed over: they were connected to a predecessor that resigned, and are about to
        connect to us. They get orders for replicas placed before that when they connect.
        """
        self._since = self._clock.monotonic()
        self._registered_heard.clear()
        self.sent.clear()
        self.unheard = frozenset()
        self.look_again(handed_over)

    def look_again(self, handed_over: frozenset[str] = frozenset()) -> None:
        """Use only nodes that are connected or handed over."""
        for node in self._state.nodes:
            is_used = node in handed_over or self._is_connected(node)
            self._state.set_contact(node, is_silent=not is_used)

    def _is_connected(self, node: str) -> bool:
        link = self._links.get(node)
        return link is not None and link.failure is None

    def close_all(self, failure: NsmlError) -> None:
        """End all streams."""
        for link in self.links():
            link.close(failure)
