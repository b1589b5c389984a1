"""Pauses between tries: longer each time, up to a limit, for as long as anybody waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsml.common.backoff import backoff_s


def test_it_doubles_up_to_the_longest() -> None:
    assert [backoff_s(0.5, failures, 3.0) for failures in range(4)] == [0.5, 1.0, 2.0, 3.0]


@given(st.integers(0, 1 << 80), st.floats(0.001, 10.0), st.floats(0.001, 86_400.0))
def test_it_is_never_longer_however_often_it_failed(
    failures: int, first_s: float, longest_s: float
) -> None:
    pause_s = backoff_s(first_s, failures, longest_s)
    assert min(first_s, longest_s) <= pause_s <= longest_s
    assert pause_s <= backoff_s(first_s, failures + 1, longest_s)
