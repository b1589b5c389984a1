"""Scores as people read them: short, in order, and never equal where the scores are not."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsml.view.scores import USUAL, digits_of, score_text

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NEXT = math.nextafter(5 / 6, 1)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (5 / 6, "0.833333"),
        (0.1, "0.1"),
        (0.98550000000000004, "0.9855"),
        (-1 / 3, "-0.333333"),
        (7.0, "7"),
        (0.0, "0"),
        (1234567.0, "1234567"),
        (1234567.891, "1234568"),
        (999999.9, "999999.9"),
        (1.5e-7 / 3, "5e-08"),
        (1e300, "1e+300"),
        (math.inf, "inf"),
    ],
)
def test_a_score_has_six_digits_and_no_padding(score: float, text: str) -> None:
    assert score_text(score) == text


@pytest.mark.parametrize(
    ("scores", "texts"),
    [
        ([0.5, 5 / 6, 0.7], ["0.5", "0.833333", "0.7"]),
        ([5 / 6, 0.83333334, 0.5], ["0.83333333", "0.83333334", "0.5"]),
        ([5 / 6, NEXT], ["0.8333333333333334", repr(NEXT)]),
        ([0.1 + 0.2, 0.3], ["0.30000000000000004", "0.3"]),
        ([1.0, 0.99999999], ["1", "0.99999999"]),
        ([0.25, 0.25], ["0.25", "0.25"]),
        ([], []),
    ],
)
def test_close_scores_have_as_many_digits_as_tell_them_apart(
    scores: list[float], texts: list[str]
) -> None:
    digits = digits_of(iter(scores))
    assert [score_text(one, digits) for one in scores] == texts


def test_scores_far_from_others_need_nothing() -> None:
    assert digits_of([0.1, 0.2, 5 / 6]) == USUAL


def _neighbours(score: float) -> st.SearchStrategy[list[float]]:
    """A score, some that round to it, and some of its neighbours among the floats."""
    steps = st.integers(-3, 3).map(lambda step: score * (1 + step * 2.0**-52))
    near = st.floats(-1e-6, 1e-6).map(lambda part: score * (1 + part))
    return st.lists(steps | near | FINITE, min_size=1, max_size=12).map(lambda some: [score, *some])


@given(st.floats(-1e12, 1e12).flatmap(_neighbours))
@example([0.8333334999999999, 0.8333335000000001, 0.83333349])
def test_texts_of_a_table_differ_and_are_in_the_order_of_its_scores(scores: list[float]) -> None:
    scores = [one for one in scores if math.isfinite(one)]
    digits = digits_of(scores)
    ordered = sorted(set(scores))
    texts = [score_text(one, digits) for one in ordered]
    assert len(set(texts)) == len(ordered)
    assert [float(one) for one in texts] == sorted(map(float, texts))
