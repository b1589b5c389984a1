"""The free room of a cluster while one plan is made: mutable, indexed, private to the scheduler."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.closed import owner_words
from controlplane.domain.plan import ReplicaPlacement
from controlplane.domain.snapshot import NodeCapacity, capacity_of
from controlplane.domain.values import (
    HOST_NETWORK,
    NO_NETWORK,
    WHOLE_DEVICE,
    Allocation,
    DeviceShare,
    Isolation,
    Node,
    Resources,
)
from controlplane.scheduler.fit import (
    MOST_ON_ONE_NODE,
    OWNERS_ONLY,
    Request,
    refusal,
    resources_on,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Tightness = tuple[int, int, int, int, str]
Alike = tuple[str, str, bool]
"""GPU model, network, and whether programs run in containers: the same program finds other things there."""


class Room:
    """What is still free on one node while a plan is made."""

    __slots__ = (
        "cpu",
        "instances",
        "memory",
        "model",
        "node",
        "places",
        "shared",
        "whole",
        "withheld",
    )

    def __init__(self, capacity: NodeCapacity) -> None:
        self.node: Node = capacity.node
        self.cpu = capacity.free_cpu_thousandths
        self.memory = capacity.free_memory_bytes
        self.places = MOST_ON_ONE_NODE - len(capacity.allocation.replicas)
        offered = {one.model for one in capacity.node.devices if one.uuid in capacity.free}
        self.model = "|".join(sorted(offered))
        self.whole = [uuid for uuid, free in capacity.free.items() if free == WHOLE_DEVICE]
        self.instances = {one.uuid for one in capacity.node.devices if one.parent_uuid}
        self.withheld = [one for one in capacity.node.devices if one.withheld]
        self.shared = {
            uuid: free for uuid, free in capacity.free.items() if 0 < free < WHOLE_DEVICE
        }

    @property
    def tightness(self) -> Tightness:
        """Best fit takes the smallest: fewest free GPUs, then thousandths, cores and memory."""
        thousandths = len(self.whole) * WHOLE_DEVICE + sum(self.shared.values())
        return (len(self.whole), thousandths, self.cpu, self.memory, self.node.name)

    def shortage(self, request: Request) -> str:
        """What is short first for one replica; "" when it fits."""
        refused = refusal(self.node, request)
        if refused:
            return refused
        if request.gpu_thousandths and not self._devices_for(request.gpu_thousandths):
            return "GPUs"
        wanted = resources_on(self.node, request)
        if wanted.cpu_thousandths > self.cpu:
            return "cores"
        if wanted.memory_bytes > self.memory:
            return "memory"
        return "" if self.places > 0 else "full of small replicas"

    def holds(self, request: Request) -> int:
        """Replicas of the request that fit here."""
        if refusal(self.node, request):
            return 0
        wanted = resources_on(self.node, request)
        bounds = [self.places]
        if wanted.cpu_thousandths:
            bounds.append(self.cpu // wanted.cpu_thousandths)
        if wanted.memory_bytes:
            bounds.append(self.memory // wanted.memory_bytes)
        gpu = request.gpu_thousandths
        if gpu >= WHOLE_DEVICE:
            count = gpu // WHOLE_DEVICE
            bounds.append(len(self.wholes_for(count)) // count)
        elif gpu:
            in_shared = sum(free // gpu for free in self.shared.values())
            bounds.append(in_shared + len(self.whole) * (WHOLE_DEVICE // gpu))
        return max(min(bounds), 0)

    def alike_for(self, request: Request) -> Alike:
        """What its replicas would get of which a gang combines only equal ones."""
        is_contained = self.node.isolation is Isolation.CONTAINER
        return (self.model if request.gpu_thousandths else "", self.node.gang_network, is_contained)

    def wholes_for(self, count: int) -> list[str]:
        """Free devices of which one replica may have `count`.

        A CUDA process computes on one MIG instance at most (NVIDIA, "MIG User Guide").
        """
        if count <= 1 or not self.instances:
            return self.whole
        return [uuid for uuid in self.whole if uuid not in self.instances]

    @property
    def hole(self) -> int:
        """The most whole devices that one replica could have."""
        return max(len(self.wholes_for(2)), min(len(self.whole), 1))

    def take(self, request: Request, rank: int) -> ReplicaPlacement:
        """Place one replica that fits."""
        wanted = resources_on(self.node, request)
        shares = self._devices_for(request.gpu_thousandths)
        self._occupy(wanted, shares)
        return ReplicaPlacement(
            rank=rank, node=self.node.name, devices=tuple(shares), resources=wanted
        )

    def _devices_for(self, gpu: int) -> list[DeviceShare]:
        if gpu >= WHOLE_DEVICE:
            count = gpu // WHOLE_DEVICE
            wholes = self.wholes_for(count)[:count]
            if len(wholes) < count:
                return []
            return [DeviceShare(uuid=uuid, thousandths=WHOLE_DEVICE) for uuid in wholes]
        if gpu == 0:
            return []
        open_ones = [(free, uuid) for uuid, free in self.shared.items() if free >= gpu]
        if open_ones:
            return [DeviceShare(uuid=min(open_ones)[1], thousandths=gpu)]
        return [DeviceShare(uuid=uuid, thousandths=gpu) for uuid in self.whole[:1]]

    def _occupy(self, wanted: Resources, shares: list[DeviceShare]) -> None:
        self.places -= 1
        self.cpu -= wanted.cpu_thousandths
        self.memory -= wanted.memory_bytes
        for share in shares:
            if share.uuid in self.shared:
                left = self.shared.pop(share.uuid) - share.thousandths
            else:
                self.whole.remove(share.uuid)
                left = WHOLE_DEVICE - share.thousandths
            if left:
                self.shared[share.uuid] = left


class Rooms:
    """All nodes that take sessions, tightest first: sorted once, kept so by bisection."""

    def __init__(self, capacities: Iterable[NodeCapacity]) -> None:
        self._by_name = {
            capacity.node.name: Room(capacity) for capacity in capacities if capacity.takes_sessions
        }
        self._order: list[Tightness] = sorted(room.tightness for room in self._by_name.values())

    def __iter__(self) -> Iterator[Room]:
        return (self._by_name[key[-1]] for key in self._order)

    def tightest_for(self, request: Request) -> Room | None:
        """The tightest node that holds one replica; a share goes to an opened device if it can."""
        if request.is_share:
            opened = self._tightest_opened(request)
            if opened is not None:
                return opened
        first = bisect_left(self._order, (request.whole_devices,))
        for key in self._order[first:]:
            room = self._by_name[key[-1]]
            if not room.shortage(request):
                return room
        return None

    def _tightest_opened(self, request: Request) -> Room | None:
        best: tuple[int, int] | None = None
        chosen = None
        for position, room in enumerate(self):
            fitting = [free for free in room.shared.values() if free >= request.gpu_thousandths]
            if fitting and not room.shortage(request):
                key = (min(fitting), position)
                if best is None or key < best:
                    best, chosen = key, room
        return chosen

    def take(self, room: Room, request: Request, rank: int) -> ReplicaPlacement:
        """Place one replica there."""
        before = room.tightness
        placed = room.take(request, rank)
        del self._order[bisect_left(self._order, before)]
        insort(self._order, room.tightness)
        return placed


def can_ever_fit(nodes: Iterable[Node], request: Request) -> bool:
    """Whether the gang would fit if nothing else ran, on nodes that may take it.

    Devices that are withheld count: they may be offered again.
    """
    held = Counter[Alike]()
    for node in nodes:
        room = Room(capacity_of(_with_all_devices(node), Allocation(node=node.name)))
        kind = room.alike_for(request)
        held[kind] += room.holds(request)
        if held[kind] >= request.replica_count:
            return True
    return False


def runs_nowhere(nodes: Iterable[Node], request: Request) -> bool:
    """Whether it names an image and no node runs containers."""
    return request.in_container and all(node.isolation is not Isolation.CONTAINER for node in nodes)


def keep_to_owners(nodes: Iterable[Node], request: Request) -> str:
    """Why no node takes sessions of this user, in words; "" when one does."""
    nodes = list(nodes)
    if not nodes or any(refusal(node, request) != OWNERS_ONLY for node in nodes):
        return ""
    first = min(nodes, key=lambda node: node.name)
    more = len(nodes) - 1
    others = f" (and {more} more {'node' if more == 1 else 'nodes'} like it)" if more else ""
    return f"node {first.name} {owner_words(first)}{others}"


def without_network(nodes: Iterable[Node], request: Request) -> list[Node]:
    """The nodes that give gangs no network, where this gang would fit if they did; else none."""
    nodes = list(nodes)
    shut = [node for node in nodes if node.gang_network == NO_NETWORK]
    if request.replica_count == 1 or not shut or can_ever_fit(nodes, request):
        return []
    opened = (replace(node, gang_network=HOST_NETWORK) for node in nodes)
    return shut if can_ever_fit(opened, request) else []


def _with_all_devices(node: Node) -> Node:
    if not any(device.withheld for device in node.devices):
        return node
    return replace(node, devices=tuple(replace(one, withheld="") for one in node.devices))


def is_torn_ever(nodes: Iterable[Node], request: Request) -> bool:
    """Whether the gang would fit if some of its replicas might run in containers and others not."""
    alike = (
        replace(node, isolation=Isolation.CONTAINER) for node in nodes if not refusal(node, request)
    )
    return request.replica_count > 1 and can_ever_fit(alike, request)


def is_torn_now(rooms: Iterable[Room], request: Request) -> bool:
    """The same of what is free now."""
    held = Counter[tuple[str, str]]()
    for room in rooms:
        model, network, _ = room.alike_for(request)
        held[model, network] += room.holds(request)
    return max(held.values(), default=0) >= request.replica_count


def most_together(rooms: Iterable[Room], request: Request) -> int:
    """Replicas that one gang could have now."""
    held = Counter[Alike]()
    for room in rooms:
        held[room.alike_for(request)] += room.holds(request)
    return max(held.values(), default=0)
