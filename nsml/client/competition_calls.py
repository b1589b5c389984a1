"""CompetitionService: competitions, their teams and standings.

Responses are the contract's own messages. Every method raises `nsml.client.errors.ClientError`. `competition` is NAME or
OWNER/NAME.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import competitions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from nsml.client.rpc import Rpc


_PAGE = 100
"""Each competition is counted for its list: other readers have their turn between the pages."""


class Competitions:
    """CompetitionService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def create(self, name: str, settings: pb.CompetitionSettings) -> pb.Competition:
        """Create a competition, which is not open yet."""
        answer = await self._rpc.unary(
            "CompetitionService/CreateCompetition",
            pb.CreateCompetitionRequest(name=name, settings=settings),
            pb.CreateCompetitionResponse,
        )
        return answer.competition

    async def update(self, competition: str, settings: pb.CompetitionSettings) -> pb.Competition:
        """Replace all settings. A repetition changes nothing more, so it is retried."""
        answer = await self._rpc.unary(
            "CompetitionService/UpdateCompetition",
            pb.UpdateCompetitionRequest(competition=competition, settings=settings),
            pb.UpdateCompetitionResponse,
            is_retried=True,
        )
        return answer.competition

    async def open(self, competition: str) -> pb.Competition:
        """Let participants join, and submit in the times of its phases."""
        answer = await self._rpc.unary(
            "CompetitionService/OpenCompetition",
            pb.OpenCompetitionRequest(competition=competition),
            pb.OpenCompetitionResponse,
        )
        return answer.competition

    async def close(self, competition: str, phase: str = "") -> pb.Competition:
        """End a phase, "": the whole competition; StateConflict: it is not open."""
        answer = await self._rpc.unary(
            "CompetitionService/CloseCompetition",
            pb.CloseCompetitionRequest(competition=competition, phase=phase),
            pb.CloseCompetitionResponse,
        )
        return answer.competition

    async def remove(self, competition: str) -> None:
        """Remove a competition with its teams; StateConflict: it is open."""
        await self._rpc.unary(
            "CompetitionService/DeleteCompetition",
            pb.DeleteCompetitionRequest(competition=competition),
            pb.DeleteCompetitionResponse,
        )

    async def get(self, competition: str) -> pb.GetCompetitionResponse:
        """Return one competition, the caller's team, and what the caller may do."""
        return await self._rpc.unary(
            "CompetitionService/GetCompetition",
            pb.GetCompetitionRequest(competition=competition),
            pb.GetCompetitionResponse,
        )

    async def every(self) -> list[pb.Competition]:
        """Return the visible competitions, the newest first."""
        request = pb.ListCompetitionsRequest(page_size=_PAGE)
        found: list[pb.Competition] = []
        while True:
            page = await self._rpc.unary(
                "CompetitionService/ListCompetitions", request, pb.ListCompetitionsResponse
            )
            found += page.competitions
            request.cursor = page.next_cursor
            if not request.cursor:
                return found

    async def open_page(self, competition: str) -> str:
        """Return an address of its page in a browser that signs the caller in, for one visit within a minute."""
        answer = await self._rpc.unary(
            "CompetitionService/OpenCompetitionPage",
            pb.OpenCompetitionPageRequest(competition=competition),
            pb.OpenCompetitionPageResponse,
        )
        return answer.url

    async def join(self, competition: str, team: str = "") -> pb.Team:
        """Join with a new team, "": of the caller's name, or one that invited the caller."""
        answer = await self._rpc.unary(
            "CompetitionService/JoinCompetition",
            pb.JoinCompetitionRequest(competition=competition, team=team),
            pb.JoinCompetitionResponse,
        )
        return answer.team

    async def leave(self, competition: str) -> None:
        """Leave the caller's team; StateConflict: they have none."""
        await self._rpc.unary(
            "CompetitionService/LeaveCompetition",
            pb.LeaveCompetitionRequest(competition=competition),
            pb.LeaveCompetitionResponse,
        )

    async def invite(
        self, competition: str, users: Sequence[str], *, into_competition: bool = False
    ) -> None:
        """Invite users into the caller's team, or into the competition. A repetition changes nothing more."""
        await self._rpc.unary(
            "CompetitionService/InviteUsers",
            pb.InviteUsersRequest(
                competition=competition, users=users, into_competition=into_competition
            ),
            pb.InviteUsersResponse,
            is_retried=True,
        )

    async def merge(self, competition: str, team: str, name: str = "") -> pb.MergeTeamsResponse:
        """Ask another team to merge with the caller's, or agree to its request."""
        return await self._rpc.unary(
            "CompetitionService/MergeTeams",
            pb.MergeTeamsRequest(competition=competition, team=team, name=name),
            pb.MergeTeamsResponse,
        )

    async def disqualify(self, competition: str, team: str, reason: str) -> pb.Team:
        """Disqualify a team; reason "": take that back. A repetition changes nothing more, so it is retried."""
        answer = await self._rpc.unary(
            "CompetitionService/UpdateTeam",
            pb.UpdateTeamRequest(competition=competition, team=team, disqualified=reason),
            pb.UpdateTeamResponse,
            is_retried=True,
        )
        return answer.team

    async def pick(self, competition: str, submissions: Sequence[str], phase: str = "") -> pb.Team:
        """Choose the submissions that count in the end; none: the best by public score. Replaces earlier picks."""
        answer = await self._rpc.unary(
            "CompetitionService/PickSubmissions",
            pb.PickSubmissionsRequest(
                competition=competition, phase=phase, submissions=submissions
            ),
            pb.PickSubmissionsResponse,
            is_retried=True,
        )
        return answer.team

    async def set_baseline(self, competition: str, submission: str, label: str) -> None:
        """Show a submission of the organiser as a baseline; label "": not any more."""
        await self._rpc.unary(
            "CompetitionService/SetBaseline",
            pb.SetBaselineRequest(competition=competition, submission=submission, label=label),
            pb.SetBaselineResponse,
            is_retried=True,
        )

    async def announce(self, competition: str, text: str) -> None:
        """Say something to all participants."""
        await self._rpc.unary(
            "CompetitionService/Announce",
            pb.AnnounceRequest(competition=competition, text=text),
            pb.AnnounceResponse,
        )

    async def rerun(self, competition: str, phase: str = "", teams: int = 0) -> int:
        """Predict and evaluate the picks of the first teams again; return how many were started."""
        answer = await self._rpc.unary(
            "CompetitionService/RerunWinners",
            pb.RerunWinnersRequest(competition=competition, phase=phase, teams=teams),
            pb.RerunWinnersResponse,
        )
        return answer.started

    async def standings(
        self, competition: str, phase: str = "", *, by_private: bool = False
    ) -> pb.ListStandingsResponse:
        """Return the standings of a phase; "": the one that runs, else the last that began."""
        return await self._rpc.unary(
            "CompetitionService/ListStandings",
            pb.ListStandingsRequest(competition=competition, phase=phase, by_private=by_private),
            pb.ListStandingsResponse,
        )

    async def export(self, competition: str) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the signed file with everything."""
        stream = self._rpc.stream(
            "CompetitionService/ExportCompetition",
            pb.ExportCompetitionRequest(competition=competition),
            pb.ExportCompetitionResponse,
        )
        async for part in stream:
            yield part.data
