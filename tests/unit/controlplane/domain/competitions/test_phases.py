"""Phases: their edges, and what settings are possible."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.values import SubmissionLimit
from controlplane.domain.competitions.phases import (
    changed_settings,
    check_name,
    check_none_is_over,
    check_settings,
    check_text,
    has_begun,
    is_held,
    phase_after,
    phase_at,
    phase_before,
    phase_shown,
)
from controlplane.domain.competitions.values import CompetitionState
from controlplane.domain.errors import InvalidRequest, StateConflict
from tests.unit.controlplane.domain.competitions.facts import ENDS, STARTS, facts, phase

BEFORE, LATEST = math.nextafter(STARTS, 0.0), math.nextafter(ENDS, 0.0)


@pytest.mark.parametrize(
    ("instant", "name"),
    [(BEFORE, ""), (STARTS, "one"), (LATEST, "one"), (ENDS, "two"), (ENDS + 10, "")],
)
def test_a_phase_has_its_start_and_not_its_end(instant: float, name: str) -> None:
    known = facts(phase("one"), phase("two", starts_at=ENDS, ends_at=ENDS + 10)).competition
    found = phase_at(known, instant)
    assert (found.name if found is not None else "") == name


def test_no_phase_of_a_draft_runs() -> None:
    assert phase_at(facts(state=CompetitionState.DRAFT).competition, STARTS) is None


@given(st.floats(STARTS, ENDS), st.floats(STARTS, ENDS))
def test_whoever_ends_it_the_earlier_end_holds(phase_end: float, end: float) -> None:
    one = phase(closed_at=phase_end)
    known = replace(facts(one).competition, closed_at=end)
    earliest = min(phase_end, end)
    assert phase_at(known, earliest) is None
    assert earliest <= STARTS or phase_at(known, math.nextafter(earliest, 0.0)) == one


def test_shown_is_what_runs_else_what_was_last() -> None:
    one, two = phase("one"), phase("two", starts_at=ENDS + 5, ends_at=ENDS + 10)
    known = facts(two, one).competition
    shown = [phase_shown(known, at) for at in (0.0, STARTS, ENDS, ENDS + 5, ENDS + 99)]
    assert shown == [one, one, one, two, two]
    assert (phase_before(known, two), phase_before(known, one)) == (one, None)
    assert (phase_after(known, one), phase_after(known, two)) == (two, None)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=5),
    st.integers(0, 80),
)
def test_accepted_phases_never_overlap(spans: list[tuple[int, int]], at: int) -> None:
    phases = tuple(
        phase(f"p{index}", starts_at=float(start), ends_at=float(start + length))
        for index, (start, length) in enumerate(spans)
    )
    known = facts(*phases)
    try:
        check_settings(known.settings)
    except InvalidRequest:
        assert len(phases) > 1
        return
    assert sum(one.starts_at <= at < one.end for one in phases) <= 1


@pytest.mark.parametrize(
    "bad",
    [
        {"starts_at": ENDS},
        {"starts_at": 0.0},
        {"ends_at": math.nan},
        {"ends_at": math.inf},
        {"picks": 0},
        {"picks": 21},
        {"limit": SubmissionLimit(count=1, window_s=1.0)},
        {"limit": SubmissionLimit(count=1, window_s=math.nan)},
        {"name": "Ünïcode"},
        {"name": ""},
    ],
)
def test_impossible_phases(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check_settings(facts(phase(**bad)).settings)


@pytest.mark.parametrize(
    "bad",
    [
        {"title": "a\x1b[31mred"},
        {"title": "a\u202eb"},
        {"title": "x" * 201},
        {"description": "\x1b]0;x\x07"},
        {"description": "x" * 70_000},
        {"team_size": 0},
        {"team_size": 101},
    ],
)
def test_impossible_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check_settings(facts(**bad).settings)


def test_two_phases_of_one_name() -> None:
    with pytest.raises(InvalidRequest, match="two phases"):
        check_settings(facts(phase(), phase(starts_at=ENDS, ends_at=ENDS + 1)).settings)


@pytest.mark.parametrize("name", ["-a", "a..b", "a/b", "A", "\u202ea", "a\n", "a" * 65, "=1+1"])
def test_names_that_none_has(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name, "team")


def test_several_lines_are_a_text() -> None:
    assert check_text("one\n\ttwo", "text", 10) == "one\n\ttwo"


def test_what_began_stays() -> None:
    known = facts(phase("one"), phase("two", starts_at=ENDS, ends_at=ENDS + 10)).competition

    def update(now: float, **changed: Any) -> None:
        one, two = known.settings.phases
        settings = replace(known.settings, phases=(replace(one, **changed), two))
        changed_settings(known, settings, now)

    update(BEFORE, starts_at=STARTS + 1, dataset="other")
    update(STARTS, ends_at=ENDS - 1, advance=3)
    update(ENDS)
    for now, changed in (
        (STARTS, {"starts_at": STARTS + 1}),
        (STARTS, {"dataset": "other"}),
        (STARTS + 5, {"ends_at": STARTS + 5}),
        (ENDS, {"ends_at": ENDS - 1}),
        (ENDS, {"advance": 1}),
    ):
        with pytest.raises(StateConflict):
            update(now, **changed)
    with pytest.raises(StateConflict, match="removed"):
        changed_settings(known, replace(known.settings, phases=()), STARTS)


@pytest.mark.parametrize(
    ("closed_at", "held", "begun"),
    [
        (BEFORE, [False, False], [False, False]),
        (STARTS, [False, False], [False, False]),
        (STARTS + 1, [True, False], [True, False]),
        (ENDS + 1, [True, False], [True, False]),
        (ENDS + 6, [True, True], [True, True]),
        (ENDS + 99, [True, True], [True, True]),
        (0.0, [True, True], [True, True]),
    ],
)
def test_a_phase_that_had_not_begun_when_it_was_closed_is_not_held(
    closed_at: float, held: list[bool], begun: list[bool]
) -> None:
    phases = phase("one"), phase("two", starts_at=ENDS + 5, ends_at=ENDS + 10)
    known = replace(facts(*phases).competition, closed_at=closed_at)
    assert [is_held(known, one) for one in phases] == held
    assert [has_begun(known, one, ENDS + 100) for one in phases] == begun
    assert not has_begun(known, phases[0], BEFORE)
    last = ([one for one, is_begun in zip(phases, begun, strict=True) if is_begun] or phases)[
        -1 if any(begun) else 0
    ]
    assert phase_shown(known, ENDS + 100) == last


def test_nobody_could_submit_to_a_phase_that_is_over_before_it_opens() -> None:
    draft = facts(state=CompetitionState.DRAFT).competition
    check_none_is_over(draft, LATEST)
    with pytest.raises(StateConflict, match="'one' is over already"):
        check_none_is_over(draft, ENDS)
    running = facts().competition
    check_none_is_over(running, ENDS)  # it is open already
    early = phase("early", starts_at=STARTS - 20, ends_at=STARTS - 10)
    with pytest.raises(StateConflict, match="'early' is over already"):
        changed_settings(running, facts(early, phase()).settings, STARTS)
    assert changed_settings(running, facts(early, phase()).settings, STARTS - 15).phases[0] == early


def test_phases_of_a_closed_competition_stay() -> None:
    known = facts(state=CompetitionState.CLOSED).competition
    known = replace(known, closed_at=STARTS + 5)
    assert changed_settings(known, facts(title="Cup").settings, STARTS + 9).title == "Cup"
    for others in (
        facts(phase(ends_at=ENDS + 1)),
        facts(phase(), phase("two", starts_at=ENDS, ends_at=ENDS + 1)),
    ):
        with pytest.raises(StateConflict, match="cannot be changed"):
            changed_settings(known, others.settings, STARTS + 9)


def test_a_phase_that_was_ended_stays_ended() -> None:
    known = facts(phase(closed_at=STARTS + 5)).competition
    changed = changed_settings(known, facts(phase(), title="Cup").settings, STARTS + 9)
    assert (changed.title, changed.phases[0].end) == ("Cup", STARTS + 5)
