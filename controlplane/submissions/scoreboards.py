"""The submissions to datasets with the scores and ranks that participants see, read and ranked once per change."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.core.shared_call import SharedCall
from controlplane.domain.boards.public_scores import shown_scores, without_improvement
from controlplane.domain.boards.ranking import (
    Listing,
    Order,
    ranks_at,
    trend_group_of,
    trend_of,
)
from controlplane.domain.boards.values import DAY_S, BestPer, PublicScore, SubmissionState
from controlplane.history.board_values import entry_of
from controlplane.state.lru import LruDict
from controlplane.wire.chunking import beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.domain.boards.ranking import Group
    from controlplane.domain.boards.values import BoardSettings, Entry
    from controlplane.domain.identity import User
    from controlplane.history.board_values import SubmissionEntry
    from controlplane.history.sql.history import History
    from controlplane.history.sql.submissions import BoardMark, BoardReading
    from nsml.common.clock import Clock

_KEPT_ENTRIES: Final = 200_000
"""Entries of cached scoreboards, about a kilobyte each."""
_KEPT: Final = 256
_HOUR_S: Final = 3_600.0
Name: TypeAlias = tuple[str, str]
"""Whose entry it may be: "user" or "team", and the name."""


class _TrendKey(NamedTuple):
    group: Group
    is_of_user: bool
    """Of all entries of a user, whatever their teams."""
    by_private: bool


class _Own(NamedTuple):
    """The ids of a user's participant's entries, and the lists in which they were found."""

    of: Sequence[Sequence[str]]
    ids: Sequence[str]


_Key: TypeAlias = "tuple[str, str, BoardSettings, int]"
_ROW_FACTS: Final = attrgetter(
    *("owner", "owner_id", "team", "submitted_at", "ended_at", "state", "cause", "session"),
    *("session_id", "checkpoint", "args", "memo", "gpu_seconds", "prediction_digest"),
    "failing_since",
)
_SCORE_FACTS: Final = attrgetter(
    *("state", "cause", "score", "private", "standard_error", "checked", "row_count"),
)


class Scoreboard:
    """The submissions to a dataset in one version of their scores.

    One made from the one `before` takes over all but the changed entries, and the scores of their participants.

    Attributes:
        entries: by id, without test submissions and re-runs.
        pending: of a re-evaluation that is not over, an evaluation that says why.
        exact, public: what is ranked of each, by id: with the exact score, and with the one that participants see.
        by_name: ids of the entries of a user or a team.
        every, visible: all in order, by scores that participants see, and those that everybody sees: without failed ones.
    """

    def __init__(
        self,
        settings: BoardSettings,
        read: BoardReading,
        *,
        hour: int,
        before: Scoreboard | None = None,
    ) -> None:
        known = None if read.is_whole else before
        self.settings = settings
        self.state = read.state
        self.pending = read.pending
        self.evaluation = read.mark.evaluation
        self.hour = hour
        self.entries: dict[str, SubmissionEntry] = dict(known.entries) if known else {}
        self.public: dict[str, Entry] = dict(known.public) if known else {}
        self.exact: dict[str, Entry] = dict(known.exact) if known else {}
        self.by_name: dict[Name, Sequence[str]] = dict(known.by_name) if known else {}
        self.every: Order = known.every if known else Order(settings.direction)
        self.visible: Order = known.visible if known else Order(settings.direction)
        self.failed: frozenset[str] = known.failed if known else frozenset()
        # Computed when they are asked for.
        self.trends: dict[_TrendKey, tuple[float, ...]] = {}
        self.day_ago: dict[tuple[BestPer, bool], Mapping[Group, int]] = {}
        self._listings: dict[tuple[BestPer, bool, bool], Listing] = {}
        self._no_better: dict[Name, frozenset[str]] = {}
        # Shared by all made from each other: it holds for the very lists of ids that it was made of.
        self.own: dict[tuple[str, str, str], _Own] = known.own if known else {}
        self._update(read.entries, known)
        self.has_private = any(
            one.score is not None and one.score.private is not None for one in self.entries.values()
        )

    def _update(self, changed: Sequence[SubmissionEntry], known: Scoreboard | None) -> None:
        ids = {one.row.id for one in changed}
        public = [
            self._public(name, score)
            for participant in self._put(changed)
            for name, score in self._shown_scores(participant).items()
            if name in ids or score != self.public[name].score
        ]
        if known is not None:
            replaced = [self.public[one.id] for one in public if one.id in self.public]
            self._take_over(known, [*replaced, *public])
        self.public.update((one.id, one) for one in public)
        failed = {name for name in ids if is_failed(self.entries[name])}
        self.failed = self.failed - ids | failed
        self.every = self.every.updated(public)
        self.visible = self.visible.updated(
            [one for one in public if one.id not in failed], gone=failed
        )

    def _take_over(self, known: Scoreboard, touched: Sequence[Entry]) -> None:
        """Take over what does not depend on these entries, as they were and as they are."""
        groups = {group for one in touched for group in (one.participant, ("user", one.owner))}
        self.trends = {
            key: trend
            for key, trend in known.trends.items()
            if not key.by_private and key.group not in groups
        }
        if known.hour == self.hour and all(
            one.score is None or one.scored_at > self._a_day_ago for one in touched
        ):
            self.day_ago = {key: ranks for key, ranks in known.day_ago.items() if not key[1]}

    def _put(self, changed: Sequence[SubmissionEntry]) -> dict[Name, None]:
        """Take changed entries; return the participants whose shown scores may have changed."""
        participants: dict[Name, None] = {}
        touched: dict[Name, list[str]] = {}
        for one in changed:
            exact, known = entry_of(one), self.exact.get(one.row.id)
            if known is not None:
                participants[known.participant] = None
            participants[exact.participant] = None
            if known is None or _names(known) != _names(exact):
                for name in _names(known) if known is not None else ():
                    self._ids_of(name, touched).remove(exact.id)
                for name in _names(exact):
                    self._ids_of(name, touched).append(exact.id)
            self.exact[exact.id] = exact
            self.entries[exact.id] = one
        self.by_name.update(touched)
        return participants

    def _ids_of(self, name: Name, touched: dict[Name, list[str]]) -> list[str]:
        """Return the ids to change, in `touched`: a copy of those of the scoreboard before."""
        if name not in touched:
            touched[name] = list(self.by_name.get(name, ()))
        return touched[name]

    def _shown_scores(self, participant: Name) -> Mapping[str, float | None]:
        settings = self.settings
        return shown_scores(
            self._entries_of(participant),
            settings.public_score,
            settings.ladder_step,
            settings.direction,
        )

    def _entries_of(self, participant: Name) -> list[Entry]:
        own = map(self.exact.__getitem__, self.by_name[participant])
        return [one for one in own if one.participant == participant]

    def _public(self, submission_id: str, shown: float | None) -> Entry:
        exact = self.exact[submission_id]
        if shown == exact.score:
            return exact
        is_exact = self.settings.public_score is PublicScore.EXACT
        return replace(
            exact, score=shown, standard_error=exact.standard_error if is_exact else None
        )

    @property
    def visible_count(self) -> int:
        """How many entries everybody sees: those that did not fail."""
        return len(self.visible.keyed)

    @property
    def _a_day_ago(self) -> float:
        return (self.hour + 1) * _HOUR_S - DAY_S

    def listing(
        self, best_per: BestPer, *, with_failed: bool = False, by_private: bool = False
    ) -> Listing:
        """Return the entries that a board lists, by the scores that participants see or by private ones."""
        key = best_per, with_failed, by_private
        if key not in self._listings:
            order = self.every if with_failed else self.visible
            if by_private:
                order = Order(self.settings.direction).updated(
                    self._private(one.id) for _, one in order.keyed
                )
            self._listings[key] = Listing(order, best_per)
        return self._listings[key]

    def ranks_before(self, best_per: BestPer, *, by_private: bool = False) -> Mapping[Group, int]:
        """Return the ranks a day ago, by group: of the best entry then of a user or team if only the best is listed."""
        key = best_per, by_private
        if key not in self.day_ago:
            order = self.listing(best_per, by_private=by_private).order
            self.day_ago[key] = ranks_at(order, best_per, self._a_day_ago)
        return self.day_ago[key]

    def trend(
        self, entry: Entry, best_per: BestPer, *, by_private: bool = False
    ) -> tuple[float, ...]:
        """Return the best scores so far of an entry's participant, oldest first."""
        group = trend_group_of(entry, best_per)
        key = _TrendKey(group, best_per is BestPer.USER, by_private)
        if key not in self.trends:
            ids = self.by_name[group]
            own = map(self._private if by_private else self.public.__getitem__, ids)
            self.trends[key] = trend_of(
                (one for one in own if trend_group_of(one, best_per) == group),
                self.settings.direction,
            )
        return self.trends[key]

    def _private(self, submission_id: str) -> Entry:
        return entry_of(self.entries[submission_id], is_private=True)

    def score(self, submission_id: str) -> float | None:
        """Return the score that participants see; None: it has none."""
        public = self.public.get(submission_id)
        return public.score if public is not None else None

    def keeps_best(self, submission_id: str) -> bool:
        """Whether it shows the score of an earlier one of its participant, as it is no improvement."""
        one = self.exact.get(submission_id)
        if one is None or self.settings.public_score is PublicScore.EXACT:
            return False
        participant = one.participant
        if participant not in self._no_better:
            own = self._entries_of(participant)
            shown = {one.id: self.public[one.id].score for one in own}
            self._no_better[participant] = without_improvement(own, shown)
        return submission_id in self._no_better[participant]

    def rank(self, submission_id: str) -> int:
        """Return the rank by the scores that participants see, in place of a better one of its group; 0: none."""
        public = self.public.get(submission_id)
        return self.listing(self.settings.best_per).rank_of(public) if public is not None else 0

    def ids_of(self, user: User) -> Sequence[str]:
        """Return the ids of the entries of a user's participant."""
        names: list[Name] = [("user", user.name), *([("team", user.team)] if user.team else [])]
        lists = [self.by_name[name] for name in names if name in self.by_name]
        if not lists:
            return ()
        key = user.name, user.id, user.team
        known = self.own.get(key)
        if known is None or len(known.of) != len(lists) or not all(map(is_, known.of, lists)):
            ids = dict.fromkeys(one for those in lists for one in those)
            known = self.own[key] = _Own(
                lists, [one for one in ids if is_of(self.entries[one], user)]
            )
        return known.ids

    def has_entries_of(self, name: Name) -> bool:
        """Whether a user or a team has entries."""
        return bool(self.by_name.get(name))


class Scoreboards:
    """Reads what changed of a dataset's submissions since they were read last."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._calls: LruDict[_Key, SharedCall[Scoreboard]] = LruDict(_KEPT)
        self._known: LruDict[_Key, tuple[Scoreboard, BoardMark]] = LruDict(
            _KEPT_ENTRIES, weigh=lambda kept: len(kept[0].entries) + 1
        )

    async def read(
        self, owner: str, dataset: str, settings: BoardSettings, evaluation: int = 0
    ) -> Scoreboard:
        """Return the submissions to a dataset in a version of their scores, 0: the one that is shown.

        The same object while nothing changed that a board shows.
        """
        key = owner, dataset, settings, evaluation
        call = self._calls.get(key)
        if call is None:
            call = SharedCall(lambda: self._read(key))
            self._calls.keep(key, call)
        return await call()

    async def _read(self, key: _Key) -> Scoreboard:
        owner, dataset, settings, evaluation = key
        known, since = self._known.get(key) or (None, None)
        read = await self._history.submissions.read_board(owner, dataset, evaluation, since=since)
        hour = math.floor(self._clock.time() / _HOUR_S)
        if known is not None and not read.is_whole:
            read = read._replace(
                entries=tuple(
                    one for one in read.entries if _differs(known.entries.get(one.row.id), one)
                )
            )
            is_as_before = (known.state, known.pending, known.hour) == (
                read.state,
                read.pending,
                hour,
            )
            if not read.entries and is_as_before:
                self._known.keep(key, (known, read.mark))
                return known
        made = await beside(
            lambda: Scoreboard(settings, read, hour=hour, before=known), of=len(read.entries)
        )
        self._known.keep(key, (made, read.mark))
        return made


def is_of(one: SubmissionEntry, user: User) -> bool:
    """Whether a user is the participant: the one who submitted, or of the team for which it was submitted."""
    row = one.row
    is_same = row.owner == user.name and (not row.owner_id or row.owner_id == user.id)
    return is_same or bool(row.team and row.team == user.team)


def is_failed(one: SubmissionEntry) -> bool:
    """Whether it failed: its participant and the owner of the board alone see it."""
    return one.state is SubmissionState.FAILED


def _names(one: Entry) -> list[Name]:
    """Return whose entry it may be."""
    return [("user", one.owner), ("team", one.team)] if one.team else [("user", one.owner)]


def _differs(known: SubmissionEntry | None, one: SubmissionEntry) -> bool:
    """Whether a board shows another thing: most changes of a submission are of its sessions."""
    return (
        known is None
        or _ROW_FACTS(known.row) != _ROW_FACTS(one.row)
        or (known.score is None) is not (one.score is None)
        or (one.score is not None and _SCORE_FACTS(known.score) != _SCORE_FACTS(one.score))
    )
