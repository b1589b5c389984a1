"""Ranks."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.ranking import (
    MOST_TREND,
    Listing,
    Order,
    Ranked,
    RankInterval,
    rank_intervals,
    ranked,
)
from controlplane.domain.boards.scores import goodness, order_key
from controlplane.domain.boards.values import DAY_S, BestPer, Entry, ScoreDirection
from tests.unit.controlplane.domain.boards.entries import entries_of, entry

MAX, MIN = ScoreDirection.MAX, ScoreDirection.MIN
NOW = 10 * DAY_S


def rank(entries: list[Entry], best_per: BestPer = BestPer.NONE, **given: object) -> list[Ranked]:
    values = {"direction": MAX, "now": NOW, **given}
    return ranked(entries, best_per=best_per, **values)  # type: ignore[arg-type]


def places(found: list[Ranked]) -> list[tuple[str, int]]:
    return [(one.entry.id, one.rank) for one in found]


ENTRIES = [
    entry("a", 0.5, 1.0, owner="kim", team="vision"),
    entry("b", 0.9, 2.0, owner="lee", team="vision"),
    entry("c", 0.7, 3.0, owner="park"),
    entry("d", 0.9, 4.0, owner="park"),
    entry("e", None, 5.0, owner="choi"),
    entry("f", math.nan, 6.0, owner="kim", team="vision"),
]


def test_the_best_is_first_and_ties_go_to_the_earlier() -> None:
    found = rank(ENTRIES)
    assert places(found) == [("b", 1), ("d", 2), ("c", 3), ("a", 4), ("e", 0), ("f", 0)]
    assert [one.score for one in found] == [0.9, 0.9, 0.7, 0.5, None, None]
    least = rank(ENTRIES, direction=MIN)
    assert places(least) == [("a", 1), ("c", 2), ("b", 3), ("d", 4), ("e", 0), ("f", 0)]


def test_the_best_of_each_user_or_team_is_listed() -> None:
    assert places(rank(ENTRIES, BestPer.USER)) == [("b", 1), ("d", 2), ("a", 3), ("e", 0)]
    assert places(rank(ENTRIES, BestPer.TEAM)) == [("b", 1), ("d", 2), ("e", 0)]


@pytest.mark.parametrize(
    ("best_per", "ranks"),
    [
        (BestPer.NONE, {"b": 1, "d": 2, "c": 3, "a": 4}),
        (BestPer.USER, {"b": 1, "d": 2, "c": 2, "a": 3}),
        (BestPer.TEAM, {"b": 1, "d": 2, "c": 2, "a": 2}),
    ],
)
def test_an_entry_that_is_not_listed_has_the_rank_it_would_have(
    best_per: BestPer, ranks: dict[str, int]
) -> None:
    listing = Listing(Order(MAX).updated(ENTRIES), best_per)
    found = {one.id: listing.rank_of(one) for one in ENTRIES}
    assert {name: rank for name, rank in found.items() if rank} == ranks


def test_a_user_is_no_team_of_the_same_name() -> None:
    entries = [entry("a", 0.5, owner="vision"), entry("b", 0.6, owner="kim", team="vision")]
    assert len(rank(entries, BestPer.TEAM)) == 2


def test_the_rank_a_day_ago_is_of_what_was_scored_then() -> None:
    old, today = NOW - DAY_S, NOW - 1.0
    entries = [
        entry("a", 0.8, 1.0, owner="kim", scored_at=old),
        entry("b", 0.6, 2.0, owner="lee", scored_at=old),
        entry("c", 0.9, 3.0, owner="lee", scored_at=today),
        entry("d", 0.7, 4.0, owner="park", scored_at=today),
    ]
    assert [one.before for one in rank(entries)] == [0, 1, 0, 2]
    of_users = rank(entries, BestPer.USER)
    assert [(one.entry.id, one.before) for one in of_users] == [("c", 2), ("a", 1), ("d", 0)]


def test_a_trend_is_the_best_so_far_in_the_order_of_submission() -> None:
    scores = [0.3, 0.2, 0.5, None, 0.4, 0.6]
    entries = [entry(f"{at}", score, float(at)) for at, score in enumerate(scores)]
    assert {one.trend for one in rank(entries)} == {(0.3, 0.3, 0.5, 0.5, 0.6)}
    least = rank(entries, BestPer.USER, direction=MIN)
    assert [one.trend for one in least] == [(0.3, 0.2, 0.2, 0.2, 0.2)]
    many = [entry(f"{at:04}", at / 1000, float(at)) for at in range(1000)]
    [one] = rank(many, BestPer.USER)
    assert len(one.trend) == MOST_TREND
    assert (one.trend[0], one.trend[-1]) == (0.0, 0.999)
    assert rank([entry("a", None)])[0].trend == ()


def test_an_equal_prediction_of_another_participant_is_a_duplicate() -> None:
    entries = [
        entry("a", 0.5, 1.0, owner="kim", team="vision", digest="d1"),
        entry("b", 0.5, 2.0, owner="lee", digest="d1"),
        entry("c", 0.5, 3.0, owner="lee", team="vision", digest="d1"),
        entry("d", 0.5, 4.0, owner="lee", digest="d2"),
        entry("e", 0.5, 5.0, owner="lee", digest=""),
        entry("f", None, 6.0, owner="park", digest=""),
        entry("g", None, 7.0, owner="park", digest="d1"),
    ]
    assert {one.entry.id for one in rank(entries) if one.is_duplicate} == {"b", "g"}


def test_intervals_are_of_scores_with_standard_errors() -> None:
    entries = [
        entry("a", 0.90, standard_error=0.001),
        entry("b", 0.80, standard_error=0.05),
        entry("c", 0.79, standard_error=0.05),
        entry("d", 0.10),
        entry("e", 0.05, standard_error=math.nan),
    ]
    intervals = {one.entry.id: one.interval for one in rank(entries)}
    assert intervals == {
        "a": RankInterval(1, 3),
        "b": RankInterval(1, 3),
        "c": RankInterval(1, 3),
        "d": RankInterval(),
        "e": RankInterval(),
    }
    exact = rank([entry("a", 0.9, standard_error=0.001), entry("b", 0.8, standard_error=0.001)])
    assert [one.interval for one in exact] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("direction", ScoreDirection)
def test_true_ranks_are_within_their_intervals(direction: ScoreDirection) -> None:
    rng = np.random.default_rng(5)
    count, errors, held = 20, np.linspace(0.005, 0.05, 20), 0
    truth = np.linspace(0.5, 0.9, count)
    for _ in range(400):
        seen = truth + rng.normal(size=count) * errors
        entries = [
            entry(f"{at}", float(score), standard_error=float(errors[at]))
            for at, score in enumerate(seen)
        ]
        found = rank_intervals(entries, direction)
        true_ranks = range(count, 0, -1) if direction is ScoreDirection.MAX else range(1, count + 1)
        held += all(
            found[f"{at}"].low <= true <= found[f"{at}"].high for at, true in enumerate(true_ranks)
        )
    assert held / 400 >= 0.95
    assert sum(high - low for low, high in found.values()) < count * count / 2, "they say something"


@given(entries_of(), st.sampled_from(ScoreDirection), st.sampled_from(BestPer), st.randoms())
def test_ranks_are_what_they_should_be_in_any_order(
    entries: list[Entry], direction: ScoreDirection, best_per: BestPer, rng: random.Random
) -> None:
    found = ranked(entries, direction=direction, best_per=best_per, now=DAY_S + 4.0)
    shuffled = entries[:]
    rng.shuffle(shuffled)
    again = ranked(shuffled, direction=direction, best_per=best_per, now=DAY_S + 4.0)
    assert repr(again) == repr(found)  # NaN is no equal of itself

    scored = [one for one in found if one.rank]
    assert [one.rank for one in scored] == list(range(1, len(scored) + 1))
    assert found[: len(scored)] == scored, "those without a rank are last"
    keys = [order_key(one.entry, direction) for one in found]
    assert keys == sorted(keys)
    before = [one.before for one in found if one.before]
    assert len(set(before)) == len(before)
    for one in found:
        assert (one.score is not None) is (one.rank > 0)
        assert one.score is None or math.isfinite(one.score)
        assert (
            one.score is None
            or one.interval == (0, 0)
            or (1 <= one.interval.low <= one.rank <= one.interval.high <= len(scored))
        )
        assert len(one.trend) <= MOST_TREND
        rising = [goodness(score, direction) for score in one.trend]
        assert rising == sorted(rising)
        assert all(map(math.isfinite, rising))


@given(entries_of(), st.sampled_from(list(BestPer)), st.sampled_from(list(ScoreDirection)))
def test_listed_entries_have_the_rank_of_the_board(
    entries: list[Entry], best_per: BestPer, direction: ScoreDirection
) -> None:
    listing = Listing(Order(direction).updated(entries), best_per)
    listed = rank(entries, best_per, direction=direction)
    assert all(listing.rank_of(one.entry) == one.rank for one in listed)
    indices = [listing.index_of(one.entry.id) for one in listed]
    assert indices == list(range(len(listed)))
    others = {one.id for one in entries} - {one.entry.id for one in listed}
    assert {listing.index_of(one) for one in others} <= {None}


@given(entries_of(), entries_of(), st.sampled_from(list(ScoreDirection)), st.randoms())
def test_an_order_of_changed_entries_is_that_of_all(
    entries: list[Entry], changed: list[Entry], direction: ScoreDirection, rng: random.Random
) -> None:
    gone = {one.id for one in entries if rng.random() < 0.2} - {one.id for one in changed}
    order = Order(direction).updated(entries).updated(changed, gone=gone)
    every = {one.id: one for one in (*entries, *changed) if one.id not in gone}
    assert repr(order.keyed) == repr(Order(direction).updated(every.values()).keyed)
