"""What a page may say of itself, and that nothing else is believed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.web.messages import (
    MOST_CELLS,
    Focused,
    Pinged,
    Resized,
    Typed,
    first_size,
    understood,
)


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        (["stdin", "\x1b[A"], Typed("\x1b[A")),
        (["resize", {"width": 120, "height": 40}], Resized(120, 40)),
        (["resize", {"width": 10**9, "height": 1}], Resized(MOST_CELLS, 1)),
        (["ping", "17"], Pinged("17")),
        (["focus"], Focused(has_focus=True)),
        (["blur"], Focused(has_focus=False)),
        (["stdin", 1], None),
        (["stdin", "\ud800"], None),
        (["resize", {"width": True, "height": 1}], None),
        (["resize", {"width": 0, "height": 1}], None),
        (["resize", {"width": 80}], None),
        (["deliver_chunk_request", {"key": "/etc/passwd"}], None),
        ("stdin", None),
        ([], None),
        ({}, None),
    ],
)
def test_what_the_page_says(message, meaning):
    assert understood(json.dumps(message)) == meaning


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
KINDS = st.sampled_from(["stdin", "resize", "ping", "focus", "blur", "quit", "exit"])


@given(st.text() | VALUES.map(json.dumps) | st.tuples(KINDS, VALUES).map(json.dumps))
def test_whatever_is_sent_is_understood_or_is_nothing(message):
    said = understood(message)
    if isinstance(said, Resized):
        assert 0 < said.width <= MOST_CELLS
        assert 0 < said.height <= MOST_CELLS
    elif isinstance(said, Typed):
        said.text.encode()


def test_what_is_nested_without_end_is_nothing():
    assert understood("[" * 60_000) is None


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"width": "150", "height": "36"}, (150, 36)),
        ({}, (80, 24)),
        ({"width": "-1", "height": "1e9"}, (80, 24)),
        ({"width": "99999", "height": "9" * 9_999}, (MOST_CELLS, 24)),
        ({"width": "²", "height": "٣"}, (80, 3)),
    ],
)
def test_the_first_size_is_one_that_can_be(asked, size):
    assert first_size(asked) == size
