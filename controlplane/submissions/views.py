"""Submissions as their viewers see them: shown scores, ranks, and why they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import NsmlError
from controlplane.submissions.convert import Facts, Reevaluation, sees_step, submission_message
from controlplane.submissions.pipeline import Stage
from controlplane.submissions.submissions import may_see_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.history.board_values import SubmissionEntry, SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.records.logs import Logs
    from controlplane.submissions.scoreboards import Scoreboard, Scoreboards
    from controlplane.submissions.session_maker import SessionMaker
    from controlplane.submissions.submissions import Submissions
    from controlplane.submissions.wait_reasons import StepWaits, Waiting
    from nsml.v1 import boards_pb2 as pb

MOST_OUTPUT_BYTES: Final = 4_096
"""Of what an evaluation printed: its end."""


class SubmissionViews:
    """Builds messages."""

    def __init__(
        self,
        *,
        history: History,
        scoreboards: Scoreboards,
        submissions: Submissions,
        maker: SessionMaker,
        logs: Logs,
        step_waits: StepWaits,
    ) -> None:
        self._history = history
        self._scoreboards = scoreboards
        self._submissions = submissions
        self._maker = maker
        self._logs = logs
        self._step_waits = step_waits

    async def one(self, caller: UserCaller, entry: SubmissionEntry) -> pb.Submission:
        """Build the message of one submission, with all that the caller may know."""
        output = ""
        if may_see_private(caller, entry.row):
            output = await self._output(entry)
        next_at = await self._submissions.next_at(entry.row)
        board = await self._board(entry.row) if entry.score is not None else None
        competition = await self._competition(entry.row.team)
        return self._message(
            caller,
            entry,
            board,
            competition=competition,
            output=output,
            next_at=next_at,
            reevaluation=await self._reevaluation(caller, entry.row),
        )

    async def many(
        self, caller: UserCaller, entries: Sequence[SubmissionEntry]
    ) -> list[pb.Submission]:
        """Build messages for a list: without output, re-evaluations, and when the next one is permitted."""
        boards: dict[tuple[str, str], Scoreboard] = {}
        competitions = {
            team: await self._competition(team) for team in {one.row.team for one in entries}
        }
        made = []
        for one in entries:
            key = one.row.dataset_owner, one.row.dataset
            if key not in boards and one.score is not None:
                boards[key] = await self._board(one.row)
            board, competition = boards.get(key), competitions[one.row.team]
            made.append(self._message(caller, one, board, competition=competition))
        return made

    async def _competition(self, team: str) -> str:
        """Return OWNER/NAME of the competition of a submission's team; "": it is of none that is still there."""
        competition_id, slash, _ = team.partition("/")
        found = await self._history.competitions.get(competition_id) if slash else None
        return found.full_name if found is not None else ""

    def _message(
        self,
        caller: UserCaller,
        entry: SubmissionEntry,
        board: Scoreboard | None,
        *,
        competition: str,
        output: str = "",
        next_at: float = 0.0,
        reevaluation: Reevaluation | None = None,
    ) -> pb.Submission:
        row, score = entry
        facts = Facts(
            score=board.score(row.id) if board is not None else None,
            keeps_best=board.keeps_best(row.id) if board is not None else False,
            competition=competition,
            rank=board.rank(row.id) if board is not None else 0,
            evaluation=score.evaluation if score is not None else 0,
            next_at=next_at,
            output=output,
            waiting=self._waits(caller, row),
            reevaluation=reevaluation,
        )
        return submission_message(caller, entry, facts)

    async def _board(self, row: SubmissionRow) -> Scoreboard:
        settings = await self._maker.settings(row.dataset_owner, row.dataset)
        return await self._scoreboards.read(row.dataset_owner, row.dataset, settings)

    def _waits(self, caller: UserCaller, row: SubmissionRow) -> Mapping[Stage, Waiting]:
        """Return why the current step waits."""
        if row.state.is_over:
            return {}
        stage = Stage.EVALUATE if row.prediction_digest else Stage.PREDICT
        predicts = stage is Stage.PREDICT
        waiting = self._step_waits.of(
            session_id=row.predict_session_id if predicts else row.evaluate_session_id,
            message=row.message,
            failing_since=row.failing_since,
            is_shown=sees_step(caller, row, stage),
        )
        return {stage: waiting}

    async def _reevaluation(self, caller: UserCaller, row: SubmissionRow) -> Reevaluation | None:
        """Return the evaluation of a submission in a re-evaluation that is not over, if it is not done."""
        if not row.state.is_over or not row.prediction_digest:
            return None
        scores = await self._history.submissions.scores_of(row.id)
        score = next((one for one in scores if not one.state.is_over), None)
        if score is None:
            return None
        waiting = self._step_waits.of_score(score, is_shown=sees_step(caller, row, Stage.EVALUATE))
        return Reevaluation(score=score, waiting=waiting)

    async def _output(self, entry: SubmissionEntry) -> str:
        """Return the end of what the evaluation printed; "" if its session was removed."""
        row, score = entry
        session_id = row.evaluate_session_id
        if score is not None and score.evaluation > 1 and score.session_id:
            session_id = score.session_id
        if not session_id:
            return ""
        try:
            end = (await self._logs.read(session_id, limit_bytes=1)).end
            start = max(end - MOST_OUTPUT_BYTES, 0)
            page = await self._logs.read(session_id, offset=start, limit_bytes=MOST_OUTPUT_BYTES)
        except NsmlError:
            return ""
        return page.data.decode("utf-8", "replace")
