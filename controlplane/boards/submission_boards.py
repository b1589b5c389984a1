"""Builds the entries of boards of datasets: encoded once for all viewers, with few additions for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.boards.board_responses import ShownEntries, fitting
from controlplane.domain.boards.ranking import group_of
from controlplane.domain.competitions.values import team_of_key
from controlplane.domain.errors import InvalidRequest
from controlplane.state.lru import LruDict
from controlplane.submissions.wait_reasons import NOTHING
from controlplane.wire.times import timestamp
from nsml.spec.board_changes import EncodedEntry, Ranks
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.boards.boards import Board
    from controlplane.domain.boards.values import BestPer, Entry
    from controlplane.domain.identity import User
    from controlplane.history.board_values import SubmissionEntry
    from controlplane.submissions.scoreboards import Scoreboard, Scoreboards
    from controlplane.submissions.wait_reasons import StepWaits, Waiting
    from nsml.spec.board_changes import EncodedEntries

_KEPT_ENTRIES: Final = 100_000
"""Entries of cached rankings, about a kilobyte each."""
MOST_ARGS: Final = 512
MOST_MEMO: Final = 256
"""Characters of an entry's texts: a thousand entries are one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Which of a ranking's lists: all viewers with the same kind share it."""

    best_per: BestPer
    by_private: bool
    is_manager: bool


class _Facts(NamedTuple):
    """What an entry is made of, but for what scores of others change."""

    entry: SubmissionEntry
    public: Entry
    is_duplicate: bool = False


class _Row:
    """An entry of a list as its viewers see it, each form encoded once.

    Attributes:
        others: as others than its participant see it.
    """

    __slots__ = ("_own", "facts", "others")

    def __init__(self, facts: _Facts, others: EncodedEntry) -> None:
        self.facts = facts
        self.others = others
        self._own: EncodedEntry | None = None

    @property
    def own(self) -> EncodedEntry:
        """As its participant sees it."""
        if self._own is None:
            others, part = self.others, pb.BoardEntry(is_own=True)
            part.cause = int(self.facts.entry.cause)  # type: ignore[assignment]
            # Fields of an encoded message may come in parts.
            body = others.body + part.SerializeToString()
            self._own = EncodedEntry(body, others.ranks, trend=others.trend)
        return self._own

    def moved(self, ranks: Ranks, trend: tuple[float, ...]) -> _Row:
        """Return it in another place, with another trend."""
        return _Row(self.facts, EncodedEntry(self.others.body, ranks, trend=trend))


class _List:
    """The entries of a ranking in order, as one kind of viewers sees them.

    Args:
        rows: those of the rankings before, by id; those that changed are replaced.
    """

    def __init__(self, board: Scoreboard, kind: _Kind, rows: dict[str, _Row]) -> None:
        self.rows = rows
        self._board = board
        self._kind = kind
        self._listing = board.listing(
            kind.best_per, with_failed=kind.is_manager, by_private=kind.by_private
        )
        self._before = board.ranks_before(kind.best_per, by_private=kind.by_private)
        self._at: dict[int, _Row] = {}
        self._first: dict[int, EncodedEntries] = {}

    def seen_by(self, user: User, *, own_only: bool, most: int) -> ShownEntries:
        """Return the first `most` entries that a user sees; what it costs grows with the user's entries alone."""
        own = self._board.ids_of(user)
        places = self._places(own)
        failed = [] if self._kind.is_manager else self._failed(own)
        if own_only:
            scored = [self._row(at).own for at in places[:most] if at < self._listing.scored]
            others = [self._row(at) for at in places[:most] if at >= self._listing.scored]
            rest = [row.own for row in _by_age(others, failed)]
            return ShownEntries(fitting([*scored, *rest][:most]))
        first = self._shown(most)
        seen = ShownEntries(
            first, {at: self._row(at).own for at in places if at < len(first.entries)}
        )
        scored_count = self._listing.scored
        if not failed or scored_count >= most:
            return seen
        is_own = set(map(id, failed)) | {id(self._row(at)) for at in places if at < most}
        others = [self._row(at) for at in range(scored_count, min(most, len(self._listing)))]
        rest = [row.own if id(row) in is_own else row.others for row in _by_age(others, failed)]
        return ShownEntries(fitting([*seen.entries[:scored_count], *rest][:most]))

    def _shown(self, most: int) -> EncodedEntries:
        """Return the first entries as others see them."""
        most = min(most, len(self._listing))
        first = self._first.get(most)
        if first is None:
            first = self._first[most] = fitting(self._row(at).others for at in range(most))
        return first

    def _places(self, own: Iterable[str]) -> list[int]:
        """Return where entries are listed, in order; those that are not are left out."""
        return sorted(at for one in own if (at := self._listing.index_of(one)) is not None)

    def _failed(self, own: Iterable[str]) -> list[_Row]:
        """Build the rows of failed submissions, which their participant alone sees, the oldest first."""
        public = self._board.public
        seen: dict[object, SubmissionEntry] = {}
        failed = [self._board.entries[one] for one in own if one in self._board.failed]
        for one in sorted(failed, key=_age):
            group = self._listing.group_of(public[one.row.id])
            if not self._listing.has_group(group):
                seen.setdefault(group, one)
        return [self._made(_Facts(one, public[one.row.id]), Ranks(), ()) for one in seen.values()]

    def _row(self, at: int) -> _Row:
        row = self._at.get(at)
        if row is None:
            board, listing, kind = self._board, self._listing, self._kind
            _, public = listing.keyed[at]
            facts = _Facts(
                board.entries[public.id],
                public,
                kind.is_manager and listing.is_duplicate(public),
            )
            ranks = Ranks(
                listing.rank(at),
                self._before.get(group_of(public, kind.best_per), 0),
                *listing.interval(public),
            )
            trend = board.trend(public, kind.best_per, by_private=kind.by_private)
            row = self._at[at] = self._made(facts, ranks, trend)
        return row

    def _made(self, facts: _Facts, ranks: Ranks, trend: tuple[float, ...]) -> _Row:
        row = self.rows.get(facts.public.id)
        if row is None or row.facts != facts:
            row = _Row(facts, EncodedEntry(self._body(facts), ranks, trend=trend))
        elif (row.others.ranks, row.others.trend) != (ranks, trend):
            row = row.moved(ranks, trend)
        self.rows[facts.public.id] = row
        return row

    def _body(self, facts: _Facts) -> bytes:
        row, score = facts.entry
        message = pb.BoardEntry(
            owner=row.owner,
            team=team_of_key(row.team),
            score=self._board.score(row.id),
            submitted_at=timestamp(row.submitted_at),
            session=row.session,
            session_id=row.session_id,
            checkpoint=row.checkpoint,
            args=row.args[:MOST_ARGS],
            memo=row.memo[:MOST_MEMO],
            submission_id=row.id,
            state=int(facts.entry.state),  # type: ignore[arg-type]
            gpu_seconds=row.gpu_seconds,
            standard_error=facts.public.standard_error,
            failing_since=timestamp(0.0 if row.state.is_over else row.failing_since),
        )
        if self._kind.is_manager:
            message.cause = int(facts.entry.cause)  # type: ignore[assignment]
            message.is_duplicate = facts.is_duplicate
            if score is not None:
                if score.private is not None:
                    message.private_score = score.private
                message.is_unstable = score.checked is not None and score.checked != score.score
        return message.SerializeToString()


@dataclass(slots=True)
class SubmissionRanking:
    """The submissions to a dataset, in one version of their scores."""

    board: Scoreboard
    waiting: Waiting = NOTHING
    """Why a re-evaluation that is not over waits; for who manages the board."""
    heads: dict[tuple[Board, int, bool], bytes] = field(default_factory=dict)
    """Encoded boards without entries, by how many entries the viewer sees and whether the viewer manages it."""
    _rows: dict[_Kind, dict[str, _Row]] = field(default_factory=dict)
    _lists: dict[_Kind, _List] = field(default_factory=dict)

    def after(self, board: Scoreboard, waiting: Waiting = NOTHING) -> SubmissionRanking:
        """Return the ranking of this scoreboard or a later one, with the rows of this one."""
        lists = self._lists if board is self.board else {}
        return SubmissionRanking(board, waiting, _rows=self._rows, _lists=lists)

    def viewer_key(self, user: User) -> tuple[str, str]:
        """Users with equal keys see the same, unless one of them manages the board."""
        has = self.board.has_entries_of
        return (
            user.id if has(("user", user.name)) else "",
            user.team if user.team and has(("team", user.team)) else "",
        )

    def count(self, user: User, *, is_manager: bool) -> int:
        """Return how many entries a user sees; `is_manager`: the user may change the board, and sees all."""
        if is_manager:
            return len(self.board.entries)
        return self.board.visible_count + sum(
            map(self.board.failed.__contains__, self.board.ids_of(user))
        )

    def seen_by(
        self,
        user: User,
        *,
        best_per: BestPer,
        by_private: bool,
        is_manager: bool,
        own_only: bool,
        most: int,
    ) -> ShownEntries:
        """Return the first `most` entries of those that are listed for a user, best first.

        All are at most one message. `own_only`: the user's participant's.
        """
        kind = _Kind(best_per=best_per, by_private=by_private, is_manager=is_manager)
        listed = self._lists.get(kind)
        if listed is None:
            rows = self._rows.setdefault(kind, {})
            listed = self._lists[kind] = _List(self.board, kind, rows)
        return listed.seen_by(user, own_only=own_only, most=most)


class SubmissionBoards:
    """Ranks the submissions of boards."""

    def __init__(self, scoreboards: Scoreboards, waits: StepWaits) -> None:
        self._scoreboards = scoreboards
        self._waits = waits
        self._known: LruDict[tuple[str, int], SubmissionRanking] = LruDict(
            _KEPT_ENTRIES, weigh=lambda kept: len(kept.board.entries) + 1
        )

    async def ranking(self, board: Board, evaluation: int = 0) -> SubmissionRanking:
        """Return the ranking of a board in a version of its scores, 0: the one that is shown.

        The same object while nothing changed.
        """
        found = await self._scoreboards.read(board.owner, board.name, board.settings, evaluation)
        key = board.full_name, evaluation
        known = self._known.get(key)
        pending = found.pending
        waiting = self._waits.of_score(pending, is_shown=True) if pending else NOTHING
        if known is not None and known.board is found and known.waiting == waiting:
            return known
        made = SubmissionRanking(found, waiting) if known is None else known.after(found, waiting)
        self._known.keep(key, made)
        return made


def check_evaluation(ranking: SubmissionRanking, *, is_manager: bool) -> None:
    """Raise InvalidRequest for a version that there is not, or that only the board's owner sees until it is shown."""
    board = ranking.board
    newest = board.state.newest if is_manager else board.state.shown
    if not 1 <= board.evaluation <= newest:
        raise InvalidRequest(
            f"there is no version {board.evaluation} of the scores", why=f"the newest is {newest}"
        )


def _by_age(rows: Iterable[_Row], failed: Iterable[_Row]) -> Iterable[_Row]:
    """Return rows without a score in their order."""
    return merge(rows, failed, key=lambda row: _age(row.facts.entry))


def _age(one: SubmissionEntry) -> tuple[float, str]:
    return one.row.submitted_at, one.row.id
