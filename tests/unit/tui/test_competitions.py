"""Competitions in the dashboard: beside boards, and their standings on a platform over real gRPC."""

import pytest

from nsml.v1 import competitions_pb2 as pb
from tests.unit.nsml.view.test_competitions import CLOSED, DAY, NOW, OPEN, competition
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import AT
from tui.competitions import (
    announcement_text,
    cut_text,
    listed_columns,
    next_shown,
    no_standings,
    preview_lines,
    standing_lines,
    standings_columns,
    state_text,
    with_cut,
)
from tui.demo.competitions import COMPETITION
from tui.demo.story import Demo
from tui.model import Model, Move, StandingsQuery, StandingsReceived, moved_teams
from tui.screens.standings import StandingsScreen
from tui.sources import Topic

SIZE = (120, 40)
RUNNING = {"phase": "first", "starts": -DAY}


def row(rank, team, **fields):
    return pb.Standing(rank=rank, team=team, members=[team], **fields)


def cell(columns, key, item):
    return next(one for one in columns if one.key == key).cell(item, NOW)


# What is said


def test_a_competition_is_a_row_beside_boards():
    found = competition(**RUNNING)
    found.settings.title, found.team_count = "The cup", 3
    columns = listed_columns()
    assert [one.cell(found, NOW) for one in columns if one.key != "visibility"] == [
        *("lee/cup", "competition", "first", "3 teams", "open, 9d left", "The cup"),
    ]


@pytest.mark.parametrize(
    ("advance", "ranks", "text"),
    [
        (0, ["a", "b", "c"], ""),
        (1, ["a", "", "b", "c"], "the first one goes on"),
        (2, ["a", "b", "", "c"], "the first 2 go on"),
    ],
)
def test_the_cut_is_a_line_below_the_last_one_that_goes_on(advance, ranks, text):
    rows = [row(n, team, goes_on=not advance or n <= advance) for n, team in enumerate("abc", 1)]
    phase = pb.Phase(advance=advance)
    found = with_cut(rows, phase)
    assert ([one.team for one in found], cut_text(phase)) == (ranks, text)
    columns = standings_columns(phase, lambda _: None, lambda: NOW)
    drawn = [cell(columns, "team", one) for one in found]
    assert drawn[0] == ("a →" if advance else "a")
    if advance:
        assert drawn[advance] == f"── {text} ──"
        assert {one.cell(found[advance], NOW) for one in columns if one.key != "team"} == {""}
        assert standing_lines(found[advance], phase, NOW)[0] == text


def test_ranks_of_teams_move_and_the_first_ones_do_not():
    before = [row(1, "a"), row(2, "b"), row(0, "c")]
    after = [row(1, "b"), row(2, "a"), row(3, "c")]
    moves = moved_teams({}, before, after, 7.0)
    assert moves == {"b": Move(1, 7.0), "a": Move(-1, 7.0), "c": Move(0, 7.0)}
    assert moved_teams({}, (), after, 7.0) == {}
    columns = standings_columns(None, lambda one: moves.get(one.team), lambda: 8.0)
    assert columns[0].cell(after[0], 8.0) == "1 ↑1"
    assert columns[0].cell(row(0, "d"), 8.0) == "-"


def test_a_baseline_and_who_is_out_have_no_rank():
    columns = standings_columns(None, lambda _: None, lambda: NOW)
    assert cell(columns, "rank", row(0, "x", is_baseline=True)) == "-"
    assert cell(columns, "team", row(0, "x", is_baseline=True)) == "x (baseline)"
    out = standing_lines(row(0, "x", disqualified="two accounts"), None, NOW)
    assert "disqualified: two accounts" in "\n".join(out)


def test_the_head_has_the_time_left_the_cut_and_the_own_rank():
    found = competition(advance=2, **RUNNING)
    rows = [row(1, "a"), row(2, "b", is_own=True)]
    answer = pb.WatchStandingsResponse(competition=found, phase="first", standings=rows)
    told = state_text(found, answer, "first", NOW)
    assert told == (
        "lee/cup, first · runs, 9d left · your rank 2 · preliminary · the first 2 go on · 0 teams"
    )
    answer.is_final = True
    assert "final standings · the first 2" in state_text(found, answer, "first", NOW)


def test_phases_go_round():
    found = competition()
    assert [next_shown(found, name) for name in ("first", "second", "")] == [
        *("second", "first", "first"),
    ]
    assert next_shown(pb.Competition(), "") == ""


def test_what_there_is_before_anything_is():
    assert "first starts in 1d" in no_standings(competition(starts=DAY), NOW)
    assert "nsml competition join lee/cup" in no_standings(competition(OPEN, **RUNNING), NOW)
    assert (
        preview_lines(competition(CLOSED), NOW, opens="enter")[1] == "  enter shows the standings"
    )
    assert announcement_text([], NOW) == ""
    assert announcement_text(
        [pb.Announcement(text="a"), pb.Announcement(text="b\nc")], 0.0
    ).endswith("b c")


# The model


def test_standings_of_another_phase_are_not_taken():
    model, query = Model(), StandingsQuery("kim/cup", "one")
    assert StandingsQuery.of(query.key) == query
    assert StandingsQuery.of(StandingsQuery("kim/cup").key) == StandingsQuery("kim/cup")
    model.inspect(Topic.STANDINGS, query.key)
    model.fold(StandingsReceived("kim/cup two", pb.WatchStandingsResponse()), AT)
    assert model.standings is None
    received = StandingsReceived(query.key, pb.WatchStandingsResponse(standings=[row(1, "a")]))
    model.fold(received, AT)
    assert model.standings == received
    model.inspect(Topic.STANDINGS, StandingsQuery("kim/cup", "two").key)
    assert model.standings is None


# The demo


def test_standings_of_the_demo_are_ranked_and_change():
    story, query = Demo(AT), StandingsQuery(COMPETITION)
    seen = set()
    for after in (0.0, 40.0, 300.0, 3_600.0):
        [(_, received)] = story.received_of(Topic.STANDINGS, (query.key,), None, None, AT + after)
        rows = received.answer.standings
        ranks = [one.rank for one in rows if one.rank]
        assert ranks == list(range(1, len(ranks) + 1))
        assert sum(one.is_own for one in rows) == 1
        assert [one.rank for one in rows if one.is_baseline] == [0]
        assert received.announcements
        seen.add(received.answer.SerializeToString(deterministic=True))
    assert len(seen) == 4


# The screens


@pytest.fixture
def cup(server):
    state = server.state
    found = state.add_competition("lee/cup", may_change=False)
    found.competition.settings.title = "The cup"
    found.competition.settings.phases[0].advance = 1
    state.add_standing("lee/cup", "lions", 0.9, goes_on=True)
    state.add_standing("lee/cup", "tigers", 0.8, is_own=True)
    return server


async def opened(pilot):
    await shows(pilot, "sessions")
    await pilot.press("7")
    await shows(pilot, "1 of 1: 0 boards, 1 competition", "The cup", "enter shows the standings")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, StandingsScreen))


async def test_standings_change_while_one_looks(dashboard, cup):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "lee/cup", "lions →", "── the first one goes on ──", "tigers (you)")
        assert "↑" not in said(dashboard)
        with cup.state.changed:
            rows = cup.state.standings["lee/cup"]
            rows[0].rank, rows[1].rank = 2, 1
            rows[:] = [rows[1], rows[0]]
            cup.state.changed.notify_all()
        await shows(pilot, "1 ↑1", "2 ↓1", "your rank 1")
        await pilot.press("escape")
        await shows(pilot, "1 of 1: 0 boards, 1 competition")


async def test_the_newest_announcement_is_above(dashboard, cup):
    cup.state.competitions["lee/cup"].announcements.add(text="Old.")
    cup.state.competitions["lee/cup"].announcements.add(text="The data\nis fixed.")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "The data is fixed.")
        assert "Old." not in said(dashboard)


async def test_one_that_is_removed_stays_with_its_last_data_and_says_so(dashboard, cup):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "tigers (you)")
        with cup.state.changed:
            del cup.state.competitions["lee/cup"]
            cup.state.changed.notify_all()
        await shows(pilot, "✗ standings: it was removed, or you may see it no more")
        assert "tigers (you)" in said(dashboard)
