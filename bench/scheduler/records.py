"""What the store would hold of a replayed cluster, and tells the scheduler's index as it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.free_resources import free_resources_of
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    WHOLE_DEVICE,
    AllocatedReplica,
    Allocation,
    Cause,
    Device,
    EndedAttempt,
    Isolation,
    Node,
    Replica,
    Resources,
)
from controlplane.scheduler import RULES, Cluster, ClusterIndex, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.changes import Change
    from controlplane.domain.free_resources import FreeResources
    from controlplane.domain.plan import Placement, Plan
    from controlplane.domain.values import Session


def node_of(name: str, model: str, gpus: int, *, cpu_thousandths: int, memory_bytes: int) -> Node:
    """A node that takes everybody's sessions; all nodes share one network."""
    return Node(
        name=name,
        boot_id="boot",
        capacity=Resources(
            gpu_thousandths=gpus * WHOLE_DEVICE,
            cpu_thousandths=cpu_thousandths,
            memory_bytes=memory_bytes,
        ),
        devices=tuple(Device(uuid=f"{name}-{one}", index=one, model=model) for one in range(gpus)),
        isolation=Isolation.CONTAINER,
        pod="one",
    )


class Records:
    """Nodes, and the sessions that wait or run on them; the index hears of each change at once.

    Args:
        nodes: of the cluster.
        rules: of giving way, as an administrator sets them.

    Attributes:
        index: what the control plane's leader keeps.
        sessions: those that wait or run, by id.
    """

    def __init__(self, nodes: Iterable[Node], rules: Rules = RULES) -> None:
        self.index = ClusterIndex(Cluster(rules))
        self.sessions: dict[str, Session] = {}
        self._allocations: dict[str, Allocation] = {}
        self._nodes = {node.name: node for node in nodes}
        self.index.apply(NodeChanged(node=node) for node in self._nodes.values())

    def capacities(self) -> Iterable[FreeResources]:
        """Each node, and what is free on it."""
        for node in self._nodes.values():
            yield free_resources_of(
                node, self._allocations.get(node.name, Allocation(node=node.name))
            )

    def submit(self, session: Session) -> None:
        """A session waits from now on, or is another one than it was."""
        self.sessions[session.id] = session
        self.index.apply([SessionChanged(session=session)])

    def remove(self, session_id: str) -> None:
        """One that waits does so no more."""
        del self.sessions[session_id]
        self.index.apply([SessionRemoved(session_id=session_id)])

    def commit(self, plan: Plan, now: float) -> None:
        """All of a plan is written: what it places runs from now on."""
        changes: list[Change] = []
        for placement in plan.placements:
            changes += self._start(placement, now)
        self.index.apply(changes)
        self.index.settle(plan, ())

    def end(self, session_id: str) -> None:
        """One that ran is through, and exported."""
        session = self.sessions.pop(session_id)
        ended = replace(session, state=SessionState.SUCCEEDED, replicas=())
        freed = self._free(session)
        self.index.apply(
            [*freed, SessionChanged(session=ended), SessionRemoved(session_id=ended.id)]
        )

    def requeue(self, session_id: str, now: float) -> None:
        """One that ran was stopped for others, and waits again."""
        session = self.sessions[session_id]
        attempt = EndedAttempt(
            number=session.attempt,
            cause=Cause.PREEMPTED,
            placed_at=session.started_at,
            ended_at=now,
            gpu_thousandths=sum(one.resources.gpu_thousandths for one in session.replicas),
            held_s=now - session.started_at,
        )
        freed = self._free(session)
        queued = self.sessions[session_id] = replace(
            session,
            state=SessionState.QUEUED,
            replicas=(),
            started_at=0.0,
            attempts=(*session.attempts, attempt),
            progress=replace(session.progress, saved_at=now),
        )
        self.index.apply([*freed, SessionChanged(session=queued)])

    def _start(self, placement: Placement, now: float) -> list[Change]:
        session = self.sessions[placement.session_id]
        placed = self.sessions[session.id] = replace(
            session,
            state=SessionState.RUNNING,
            attempt=session.attempt + 1,
            started_at=now,
            replicas=tuple(
                Replica(
                    rank=one.rank,
                    node=one.node,
                    devices=self._devices(one.node, [share.uuid for share in one.devices]),
                    resources=one.resources,
                    started_at=now,
                )
                for one in placement.replicas
            ),
        )
        added: dict[str, list[AllocatedReplica]] = {}
        for one in placement.replicas:
            added.setdefault(one.node, []).append(
                AllocatedReplica(
                    session_id=placed.id,
                    attempt=placed.attempt,
                    rank=one.rank,
                    devices=one.devices,
                    cpu_thousandths=one.resources.cpu_thousandths,
                    memory_bytes=one.resources.memory_bytes,
                    placed_at=now,
                )
            )
        told = [self._allocate(node, (*self._held(node), *more)) for node, more in added.items()]
        return [*told, SessionChanged(session=placed)]

    def _free(self, session: Session) -> list[Change]:
        nodes = dict.fromkeys(one.node for one in session.replicas)
        return [
            self._allocate(
                node, tuple(one for one in self._held(node) if one.session_id != session.id)
            )
            for node in nodes
        ]

    def _devices(self, node: str, uuids: list[str]) -> tuple[Device, ...]:
        return tuple(one for one in self._nodes[node].devices if one.uuid in uuids)

    def _held(self, node: str) -> tuple[AllocatedReplica, ...]:
        known = self._allocations.get(node)
        return known.replicas if known else ()

    def _allocate(self, node: str, replicas: tuple[AllocatedReplica, ...]) -> AllocationChanged:
        after = self._allocations[node] = Allocation(node=node, replicas=replicas)
        return AllocationChanged(allocation=after)
