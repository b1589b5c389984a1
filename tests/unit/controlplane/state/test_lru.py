"""What a bounded memory keeps and forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.state.lru import LruDict


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    recent: LruDict[str, int] = LruDict(3)
    for number, key in enumerate("abc"):
        recent.keep(key, number)
    assert recent.get("a") == 0
    assert "b" in recent
    recent.keep("d", 3)
    assert recent.get("c") is None
    recent.keep("a", 9)
    recent.keep("e", 4)
    assert [(key, recent.get(key)) for key in "abcde"] == [
        ("a", 9),
        ("b", None),
        ("c", None),
        ("d", 3),
        ("e", 4),
    ]


def test_one_that_is_over_the_bound_is_kept_until_the_next() -> None:
    recent: LruDict[str, str] = LruDict(3, weigh=len)
    recent.keep("small", "ab")
    recent.keep("large", "abcdef")
    assert recent.get("small") is None
    assert recent.get("large") == "abcdef"
    recent.keep("small", "ab")
    assert recent.get("large") is None
    assert recent.get("small") == "ab"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(max_size=4))))
def test_it_forgets_only_as_much_as_it_must(given_values) -> None:
    recent: LruDict[str, str] = LruDict(7, weigh=len)
    expected: dict[str, str] = {}
    for key, value in given_values:
        recent.keep(key, value)
        expected.pop(key, None)
        expected[key] = value
        while sum(map(len, expected.values())) > 7:
            del expected[next(iter(expected))]
        assert len(recent) == len(expected)
    assert {key: recent.get(key) for key in expected} == expected
