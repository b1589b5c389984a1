"""Boards as their viewers see them: messages, shared by all who see the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from controlplane.boards.board_responses import Answer, ShownEntries, encoded_board, fitting
from controlplane.boards.convert import board_message, to_best_per
from controlplane.boards.session_boards import BestOf, MetricOrder
from controlplane.boards.submission_boards import SubmissionRanking, check_evaluation
from controlplane.domain.boards.ranking import NO_INTERVAL, rank_intervals
from controlplane.domain.boards.values import BestPer, BoardKind, Entry, MetricValue, ScoreDirection
from controlplane.domain.errors import Denied, InvalidRequest
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.history.board_values import BoardCounts
from controlplane.state.lru import LruDict
from controlplane.submissions.convert import Reevaluation, reevaluation_step
from controlplane.wire.times import timestamp
from nsml.spec.board_changes import EncodedEntry, Ranks
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.boards.boards import Board
    from controlplane.boards.session_boards import Ranking, SessionBoards, SessionsView
    from controlplane.boards.submission_boards import SubmissionBoards
    from controlplane.domain.boards.ranking import RankInterval
    from controlplane.domain.identity import UserCaller
    from controlplane.history.board_values import EvaluationState
    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock

MOST_ENTRIES: Final = 1_000
FRESH_S: Final = 1.0
"""How long GPU seconds of live sessions are shown as they were."""
_KEPT_ROWS: Final = 500_000
"""Rows of the rankings of cached answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a board a request asks for; see ListEntriesRequest."""

    best_per: int = 0
    own_only: bool = False
    limit: int = 0
    evaluation: int = 0
    by_private: bool = False

    @property
    def most(self) -> int:
        """Entries of an answer."""
        return min(self.limit, MOST_ENTRIES) or MOST_ENTRIES


class SessionBoardViews:
    """Answers on boards of sessions."""

    def __init__(self, sessions: SessionBoards, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        # With what each was made of: equal keys of another ranking are another answer.
        self._made: LruDict[tuple[object, ...], tuple[Ranking, Board, Answer]] = LruDict(
            _KEPT_ROWS, weigh=lambda kept: len(kept[0].rows) + 1
        )

    async def ranking(self, board: Board) -> Ranking:
        """Return the order of a board's sessions; the same object while nothing changed."""
        return await self._sessions.ranking(_order(board))

    async def answer(
        self, caller: UserCaller, board: Board, ranking: Ranking, wanted: Wanted
    ) -> Answer:
        """Return what the caller sees of a ranking.

        Raises:
            InvalidRequest: the request is one for boards of datasets.
        """
        if wanted.evaluation or wanted.by_private:
            raise InvalidRequest(
                f"{board.full_name} is a board of sessions, which has no evaluation"
            )
        best = _best_of(to_best_per(wanted.best_per, board.settings.best_per))
        may_change = may(caller, CHANGE, board) is ALLOW
        own = caller.user.name if wanted.own_only else ""
        key = (board.full_name, ranking.viewer_key(caller), may_change, best, own, wanted.most)
        known = self._made.get(key)
        now = self._clock.monotonic()
        if known is not None and known[0] is ranking and known[1] == board:
            answer = known[2]
            if now - answer.made_at < FRESH_S:
                return answer
        answer = await self._answer(caller, board, ranking, wanted, best)
        self._made.keep(key, (ranking, board, answer))
        return answer

    async def _answer(
        self, caller: UserCaller, board: Board, ranking: Ranking, wanted: Wanted, best: BestOf
    ) -> Answer:
        order, name = _order(board), caller.user.name
        view = self._sessions.view(ranking, caller, best)
        chosen = [one for one in view.entries if not wanted.own_only or one.row.of.owner == name]
        chosen = chosen[: wanted.most]
        exact = [await self._sessions.exact(one.row, order) for one in chosen]
        errors = await self._sessions.standard_errors(exact, order)
        intervals = _intervals(view, errors, board.settings.direction)
        trends: dict[str, Sequence[float]] = {}
        entries = []
        for ranked, row in zip(chosen, exact, strict=True):
            whose = best.participant(row.of)
            if whose not in trends:
                trends[whose] = view.trend(whose, least_first=order.least_first)
            body = pb.BoardEntry(
                owner=row.of.owner,
                team=row.of.team,
                score=row.score,
                submitted_at=timestamp(row.at),
                session=row.of.name,
                session_id=row.of.id,
                args=row.of.args,
                memo=row.of.memo,
                is_own=row.of.owner == name,
                standard_error=errors.get(row.of.id),
            )
            interval = intervals.get(row.of.id, NO_INTERVAL)
            entry = EncodedEntry(
                body.SerializeToString(deterministic=True),
                Ranks(ranked.rank, ranked.rank_before, interval.low, interval.high),
                trend=tuple(trends[whose]),
                gpu_seconds=self._sessions.gpu_seconds(row.of),
            )
            entries.append(entry)
        message = board_message(board, may_change=may(caller, CHANGE, board) is ALLOW)
        message.entry_count = view.count
        head = encoded_board(message)
        return Answer(head, ShownEntries(fitting(entries)), made_at=self._clock.monotonic())


class SubmissionBoardViews:
    """Answers on boards of datasets."""

    def __init__(self, submissions: SubmissionBoards, clock: Clock) -> None:
        self._submissions = submissions
        self._clock = clock
        self._made: LruDict[tuple[object, ...], tuple[SubmissionRanking, Board, Answer]] = LruDict(
            _KEPT_ROWS, weigh=lambda kept: len(kept[0].board.entries) + 1
        )

    async def ranking(self, board: Board, evaluation: int = 0) -> SubmissionRanking:
        """Return the ranking of a board's submissions; the same object while nothing changed."""
        return await self._submissions.ranking(board, evaluation)

    def answer(
        self, caller: UserCaller, board: Board, ranking: SubmissionRanking, wanted: Wanted
    ) -> Answer:
        """Return what the caller sees of a ranking.

        Raises:
            InvalidRequest: there is no such version of the scores.
            Denied: private scores of another user's board.
        """
        is_manager = may(caller, CHANGE, board) is ALLOW
        if wanted.by_private and not is_manager:
            raise Denied(
                f"the private scores of {board.full_name} are {board.owner}'s",
                why="only its owner and administrators see them",
            )
        check_evaluation(ranking, is_manager=is_manager)
        key = board.full_name, ranking.viewer_key(caller.user), is_manager, wanted
        known = self._made.get(key)
        if known is not None and known[0] is ranking and known[1] == board:
            return known[2]
        answer = self._answer(caller, board, ranking, wanted, is_manager=is_manager)
        self._made.keep(key, (ranking, board, answer))
        return answer

    def _answer(
        self,
        caller: UserCaller,
        board: Board,
        ranking: SubmissionRanking,
        wanted: Wanted,
        *,
        is_manager: bool,
    ) -> Answer:
        shown = ranking.seen_by(
            caller.user,
            best_per=to_best_per(wanted.best_per, board.settings.best_per),
            by_private=wanted.by_private,
            is_manager=is_manager,
            own_only=wanted.own_only,
            most=wanted.most,
        )
        count = ranking.count(caller.user, is_manager=is_manager)
        key = board, count, is_manager
        head = ranking.heads.get(key)
        if head is None:
            found = ranking.board
            message = _submissions_message(
                board,
                found.state._replace(shown=found.evaluation),
                count=count,
                may_change=is_manager,
                has_private=found.has_private,
            )
            if is_manager and found.pending is not None:
                pending = Reevaluation(score=found.pending, waiting=ranking.waiting)
                message.reevaluation_step.CopyFrom(reevaluation_step(pending, sees_session=True))
            head = ranking.heads[key] = encoded_board(message)
        return Answer(head, shown, made_at=self._clock.monotonic())


def _submissions_message(
    board: Board, state: EvaluationState, *, count: int, may_change: bool, has_private: bool
) -> pb.Board:
    """Build the message of a board of a dataset; `state`: with the version that is listed as the one shown."""
    message = board_message(board, may_change=may_change)
    message.entry_count = count
    message.evaluation = state.shown
    message.reevaluated, message.to_reevaluate = state.done, state.of
    message.has_private_scores = has_private
    return message


AnyRanking: TypeAlias = "Ranking | SubmissionRanking"


class BoardViews:
    """Answers on boards of both kinds."""

    def __init__(
        self, sessions: SessionBoardViews, submissions: SubmissionBoardViews, history: History
    ) -> None:
        self._sessions = sessions
        self._submissions = submissions
        self._history = history

    async def ranking(self, board: Board) -> AnyRanking:
        """Return the ranking that a board shows; the same object while nothing changed."""
        if board.kind is BoardKind.METRIC:
            return await self._sessions.ranking(board)
        return await self._submissions.ranking(board)

    async def listed(self, caller: UserCaller, boards: Sequence[Board]) -> list[pb.Board]:
        """Return boards with their numbers, without ranking the submissions of each."""
        user = caller.user
        counts = await self._history.submissions.counts(user.name, user.id, user.team)
        messages = []
        for board in boards:
            if board.kind is BoardKind.METRIC:
                messages.append((await self.answer(caller, board, Wanted(limit=1))).read().board)
                continue
            found = counts.get((board.owner, board.name), BoardCounts())
            is_manager = may(caller, CHANGE, board) is ALLOW
            hidden = 0 if is_manager else found.failed - found.own_failed
            message = _submissions_message(
                board,
                found.state,
                count=found.every - hidden,
                may_change=is_manager,
                has_private=found.has_private,
            )
            messages.append(message)
        return messages

    async def answer(self, caller: UserCaller, board: Board, wanted: Wanted) -> Answer:
        """Return what the caller sees of a board now; raises as the views of its kind."""
        if board.kind is BoardKind.DATASET and wanted.evaluation:
            ranking = await self._submissions.ranking(board, wanted.evaluation)
            return self._submissions.answer(caller, board, ranking, wanted)
        return await self.answer_of(caller, board, await self.ranking(board), wanted)

    async def answer_of(
        self, caller: UserCaller, board: Board, ranking: AnyRanking, wanted: Wanted
    ) -> Answer:
        """Return what the caller sees of a ranking of a board."""
        if isinstance(ranking, SubmissionRanking):
            return self._submissions.answer(caller, board, ranking, wanted)
        return await self._sessions.answer(caller, board, ranking, wanted)


def _intervals(
    view: SessionsView, errors: Mapping[str, float], direction: ScoreDirection
) -> Mapping[str, RankInterval]:
    """Return the ranks between which entries with a standard error are, among all in the view."""
    if not errors:
        return {}
    scored = [
        Entry(
            id=one.row.of.id,
            owner=one.row.of.owner,
            score=one.row.score,
            submitted_at=one.row.at,
            standard_error=errors.get(one.row.of.id),
        )
        for one in view.entries
        if one.rank
    ]
    return rank_intervals(scored, direction)


def _order(board: Board) -> MetricOrder:
    settings = board.settings
    return MetricOrder(
        metric=settings.metric,
        filter=settings.filter,
        owner=board.owner,
        least_first=settings.direction is ScoreDirection.MIN,
        uses_last=settings.value is MetricValue.LAST,
    )


def _best_of(best_per: BestPer) -> BestOf:
    return BestOf(best_per is not BestPer.NONE, by_team=best_per is BestPer.TEAM)
