"""What may change in a cluster, as one change after the other, and what is free on a node."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from controlplane.domain.values import (
    WHOLE_DEVICE,
    Allocation,
    Node,
    Project,
    Session,
    Stock,
    Used,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


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
