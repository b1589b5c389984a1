"""Free resources of a node."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from controlplane.domain.values import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.domain.values import Allocation, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeResources:
    """A node with its free resources.

    `free`: free thousandths by the uuid of each offered device, in the order of the devices.
    """

    node: Node
    allocation: Allocation
    free: Mapping[str, int]
    free_cpu_thousandths: int
    free_memory_bytes: int
    is_silent: bool = False


def free_resources_of(
    node: Node, allocation: Allocation, *, is_silent: bool = False
) -> FreeResources:
    """Return the free resources of a node with this allocation."""
    cpu, memory = node.capacity.cpu_thousandths, node.capacity.memory_bytes
    for replica in allocation.replicas:
        cpu -= replica.cpu_thousandths
        memory -= replica.memory_bytes
    held = allocation.held_thousandths()
    # The same hardware under other names: a device, and the MIG instances that are parts of it.
    cut = {one.parent_uuid for one in node.devices if one.parent_uuid and one.uuid in held}
    # Replicas on a device that is withheld, or no longer listed, still hold their share of it.
    free = {
        device.uuid: WHOLE_DEVICE - held.get(device.uuid, 0)
        for device in node.devices
        if not (device.withheld or device.uuid in cut or device.parent_uuid in held)
    }
    return FreeResources(
        node=node,
        allocation=allocation,
        free=MappingProxyType(free),
        free_cpu_thousandths=cpu,
        free_memory_bytes=memory,
        is_silent=is_silent,
    )
