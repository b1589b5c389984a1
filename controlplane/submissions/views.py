"""Submissions as their viewers see them: shown scores, ranks, and why they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import NsmlError
from controlplane.domain.lifecycle import SessionState
from controlplane.submissions.convert import Facts, sees_step, submission_message
from controlplane.submissions.pipeline import Stage
from controlplane.submissions.submissions import may_see_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.board_values import SubmissionEntry, SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.records.logs import Logs
    from controlplane.state.live_state import LiveState
    from controlplane.submissions.scoreboards import Scoreboard, Scoreboards
    from controlplane.submissions.session_maker import SessionMaker
    from controlplane.submissions.submissions import Submissions
    from nsml.v1 import boards_pb2 as pb

MOST_OUTPUT_BYTES: Final = 4_096
"""Of what an evaluation printed: its end."""


class SubmissionViews:
    """Builds messages.

    Args:
        waiting: why a queued session waits, if this control plane knows.
    """

    def __init__(
        self,
        *,
        history: History,
        scoreboards: Scoreboards,
        state: LiveState,
        submissions: Submissions,
        maker: SessionMaker,
        logs: Logs,
        waiting: Callable[[str], Explanation | None],
    ) -> None:
        self._history = history
        self._scoreboards = scoreboards
        self._state = state
        self._submissions = submissions
        self._maker = maker
        self._logs = logs
        self._waiting = waiting

    async def one(self, caller: UserCaller, entry: SubmissionEntry) -> pb.Submission:
        """Build the message of one submission, with all that the caller may know."""
        output = ""
        if may_see_private(caller, entry.row):
            output = await self._output(entry)
        next_at = await self._submissions.next_at(entry.row)
        board = await self._board(entry.row) if entry.score is not None else None
        competition = await self._competition(entry.row.team)
        return self._message(
            caller, entry, board, competition=competition, output=output, next_at=next_at
        )

    async def many(
        self, caller: UserCaller, entries: Sequence[SubmissionEntry]
    ) -> list[pb.Submission]:
        """Build messages for a list: without output, and without when the next one is permitted."""
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
        )
        return submission_message(caller, entry, facts)

    async def _board(self, row: SubmissionRow) -> Scoreboard:
        settings = await self._maker.settings(row.dataset_owner, row.dataset)
        return await self._scoreboards.read(row.dataset_owner, row.dataset, settings)

    def _waits(self, caller: UserCaller, row: SubmissionRow) -> Mapping[Stage, str]:
        """Return why each step waits; "": it does not."""
        return {stage: self._why(caller, row, stage) for stage in Stage}

    def _why(self, caller: UserCaller, row: SubmissionRow, stage: Stage) -> str:
        """Say why a step waits; "": it does not."""
        if row.state.is_over:
            return ""
        is_current = (stage is Stage.EVALUATE) == bool(row.prediction_digest)
        if not is_current:
            return ""
        predicts = stage is Stage.PREDICT
        session_id = row.predict_session_id if predicts else row.evaluate_session_id
        is_shown = sees_step(caller, row, stage)
        session = self._state.session(session_id) if session_id else None
        if session is None or session.state.is_ended:
            # The reason may name what only its user knows: a quota, a project, the nodes.
            shown = row.message if is_shown else ""
            return shown or (
                "its session has ended" if session_id else "its session is made when it is its turn"
            )
        return self._session_waits(session, is_shown=is_shown)

    def _session_waits(self, session: Session, *, is_shown: bool) -> str:
        if session.state is SessionState.QUEUED:
            found = self._waiting(session.id) if is_shown else None
            return found.reason if found is not None else "it is queued"
        if session.state is SessionState.PREPARING:
            waits = [one.waiting for one in session.replicas if one.waiting]
            return waits[0] if waits and is_shown else "its node prepares it"
        if session.state is SessionState.FINALIZING:
            return "its result is being sent"
        if session.state is SessionState.HELD:
            return "its session could not be started, and is tried again"
        return ""

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
