"""Ranks of entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.boards.scores import finite, goodness, order_key
from controlplane.domain.boards.values import DAY_S, BestPer, Entry, ScoreDirection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIDENCE: Final = 0.95
MOST_TREND: Final = 32
"""Maximum values in a trend."""


class RankInterval(NamedTuple):
    """The ranks between which an entry is likely to be; 0: not known."""

    low: int = 0
    high: int = 0


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


def ranked(
    entries: Iterable[Entry], *, direction: ScoreDirection, best_per: BestPer, now: float
) -> list[Ranked]:
    """Rank entries, the best first; those without a finite score last, without a rank. Of ties the earlier is better.

    The result depends on no order of `entries`. `now`: Unix time.
    """
    in_order = sorted(entries, key=partial(order_key, direction=direction))
    listed = _best(in_order, best_per)
    scored = [one for one in listed if finite(one.score) is not None]
    ranks = {one.id: rank for rank, one in enumerate(scored, 1)}
    day_ago = _ranks_at(in_order, best_per, now - DAY_S)
    intervals = rank_intervals(scored, direction)
    trends = _trends(in_order, direction, best_per)
    duplicates = duplicates_of(in_order)
    return [
        Ranked(
            entry=one,
            score=finite(one.score),
            rank=ranks.get(one.id, 0),
            before=day_ago.get(_group(one, best_per), 0),
            interval=intervals.get(one.id, RankInterval()),
            trend=trends.get(_trend_group(one, best_per), ()),
            is_duplicate=one.id in duplicates,
        )
        for one in listed
    ]


def ranks_of_all(
    entries: Iterable[Entry], *, direction: ScoreDirection, best_per: BestPer
) -> dict[str, int]:
    """Return the rank of every entry with a finite score, by id, on a board that lists the best of each group.

    One that is not listed, since its group has a better one, has the rank that it would have in place of that.
    """
    ranks = {}
    ahead: set[tuple[str, str]] = set()
    for one in sorted(entries, key=partial(order_key, direction=direction)):
        if finite(one.score) is not None:
            group = _group(one, best_per)
            ranks[one.id] = len(ahead) + (group not in ahead)
            ahead.add(group)
    return ranks


def rank_intervals(scored: Sequence[Entry], direction: ScoreDirection) -> dict[str, RankInterval]:
    """Return between which ranks entries with a score are, by id; only those whose standard error is known.

    All ranks are within their intervals with a probability of CONFIDENCE at least: each score has an interval so wide
    that all hold at once (Sidak), and entries whose intervals overlap may be in either order (Klein, Wright and
    Wieczorek 2020). A score without a standard error counts as exact.
    """
    errors = {one.id: _error(one) for one in scored}
    known = sum(error is not None for error in errors.values())
    if not known:
        return {}
    width = NormalDist().inv_cdf((1.0 + CONFIDENCE ** (1.0 / known)) / 2.0)
    spans = {}
    for one in scored:
        middle = goodness(one.score or 0.0, direction)
        half = width * (errors[one.id] or 0.0)
        spans[one.id] = (middle - half, middle + half)
    lows = sorted(low for low, _ in spans.values())
    highs = sorted(high for _, high in spans.values())
    count = len(scored)
    return {
        name: RankInterval(
            1 + count - bisect_right(lows, high),  # all of which even the low end is better
            count - bisect_left(highs, low),
        )
        for name, (low, high) in spans.items()
        if errors[name] is not None
    }


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


def _group(entry: Entry, best_per: BestPer) -> tuple[str, str]:
    match best_per:
        case BestPer.NONE:
            return ("entry", entry.id)
        case BestPer.USER:
            return ("user", entry.owner)
        case BestPer.TEAM:
            return entry.participant


def _trend_group(entry: Entry, best_per: BestPer) -> tuple[str, str]:
    return entry.participant if best_per is BestPer.NONE else _group(entry, best_per)


def _best(in_order: Iterable[Entry], best_per: BestPer) -> list[Entry]:
    """The first of each group."""
    first: dict[tuple[str, str], Entry] = {}
    for one in in_order:
        first.setdefault(_group(one, best_per), one)
    return list(first.values())


def _ranks_at(
    in_order: Iterable[Entry], best_per: BestPer, at: float
) -> Mapping[tuple[str, str], int]:
    """The ranks at an earlier time, by group."""
    there = [one for one in in_order if finite(one.score) is not None and one.scored_at <= at]
    return {_group(one, best_per): rank for rank, one in enumerate(_best(there, best_per), 1)}


def _trends(
    in_order: Iterable[Entry], direction: ScoreDirection, best_per: BestPer
) -> Mapping[tuple[str, str], tuple[float, ...]]:
    """The best score so far after each submission, thinned evenly: the first and the last stay."""
    best: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in sorted(in_order, key=_when_submitted):
        score = finite(one.score)
        if score is None:
            continue
        so_far = best[_trend_group(one, best_per)]
        if so_far and goodness(so_far[-1], direction) > goodness(score, direction):
            score = so_far[-1]
        so_far.append(score)
    return {group: _thinned(scores) for group, scores in best.items()}


def _thinned(scores: Sequence[float]) -> tuple[float, ...]:
    if len(scores) <= MOST_TREND:
        return tuple(scores)
    last = len(scores) - 1
    return tuple(scores[at * last // (MOST_TREND - 1)] for at in range(MOST_TREND))


def _error(entry: Entry) -> float | None:
    error = finite(entry.standard_error)
    return error if error is not None and error >= 0.0 else None
