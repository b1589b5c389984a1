"""ClusterSnapshot: everything a decision needs, as one immutable value, kept up by changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Allocation,
    Node,
    Project,
    Resources,
    Session,
    Stock,
    Used,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """A node with what is free on it.

    `free` maps the uuid of every device that is offered to its free thousandths, in the order of the
    devices.
    """

    node: Node
    allocation: Allocation
    free: Mapping[str, int]
    free_cpu_thousandths: int
    free_memory_bytes: int
    is_silent: bool = False

    @property
    def takes_sessions(self) -> bool:
        """Whether anything may be placed here now."""
        return not (self.is_silent or self.node.closed_by)

    @property
    def whole_free_devices(self) -> int:
        """Devices that nobody touches."""
        return sum(1 for free in self.free.values() if free == WHOLE_DEVICE)

    @property
    def free_thousandths(self) -> int:
        """Free GPU capacity, shares included."""
        return sum(self.free.values())


def capacity_of(node: Node, allocation: Allocation, *, is_silent: bool = False) -> NodeCapacity:
    """What is free on a node with this allocation."""
    cpu, memory = node.capacity.cpu_thousandths, node.capacity.memory_bytes
    for replica in allocation.replicas:
        cpu -= replica.cpu_thousandths
        memory -= replica.memory_bytes
    held = allocation.held_thousandths()
    # The same hardware under other names: a device, and the MIG instances that are parts of it.
    cut = {one.parent_uuid for one in node.devices if one.parent_uuid and one.uuid in held}
    # What runs on a device that is withheld, or listed no more, still holds its share of it.
    free = {
        device.uuid: WHOLE_DEVICE - held.get(device.uuid, 0)
        for device in node.devices
        if not (device.withheld or device.uuid in cut or device.parent_uuid in held)
    }
    return NodeCapacity(
        node=node,
        allocation=allocation,
        free=MappingProxyType(free),
        free_cpu_thousandths=cpu,
        free_memory_bytes=memory,
        is_silent=is_silent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node registered, or changed what it is."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved:
    """A node was taken out of the cluster."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactChanged:
    """A node fell silent, or was heard again."""

    name: str
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StockChanged:
    """A node has other dataset versions or images than before; nothing once its agent is not connected."""

    name: str
    stock: Stock


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationChanged:
    """What a node is to run changed."""

    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """A session is new or changed."""

    session: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRemoved:
    """A session left: it ended and was exported."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChanged:
    """A project is new or changed, or a further period of its budget began."""

    project: Project


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRemoved:
    """A project is no more."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedChanged:
    """What a project has used of its budget."""

    used: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChanged:
    """What accounts held lately: GPUs on average, as of one instant; of those left out nothing."""

    lately: Mapping[str, float]


Change = (
    NodeChanged
    | NodeRemoved
    | ContactChanged
    | StockChanged
    | AllocationChanged
    | SessionChanged
    | SessionRemoved
    | ProjectChanged
    | ProjectRemoved
    | UsedChanged
    | PastChanged
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster at one revision.

    `queued` holds the sessions that wait, in order of submission; `allocations` those of nodes that
    are not (or no longer) known, too, so that the order in which changes arrive does not matter.
    `holding` has the sessions that are placed, `projects` and `used` are by name of the project; of a
    project with a budget and nothing in `used` it is not known yet. `lately` is what accounts held before,
    as `PastChanged` has it. `stocks`, by node, is soft: agents tell of it, and no store keeps it.
    """

    revision: int = 0
    nodes: Mapping[str, NodeCapacity] = field(default_factory=lambda: MappingProxyType({}))
    allocations: Mapping[str, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    silent: frozenset[str] = frozenset()
    stocks: Mapping[str, Stock] = field(default_factory=lambda: MappingProxyType({}))
    queued: Mapping[str, Session] = field(default_factory=lambda: MappingProxyType({}))
    holding: Mapping[str, Session] = field(default_factory=lambda: MappingProxyType({}))
    projects: Mapping[str, Project] = field(default_factory=lambda: MappingProxyType({}))
    used: Mapping[str, Used] = field(default_factory=lambda: MappingProxyType({}))
    lately: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def apply(self, changes: Iterable[Change], *, revision: int = 0) -> ClusterSnapshot:
        """The snapshot after `changes`; itself when nothing in it differs.

        Costs a copy of the maps that change: give many changes at once.
        """
        draft = _Draft(self)
        for change in changes:
            draft.apply(change)
        return draft.finish(max(revision, self.revision))

    @property
    def has_nodes(self) -> bool:
        """Whether any node ever registered."""
        return bool(self.nodes)

    def capacity(self) -> Resources:
        """Sum over the nodes that take sessions."""
        ready = [entry.node for entry in self.nodes.values() if not entry.is_silent]
        return Resources(
            gpu_thousandths=sum(len(node.devices) for node in ready) * WHOLE_DEVICE,
            cpu_thousandths=sum(node.capacity.cpu_thousandths for node in ready),
            memory_bytes=sum(node.capacity.memory_bytes for node in ready),
        )


class _Draft:
    """A snapshot being changed: copies each map once, when it is first written."""

    def __init__(self, base: ClusterSnapshot) -> None:
        self._base = base
        self._nodes: dict[str, Node | None] = {}
        self._allocations: dict[str, Allocation] = {}
        self._silent = base.silent
        self._queued: dict[str, Session] | None = None
        self._touched: set[str] = set()
        self._holding: dict[str, Session | None] = {}
        self._projects: dict[str, Project | None] = {}
        self._used: dict[str, Used] = {}
        self._lately = base.lately
        self._stocks: dict[str, Stock | None] = {}

    def apply(self, change: Change) -> None:
        match change:
            case NodeChanged(node=node):
                self._nodes[node.name] = node
                self._touched.add(node.name)
            case NodeRemoved(name=name):
                self._nodes[name] = None
                self._touched.add(name)
            case ContactChanged(name=name, is_silent=is_silent):
                self._silent = self._silent | {name} if is_silent else self._silent - {name}
                self._touched.add(name)
            case StockChanged(name=name, stock=stock):
                self._stocks[name] = stock if stock.things else None
            case AllocationChanged(allocation=allocation):
                self._allocations[allocation.node] = allocation
                self._touched.add(allocation.node)
            case SessionChanged(session=session):
                self._queue(session)
                self._holding[session.id] = session if session.state.holds_devices else None
            case SessionRemoved(session_id=session_id):
                self._unqueue(session_id)
                self._holding[session_id] = None
            case ProjectChanged() | ProjectRemoved() | UsedChanged():
                self._entitle(change)
            case PastChanged(lately=lately):
                self._lately = lately

    def _entitle(self, change: ProjectChanged | ProjectRemoved | UsedChanged) -> None:
        match change:
            case ProjectChanged(project=project):
                self._projects[project.name] = project
            case ProjectRemoved(name=name):
                self._projects[name] = None
            case UsedChanged(used=used):
                self._used[used.project] = used

    def _queue(self, session: Session) -> None:
        if session.state is not SessionState.QUEUED:
            self._unqueue(session.id)
            return
        if self._queued is None:
            self._queued = dict(self._base.queued)
        self._queued[session.id] = session

    def _unqueue(self, session_id: str) -> None:
        if self._queued is None:
            if session_id not in self._base.queued:
                return
            self._queued = dict(self._base.queued)
        self._queued.pop(session_id, None)

    def finish(self, revision: int) -> ClusterSnapshot:
        snapshot = replace(self._base, revision=revision)
        if self._allocations:
            allocations = {**self._base.allocations, **self._allocations}
            allocations = {name: held for name, held in allocations.items() if held.replicas}
            snapshot = replace(snapshot, allocations=MappingProxyType(allocations))
        if self._touched:
            snapshot = replace(
                snapshot, silent=self._silent, nodes=MappingProxyType(self._capacities(snapshot))
            )
        if self._queued is not None:
            ordered = sorted(self._queued.values(), key=lambda s: (s.created_at, s.id))
            snapshot = replace(snapshot, queued=MappingProxyType({s.id: s for s in ordered}))
        return replace(
            snapshot,
            holding=_changed(snapshot.holding, self._holding),
            stocks=_changed(snapshot.stocks, self._stocks),
            projects=_changed(snapshot.projects, self._projects),
            used=_changed(snapshot.used, self._used),
            lately=self._lately,
        )

    def _capacities(self, snapshot: ClusterSnapshot) -> dict[str, NodeCapacity]:
        capacities = dict(self._base.nodes)
        for name in sorted(self._touched):
            known = capacities.get(name)
            node = self._nodes.get(name, known.node if known else None)
            if node is None:
                capacities.pop(name, None)
                continue
            allocation = snapshot.allocations.get(name, Allocation(node=name))
            capacities[name] = capacity_of(node, allocation, is_silent=name in self._silent)
        return capacities


def _changed(known: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """A map after changes, of which None takes a key out; the same map when nothing differs."""
    if all(known.get(key) is value for key, value in changes.items()):
        return known
    return MappingProxyType(
        {key: one for key, one in {**known, **changes}.items() if one is not None}
    )
