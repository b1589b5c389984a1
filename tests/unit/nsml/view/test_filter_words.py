"""Words in lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.view.filter_words import Words


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("", True),
        ("MNIST", True),
        ("mnist kim", True),
        ("mnist lee", False),
        ('"test split"', True),
        ('"split test"', False),
        ("!lee", True),
        ("!kim", False),
        ('!"test split', False),
        ("!", True),
        ('"', True),
    ],
)
def test_all_words_must_be_there_and_none_of_those_that_must_not(text, is_taken):
    assert Words(text).take("kim/mnist", "with test split") is is_taken


@given(st.text(), st.text())
def test_whatever_is_typed_is_understood(text, other):
    assert Words(text).take(other) in {True, False}


@given(st.text(alphabet="ab "), st.text(alphabet="ab "), st.text(alphabet="ab "))
def test_more_words_take_no_more(first, second, text):
    both = Words(f"{first} {second}").take(text)
    assert both is (Words(first).take(text) and Words(second).take(text))
