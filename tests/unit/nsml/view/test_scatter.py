"""Embeddings as dots: those that are apart are drawn apart, and nothing in a file is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.view.scatter import MOST_LABELS, MOST_VECTORS, embedding, plane, scatter


def told(columns: list[str], rows: list[list[Any]]) -> bytes:
    return json.dumps({"columns": columns, "data": rows}).encode()


def test_labels_have_a_letter_and_places_of_their_own() -> None:
    rows = [["a", 0, 0, 5], ["a", 0.1, 0, 5], ["b", 9, 0, 5], ["b", 9, 0.1, 5]]
    found = embedding(told(["label", "0", "1", "2"], rows))
    assert (found.labels, found.numbers) == (["a", "b"], [0, 0, 1, 1])
    assert (found.vectors, found.dimensions) == (4, 3)
    lines = scatter(found, columns=20, rows=6)
    assert [piece.text for piece in lines[-1]] == ["A a  ", "B b  "]
    columns = {0: set[int](), 1: set[int]()}
    for line in lines[:-1]:
        for place, piece in enumerate(line):
            if piece.series is not None:
                columns[piece.series].add(place)
    assert max(columns[0]) < min(columns[1]) or max(columns[1]) < min(columns[0])


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_where_there_is_no_room_it_is_drawn_all_the_same(size: tuple[int, int]) -> None:
    found = embedding(told(["label", "0", "1"], [["a", 0, 0], ["b", 9, 1]]))
    lines = scatter(found, columns=size[0], rows=size[1])
    assert any(piece.series is not None for line in lines[:-1] for piece in line)


def test_the_plane_is_that_of_the_greatest_spread() -> None:
    vectors = [[0.0, float(at), 0.001 * (at % 3), 100.0] for at in range(50)]
    places = plane(vectors)
    spans = [max(values) - min(values) for values in zip(*places, strict=True)]
    assert spans[0] > 100 * spans[1]


def test_many_vectors_and_labels_are_some_of_them() -> None:
    rows = [[f"l{at % 40}\x1b[31m", at, -at] for at in range(3 * MOST_VECTORS)]
    found = embedding(told(["label", "0", "1"], rows))
    assert len(found.places) <= MOST_VECTORS
    assert len(found.labels) == MOST_LABELS
    assert not any("\x1b" in label for label in found.labels)
    assert None in found.numbers


@pytest.mark.parametrize(
    "data",
    [b"", b"[" * 100_000, b"{}", told(["0"], []), told([], [[]]), told(["0"], [["x"], [None]])],
)
def test_what_is_no_embedding_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        embedding(data)


@given(
    st.lists(st.lists(st.floats(-1e99, 1e99) | st.none(), min_size=3, max_size=3), max_size=20),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_any_vectors_fit_their_cells(rows: list[list[Any]], columns: int, high: int) -> None:
    try:
        found = embedding(told(["0", "1", "2"], rows))
    except ValueError:
        return
    lines = scatter(found, columns=columns, rows=high)
    assert len(lines) == max(high - 1, 1) + 1
    assert {len(line) for line in lines[:-1]} == {columns}
