"""Limits in a rolling window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.submission_limits import (
    longest_window,
    next_permitted,
    next_submission,
    submissions_left,
)
from controlplane.domain.boards.values import BoardSettings, SubmissionLimit

TIMES = st.lists(st.floats(-1e9, 2e9), max_size=20)


@pytest.mark.parametrize(
    ("times", "limit", "permitted"),
    [
        ([], 1, None),
        ([100.0], 0, None),
        ([100.0], 1, 110.0),
        ([100.0], 2, None),
        ([94.9, 100.0], 2, 104.9),
        ([91.0, 95.0, 100.0], 2, 105.0),  # the limit was lowered: two have to leave
        ([90.0], 1, None),  # its window ends now
        ([90.1], 1, 100.1),
        ([150.0], 1, 160.0),  # the clock was set back
    ],
)
def test_one_more_is_permitted_once_enough_have_left_the_window(
    times: list[float], limit: int, permitted: float | None
) -> None:
    found = next_permitted(times, limit=limit, window=10.0, now=100.0)
    assert found == (None if permitted is None else pytest.approx(permitted))


@given(TIMES, st.integers(0, 9), st.floats(60.0, 1e8), st.floats(0.0, 2e9))
def test_at_the_instant_that_was_told_it_is_permitted(
    times: list[float], limit: int, window: float, now: float
) -> None:
    at = next_permitted(times, limit=limit, window=window, now=now)
    if at is None:
        return
    assert at > now
    assert next_permitted(times, limit=limit, window=window, now=at) is None
    assert next_permitted(times[::-1], limit=limit, window=window, now=now) == at


@given(TIMES.map(sorted), st.integers(1, 5), st.floats(60.0, 1e8))
def test_no_window_ever_has_more_than_the_limit(
    times: list[float], limit: int, window: float
) -> None:
    taken: list[float] = []
    for now in times:
        if next_permitted(taken, limit=limit, window=window, now=now) is None:
            taken.append(now)
        assert sum(at + window > now for at in taken) <= limit


def test_how_many_are_left() -> None:
    settings = BoardSettings(
        limit=SubmissionLimit(count=3, window_s=100.0),
        failed_limit=SubmissionLimit(count=2, window_s=300.0),
    )
    assert submissions_left([], [], settings, 500.0) == 3
    assert submissions_left([400.0, 450.0], [450.0], settings, 500.0) == 2
    assert submissions_left([490.0, 450.0, 460.0], [], settings, 500.0) == 0
    assert submissions_left([450.0], [490.0, 300.0], settings, 500.0) == 0, "two have failed"
    # the limit was lowered meanwhile
    assert submissions_left([499.0] * 9, [], settings, 500.0) == 0
    assert submissions_left([499.0] * 9, [499.0] * 9, BoardSettings(), 500.0) is None


def test_both_limits_of_a_board_hold() -> None:
    settings = BoardSettings(
        limit=SubmissionLimit(count=1, window_s=100.0),
        failed_limit=SubmissionLimit(count=2, window_s=300.0),
    )
    assert next_submission([], [], settings, 500.0) is None
    assert next_submission([450.0], [], settings, 500.0) == 550.0
    assert next_submission([450.0], [400.0, 300.0], settings, 500.0) == 600.0
    assert next_submission([450.0], [490.0], settings, 500.0) == 550.0
    assert next_submission([499.0] * 9, [499.0] * 9, BoardSettings(), 500.0) is None
    assert longest_window(settings) == 300.0
    assert longest_window(BoardSettings()) == 0.0
