"""Progress that running sessions would lose if moved, as reported by nodes, and losses of ended attempts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Durable, Progress

if TYPE_CHECKING:
    from controlplane.domain.values import EndedAttempt, Session
    from controlplane.state.draft import Draft

SAVING_RANK: Final = 0
"""The replica that saves for its gang."""

WORTH_WRITING_S: Final = 10.0
"""A checkpoint is recorded if newer by this much: a repeated age is never quite the same."""

DURABLE_EVERY_S: Final = 30.0
"""A running attempt's durable checkpoint is recorded if newer by this much: each costs a write to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """A node's report on a replica. `since_saved_s`: age of its newest checkpoint; None: there is none."""

    node: str
    session_id: str
    attempt: int
    rank: int
    is_resumable: bool
    since_saved_s: float | None = None


def apply_progress(draft: Draft, report: ProgressReport, now: float) -> bool:
    """Record it; False if nothing changed, or if the replica is not on this node.

    Checkpoints of earlier attempts stay.
    """
    session = draft.session(report.session_id)
    if session is None or session.attempt != report.attempt or report.rank != SAVING_RANK:
        return False
    places = {(one.rank, one.node) for one in session.replicas if not one.phase.is_gone}
    if (report.rank, report.node) not in places:
        return False
    known = session.progress
    saved_at = known.saved_at
    if report.since_saved_s is not None:
        at = now - max(report.since_saved_s, 0.0)
        saved_at = at if at > known.saved_at + WORTH_WRITING_S else saved_at
    progress = Progress(is_resumable=report.is_resumable, saved_at=saved_at)
    if progress == known:
        return False
    draft.put_session(replace(session, progress=progress))
    return True


def checkpoint_is_durable(session: Session, attempt: int, saved_at: float) -> Session:
    """Record that a checkpoint, saved by an attempt at `saved_at` (our clock), is in the object store.

    It may arrive after the attempt's end, even while the next one runs: then the ended attempt is completed. An ended
    session is not changed, since it may be charged already.
    """
    if session.state.is_ended:
        return session
    if attempt == session.attempt and session.state.holds_devices:
        known = session.durable
        is_first = known is None or known.attempt != attempt
        if known is not None and not is_first and saved_at < known.until + DURABLE_EVERY_S:
            return session
        return replace(session, durable=Durable(attempt=attempt, until=saved_at))
    attempts = tuple(
        durable_until(one, saved_at) if one.number == attempt else one for one in session.attempts
    )
    return replace(session, attempts=attempts)


def durable_until(attempt: EndedAttempt, saved_at: float) -> EndedAttempt:
    """Return the attempt with a durable checkpoint: saved while it ran, whatever the node's clock says."""
    until = min(max(saved_at, attempt.placed_at), attempt.ended_at)
    return replace(attempt, durable_until=max(until, attempt.durable_until))
