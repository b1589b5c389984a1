"""Removes the sessions of steps that are not kept any more, and stops those without a submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from controlplane.domain.boards.values import SubmissionState
from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.lifecycle import SessionState
from controlplane.history.sql.submissions import KeptUntil
from controlplane.store.interface import StoreError
from controlplane.submissions.pipeline import Stage
from controlplane.submissions.session_maker import step_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.history.board_values import SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.sessions.remove import Remover
    from controlplane.state.live_state import LiveState
    from controlplane.state.references import References
    from controlplane.submissions.step_sessions import StepSessions
    from nsml.common.clock import Clock

CLEANED_AT_ONCE: Final = 100
KEPT_PREDICT_S: Final = 600.0
"""How long the session of a prediction stays after the submission is over: nobody may read what it wrote."""
KEPT_SCORED_S: Final = 86_400.0
"""How long the session of an evaluation stays that gave a score; the dataset's owner reads what it printed."""
KEPT_FAILED_S: Final = 7 * 86_400.0
"""How long others stay: of evaluations that failed, and of predictions of dry runs."""
_log = structlog.get_logger()


class SessionCleanup:
    """Removes the sessions of steps.

    Args:
        leads: whether this control plane surely leads.
    """

    def __init__(
        self,
        *,
        history: History,
        state: LiveState,
        references: References,
        sessions: StepSessions,
        remover: Remover,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._history = history
        self._submissions = history.submissions
        self._state = state
        self._references = references
        self._sessions = sessions
        self._remover = remover
        self._clock = clock
        self._leads = leads

    async def clean(self) -> None:
        """Remove sessions of submissions that have been over for long enough, with what they recorded."""
        await self._stop_orphans()
        now = self._clock.time()
        before = KeptUntil(
            predicted=now - KEPT_PREDICT_S, scored=now - KEPT_SCORED_S, failed=now - KEPT_FAILED_S
        )
        for row in await self._submissions.with_sessions(before, limit=CLEANED_AT_ONCE):
            for stage, session_id in kept_too_long(row, now):
                tries = row.predict_tries if stage is Stage.PREDICT else row.evaluate_tries
                if self._leads() and await self._all_removed(row, stage, session_id, tries):
                    gone: dict[str, Any] = {f"{stage}_session_id": ""}
                    await self._submissions.change(row.id, {row.state}, **gone)
        for score in await self._submissions.scores_with_sessions(
            limit=CLEANED_AT_ONCE, before=now - KEPT_SCORED_S
        ):
            of = await self._submissions.get(score.submission_id)
            if of is None or not self._leads():
                continue
            given = Stage.EVALUATE, score.session_id, score.tries, score.evaluation
            if await self._all_removed(of, *given):
                await self._submissions.change_score(
                    score.submission_id, score.evaluation, {score.state}, session_id=""
                )

    async def _stop_orphans(self) -> None:
        """Stop sessions of submissions that are gone, with their dataset: nobody takes their results."""
        steps = [
            one.value
            for one in self._state.sessions.values()
            if one.value.spec.submission_id
            and not one.value.state.is_ended
            and one.value.state is not SessionState.FINALIZING
        ]
        known = await self._submissions.known({one.spec.submission_id for one in steps})
        for session in steps:
            if session.spec.submission_id not in known and self._leads():
                await self._sessions.stop(session, "its dataset was removed, with its submissions")

    async def _all_removed(
        self, row: SubmissionRow, stage: Stage, session_id: str, tries: int, evaluation: int = 0
    ) -> bool:
        """Remove the session of a step and those of its earlier tries; False: it has to be tried again later."""
        owner = row.owner if stage is Stage.PREDICT else row.dataset_owner
        for number in range(1, tries):
            request = owner, step_request(row.id, stage, number, evaluation)
            live = self._state.by_request(*request)
            earlier = live or await self._history.catalogue.session_by_request(*request)
            if earlier is not None and not await self._removed(earlier.id):
                return False
        return await self._removed(session_id)

    async def _removed(self, session_id: str) -> bool:
        """Remove a session; False: it has to be tried again later."""
        session = await self._references.by_id(session_id)
        if session is None:
            return True
        if not session.state.is_ended:
            return False
        try:
            await self._remover.remove(session)
        except NotFound:
            return True
        except (NsmlError, StoreError) as error:
            _log.warning("submissions.session_not_removed", session=session_id, reason=str(error))
            return False
        return True


def kept_too_long(row: SubmissionRow, now: float) -> list[tuple[Stage, str]]:
    """Return the sessions of a submission that is over, which have been kept for as long as they should."""
    is_scored = row.state is SubmissionState.SCORED
    predict_s = KEPT_FAILED_S if row.is_test else KEPT_PREDICT_S
    evaluate_s = KEPT_SCORED_S if is_scored else KEPT_FAILED_S
    kept = (
        (Stage.PREDICT, row.predict_session_id, predict_s),
        (Stage.EVALUATE, row.evaluate_session_id, evaluate_s),
    )
    return [
        (stage, session_id)
        for stage, session_id, kept_s in kept
        if session_id and now >= row.ended_at + kept_s
    ]
