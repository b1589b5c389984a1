"""What is shown of scores, and what an attacker learns from it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.public_scores import shown_scores, without_improvement
from controlplane.domain.boards.scores import goodness, standard_error
from controlplane.domain.boards.values import Entry, PublicScore, ScoreDirection
from tests.unit.controlplane.domain.boards.entries import entries_of, entry

STEPS = st.sampled_from([0.0, 0.01, 0.1, 5e-324, 1e300]) | st.floats(
    0.0, allow_nan=False, allow_infinity=False
)
OWN_BEST, LADDER, MAX, MIN = (
    PublicScore.OWN_BEST,
    PublicScore.LADDER,
    ScoreDirection.MAX,
    ScoreDirection.MIN,
)


def shown(
    mode: PublicScore,
    scores: list[float],
    *,
    step: float = 0.0,
    direction: ScoreDirection = MAX,
    error: float | None = None,
) -> list[float | None]:
    entries = [
        entry(f"{at:03}", score, float(at), standard_error=error) for at, score in enumerate(scores)
    ]
    return list(shown_scores(entries, mode, step, direction).values())


@pytest.mark.parametrize(
    ("mode", "step", "none"),
    [(OWN_BEST, 0.0, ["2", "3"]), (LADDER, 0.1, ["1", "2", "3"])],
)
def test_what_is_no_new_best_is_known_by_what_is_shown(
    mode: PublicScore, step: float, none: list[str]
) -> None:
    """In the order of scoring, of each participant apart; nothing but shown scores is looked at."""
    scores = [0.5, 0.52, 0.4, 0.52, 0.9]
    entries = [entry(str(at), score, float(at)) for at, score in enumerate(scores)]
    entries.append(entry("x", 0.1, 9.0, owner="park", team=""))
    known = shown_scores(entries, mode, step, MAX)
    assert sorted(without_improvement(reversed(entries), known)) == none


def test_each_mode_shows_as_much_as_it_says() -> None:
    scores = [0.5, 0.502, 0.4, 0.56, 0.58, 0.61]
    assert shown(PublicScore.EXACT, scores) == scores
    assert shown(OWN_BEST, scores) == [0.5, 0.502, 0.502, 0.56, 0.58, 0.61]
    assert shown(LADDER, scores, step=0.05) == [0.5, 0.5, 0.5, 0.55, 0.55, 0.6]
    assert shown(LADDER, scores, error=0.05) == [0.5, 0.5, 0.5, 0.5, 0.58, 0.58]
    assert shown(LADDER, scores) == shown(OWN_BEST, scores), "no standard errors"


def test_the_least_is_the_best_where_the_board_says_so() -> None:
    scores = [0.5, 0.6, 0.44, 0.3]
    assert shown(OWN_BEST, scores, direction=MIN) == [0.5, 0.5, 0.44, 0.3]
    assert shown(LADDER, scores, direction=MIN, step=0.1) == [0.5, 0.5, 0.5, 0.3]


def test_a_step_shows_its_multiples_as_people_write_them() -> None:
    assert shown(LADDER, [0.3004, 0.7001], step=0.1) == [0.3, 0.7]
    assert shown(LADDER, [1234567.8], step=0.001) == [1234567.8]


def test_participants_are_apart_and_teams_together() -> None:
    entries = [
        entry("a", 0.9, 1.0, owner="kim", team="vision"),
        entry("b", 0.5, 2.0, owner="lee", team="vision"),
        entry("c", 0.4, 3.0, owner="vision"),
        entry("d", None, 4.0, owner="kim", team="vision"),
    ]
    assert shown_scores(entries, OWN_BEST, 0.0, MAX) == {"a": 0.9, "b": 0.9, "c": 0.4, "d": None}


def test_a_score_that_comes_late_changes_none_that_was_shown() -> None:
    early = [entry("b", 0.5, 2.0, scored_at=3.0), entry("c", 0.6, 4.0)]
    before = shown_scores(early, OWN_BEST, 0.0, MAX)
    late = entry("a", 0.9, 1.0, scored_at=9.0)
    after = shown_scores([late, *early], OWN_BEST, 0.0, MAX)
    assert after == {**before, "a": 0.9}


@given(entries_of(), st.sampled_from(PublicScore), STEPS, st.sampled_from(ScoreDirection))
def test_what_is_shown_is_finite_and_nothing_for_what_has_no_score(
    entries: list[Entry], mode: PublicScore, step: float, direction: ScoreDirection
) -> None:
    found = shown_scores(entries, mode, step, direction)
    assert found.keys() == {one.id for one in entries}
    for one in entries:
        has_score = one.score is not None and math.isfinite(one.score)
        score = found[one.id]
        assert (score is not None) is has_score
        assert score is None or math.isfinite(score)


@given(
    entries_of(),
    st.sampled_from([OWN_BEST, LADDER]),
    STEPS,
    st.sampled_from(ScoreDirection),
    st.randoms(),
)
def test_what_is_shown_gets_only_better_and_depends_on_no_order(
    entries: list[Entry],
    mode: PublicScore,
    step: float,
    direction: ScoreDirection,
    rng: random.Random,
) -> None:
    found = shown_scores(entries, mode, step, direction)
    shuffled = entries[:]
    rng.shuffle(shuffled)
    assert shown_scores(shuffled, mode, step, direction) == found
    last: dict[tuple[str, str], float] = {}
    for one in sorted(entries, key=lambda each: (each.scored_at, each.submitted_at, each.id)):
        score = found[one.id]
        if score is not None:
            better = goodness(score, direction)
            assert better >= last.get(one.participant, -math.inf)
            last[one.participant] = better


ROWS, SUBMISSIONS = 4_000, 600


def boosted(mode: PublicScore, step: float, seed: int, *, improved_only: bool) -> float:
    """The accuracy of labels voted from random ones, each weighted by whether the board says that it beats chance.

    Nothing was learned, so on other rows it is .5: what is above is what the answers gave away. `improved_only`: the
    attacker takes those alone that changed what is shown.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, ROWS)
    guesses = rng.integers(0, 2, (SUBMISSIONS, ROWS))
    scores = (guesses == labels).mean(axis=1)
    entries = [
        entry(
            f"{at:04}",
            float(score),
            float(at),
            standard_error=standard_error(float(score), None, ROWS),
        )
        for at, score in enumerate(scores)
    ]
    found = shown_scores(entries, mode, step, MAX)
    told = np.array([found[one.id] for one in entries], dtype=float)
    if improved_only:
        improved = np.diff(told, prepend=told[:1]) > 0
        votes = (2 * guesses[improved] - 1).sum(axis=0)
    else:
        signs = np.sign(told - 0.5)
        votes = (signs[:, None] * (2 * guesses - 1)).sum(axis=0)
    return float(((votes > 0) == labels).mean())


def mean_boosted(mode: PublicScore, step: float = 0.0, *, improved_only: bool = False) -> float:
    runs = [boosted(mode, step, seed, improved_only=improved_only) for seed in range(1, 6)]
    return sum(runs) / len(runs)


def test_labels_cannot_be_voted_from_what_is_shown() -> None:
    assert mean_boosted(PublicScore.EXACT) >= 0.57
    assert mean_boosted(LADDER) <= 0.51
    assert mean_boosted(LADDER, 0.01) <= 0.51
    assert mean_boosted(OWN_BEST) <= 0.51


def test_improvements_give_away_the_least_on_a_ladder() -> None:
    exact, own_best, ladder = (
        mean_boosted(mode, improved_only=True) for mode in (PublicScore.EXACT, OWN_BEST, LADDER)
    )
    assert ladder <= 0.52 < own_best < exact
