"""Why a step waits, as people see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.domain.lifecycle import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.board_values import ScoreRow
    from controlplane.state.live_state import LiveState

FAULT: Final = "the platform has a fault, and tries again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a step waits.

    Attributes:
        reason: one sentence; "": it does not wait.
        failing_since: Unix time since when it has failed by a fault of the platform; 0.0: it does not.
    """

    reason: str = ""
    failing_since: float = 0.0


NOTHING: Final = Waiting()


class StepWaits:
    """Says why steps wait.

    Args:
        queued: why a queued session waits, if this control plane knows.
    """

    def __init__(self, *, state: LiveState, queued: Callable[[str], Explanation | None]) -> None:
        self._state = state
        self._queued = queued

    def of(self, *, session_id: str, message: str, failing_since: float, is_shown: bool) -> Waiting:
        """Say why a step that is not over waits.

        Args:
            session_id: of its newest try; "": there is none.
            message: why no session could be made.
            failing_since: as its row has it.
            is_shown: whether the reader may know what only its user knows: a quota, a project, the nodes.
        """
        if failing_since:
            return Waiting(reason=FAULT, failing_since=failing_since)
        session = self._state.session(session_id) if session_id else None
        if session is not None and not session.state.is_ended:
            return Waiting(reason=self._of_session(session, is_shown=is_shown))
        shown = message if is_shown else ""
        none_yet = (
            "its session has ended" if session_id else "its session is made when it is its turn"
        )
        return Waiting(reason=shown or none_yet)

    def of_score(self, score: ScoreRow, *, is_shown: bool) -> Waiting:
        """Say why an evaluation of a re-evaluation waits; `is_shown`: as in `of`."""
        return self.of(
            session_id=score.session_id,
            message=score.message,
            failing_since=score.failing_since,
            is_shown=is_shown,
        )

    def _of_session(self, session: Session, *, is_shown: bool) -> str:
        if session.state is SessionState.QUEUED:
            found = self._queued(session.id) if is_shown else None
            return found.reason if found is not None else "it is queued"
        if session.state is SessionState.PREPARING:
            waits = [one.waiting for one in session.replicas if one.waiting]
            return waits[0] if waits and is_shown else "its node prepares it"
        if session.state is SessionState.FINALIZING:
            return "its result is being sent"
        if session.state is SessionState.HELD:
            return "its session could not be started, and is tried again"
        return ""
