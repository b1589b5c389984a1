"""The sessions of submissions' steps, as they are now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.lifecycle import SessionState
from controlplane.submissions.pipeline import Result, Stage, Step
from nsml.spec import submission_exits as exits

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.history.board_values import SubmissionRow
    from controlplane.history.sql.submissions import SqlSubmissions
    from controlplane.sessions.stop import Stopper
    from controlplane.state.live_state import LiveState
    from controlplane.state.references import References
    from controlplane.submissions.results import Results

GIVEN_UP_BY: Final = "nsml"
_RESULT: Final = {Stage.PREDICT: exits.PREDICTION, Stage.EVALUATE: exits.EVALUATION}


class StepSessions:
    """Finds the sessions of steps, and stops them."""

    def __init__(
        self,
        *,
        submissions: SqlSubmissions,
        state: LiveState,
        references: References,
        results: Results,
        stopper: Stopper,
    ) -> None:
        self._submissions = submissions
        self._state = state
        self._references = references
        self._results = results
        self._stopper = stopper

    async def step(self, session_id: str, stage: Stage) -> Step | None:
        """Return the session of a step as it is now; None: there is none, or it was removed."""
        session = await self._references.by_id(session_id) if session_id else None
        if session is None:
            return None
        if not session.state.is_ended or session.end is None:
            return Step(
                session_id=session.id,
                started_at=session.started_at,
                is_held=session.state is SessionState.HELD,
            )
        result = Result.NONE
        if not session.end.exit_code:
            result = await self._results.state(session.id, _RESULT[stage])
        return Step(
            session_id=session.id,
            started_at=session.started_at,
            ended_at=session.ended_at,
            cause=session.end.cause,
            exit_code=session.end.exit_code,
            is_given_up=session.stop is not None and session.stop.asked_by == GIVEN_UP_BY,
            dataset_version=session.spec.datasets[0].version if session.spec.datasets else 0,
            result=result,
        )

    async def first_evaluation(self, row: SubmissionRow) -> Step | None:
        """Return the session of a submission's first evaluation; a re-evaluation may have been shown since it began."""
        step = await self.step(row.evaluate_session_id, Stage.EVALUATE)
        if step is None or step.cause is None:
            return step
        state = await self._submissions.evaluation(row.dataset_owner, row.dataset)
        wanted = state.shown_dataset_version or row.dataset_version
        return replace(step, shown=state.shown, is_outdated=step.dataset_version != wanted)

    async def give_up(self, session_id: str) -> None:
        """Stop a session that is held: nobody may release it, and the step is tried again."""
        session = self._state.session(session_id)
        if session is not None and session.state is SessionState.HELD:
            await self.stop(session, "it could not be started")

    async def stop(self, session: Session, reason: str) -> None:
        """Stop a session, which counts as given up by the platform."""
        await self._stopper.stop(session, asked_by=GIVEN_UP_BY, grace_s=None, reason=reason)
