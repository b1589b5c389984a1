"""Readings over time: pieces that are put together, once and again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from controlplane.history.telemetry_rollup import Cells, coarser

SINCE = 1_800_000_000.25


@pytest.mark.parametrize("seconds", [1.05, 0.1, 1 / 3, 7.7])
@pytest.mark.parametrize("together", [2, 3, 4, 10])
def test_pieces_that_were_put_together_are_put_together_again(
    seconds: float, together: int
) -> None:
    """Steps that are whole numbers of those before have no piece twice, however sums are rounded."""
    cells, count = Cells(), 60
    for number in range(count):
        cells.add(SINCE + number * seconds, seconds, {"": (float(number),)})
    until = SINCE + count * seconds
    once = coarser(cells, SINCE, until, seconds)
    found = coarser(once, SINCE, until, seconds * together)
    assert len(once) == count
    assert len(found) == count // together
    assert all(one < other for one, other in pairwise(found.starts))
    assert list(found.columns[""].counts) == [float(together)] * len(found)
