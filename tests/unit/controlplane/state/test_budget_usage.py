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
from controlplane.history.values import AttemptCharge
from controlplane.sessions.charges import charges_of
from controlplane.state.charge_totals import Accounts
from controlplane.state.state_cache import StateCache
from tests.support.examples import examples
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


def accounts(held_s: float = 0.0, project: Project = VISION) -> Accounts:
    """Without a half-life: of the ledger no more is read than the period."""
    made = Accounts(lambda _session, _now: held_s, 0.0)
    made.put_project(project)
    return made


def rows(*sessions: Session) -> list[AttemptCharge]:
    return [row for one in sessions for row in charges_of(one)]


def read(of_all: Accounts, *sessions: Session, now: float = NOW) -> None:
    with of_all.reading("vision", now, 0.0) as reading:
        reading.take(row for row in rows(*sessions) if row.ended_at > reading.since)
        reading.finish()


def used(of_all: Accounts, now: float = NOW) -> dict[str, float]:
    return {one.project: one.gpu_seconds for one in of_all.used(now)}


def test_it_is_not_known_before_the_ledger_was_read() -> None:
    made = accounts()
    assert used(made) == {}
    assert made.unread(NOW, 0.0) == "vision"
    read(made)
    assert made.unread(NOW, 0.0) is None
    assert made.counted_since("vision", NOW) == SINCE
    assert used(made) == {"vision": 0.0}


def test_an_attempt_counts_once_live_exported_and_read_again() -> None:
    made, ended = accounts(), of(attempt(1, SINCE + 100, 40), attempt(2, SINCE + 200, 10, gpu=500))
    made.put_session(ended)
    read(made, ended)
    made.put_session(ended)
    assert used(made) == {"vision": 45.0}
    made.remove_session(ended)
    assert used(made) == {"vision": 45.0}
    read(made, ended)
    assert used(made) == {"vision": 45.0}


def test_a_second_counts_for_the_period_in_which_it_passed() -> None:
    made, ended = accounts(), of(attempt(1, SINCE + 10, 2 * DAY_S + 50))
    read(made, ended, now=SINCE - 1)
    assert used(made) == {"vision": 10.0}
    assert used(made, SINCE - 1) == {"vision": DAY_S}
    assert used(made, SINCE + DAY_S) == {"vision": 0.0}
    assert used(made) == {"vision": 10.0}


def test_another_budget_in_the_same_periods_needs_no_reading() -> None:
    made, ended = accounts(), of(attempt(1, SINCE + 10, 5))
    read(made, ended)
    made.put_project(replace(VISION, budget=replace(BUDGET, gpu_seconds=9.0)))
    assert used(made) == {"vision": 5.0}
    with made.reading("vision", NOW, 0.0) as reading:
        made.put_project(replace(VISION, budget=replace(BUDGET, period_days=2)))
        reading.finish()
    assert used(made) == {}
    assert made.unread(NOW, 0.0) == "vision"
    read(made, ended, of(attempt(1, SINCE - 10, 7)))
    assert used(made) == {"vision": 5.0}


def test_what_a_project_used_before_its_record_does_not_count() -> None:
    made = accounts(project=replace(VISION, created_at=SINCE + 5))
    read(made, of(attempt(1, SINCE + 10, 50)))
    assert used(made) == {"vision": 5.0}


def running(gpu: int = 2000) -> Session:
    gang = (Replica(rank=0, node="a", resources=Resources(gpu_thousandths=gpu)),)
    return replace(session(project="vision"), state=SessionState.RUNNING, attempt=1, replicas=gang)


@pytest.mark.parametrize(("held_s", "counted"), [(0, 0.0), (100, 200.0), (10 * DAY_S, DAY_S)])
def test_what_runs_counts_as_far_as_it_lies_in_the_period(held_s: float, counted: float) -> None:
    made = accounts(held_s)
    read(made)
    one = running()
    made.put_session(one)
    assert used(made) == {"vision": counted}
    made.put_session(replace(one, state=SessionState.FINALIZING))
    assert used(made) == {"vision": 0.0}


def test_a_clock_that_is_set_back_has_the_ledger_read_again() -> None:
    made, ended = accounts(), of(attempt(1, SINCE - 10, 5))
    made.put_session(ended)
    read(made)
    assert used(made, SINCE - 3600) == {}
    assert made.unread(SINCE - 3600, 0.0) == "vision"
    read(made, now=SINCE - 3600)
    assert used(made, SINCE - 3600) == {"vision": 5.0}


def test_who_has_no_budget_is_not_summed() -> None:
    made = accounts(project=replace(VISION, budget=None))
    assert used(made) == {}
    assert made.unread(NOW, 0.0) is None
    for one in (of(attempt(1, SINCE + 1, 1)), of(attempt(1, SINCE + 1, 1), project="q")):
        made.put_session(one)
    made.put_project(VISION)
    assert made.unread(NOW, 0.0) == "vision"
    read(made)
    assert used(made) == {"vision": 1.0}
    made.remove_project("vision")
    assert used(made) == {}
    made.put_project(replace(VISION, created_at=NOW))
    assert made.unread(NOW, 0.0) == "vision"


def test_a_step_of_the_wall_clock_uses_nothing_of_a_budget() -> None:
    steady = [0.0]
    known = StateCache(lambda: steady[0])
    known.put_project(VISION, 1)
    read(known.accounts)
    one = running()
    known.put_session(replace(one, state=SessionState.QUEUED, attempt=0, replicas=()), 2)
    known.put_session(one, 3)
    known.held.placed(one.id, 1, by_us=True)
    steady[0] += 7
    # Nobody knows when it was placed by the wall clock: it is an hour ahead now.
    [change] = known.used(NOW + 3600)
    assert change.used.gpu_seconds == 14.0


@settings(max_examples=examples(200), deadline=None)
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
    first, second = accounts(), accounts()
    for one in sessions:
        first.put_session(one)
    read(first)
    read(second)
    left: list[Session] = []
    for one in data.draw(st.permutations([*sessions, *sessions])):
        what = data.draw(st.sampled_from(["told", "leaves", "read", "read meanwhile"]))
        if one not in left:
            second.put_session(one)
        if what == "leaves" and one not in left:
            left.append(one)
            second.remove_session(one)
        elif what == "read":
            read(second, *left)
        elif what == "read meanwhile" and one not in left:
            with second.reading("vision", NOW, 0.0) as reading:
                reading.take(row for row in rows(*left) if row.ended_at > reading.since)
                left.append(one)
                second.remove_session(one)
                reading.finish()
    assert used(first) == used(second)
    exact = sum(
        one.gpu_thousandths
        * max(min(one.ended_at, SINCE + DAY_S) - max(one.ended_at - one.held_s, SINCE), 0.0)
        for each in sessions
        for one in each.attempts
    )
    assert used(first)["vision"] == pytest.approx(exact / 1000, abs=0.1)
