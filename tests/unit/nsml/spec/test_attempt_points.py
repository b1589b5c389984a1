"""Which points count where a session had several attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.attempt_points import FirstSteps, PointKey


def kept(*points: tuple[int, float | None]) -> list[tuple[int, float | None]]:
    """Those of (attempt, step) that count in the end."""
    steps = FirstSteps()
    for attempt, step in points:
        steps.note(PointKey("loss", attempt, 0, step))
    return [one for one in points if steps.keeps(PointKey("loss", one[0], 0, one[1]))]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 0), (1, 1), (1, 2)], [(1, 0), (1, 1), (1, 2)]),
        ([(1, 0), (1, 1), (1, 2), (2, 1)], [(1, 0), (2, 1)]),
        # It began again: nothing of the first attempt is left.
        ([(1, 0), (1, 1), (2, 0)], [(2, 0)]),
        # The third goes back behind the second.
        ([(1, 0), (1, 9), (2, 5), (2, 7), (3, 3)], [(1, 0), (3, 3)]),
        # It went on behind what was reported: a gap, and nothing repeated.
        ([(1, 0), (1, 1), (2, 5)], [(1, 0), (1, 1), (2, 5)]),
        ([(1, None), (1, 3), (2, None), (2, 2)], [(1, None), (2, None), (2, 2)]),
        ([(1, 3), (2, None)], [(1, 3), (2, None)]),
        ([(1, math.inf), (1, 1), (2, math.nan)], [(1, math.inf), (1, 1), (2, math.nan)]),
        # Several processes of one attempt, in no order.
        ([(1, 1), (1, 0), (1, 2)], [(1, 1), (1, 0), (1, 2)]),
    ],
)
def test_the_last_attempt_stands_from_its_first_step_on(
    points: list[tuple[int, float | None]], expected: list[tuple[int, float | None]]
) -> None:
    assert str(kept(*points)) == str(expected)


def test_metrics_are_apart_and_replicas_go_on_together() -> None:
    steps = FirstSteps()
    assert not steps.note(PointKey("loss", 1, 0, 1000))
    assert not steps.note(PointKey("epoch", 2, 0, 1))
    assert steps.note(PointKey("loss", 2, 0, 900))
    assert not steps.note(PointKey("loss", 2, 0, 901)), "told once"
    assert not steps.keeps(PointKey("epoch", 1, 0, 5))
    assert steps.keeps(PointKey("loss", 1, 0, 899))
    assert not steps.keeps(PointKey("loss", 1, 1, 950)), "this replica has not reported again yet"
    assert steps.note(PointKey("loss", 2, 1, 850)), "it goes on from before"
    assert not steps.keeps(PointKey("loss", 1, 0, 899))


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 20)).map(
            lambda one: range(one[0], one[0] + one[1])
        ),
        min_size=1,
        max_size=5,
    )
)
def test_each_step_is_there_once_and_of_the_last_attempt_that_reached_it(
    attempts: list[range],
) -> None:
    whole = [(number, step) for number, steps in enumerate(attempts, 1) for step in steps]
    found = kept(*whole)
    assert len({step for _, step in found}) == len(found)
    assert [step for _, step in found] == sorted(step for _, step in found)
    last = max(step for _, step in found)
    assert found[-1] == (len(attempts), last)
