"""What an agent is made of: the real parts are in `wiring.py`, the simulation gives others."""

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
    """What an agent leaves to its successor; blocking, one caller at a time."""

    def cluster_id(self) -> str:
        """The platform that was obeyed; empty at first."""
        ...

    def join(self, cluster_id: str) -> None:
        """Obey this platform and no other."""
        ...

    def control_planes(self) -> Sequence[str]:
        """Where the control planes were."""
        ...

    def remember_control_planes(self, addresses: Iterable[str]) -> None:
        """Where they are now."""
        ...

    def cursors(self, replica_id: ReplicaId) -> Mapping[StreamId, Cursor]:
        """How far a replica's streams are acknowledged."""
        ...

    def acknowledge(self, cursors: Mapping[StreamId, Cursor | None]) -> None:
        """They are acknowledged so far now."""
        ...


class Meter(Protocol):
    """Reads the node; blocking."""

    def sample(self) -> pb.NodeSample:
        """One reading of all but the devices; sequence, boot and time are filled in by the caller."""
        ...


class MakeImageOrders(Protocol):
    """Makes what obeys orders about images."""

    def __call__(
        self, answered: Callable[[], object], changed: Callable[[], object]
    ) -> ImageOrders:
        """`answered` is called when there is an answer, `changed` when the node may have other images."""
        ...


class MakeEnvironmentOrders(Protocol):
    """Makes what obeys orders about environments."""

    def __call__(self, answered: Callable[[], object]) -> EnvironmentOrders:
        """`answered` is called when there is an answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the agent's machine is, but for its devices; found out once, at its start."""

    boot_id: str
    host: str
    isolation: Isolation
    isolation_note: str
    capacity: resources.Resources
    setting_note: str = ""
    """What its administrator set and it does not do; empty: it does all."""
    only_owner: str = ""
    """Why it takes the sessions of its owner alone; empty: of every user."""
    gangs: GangNetwork = field(default_factory=GangNetwork)
    networks: NetworkOffer = field(default_factory=NetworkOffer)
    limits: resources.KeptLimits = field(default_factory=resources.KeptLimits)
    shared_roots: tuple[str, ...] = ()
    """Folders below which it mounts datasets in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What an agent is made of.

    `probe` reads the devices; `load` is told before each reading what sessions hold of them, 0 to 1
    by uuid. `meter` reads the rest of the node. `touch` notes a contact with the control plane for
    one replica. `measure` reads what the processes of replicas take, and blocks. `hooks` come after those for data and code. `renew` renews the node's certificate;
    None where a token says who it is. `token` reads that, again when it is refused. `run_long` is for
    work that programs or drivers can make last for minutes: it must not hold up what `run` does.
    `accounts` are whom users are on this machine; without, all programs run as the agent's own user.
    `relieve` makes room on the node's disks, where they are short of it, from what is given and its own.
    `disk_floor_bytes` is the room on the disk of the data folder at which sessions are ended.
    `images` lists those on the machine, bytes by whole reference; None where programs need none. `image_orders`
    makes what obeys orders about them, `environment_orders` what does about environments.
    `has_grown` looks whether the machine separates sessions better by now than `machine` says; None
    where it cannot become so.
    `engine` watches the engine of containers, where programs run in some.
    `builds_conda`: environments of conda packages are built here. `peers` is how other nodes are met; None where they are not.
    `writes` tells when programs have written; without, their files are looked at now and then.
    Without `has_sockets` user code cannot make requests (the simulation).
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
