"""What projects have used: each allocated second once, whatever is told twice or in another order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    DAY_S,
    Budget,
    Cause,
    EndedAttempt,
    Project,
    Replica,
    Resources,
    Session,
)
from controlplane.operations.known import Known
from controlplane.operations.usage import Charge, Usage
from tests.unit.controlplane.builders import session

BUDGET = Budget(gpu_seconds=1.0, period_days=1, anchor=0.0)
NOW = 2.5 * DAY_S
SINCE = 2.0 * DAY_S
VISION = Project(name="vision", members=frozenset({"kim"}), budget=BUDGET)


def attempt(number: int, ended_at: float, held_s: float, gpu: int = 1000) -> EndedAttempt:
    return EndedAttempt(
        number=number,
        cause=Cause.COMPLETED,
        placed_at=ended_at - held_s,
        ended_at=ended_at,
        gpu_thousandths=gpu,
        held_s=held_s,
    )


def of(*attempts: EndedAttempt, project: str = "vision") -> Session:
    return replace(session(project=project), attempts=attempts)


def usage(held_s: float = 0.0, project: Project = VISION) -> Usage:
    made = Usage(lambda _session, _now: held_s)
    made.put_project(project, ())
    return made


def rows(*sessions: Session) -> dict[tuple[str, int], Charge]:
    return {
        (one.id, each.number): Charge(each.gpu_thousandths, each.held_s, each.ended_at)
        for one in sessions
        for each in one.attempts
    }


def used(of_all: Usage, now: float = NOW) -> dict[str, float]:
    return {one.project: one.gpu_seconds for one in of_all.used(now)}


def test_it_is_not_known_before_the_ledger_was_read() -> None:
    made = usage()
    assert used(made) == {}
    assert made.unknown(NOW) == {"vision": SINCE}
    made.learn("vision", SINCE, {})
    assert made.unknown(NOW) == {}
    assert used(made) == {"vision": 0.0}


def test_an_attempt_counts_once_live_exported_and_read_again() -> None:
    made, ended = usage(), of(attempt(1, SINCE + 100, 40), attempt(2, SINCE + 200, 10, gpu=500))
    made.put_session(ended)
    made.learn("vision", SINCE, rows(ended))
    made.put_session(ended)
    assert used(made) == {"vision": 45.0}
    made.remove_session(ended)
    made.learn("vision", SINCE, rows(ended))
    assert used(made) == {"vision": 45.0}


def test_a_second_counts_for_the_period_in_which_it_passed() -> None:
    made, ended = usage(), of(attempt(1, SINCE + 10, 50))
    made.learn("vision", SINCE - DAY_S, rows(ended))
    assert used(made) == {"vision": 10.0}
    assert used(made, SINCE - 1) == {"vision": 40.0}
    assert used(made, SINCE + DAY_S) == {"vision": 0.0}
    assert used(made) == {"vision": 10.0}


def test_what_a_project_used_before_its_record_does_not_count() -> None:
    made = usage(project=replace(VISION, created_at=SINCE + 5))
    made.learn("vision", SINCE + 5, rows(of(attempt(1, SINCE + 10, 50))))
    assert used(made) == {"vision": 5.0}


def running(gpu: int = 2000) -> Session:
    gang = (Replica(rank=0, node="a", resources=Resources(gpu_thousandths=gpu)),)
    return replace(session(project="vision"), state=SessionState.RUNNING, attempt=1, replicas=gang)


@pytest.mark.parametrize(("held_s", "counted"), [(0, 0.0), (100, 200.0), (10 * DAY_S, DAY_S)])
def test_what_runs_counts_as_far_as_it_lies_in_the_period(held_s: float, counted: float) -> None:
    made = usage(held_s)
    made.learn("vision", SINCE, {})
    one = running()
    made.put_session(one)
    assert used(made) == {"vision": counted}
    made.put_session(replace(one, state=SessionState.FINALIZING))
    assert used(made) == {"vision": 0.0}


def test_a_clock_that_is_set_back_finds_what_was_read() -> None:
    made, ended = usage(), of(attempt(1, SINCE - 10, 5))
    made.put_session(ended)
    made.learn("vision", SINCE, {})
    assert used(made, SINCE - 3600) == {}
    assert made.unknown(SINCE - 3600) == {"vision": SINCE - DAY_S}
    made.learn("vision", SINCE - DAY_S, {})
    assert used(made, SINCE - 3600) == {"vision": 5.0}


def test_who_has_no_budget_is_not_summed() -> None:
    made = usage(project=replace(VISION, budget=None))
    assert used(made) == {} == made.unknown(NOW)
    made.put_project(
        VISION, [of(attempt(1, SINCE + 1, 1)), of(attempt(1, SINCE + 1, 1), project="q")]
    )
    made.learn("vision", SINCE, {})
    assert used(made) == {"vision": 1.0}
    made.remove_project("vision")
    assert used(made) == {}


def test_a_step_of_the_wall_clock_uses_nothing_of_a_budget() -> None:
    steady = [0.0]
    known = Known(lambda: steady[0])
    known.put_project(VISION, 1)
    known.usage.learn("vision", SINCE, {})
    one = running()
    known.put_session(replace(one, state=SessionState.QUEUED, attempt=0, replicas=()), 2)
    known.put_session(one, 3)
    known.held.placed(one.id, 1, by_us=True)
    steady[0] += 7
    # Nobody knows when it was placed by the wall clock: it is an hour ahead now.
    [change] = known.used(NOW + 3600)
    assert change.used.gpu_seconds == 14.0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_order_and_no_repetition_makes_a_difference(data: st.DataObject) -> None:
    day = st.floats(-2 * DAY_S, DAY_S, allow_nan=False)
    made_of = st.builds(
        attempt,
        st.just(1),
        day.map(lambda at: SINCE + at),
        st.floats(0, 3 * DAY_S),
        st.sampled_from([0, 250, 1000, 8000]),
    )
    sessions = [of(one) for one in data.draw(st.lists(made_of, max_size=8))]
    first, second = usage(), usage()
    for one in sessions:
        first.put_session(one)
    first.learn("vision", SINCE, {})
    second.learn("vision", SINCE, {})
    told = data.draw(st.permutations([*sessions, *sessions]))
    for one in told:
        if data.draw(st.booleans()):
            second.put_session(one)
        else:
            second.learn("vision", SINCE, rows(*data.draw(st.permutations([one, *sessions[:3]]))))
    for one in sessions:
        second.put_session(one)
    assert used(first) == used(second)
    exact = sum(
        one.gpu_thousandths
        * max(min(one.ended_at, SINCE + DAY_S) - max(one.ended_at - one.held_s, SINCE), 0.0)
        for each in sessions
        for one in each.attempts
    )
    assert used(first)["vision"] == pytest.approx(exact / 1000, abs=0.1)
