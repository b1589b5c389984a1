"""Standings: ranks of teams, the cut, and what counts in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.values import PublicScore, ScoreDirection
from controlplane.domain.competitions.entering import refusal
from controlplane.domain.competitions.standings import (
    SETTLED_AFTER_S,
    PhaseSubmission,
    Scale,
    Standings,
    cut_before,
    may_go_on,
    standings,
)
from controlplane.domain.competitions.statistics import statistics
from controlplane.domain.competitions.teams import disqualify, join, leave, merge
from controlplane.domain.competitions.values import Baseline, CompetitionState, Pick
from controlplane.domain.identity import User
from tests.unit.controlplane.domain.competitions.facts import (
    ENDS,
    SCALE,
    STARTS,
    facts,
    joined,
    phase,
    submission,
)

NOW, OVER = STARTS + 1_000.0, ENDS + SETTLED_AFTER_S
TEAMS = ("eve", "lee", "park", "sam")


def of(found: Standings) -> list[tuple[str, int]]:
    return [(row.team, row.rank) for row in found.rows]


def test_the_best_of_each_team_and_of_ties_the_earlier() -> None:
    known = joined(facts(), "lee", "park", "sam")
    submissions = [
        submission(1, "park", 0.5),
        submission(2, "lee", 0.9),
        submission(3, "park", 0.9),
        submission(4, "lee", 0.1),
    ]
    found = standings(known, phase(), submissions, SCALE, NOW)
    assert of(found) == [("lee", 1), ("park", 2), ("sam", 0)]
    assert (found.is_final, found.by_private, found.rows[0].submissions) == (False, False, 2)
    least = Scale(direction=ScoreDirection.MIN)
    assert of(standings(known, phase(), submissions, least, NOW))[:2] == [("lee", 1), ("park", 2)]


@pytest.mark.parametrize(("at", "counts"), [(STARTS - 0.001, False), (STARTS, True), (ENDS, False)])
def test_a_submission_counts_by_its_instant(at: float, counts: bool) -> None:
    known = joined(facts(), "lee")
    found = standings(known, phase(), [submission(1, "lee", 0.5, submitted_at=at)], SCALE, NOW)
    assert found.rows[0].rank == counts


def test_final_once_all_are_evaluated_and_not_before() -> None:
    known = joined(facts(), "lee")
    late = submission(1, "lee", None, is_over=False)
    for now, submissions, is_final in (
        (ENDS, [], False),
        (OVER, [late], False),
        (OVER, [submission(1, "lee", 0.5)], True),
    ):
        assert standings(known, phase(), submissions, SCALE, now).is_final == is_final
    draft = facts(state=CompetitionState.DRAFT)
    assert not standings(draft, phase(), [], SCALE, OVER).is_final


def test_a_phase_that_was_not_held_is_never_final_and_nobody_goes_on_to_it() -> None:
    first, second = phase("one", advance=1), phase("two", starts_at=ENDS, ends_at=ENDS + 100)
    known = joined(facts(first, second), "lee")
    submissions = [submission(1, "lee", 0.5)]
    closed = replace(
        known,
        competition=replace(
            known.competition, state=CompetitionState.CLOSED, closed_at=STARTS + 500
        ),
    )
    found = standings(closed, first, submissions, SCALE, OVER)
    assert (found.is_final, [row.goes_on for row in found.rows]) == (True, [False])
    later = standings(closed, second, submissions, SCALE, OVER + 200)
    assert (later.is_final, later.by_private, later.rows) == (False, False, ())
    never = replace(closed, competition=replace(closed.competition, closed_at=STARTS))
    assert not standings(never, first, [], SCALE, OVER).is_final


def test_in_the_end_private_scores_of_picks_count() -> None:
    known = joined(facts(phase(picks=1)), "lee", "park")
    submissions = [
        submission(1, "lee", 0.9, private=0.1),
        submission(2, "lee", 0.5, private=0.8),
        submission(3, "park", 0.6, private=0.5),
        submission(4, "park", 0.4, private=0.99),
    ]
    one = known.settings.phases[0]
    # Without picks the best public one of each.
    found = standings(known, one, submissions, SCALE, OVER)
    assert [(row.team, row.private, row.public_rank) for row in found.rows] == [
        ("park", 0.5, 2),
        ("lee", 0.1, 1),
    ]
    picked = replace(known, picks=(Pick(phase="one", team="lee", submission_id="u002"),))
    found = standings(picked, one, submissions, SCALE, OVER)
    assert [(row.team, row.private, row.score) for row in found.rows] == [
        ("lee", 0.8, 0.5),
        ("park", 0.5, 0.6),
    ]
    # Another team's pick is none.
    foreign = replace(known, picks=(Pick(phase="one", team="park", submission_id="u002"),))
    assert of(standings(foreign, one, submissions, SCALE, OVER)) == [("park", 1), ("lee", 2)]


def test_a_dataset_without_private_rows_ends_by_public_scores() -> None:
    known = joined(facts(), "lee", "park")
    submissions = [submission(1, "lee", 0.1), submission(2, "park", 0.2)]
    found = standings(known, phase(), submissions, SCALE, OVER)
    assert [(row.team, row.rank, row.private) for row in found.rows] == [
        ("park", 1, None),
        ("lee", 2, None),
    ]


def test_what_is_shown_while_it_runs_is_no_more_than_the_best() -> None:
    known = joined(facts(phase(public_score=PublicScore.OWN_BEST)), "lee")
    submissions = [submission(1, "lee", 0.5), submission(2, "lee", 0.1)]
    found = standings(known, known.settings.phases[0], submissions, SCALE, NOW)
    assert (found.rows[0].score, found.rows[0].trend) == (0.5, (0.5, 0.5))


def test_the_cut_with_ties_lets_exactly_so_many_go_on() -> None:
    first = phase("one", advance=2)
    second = phase("two", starts_at=ENDS, ends_at=ENDS + 100)
    known = joined(facts(first, second), "eve", "lee", "park")
    submissions = [submission(at, team, 0.5) for at, team in enumerate(("eve", "lee", "park"))]
    found = standings(known, first, submissions, SCALE, OVER)
    assert [row.goes_on for row in found.rows] == [True, True, False]
    assert cut_before(known.competition, second) == first
    assert refusal(known, second, "lee", "", found) is None
    refused = refusal(known, second, "park", "", found)
    assert refused is not None
    assert refused.why == "your team park is out: only the first 2 teams go on from one"
    waiting = replace(found, is_final=False, waiting=3)
    refused = refusal(known, second, "lee", "", waiting)
    assert refused is not None
    assert "not final: 3" in refused.why
    # The next one moves up for a team that is disqualified.
    found = standings(disqualify(known, "eve", "x"), first, submissions, SCALE, OVER)
    assert may_go_on(known, found, "park")
    # Who merges with a team that goes on, goes on.
    asked = merge(known, "park", "lee", "", bound=None, now=ENDS + 1).facts
    merged = merge(asked, "lee", "park", "", bound=None, now=ENDS + 1).facts
    found = standings(merged, first, submissions, SCALE, OVER)
    assert of(found) == [("eve", 1), ("lee", 2), ("park", 3)]
    assert refusal(merged, second, "park", "", found) is None


def test_who_cannot_submit_is_told_why() -> None:
    known = joined(facts(), "lee")
    one = known.settings.phases[0]
    assert refusal(known, one, "lee", "lee", None) is None
    asked: list[tuple[Any, Any, str, str, str]] = [
        (known, one, "park", "", "in no team"),
        (known, one, "lee", "another id", "in no team"),
        (known, None, "lee", "", "none of its phases"),
        (disqualify(known, "lee", "two accounts"), one, "lee", "", "two accounts"),
        (facts(state=CompetitionState.CLOSED), one, "lee", "", "over"),
        (facts(state=CompetitionState.DRAFT), one, "lee", "", "not open"),
        (leave(known, "lee"), one, "lee", "", "in no team"),
    ]
    for given_facts, given_phase, name, user_id, why in asked:
        refused = refusal(given_facts, given_phase, name, user_id, None)
        assert refused is not None
        assert why in refused.why


SUBMISSIONS = st.lists(
    st.tuples(
        st.sampled_from(TEAMS),
        st.none() | st.sampled_from([0.0, 0.25, 0.5]) | st.floats(),
        st.none() | st.sampled_from([0.0, 0.25, 0.5]) | st.floats(),
    ),
    max_size=12,
)


def made(drawn: list[tuple[str, float | None, float | None]]) -> list[PhaseSubmission]:
    return [
        submission(at, team, score, private=private)
        for at, (team, score, private) in enumerate(drawn)
    ]


@given(
    SUBMISSIONS,
    st.lists(st.floats(), max_size=3),
    st.sets(st.sampled_from(TEAMS)),
    st.sampled_from(PublicScore),
    st.sampled_from([NOW, OVER]),
    st.booleans(),
)
def test_baselines_and_disqualified_teams_have_no_rank_and_change_none(
    drawn: list[tuple[str, float | None, float | None]],
    baselines: list[float],
    disqualified: set[str],
    mode: PublicScore,
    now: float,
    by_private: bool,
) -> None:
    one = phase(public_score=mode, advance=2)
    known = joined(facts(one), *TEAMS)
    submissions = made(drawn)
    plain = standings(known, one, submissions, SCALE, now, by_private=by_private)
    marked = replace(
        known,
        baselines=tuple(
            Baseline(submission_id=f"u{100 + at}", label=f"baseline {at}")
            for at in range(len(baselines))
        ),
    )
    with_baselines = [
        *submissions,
        *(submission(100 + at, "", score, private=score) for at, score in enumerate(baselines)),
    ]
    found = standings(marked, one, with_baselines, SCALE, now, by_private=by_private)
    assert tuple(row for row in found.rows if not row.is_baseline) == plain.rows
    assert all(row.rank == 0 and not row.goes_on for row in found.rows if row.is_baseline)
    ranks = [row.rank for row in plain.rows if row.rank]
    assert ranks == list(range(1, len(ranks) + 1))

    for team in disqualified:
        marked = disqualify(marked, team, "two accounts")
    found = standings(marked, one, with_baselines, SCALE, now, by_private=by_private)
    assert all(row.rank == 0 and not row.goes_on for row in found.rows if row.disqualified)
    without = [row for row in submissions if row.team not in disqualified]
    alone = standings(marked, one, without, SCALE, now, by_private=by_private)
    if mode is PublicScore.EXACT or by_private or now == OVER:
        has_private = any(row.private is not None for row in submissions)
        if has_private == any(row.private is not None for row in without):
            expected = [(row.team, row.rank) for row in alone.rows if row.rank]
            assert [(row.team, row.rank) for row in found.rows if row.rank] == expected


@given(SUBMISSIONS, st.sampled_from(PublicScore))
def test_private_scores_change_nothing_before_the_end(
    drawn: list[tuple[str, float | None, float | None]], mode: PublicScore
) -> None:
    one = phase(public_score=mode)
    known = joined(facts(one), *TEAMS)
    submissions = made(drawn)
    blind = [replace(each, private=None) for each in submissions]
    found = standings(known, one, submissions, SCALE, NOW)
    assert found == standings(known, one, blind, SCALE, NOW)
    assert all(row.private is None for row in found.rows)


def test_a_team_that_all_left_keeps_its_place_with_nobody_in_it() -> None:
    known = leave(joined(facts(), "lee"), "lee")
    found = standings(known, phase(), [submission(1, "lee", 0.5)], SCALE, NOW)
    assert [(row.team, row.rank, row.members) for row in found.rows] == [("lee", 1, ())]
    # Nobody has two places.
    again = join(known, User(name="lee"), "second", STARTS + 5)
    found = standings(again, phase(), [submission(1, "lee", 0.5)], SCALE, NOW)
    assert of(found) == [("second", 0)]


def test_gpu_seconds_of_a_session_count_once() -> None:
    known = joined(facts(), "lee")
    submissions = [
        submission(1, "lee", 0.5, session_id="s", gpu_seconds=10.0),
        submission(2, "lee", 0.6, session_id="s", gpu_seconds=30.0),
        submission(3, "lee", None, session_id="t", gpu_seconds=5.0, is_counted=False),
    ]
    [row] = standings(known, phase(), submissions, SCALE, NOW).rows
    assert (row.gpu_seconds, row.submissions) == (35.0, 2)


def test_figures_of_a_phase() -> None:
    submissions = [submission(at, team, 0.5) for at, team in enumerate(("lee", "lee", "park"))]
    figures = statistics("one", {"lee": 7, "park": 2, "sam": 0}, submissions)
    assert (figures.users, figures.models, figures.mean_models, figures.most_models) == (
        3,
        9,
        3.0,
        7,
    )
    assert (figures.under_five, figures.submissions, figures.mean_submissions) == (2, 3, 1.5)
    assert figures.most_submissions == 2
    empty = statistics("one", {}, [])
    assert (empty.users, empty.mean_models, empty.mean_submissions) == (0, 0.0, 0.0)
