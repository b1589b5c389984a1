"""Advances the evaluations of a re-evaluation: makes their sessions, and takes their scores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from controlplane.domain.boards.values import SubmissionState
from controlplane.submissions import row_changes
from controlplane.submissions.pipeline import (
    Action,
    Fail,
    GiveUp,
    Stage,
    Start,
    Started,
    Take,
    next_evaluation,
)
from controlplane.submissions.session_maker import Refused, Waits
from controlplane.submissions.submission_advance import MOST_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.history.board_values import ScoreRow, SubmissionEntry, SubmissionRow
    from controlplane.history.sql.submissions import SqlSubmissions
    from controlplane.submissions.results import Results
    from controlplane.submissions.session_maker import SessionMaker
    from controlplane.submissions.step_sessions import StepSessions
    from nsml.common.clock import Clock


class ReevaluationAdvance:
    """Carries out what an evaluation of a re-evaluation needs next.

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

    async def advance(self, entry: SubmissionEntry) -> None:
        """Advance the evaluation of a submission in the version of its score, as far as it goes now."""
        row, score = entry.row, entry.score
        for _ in range(MOST_ACTIONS):
            if score is None or score.state.is_over:
                return
            step = await self._sessions.step(score.session_id, Stage.EVALUATE)
            now = self._clock.time()
            action = next_evaluation(score.session_id, score.tries, score.started_at, step, now)
            if not self._leads():
                return
            score = await self._carry_out(row, score, action)

    async def _carry_out(
        self, row: SubmissionRow, score: ScoreRow, action: Action
    ) -> ScoreRow | None:
        """Return the changed score; None: nothing more can be done now."""
        change = partial(
            self._submissions.change_score, row.id, score.evaluation, {SubmissionState.EVALUATING}
        )
        now, done = self._clock.time(), None
        match action:
            case Start(number=number):
                fields, is_made = await self._start(row, score, number)
                changed = await change(**fields) if fields else None
                done = changed if is_made else None
            case Started(at=at):
                done = await change(started_at=at)
            case GiveUp(session_id=session_id):
                await self._sessions.give_up(session_id)
            case Take(session_id=session_id):
                found = await self._results.scores(session_id)
                if isinstance(found, Fail):
                    done = await change(**row_changes.failed(found, now))
                else:
                    done = await change(**row_changes.scored(now), **row_changes.values(found))
            case Fail():
                done = await change(**row_changes.failed(action, now))
        return done

    async def _start(
        self, row: SubmissionRow, score: ScoreRow, number: int
    ) -> tuple[dict[str, Any], bool]:
        """Return the fields to change, and whether to go on."""
        made = await self._maker.evaluate(row, number, evaluation=score.evaluation)
        match made:
            case Waits(reason=reason):
                return {"message": reason} if score.message != reason else {}, False
            case Refused(fail=fail):
                return row_changes.failed(fail, self._clock.time()), False
            case None:
                return {}, False
        return row_changes.score_begun(made, number), True
