"""Turn a proposed placement into an allocation, if it still fits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.free_resources import free_resources_of
from controlplane.domain.lifecycle import SessionEvent, advance, can
from controlplane.domain.values import AllocatedReplica, Allocation, Device, Replica

if TYPE_CHECKING:
    from controlplane.domain.free_resources import FreeResources
    from controlplane.domain.plan import Placement, ReplicaPlacement
    from controlplane.domain.values import Session
    from controlplane.state.draft import Draft


def place(draft: Draft, placement: Placement, now: float) -> bool:
    """Allocate a whole gang, or nothing. False if it no longer fits or no longer waits."""
    session = draft.session(placement.session_id)
    if session is None or not can(session.state, SessionEvent.PLACED):
        return False
    if len(placement.replicas) != session.spec.replica_count:
        return False
    by_node: dict[str, list[ReplicaPlacement]] = defaultdict(list)
    for replica in placement.replicas:
        if session.avoids & {replica.node, *(share.uuid for share in replica.devices)}:
            return False
        by_node[replica.node].append(replica)
    allocations = []
    for name, replicas in by_node.items():
        allocation = _allocate(draft, name, session, replicas, now)
        if allocation is None:
            return False
        allocations.append(allocation)
    for allocation in allocations:
        draft.put_allocation(allocation)
    draft.place_session(
        replace(
            session,
            state=advance(session.state, SessionEvent.PLACED),
            attempt=session.attempt + 1,
            replicas=tuple(_replica(draft, replica) for replica in placement.replicas),
            stop=None,
            end=None,
            settling=frozenset(),
        )
    )
    return True


def _allocate(
    draft: Draft, name: str, session: Session, replicas: list[ReplicaPlacement], now: float
) -> Allocation | None:
    """Return the node's allocation with the replicas; None if they do not fit."""
    node = draft.node(name)
    if node is None or node.closed_by:
        return None
    held = draft.allocation(name)
    added = tuple(
        AllocatedReplica(
            session_id=session.id,
            attempt=session.attempt + 1,
            rank=replica.rank,
            devices=replica.devices,
            cpu_thousandths=replica.resources.cpu_thousandths,
            memory_bytes=replica.resources.memory_bytes,
            placed_at=now,
        )
        for replica in replicas
    )
    after = replace(held, replicas=held.replicas + added)
    capacity = free_resources_of(node, after)
    # Replicas on withheld devices keep their shares; new ones get none.
    are_offered = all(share.uuid in capacity.free for one in added for share in one.devices)
    return after if are_offered and _is_within(capacity) else None


def _is_within(capacity: FreeResources) -> bool:
    return (
        capacity.free_cpu_thousandths >= 0
        and capacity.free_memory_bytes >= 0
        and all(free >= 0 for free in capacity.free.values())
    )


def _replica(draft: Draft, placed: ReplicaPlacement) -> Replica:
    node = draft.node(placed.node)
    known = {device.uuid: device for device in node.devices} if node else {}
    return Replica(
        rank=placed.rank,
        node=placed.node,
        devices=tuple(
            known.get(share.uuid, Device(uuid=share.uuid, index=0)) for share in placed.devices
        ),
        resources=placed.resources,
        is_near_data=placed.is_near_data,
    )
