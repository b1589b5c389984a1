from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.scheduler.preemption_policy import (
    DUE,
    IDLE_LEAST_RUN_S,
    LEAST_RUN_S,
    MIN_RUN_S,
    RULES,
    InClass,
    PreemptionReason,
    Preemptor,
    Rules,
    RunningAttempt,
    are_fair,
    fewest,
    ground,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIKE = Preemptor(level=DUE)


def gives_way(runner: RunningAttempt, taker: Preemptor, rules: Rules = RULES) -> bool:
    return ground(runner, taker, rules) is not None


def runner(name: int, *, level: int = 5, loses: float = 1.0) -> RunningAttempt:
    return RunningAttempt(str(name), level, MIN_RUN_S, loses, is_preemptible=True)


def test_only_a_whole_level_counts() -> None:
    one = runner(1, level=5)
    assert ground(one, Preemptor(level=4)) is PreemptionReason.LEVEL
    assert not gives_way(one, Preemptor(level=5))
    assert not gives_way(one, Preemptor(level=6))
    assert gives_way(one._replace(level=0), Preemptor(level=DUE))


def test_a_class_counts_before_a_level() -> None:
    one = runner(1, level=5)._replace(priority=2)
    assert ground(one, Preemptor(level=9, priority=3)) is PreemptionReason.CLASS
    assert not gives_way(one, Preemptor(level=DUE, priority=1))


def test_nobody_gives_way_within_its_minimum_or_against_its_owner() -> None:
    one = runner(1)
    higher, alike = Preemptor(level=0, priority=9), Preemptor(level=0)
    assert gives_way(one._replace(ran_s=LEAST_RUN_S), higher)
    assert not gives_way(one._replace(ran_s=LEAST_RUN_S - 1), higher)
    assert not gives_way(one._replace(ran_s=MIN_RUN_S - 1), alike)
    assert not gives_way(one._replace(is_preemptible=False), higher)
    idle = one._replace(priority=1, ran_s=IDLE_LEAST_RUN_S)
    assert gives_way(idle, higher)
    assert gives_way(idle._replace(ran_s=5), higher, Rules(least_run_s=5))
    assert not gives_way(idle._replace(ran_s=IDLE_LEAST_RUN_S - 1), higher)


def test_within_a_class_only_what_has_a_save_gives_way() -> None:
    one = runner(1)._replace(has_save=False)
    assert not gives_way(one, Preemptor(level=0))
    assert gives_way(one, Preemptor(level=0, priority=1))


@pytest.mark.parametrize(
    ("in_class", "has_limit", "gives"),
    [
        (InClass.NOBODY, True, False),
        (InClass.LIMITS, True, True),
        (InClass.LIMITS, False, False),
        (InClass.SERVICE, False, True),
    ],
)
def test_settings_say_to_whom_one_gives_way_within_a_class(
    in_class: InClass, has_limit: bool, gives: bool
) -> None:
    rules = Rules(in_class=in_class)
    taker = Preemptor(level=0, has_limit=has_limit)
    assert gives_way(runner(1), taker, rules) is gives
    assert gives_way(runner(1), taker._replace(level=DUE), rules) is (
        in_class is not InClass.NOBODY
    )
    assert gives_way(runner(1), taker._replace(priority=1), rules)


def test_an_account_gives_to_one_that_will_hold_no_more_than_it_does_then() -> None:
    one = runner(1, level=0)._replace(account="a", share=5.0, weighs=2.0)
    poor = Preemptor(level=9, account="b", share=3.0)
    assert ground(one, poor) is PreemptionReason.SHARE
    assert not gives_way(one, poor._replace(share=3.5))
    assert not gives_way(one, Preemptor(level=DUE, account="b")), "who asks for no GPU takes none"
    other = one._replace(name="2")
    assert not are_fair([one, other], poor), "each alone would do, both are too many"


def test_lower_classes_go_before_those_of_the_same() -> None:
    low = runner(1, loses=100)._replace(priority=1)
    alike = runner(2, loses=1)._replace(priority=2)
    taker = Preemptor(level=0, priority=2)
    assert fewest([alike, low], taker, lambda going: len(going) == 1) == [low]
    assert fewest([alike, low], taker, lambda going: alike in going) == [alike]
    assert fewest([alike], taker, lambda going: len(going) == 2) is None


def test_the_least_is_lost() -> None:
    dear, cheap = runner(1, loses=100), runner(2, loses=10)
    assert fewest([dear, cheap], ALIKE, lambda going: len(going) == 1) == [cheap]


def test_nobody_stops_in_vain() -> None:
    small, wide = runner(1, level=9), runner(2, level=3, loses=2)
    held = {small.name: 2, wide.name: 6}
    assert fewest([small, wide], ALIKE, lambda some: sum(held[o.name] for o in some) >= 6) == [wide]


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9), st.floats(0, 100)), max_size=6),
    st.integers(0, 40),
)
def test_those_who_go_are_enough_and_each_is_needed(
    ones: list[tuple[int, int, float]], wanted: int
) -> None:
    held = {str(number): size for number, (size, _, _) in enumerate(ones)}
    runners = [runner(n, level=level, loses=loses) for n, (_, level, loses) in enumerate(ones)]

    def is_enough(some: Sequence[RunningAttempt]) -> bool:
        return sum(held[one.name] for one in some) >= wanted

    going = fewest(runners, ALIKE, is_enough)
    if going is None:
        assert not is_enough(runners)
        return
    assert is_enough(going)
    assert len({one.name for one in going}) == len(going)
    for spared in going:
        assert not is_enough([one for one in going if one is not spared])
    assert going == fewest(runners, ALIKE, is_enough)
