"""The desired replicas of a node, from its allocation record and its sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import AllocatedReplica, Session
    from controlplane.state.live_state import LiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One replica for a node to run; `hosts` are those of all replicas by rank."""

    held: AllocatedReplica
    session: Session
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All replicas for a node to run.

    `revision` is that of their newest record. Changes seen late may change them without a new
    revision.
    """

    node: str
    revision: int
    assignments: tuple[Assignment, ...]

    @property
    def replicas(self) -> frozenset[tuple[str, int, int]]:
        """Session id, attempt and rank of each."""
        return replicas_of(one.held for one in self.assignments)


def replicas_of(held: Iterable[AllocatedReplica]) -> frozenset[tuple[str, int, int]]:
    """Session id, attempt and rank of each."""
    return frozenset((one.session_id, one.attempt, one.rank) for one in held)


def orders_for(state: LiveState, node: str) -> Orders | None:
    """Return the node's current orders; None while they are unknown, or the node is held."""
    known = state.nodes.get(node)
    if known is not None and known.value.hold is not None and known.value.hold.stands:
        return None
    stored = state.allocations.get(node)
    if stored is None:
        return Orders(node=node, revision=0, assignments=())
    revision = stored.revision
    assignments = []
    for held in stored.value.replicas:
        session = state.sessions.get(held.session_id)
        if session is None:
            return None
        if session.value.stop is not None:
            revision = max(revision, session.revision)
        hosts = tuple(_host(state, replica.node) for replica in session.value.replicas)
        assignments.append(Assignment(held=held, session=session.value, hosts=hosts))
    return Orders(node=node, revision=revision, assignments=tuple(assignments))


def _host(state: LiveState, node: str) -> str:
    stored = state.nodes.get(node)
    return stored.value.host or node if stored else node
