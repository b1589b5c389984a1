"""What can be a label."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.labels import MOST_CHARACTERS, is_key, value_error


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
    assert (not value_error(text)) is is_shown
    assert value_error(f"{text}\u202e")


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", "empty"),
        ("x" * (MOST_CHARACTERS + 1), "it has 64 characters, and 63 are the most"),
        ("a\tb", "cannot be printed"),
        (" a", "begins or ends with a blank"),
        ("a ", "begins or ends with a blank"),
    ],
)
def test_what_is_wrong_with_a_value_is_named(text: str, broken: str) -> None:
    assert broken in value_error(text)
