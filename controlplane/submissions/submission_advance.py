"""Advances a submission: makes the sessions of its steps, takes their results, and ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from controlplane.domain.boards.values import UNFINISHED, SubmissionCause, SubmissionState
from controlplane.history.board_values import ScoreRow
from controlplane.submissions import row_changes
from controlplane.submissions.pipeline import (
    Action,
    Fail,
    GiveUp,
    Predicted,
    Stage,
    Start,
    Started,
    Step,
    Take,
    Wait,
    next_step,
)
from controlplane.submissions.session_maker import Refused, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controlplane.history.board_values import SubmissionRow
    from controlplane.history.sql.submissions import SqlSubmissions
    from controlplane.submissions.results import Results
    from controlplane.submissions.session_maker import SessionMaker
    from controlplane.submissions.step_sessions import StepSessions
    from nsml.common.clock import Clock

MOST_ACTIONS: Final = 8
"""Of one submission in a sweep."""
START_WITHIN_S: Final = 7 * 86_400.0
"""How long a step may wait for its session to be made, from the submission or the end of the step before."""
_STAGE_STATE: Final = {
    Stage.PREDICT: SubmissionState.PREDICTING,
    Stage.EVALUATE: SubmissionState.EVALUATING,
}
_log = structlog.get_logger()


class SubmissionAdvance:
    """Carries out what a submission needs next.

    Args:
        leads: whether this control plane surely leads.
    """

    def __init__(
        self,
        *,
        submissions: SqlSubmissions,
        sessions: StepSessions,
        maker: SessionMaker,
        results: Results,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._submissions = submissions
        self._sessions = sessions
        self._maker = maker
        self._results = results
        self._clock = clock
        self._leads = leads

    async def advance(self, row: SubmissionRow) -> bool:
        """Advance a submission as far as it goes now; return whether more is possible in a moment.

        No change reports that a result which is on its way is kept, nor that this control plane leads again.
        """
        for _ in range(MOST_ACTIONS):
            predict = evaluate = None
            if row.prediction_digest:
                evaluate = await self._sessions.first_evaluation(row)
            else:
                predict = await self._sessions.step(row.predict_session_id, Stage.PREDICT)
            action = next_step(row, predict, evaluate, self._clock.time())
            if action is None:
                return False
            if not self._leads():
                return True
            changed = await self._carry_out(row, action, predict, evaluate)
            if changed is None:
                return _is_result_on_its_way(predict or evaluate, action)
            row = changed
        return False

    async def _carry_out(
        self, row: SubmissionRow, action: Action, predict: Step | None, evaluate: Step | None
    ) -> SubmissionRow | None:
        """Return the changed row; None: nothing more can be done now."""
        done: SubmissionRow | None = None
        match action:
            case Start(stage=stage, number=number):
                done = await self._start(row, stage, number)
            case Started(stage=stage, at=at):
                done = await self._change(
                    row, {f"{stage}_started_at": at, "state": _STAGE_STATE[stage], "message": ""}
                )
            case GiveUp(session_id=session_id):
                await self._sessions.give_up(session_id)
            case Take(stage=Stage.PREDICT, session_id=session_id):
                done = await self._take_prediction(row, session_id, predict)
            case Take(session_id=session_id):
                done = await self._take_score(row, session_id, evaluate)
            case Predicted(why=why):
                done = await self._end_predicted(row, why, evaluate)
            case Fail():
                done = await self._fail(row, action, predict, evaluate)
        return done

    async def _end_predicted(
        self, row: SubmissionRow, why: str, evaluate: Step | None = None
    ) -> SubmissionRow | None:
        """End a dry run with a prediction that cannot be scored."""
        return await self._change(row, row_changes.predicted(why, self._clock.time(), evaluate))

    async def _start(self, row: SubmissionRow, stage: Stage, number: int) -> SubmissionRow | None:
        make = self._maker.predict if stage is Stage.PREDICT else self._maker.evaluate
        made = await make(row, number)
        match made:
            case Waits(reason=reason):
                since = row.predict_ended_at if stage is Stage.EVALUATE else 0.0
                if self._clock.time() > (since or row.submitted_at) + START_WITHIN_S:
                    why = f"it could not start within 7 days: {reason}"
                    return await self._fail(row, Fail(SubmissionCause.PLATFORM, why))
                if row.message == reason:
                    return None
                await self._change(row, {"message": reason})
                return None
            case Refused(fail=fail):
                return await self._fail(row, fail)
            case None:
                # A dry run without a small test set: that it predicts is all there is to know.
                return await self._end_predicted(
                    row, "the dataset has no folder test_submit to evaluate it on"
                )
        return await self._change(row, row_changes.begun(stage, made, number))

    async def _take_prediction(
        self, row: SubmissionRow, session_id: str, step: Step | None
    ) -> SubmissionRow | None:
        settings = await self._maker.settings(row.dataset_owner, row.dataset)
        found = await self._results.prediction(session_id, settings.prediction_bytes)
        if isinstance(found, Fail):
            return await self._fail(row, found, step)
        return await self._change(
            row,
            {
                "prediction_digest": found,
                "predict_ended_at": step.ended_at if step is not None else 0.0,
                "state": SubmissionState.EVALUATING,
            },
        )

    async def _take_score(
        self, row: SubmissionRow, session_id: str, step: Step | None
    ) -> SubmissionRow | None:
        found = await self._results.scores(session_id)
        if isinstance(found, Fail):
            return await self._fail(row, found, None, step)
        now = self._clock.time()
        ended_at = step.ended_at if step is not None else now
        values = row_changes.values(found)
        return await self._change(
            row,
            {**row_changes.scored(now), "evaluate_ended_at": ended_at},
            score=ScoreRow(submission_id=row.id, ended_at=now, **values),
            if_shown=step.shown if step is not None else 0,
        )

    async def _fail(
        self,
        row: SubmissionRow,
        fail: Fail,
        predict: Step | None = None,
        evaluate: Step | None = None,
    ) -> SubmissionRow | None:
        times = {
            f"{stage}_ended_at": step.ended_at
            for stage, step in ((Stage.PREDICT, predict), (Stage.EVALUATE, evaluate))
            if step is not None and step.ended_at
        }
        _log.info("submission.failed", submission=row.id, cause=fail.cause.name)
        return await self._change(row, {**row_changes.failed(fail, self._clock.time()), **times})

    async def _change(
        self,
        row: SubmissionRow,
        fields: Mapping[str, Any],
        *,
        score: ScoreRow | None = None,
        if_shown: int = 0,
    ) -> SubmissionRow | None:
        return await self._submissions.change(
            row.id, UNFINISHED, score=score, if_shown=if_shown, **fields
        )


def _is_result_on_its_way(step: Step | None, action: Action) -> bool:
    """Whether a step has ended, and its result is not kept yet."""
    return step is not None and step.cause is not None and isinstance(action, Wait)
