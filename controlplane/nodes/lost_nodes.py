"""Effects of a node's silence on its sessions, and proofs that they are gone.

Each decision is about one session, because a node may run more of them than fit into a
transaction. If interrupted, the rest is done at the next registration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.values import Cause, Exit, Node
from controlplane.state.replica_reports import Report, apply_report, follow_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.domain.values import Replica, Session
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState

LOST_AFTER_MARGIN_S: Final = 30.0
"""Added to lost_after and grace: the shim counts from the agent's own last contact, which may have
been a little later than ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Why replicas are known to be gone, and since when.

    `last_word_at` is the last known contact with their node, else `now`: without any contact here,
        it may have run them until a moment ago.
    """

    cause: Cause
    message: str
    now: float
    last_word_at: float


def sessions_of(state: LiveState, node: str) -> list[str]:
    """Return ids of sessions with a non-finalized replica there, whether it holds resources or not."""
    return [
        session.id
        for session in state.sessions_on(node)
        if any(
            one.node == node and one.phase is not ReplicaPhase.FINALIZED for one in session.replicas
        )
    ]


def contact_changed(draft: Draft, session_id: str, unheard: frozenset[str], now: float) -> None:
    """Update the session after a node fell silent or came back: it is UNKNOWN, or no longer."""
    session = draft.session(session_id)
    if session is None:
        return
    followed = follow_replicas(session, unheard, started_at=now)
    if followed is not session:
        draft.put_session(followed)


def lose(draft: Draft, session_id: str, node: str, proof: Proof, unheard: frozenset[str]) -> None:
    """Mark the session's replicas on the node as lost."""
    session = draft.session(session_id)
    for one in session.replicas if session else ():
        if session and one.node == node:
            apply_report(draft, _loss(session, one, proof), unheard, proof.now)


def settle(
    draft: Draft,
    session_id: str,
    node: str,
    *,
    reports: Sequence[Report],
    proof: Proof,
    unheard: frozenset[str],
    is_held: bool = False,
) -> None:
    """Apply a node's complete report: the session's replicas missing from it are lost.

    A placed replica never reported by the node has not begun: its order stands.
    Nothing is lost on a held node: missing replicas may have ended in the lost history.
    """
    for report in reports:
        apply_report(draft, _since_last_word(report, proof), unheard, proof.now)
    if is_held:
        contact_changed(draft, session_id, unheard, proof.now)
        return
    has = {(report.attempt, report.rank) for report in reports}
    session = draft.session(session_id)
    for one in session.replicas if session else ():
        if session is None or one.node != node or one.phase is ReplicaPhase.PLACED:
            continue
        if (session.attempt, one.rank) not in has:
            apply_report(draft, _loss(session, one, proof), unheard, proof.now)
    contact_changed(draft, session_id, unheard, proof.now)


def put_node(draft: Draft, node: Node) -> None:
    """Write a node and its hold; its drain stays, and so does a fence of the same boot."""
    known = draft.node(node.name)
    if known is not None:
        fence = known.fence if is_fenced(known, node.boot_id) else None
        node = replace(node, drain=known.drain, fence=fence)
    if known is None or replace(known, registered_at=node.registered_at) != node:
        draft.put_node(node)


def _since_last_word(report: Report, proof: Proof) -> Report:
    """Date the report to its replica's end: between the node's last contact and now.

    Events during the node's silence may have made others of the gang fail, with reports at once.
    """
    if report.exit is None:
        return report
    if report.exit.cause is Cause.NODE_LOST:  # found gone: its end was not observed
        return replace(report, heard_at=proof.last_word_at)
    ended_at = min(max(report.exit.ended_at, proof.last_word_at), proof.now)
    return replace(report, heard_at=ended_at)


def open_node(draft: Draft, name: str, boot_id: str) -> None:
    """Lift fence and hold once its agent has ended all unwanted replicas."""
    node = draft.node(name)
    if node is None:
        return
    fence = None if is_fenced(node, boot_id) else node.fence
    is_served = node.hold is None or node.hold.lifted_by or not node.hold.is_of_orders
    opened = replace(node, fence=fence, hold=None if is_served else node.hold)
    if opened != node:
        draft.put_node(opened)


def is_fenced(node: Node, boot_id: str) -> bool:
    """Whether the node was fenced in this boot of its machine."""
    return node.fence is not None and node.fence.boot_id == boot_id


def given_up(node: Node, boot_id: str) -> frozenset[tuple[str, int, int]]:
    """Return replicas declared gone by a fence in this boot: session id, attempt, rank of each."""
    if node.fence is None or not is_fenced(node, boot_id):
        return frozenset()
    return node.fence.replicas


def _loss(session: Session, replica: Replica, proof: Proof) -> Report:
    ran = max(proof.last_word_at - replica.started_at, 0.0) if replica.started_at else 0.0
    return Report(
        node=replica.node,
        session_id=session.id,
        attempt=session.attempt,
        rank=replica.rank,
        phase=ReplicaPhase.FINALIZED,
        at=proof.now,
        exit=Exit(cause=proof.cause, message=proof.message, ended_at=proof.now, ran_for_s=ran),
        heard_at=proof.last_word_at,
    )
