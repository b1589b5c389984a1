"""Ranks the submissions to a dataset, and builds their entries: once for all viewers, with few additions for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.boards.shared_call import SharedCall
from controlplane.domain.boards.public_scores import shown_scores
from controlplane.domain.boards.ranking import ranked
from controlplane.domain.boards.values import (
    BestPer,
    BoardSettings,
    Entry,
    PublicScore,
    SubmissionState,
)
from controlplane.domain.competitions.values import team_of_key
from controlplane.domain.errors import InvalidRequest
from controlplane.history.board_values import entry_of
from controlplane.state.lru import LruDict
from controlplane.wire.chunking import PART_BYTES
from controlplane.wire.times import timestamp
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from controlplane.boards.boards import Board
    from controlplane.domain.boards.ranking import Ranked
    from controlplane.domain.identity import User
    from controlplane.history.board_values import EvaluationState, SubmissionEntry
    from controlplane.history.sql.history import History
    from controlplane.history.sql.submissions import KnownEntries
    from nsml.common.clock import Clock

_KEPT: Final = 256
_KEPT_ENTRIES: Final = 100_000
"""Entries of cached rankings, about a kilobyte each."""
MOST_ARGS: Final = 512
MOST_MEMO: Final = 256
"""Characters of an entry's texts: a thousand entries are one message."""
_HOUR_S: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Which of a ranking's lists: all viewers with the same kind share it."""

    best_per: BestPer
    by_private: bool
    is_manager: bool


class _Row:
    """An entry of a list, built when it is first shown: of thousands of entries an answer has the best ones.

    Attributes:
        group: the user or team of which it is the best; "": all are listed.
    """

    __slots__ = ("_make", "_others", "_own", "entry", "group", "has_score")

    def __init__(
        self,
        entry: SubmissionEntry,
        group: tuple[str, str],
        make: Callable[[], pb.BoardEntry],
        *,
        has_score: bool,
    ) -> None:
        self.entry = entry
        self.group = group
        self.has_score = has_score
        self._make = make
        self._others: Shown | None = None
        self._own: Shown | None = None

    def shown(self, *, is_own: bool) -> Shown:
        """Return it as its participant sees it, or as others do."""
        if self._others is None:
            self._others = _shown(self._make())
        if not is_own:
            return self._others
        if self._own is None:
            message = pb.BoardEntry()
            message.CopyFrom(self._others.message)
            message.is_own = True
            message.cause = int(self.entry.cause)  # type: ignore[assignment]
            self._own = _shown(message)
        return self._own


class Shown(NamedTuple):
    """An entry for some viewers; `encoded`: as a part of an encoded WatchBoardResponse."""

    message: pb.BoardEntry
    encoded: bytes


def _shown(message: pb.BoardEntry) -> Shown:
    return Shown(message, pb.WatchBoardResponse(entries=[message]).SerializeToString())


class _List:
    """The entries of a ranking in order, and where those of each user and team are."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows
        self.scored_count = sum(row.has_score for row in rows)
        self._by_name: dict[tuple[str, str], list[_Row]] = {}
        for row in rows:
            for name in _names(row.entry):
                self._by_name.setdefault(name, []).append(row)

    def of(self, user: User) -> set[_Row]:
        """Return the rows of a user's participant."""
        found = self._by_name.get(("user", user.name), [])
        if user.team:
            found = found + self._by_name.get(("team", user.team), [])
        return {row for row in found if is_of(row.entry, user)}


@dataclass(slots=True)
class SubmissionRanking:
    """The submissions to a dataset, in one version of their scores."""

    settings: BoardSettings
    state: EvaluationState
    evaluation: int
    entries: tuple[SubmissionEntry, ...]
    hour: int
    shown: Mapping[str, float | None] = field(default_factory=dict)
    has_private: bool = False
    _owners: frozenset[str] = frozenset()
    _teams: frozenset[str] = frozenset()
    _lists: dict[_Kind, _List] = field(default_factory=dict)
    _failed: dict[tuple[str, str], list[SubmissionEntry]] = field(default_factory=dict)
    _failed_count: int = 0

    def __post_init__(self) -> None:
        """Find the scores that participants see."""
        settings = self.settings
        self.shown = shown_scores(
            map(entry_of, self.entries),
            settings.public_score,
            settings.ladder_step,
            settings.direction,
        )
        self._owners = frozenset(one.row.owner for one in self.entries)
        self._teams = frozenset(one.row.team for one in self.entries if one.row.team)
        for one in filter(_is_failed, self.entries):
            self._failed_count += 1
            for name in _names(one):
                self._failed.setdefault(name, []).append(one)
        self.has_private = any(
            one.score is not None and one.score.private is not None for one in self.entries
        )

    def is_same(self, other: SubmissionRanking) -> bool:
        """Whether both give the same entries."""
        mine = self.settings, self.state, self.evaluation, self.hour, self.entries
        return mine == (other.settings, other.state, other.evaluation, other.hour, other.entries)

    def viewer_key(self, user: User) -> tuple[str, str]:
        """Users with equal keys see the same, unless one of them manages the board."""
        return (
            user.id if user.name in self._owners else "",
            user.team if user.team in self._teams else "",
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
    ) -> tuple[int, list[Shown]]:
        """Return how many entries a user sees, and the first `most` of those that are listed, best first.

        What it costs grows with `most`, not with the entries, once the first viewer has asked.
        `is_manager`: the user may change the board, and sees everything. `own_only`: the user's participant's.
        """
        kind = _Kind(best_per=best_per, by_private=by_private, is_manager=is_manager)
        listed = self._lists.get(kind)
        if listed is None:
            listed = self._lists[kind] = self._listed(kind)
        rows, own = listed.rows, listed.of(user)
        count = len(self.entries)
        if not is_manager:
            mine = self._failed_of(user)
            count += len(mine) - self._failed_count
            if mine:
                further = self._further(mine, listed, kind)
                own = own.union(further)
                others = [*rows[listed.scored_count :], *further]
                others.sort(key=lambda row: _age(row.entry))
                rows = [*rows[: listed.scored_count], *others]
        if own_only:
            rows = [row for row in rows if row in own]
        shown = [row.shown(is_own=row in own) for row in rows[:most]]
        size = 0
        for place, one in enumerate(shown):
            size += len(one.encoded)
            if size > PART_BYTES:
                return count, shown[:place]
        return count, shown

    def _failed_of(self, user: User) -> list[SubmissionEntry]:
        """Return the failed submissions of a user's participant."""
        found = self._failed.get(("user", user.name), [])
        if user.team:
            found = found + self._failed.get(("team", user.team), [])
        return list({one.row.id: one for one in found if is_of(one, user)}.values())

    def _further(self, failed: Sequence[SubmissionEntry], listed: _List, kind: _Kind) -> list[_Row]:
        """Build the rows of failed submissions, which their participant alone sees."""
        is_best = kind.best_per is not BestPer.NONE
        groups = {row.group for row in listed.rows} if is_best else set()
        return [row for row in self._made(failed, kind) if row.group not in groups]

    def _listed(self, kind: _Kind) -> _List:
        visible = [one for one in self.entries if kind.is_manager or not _is_failed(one)]
        return _List(self._made(visible, kind))

    def _made(self, entries: Sequence[SubmissionEntry], kind: _Kind) -> list[_Row]:
        """Rank entries."""
        by_id = {one.row.id: one for one in entries}
        found = ranked(
            [self._ranked_by(one, kind) for one in entries],
            direction=self.settings.direction,
            best_per=kind.best_per,
            now=(self.hour + 1) * _HOUR_S,
        )
        return [
            _Row(
                by_id[one.entry.id],
                _group(one, kind),
                partial(self._message, by_id[one.entry.id], one, kind),
                has_score=bool(one.rank),
            )
            for one in found
        ]

    def _ranked_by(self, one: SubmissionEntry, kind: _Kind) -> Entry:
        if kind.by_private:
            return entry_of(one, is_private=True)
        entry = entry_of(one)
        shown = self.shown.get(entry.id)
        if self.settings.public_score is PublicScore.EXACT and shown == entry.score:
            return entry
        is_exact = shown == entry.score or self.settings.public_score is PublicScore.EXACT
        return replace(
            entry, score=shown, standard_error=entry.standard_error if is_exact else None
        )

    def _message(self, one: SubmissionEntry, place: Ranked, kind: _Kind) -> pb.BoardEntry:
        row, score = one.row, one.score
        message = pb.BoardEntry(
            rank=place.rank,
            rank_before=place.before,
            owner=row.owner,
            team=team_of_key(row.team),
            score=self.shown.get(row.id),
            submitted_at=timestamp(row.submitted_at),
            session=row.session,
            session_id=row.session_id,
            checkpoint=row.checkpoint,
            args=row.args[:MOST_ARGS],
            memo=row.memo[:MOST_MEMO],
            submission_id=row.id,
            state=int(one.state),  # type: ignore[arg-type]
            gpu_seconds=row.gpu_seconds,
            rank_low=place.interval.low,
            rank_high=place.interval.high,
            standard_error=place.entry.standard_error,
            trend=() if kind.by_private and not kind.is_manager else place.trend,
        )
        if kind.is_manager:
            message.cause = int(one.cause)  # type: ignore[assignment]
            message.is_duplicate = place.is_duplicate
            if score is not None:
                if score.private is not None:
                    message.private_score = score.private
                message.is_unstable = score.checked is not None and score.checked != score.score
        return message


class SubmissionBoards:
    """Reads the submissions of boards."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._calls: LruDict[tuple[Board, int], SharedCall[SubmissionRanking]] = LruDict(_KEPT)
        self._known: LruDict[tuple[str, int], SubmissionRanking] = LruDict(
            _KEPT_ENTRIES, weigh=lambda kept: len(kept.entries) + 1
        )
        self._rows: LruDict[tuple[str, int], KnownEntries] = LruDict(
            _KEPT_ENTRIES, weigh=lambda known: len(known) + 1
        )

    async def ranking(self, board: Board, evaluation: int = 0) -> SubmissionRanking:
        """Return the ranking of a board in a version of its scores, 0: the one that is shown.

        The same object while nothing changed.
        """
        key = board, evaluation
        call = self._calls.get(key)
        if call is None:
            call = SharedCall(lambda: self._read(board, evaluation))
            self._calls.keep(key, call)
        return await call()

    async def _read(self, board: Board, evaluation: int) -> SubmissionRanking:
        submissions = self._history.submissions
        # The version first: what is shown meanwhile is newer, never older.
        state = await submissions.evaluation(board.owner, board.name)
        version = evaluation or state.shown
        key = board.full_name, evaluation
        read = await submissions.read_again(
            board.owner, board.name, version, before=self._rows.get(key)
        )
        self._rows.keep(key, read)
        made = SubmissionRanking(
            settings=board.settings,
            state=state,
            evaluation=version,
            entries=read.entries,
            hour=math.floor(self._clock.time() / _HOUR_S),
        )
        known = self._known.get(key)
        if known is not None and known.is_same(made):
            return known
        self._known.keep(key, made)
        return made


def check_evaluation(ranking: SubmissionRanking, *, is_manager: bool) -> None:
    """Raise InvalidRequest for a version that there is not, or that only the board's owner sees until it is shown."""
    newest = ranking.state.newest if is_manager else ranking.state.shown
    if not 1 <= ranking.evaluation <= newest:
        raise InvalidRequest(
            f"there is no version {ranking.evaluation} of the scores", why=f"the newest is {newest}"
        )


def is_of(one: SubmissionEntry, user: User) -> bool:
    """Whether a user is the participant: the one who submitted, or of the team for which it was submitted."""
    row = one.row
    is_same = row.owner == user.name and (not row.owner_id or row.owner_id == user.id)
    return is_same or bool(row.team and row.team == user.team)


def _is_failed(one: SubmissionEntry) -> bool:
    return one.state is SubmissionState.FAILED


def _age(one: SubmissionEntry) -> tuple[float, str]:
    return one.row.submitted_at, one.row.id


def _group(one: Ranked, kind: _Kind) -> tuple[str, str]:
    match kind.best_per:
        case BestPer.NONE:
            return ("", "")
        case BestPer.USER:
            return ("user", one.entry.owner)
        case BestPer.TEAM:
            return one.entry.participant


def _names(one: SubmissionEntry) -> list[tuple[str, str]]:
    """Return the keys of those whose entry it may be."""
    row = one.row
    return [("user", row.owner), ("team", row.team)] if row.team else [("user", row.owner)]
