"""Marks checkpoints, media and artifacts as lost once their nodes will not send them any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.state.replica_reports import SETTLED_WITHIN_S

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.state.references import References
    from nsml.common.clock import Clock

MOST_WORDS: Final = 500
"""Max characters of a reason."""

_log = structlog.get_logger()


class Overdue:
    """Marks overdue uploads as lost."""

    def __init__(self, *, history: History, references: References, clock: Clock) -> None:
        self._history = history
        self._references = references
        self._clock = clock

    async def settle(self) -> None:
        """Mark overdue uploads without a report as lost. A later report from a node overrides this."""
        catalogue, media = self._history.catalogue, self._history.media
        artifacts = self._history.artifacts
        for event, unsettled, lose in (
            ("checkpoints.lost", catalogue.unsettled_checkpoints, catalogue.lose_checkpoints),
            ("media.lost", media.unsettled, media.lose),
            ("artifacts.lost", artifacts.unsettled, artifacts.lose),
        ):
            for one in await unsettled():
                session = await self._references.by_id(one.session_id)
                if session is None:
                    continue  # removed meanwhile
                if why := why_lost(session, one.attempt, one.rank, self._clock.time()):
                    count = await lose(one, why)
                    _log.warning(
                        event, session=session.name, rank=one.rank, count=count, reason=why
                    )


def why_lost(session: Session, attempt: int, rank: int, now: float) -> str:
    """Return why a replica's data, unsent at `now` (Unix seconds), is lost; "" if it may still be sent."""
    ended = next((one for one in session.attempts if one.number == attempt), None)
    if ended is None or now - ended.ended_at < SETTLED_WITHIN_S:
        return ""
    if attempt == session.attempt and any(
        one.rank == rank and one.phase is not ReplicaPhase.FINALIZED for one in session.replicas
    ):
        return ""  # its node is there, and needs more time to send it all
    node = ended.nodes[rank] if rank < len(ended.nodes) else "its node"
    return f"{node} did not send it within {SETTLED_WITHIN_S / 60:g} minutes of its attempt's end"


def plain(text: str) -> str:
    """Replace characters that a database cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
