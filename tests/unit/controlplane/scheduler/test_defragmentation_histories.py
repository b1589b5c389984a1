"""Random histories of a cluster in which sessions move: who moves comes back, who it is done for starts, and it ends."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Plan
from controlplane.domain.values import Priority, Session
from controlplane.scheduler import QueueQueries
from controlplane.scheduler.defragmentation import MOST_MOVED
from controlplane.scheduler.preemption_policy import LEAST_RUN_S, InClass, Rules
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.scheduler.test_defragmentation import state
from tests.unit.controlplane.scheduler.test_giving_way_histories import (
    STEP_S,
    WIDTH,
    History,
)

STEPS = 300
SEEDS = range(24)


class Moving(History):
    """A history that checks at each step what must come of moves."""

    def step(self) -> None:
        moved = len(self.moved)
        self.pass_()
        for _, gone, comes in self.moved[:moved]:
            self._check_came(gone, comes)
        self.run_for(STEP_S)

    def _check_came(self, gone: Session, comes: Session) -> None:
        """A step later who moved has left: it runs again, and so does the one it was done for."""
        now = self.sessions.get(gone.id)
        assert now is None or now.attempt > gone.attempt, f"{gone.name} did not come back"
        there = self.sessions.get(comes.id)
        assert there is None or there.attempt > comes.attempt, f"{comes.name} does not start"


def drawn(seed: int, steps: int = STEPS, *, asks: bool = False, moves: bool = True) -> Moving:
    """A history: many small sessions that end at different times, and now and then a wide one."""
    rng, asking = random.Random(seed), random.Random(seed)
    rules = Rules(
        in_class=rng.choice([InClass.NOBODY, InClass.NOBODY, InClass.LIMITS]), moves=moves
    )
    history = Moving(rules, rng.randint(4, 8))
    number = 0
    for _ in range(steps):
        for _ in range(rng.choice([0, 0, 0, 1])):
            number += 1
            is_wide = rng.random() < 0.3
            gpus = rng.choice([3, WIDTH]) if is_wide else 1
            count = rng.choice([1, 1, 2]) if is_wide else 1
            spec = {
                "priority": rng.choice([Priority.NORMAL] * 8 + [Priority.LOW, Priority.HIGH]),
                "time_limit_s": rng.choice([0.0, 0.0, 4 * 3_600.0, 24 * 3_600.0]),
            }
            one = session(
                gpus * 1000,
                count,
                id=f"s{number:015}",
                name=f"kim/None/{number}",
                created_at=history.now,
                spec=spec,
                cpu=1000,
            )
            needs_s = rng.choice([3_000.0, 6_000.0] if is_wide else [3_000.0, 9_000.0, 20_000.0])
            history.submit(one, needs_s, 600.0)
        if asks:
            ask(history, asking)
        history.step()
    return history


def ask(history: Moving, rng: random.Random) -> None:
    """Ask what if, of one that waits and of one that does not: nothing is another one after."""
    before, answers = state(history.index), QueueQueries(history.index)
    wide = session(rng.choice([2, WIDTH]) * 1000, created_at=history.now, cpu=1000)
    answers.would_start(wide, history.now)
    waiting = [one for one in history.sessions.values() if one.state is SessionState.QUEUED]
    if waiting:
        one = rng.choice(waiting)
        answers.what_if(one.id, wide.spec, history.now)
    assert state(history.index) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_who_moves_comes_back_and_who_it_is_done_for_starts(seed: int) -> None:
    history = drawn(seed)
    for_each = Counter((comes.id, comes.attempt) for _, _, comes in history.moved)
    assert all(count <= MOST_MOVED for count in for_each.values())
    # For each start sessions move once.
    rounds = Counter((comes, attempt) for _, comes, attempt in _rounds(history))
    assert all(count == 1 for count in rounds.values())
    by_one: dict[str, list[float]] = {}
    for at, gone, _ in history.moved:
        by_one.setdefault(gone.id, []).append(at)
    for times in by_one.values():
        assert all(b - a >= LEAST_RUN_S for a, b in pairwise(times))


def _rounds(history: Moving) -> set[tuple[float, str, int]]:
    return {(at, comes.id, comes.attempt) for at, _, comes in history.moved}


def test_sessions_do_move_in_these_histories_and_never_where_it_is_switched_off() -> None:
    some = [9, 11]
    assert all(drawn(seed).moved for seed in some)
    assert not any(drawn(seed, moves=False).moved for seed in some)


@pytest.mark.parametrize("seed", [9, 11])
def test_the_same_history_has_the_same_plans(seed: int) -> None:
    one, other = drawn(seed), drawn(seed)
    assert _decided(one.plans) == _decided(other.plans)


def _decided(plans: list[Plan]) -> list[tuple[object, object]]:
    return [(one.placements, one.preemptions) for one in plans]


@pytest.mark.parametrize("seed", [0, 9, 11])
def test_asking_changes_nothing_of_what_comes(seed: int) -> None:
    assert _decided(drawn(seed, asks=True).plans) == _decided(drawn(seed).plans)
