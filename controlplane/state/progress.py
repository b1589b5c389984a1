"""What running sessions would lose by being moved, as their nodes say it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Progress

if TYPE_CHECKING:
    from controlplane.state.pending_writes import Draft

SAVING_RANK: Final = 0
"""The replica that saves for its gang."""

WORTH_WRITING_S: Final = 10.0
"""By so much a checkpoint must be newer to be noted: an age that is told again is never quite the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """What a node says of a replica. `since_saved_s`: age of its newest checkpoint; None: none is there."""

    node: str
    session_id: str
    attempt: int
    rank: int
    is_resumable: bool
    since_saved_s: float | None = None


def apply_progress(draft: Draft, report: ProgressReport, now: float) -> bool:
    """Note it; False when it is no news, or not for this node to say.

    What an earlier attempt saved stays saved.
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
