"""Shares of the long runs: `tests/shares.py`."""

import pytest

from tests.shares import Share

TESTS = {
    f"test {number}": float(seconds) for number, seconds in enumerate([300, 300, 60, 60, 60, 5])
}


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_all_shares_together_are_all_once(of):
    shares = [Share(number, of) for number in range(1, of + 1)]
    dealt = [test for share in shares for test in share.of_tests(TESTS, TESTS)]
    assert sorted(dealt) == sorted(TESTS)
    seeds = [seed for share in shares for seed in share.of_range(range(5, 105))]
    assert seeds == list(range(5, 105))


def test_shares_are_alike_in_length_whatever_the_order():
    first, second = (Share(number, 2).of_tests(TESTS, TESTS) for number in (1, 2))
    assert {sum(map(TESTS.get, share)) for share in (first, second)} == {420.0, 365.0}
    assert Share(1, 2).of_tests(reversed(TESTS), TESTS) == first


def test_tests_that_are_not_recorded_are_dealt_too():
    assert Share(1, 2).of_tests("ab", {}) | Share(2, 2).of_tests("ab", {}) == {"a", "b"}


def test_each_commit_has_a_share_and_some_commit_has_each():
    assert {str(Share.of_commit(f"{number:040x}", 3)) for number in range(9)} == {
        "1/3",
        "2/3",
        "3/3",
    }


@pytest.mark.parametrize("text", ["", "2", "0/5", "6/5", "a/b", "-1/2", "1/0"])
def test_nonsense_is_refused(text):
    with pytest.raises(ValueError):
        Share.parse(text)
