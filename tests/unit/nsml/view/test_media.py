"""What is said of media in one line."""

from __future__ import annotations

from typing import Any

import pytest

from nsml.v1.media_pb2 import Media
from nsml.view import media as view


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
