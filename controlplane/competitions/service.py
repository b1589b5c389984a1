"""CompetitionService."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.access.interceptor import token_of
from controlplane.competitions.competitions import cursor_of
from controlplane.competitions.convert import to_settings
from controlplane.domain.competitions.values import DEFAULT_RERUN_TEAMS
from controlplane.domain.errors import StateConflict
from controlplane.history.board_values import board_key
from controlplane.wire.chunking import parts_as_made
from controlplane.wire.errors import Context, answering, streaming
from nsml.v1 import competitions_pb2 as pb
from nsml.v1 import competitions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.competitions.competitions import Competitions
    from controlplane.competitions.export import Export
    from controlplane.competitions.page_visits import PageVisits
    from controlplane.competitions.tables import Tables
    from controlplane.competitions.team_changes import TeamChanges
    from controlplane.competitions.views import CompetitionViews
    from controlplane.domain.competitions.values import Facts
    from controlplane.domain.identity import UserCaller
    from controlplane.history.sql.history import History
    from controlplane.limits.concurrency_limits import Turns

LOOK_EVERY_S: Final = 2.0
"""Interval of looks by watchers: phases begin and end, and other control planes take submissions."""


class CompetitionServicer(competitions_pb2_grpc.CompetitionServiceServicer):
    """Implements nsml.v1.CompetitionService."""

    def __init__(
        self,
        *,
        competitions: Competitions,
        teams: TeamChanges,
        tables: Tables,
        views: CompetitionViews,
        visits: PageVisits,
        export: Export,
        history: History,
        reading: Turns,
        opens_http: str,
    ) -> None:
        self._competitions = competitions
        self._teams = teams
        self._tables = tables
        self._views = views
        self._visits = visits
        self._opens_http = opens_http
        self._export = export
        self._history = history
        self._reading = reading

    @answering
    async def CreateCompetition(  # noqa: N802 - named by the contract, as all below
        self, request: pb.CreateCompetitionRequest, _: Context
    ) -> pb.CreateCompetitionResponse:
        """Make one."""
        asked = to_settings(request.settings)
        made = await self._competitions.create(require_user(), request.name, asked)
        return pb.CreateCompetitionResponse(competition=await self._views.listed(made))

    @answering
    async def UpdateCompetition(  # noqa: N802
        self, request: pb.UpdateCompetitionRequest, _: Context
    ) -> pb.UpdateCompetitionResponse:
        """Set other settings."""
        asked = to_settings(request.settings)
        facts = await self._competitions.update(require_user(), request.competition, asked)
        return pb.UpdateCompetitionResponse(competition=await self._views.competition(facts))

    @answering
    async def OpenCompetition(  # noqa: N802
        self, request: pb.OpenCompetitionRequest, _: Context
    ) -> pb.OpenCompetitionResponse:
        """Open it."""
        facts = await self._competitions.open(require_user(), request.competition)
        return pb.OpenCompetitionResponse(competition=await self._views.competition(facts))

    @answering
    async def CloseCompetition(  # noqa: N802
        self, request: pb.CloseCompetitionRequest, _: Context
    ) -> pb.CloseCompetitionResponse:
        """End a phase, or all."""
        facts = await self._competitions.close(require_user(), request.competition, request.phase)
        return pb.CloseCompetitionResponse(competition=await self._views.competition(facts))

    @answering
    async def DeleteCompetition(  # noqa: N802
        self, request: pb.DeleteCompetitionRequest, _: Context
    ) -> pb.DeleteCompetitionResponse:
        """Remove it."""
        await self._competitions.delete(require_user(), request.competition)
        return pb.DeleteCompetitionResponse()

    @answering
    async def GetCompetition(  # noqa: N802
        self, request: pb.GetCompetitionRequest, _: Context
    ) -> pb.GetCompetitionResponse:
        """Return one."""
        who = require_user()
        facts = await self._competitions.find(who, request.competition)
        async with self._reading.turn(who.user.name):
            return await self._views.whole(who, facts)

    @answering
    async def ListCompetitions(  # noqa: N802
        self, request: pb.ListCompetitionsRequest, _: Context
    ) -> pb.ListCompetitionsResponse:
        """Return a page of what the caller sees."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            page, cursor = await self._competitions.page(
                who, size=request.page_size, cursor=request.cursor
            )
            made = (await self._views.listed(one) for one in page)
            async with aclosing(parts_as_made(made)) as parts:
                messages = await anext(parts)
        if len(messages) < len(page):
            cursor = cursor_of(page[len(messages) - 1])
        return pb.ListCompetitionsResponse(competitions=messages, next_cursor=cursor)

    @answering
    async def OpenCompetitionPage(  # noqa: N802
        self, request: pb.OpenCompetitionPageRequest, context: Context
    ) -> pb.OpenCompetitionPageResponse:
        """Return an address of its page that signs the caller in."""
        who = require_user()
        facts = await self._competitions.find(who, request.competition)
        address = self._views.page(facts.competition)
        if not address:
            raise StateConflict(
                "HTTP is disabled on this control plane",
                why="pages of competitions need it: a browser shows them",
                attempt=self._opens_http,
            )
        full_name = facts.competition.full_name
        ticket = self._visits.ticket(who.user.name, token_of(context), full_name)
        return pb.OpenCompetitionPageResponse(url=f"{address}?ticket={ticket}")

    @answering
    async def JoinCompetition(  # noqa: N802
        self, request: pb.JoinCompetitionRequest, _: Context
    ) -> pb.JoinCompetitionResponse:
        """Join."""
        who = require_user()
        facts = await self._teams.join(who, request.competition, request.team)
        return pb.JoinCompetitionResponse(team=await self._own(who, facts))

    @answering
    async def LeaveCompetition(  # noqa: N802
        self, request: pb.LeaveCompetitionRequest, _: Context
    ) -> pb.LeaveCompetitionResponse:
        """Leave."""
        await self._teams.leave(require_user(), request.competition)
        return pb.LeaveCompetitionResponse()

    @answering
    async def InviteUsers(  # noqa: N802
        self, request: pb.InviteUsersRequest, _: Context
    ) -> pb.InviteUsersResponse:
        """Invite users."""
        await self._teams.invite(
            require_user(),
            request.competition,
            request.users,
            into_competition=request.into_competition,
        )
        return pb.InviteUsersResponse()

    @answering
    async def MergeTeams(  # noqa: N802
        self, request: pb.MergeTeamsRequest, _: Context
    ) -> pb.MergeTeamsResponse:
        """Ask to merge, or agree."""
        who = require_user()
        facts, merged = await self._teams.merge(
            who, request.competition, request.team, request.name
        )
        return pb.MergeTeamsResponse(team=await self._own(who, facts), is_merged=bool(merged))

    @answering
    async def UpdateTeam(  # noqa: N802
        self, request: pb.UpdateTeamRequest, _: Context
    ) -> pb.UpdateTeamResponse:
        """Disqualify a team, or take that back."""
        facts = await self._competitions.disqualify(
            require_user(), request.competition, request.team, request.disqualified
        )
        team = facts.team(request.team)
        shown = await self._views.team(facts, team, is_own=False) if team is not None else None
        return pb.UpdateTeamResponse(team=shown)

    @answering
    async def PickSubmissions(  # noqa: N802
        self, request: pb.PickSubmissionsRequest, _: Context
    ) -> pb.PickSubmissionsResponse:
        """Pick."""
        who = require_user()
        facts = await self._teams.pick(who, request.competition, request.phase, request.submissions)
        return pb.PickSubmissionsResponse(team=await self._own(who, facts))

    @answering
    async def SetBaseline(  # noqa: N802
        self, request: pb.SetBaselineRequest, _: Context
    ) -> pb.SetBaselineResponse:
        """Mark a baseline."""
        await self._competitions.set_baseline(
            require_user(), request.competition, request.submission, request.label
        )
        return pb.SetBaselineResponse()

    @answering
    async def Announce(self, request: pb.AnnounceRequest, _: Context) -> pb.AnnounceResponse:  # noqa: N802
        """Say something."""
        await self._competitions.announce(require_user(), request.competition, request.text)
        return pb.AnnounceResponse()

    @answering
    async def RerunWinners(  # noqa: N802
        self, request: pb.RerunWinnersRequest, _: Context
    ) -> pb.RerunWinnersResponse:
        """Run the winners again."""
        started = await self._competitions.rerun(
            require_user(),
            request.competition,
            request.phase,
            request.teams or DEFAULT_RERUN_TEAMS,
        )
        return pb.RerunWinnersResponse(started=started)

    @answering
    async def ListStandings(  # noqa: N802
        self, request: pb.ListStandingsRequest, _: Context
    ) -> pb.ListStandingsResponse:
        """Return the standings."""
        who = require_user()
        facts = await self._competitions.find(who, request.competition)
        async with self._reading.turn(who.user.name):
            table = await self._tables.of(who, facts, request.phase, by_private=request.by_private)
            return pb.ListStandingsResponse(
                competition=self._views.summarised(table.facts, table.summary),
                phase=table.standings.phase.name,
                standings=self._views.standings(who, table),
                is_final=table.standings.is_final,
            )

    @streaming
    async def WatchStandings(  # noqa: N802
        self, request: pb.WatchStandingsRequest, _: Context
    ) -> AsyncGenerator[pb.WatchStandingsResponse, None]:
        """Stream the standings."""
        who = require_user()
        facts = await self._competitions.find(who, request.competition)
        sent: pb.WatchStandingsResponse | None = None
        boards = {board_key(one.dataset_owner, one.dataset) for one in facts.settings.phases}
        within_s = 0.0
        with self._history.streams.changed(facts.competition.id, *sorted(boards)) as change:
            while True:
                # Without a turn: all watchers share what is read, and would wait for each other.
                table = await self._tables.of(who, facts, request.phase, within_s=within_s)
                message = pb.WatchStandingsResponse(
                    competition=self._views.summarised(table.facts, table.summary),
                    phase=table.standings.phase.name,
                    standings=self._views.standings(who, table),
                    is_final=table.standings.is_final,
                )
                if message != sent:
                    yield message
                    sent = message
                has_changed = await change.wait_for(LOOK_EVERY_S)
                within_s = 0.0 if has_changed else LOOK_EVERY_S
                await self._competitions.check_seen(who, facts.competition.id)
                facts = table.facts

    @streaming
    async def ExportCompetition(  # noqa: N802
        self, request: pb.ExportCompetitionRequest, _: Context
    ) -> AsyncGenerator[pb.ExportCompetitionResponse, None]:
        """Stream everything, signed."""
        facts = await self._competitions.changeable(require_user(), request.competition)
        async for data in self._export.parts(facts):
            yield pb.ExportCompetitionResponse(data=data)

    async def _own(self, who: UserCaller, facts: Facts) -> pb.Team | None:
        team = facts.team_of(who.user.name)
        return await self._views.team(facts, team, is_own=True) if team is not None else None
