"""Competitions as their viewers see them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.competitions.competitions import organises
from controlplane.competitions.convert import (
    competition_message,
    standing_message,
    statistics_message,
    team_count,
    team_message,
)
from controlplane.domain.boards.submission_limits import (
    longest_window,
    next_submission,
    submissions_left,
)
from controlplane.domain.competitions.entering import refusal
from controlplane.domain.competitions.phases import phase_at
from controlplane.domain.competitions.values import participant_key
from controlplane.submissions.participation import why_not_now
from controlplane.wire.times import timestamp
from nsml.common.units import moment
from nsml.v1 import competitions_pb2 as pb

if TYPE_CHECKING:
    from controlplane.competitions.tables import Summary, Table, Tables
    from controlplane.domain.competitions.standings import PhaseSubmission
    from controlplane.domain.competitions.values import Competition, Facts, Phase, Team
    from controlplane.domain.identity import UserCaller
    from controlplane.history.sql.history import History
    from controlplane.submissions.participation import Participation
    from nsml.common.clock import Clock


class CompetitionViews:
    """Builds messages.

    Attributes:
        http_url: address of our HTTP routes for browsers, set by the HTTP server; "": HTTP is disabled.
    """

    def __init__(
        self, *, history: History, participation: Participation, tables: Tables, clock: Clock
    ) -> None:
        self._history = history
        self._participation = participation
        self._tables = tables
        self._clock = clock
        self.http_url = ""

    async def competition(self, facts: Facts) -> pb.Competition:
        """Build the message of a competition with its numbers."""
        summary = await self._tables.summary(facts.competition.id)
        return self.summarised(facts, summary)

    def summarised(self, facts: Facts, summary: Summary) -> pb.Competition:
        """Build the message of a competition with known numbers."""
        return competition_message(
            facts.competition,
            self._clock.time(),
            teams=team_count(facts),
            submissions=summary.submissions,
            final=summary.final,
            directions=summary.directions,
        )

    async def listed(self, competition: Competition) -> pb.Competition:
        """Build the message of a competition for a list."""
        facts = await self._history.competitions.facts(competition.id)
        if facts is None:  # removed meanwhile
            return competition_message(competition, self._clock.time())
        return await self.competition(facts)

    async def whole(self, caller: UserCaller, facts: Facts) -> pb.GetCompetitionResponse:
        """Build the message of a competition with all that the caller may know and do."""
        user = caller.user
        phase = phase_at(facts.competition, self._clock.time())
        own = facts.team_of(user.name, user.id)
        may_change = organises(caller, facts.competition)
        message = pb.GetCompetitionResponse(
            competition=await self.competition(facts),
            announcements=[
                pb.Announcement(text=one.text, at=timestamp(one.at)) for one in facts.announcements
            ],
            invitations=sorted(
                one.team for one in facts.invitations if one.user_name == user.name and one.team
            ),
            may_change=may_change,
            page=self.page(facts.competition),
        )
        next_at = 0.0
        if own is not None:
            if phase is not None:
                next_at, left = await self._allowance(facts, phase, own)
            else:
                left = None
            message.team.CopyFrom(
                await self.team(facts, own, is_own=True, next_at=next_at, left=left)
            )
        before = await self._participation.cut(facts, phase) if phase is not None else None
        not_now = why_not_now(facts.settings.phases, self._clock.time())
        refused = refusal(facts, phase, user.name, user.id, before, not_now=not_now)
        if refused is not None:
            message.why_not = refused.why
        elif next_at:
            message.why_not = f"your team's limit is reached until {moment(next_at)}"
        if may_change:
            message.invited.extend(
                sorted(one.user_name for one in facts.invitations if not one.team)
            )
            message.statistics.extend(map(statistics_message, await self._tables.figures(facts)))
            submissions = await self._running(facts)
            message.teams.extend(
                team_message(facts, one, submissions, phase="", is_own=False)
                for one in facts.teams
                if facts.members_of(one.name)
            )
        return message

    def page(self, competition: Competition) -> str:
        """Return the address of its page; "": HTTP is disabled."""
        if not self.http_url:
            return ""
        return f"{self.http_url}/competitions/{competition.owner}/{competition.name}"

    async def team(
        self,
        facts: Facts,
        team: Team,
        *,
        is_own: bool,
        next_at: float = 0.0,
        left: int | None = None,
    ) -> pb.Team:
        """Build the message of a team."""
        phase = phase_at(facts.competition, self._clock.time())
        return team_message(
            facts,
            team,
            await self._running(facts),
            phase=phase.name if phase is not None else "",
            next_at=next_at,
            left=left,
            is_own=is_own,
        )

    def standings(self, caller: UserCaller, table: Table) -> list[pb.Standing]:
        """Build the rows of a table for a caller."""
        facts = table.facts
        is_private = table.standings.is_final or organises(caller, facts.competition)
        if is_private not in table.rows:
            table.rows[is_private] = [
                standing_message(row, is_private=is_private, reruns=table.reruns)
                for row in table.standings.rows
            ]
        rows = table.rows[is_private]
        own = facts.team_of(caller.user.name, caller.user.id)
        return rows if own is None else [_for(facts, own.name, row) for row in rows]

    async def _running(self, facts: Facts) -> list[PhaseSubmission]:
        phase = phase_at(facts.competition, self._clock.time())
        return await self._tables.within(facts, phase) if phase is not None else []

    async def _allowance(self, facts: Facts, phase: Phase, team: Team) -> tuple[float, int | None]:
        """Return when a team may submit again (0.0: now), and how many more now (None: no limit)."""
        settings = await self._participation.board(phase)
        if phase.limit is not None:
            settings = replace(settings, limit=phase.limit)
        if not (window := longest_window(settings)):
            return 0.0, None
        now = self._clock.time()
        members = facts.members_of(team.name)
        past = await self._history.submissions.past(
            dataset_owner=phase.dataset_owner,
            dataset=phase.dataset,
            owner=members[0],
            team=participant_key(facts.competition.id, team.name),
            since=now - window,
            others=members,
        )
        next_at = next_submission(past.counted, past.failed, settings, now) or 0.0
        return next_at, submissions_left(past.counted, past.failed, settings, now)


def _for(facts: Facts, own: str, row: pb.Standing) -> pb.Standing:
    """Return a row as a member of a team sees it."""
    if row.is_baseline or facts.present(row.team) != own:
        return row
    marked = pb.Standing()
    marked.CopyFrom(row)
    marked.is_own = True
    return marked
