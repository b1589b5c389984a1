"""What accounts used: every attempt once, whatever is told twice, in another order, or while it is read."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import DAY_S, Cause, EndedAttempt, Replica, Resources, Session
from controlplane.history.values import AttemptCharge
from controlplane.scheduler.fair_share import Past
from controlplane.sessions.charges import charges_of
from controlplane.state.charge_totals import AFRESH_EVERY_S, Accounts
from controlplane.state.state_cache import StateCache
from tests.support.examples import examples
from tests.unit.controlplane.builders import session

HALF = 7.0 * DAY_S
NOW = 2_900.0 * HALF + 1000.0
HOUR_S = 3600.0


def attempt(number: int, ended_at: float, held_s: float, gpu: int = 1000) -> EndedAttempt:
    return EndedAttempt(
        number=number,
        cause=Cause.COMPLETED,
        placed_at=ended_at - held_s,
        ended_at=ended_at,
        gpu_thousandths=gpu,
        held_s=held_s,
    )


def running(gpu: int = 2000, **facts: object) -> Session:
    gang = (Replica(rank=0, node="a", resources=Resources(gpu_thousandths=gpu)),)
    made = replace(session(project="vision"), state=SessionState.RUNNING, attempt=1, replicas=gang)
    return replace(made, **facts)  # type: ignore[arg-type]


def ended(one: Session, held_s: float, at: float = NOW, **facts: object) -> Session:
    """The same after its attempt."""
    gpu = sum(each.resources.gpu_thousandths for each in one.replicas)
    over = attempt(one.attempt, at, held_s, gpu)
    facts = {"state": SessionState.SUCCEEDED, **facts}
    return replace(one, attempts=(*one.attempts, over), replicas=(), **facts)  # type: ignore[arg-type]


def rows_of(*sessions: Session) -> list[AttemptCharge]:
    return [row for one in sessions for row in charges_of(one)]


def read(accounts: Accounts, rows: list[AttemptCharge], name: str = "vision") -> None:
    with accounts.reading(name, NOW, 0.0) as reading:
        reading.take(rows)
        reading.finish()


def of(*spans: tuple[int, float, float]) -> float:
    """What spans come to, each (thousandths, held for, ended so long ago)."""
    past = Past(HALF)
    for gpu, held_s, ago_s in spans:
        past.held(gpu, NOW - ago_s - held_s, NOW - ago_s)
    return past.lately(NOW)


def accounts_of(held_s: float = 0.0) -> Accounts:
    return Accounts(lambda _session, _now: held_s, HALF)


def test_what_runs_counts_from_when_it_was_placed_and_once_when_it_has_ended() -> None:
    accounts, one = accounts_of(HOUR_S), running()
    accounts.put_session(one)
    accounts.settle(NOW, 10)
    expected = of((2000, HOUR_S, 0.0))
    assert accounts.lately("vision", NOW) == pytest.approx(expected)
    over = ended(one, HOUR_S)
    accounts.put_session(over)
    accounts.put_session(over)
    assert accounts.lately("vision", NOW) == pytest.approx(expected)
    accounts.remove_session(over)
    assert accounts.lately("vision", NOW) == pytest.approx(expected)
    assert accounts.lately("nobody", NOW) == 0.0


def test_one_that_came_and_went_before_it_was_looked_at_counts_too() -> None:
    accounts, one = accounts_of(HOUR_S), running()
    accounts.put_session(one)
    accounts.put_session(ended(one, 60.0))
    accounts.settle(NOW, 10)
    assert accounts.lately("vision", NOW) == pytest.approx(of((2000, 60.0, 0.0)))


def test_a_session_that_is_placed_again_holds_once() -> None:
    accounts, one = accounts_of(60.0), running()
    accounts.put_session(one)
    accounts.settle(NOW, 10)
    again = replace(ended(one, 60.0, state=SessionState.RUNNING), attempt=2, replicas=one.replicas)
    accounts.put_session(again)
    accounts.settle(NOW, 10)
    assert accounts.lately("vision", NOW) == pytest.approx(of((2000, 60.0, 0.0), (2000, 60.0, 0.0)))


@pytest.mark.parametrize("is_live", [True, False])
def test_rows_of_a_session_that_is_live_or_was_seen_to_end_count_once(is_live: bool) -> None:
    accounts, one = accounts_of(), running()
    over = ended(one, HOUR_S)
    accounts.put_session(over)
    if not is_live:
        accounts.remove_session(over)
    read(accounts, rows_of(over))
    assert accounts.lately("vision", NOW) == of((2000, HOUR_S, 0.0))
    accounts.remove_session(over)
    read(accounts, rows_of(over))
    assert accounts.lately("vision", NOW) == of((2000, HOUR_S, 0.0))


@pytest.mark.parametrize("is_exported", [True, False])
def test_a_session_that_leaves_while_it_is_read_counts_once(is_exported: bool) -> None:
    accounts, one, other = accounts_of(), running(), running(4000)
    over = ended(one, HOUR_S)
    accounts.put_session(over)
    accounts.put_session(ended(other, 60.0))
    with accounts.reading("vision", NOW, 0.0) as reading:
        accounts.remove_session(over)
        reading.take(rows_of(over) if is_exported else [])
        reading.finish()
    expected = of((2000, HOUR_S, 0.0), (4000, 60.0, 0.0))
    assert accounts.lately("vision", NOW) == expected
    read(accounts, rows_of(over))
    assert accounts.lately("vision", NOW) == expected


def test_a_reading_that_fails_leaves_what_was_known() -> None:
    accounts, one = accounts_of(), running()
    over = ended(one, HOUR_S)
    accounts.put_session(over)
    with accounts.reading("vision", NOW, 0.0) as reading:
        reading.take(rows_of(ended(running(), HOUR_S)))
        accounts.remove_session(over)
    assert not accounts.is_known("vision")
    assert accounts.lately("vision", NOW) == of((2000, HOUR_S, 0.0))
    read(accounts, rows_of(over))
    assert accounts.is_known("vision")
    assert accounts.lately("vision", NOW) == of((2000, HOUR_S, 0.0))


def read_at(accounts: Accounts, name: str, at: float) -> None:
    with accounts.reading(name, NOW, at) as reading:
        reading.finish()


def test_who_has_a_session_is_read_first_then_whoever_was_read_longest_ago() -> None:
    accounts = accounts_of()
    for name in ("a", "b"):
        accounts.put_session(replace(session(project=name)))
    assert accounts.unread(NOW, 5.0) == "a"
    read_at(accounts, "a", 5.0)
    assert accounts.unread(NOW, 6.0) == "b"
    read_at(accounts, "b", 6.0)
    assert accounts.unread(NOW, 6.0) is None
    assert accounts.unread(NOW, 5.0 + AFRESH_EVERY_S) == "a"
    accounts.put_session(replace(session(project="c")))
    assert accounts.unread(NOW, 5.0 + AFRESH_EVERY_S) == "c"
    accounts.put_session(replace(session(project="", owner="lee")))
    assert accounts.names() == ["a", "b", "c", "lee"]


def test_whoever_left_before_its_end_was_seen_is_looked_for_in_the_ledger() -> None:
    accounts, one = accounts_of(HOUR_S), running()
    accounts.put_session(one)
    accounts.settle(NOW, 10)
    read(accounts, [])
    assert accounts.unread(NOW, 0.0) is None
    with accounts.reading("vision", NOW, 0.0) as reading:
        accounts.remove_session(one)
        reading.finish()
    assert accounts.holding("vision") == []
    assert accounts.unread(NOW, 0.0) == "vision"
    read(accounts, rows_of(ended(one, HOUR_S)))
    assert accounts.unread(NOW, 0.0) is None
    assert accounts.lately("vision", NOW) == of((2000, HOUR_S, 0.0))
    accounts.read_all_again()
    assert accounts.unread(NOW, 0.0) == "vision"


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("is_told_meanwhile", [False, True])
def test_an_end_of_which_we_are_told_after_its_row_was_read_counts_once(
    is_waiting: bool, is_told_meanwhile: bool
) -> None:
    """The history is ahead of what we know of the store."""
    accounts, one = accounts_of(), running()
    waits = replace(one, state=SessionState.QUEUED, attempt=0, replicas=())
    accounts.put_session(waits if is_waiting else replace(waits, id="another"))
    over, expected = ended(one, HOUR_S), of((2000, HOUR_S, 0.0))
    with accounts.reading("vision", NOW, 0.0) as reading:
        reading.take(rows_of(over))
        if is_told_meanwhile:
            accounts.put_session(over)
        reading.finish()
    assert accounts.lately("vision", NOW) == expected
    if not is_told_meanwhile:
        accounts.put_session(one)
        accounts.put_session(over)
    assert accounts.lately("vision", NOW) == expected
    read(accounts, rows_of(over))
    assert accounts.lately("vision", NOW) == expected
    accounts.remove_session(over)
    assert accounts.lately("vision", NOW) == expected


def test_without_a_half_life_nothing_is_read() -> None:
    accounts = Accounts(lambda _session, _now: 0.0, 0.0)
    accounts.put_session(ended(running(), 60.0))
    assert accounts.unread(NOW, 0.0) is None
    assert accounts.is_known("vision")
    assert accounts.lately("vision", NOW) == 0.0


def test_a_step_of_the_wall_clock_is_not_what_was_held() -> None:
    steady = [0.0]
    known = StateCache(lambda: steady[0], half_life_s=HALF)
    one = running()
    known.put_session(replace(one, state=SessionState.QUEUED, attempt=0, replicas=()), 2)
    known.put_session(one, 3)
    known.held.placed(one.id, 1, by_us=True)
    steady[0] += 7
    known.accounts.settle(NOW + HOUR_S, 10)
    found = known.accounts.lately("vision", NOW + HOUR_S)
    past = Past(HALF)
    past.held(2000, NOW + HOUR_S - 7, NOW + HOUR_S)
    assert found == pytest.approx(past.lately(NOW + HOUR_S))


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 32))
def test_whatever_happens_it_is_what_a_new_leader_would_find(seed: int) -> None:
    """One that saw everything, one that reads now and then, and one that comes only at the end agree."""
    rng = random.Random(seed)
    seeing, reading = accounts_of(HOUR_S), accounts_of(HOUR_S)
    live: dict[str, Session] = {}
    ledger: list[AttemptCharge] = []
    for step in range(rng.randint(1, 30)):
        what = rng.choice(["submit", "place", "end", "leave", "read"])
        some = [one for one in live.values() if rng.random() < 0.5]
        if what == "submit":
            one = replace(session(project="vision"), id=f"s{step}")
            live[one.id] = one
        for one in some:
            now = one
            if what == "place" and one.state is SessionState.QUEUED:
                gang = running(rng.choice([500, 1000, 8000])).replicas
                now = replace(
                    one, state=SessionState.RUNNING, attempt=one.attempt + 1, replicas=gang
                )
            if what == "end" and one.state is SessionState.RUNNING:
                state = rng.choice([SessionState.QUEUED, SessionState.SUCCEEDED])
                now = ended(one, rng.uniform(1, HALF), NOW - rng.uniform(0, 8 * HALF), state=state)
            live[one.id] = now
        for one in live.values():
            for accounts in (seeing, reading):
                accounts.put_session(one)
        for one in some:
            if what == "leave" and one.state is SessionState.SUCCEEDED:
                ledger += rows_of(one)
                del live[one.id]
                seeing.remove_session(one)
                reading.remove_session(one)
        for accounts in (seeing, reading):
            accounts.settle(NOW, rng.choice([1, 100]))
        if what == "read" and "vision" in reading.names():
            read(reading, ledger)
    fresh = accounts_of(HOUR_S)
    for one in live.values():
        fresh.put_session(one)
    for accounts in (seeing, reading, fresh):
        accounts.settle(NOW, 1000)
    fresh.put_session(replace(session(project="vision"), id="last"))
    read(fresh, ledger)
    assert seeing.lately("vision", NOW) == fresh.lately("vision", NOW)
    assert reading.lately("vision", NOW) == fresh.lately("vision", NOW)
