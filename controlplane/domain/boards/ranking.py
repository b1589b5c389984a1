"""Ranks of entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from operator import add, itemgetter, sub
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.domain.boards.scores import finite, goodness, order_key
from controlplane.domain.boards.values import DAY_S, BestPer, Entry, ScoreDirection

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from controlplane.domain.boards.scores import OrderKey

CONFIDENCE: Final = 0.95
MOST_TREND: Final = 32
"""Maximum values in a trend."""


class RankInterval(NamedTuple):
    """The ranks between which an entry is likely to be; 0: not known."""

    low: int = 0
    high: int = 0


NO_INTERVAL: Final = RankInterval()
Group: TypeAlias = tuple[str, str]
_key = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An entry with its place.

    Attributes:
        score: None: it has none, and no rank.
        rank: from 1, each once; 0: none.
        before: the rank a day ago, of the best entry of its user or team if only the best is listed; 0: none.
        trend: the best scores of its participant, oldest first.
        is_duplicate: another participant was the first to submit an equal prediction.
    """

    entry: Entry
    score: float | None
    rank: int
    before: int
    interval: RankInterval
    trend: tuple[float, ...]
    is_duplicate: bool


class Order:
    """Entries in the order of boards: best first, those without a finite score last; of ties the earlier is better."""

    def __init__(
        self, direction: ScoreDirection, keyed: Sequence[tuple[OrderKey, Entry]] = ()
    ) -> None:
        self.direction = direction
        self.keyed = keyed

    def updated(self, entries: Iterable[Entry], *, gone: Collection[str] = ()) -> Order:
        """Return the order with these entries, in place of those with their ids, and without the ids `gone`.

        For a few entries this costs little more than a copy.
        """
        new = {one.id: (order_key(one, self.direction), one) for one in entries}
        stays = [pair for pair in self.keyed if pair[1].id not in new and pair[1].id not in gone]
        # Two runs in order, which the sort merges.
        return Order(self.direction, sorted([*stays, *sorted(new.values(), key=_key)], key=_key))


class Listing:
    """What a board lists of entries in order: all, or the best of each user or team.

    What is asked of an entry is computed at the first call, for all.
    """

    def __init__(self, order: Order, best_per: BestPer) -> None:
        self.order = order
        self._best_per = best_per
        self._is_of_all = best_per is BestPer.NONE
        self.keyed = order.keyed if self._is_of_all else _best(order.keyed, best_per)
        self.scored = bisect_left(self.keyed, 1, key=_has_no_score)
        """How many have a rank; these are first."""

    def __len__(self) -> int:
        return len(self.keyed)

    def index_of(self, entry_id: str) -> int | None:
        """Return where an entry is listed; None: it is not."""
        return self._indices.get(entry_id)

    def rank(self, index: int) -> int:
        """Return the rank of the listed entry at an index; 0: it has no score."""
        return index + 1 if index < self.scored else 0

    def rank_of(self, entry: Entry) -> int:
        """Return the rank of any entry of the order; 0: it has no score.

        One that is not listed, since its group has a better one, has the rank that it would have in place of that.
        """
        if finite(entry.score) is None:
            return 0
        key = order_key(entry, self.order.direction)
        ahead = bisect_left(self.keyed, key, key=_key)
        return ahead + (entry.id in self._indices)

    def group_of(self, entry: Entry) -> Group:
        """Return the group of an entry, in the order or not: of each the best is listed."""
        return group_of(entry, self._best_per)

    def has_group(self, group: Group) -> bool:
        """Whether an entry of a group is listed."""
        # Without groups each entry is its own one.
        return self.index_of(group[1]) is not None if self._is_of_all else group in self._groups

    def interval(self, entry: Entry) -> RankInterval:
        """Return between which ranks an entry is likely to be."""
        return self._intervals.of(entry)

    def is_duplicate(self, entry: Entry) -> bool:
        """Whether another participant was the first to submit an equal prediction."""
        return entry.id in self._duplicates

    @cached_property
    def _indices(self) -> Mapping[str, int]:
        return {one.id: index for index, (_, one) in enumerate(self.keyed)}

    @cached_property
    def _groups(self) -> frozenset[Group]:
        return frozenset(group_of(one, self._best_per) for _, one in self.keyed)

    @cached_property
    def _intervals(self) -> RankIntervals:
        scored = [one for _, one in self.keyed[: self.scored]]
        return RankIntervals(scored, self.order.direction)

    @cached_property
    def _duplicates(self) -> frozenset[str]:
        return duplicates_of(one for _, one in self.order.keyed)


def ranked(
    entries: Iterable[Entry], *, direction: ScoreDirection, best_per: BestPer, now: float
) -> list[Ranked]:
    """Rank entries, the best first; those without a finite score last, without a rank. Of ties the earlier is better.

    The result depends on no order of `entries`. `now`: Unix time.
    """
    order = Order(direction).updated(entries)
    listing = Listing(order, best_per)
    before = ranks_at(order, best_per, now - DAY_S)
    groups: dict[Group, list[Entry]] = defaultdict(list)
    for _, one in order.keyed:
        groups[trend_group_of(one, best_per)].append(one)
    trends = {group: trend_of(those, direction) for group, those in groups.items()}
    return [
        Ranked(
            entry=one,
            score=finite(one.score),
            rank=listing.rank(index),
            before=before.get(group_of(one, best_per), 0),
            interval=listing.interval(one),
            trend=trends[trend_group_of(one, best_per)],
            is_duplicate=listing.is_duplicate(one),
        )
        for index, (_, one) in enumerate(listing.keyed)
    ]


def ranks_at(order: Order, best_per: BestPer, at: float) -> Mapping[Group, int]:
    """Return the ranks at an earlier Unix time, by group."""
    there = [pair for pair in order.keyed if not pair[0][0] and pair[1].scored_at <= at]
    return {
        group_of(one, best_per): rank for rank, (_, one) in enumerate(_best(there, best_per), 1)
    }


def trend_of(entries: Iterable[Entry], direction: ScoreDirection) -> tuple[float, ...]:
    """Return the best score so far after each submission of a group, oldest first.

    They are thinned evenly: the first and the last stay.
    """
    best: list[float] = []
    for one in sorted(entries, key=_when_submitted):
        score = finite(one.score)
        if score is None:
            continue
        if best and goodness(best[-1], direction) > goodness(score, direction):
            score = best[-1]
        best.append(score)
    return _thinned(best)


class RankIntervals:
    """The ranks between which entries with a score are; only of those whose standard error is known.

    All ranks are within their intervals with a probability of CONFIDENCE at least: each score has an interval so wide
    that all hold at once (Sidak), and entries whose intervals overlap may be in either order (Klein, Wright and
    Wieczorek 2020). A score without a standard error counts as exact.
    """

    def __init__(self, scored: Sequence[Entry], direction: ScoreDirection) -> None:
        self._direction = direction
        self._count = len(scored)
        errors = [_error(one) for one in scored]
        known = len(errors) - errors.count(None)
        self._width = 0.0
        if known:
            self._width = width = NormalDist().inv_cdf((1.0 + CONFIDENCE ** (1.0 / known)) / 2.0)
            middles = [goodness(one.score or 0.0, direction) for one in scored]
            halves = [width * (error or 0.0) for error in errors]
            self._lows = sorted(map(sub, middles, halves))
            self._highs = sorted(map(add, middles, halves))

    def of(self, entry: Entry) -> RankInterval:
        """Return the interval of one of the entries, or of another one: not known."""
        error = _error(entry)
        if not self._width or error is None or finite(entry.score) is None:
            return NO_INTERVAL
        middle = goodness(entry.score or 0.0, self._direction)
        low, high = middle - self._width * error, middle + self._width * error
        return RankInterval(
            1
            + self._count
            - bisect_right(self._lows, high),  # all of which even the low end is better
            self._count - bisect_left(self._highs, low),
        )


def rank_intervals(scored: Sequence[Entry], direction: ScoreDirection) -> dict[str, RankInterval]:
    """Return between which ranks entries with a score are, by id; only those whose standard error is known."""
    intervals = RankIntervals(scored, direction)
    return {one.id: intervals.of(one) for one in scored if _error(one) is not None}


def duplicates_of(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the ids of entries whose prediction another participant was the first to submit."""
    first: dict[str, Entry] = {}
    found = set()
    for one in sorted(entries, key=_when_submitted):
        if one.digest and first.setdefault(one.digest, one).participant != one.participant:
            found.add(one.id)
    return frozenset(found)


def _when_submitted(entry: Entry) -> tuple[float, str]:
    return (entry.submitted_at, entry.id)


def group_of(entry: Entry, best_per: BestPer) -> Group:
    """Return the group of an entry of which the best is listed: its user or team, else the entry alone."""
    match best_per:
        case BestPer.NONE:
            return ("entry", entry.id)
        case BestPer.USER:
            return ("user", entry.owner)
        case BestPer.TEAM:
            return entry.participant


def trend_group_of(entry: Entry, best_per: BestPer) -> Group:
    """Return of which user or team a trend is."""
    return entry.participant if best_per is BestPer.NONE else group_of(entry, best_per)


def _best(
    in_order: Iterable[tuple[OrderKey, Entry]], best_per: BestPer
) -> list[tuple[OrderKey, Entry]]:
    """The first of each group."""
    first: dict[Group, tuple[OrderKey, Entry]] = {}
    for pair in in_order:
        first.setdefault(group_of(pair[1], best_per), pair)
    return list(first.values())


def _has_no_score(pair: tuple[OrderKey, Entry]) -> int:
    return int(pair[0][0])


def _thinned(scores: Sequence[float]) -> tuple[float, ...]:
    if len(scores) <= MOST_TREND:
        return tuple(scores)
    last = len(scores) - 1
    return tuple(scores[at * last // (MOST_TREND - 1)] for at in range(MOST_TREND))


def _error(entry: Entry) -> float | None:
    error = finite(entry.standard_error)
    return error if error is not None and error >= 0.0 else None
