"""Builds the entries of boards of datasets: encoded once for all viewers, with few additions for each."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.boards.ranking import NO_INTERVAL, group_of
from controlplane.domain.competitions.values import team_of_key
from controlplane.domain.errors import InvalidRequest
from controlplane.state.lru import LruDict
from controlplane.wire.chunking import PART_BYTES
from controlplane.wire.times import timestamp
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from controlplane.boards.boards import Board
    from controlplane.domain.boards.ranking import RankInterval
    from controlplane.domain.boards.values import BestPer, Entry
    from controlplane.domain.identity import User
    from controlplane.history.board_values import SubmissionEntry
    from controlplane.submissions.scoreboards import Scoreboard, Scoreboards

_KEPT_ENTRIES: Final = 100_000
"""Entries of cached rankings, about a kilobyte each."""
MOST_ARGS: Final = 512
MOST_MEMO: Final = 256
"""Characters of an entry's texts: a thousand entries are one message."""
_TAG: Final = bytes([pb.WatchBoardResponse.ENTRIES_FIELD_NUMBER << 3 | 2])
"""Of an entry in an encoded WatchBoardResponse: a field with a length."""
_LOW_BITS: Final = 0x7F


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Which of a ranking's lists: all viewers with the same kind share it."""

    best_per: BestPer
    by_private: bool
    is_manager: bool


class _Place(NamedTuple):
    """What an entry's place on the board adds to it, and changes most often."""

    rank: int = 0
    interval: RankInterval = NO_INTERVAL


class _Facts(NamedTuple):
    """All else that an entry is made of."""

    entry: SubmissionEntry
    public: Entry
    before: int = 0
    trend: tuple[float, ...] = ()
    is_duplicate: bool = False


class _Row:
    """An entry of a list as its viewers see it, each form encoded once.

    Fields of an encoded message may come in parts: what changes with every score of others is a part of its own.
    """

    __slots__ = ("_body", "_others", "_own", "facts", "place")

    def __init__(self, facts: _Facts, place: _Place, body: bytes) -> None:
        self.facts = facts
        self.place = place
        self._body = body
        self._others: bytes | None = None
        self._own: bytes | None = None

    @property
    def others(self) -> bytes:
        """As others see it: a part of an encoded WatchBoardResponse."""
        if self._others is None:
            part = _place_message(self.place)
            self._others = _encoded(self._body + part.SerializeToString())
        return self._others

    @property
    def own(self) -> bytes:
        """As its participant sees it."""
        if self._own is None:
            part = _place_message(self.place)
            part.is_own = True
            part.cause = int(self.facts.entry.cause)  # type: ignore[assignment]
            self._own = _encoded(self._body + part.SerializeToString())
        return self._own

    def moved(self, place: _Place) -> _Row:
        """Return it in another place."""
        return _Row(self.facts, place, self._body)


def _place_message(place: _Place) -> pb.BoardEntry:
    rank, (low, high) = place
    return pb.BoardEntry(rank=rank, rank_low=low, rank_high=high)


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
        self._first: list[bytes] = []

    def seen_by(self, user: User, *, own_only: bool, most: int) -> list[bytes]:
        """Return the first `most` entries that a user sees, encoded; what it costs grows with `most` alone."""
        own = self._board.ids_of(user)
        places = self._places(own)
        failed = [] if self._kind.is_manager else self._failed(own)
        if own_only:
            scored = [self._row(at).own for at in places[:most] if at < self._listing.scored]
            others = [self._row(at) for at in places[:most] if at >= self._listing.scored]
            rest = [row.own for row in _by_age(others, failed)]
            return [*scored, *rest][:most]
        shown = self._shown(most)
        for at in places:
            if at < most:
                shown[at] = self._row(at).own
        scored_count = self._listing.scored
        if failed and scored_count < most:
            is_own = set(map(id, failed)) | {id(self._row(at)) for at in places if at < most}
            others = [self._row(at) for at in range(scored_count, len(shown))]
            shown[scored_count:] = [
                row.own if id(row) in is_own else row.others for row in _by_age(others, failed)
            ]
        return shown[:most]

    def _shown(self, most: int) -> list[bytes]:
        """Return the first entries as others see them."""
        for at in range(len(self._first), min(most, len(self._listing))):
            self._first.append(self._row(at).others)
        return self._first[:most]

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
        return [self._made(_Facts(one, public[one.row.id]), _Place()) for one in seen.values()]

    def _row(self, at: int) -> _Row:
        row = self._at.get(at)
        if row is None:
            board, listing, kind = self._board, self._listing, self._kind
            _, public = listing.keyed[at]
            facts = _Facts(
                board.entries[public.id],
                public,
                self._before.get(group_of(public, kind.best_per), 0),
                board.trend(public, kind.best_per, by_private=kind.by_private),
                kind.is_manager and listing.is_duplicate(public),
            )
            place = _Place(listing.rank(at), listing.interval(public))
            row = self._at[at] = self._made(facts, place)
        return row

    def _made(self, facts: _Facts, place: _Place) -> _Row:
        known = self.rows.get(facts.public.id)
        if known is not None and known.facts == facts:
            row = known if known.place == place else known.moved(place)
        else:
            row = _Row(facts, place, self._body(facts))
        self.rows[facts.public.id] = row
        return row

    def _body(self, facts: _Facts) -> bytes:
        row, score = facts.entry
        message = pb.BoardEntry(
            rank_before=facts.before,
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
            trend=facts.trend,
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
    heads: dict[tuple[Board, int, bool], bytes] = field(default_factory=dict)
    """Encoded boards without entries, by how many entries the viewer sees and whether the viewer manages it."""
    _rows: dict[_Kind, dict[str, _Row]] = field(default_factory=dict)
    _lists: dict[_Kind, _List] = field(default_factory=dict)

    def after(self, board: Scoreboard) -> SubmissionRanking:
        """Return the ranking of a later scoreboard, with the rows of this one."""
        return SubmissionRanking(board, _rows=self._rows)

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
    ) -> Sequence[bytes]:
        """Return the first `most` entries of those that are listed for a user, best first.

        Each is a part of an encoded WatchBoardResponse; all are at most one message. `own_only`: the user's participant's.
        """
        kind = _Kind(best_per=best_per, by_private=by_private, is_manager=is_manager)
        listed = self._lists.get(kind)
        if listed is None:
            rows = self._rows.setdefault(kind, {})
            listed = self._lists[kind] = _List(self.board, kind, rows)
        return _fitting(listed.seen_by(user, own_only=own_only, most=most))


class SubmissionBoards:
    """Ranks the submissions of boards."""

    def __init__(self, scoreboards: Scoreboards) -> None:
        self._scoreboards = scoreboards
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
        if known is not None and known.board is found:
            return known
        made = SubmissionRanking(found) if known is None else known.after(found)
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


def _fitting(encoded: list[bytes]) -> list[bytes]:
    """Return as many as fit into a message."""
    if sum(map(len, encoded)) <= PART_BYTES:
        return encoded
    return encoded[: bisect_right(list(accumulate(map(len, encoded))), PART_BYTES)]


def _encoded(body: bytes) -> bytes:
    """Return an encoded entry as a part of an encoded WatchBoardResponse."""
    return _prefix(len(body)) + body


@cache
def _prefix(length: int) -> bytes:
    """Return the tag and the length, seven bits a byte, the low ones first."""
    parts = [_TAG]
    while length > _LOW_BITS:
        parts.append(bytes([length & _LOW_BITS | 0x80]))
        length >>= 7
    return b"".join([*parts, bytes([length])])


def _by_age(rows: Iterable[_Row], failed: Iterable[_Row]) -> Iterable[_Row]:
    """Return rows without a score in their order."""
    return merge(rows, failed, key=lambda row: _age(row.facts.entry))


def _age(one: SubmissionEntry) -> tuple[float, str]:
    return one.row.submitted_at, one.row.id
