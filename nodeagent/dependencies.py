"""The parts of an agent: the real ones are in `wiring.py`, the simulation has others."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nodeagent.collect.file_watcher import Writes
from nodeagent.collect.streams import Cursor, StreamId
from nodeagent.engine.watch import EngineWatch
from nodeagent.environment_orders import EnvironmentOrders
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.image_orders import ImageOrders
from nodeagent.link.channels import ChannelFactory
from nodeagent.link.renewal import Renew
from nodeagent.machine.accounts import Accounts
from nodeagent.network.gang_network import GangNetwork
from nodeagent.network.host_network import NetworkOffer
from nodeagent.peers.network import PeerNetwork
from nodeagent.probes.interface import DeviceProbe
from nodeagent.reconcile import Memory
from nodeagent.replica.preparation_steps import Hook
from nodeagent.runtimes.interface import Isolation, RuntimeDriver
from nodeagent.storage.eviction import Store
from nsml.common.clock import Clock, Offload
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources


class Remembering(Memory, Protocol):
    """State of an agent for its successor; blocking, one caller at a time."""

    def cluster_id(self) -> str:
        """Return the platform of this node; empty at first."""
        ...

    def join(self, cluster_id: str) -> None:
        """Bind the node to this platform."""
        ...

    def control_planes(self) -> Sequence[str]:
        """Return the last addresses of the control planes."""
        ...

    def remember_control_planes(self, addresses: Iterable[str]) -> None:
        """Store their current addresses."""
        ...

    def cursors(self, replica_id: ReplicaId) -> Mapping[StreamId, Cursor]:
        """Return the acknowledged cursors of a replica's streams."""
        ...

    def acknowledge(self, cursors: Mapping[StreamId, Cursor | None]) -> None:
        """Store acknowledged cursors."""
        ...


class Meter(Protocol):
    """Reads the node; blocking."""

    def sample(self) -> pb.NodeSample:
        """Return one reading of all but the devices; sequence, boot and time are filled in by the caller."""
        ...


class MakeImageOrders(Protocol):
    """Creates the handler of orders about images."""

    def __call__(
        self, answered: Callable[[], object], changed: Callable[[], object]
    ) -> ImageOrders:
        """`answered` is called for each answer, `changed` when the node may have other images."""
        ...


class MakeEnvironmentOrders(Protocol):
    """Creates the handler of orders about environments."""

    def __call__(self, answered: Callable[[], object]) -> EnvironmentOrders:
        """`answered` is called for each answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of the agent's machine, except its devices; read once, at the start."""

    boot_id: str
    host: str
    isolation: Isolation
    isolation_note: str
    capacity: resources.Resources
    setting_note: str = ""
    """Settings that it does not support; empty: none."""
    only_owner: str = ""
    """Why it accepts only its owner's sessions; empty: it accepts every user's."""
    gangs: GangNetwork = field(default_factory=GangNetwork)
    networks: NetworkOffer = field(default_factory=NetworkOffer)
    limits: resources.KeptLimits = field(default_factory=resources.KeptLimits)
    shared_roots: tuple[str, ...] = ()
    """Folders in which it mounts datasets in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The parts of an agent.

    `probe` reads the devices; `load` gets before each reading the shares of sessions, 0 to 1
    by uuid. `meter` reads the rest of the node. `touch` records a contact with the control plane for
    one replica. `measure` reads the usage of replicas' processes, and blocks. `hooks` come after those for data and code. `renew` renews the node's certificate;
    None with a token. `token` reads that, again when it is refused. `run_long` is for
    work that programs or drivers can prolong for minutes: it must not delay `run`.
    `accounts` are the users' accounts on this machine; without, all programs run as the agent's own user.
    `relieve` frees space on the node's disks, if needed, from the given stores and its own.
    `disk_floor_bytes` is the free space on the disk of the data folder at which sessions are ended.
    `images` lists the machine's images, bytes by whole reference; None if programs need none. `image_orders`
    creates the handler of orders about them, `environment_orders` that of orders about environments.
    `has_grown` checks whether the machine could isolate sessions better than `machine`; None
    if it never can.
    `engine` watches the container engine, if programs run in containers.
    `builds_conda`: environments of conda packages are built here. `peers` connects to other nodes; None if there are none.
    `writes` signals writes of programs; without, their files are polled.
    Without `has_sockets` user code cannot send requests (the simulation).
    """

    clock: Clock
    rng: random.Random
    run: Offload
    run_long: Offload
    channel_factory: ChannelFactory
    runtime: RuntimeDriver
    journal: Remembering
    machine: Machine
    probe: DeviceProbe
    meter: Meter
    token: Callable[[], str] | None = None
    renew: Renew | None = None
    hooks: Sequence[Hook] = ()
    sdk_folder: Path | None = None
    accounts: Accounts | None = None
    has_sockets: bool = True
    writes: Writes | None = None
    relieve: Callable[[Sequence[Store]], None] | None = None
    disk_floor_bytes: int = 0
    images: Callable[[], Mapping[str, int]] | None = None
    image_orders: MakeImageOrders | None = None
    environment_orders: MakeEnvironmentOrders | None = None
    has_grown: Callable[[], Awaitable[bool]] | None = None
    builds_conda: bool = False
    peers: PeerNetwork | None = None
    engine: EngineWatch | None = None
    load: Callable[[Mapping[str, float]], object] = lambda _: None
    touch: Callable[[ReplicaFolder, ReplicaId], None] = lambda folder, _: folder.touch_contact()
    measure: Callable[[Mapping[ReplicaId, ReplicaFolder]], list[pb.ReplicaSample]] = lambda _: []
