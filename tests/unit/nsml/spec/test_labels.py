"""What can be a label."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.labels import MOST_CHARACTERS, is_key, is_value


@pytest.mark.parametrize("key", ["a", "stage", "team/stage", "A.b-c_d", "0", "x" * MOST_CHARACTERS])
def test_keys(key: str) -> None:
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["", "-a", "a-", ".", "a b", "a=b", "a:b", "é", "a\n", "x" * (MOST_CHARACTERS + 1)]
)
def test_what_is_no_key(key: str) -> None:
    assert not is_key(key)


@given(st.text(max_size=70))
def test_a_value_is_seen_as_it_is(text: str) -> None:
    is_shown = text.isprintable() and text.strip() == text and 0 < len(text) <= 63
    assert is_value(text) is is_shown
    assert not is_value(f"{text}\u202e")
