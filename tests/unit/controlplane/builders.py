"""Domain values for tests: what is not said is ordinary."""

from __future__ import annotations

import itertools
from typing import Any

from controlplane.domain.changes import (
    AllocationChanged,
    ContactChanged,
    NodeChanged,
    SessionChanged,
)
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Device,
    DeviceShare,
    Drain,
    Isolation,
    Node,
    Resources,
    Session,
    SessionSpec,
)
from tests.unit.controlplane.snapshot import ClusterSnapshot

GIB = 1 << 30
_ids = itertools.count(1)


def new_id() -> str:
    number, text = next(_ids), ""
    for _ in range(16):
        number, digit = divmod(number, 32)
        text = "abcdefghijklmnopqrstuvwxyz234567"[digit] + text
    return f"s{text}"


def node(name: str = "a", gpus: int = 2, **facts: Any) -> Node:
    cpu, memory = facts.pop("cpu", 8000), facts.pop("memory", 64 * GIB)
    facts.setdefault("isolation", Isolation.NAMESPACE)
    model = facts.pop("model", "M")
    if facts.pop("draining", False):
        facts["drain"] = Drain(asked_by="root")
    return Node(
        name=name,
        boot_id=facts.pop("boot_id", "boot1"),
        capacity=Resources(gpu_thousandths=gpus * 1000, cpu_thousandths=cpu, memory_bytes=memory),
        devices=tuple(Device(uuid=f"{name}-{i}", index=i, model=model) for i in range(gpus)),
        **facts,
    )


def session(gpu: int = 1000, replicas: int = 1, **facts: Any) -> Session:
    number = next(_ids)
    spec = facts.pop("spec", {})
    resources = Resources(
        gpu_thousandths=gpu,
        cpu_thousandths=facts.pop("cpu", 0),
        memory_bytes=facts.pop("memory", 0),
    )
    owner = facts.pop("owner", "kim")
    return Session(
        id=facts.pop("id", None) or new_id(),
        name=facts.pop("name", f"{owner}/None/{number}"),
        owner=owner,
        spec=SessionSpec(argv=("true",), resources=resources, replica_count=replicas, **spec),
        created_at=facts.pop("created_at", float(number)),
        request_id=facts.pop("request_id", f"r{number}"),
        **facts,
    )


def held(node_name: str, *shares: tuple[str, int], cpu: int = 0, memory: int = 0) -> Allocation:
    replica = AllocatedReplica(
        session_id=new_id(),
        attempt=1,
        rank=0,
        devices=tuple(DeviceShare(uuid=uuid, thousandths=part) for uuid, part in shares),
        cpu_thousandths=cpu,
        memory_bytes=memory,
    )
    return Allocation(node=node_name, replicas=(replica,))


def cluster(*things: Node | Session | Allocation, silent: tuple[str, ...] = ()) -> ClusterSnapshot:
    """A snapshot of nodes, queued sessions and allocations."""
    changes: list[Any] = [ContactChanged(name=name, is_silent=True) for name in silent]
    for thing in things:
        match thing:
            case Node():
                changes.append(NodeChanged(node=thing))
            case Session():
                changes.append(SessionChanged(session=thing))
            case Allocation():
                changes.append(AllocationChanged(allocation=thing))
    return ClusterSnapshot().apply(changes, revision=7)
