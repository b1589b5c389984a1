"""The page of a competition: what it says, in which state, and that hostile texts stay texts."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from nsml.v1 import competitions_pb2 as pb
from nsml.view.competition_page import (
    ANNOUNCEMENTS,
    POLICY,
    ROWS,
    Standings,
    competition_page,
    index_page,
)
from tests.unit.nsml.view.test_competitions import CLOSED, DAY, DRAFT, NOW, OPEN, competition
from tests.unit.nsml.view.test_safe_markdown import Reader

RUNNING = {"phase": "first", "starts": -DAY}
HOSTILE = "\"'><script>alert(1)</script>&\u202e\u200b"


def standing(rank, team, score=0.5, **fields):
    fields = {"members": [team], **fields}
    row = pb.Standing(rank=rank, team=team, submissions=2, score=score, **fields)
    row.submitted_at.seconds = NOW - 60
    return row


def page(found, rows=None, said=(), now=NOW, *, is_final=False, phase="first"):
    standings = None if rows is None else Standings(phase=phase, rows=rows, is_final=is_final)
    announcements = []
    for number, text in enumerate(said):
        one = pb.Announcement(text=text)
        one.at.seconds = NOW + number
        announcements.append(one)
    return competition_page(found, announcements, standings, now)


def words(html):
    return " ".join(Reader(html.partition("</style>")[2].replace("</td>", " </td>")).text.split())


@pytest.mark.parametrize(
    ("found", "has", "has_not"),
    [
        (competition(**RUNNING), ["open", "first ends in 9d, at 23 Nov 2023, 22:13:20 UTC", "nsml competition join lee/cup",
         "nsml run -d lee/digits main.py", "nsml submit SESSION", "As of 14 Nov 2023, 22:13 UTC"], ["By invitation", "It is over"]),
        (competition(starts=DAY), ["first starts in 1d", "Submissions count from 15 Nov 2023", "nsml competition join"], []),
        (competition(starts=-30 * DAY), ["All phases are over."], ["nsml submit"]),
        (competition(DRAFT), ["draft", "It is not open yet"], []),
        (competition(CLOSED, starts=-30 * DAY), ["closed", "It is over.", "nsml competition standings lee/cup"], ["competition join", "As of"]),
    ],
)  # fmt: skip
def test_where_it_is_and_what_to_do(found, has, has_not):
    shown = words(page(found))
    assert [one for one in has if one not in shown] == []
    assert [one for one in has_not if one in shown] == []


def test_a_phase_that_was_not_held_is_no_final_one():
    found = competition(CLOSED, starts=-30 * DAY, is_not_held=True)
    assert "No phase was held." in words(page(found))
    shown = words(page(found, []))
    assert "first: not held" in shown
    assert "final" not in shown


def test_a_closed_competition_has_the_same_page_later():
    found = competition(CLOSED, starts=-30 * DAY, is_final=True)
    assert page(found, [standing(1, "a")], now=NOW) == page(
        found, [standing(1, "a")], now=NOW + DAY
    )
    running = competition(**RUNNING)
    assert page(running, now=NOW) != page(running, now=NOW + DAY)


def test_standings_with_the_cut_baselines_and_who_is_out():
    rows = [
        standing(1, "lions", 0.875, goes_on=True, is_own=True, rank_before=3),
        standing(0, "start", 0.75, is_baseline=True),
        standing(2, "tigers", 0.5, rank_before=1),
        pb.Standing(team="foxes", disqualified="two accounts"),
    ]
    html = page(competition(advance=1, **RUNNING), rows)
    told = words(html)
    assert "preliminary, by public scores" in told
    assert "1 lions your team +2 0.875 2 14 Nov 2023, 22:12:20 UTC - start baseline 0.75" in told
    assert "the first one goes on 2 tigers -1 0.5" in told
    assert "foxes disqualified: two accounts" in told
    assert html.count('<tr class="own">') == 1


def test_without_a_cut_there_is_no_line():
    rows = [standing(1, "a", goes_on=True), standing(2, "b", goes_on=True)]
    assert "go on" not in words(page(competition(**RUNNING), rows)).partition("Phases")[0]


def test_private_scores_are_told_once_they_are_final():
    rows = [standing(1, "lions", 0.9, private_score=0.123454, public_rank=7, rerun="same")]
    for is_final in (False, True):
        html = page(competition(**RUNNING), rows, is_final=is_final)
        assert ("0.123454" in html) is is_final
        assert ("Public rank" in html) is is_final
    assert "final, by private scores" in words(html)
    assert "first: final 1" not in words(page(competition(**RUNNING), rows, is_final=True))


def test_different_scores_look_different():
    rows = [standing(1, "a", 0.83333334), standing(2, "b", 5 / 6), standing(3, "c", 1 / 3)]
    html = page(competition(**RUNNING), rows)
    for text in ("0.83333334", "0.83333333", "0.333333"):
        assert f">{text}<" in html


def test_only_the_first_rows_are_listed():
    rows = [standing(number + 1, f"team{number}") for number in range(ROWS + 5)]
    html = page(competition(**RUNNING), rows)
    assert f">team{ROWS - 1}<" in html
    assert f">team{ROWS}<" not in html
    assert "5 further teams" in html


def test_phases_lead_to_their_standings():
    found = competition(starts=-11 * DAY, phase="second")
    html = page(found, [], phase="second")
    assert '<a href="?phase=first#standings">first</a>' in html
    assert "No team has submitted yet." in html
    assert "No phase has begun." in page(competition(starts=DAY))


def test_the_newest_announcements_are_first():
    html = page(competition(), said=[f"number {n}" for n in range(ANNOUNCEMENTS + 2)])
    told = words(html)
    assert told.index(f"number {ANNOUNCEMENTS + 1}") < told.index(f"number {ANNOUNCEMENTS}")
    assert "number 1 " not in told
    assert f"{ANNOUNCEMENTS - 3} earlier announcements" in told
    assert "Announcements" not in page(competition())


def test_hostile_texts_stay_texts():
    found = competition(**RUNNING)
    found.owner = found.name = found.settings.title = found.settings.description = HOSTILE
    for one in found.settings.phases:
        one.name = one.dataset = HOSTILE
    rows = [
        standing(1, HOSTILE, members=[HOSTILE, "b"], rerun=HOSTILE),
        standing(0, HOSTILE, disqualified=HOSTILE),
    ]
    for html in (
        page(found, rows, [HOSTILE], is_final=True, phase=HOSTILE),
        index_page([found], NOW),
    ):
        elements = Reader(html.partition("</style>")[2]).elements
        assert {tag for tag, _ in elements} & {"script", "img", "style", "iframe", "form"} == set()
        assert not any(name.startswith("on") for _, has in elements for name in has)
        assert "<script" not in html
        assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069]", html)


def test_the_policy_names_the_only_style():
    (style,) = re.findall("<style>(.*?)</style>", page(competition()), re.DOTALL)
    assert f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in POLICY
    assert "unsafe" not in POLICY
    assert " style=" not in page(competition(**RUNNING), [standing(1, "a")])


def test_the_index_links_to_pages():
    html = index_page([competition(OPEN, **RUNNING), competition(CLOSED)], NOW)
    assert html.count('<a href="lee/cup">') == 2
    assert "open: first ends in 9d" in words(html)
    assert "There is no public competition." in index_page([], NOW)
