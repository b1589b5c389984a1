"""Which agents are connected, and when each was last heard."""

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
    """What an agent can be asked about an image."""

    PULL = enum.auto()
    LOOK = enum.auto()
    REMOVE = enum.auto()


class Ability(enum.Enum):
    """What an agent can be asked that those of earlier versions would not answer."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayEnd:
    """Where one end of a tunnel meets the other, and its key there."""

    address: str
    """HOST:PORT."""
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshEntrance:
    """How an ssh server proves itself to a client behind a jump host, and who may log in there."""

    host_key: bytes = field(repr=False)
    """Private half (Ed25519, 32 bytes), for one connection alone."""
    certificate: str
    """Of the platform for it, as in a file that ends in -cert.pub."""
    authorized_keys: tuple[bytes, ...]
    """SHA-256 of each public key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOrder:
    """What an agent is asked: to dial, with this id, for a service of a replica; without a session, of the node.

    `direct_key`: the client is on its machine, or comes by the `relay`, and has this; empty: it does not.
    """

    tunnel_id: str
    service: str
    session_id: str = ""
    attempt: int = 0
    rank: int = 0
    only_checks: bool = False
    user: str = ""
    """Who asks."""
    direct_key: bytes = b""
    relay: RelayEnd | None = None
    ssh_entrance: SshEntrance | None = None
    """Of an ssh server that does not take who comes for known already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """What an agent is asked about an image, for the user of this id."""

    order_id: str
    action: ImageAction
    image: str
    owner_id: str
    logins: Sequence[RegistryLogin] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOffer:
    """Where an agent serves datasets to others, and the key by which it knows who may have which."""

    address: str
    """HOST:PORT."""
    certificate: bytes
    """DER."""
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPeer:
    """A node to fetch from, and what lets the one that asked do so."""

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
    """Where the datasets came from that an agent has fetched since its start, and what it gave to others, in bytes."""

    from_platform: int = 0
    from_peers: int = 0
    to_peers: int = 0
    dropped_peers: int = 0
    """How often a peer was not asked any more."""
    from_bucket: int = 0
    bucket_note: str = ""
    """Why it does not read from the bucket now, though it may."""


class EnvironmentOrder(NamedTuple):
    """What an agent is asked about environments: to remove the one of a key, to build one, or, without, which there are.

    `owner_id`: of nobody but this user and everybody; empty: of all. `logins`: that user's at registries, to build one.
    """

    order_id: str
    remove: str = ""
    owner_id: str = ""
    build: agents_pb2.EnvironmentBuildOrder | None = None
    logins: Sequence[RegistryLogin] = ()


class RepairOrder(NamedTuple):
    """Blobs of a tree that the object store has lost, and where the agent may have that as a checkpoint."""

    order_id: str
    root: str
    digests: tuple[str, ...]
    session_id: str = ""
    attempt: int = 0
    rank: int = 0
    folder: str = ""


class AgentConnection:
    """One agent's Control stream: what is to be sent down next.

    Attributes:
        acknowledged: committed reports that the agent need not repeat.
        wants_orders: its allocation changed.
        tunnels: those that the agent is to dial.
        image_orders: what the agent is asked about images.
        environment_orders: the same about environments.
        repair_orders: what of the object store it is asked for.
        abilities: what it can be asked, as it said when it connected.
        boot_id: of its machine; empty until it is known.
        peer_offer: where it serves datasets to others; None: nowhere.
        found_peers: answers to what it has asked of others.
        fetched: what it has fetched, as it said last.
        control_planes: where all control planes serve agents, as far as we know.
        told_control_planes: what the agent was last told of that.
        ordered: what it was last told to run: session id, attempt, rank.
        given: those among them of which it has all that they begin with: it said that it obeys.
        owed: replicas that run there and should not: the node takes no sessions before they ended.
        starts_anew: the agent must forget how new the orders were that it obeyed, and has not yet
            said that it obeys ours.
        failure: set when the stream must end.
        turn: held while what the agent said of its devices is written.
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
        """Tell the agent what it is to run."""
        self.wants_orders = True
        self._wake.set()

    def open_tunnel(self, order: TunnelOrder) -> None:
        """Ask the agent to dial a tunnel."""
        self.tunnels.append(order)
        self._wake.set()

    def order_image(self, order: ImageOrder) -> None:
        """Ask the agent something about an image."""
        self.image_orders.append(order)
        self._wake.set()

    def answer_peers(self, found: FoundPeers) -> None:
        """Tell the agent from which nodes it may fetch a dataset."""
        self.found_peers.append(found)
        self._wake.set()

    def order_environment(self, order: EnvironmentOrder) -> None:
        """Ask the agent something about environments."""
        self.environment_orders.append(order)
        self._wake.set()

    def order_repair(self, order: RepairOrder) -> None:
        """Ask the agent for what the object store has lost."""
        self.repair_orders.append(order)
        self._wake.set()

    def check(self, ability: Ability) -> None:
        """Raise StateConflict where the agent cannot be asked that."""
        if ability not in self.abilities:
            raise too_old(self.node, self.agent_version, ability)

    @property
    def keeps_logins_in_memory(self) -> bool:
        """Whether it may be sent logins at registries: earlier versions write down what they do not know of an order."""
        return Ability.DOCKERFILES in self.abilities  # new with the logins

    def find_control_planes(self, addresses: tuple[str, ...]) -> None:
        """Tell the agent where the control planes are, if that has changed."""
        if addresses != self.control_planes:
            self.control_planes = addresses
            self._wake.set()

    def close(self, failure: NsmlError) -> None:
        """End the stream with a refusal."""
        self.failure = self.failure or failure
        self._wake.set()

    async def wait(self) -> None:
        """Return when there is something to send."""
        await self._wake.wait()
        self._wake.clear()


def too_old(node: str, agent_version: str, ability: Ability) -> StateConflict:
    """The error about an agent that lacks an ability."""
    return StateConflict(
        f"the nsml of node {node} is too old for this",
        why=f"its agent ({agent_version or 'version unknown'}) cannot be asked about {ability.value}",
        attempt=f"an administrator upgrades nsml on {node}",
    )


class AgentConnections:
    """The agents that speak to this control plane.

    Attributes:
        unheard: nodes that have been silent for so long that what they run is UNKNOWN.
        sent: the newest revision of the orders that each node was sent in our term.
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
        """An agent has registered; an older stream of the same node ends."""
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
        """An agent said what it has; nothing once another stream speaks for its node."""
        if self._links.get(link.node) is link:
            self._state.set_stock(link.node, stock)

    def disconnect(self, link: AgentConnection) -> None:
        """A stream has ended."""
        if self._links.get(link.node) is link:
            del self._links[link.node]
            self._state.set_contact(link.node, is_silent=True)
            self._state.set_stock(link.node, Stock())

    def heard(self, node: str) -> None:
        """The agent said something."""
        now = self._clock.time()
        self._heard[node] = (self._clock.monotonic(), now)
        if node in self._links:
            self._registered_heard[node] = now

    def clock_said(self, link: AgentConnection, at: float, now: float) -> None:
        """An agent said what its clock shows, in a message that came `now`; both Unix seconds."""
        self._ahead_s.setdefault(link.node, deque(maxlen=_CLOCKS)).append(at - now)

    def clocks_ahead_s(self) -> dict[str, float]:
        """How far the clock of each connected node is ahead of ours, in seconds; negative for behind.

        A message that was late makes a clock seem behind: of the last ones the quickest counts.
        """
        return {node: max(said) for node, said in self._ahead_s.items() if node in self._links}

    def clock_ahead_s(self, node: str) -> float:
        """The same of one node; 0 where it is not known."""
        said = self._ahead_s.get(node)
        return max(said) if said else 0.0

    def fetched(self) -> dict[str, FetchedBytes]:
        """Where the datasets of each connected node came from, as far as there are any."""
        return {
            node: link.fetched
            for node, link in self._links.items()
            if link.fetched != FetchedBytes()
        }

    def last_heard(self, node: str) -> float:
        """Monotonic seconds of its last word, or of the election if that was later."""
        return max(self._heard.get(node, (0.0, 0.0))[0], self._since)

    def last_contact_at(self, node: str) -> float:
        """Unix seconds of its last word; 0 when this control plane never heard it."""
        return self._heard.get(node, (0.0, 0.0))[1]

    def last_registered_at(self, node: str) -> float:
        """Unix seconds of the last word within a registration; 0 when this leader had none.

        What a machine that was started again sends before it registers says nothing of what ran
        before.
        """
        return self._registered_heard.get(node, 0.0)

    def link(self, node: str) -> AgentConnection | None:
        """The node's stream."""
        return self._links.get(node)

    def links(self) -> Iterator[AgentConnection]:
        """All streams."""
        return iter(tuple(self._links.values()))

    def connected(self) -> list[str]:
        """The nodes whose agents are connected."""
        return sorted(node for node in self._links if self._is_connected(node))

    def restart(self, handed_over: frozenset[str] = frozenset()) -> None:
        """We were elected: everybody gets the full time to be heard; until then none is used.

        But for those that are handed over: a predecessor that resigned was connected with them, and
        they are on their way to us. What is placed there before they come, they are told when they do.
        """
        self._since = self._clock.monotonic()
        self._registered_heard.clear()
        self.sent.clear()
        self.unheard = frozenset()
        self.look_again(handed_over)

    def look_again(self, handed_over: frozenset[str] = frozenset()) -> None:
        """Use only those nodes that are connected, or handed over."""
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
