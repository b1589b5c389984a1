"""What silence of a node means for its sessions, and which proof ends it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Cause, Exit, Node, ReplicaPhase
from controlplane.operations.reports import Report, apply_report, follow_replicas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.values import Replica, Session
    from controlplane.operations.draft import Draft

LOST_AFTER_MARGIN_S: Final = 30.0
"""Added to lost_after and grace: the shim counts from the agent's own last contact, which may have
been a little later than ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Why replicas are known to be gone, and since when."""

    cause: Cause
    message: str
    now: float


def contact_changed(draft: Draft, node: str, unheard: frozenset[str], now: float) -> None:
    """Sessions of a node that fell silent, or was heard again, are UNKNOWN, or no longer."""
    for session in _sessions_on(draft, node):
        followed = follow_replicas(session, unheard, started_at=now)
        if followed is not session:
            draft.put_session(followed)


def lose(
    draft: Draft, node: str, session_ids: Iterable[str], proof: Proof, unheard: frozenset[str]
) -> None:
    """The replicas of these sessions on the node are gone."""
    for session_id in session_ids:
        session = draft.session(session_id)
        for one in session.replicas if session else ():
            if session and one.node == node:
                apply_report(draft, _loss(session, one, proof), unheard, proof.now)


def register(
    draft: Draft, node: Node, reports: tuple[Report, ...], unheard: frozenset[str], now: float
) -> None:
    """Write what a node is and what it says it has; what it had and no longer has is lost.

    A replica that was placed and of which the node never spoke has not begun: its order stands.
    """
    known = draft.node(node.name)
    if known is not None:
        node = replace(node, draining=known.draining)
    if known is None or replace(known, registered_at=node.registered_at) != node:
        draft.put_node(node)
    for report in reports:
        apply_report(draft, report, unheard, now)
    has = {(report.session_id, report.attempt, report.rank) for report in reports}
    booted = known is not None and known.boot_id != node.boot_id
    message = f"node {node.name} was restarted" if booted else f"node {node.name} has it no longer"
    proof = Proof(cause=Cause.NODE_LOST, message=message, now=now)
    for session in _sessions_of(draft, node.name):
        for one in session.replicas:
            if one.node != node.name or one.phase is ReplicaPhase.PLACED:
                continue
            if (session.id, session.attempt, one.rank) not in has:
                apply_report(draft, _loss(session, one, proof), unheard, now)
    contact_changed(draft, node.name, unheard, now)


def _loss(session: Session, replica: Replica, proof: Proof) -> Report:
    ran = max(proof.now - session.started_at, 0.0) if session.started_at else 0.0
    return Report(
        node=replica.node,
        session_id=session.id,
        attempt=session.attempt,
        rank=replica.rank,
        phase=ReplicaPhase.FINALIZED,
        at=proof.now,
        exit=Exit(cause=proof.cause, message=proof.message, ended_at=proof.now, ran_for_s=ran),
    )


def _sessions_on(draft: Draft, node: str) -> Iterator[Session]:
    """Those that hold something there."""
    held = {held.session_id for held in draft.allocation(node).replicas}
    for session_id in sorted(held):
        session = draft.session(session_id)
        if session is not None:
            yield session


def _sessions_of(draft: Draft, node: str) -> Iterator[Session]:
    """Those with a replica there that is not finalized, whether it holds anything or not."""
    for session_id in sorted(draft.state.sessions):
        session = draft.session(session_id)
        if session is not None and any(
            one.node == node and one.phase is not ReplicaPhase.FINALIZED for one in session.replicas
        ):
            yield session
