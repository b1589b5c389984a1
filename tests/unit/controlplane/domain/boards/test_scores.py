"""Texts of scores, and the order of entries."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.scores import ScoreRefused, order_key, parse_score, standard_error
from controlplane.domain.boards.values import Entry, ScoreDirection
from tests.unit.controlplane.domain.boards.entries import entries_of, entry


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0.985", 0.985),
        ("1", 1.0),
        ("+1.", 1.0),
        (".5", 0.5),
        ("-2.5E+3", -2500.0),
        (" 0.5\r\n", 0.5),
        ("1e-400", 0.0),
        ("0" * 90 + "1", 1.0),
    ],
)
def test_a_number_is_a_score(text: str, score: float) -> None:
    assert parse_score(text) == score


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "True",
            "None",
            "0x1",
            "1_000",
            "1,5",
            "1 2",
            "1;2",
            "0.5%",
            "--1",
            "1e",
            ".",
        ),
        *("\uff11", "\u0661.5", "1\u00a0", "0.5\x00", "1e5.0", "[1]", "1j", "1" * 101, "\u22121"),
    ],
)
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(ScoreRefused) as refused:
        parse_score(text)
    assert not refused.value.is_number
    assert str(refused.value).isascii()


@pytest.mark.parametrize("text", ["nan", "-NaN", "inf", "Infinity", "-inf", "1e400", "-1e999999"])
def test_a_number_that_is_not_finite_is_said_to_be_one(text: str) -> None:
    with pytest.raises(ScoreRefused) as refused:
        parse_score(text)
    assert refused.value.is_number


def test_zero_has_no_sign() -> None:
    assert math.copysign(1.0, parse_score("-0.0")) == 1.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes_is_read_back(score: float) -> None:
    assert parse_score(repr(score)) == score


@given(st.text(max_size=30))
def test_any_text_is_refused_or_a_finite_number(text: str) -> None:
    try:
        score = parse_score(text)
    except ScoreRefused:
        return
    assert math.isfinite(score)
    assert score == float(text)


@given(entries_of(), st.sampled_from(ScoreDirection), st.randoms())
def test_the_order_is_one_whatever_it_begins_with(
    entries: list[Entry], direction: ScoreDirection, rng: random.Random
) -> None:
    key = partial(order_key, direction=direction)
    in_order = sorted(entries, key=key)
    shuffled = entries[:]
    rng.shuffle(shuffled)
    assert sorted(shuffled, key=key) == in_order
    assert len({key(one) for one in entries}) == len(entries)


def test_scored_ones_are_before_others_and_ties_go_to_the_earlier() -> None:
    entries = [
        entry("a", math.nan, 0.0),
        entry("b", None, 1.0),
        entry("c", math.inf, 2.0),
        entry("d", 0.5, 9.0),
        entry("e", 0.9, 8.0),
        entry("f", 0.5, 7.0),
        entry("g", 0.5, 7.0),
    ]
    found = {
        direction: "".join(
            one.id for one in sorted(entries, key=partial(order_key, direction=direction))
        )
        for direction in ScoreDirection
    }
    assert found == {ScoreDirection.MAX: "efgdabc", ScoreDirection.MIN: "fgdeabc"}


def test_a_standard_error_is_what_was_given_or_a_bound() -> None:
    assert standard_error(0.5, 0.25, 100) == 0.25
    assert standard_error(0.5, None, 100) == pytest.approx(0.05)
    assert standard_error(1.0, None, 100) == 0.0
    for score, given_, rows in [
        (0.5, math.nan, 9),
        (0.5, -1.0, 9),
        (0.5, None, 0),
        (7.0, None, 9),
        (-0.1, None, 9),
    ]:
        assert standard_error(score, given_, rows) is None
