"""Free capacity of one node (its room), updated by changes; rooms in equal states are interchangeable."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.free_resources import free_resources_of
from controlplane.domain.models import is_model
from controlplane.domain.plan import ReplicaPlacement
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Allocation,
    DeviceShare,
    Isolation,
    Node,
    Resources,
)
from controlplane.scheduler.fit import Request, most_on, refusal, resources_on
from controlplane.scheduler.fragmentation import Free

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from controlplane.domain.values import AllocatedReplica

KEPT = "is kept for another"
HELD = "is held for a session ahead of it"
SHORT_AND = " and "
"""Joins several shortages of one node."""
Alike = tuple[str, str, bool]
"""GPU model, network, and whether programs run in containers: the environment that a gang's replicas must share."""
Tightness = tuple[int, int, int, int, str]
Order = tuple[object, ...]
LEAST_KEPT = 64
_tuple = tuple.__new__
"""Creates a named tuple in little more than half the time, for tuples that each placement creates."""


class RoomState(NamedTuple):
    """Free capacity of a node, without its name: nodes in equal states are interchangeable.

    `kind`: number of the properties that placements do not change; `near`: the pod, or without one the node;
    `shares`: free thousandths of opened devices, smallest first; `places`: replicas that the node still accepts,
    however small; `which`: the free devices, if it matters which are free.
    """

    kind: int
    near: str
    whole: int
    shares: tuple[int, ...]
    cpu_thousandths: int
    memory_bytes: int
    places: int
    which: tuple[object, ...] = ()

    @property
    def gpus(self) -> tuple[object, ...]:
        """Free GPU capacity, device by device."""
        return (self.whole, self.shares, self.which)

    @property
    def tightness(self) -> tuple[int, int, int, int]:
        """Best fit takes the smallest: fewest free GPUs, then thousandths, cores and memory."""
        thousandths = self.whole * WHOLE_DEVICE + sum(self.shares)
        return (self.whole, thousandths, self.cpu_thousandths, self.memory_bytes)


class Tie:
    """The rooms in one state: they are interchangeable, and the first by name is taken.

    Attributes:
        state: of each room.
        order: breaks ties of equal ranks.
        alike: number shared only by ties that differ just in `near`, never reused; -1: not numbered.
        is_mixed: whether it matters which of their devices are free, not only how many.
        rooms: by name.
    """

    __slots__ = ("_names", "alike", "is_mixed", "order", "rooms", "state", "whole")

    def __init__(self, state: RoomState, order: Order, alike: int) -> None:
        self.state = state
        self.alike = alike
        self.whole = state.whole
        self.is_mixed = state.which != ()
        self.order = order
        self.rooms: dict[str, NodeCapacity] = {}
        self._names: list[str] = []

    def add(self, name: str, room: NodeCapacity) -> None:
        """Add a room."""
        rooms, names = self.rooms, self._names
        rooms[name] = room
        if len(names) > 2 * len(rooms) + LEAST_KEPT:
            self._names = sorted(rooms)
        else:
            heappush(names, name)

    def first(self) -> NodeCapacity:
        """Return the first room; there must be one."""
        names, rooms = self._names, self.rooms
        while (room := rooms.get(names[0])) is None:
            heappop(names)
        return room


CLOSED = Tie(RoomState(-1, "", -1, (), 0, 0, 0), (), -1)
"""The tie of rooms that accept no placements."""


class NodeCapacity:
    """Free capacity of one node, after its allocation and pending placements of a plan.

    Attributes:
        whole: positions of unused devices, in order.
        shared: free thousandths of opened devices, by position.
        is_mixed: whether it matters which of its devices are free, not only how many.
        keeper: the session that it is kept for; "": none.
        promised: the blocked session with the reservation (see reservations.py); "": none.
        tie: rooms in the same state; maintained by NodeIndex.
    """

    __slots__ = (
        "_is_recounted",
        "_near",
        "_pending",
        "_positions",
        "_wholes",
        "allocation",
        "cpu",
        "instances",
        "is_mixed",
        "is_open",
        "is_silent",
        "keeper",
        "kind",
        "memory",
        "model",
        "models",
        "name",
        "node",
        "places",
        "promised",
        "shared",
        "tie",
        "whole",
        "withheld",
    )

    def __init__(
        self, node: Node, allocation: Allocation, *, is_silent: bool = False, kind: int = 0
    ) -> None:
        self.name = node.name
        self.tie = CLOSED
        self.keeper = ""
        self.promised = ""
        self._pending: dict[str, list[ReplicaPlacement]] = {}
        self.set(node, allocation, is_silent=is_silent, kind=kind)

    def set(self, node: Node, allocation: Allocation, *, is_silent: bool, kind: int) -> None:
        """Update the node's record and allocation; pending placements stay."""
        capacity = free_resources_of(node, allocation)
        self.node, self.allocation = node, allocation
        # A node without a pod is near only to itself.
        self._near = node.pod or f"\0{node.name}"
        self.is_silent, self.kind = is_silent, kind
        self.is_open = not (is_silent or node.closed_by)
        self.cpu = capacity.free_cpu_thousandths
        self.memory = capacity.free_memory_bytes
        self.places = most_on(node) - len(allocation.replicas)
        self.models = {
            position: one.model
            for position, one in enumerate(node.devices)
            if one.uuid in capacity.free
        }
        self.model = "|".join(sorted(set(self.models.values())))
        self._positions = {one.uuid: position for position, one in enumerate(node.devices)}
        self._wholes = [
            DeviceShare(uuid=one.uuid, thousandths=WHOLE_DEVICE) for one in node.devices
        ]
        self.instances = {i for i, one in enumerate(node.devices) if one.parent_uuid}
        self.is_mixed = bool(self.instances) or len({one.model for one in node.devices}) > 1
        self.withheld = [one for one in node.devices if one.withheld]
        # Hardware under two names, devices withheld or gone, more held than exists: the capacity freed by
        # such a replica is not simply what it held.
        self._is_recounted = bool(
            self.instances
            or len(capacity.free) < len(node.devices)
            or any(free < 0 for free in capacity.free.values())
            or not allocation.held_thousandths().keys() <= self._positions.keys()
        )
        self.whole: list[int] = []
        self.shared: dict[int, int] = {}
        for uuid, free in capacity.free.items():
            if free == WHOLE_DEVICE:
                self.whole.append(self._positions[uuid])
            elif free > 0:
                self.shared[self._positions[uuid]] = free
        allocated = {one.session_id for one in allocation.replicas}
        for session_id in self._pending.keys() & allocated:
            del self._pending[session_id]
        for placed in self._pending.values():
            for replica in placed:
                self._occupy(replica.resources, replica.devices)

    def change(self, allocation: Allocation) -> bool:
        """Update the allocation, at the cost of the difference; return whether there is one."""
        if self._is_recounted:
            if allocation == self.allocation:
                return False
            self.set(self.node, allocation, is_silent=self.is_silent, kind=self.kind)
            return True
        before, after = self.allocation.replicas, allocation.replicas
        self.allocation = allocation
        count = len(after)
        # The store's records share replicas, so that equal ones are usually the same objects, and new ones are
        # appended. A replica at another position is removed and added.
        kept = 0
        for replica in before:
            if kept < count and after[kept] is replica:
                kept += 1
            else:
                self._vacate(replica.cpu_thousandths, replica.memory_bytes, replica.devices)
        is_other = kept < len(before)
        for replica in after[kept:] if kept < count else ():
            if not self._was_pending(replica):
                is_other = True
                self._occupy(_held(replica), replica.devices)
        return is_other

    def _was_pending(self, replica: AllocatedReplica) -> bool:
        placed = self._pending.pop(replica.session_id, None)
        if placed is None:
            return False
        if len(placed) == 1 and placed[0].rank == replica.rank:
            return True
        left = [one for one in placed if one.rank != replica.rank]
        if left:
            self._pending[replica.session_id] = left
        return len(left) < len(placed)

    @property
    def is_offered(self) -> bool:
        """Whether any session may be placed here."""
        return self.is_open and not self.keeper and not self.promised

    @property
    def state(self) -> RoomState:
        """Its free capacity, without the name."""
        shares = tuple(sorted(self.shared.values())) if self.shared else ()
        which: tuple[object, ...] = ()
        if self.is_mixed:
            which = (*self.whole, tuple(sorted(self.shared.items())))
        return _tuple(
            RoomState,
            (
                self.kind,
                self._near,
                len(self.whole),
                shares,
                self.cpu,
                self.memory,
                self.places,
                which,
            ),
        )

    @property
    def tightness(self) -> Tightness:
        """Best fit takes the smallest; see RoomState."""
        return (*self.state.tightness, self.name)

    @property
    def free(self) -> Free:
        """The same as input of a score; not for mixed rooms."""
        state = self.state
        return Free(self.model, state.whole, state.shares, self.cpu, self.memory)

    def shortage(self, request: Request) -> str:
        """Return why one replica is refused, or all shortages: "GPUs and cores"; "" if it fits."""
        refused = refusal(self.node, request) or (KEPT if self.keeper else "")
        if refused:
            return refused
        wanted = resources_on(self.node, request)
        is_short = {
            "GPUs": request.gpu_thousandths > 0 and not self._devices_for(request),
            "cores": wanted.cpu_thousandths > self.cpu,
            "memory": wanted.memory_bytes > self.memory,
        }
        if short := [what for what, is_it in is_short.items() if is_it]:
            return SHORT_AND.join(short)
        return "" if self.places > 0 else "full of small replicas"

    def holds(self, request: Request) -> int:
        """Return the number of replicas of the request that fit here."""
        if refusal(self.node, request):
            return 0
        return self.holds_of(request, resources_on(self.node, request))

    def holds_of(self, request: Request, wanted: Resources) -> int:
        """Return the same if the node does not refuse it, and each replica gets `wanted`."""
        most = self.places
        if wanted.cpu_thousandths:
            most = min(most, self.cpu // wanted.cpu_thousandths)
        if wanted.memory_bytes:
            most = min(most, self.memory // wanted.memory_bytes)
        gpu = request.gpu_thousandths
        if gpu >= WHOLE_DEVICE:
            count = gpu // WHOLE_DEVICE
            most = min(most, len(self.wholes_of(count, request)) // count)
        elif gpu:
            in_shared = sum(free // gpu for free, _ in self.opened_for(request))
            unopened = len(self.wholes_of(1, request))
            most = min(most, in_shared + unopened * (WHOLE_DEVICE // gpu))
        return max(most, 0)

    def alike_for(self, request: Request) -> Alike:
        """Return the environment of its replicas here; a gang combines only equal ones."""
        is_contained = self.node.isolation is Isolation.CONTAINER
        model = self._model_for(request.gpu_model) if request.gpu_thousandths else ""
        return (model, self.node.gang_network, is_contained)

    def _model_for(self, gpu_model: str) -> str:
        if not gpu_model:
            return self.model
        meant = {one for one in self.models.values() if is_model(one, gpu_model)}
        return "|".join(sorted(meant))

    def _wholes_for(self, count: int, gpu_model: str = "") -> list[int]:
        """Return positions of free devices from which one replica may take `count`.

        A CUDA process computes on one MIG instance at most (NVIDIA, "MIG User Guide").
        """
        if not self.is_mixed:
            return self.whole
        bars_instances = count > 1 and self.instances
        return [
            position
            for position in self.whole
            if is_model(self.models[position], gpu_model)
            and not (bars_instances and position in self.instances)
        ]

    def wholes_of(self, count: int, request: Request) -> list[int]:
        """Return the same without avoided devices."""
        wholes = self._wholes_for(count, request.gpu_model)
        avoided = self._avoided(request)
        return [position for position in wholes if position not in avoided] if avoided else wholes

    def _avoided(self, request: Request) -> frozenset[int]:
        """Return positions of devices that the request avoids."""
        if not request.avoids:
            return frozenset()
        return frozenset(self._positions[one] for one in request.avoids if one in self._positions)

    def has_any(self, avoided: frozenset[str]) -> bool:
        """Return whether the node or one of its devices is among these."""
        return self.name in avoided or not avoided.isdisjoint(self._positions)

    def opened_for(self, request: Request) -> list[tuple[int, int]]:
        """Return opened devices that hold one share of the request: free thousandths, and position."""
        avoided = self._avoided(request)
        return [
            (free, position)
            for position, free in self.shared.items()
            if free >= request.gpu_thousandths
            and position not in avoided
            and (not self.is_mixed or is_model(self.models[position], request.gpu_model))
        ]

    def hole_for(self, gpu_model: str) -> int:
        """Return the maximum whole devices of a model for one replica."""
        several, alone = (len(self._wholes_for(count, gpu_model)) for count in (2, 1))
        return max(several, min(alone, 1))

    def take(
        self, request: Request, wanted: Resources, rank: int, session_id: str, left: int = 0
    ) -> ReplicaPlacement:
        """Place one replica that fits; it is pending until an allocation contains it.

        Args:
            request: of its session.
            wanted: its `resources_on` this node.
            rank: of the replica.
            session_id: its session.
            left: take a share from a device with so many thousandths free; 0: from the fullest.
        """
        shares = tuple(self._devices_for(request, left))
        self._occupy(wanted, shares)
        return self._pend(rank, shares, wanted, session_id)

    def take_whole(
        self, count: int, wanted: Resources, rank: int, session_id: str
    ) -> ReplicaPlacement:
        """Do the same for a replica with whole devices, in a room that is not mixed."""
        wholes, whole = self._wholes, self.whole
        shares: tuple[DeviceShare, ...]
        if count == 1:
            shares = (wholes[whole.pop(0)],)
        else:
            shares = tuple([wholes[one] for one in whole[:count]])
            del whole[:count]
        self.places -= 1
        self.cpu -= wanted.cpu_thousandths
        self.memory -= wanted.memory_bytes
        return self._pend(rank, shares, wanted, session_id)

    def _pend(
        self, rank: int, shares: tuple[DeviceShare, ...], wanted: Resources, session_id: str
    ) -> ReplicaPlacement:
        placed = _tuple(ReplicaPlacement, (rank, self.name, shares, wanted, False))
        if session_id in self._pending:
            self._pending[session_id].append(placed)
        else:
            self._pending[session_id] = [placed]
        return placed

    def put(self, placed: ReplicaPlacement, session_id: str) -> None:
        """Take the same devices for a session as an earlier `take`."""
        self._occupy(placed.resources, placed.devices)
        self._pending.setdefault(session_id, []).append(placed)

    def drop(self, session_id: str) -> bool:
        """Release a session's pending placements; return whether there were any."""
        dropped = self._pending.pop(session_id, ())
        if not dropped:
            return False
        if self._is_recounted:
            # Its devices may not be offered any more.
            self.set(self.node, self.allocation, is_silent=self.is_silent, kind=self.kind)
            return True
        for placed in dropped:
            wanted = placed.resources
            self._vacate(wanted.cpu_thousandths, wanted.memory_bytes, placed.devices)
        return True

    def without(self, sessions: Container[str]) -> NodeCapacity:
        """Return the room without these sessions."""
        kept = tuple(one for one in self.allocation.replicas if one.session_id not in sessions)
        other = NodeCapacity(self.node, replace(self.allocation, replicas=kept), kind=self.kind)
        for session_id, placed in self._pending.items():
            for replica in placed if session_id not in sessions else ():
                other._occupy(replica.resources, replica.devices)
        return other

    def occupants(self) -> frozenset[str]:
        """Return all sessions here, including pending ones."""
        allocated = (one.session_id for one in self.allocation.replicas)
        return frozenset((*allocated, *self._pending))

    @property
    def has_twice(self) -> bool:
        """Whether a session here also has a pending placement here."""
        return bool(self._pending) and any(
            one.session_id in self._pending for one in self.allocation.replicas
        )

    def free_thousandths(self) -> int:
        """Return the free thousandths of all its devices."""
        return len(self.whole) * WHOLE_DEVICE + sum(self.shared.values())

    def held_thousandths(self, sessions: Container[str]) -> int:
        """Return the thousandths of its devices held by other sessions, including pending ones."""
        held = sum(
            one.gpu_thousandths
            for one in self.allocation.replicas
            if one.session_id not in sessions
        )
        return held + sum(
            one.resources.gpu_thousandths
            for session_id, placed in self._pending.items()
            if session_id not in sessions
            for one in placed
        )

    def _devices_for(self, request: Request, left: int = 0) -> list[DeviceShare]:
        gpu = request.gpu_thousandths
        if gpu >= WHOLE_DEVICE:
            count = gpu // WHOLE_DEVICE
            wholes = self.wholes_of(count, request)[:count]
            return [self._wholes[one] for one in wholes] if len(wholes) == count else []
        if gpu == 0:
            return []
        opened = self.opened_for(request)
        if left:
            opened = [one for one in opened if one[0] == left]
        chosen = [min(opened)[1]] if opened else self.wholes_of(1, request)[:1]
        return [DeviceShare(uuid=self._wholes[one].uuid, thousandths=gpu) for one in chosen]

    def _occupy(self, wanted: Resources, shares: Sequence[DeviceShare]) -> None:
        self.places -= 1
        self.cpu -= wanted.cpu_thousandths
        self.memory -= wanted.memory_bytes
        for share in shares:
            position = self._positions.get(share.uuid, -1)
            free = self.shared.pop(position, 0)
            if not free and position in self.whole:
                self.whole.remove(position)
                free = WHOLE_DEVICE
            if free < share.thousandths:
                self._is_recounted = True
            elif free > share.thousandths:
                self.shared[position] = free - share.thousandths

    def _vacate(self, cpu: int, memory: int, shares: Sequence[DeviceShare]) -> None:
        self.places += 1
        self.cpu += cpu
        self.memory += memory
        for share in shares:
            position = self._positions.get(share.uuid)
            if position is None:
                continue
            free = share.thousandths
            if self.shared:
                free += self.shared.pop(position, 0)
            if free >= WHOLE_DEVICE:
                insort(self.whole, position)
            else:
                self.shared[position] = free


def _held(replica: AllocatedReplica) -> Resources:
    return Resources(
        gpu_thousandths=replica.gpu_thousandths,
        cpu_thousandths=replica.cpu_thousandths,
        memory_bytes=replica.memory_bytes,
    )


def empty_room(node: Node) -> NodeCapacity:
    """Return the room of a node without sessions and withheld devices."""
    if any(device.withheld for device in node.devices):
        node = replace(node, devices=tuple(replace(one, withheld="") for one in node.devices))
    return NodeCapacity(node, Allocation(node=node.name))


def alone(room: NodeCapacity) -> Tie:
    """Return a tie with only this room."""
    tie = Tie(room.state, (), -1)
    tie.add(room.name, room)
    return tie
