"""Failures of steps: which count, when people see them, when they are tried again, and what administrators read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from controlplane.domain.errors import Denied, Unavailable
from controlplane.history.errors import HistoryFenced, HistoryUnavailable
from controlplane.objects.errors import BlobDamaged, ObjectsUnavailable
from controlplane.store.interface import CommitUnknown, StoreRefused, StoreUnavailable
from controlplane.submissions.pipeline import Stage
from controlplane.submissions.step_failures import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SHOWN_AFTER,
    Failure,
    Shown,
    StepKey,
    after_failure,
    found_by_step,
    is_unexpected,
)

PREDICT = Shown("predict")
ERROR = KeyError("password=hunter2")


def failed(known: Failure | None, shown: Shown = PREDICT, *, at: float = 0.0) -> Failure:
    return after_failure(known, shown, ERROR, time=1_000.0 + at, now=at)


def failed_often(count: int, shown: Shown = PREDICT) -> list[Failure]:
    failures: list[Failure] = []
    for number in range(count):
        failures.append(failed(failures[-1] if failures else None, shown, at=float(number)))
    return failures


def test_people_see_it_after_a_few_in_a_row_since_the_first() -> None:
    failures = failed_often(SHOWN_AFTER + 1)
    shown = [one.is_shown for one in failures]
    assert shown == [False] * (SHOWN_AFTER - 1) + [True, True]
    assert {one.since for one in failures} == {1_000.0}
    evaluate = failed(failures[-1], Shown("evaluate"), at=50.0)
    assert (evaluate.count, evaluate.since, evaluate.is_shown) == (1, 1_050.0, False)


def test_the_next_leader_goes_on_with_what_people_see() -> None:
    one = failed(None, Shown("predict", failing_since=17.0))
    assert (one.is_shown, one.since) == (True, 17.0)


def test_it_is_tried_again_at_once_then_with_growing_pauses_up_to_the_longest() -> None:
    pauses = [one.next_at - at for at, one in enumerate(failed_often(100))]
    assert pauses[: SHOWN_AFTER - 1] == [0.0] * (SHOWN_AFTER - 1)
    later = pauses[SHOWN_AFTER - 1 :]
    assert later[:2] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert all(a < b or a == b == LONGEST_PAUSE_S for a, b in pairwise(later))
    assert later[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (HistoryUnavailable("away"), False),
        (ObjectsUnavailable("away"), False),
        (Unavailable("a node is away"), False),
        (StoreUnavailable("away"), False),
        (CommitUnknown("away"), False),
        (HistoryFenced("a later leader"), False),
        (BlobDamaged("damaged"), True),
        (StoreRefused("too large"), True),
        (Denied("no"), True),
        (ValueError("'NEW' is not a valid state"), True),
    ],
)
def test_outages_are_conditions_of_their_own(error: Exception, counts: bool) -> None:
    assert is_unexpected(error) is counts


def test_administrators_read_how_many_fail_at_a_step_and_where_the_oldest_does() -> None:
    def raised() -> Exception:
        try:
            Stage("nonsense password=hunter2")
        except ValueError as error:
            return error
        raise AssertionError

    shown = Shown("predict", 5.0)
    older = after_failure(None, shown, raised(), time=9.0, now=0.0)
    newer = after_failure(None, Shown("predict", 7.0), BlobDamaged("blob 1"), time=9.0, now=0.0)
    again = after_failure(None, Shown("reevaluate", 6.0), BlobDamaged("blob 2"), time=9.0, now=0.0)
    found = found_by_step(
        [
            (StepKey("u1"), newer),
            (StepKey("u2"), older),
            (StepKey("u3"), failed(None)),
            (StepKey("u4", 2), again),
        ]
    )
    assert found == {
        "predict": "2 submissions; the first, u2: ValueError in test_step_failures.py:"
        f"{raised().__traceback__.tb_lineno}",  # type: ignore[union-attr]
        "reevaluate": "1 submission; the first, u4: BlobDamaged: blob 2",
    }
