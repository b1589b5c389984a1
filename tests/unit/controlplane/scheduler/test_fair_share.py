"""What an account held lately: as the rule has it, whatever is told in which order, and at what time."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.domain.changes import PastChanged
from controlplane.domain.values import DAY_S, Project
from controlplane.scheduler.entitlement import Claim, Entitlements
from controlplane.scheduler.fair_share import PERIODS, Past, counts_since, share_of
from tests.unit.controlplane.builders import session

HALF = 7.0 * DAY_S
NOW = 2_900.0 * HALF + 0.3 * HALF
LONG = NOW - counts_since(NOW, HALF)

Spell = tuple[int, float, float]
"""So many thousandths of a GPU, so long until so long ago."""
gpus = st.integers(1, 8) | st.integers(1, 1 << 20)
spells = st.tuples(gpus.map(lambda n: n * 125), st.floats(0.0, LONG / 2), st.floats(0.0, LONG / 2))
histories = st.lists(spells, max_size=8)


def past(history: list[Spell], now: float = NOW, running: list[Spell] | None = None) -> Past:
    made = Past(HALF)
    for gpu, held_s, ago_s in history:
        made.held(gpu, now - ago_s - held_s, now - ago_s)
    for gpu, held_s, _ in running or []:
        made.step(gpu, now - held_s)
    return made


def by_the_rule(history: list[Spell], running: list[Spell]) -> float:
    """Each GPU-second for itself: the integral of 2^(-age / half-life), over that of one GPU held for ever."""
    spans = [(gpu, ago_s + held_s, ago_s) for gpu, held_s, ago_s in history]
    spans += [(gpu, held_s, 0.0) for gpu, held_s, _ in running]
    parts = [gpu / 1000 * (2 ** (-end / HALF) - 2 ** (-begin / HALF)) for gpu, begin, end in spans]
    return math.fsum(parts)


@given(histories, histories)
def test_it_is_what_the_rule_says(history: list[Spell], running: list[Spell]) -> None:
    expected = by_the_rule(history, running)
    found = past(history, running=running).lately(NOW)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * (1 + len(history + running)))


@given(histories, histories, st.floats(0, 20 * HALF), st.floats(0, 20 * HALF))
def test_it_follows_what_is_held_and_two_steps_of_time_are_one(
    history: list[Spell], running: list[Spell], first_s: float, second_s: float
) -> None:
    held = sum(gpu for gpu, _, _ in running) / 1000
    made = past(history, running=running)

    def after(lately: float, seconds: float) -> float:
        return held + (lately - held) * 2 ** (-seconds / HALF)

    begun, once, twice = [made.lately(NOW + s) for s in (0, first_s, first_s + second_s)]
    # What is so old that it counts no more had less than a thousandth of its weight.
    most = sum(gpu for gpu, _, _ in history + running) / 1000 * 2.0**-PERIODS + 1e-6
    assert once == pytest.approx(after(begun, first_s), rel=1e-6, abs=most)
    assert twice == pytest.approx(after(once, second_s), rel=1e-6, abs=most)


@given(histories, histories, st.floats(-20 * HALF, 20 * HALF))
def test_it_is_never_negative_nor_more_than_what_was_held_whatever_the_clock_does(
    history: list[Spell], running: list[Spell], moved_s: float
) -> None:
    most = sum(gpu for gpu, _, _ in history + running) / 1000
    found = past(history, running=running).lately(NOW + moved_s)
    assert 0 <= found <= most * 2 + 1e-9
    assert past(history, running=running).lately(0.0) == 0.0


@given(histories, histories, st.sampled_from([-3600.0, 3600.0]))
def test_an_hour_of_the_clock_moves_it_by_less_than_a_hundredth(
    history: list[Spell], running: list[Spell], moved_s: float
) -> None:
    most = sum(gpu for gpu, _, _ in history + running) / 1000
    made = past(history, running=running)
    assert abs(made.lately(NOW + moved_s) - made.lately(NOW)) <= most / 100 + 1e-9


@given(histories, histories, st.floats(0, PERIODS * HALF))
def test_of_two_who_hold_nothing_time_alone_changes_no_order(
    one: list[Spell], other: list[Spell], later_s: float
) -> None:
    first, second = past(one), past(other)
    # While nothing of either falls out of what counts.
    oldest = max([0.0, *(held_s + ago_s for _, held_s, ago_s in one + other)])
    assume(oldest + later_s < LONG - HALF)
    if first.lately(NOW) < second.lately(NOW):
        assert first.lately(NOW + later_s) <= second.lately(NOW + later_s)
    if first.lately(NOW) == second.lately(NOW):
        then = second.lately(NOW + later_s)
        assert first.lately(NOW + later_s) == pytest.approx(then, rel=1e-9)


@given(histories, gpus, st.floats(60.0, HALF), st.floats(0.0, LONG - 2 * HALF))
def test_who_used_more_comes_later(
    history: list[Spell], gpu: int, held_s: float, ago_s: float
) -> None:
    assert past(history).lately(NOW) < past([*history, (gpu, held_s, ago_s)]).lately(NOW)


@given(histories)
def test_who_used_nothing_for_ten_half_lives_is_as_new(history: list[Spell]) -> None:
    assert past(history).lately(NOW + (PERIODS + 1) * HALF) == 0.0


@given(st.randoms(use_true_random=False), histories, histories)
def test_the_order_of_telling_makes_no_difference_and_what_is_taken_out_leaves_nothing(
    random: object, history: list[Spell], other: list[Spell]
) -> None:
    shuffled = [*history]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    made = past(other)
    for gpu, held_s, ago_s in shuffled:
        made.held(gpu, NOW - ago_s - held_s, NOW - ago_s)
    assert made.lately(NOW) == past([*other, *history]).lately(NOW)
    for gpu, held_s, ago_s in history:
        made.held(-gpu, NOW - ago_s - held_s, NOW - ago_s)
    assert made.lately(NOW) == past(other).lately(NOW)


def test_what_lies_in_a_time_to_come_has_no_age_yet() -> None:
    made = past([(8000, 3600.0, 0.0)], NOW + 20 * 365 * DAY_S)
    assert made.lately(NOW) == 0.0
    made.step(4000, NOW - HALF)
    assert made.lately(NOW) == pytest.approx(2.0)


@pytest.mark.parametrize("half_life_s", [3600.0, HALF, 366 * DAY_S])
def test_a_short_and_a_long_half_life(half_life_s: float) -> None:
    made = Past(half_life_s)
    made.step(8000, NOW - 3 * half_life_s)
    assert made.lately(NOW) == pytest.approx(7.0)
    made.step(-8000, NOW)
    assert made.lately(NOW + half_life_s) == pytest.approx(3.5)


@given(st.integers(0, 1 << 20), st.floats(0, 1e6), st.floats(1e-3, 1e3))
def test_the_share_is_both_over_the_weight(gpu: int, lately: float, weight: float) -> None:
    entitlements = Entitlements()
    entitlements.apply(PastChanged(lately={"p": lately}))
    assert entitlements.share("p") == lately
    entitlements.set_project(Project(name="p", weight=weight))
    entitlements.hold(session(project="p"), Claim(gpu_thousandths=gpu))
    expected = share_of("p", held=gpu / 1000, lately=lately, weight=weight)
    assert entitlements.share_of("p") == expected
    assert entitlements.share("p") == expected.value == (gpu / 1000 + lately) / weight
