"""What competitions say of themselves at an instant."""

from __future__ import annotations

import pytest

from nsml.v1 import boards_pb2
from nsml.v1 import competitions_pb2 as pb
from nsml.view import competitions as view

DAY = 86_400
NOW = 1_700_000_000
DRAFT, OPEN, CLOSED = (
    pb.COMPETITION_STATE_DRAFT,
    pb.COMPETITION_STATE_OPEN,
    pb.COMPETITION_STATE_CLOSED,
)


MAX, MIN = boards_pb2.SCORE_DIRECTION_MAX, boards_pb2.SCORE_DIRECTION_MIN


def competition(state=OPEN, phase="", starts=0, **fields):
    found = pb.Competition(owner="lee", name="cup", state=state, phase=phase)
    for name, number in (("first", 0), ("second", 1)):
        one = found.settings.phases.add(name=name, dataset="lee/digits", **fields)
        one.starts_at.seconds = NOW + starts + 10 * DAY * number
        one.ends_at.seconds = NOW + starts + 10 * DAY * (number + 1)
    return found


@pytest.mark.parametrize(
    ("found", "said", "phases"),
    [
        (competition(DRAFT), "draft", ["not open", "in 10d"]),
        (competition(starts=DAY), "open: first starts in 1d", ["in 1d", "in 11d"]),
        (competition(phase="first", starts=-DAY), "open: first, 9d left", ["runs, 9d left", "in 9d"]),
        (competition(starts=-11 * DAY, phase="second"), "open: second, 9d left", ["evaluating", "runs, 9d left"]),
        (competition(starts=-30 * DAY), "open: all phases are over", ["evaluating", "evaluating"]),
        (competition(CLOSED, starts=-11 * DAY, is_final=True), "closed", ["final", "final"]),
        (competition(CLOSED, starts=-DAY), "closed", ["evaluating", "not held"]),
        (competition(CLOSED, starts=-30 * DAY, is_not_held=True), "closed", ["not held", "not held"]),
    ],
)  # fmt: skip
def test_where_it_is(found, said, phases):
    assert view.now_text(found, NOW) == said
    assert [view.phase_state(found, one, NOW) for one in found.settings.phases] == phases


def answer(found, **fields):
    return pb.GetCompetitionResponse(competition=found, **fields)


TEAM = pb.Team(name="lions", members=["kim"], submissions=1)
RUNNING = competition(phase="first", starts=-DAY)


@pytest.mark.parametrize(
    ("given", "verbs"),
    [
        (answer(competition(DRAFT), may_change=True), ["open", "update"]),
        (answer(competition(starts=DAY), may_change=True), ["announce", "baseline"]),
        (answer(RUNNING, may_change=True), ["standings", "announce", "baseline", "close"]),
        (answer(competition(CLOSED), may_change=True), ["standings", "rerun", "export"]),
        (answer(competition(DRAFT)), []),
        (answer(RUNNING), ["join"]),
        (answer(RUNNING, invitations=["tigers"]), ["join", "join"]),
        (answer(competition(starts=DAY), team=TEAM), ["run"]),
        (answer(RUNNING, team=TEAM), ["run", "submit", "submit", "pick", "standings"]),
        (answer(RUNNING, team=TEAM, why_not="over the limit"), ["pick", "standings"]),
        (answer(competition(CLOSED)), ["standings"]),
    ],
)
def test_what_to_type_next(given, verbs):
    words = [act.split() for act, _ in view.next_commands(given, NOW)]
    found = [one[2] if one[1] == "competition" else one[1] for one in words]
    assert found == verbs


def test_an_organiser_invites_where_nobody_else_may_join():
    for state, phase in ((DRAFT, ""), (OPEN, "first")):
        found = competition(state, phase=phase, starts=-DAY)
        found.settings.by_invitation = True
        acts = [act for act, _ in view.next_commands(answer(found, may_change=True), NOW)]
        assert "nsml competition invite lee/cup USER --into-competition" in acts


def test_invited_users_are_named():
    names = [f"u{number:02}" for number in range(23)]
    lines = view.competition_lines(answer(competition(DRAFT), invited=names), NOW)
    assert f"  invited      {', '.join(names[:20])} and 3 more" in lines
    few = answer(competition(DRAFT), invited=["kim"])
    assert "  invited      kim" in view.competition_lines(few, NOW)
    assert view.show_record(few, NOW)["invited"] == ["kim"]


@pytest.mark.parametrize(
    ("directions", "text"),
    [((MIN, MIN), "score, min first"), ((MAX, MIN), "score, max first (of first)"), ((0, 0), "")],
)
def test_which_scores_are_better_is_shown(directions, text):
    found = competition(phase="first", starts=-DAY)
    for phase, direction in zip(found.settings.phases, directions, strict=True):
        phase.direction = direction
    lines = view.competition_lines(answer(found), NOW)
    assert [line for line in lines if "ranked by" in line] == (
        [f"  ranked by    {text}"] if text else []
    )


def test_the_phase_of_a_draft_is_the_one_that_runs_once_it_is_open():
    found = competition(DRAFT, starts=-DAY)
    found.settings.phases[0].limit.count = 20
    lines = view.competition_lines(answer(found), NOW)
    assert "  limit        20 in 1d, of a team (of first)" in lines


def test_the_limit_of_the_phase_ahead_is_shown_before_it_begins():
    ahead = competition(starts=DAY)
    ahead.settings.phases[0].limit.count = 10
    assert "  limit        10 in 1d, of a team (of first)" in view.competition_lines(
        answer(ahead), NOW
    )
    ahead.state = CLOSED
    assert not any("limit" in line for line in view.competition_lines(answer(ahead), NOW))


def test_a_hostile_team_is_quoted_for_the_shell():
    given = answer(RUNNING, invitations=["a; rm -rf ~"])
    assert view.next_commands(given, NOW)[0][0].endswith("--team 'a; rm -rf ~'")


def test_a_trend_rises_as_scores_get_better_also_if_less_is_better():
    trend = next(one for one in view.standing_columns() if one.key == "trend").cell
    assert trend(pb.Standing(trend=[0.1, 0.9]), 0) == trend(pb.Standing(trend=[0.9, 0.1]), 0)
    assert trend(pb.Standing(trend=[0.1]), 0) == "-"


def test_the_own_row_follows_the_first_ones():
    rows = [pb.Standing(team=name, is_own=name == "c") for name in "abcd"]
    assert [one.team for one in view.first_rows(rows, 1)] == ["a", "c"]
    assert [one.team for one in view.first_rows(rows, 3)] == ["a", "b", "c"]
    assert len(view.first_rows(rows, None)) == 4


def test_the_winners_are_those_of_the_last_final_phase():
    found = competition()
    assert view.last_final(found) == "second"
    found.settings.phases[0].is_final = True
    assert view.last_final(found) == "first"
    assert view.last_final(pb.Competition()) == ""


def test_a_phase_that_was_not_held_has_no_standings():
    found = competition(CLOSED, starts=-30 * DAY)
    found.settings.phases[1].is_not_held = True
    assert [one.name for one in view.begun_phases(found, NOW)] == ["first"]
    assert view.last_final(found) == "first"
    assert (
        view.headline(found, "first", is_final=True) == "lee/cup, first: 0 teams, final standings"
    )
    assert view.headline(found, "second", is_final=False) == "lee/cup, second: 0 teams, not held"
    assert view.phase_record(found, found.settings.phases[1])["is_held"] is False
    found.settings.phases[0].is_not_held = True
    assert not view.has_begun(found, NOW)
    acts = view.next_commands(answer(found, may_change=True), NOW)
    assert [act.split()[2] for act, _ in acts] == ["export"]
    assert view.next_commands(answer(found), NOW) == []


@pytest.mark.parametrize(
    ("visibility", "state", "text"),
    [
        (3, OPEN, "https://nsml/competitions/lee/cup"),
        (3, DRAFT, "nsml competition page lee/cup"),
        (1, OPEN, "nsml competition page lee/cup"),
    ],
)
def test_a_page_that_needs_a_sign_in_has_the_command_for_it(visibility, state, text):
    found = answer(competition(state), page="https://nsml/competitions/lee/cup")
    found.competition.settings.visibility = visibility
    [line] = [one for one in view.competition_lines(found, NOW) if one.startswith("  page ")]
    assert line.split(maxsplit=1)[1] == text


def test_states_of_a_newer_platform_have_words():
    assert view.now_text(pb.Competition(state=9), NOW) == "9"
    assert view.competition_lines(answer(pb.Competition()), NOW)
