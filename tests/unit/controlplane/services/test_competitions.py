"""Competitions through real gRPC: who takes part, what is shown of scores, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from controlplane.competitions.feature import competitions, tables
from controlplane.domain.boards.values import BoardKind, PublicScore
from controlplane.domain.competitions.phases import MOST_DESCRIPTION_BYTES
from controlplane.domain.competitions.standings import SETTLED_AFTER_S
from controlplane.domain.competitions.values import (
    Competition,
    CompetitionSettings,
    CompetitionState,
)
from controlplane.domain.errors import NameReserved
from controlplane.domain.identity import Role
from nsml.common.signed_json import SignatureInvalid, verify
from nsml.common.units import moment
from nsml.v1 import boards_pb2, resources_pb2
from nsml.v1 import competitions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.competitions import DAY_S, NAME, Contest
from tests.unit.controlplane.services.submissions import Board, pushed
from tests.unit.controlplane.services.test_projects import admin
from tests.unit.controlplane.services.test_sessions import refused

MARKER = 0.123454321
"""A private score that nothing else is."""


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


def ranks(found: pb.ListStandingsResponse) -> list[tuple[str, int]]:
    return [(row.team, row.rank) for row in found.standings]


async def test_from_a_draft_to_final_standings(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    lee = cup.users["lee"]
    await cup.scored("lee", 0.9, 0.1)
    second = await cup.scored("lee", 0.5, 0.8)
    await cup.scored("park", 0.7, 0.6)
    found = await cup.standings(lee)
    assert (ranks(found), found.is_final, found.phase) == ([("lee", 1), ("park", 2)], False, "one")
    own, other = found.standings
    assert (own.is_own, own.score, own.HasField("private_score"), own.submissions) == (
        *(True, 0.9, False),
        2,
    )
    assert (other.is_own, list(other.members)) == (False, ["park"])
    denied = await refused(cup.standings(lee, by_private=True))
    assert denied[0] == "PERMISSION_DENIED"
    private = await cup.standings(by_private=True)
    assert [(row.team, row.private_score) for row in private.standings] == [
        ("park", 0.6),
        ("lee", 0.8),
    ][::-1]
    pick = pb.PickSubmissionsRequest(competition=NAME, submissions=[second])
    picked = (await lee.competitions.PickSubmissions(pick)).team
    assert list(picked.picks) == [second]
    waiting = await cup.submit("park")
    closed = await cup.close()
    assert closed.state == pb.COMPETITION_STATE_CLOSED
    cup.clock.ahead = SETTLED_AFTER_S
    # What runs late counts by when it was submitted: nothing is final before.
    found = await cup.standings(lee)
    assert (found.is_final, found.standings[0].HasField("private_score")) == (False, False)
    await cup.score(waiting, 0.1, 0.95)
    found = await cup.standings(lee)
    assert found.is_final
    assert [(row.team, row.private_score, row.public_rank) for row in found.standings] == [
        ("park", 0.95, 2),
        ("lee", 0.8, 1),
    ]
    assert [one.is_final for one in found.competition.settings.phases] == [True]
    assert (found.competition.team_count, found.competition.submission_count) == (2, 4)


async def test_closing_ends_the_phase_that_runs_and_those_ahead_are_not_held(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    phases = [cup.phase("one", advance=1), cup.phase("two", begins=DAY_S, ends=2 * DAY_S)]
    await cup.create(phases=phases)
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    await cup.user("lee")
    await cup.join("lee")
    await cup.scored("lee", 0.5, 0.25)
    closed = await cup.close()
    assert [one.is_not_held for one in closed.settings.phases] == [False, True]
    assert closed.settings.phases[0].ends_at.seconds < phases[0].ends_at.seconds
    assert closed.settings.phases[1].ends_at == phases[1].ends_at
    cup.clock.ahead = 3 * DAY_S
    found = await cup.standings()
    assert (found.phase, found.is_final) == ("one", True)
    assert [(row.team, row.private_score, row.goes_on) for row in found.standings] == [
        ("lee", 0.25, False)
    ]
    settings = found.competition.settings
    assert [(one.is_final, one.is_not_held) for one in settings.phases] == [
        (True, False),
        (False, True),
    ]
    assert not (await cup.standings(phase="two")).is_final
    assert [one.phase for one in (await cup.get()).statistics] == ["one"]
    rerun = pb.RerunWinnersRequest(competition=NAME, phase="two")
    code, _, given = await refused(cup.kim.competitions.RerunWinners(rerun))
    assert (code, given["why"]) == (
        "FAILED_PRECONDITION",
        "the competition was closed before it began",
    )


async def test_one_that_is_closed_before_it_begins_has_no_final_phase(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    await cup.create(phases=[cup.phase(begins=60.0)])
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    early = pb.CloseCompetitionRequest(competition=NAME, phase="one")
    code, _, given = await refused(cup.kim.competitions.CloseCompetition(early))
    assert (code, given["why"]) == ("FAILED_PRECONDITION", "it has not begun")
    await cup.close()
    for cup.clock.ahead in (SETTLED_AFTER_S, 2 * DAY_S):
        found = await cup.standings()
        [one] = found.competition.settings.phases
        assert (found.is_final, one.is_final, one.is_not_held) == (False, False, True)
    assert not (await cup.get()).statistics
    await cup.create("late")
    late = pb.OpenCompetitionRequest(competition="late")
    code, _, given = await refused(cup.kim.competitions.OpenCompetition(late))
    assert (code, given["why"]) == ("FAILED_PRECONDITION", "nobody could have submitted to it")


async def test_a_draft_is_its_organisers_and_invited_users(rig: Rig) -> None:
    cup = await Contest.of(rig)
    lee, park = await cup.user("lee"), await cup.user("park")
    await cup.create("next", by_invitation=True)
    asked = pb.GetCompetitionRequest(competition="kim/next")
    assert (await refused(lee.competitions.GetCompetition(asked)))[0] == "NOT_FOUND"
    invite = pb.InviteUsersRequest(competition="next", users=["lee"], into_competition=True)
    await cup.kim.competitions.InviteUsers(invite)
    got = await lee.competitions.GetCompetition(asked)
    assert (got.competition.state, got.why_not) == (
        pb.COMPETITION_STATE_DRAFT,
        "it is not open yet",
    )
    join = pb.JoinCompetitionRequest(competition="kim/next")
    assert (await refused(lee.competitions.JoinCompetition(join)))[0] == "FAILED_PRECONDITION"

    async def listed(who: Stubs) -> list[str]:
        answer = await who.competitions.ListCompetitions(pb.ListCompetitionsRequest())
        return [one.name for one in answer.competitions]

    assert await listed(lee) == ["next", "cup"]
    assert await listed(park) == ["cup"]
    overlap = pb.OpenCompetitionRequest(competition="next")
    code, _, facts = await refused(cup.kim.competitions.OpenCompetition(overlap))
    assert (code, "one competition" in facts["why"]) == ("FAILED_PRECONDITION", True)
    await cup.close()
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="next"))
    await lee.competitions.JoinCompetition(join)
    assert (await refused(park.competitions.JoinCompetition(join)))[0] == "NOT_FOUND"
    stranger = pb.InviteUsersRequest(competition="kim/next", users=["nobody"])
    code, _, facts = await refused(lee.competitions.InviteUsers(stranger))
    assert (code, facts["try"]) == ("NOT_FOUND", "ask them, or an administrator, for the name")
    root = await admin(rig)
    stranger.into_competition = True
    code, _, facts = await refused(root.competitions.InviteUsers(stranger))
    assert (code, "nsml admin user add nobody" in facts["try"]) == ("NOT_FOUND", True)
    for who, invited in ((cup.kim, ["lee"]), (lee, [])):
        assert list((await who.competitions.GetCompetition(asked)).invited) == invited


async def test_an_organiser_invites_into_the_competition(rig: Rig) -> None:
    """They are in no team, and cannot join one."""
    cup = await Contest.of(rig, "lee")
    invite = pb.InviteUsersRequest(competition=NAME, users=["lee"])
    code, _, facts = await refused(cup.kim.competitions.InviteUsers(invite))
    assert code == "FAILED_PRECONDITION"
    assert facts["try"].startswith("nsml competition invite kim/cup lee --into-competition")


async def test_phases_say_which_scores_are_better(rig: Rig) -> None:
    """As the dataset's board does, from the draft on."""
    cup = await Contest.of(rig, "lee")
    await pushed(cup.kim, "errors")
    settings = boards_pb2.BoardSettings(direction=boards_pb2.SCORE_DIRECTION_MIN)
    await cup.kim.boards.UpdateBoard(
        boards_pb2.UpdateBoardRequest(board="errors", settings=settings)
    )
    phases = [cup.phase(), cup.phase("two", DAY_S, 2 * DAY_S, dataset="errors")]
    draft = await cup.create("next", phases=phases)
    listed = await cup.kim.competitions.ListCompetitions(pb.ListCompetitionsRequest())
    standings = await cup.users["lee"].competitions.ListStandings(
        pb.ListStandingsRequest(competition=NAME)
    )
    best, least = boards_pb2.SCORE_DIRECTION_MAX, boards_pb2.SCORE_DIRECTION_MIN
    for found, expected in (
        (draft, [best, least]),
        (listed.competitions[0], [best, least]),
        ((await cup.get(cup.users["lee"])).competition, [best]),
        (standings.competition, [best]),
    ):
        assert [one.direction for one in found.settings.phases] == expected


async def test_a_name_with_competitions_goes_to_nobody_else(rig: Rig) -> None:
    lee = await rig.user("lee")
    await lee.competitions.CreateCompetition(pb.CreateCompetitionRequest(name="cup"))
    await rig.plane.core.accounts.delete_user("lee")
    with pytest.raises(NameReserved) as caught:
        await rig.user("lee")
    assert "1 competition" in caught.value.why
    root = await rig.user("root", role=Role.ADMIN)
    await root.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="lee/cup"))
    with pytest.raises(NameReserved) as caught:  # as any name of a moment ago
        await rig.user("lee")
    assert "competition" not in caught.value.why


async def test_competitions_are_listed_in_pages(rig: Rig) -> None:
    """The newest first; those that a user may look at, and no other."""
    kim, lee = await rig.user("kim", team="vision"), await rig.user("lee")
    mate, root = await rig.user("mate", team="vision"), await admin(rig)
    for number, visibility in enumerate(
        (
            resources_pb2.VISIBILITY_PUBLIC,
            resources_pb2.VISIBILITY_TEAM,
            resources_pb2.VISIBILITY_PRIVATE,
        )
        * 2
    ):
        name = f"cup-{number}"
        settings = pb.CompetitionSettings(visibility=visibility)
        await kim.competitions.CreateCompetition(
            pb.CreateCompetitionRequest(name=name, settings=settings)
        )
        if number >= 3:  # the others stay drafts
            await _opened(rig, name)
    invite = pb.InviteUsersRequest(competition="cup-2", users=["lee"], into_competition=True)
    await kim.competitions.InviteUsers(invite)
    every = [f"cup-{number}" for number in reversed(range(6))]
    for who, seen in (
        (kim, every),
        (root, every),
        (mate, ["cup-4", "cup-3"]),
        (lee, ["cup-3", "cup-2"]),
    ):
        for size in range(1, len(seen) + 2):
            found = [page async for page in _pages(who, size)]
            assert found == [seen[at : at + size] for at in range(0, len(seen), size)]
        for name in every:
            shown = who.competitions.GetCompetition(
                pb.GetCompetitionRequest(competition=f"kim/{name}")
            )
            if name in seen:
                await shown
            else:
                assert (await refused(shown))[0] == "NOT_FOUND"
    reading = _pages(kim, 2)
    assert await anext(reading) == ["cup-5", "cup-4"]
    await root.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="kim/cup-2"))
    assert await anext(reading) == ["cup-3", "cup-1"]


async def _opened(rig: Rig, name: str) -> None:
    """Open it without phases, whose datasets would take longer to make than what is looked at."""
    history = rig.plane.core.history
    [found] = await history.competitions.named(name)
    await history.competitions.change(
        found.id,
        lambda facts: replace(
            facts, competition=replace(facts.competition, state=CompetitionState.OPEN)
        ),
    )


async def _pages(who: Stubs, size: int) -> AsyncIterator[list[str]]:
    """The pages of the caller's list, as names."""
    request = pb.ListCompetitionsRequest(page_size=size)
    while True:
        page = await who.competitions.ListCompetitions(request)
        yield [one.name for one in page.competitions]
        request.cursor = page.next_cursor
        if not request.cursor:
            return


async def test_a_page_of_competitions_fits_into_one_message(rig: Rig) -> None:
    """And has a hundred unless more are asked for."""
    kim = await rig.user("kim")
    description = "x" * MOST_DESCRIPTION_BYTES
    for number in range(101):
        made = Competition(
            id=f"c{number}",
            owner="kim",
            name=f"cup-{number}",
            settings=CompetitionSettings(description=description),
            created_at=float(number),
        )
        assert await rig.plane.core.history.competitions.create(made)
    found = [page async for page in _pages(kim, 1_000)]
    assert [name for page in found for name in page] == [
        f"cup-{number}" for number in reversed(range(101))
    ]
    assert [0 < len(page) < 100 for page in found] == [True] * len(found)
    assert len(found) == 3


@pytest.mark.parametrize(
    "cursor", ["x", "1.0", "1.0 ", "nan c1", "inf c1", "one c1", "1.0 a\0", f"1.0 {'a' * 81}"]
)
async def test_a_cursor_of_competitions_that_no_page_had_is_refused(rig: Rig, cursor: str) -> None:
    kim = await rig.user("kim")
    for asked in (
        kim.competitions.ListCompetitions(pb.ListCompetitionsRequest(cursor=cursor)),
        kim.submissions.ListSubmissions(boards_pb2.ListSubmissionsRequest(cursor=cursor)),
    ):
        assert (await refused(asked))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("change", ["open", "update"])
async def test_what_is_open_was_checked_as_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A draft changes while it is being opened, or is opened while it is being changed."""
    cup = await Contest.of(rig)
    await pushed(cup.kim, "later")
    phase = cup.phase(dataset="later")
    await cup.create("draft", phases=[phase])
    use_cases = rig.plane.core.shared(competitions)
    kim = cup.kim.competitions
    taken = pb.CompetitionSettings(phases=[cup.phase()])  # by the other competition
    open_it = partial(kim.OpenCompetition, pb.OpenCompetitionRequest(competition="draft"))
    request = pb.UpdateCompetitionRequest(competition="draft", settings=taken)
    update_it = partial(kim.UpdateCompetition, request)
    first, second = (open_it, update_it) if change == "open" else (update_it, open_it)
    stored = use_cases._change

    async def late(*given: Any) -> Any:
        monkeypatch.undo()
        await second()
        return await stored(*given)

    monkeypatch.setattr(use_cases, "_change", late)
    with pytest.raises(grpc.aio.AioRpcError, match="draft was changed meanwhile"):
        await first()


async def test_only_the_organiser_changes_it(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee")
    lee = cup.users["lee"].competitions
    asked: dict[str, Any] = {"competition": NAME}
    for call in (
        lee.UpdateCompetition(pb.UpdateCompetitionRequest(**asked)),
        lee.OpenCompetition(pb.OpenCompetitionRequest(**asked)),
        lee.CloseCompetition(pb.CloseCompetitionRequest(**asked)),
        lee.DeleteCompetition(pb.DeleteCompetitionRequest(**asked)),
        lee.InviteUsers(pb.InviteUsersRequest(**asked, users=["kim"], into_competition=True)),
        lee.UpdateTeam(pb.UpdateTeamRequest(**asked, team="lee", disqualified="x")),
        lee.SetBaseline(pb.SetBaselineRequest(**asked, submission="u1", label="x")),
        lee.Announce(pb.AnnounceRequest(**asked, text="x")),
        lee.RerunWinners(pb.RerunWinnersRequest(**asked, phase="one")),
    ):
        assert (await refused(call))[0] == "PERMISSION_DENIED"
    code, *_ = await refused(
        anext(aiter(lee.ExportCompetition(pb.ExportCompetitionRequest(**asked))))
    )
    assert code == "PERMISSION_DENIED"
    admin = await rig.user("root", role=Role.ADMIN)
    assert (await cup.get(admin)).may_change
    assert not (await cup.get(cup.users["lee"])).may_change
    removal = pb.DeleteCompetitionRequest(**asked)
    assert (await refused(cup.kim.competitions.DeleteCompetition(removal)))[
        0
    ] == "FAILED_PRECONDITION"
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(removal)
    assert (await refused(cup.get()))[0] == "NOT_FOUND"


async def test_what_is_refused_at_its_creation(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await pushed(cup.kim, "bare", parts=(), files={"train": b"x"})
    codes: dict[str, list[tuple[str, Any]]] = {
        "INVALID_ARGUMENT": [
            ("Cup", {}),
            ("b", {"phases": [cup.phase(ends=-120.0)]}),
            ("b", {"phases": [cup.phase("one"), cup.phase("two", begins=0.0, ends=9 * DAY_S)]}),
            ("b", {"phases": [cup.phase(public_score=99)]}),
            ("b", {"visibility": resources_pb2.VISIBILITY_TEAM}),
            ("b", {"title": "\x1b[31m"}),
        ],
        "NOT_FOUND": [("b", {"phases": [cup.phase(dataset="other")]})],
        "FAILED_PRECONDITION": [("b", {"phases": [cup.phase(dataset="bare")]})],
        "ALREADY_EXISTS": [("cup", {})],
    }
    for code, cases in codes.items():
        for name, settings in cases:
            assert (await refused(cup.create(name, **settings)))[0] == code, (name, settings)
    await cup.create("empty", phases=[])
    empty = pb.OpenCompetitionRequest(competition="empty")
    assert (await refused(cup.kim.competitions.OpenCompetition(empty)))[0] == "FAILED_PRECONDITION"
    lee = await rig.user("lee")
    theirs = pb.CreateCompetitionRequest(
        name="b", settings={"phases": [cup.phase(dataset="kim/digits")]}
    )
    assert (await refused(lee.competitions.CreateCompetition(theirs)))[0] == "PERMISSION_DENIED"


async def test_only_teams_submit_and_only_while_a_phase_runs(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee")
    await cup.user("park")

    async def why(name: str) -> str:
        code, _, facts = await refused(cup.submit(name))
        assert code == "FAILED_PRECONDITION"
        assert facts["why"] == (await cup.get(cup.users[name])).why_not
        return str(facts["why"])

    assert await why("park") == "you are in no team"
    # Dry runs are free.
    await cup.submit("park", is_test=True)
    submission_id = await cup.submit("lee")
    request = boards_pb2.GetSubmissionRequest(id=submission_id)
    shown = (await cup.users["lee"].submissions.GetSubmission(request)).submission
    assert (shown.team, shown.competition) == ("lee", NAME)
    disqualify = pb.UpdateTeamRequest(competition=NAME, team="lee", disqualified="two accounts")
    await cup.kim.competitions.UpdateTeam(disqualify)
    assert "two accounts" in await why("lee")
    disqualify.disqualified = ""
    await cup.kim.competitions.UpdateTeam(disqualify)
    assert (await cup.get(cup.users["lee"])).why_not == ""
    await cup.close("one")
    assert await why("lee") == "its phase one is over"
    again = pb.CloseCompetitionRequest(competition=NAME, phase="one")
    assert (await refused(cup.kim.competitions.CloseCompetition(again)))[0] == "FAILED_PRECONDITION"
    await cup.close()
    # After it the dataset takes submissions as any other.
    await cup.submit("park")


async def test_a_dataset_of_a_later_phase_says_when_that_starts(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    await pushed(cup.kim, "later")
    phases = [cup.phase("one", dataset="later"), cup.phase("two", begins=DAY_S, ends=2 * DAY_S)]
    await cup.create(phases=phases)
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    await cup.user("lee")
    await cup.join("lee")
    starts = moment(phases[1].starts_at.ToMilliseconds() / 1000)
    code, _, given = await refused(cup.submit("lee"))
    assert (code, given["why"]) == ("FAILED_PRECONDITION", f"its phase two starts at {starts}")
    assert (await cup.get(cup.users["lee"])).why_not == ""


async def test_a_competition_takes_its_dataset_while_another_one_uses_a_second_one(
    rig: Rig,
) -> None:
    cup = await Contest.of(rig, "lee")
    await pushed(cup.kim, "later")
    phases = [cup.phase("one", dataset="later"), cup.phase("two", begins=DAY_S, ends=2 * DAY_S)]
    await cup.create("league", phases=phases)
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="league"))
    await cup.submit("lee")
    (row,) = (await cup.standings()).standings
    assert (row.team, row.submissions) == ("lee", 1)


async def test_the_limit_of_a_phase_is_of_its_dataset_alone(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    await pushed(cup.kim, "later")
    limit = boards_pb2.SubmissionLimit(count=1)
    phases = [
        cup.phase("one", ends=600.0, limit=boards_pb2.SubmissionLimit(count=2)),
        cup.phase("two", begins=600.0, dataset="later", limit=limit),
    ]
    await cup.create(phases=phases)
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    lee = await cup.user("lee")
    await cup.join("lee")
    submission_id = await cup.submit("lee")
    for ahead in (0.0, 601.0):
        cup.clock.ahead = ahead
        request = boards_pb2.GetSubmissionRequest(id=submission_id)
        found = (await lee.submissions.GetSubmission(request)).submission
        assert not found.HasField("next_at")


async def test_a_limit_is_a_teams_and_follows_its_members(rig: Rig) -> None:
    limit = boards_pb2.SubmissionLimit(count=2)
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    await cup.create(phases=[cup.phase(limit=limit)])
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    for name in ("lee", "park"):
        await cup.user(name)
        await cup.join(name)
    lee, park = cup.users["lee"], cup.users["park"]
    await cup.submit("park")
    await park.competitions.LeaveCompetition(pb.LeaveCompetitionRequest(competition=NAME))
    invite = pb.InviteUsersRequest(competition=NAME, users=["park"])
    await lee.competitions.InviteUsers(invite)
    unknown = pb.InviteUsersRequest(competition=NAME, users=["nobody"])
    code, _, facts = await refused(lee.competitions.InviteUsers(unknown))
    assert (code, facts["try"].startswith("ask them, or an administrator")) == ("NOT_FOUND", True)
    assert list((await cup.get(park)).invitations) == ["lee"]
    assert list((await cup.get(lee)).team.invited) == ["park"]
    assert list((await cup.join("park", "lee")).members) == ["lee", "park"]
    assert (await cup.get(lee)).team.submissions_left == 1, "one of park's"
    await cup.submit("lee")
    for name in ("lee", "park"):
        code, _, facts = await refused(cup.submit(name))
        assert (code, "next_at" in facts) == ("RESOURCE_EXHAUSTED", True)
    got = await cup.get(lee)
    assert got.team.HasField("next_at")
    assert (got.team.HasField("submissions_left"), got.team.submissions_left) == (True, 0)
    assert "limit is reached" in got.why_not


async def test_teams_merge_when_both_want_it(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    lee, park = cup.users["lee"], cup.users["park"]
    await cup.scored("lee", 0.5)
    await cup.scored("park", 0.6)
    asked = pb.MergeTeamsRequest(competition=NAME, team="park", name="both")
    answer = await lee.competitions.MergeTeams(asked)
    assert (answer.is_merged, answer.team.name) == (False, "lee")
    assert list((await cup.get(park)).team.merge_requests) == ["lee"]
    agreed = pb.MergeTeamsRequest(competition=NAME, team="lee")
    answer = await park.competitions.MergeTeams(agreed)
    assert (answer.is_merged, answer.team.name, answer.team.submissions) == (True, "both", 2)
    found = await cup.standings(lee)
    assert [(row.team, row.rank, row.is_own) for row in found.standings] == [("both", 1, True)]


async def test_the_cut_decides_who_goes_on(rig: Rig) -> None:
    cup = await Contest.of(rig)
    await cup.close()
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))
    phases = [cup.phase("one", advance=1), cup.phase("two", begins=DAY_S, ends=2 * DAY_S)]
    await cup.create(phases=phases)
    await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
    for name in ("lee", "park"):
        await cup.user(name)
        await cup.join(name)
    await cup.scored("lee", 0.5)
    waiting = await cup.submit("park")
    assert [row.goes_on for row in (await cup.standings()).standings] == [True, False]
    cup.clock.ahead = DAY_S + SETTLED_AFTER_S
    assert "not final" in (await refused(cup.submit("lee")))[2]["why"]
    await cup.score(waiting, 0.75)
    assert (
        "lee is out: only the first team goes on from one"
        in (await refused(cup.submit("lee")))[2]["why"]
    )
    await cup.submit("park")
    assert (await cup.standings()).phase == "two"
    assert ranks(await cup.standings(phase="one")) == [("park", 1), ("lee", 2)]
    assert (await refused(cup.standings(phase="three")))[0] == "NOT_FOUND"


async def test_baselines_have_no_rank_and_are_the_organisers(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee")
    theirs = await cup.scored("lee", 0.5, 0.5)
    await cup.user("kim")
    mine = await cup.scored("kim", 0.9, 0.9)
    mark = pb.SetBaselineRequest(competition=NAME, submission=theirs, label="ours")
    assert (await refused(cup.kim.competitions.SetBaseline(mark)))[0] == "FAILED_PRECONDITION"
    mark.submission = "none"
    assert (await refused(cup.kim.competitions.SetBaseline(mark)))[0] == "NOT_FOUND"
    mark.submission = "u"
    assert (await refused(cup.kim.competitions.SetBaseline(mark)))[0] == "INVALID_ARGUMENT"
    mark.submission = mine[:-1]
    await cup.kim.competitions.SetBaseline(mark)
    found = await cup.standings(cup.users["lee"])
    assert [(row.team, row.rank, row.is_baseline) for row in found.standings] == [
        ("ours", 0, True),
        ("lee", 1, False),
    ]
    mark.label = ""
    await cup.kim.competitions.SetBaseline(mark)
    assert ranks(await cup.standings()) == [("lee", 1)]


async def test_announcements_reach_all_and_changed_phases_are_announced(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee")
    say = pb.AnnounceRequest(competition=NAME, text="the labels of row 7\nwere wrong")
    await cup.kim.competitions.Announce(say)
    for bad in ("", " \n", "\x1b[2J", "x" * 5_000):
        say.text = bad
        assert (await refused(cup.kim.competitions.Announce(say)))[0] == "INVALID_ARGUMENT"
    later = pb.CompetitionSettings(title="Cup", phases=[cup.phase(ends=2 * DAY_S)])
    update = pb.UpdateCompetitionRequest(competition=NAME, settings=later)
    changed = (await cup.kim.competitions.UpdateCompetition(update)).competition
    assert changed.settings.title == "Cup"
    update.settings.title = "The Cup"
    await cup.kim.competitions.UpdateCompetition(update)
    first, second = (await cup.get(cup.users["lee"])).announcements
    assert first.text == "the labels of row 7\nwere wrong"
    assert "one: from" in second.text
    update.settings.phases[0].name = "other"
    assert (await refused(cup.kim.competitions.UpdateCompetition(update)))[
        0
    ] == "FAILED_PRECONDITION"


async def test_picks_are_of_the_team_and_of_the_phase(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    lee = cup.users["lee"].competitions
    own = [await cup.submit("lee") for _ in range(3)]
    theirs = await cup.submit("park")

    async def pick(*ids: str, phase: str = "one") -> str:
        request = pb.PickSubmissionsRequest(competition=NAME, phase=phase, submissions=ids)
        return (await refused(lee.PickSubmissions(request)))[0]

    assert await pick(*own) == "INVALID_ARGUMENT"
    assert await pick(theirs) == "NOT_FOUND"
    assert await pick(theirs[:-1]) == "NOT_FOUND"
    assert await pick("") == "NOT_FOUND"
    assert await pick("u") == "INVALID_ARGUMENT", "three begin so"
    begun = pb.PickSubmissionsRequest(competition=NAME, submissions=[own[0][:-1], own[0], own[1]])
    assert list((await lee.PickSubmissions(begun)).team.picks) == own[:2]
    assert await pick(own[0], phase="two") == "NOT_FOUND"
    await cup.close("one")
    assert await pick(own[0]) == "FAILED_PRECONDITION"
    assert await pick(own[0], phase="") == "FAILED_PRECONDITION"


async def test_watchers_see_each_change(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    call = cup.users["lee"].competitions.WatchStandings(pb.WatchStandingsRequest(competition=NAME))
    told = aiter(call)
    first = await anext(told)
    assert [row.rank for row in first.standings] == [0, 0]
    await cup.scored("park", 0.5, MARKER)

    async def has_rank() -> pb.WatchStandingsResponse:
        while True:
            found: pb.WatchStandingsResponse = await anext(told)
            if found.standings[0].rank:
                return found

    found = await has_rank()
    assert [(row.team, row.rank) for row in found.standings] == [("park", 1), ("lee", 0)]
    await cup.close()
    while found.competition.state != pb.COMPETITION_STATE_CLOSED:
        found = await anext(told)
    assert not found.standings[0].HasField("private_score")
    await cup.kim.competitions.DeleteCompetition(pb.DeleteCompetitionRequest(competition="cup"))

    async def to_its_end() -> None:
        async for _ in told:
            pass

    assert (await refused(to_its_end()))[0] == "NOT_FOUND"


async def test_watchers_share_what_is_read_after_a_change(rig: Rig, monkeypatch: Any) -> None:
    cup = await Contest.of(rig, "lee")
    request = pb.WatchStandingsRequest(competition=NAME)
    lee = cup.users["lee"].competitions
    told = [aiter(lee.WatchStandings(request)) for _ in range(20)]
    for one in told:
        await anext(one)
    made = rig.plane.core.shared(tables)
    read, times = made._read, []

    async def counted(key: Any) -> Any:
        times.append(key)
        return await read(key)

    monkeypatch.setattr(made, "_read", counted)
    await cup.scored("lee", 0.5)

    async def scored(one: Any) -> None:
        while not (await anext(one)).standings[0].rank:
            pass

    await asyncio.gather(*map(scored, told))
    # Of its creation, of its step and of its score, each with those who ask while it is read.
    assert len(times) <= 10


async def test_the_boards_of_its_datasets_show_no_more_than_it_does(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee")
    await cup.scored("lee", 0.9)
    worse = await cup.scored("lee", 0.5)
    row = await rig.plane.core.history.boards.get("kim", "digits", BoardKind.DATASET)
    assert row is not None
    assert row.settings.public_score is PublicScore.OWN_BEST
    exact = boards_pb2.UpdateBoardRequest(
        board="digits", settings=boards_pb2.BoardSettings(public_score=PublicScore.EXACT)
    )
    with pytest.raises(grpc.aio.AioRpcError, match="the open competition kim/cup"):
        await cup.kim.boards.UpdateBoard(exact)
    request = boards_pb2.GetSubmissionRequest(id=worse)
    shown = (await cup.users["lee"].submissions.GetSubmission(request)).submission
    assert shown.score == 0.9
    await cup.close()
    await cup.kim.boards.UpdateBoard(exact)
    shown = (await cup.users["lee"].submissions.GetSubmission(request)).submission
    assert shown.score == 0.5


async def test_a_board_is_changed_while_a_competition_with_its_dataset_opens(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is stored first, the board shows no more than the open competition."""
    cup = await Contest.of(rig)
    await pushed(cup.kim, "later")
    await cup.create("next", phases=[cup.phase(dataset="later")])
    shows_all = boards_pb2.UpdateBoardRequest(
        board="later", settings=boards_pb2.BoardSettings(public_score=PublicScore.EXACT)
    )
    opening = pb.OpenCompetitionRequest(competition="next")
    history = rig.plane.core.history
    use_cases = rig.plane.core.shared(competitions)
    stored = use_cases._change

    async def late(*given: Any) -> Any:
        monkeypatch.undo()
        await cup.kim.boards.UpdateBoard(shows_all)
        return await stored(*given)

    async def shown() -> PublicScore:
        row = await history.boards.get("kim", "later", BoardKind.DATASET)
        assert row is not None
        return row.settings.public_score

    # The board is changed after all that opening looks at, and before it is stored.
    monkeypatch.setattr(use_cases, "_change", late)
    await cup.kim.competitions.OpenCompetition(opening)
    assert await shown() is PublicScore.OWN_BEST
    await cup.kim.competitions.CloseCompetition(pb.CloseCompetitionRequest(competition="next"))

    await cup.create("last", phases=[cup.phase(dataset="later")])
    changed = history.boards.update

    async def later(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        await cup.kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="last"))
        return await changed(*given, **options)

    # It is opened after all that a change of the board looks at, and before that is stored.
    monkeypatch.setattr(history.boards, "update", later)
    with pytest.raises(grpc.aio.AioRpcError, match="the open competition kim/last"):
        await cup.kim.boards.UpdateBoard(shows_all)
    assert await shown() is PublicScore.OWN_BEST


async def test_of_two_that_open_on_one_dataset_at_a_time_one_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cup = await Contest.of(rig)
    await pushed(cup.kim, "later")
    for name in ("first", "second"):
        await cup.create(name, phases=[cup.phase(dataset="later")])
    kim = cup.kim.competitions
    use_cases = rig.plane.core.shared(competitions)
    stored = use_cases._change

    async def late(*given: Any) -> Any:
        monkeypatch.undo()
        await kim.OpenCompetition(pb.OpenCompetitionRequest(competition="second"))
        return await stored(*given)

    monkeypatch.setattr(use_cases, "_change", late)
    code, _, facts = await refused(
        kim.OpenCompetition(pb.OpenCompetitionRequest(competition="first"))
    )
    assert (code, facts["why"]) == (
        "FAILED_PRECONDITION",
        "a submission belongs to one competition",
    )
    [first] = await rig.plane.core.history.competitions.named("first")
    assert first.state is CompetitionState.DRAFT


async def test_winners_run_again_and_are_compared(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    await cup.scored("lee", 0.9, 0.9)
    await cup.scored("park", 0.8, 0.8)
    rerun = pb.RerunWinnersRequest(competition=NAME, phase="one", teams=2)
    code, *_ = await refused(cup.kim.competitions.RerunWinners(rerun))
    assert code == "FAILED_PRECONDITION"
    await cup.close()
    cup.clock.ahead = SETTLED_AFTER_S
    assert (await cup.kim.competitions.RerunWinners(rerun)).started == 2
    assert (await cup.kim.competitions.RerunWinners(rerun)).started == 0

    async def outcomes() -> list[str]:
        return [row.rerun for row in (await cup.standings(cup.users["lee"])).standings]

    assert await outcomes() == ["running", "running"]
    history = rig.plane.core.history
    made = await history.submissions.reruns("kim", "digits")
    assert {(one.row.owner, one.row.checkpoint) for one in made} == {
        ("lee", "best"),
        ("park", "best"),
    }
    for one, score in zip(made, (0.9, 0.7), strict=True):
        await cup.score(one.row.id, score, score)
    assert await outcomes() == ["same", "differs"]
    # They count for nobody, and are on no board.
    found = await cup.standings()
    assert [row.submissions for row in found.standings] == [1, 1]
    assert found.competition.submission_count == 2


async def test_it_is_exported_and_checked(rig: Rig, tmp_path: Path) -> None:
    cup = await Contest.of(rig, "lee")
    first = await cup.scored("lee", 0.5, MARKER)
    await cup.submit("lee")
    call = cup.kim.competitions.ExportCompetition(pb.ExportCompetitionRequest(competition="cup"))
    data = b"".join([part.data async for part in call])
    file = tmp_path / "cup.json"
    file.write_bytes(data)
    pem = rig.on.authority.pem
    document = verify(file, pem)
    assert json.loads(data)["document"] == document
    assert document["competition"]["name"] == "cup"
    [scored, waiting] = document["submissions"]
    assert (scored["id"], scored["team"], scored["phase"]) == (first, "lee", "one")
    assert [one["private"] for one in scored["scores"]] == [MARKER]
    assert waiting["scores"] == []
    [figures] = document["statistics"]
    assert (figures["users"], figures["models"], figures["under_five"]) == (1, 1, 1)
    assert document["standings"][0]["rows"][0]["team"] == "lee"
    file.write_bytes(data.replace(b'"score":0.5', b'"score":0.6', 1))
    with pytest.raises(SignatureInvalid, match="changed"):
        verify(file, pem)
    for broken in (b"", b"{}", data[:-1], data[:100], data.replace(b"ecdsa", b"other")):
        file.write_bytes(broken)
        with pytest.raises(SignatureInvalid):
            verify(file, pem)


def _numbers(message: Message) -> list[float]:
    """All floating-point numbers of a message."""
    found: list[float] = []
    for known, value in message.ListFields():
        values = value if known.is_repeated else [value]
        for one in values:
            if isinstance(one, Message):
                found += _numbers(one)
            elif isinstance(one, float):
                found.append(one)
    return found


READING: dict[str, dict[str, Any]] = {
    "GetCompetition": {"competition": NAME},
    "OpenCompetitionPage": {"competition": NAME},
    "ListCompetitions": {},
    "ListStandings": {"competition": NAME},
    "WatchStandings": {"competition": NAME},
    "JoinCompetition": {"competition": NAME, "team": "other"},
    "LeaveCompetition": {"competition": NAME},
    "InviteUsers": {"competition": NAME, "users": ["park"]},
    "MergeTeams": {"competition": NAME, "team": "park"},
    "PickSubmissions": {"competition": NAME, "phase": "one"},
    "ExportCompetition": {"competition": NAME},
    "RerunWinners": {"competition": NAME, "phase": "one"},
    "CreateCompetition": {"name": "mine"},
    **{
        name: {"competition": NAME}
        for name in (
            *("UpdateCompetition", "OpenCompetition", "CloseCompetition", "DeleteCompetition"),
            *("UpdateTeam", "SetBaseline", "Announce"),
        )
    },
    "GetSubmission": {},
    "ListSubmissions": {},
    "WatchSubmission": {},
    "CreateSubmission": {},
    **{
        name: {"board": "kim/digits"}
        for name in ("GetBoard", "ListEntries", "WatchBoard", "UpdateBoard", "DeleteBoard")
    },
    "ReevaluateBoard": {"board": "kim/digits"},
    "CreateBoard": {"name": "mine"},
    "ListBoards": {},
}


async def test_no_answer_to_a_participant_has_a_private_score_before_the_end(rig: Rig) -> None:
    cup = await Contest.of(rig, "lee", "park")
    own = await cup.scored("lee", 0.5, MARKER)
    await cup.scored("park", 0.6, MARKER)
    who = cup.users["lee"]
    services: dict[Any, Any] = {
        pb.DESCRIPTOR.services_by_name["CompetitionService"]: who.competitions,
        boards_pb2.DESCRIPTOR.services_by_name["SubmissionService"]: who.submissions,
        boards_pb2.DESCRIPTOR.services_by_name["BoardService"]: who.boards,
    }
    answered = set()
    for by_private in (False, True):
        for service, stub in services.items():
            for method in service.methods:
                asked = dict(READING[method.name])
                request = _class(method.input_type)(**asked)
                if "by_private" in method.input_type.fields_by_name:
                    request.by_private = by_private
                if method.name in {"GetSubmission", "WatchSubmission"}:
                    request.id = own
                if method.name == "CreateSubmission":
                    request.session = cup.sessions["lee"].name
                call = getattr(stub, method.name)(request)
                answer = await _answer(call, is_stream=method.server_streaming)
                if isinstance(answer, grpc.aio.AioRpcError):  # refused: what it says counts, too
                    assert str(MARKER) not in str(answer), method.name
                    continue
                answered.add(method.name)
                assert MARKER not in _numbers(answer), method.name
                assert str(MARKER).encode() not in answer.SerializeToString(), method.name
    assert answered >= {"GetCompetition", "ListStandings", "WatchStandings", "GetSubmission"}
    # The test would find one.
    assert MARKER in _numbers(await cup.standings(by_private=True))


async def _answer(call: Any, *, is_stream: bool) -> Any:
    try:
        return await anext(aiter(call)) if is_stream else await call
    except grpc.aio.AioRpcError as error:
        return error


def _class(descriptor: Any) -> Any:
    module = pb if descriptor.file.name.endswith("competitions.proto") else boards_pb2
    return getattr(module, descriptor.name)


async def test_all_of_it_through_the_steps_of_a_submission(rig: Rig) -> None:
    """The leader's own loop scores it: nothing here stands for it."""
    cup = await Contest.of(rig, "lee")
    board = Board(rig, cup.kim, cup.users["lee"], cup.node, cup.sessions["lee"], "")
    made = await board.submit()
    await board.predict()
    await board.evaluate("0.75", result={"private": "0.25"})
    await board.over(made.id)

    async def is_ranked() -> bool:
        return ranks(await cup.standings(cup.users["lee"])) == [("lee", 1)]

    await until(is_ranked, "its team has a rank")
    await cup.close()
    cup.clock.ahead = SETTLED_AFTER_S
    [row] = (await cup.standings(cup.users["lee"])).standings
    assert (row.score, row.private_score) == (0.75, 0.25)
