"""What is said of media in one line."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.v1.media_pb2 import Media
from nsml.view import media as view
from nsml.view.scatter import embedding

NUMBERS = st.floats() | st.integers() | st.sampled_from([10**400, -(10**400), 2**1024, 1.7e308])
BINS = st.lists(NUMBERS, min_size=1, max_size=80)
VALUES = st.lists(st.none() | st.booleans() | st.text(max_size=3) | NUMBERS, max_size=3)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"columns": 4, "rows": 12, "left_out": 0}, "12 rows, 4 columns"),
        ({"columns": 1, "rows": 10_000, "left_out": 5}, "10000 rows, 1 column, 5 left out"),
        (
            {"width": 8, "height": 8, "frames": 16, "fps": 10},
            "8x8, 16 frames, 10 frames a second",
        ),
        ({"width": 34, "height": 34, "images": 9, "left_out": 0}, "34x34, 9 images"),
        ({"width": 8, "height": 4}, "8x4"),
        (
            {"count": 3, "min": -1, "max": 2.5, "mean": 0.5, "not_finite": 0},
            "3 values, min -1, mean 0.5, max 2.5",
        ),
        ({"seconds": 1.5, "sample_rate": 8000, "channels": 1}, "1.5 s, 8000 Hz, 1 channel"),
        ({"beginning": "once upon", "characters": 30}, "once upon"),
        ({"new_fact": "of later"}, "new fact of later"),
        ({}, ""),
    ],
)
def test_facts_are_said_in_words(facts: dict[str, Any], said: str) -> None:
    media = Media()
    media.facts.update(facts)
    [what] = [column for column in view.COLUMNS if column.title == "What"]
    assert what.cell(media, 0.0) == said
    media.caption = "mine"
    assert what.cell(media, 0.0) == (f"mine · {said}" if said else "mine")


@given(
    st.sampled_from(["histogram", "table", "embedding"]),
    st.fixed_dictionaries({"edges": BINS.map(lambda bins: [*bins, 0]), "counts": BINS})
    | BINS.map(lambda bins: {"edges": [*bins, 0], "counts": bins})
    | st.fixed_dictionaries({"columns": VALUES, "data": st.lists(VALUES, max_size=4)}),
)
def test_whatever_numbers_a_program_wrote_are_shown_or_refused(kind: str, content: Any) -> None:
    data = json.dumps(content).encode()
    for shown in (
        lambda: list(view.lines(Media(kind=kind), data, columns=60)),
        lambda: embedding(data),
    ):
        with suppress(ValueError):
            shown()
