"""Competitions of the contract server. Nothing is ranked: tests say what the standings are."""

from __future__ import annotations

import grpc

from nsml.common.signed_json import JsonSigning, to_json
from nsml.v1 import competitions_pb2 as pb
from nsml.v1 import competitions_pb2_grpc
from tests.unit.nsml.client.contract_pages import page_of

EPOCH = 1_700_000_000
NOW = EPOCH + 86_400
DAY = 86_400


class Competitions(competitions_pb2_grpc.CompetitionServiceServicer):
    """`state.competitions` by OWNER/NAME; the caller is kim. `refuse` aborts a call."""

    def __init__(self, state, refuse):
        self.state = state
        self.refuse = refuse

    def conflict(self, context, why):
        self.refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why, "WRONG_STATE")

    def find(self, name, context):
        known = self.state.competitions
        found = known.get(name) or known.get(f"kim/{name}")
        if found is None:
            why = f"no competition {name}"
            self.refuse(context, grpc.StatusCode.NOT_FOUND, why, "NOT_FOUND")
        return found

    def own(self, name, context):
        found = self.find(name, context)
        if not found.may_change:
            why = f"{name} is not yours"
            self.refuse(context, grpc.StatusCode.PERMISSION_DENIED, why, "DENIED")
        return found

    def CreateCompetition(self, request, context):
        if f"kim/{request.name}" in self.state.competitions:
            why = f"there is a competition {request.name}"
            self.refuse(context, grpc.StatusCode.ALREADY_EXISTS, why, "ALREADY_EXISTS")
        made = self.state.add_competition(
            f"kim/{request.name}", request.settings, state=pb.COMPETITION_STATE_DRAFT
        )
        return pb.CreateCompetitionResponse(competition=made.competition)

    def UpdateCompetition(self, request, context):
        found = self.own(request.competition, context).competition
        found.settings.CopyFrom(request.settings)
        return pb.UpdateCompetitionResponse(competition=found)

    def OpenCompetition(self, request, context):
        found = self.own(request.competition, context).competition
        found.state = pb.COMPETITION_STATE_OPEN
        return pb.OpenCompetitionResponse(competition=found)

    def CloseCompetition(self, request, context):
        found = self.own(request.competition, context).competition
        if found.state != pb.COMPETITION_STATE_OPEN:
            self.conflict(context, f"{found.name} is not open")
        if request.phase:
            ended = next(one for one in found.settings.phases if one.name == request.phase)
            ended.ends_at.seconds = NOW
            found.phase = ""
        else:
            found.state = pb.COMPETITION_STATE_CLOSED
        return pb.CloseCompetitionResponse(competition=found)

    def DeleteCompetition(self, request, context):
        found = self.own(request.competition, context).competition
        if found.state == pb.COMPETITION_STATE_OPEN:
            self.conflict(context, f"{found.name} is open")
        del self.state.competitions[f"{found.owner}/{found.name}"]
        return pb.DeleteCompetitionResponse()

    def GetCompetition(self, request, context):
        return self.find(request.competition, context)

    def OpenCompetitionPage(self, request, context):
        found = self.find(request.competition, context).competition
        place = f"competitions/{found.owner}/{found.name}"
        return pb.OpenCompetitionPageResponse(url=f"https://nsml.example/{place}?ticket=T")

    def ListCompetitions(self, request, context):
        failure = self.state.fail_next.pop("ListCompetitions", None)
        if failure is not None:
            context.abort(failure, "competitions cannot be listed")
        every = [one.competition for one in self.state.competitions.values()]
        page, cursor = page_of(every, request)
        return pb.ListCompetitionsResponse(competitions=page, next_cursor=cursor)

    def JoinCompetition(self, request, context):
        found = self.find(request.competition, context)
        if found.HasField("team"):
            self.conflict(context, f"you are in team {found.team.name}")
        found.team.CopyFrom(pb.Team(name=request.team or "kim", members=["kim"]))
        return pb.JoinCompetitionResponse(team=found.team)

    def team(self, name, context):
        found = self.find(name, context)
        if not found.HasField("team"):
            self.conflict(context, "you are in no team")
        return found

    def LeaveCompetition(self, request, context):
        self.team(request.competition, context).ClearField("team")
        return pb.LeaveCompetitionResponse()

    def InviteUsers(self, request, context):
        if request.into_competition:
            self.own(request.competition, context)
        else:
            self.team(request.competition, context).team.invited.extend(request.users)
        self.state.invited.append(request)
        return pb.InviteUsersResponse()

    def MergeTeams(self, request, context):
        found = self.team(request.competition, context)
        is_merged = request.team in found.team.merge_requests
        if is_merged:
            found.team.name = request.name or found.team.name
            del found.team.merge_requests[:]
        self.state.merges.append(request)
        return pb.MergeTeamsResponse(team=found.team, is_merged=is_merged)

    def UpdateTeam(self, request, context):
        found = self.own(request.competition, context)
        team = next((one for one in found.teams if one.name == request.team), None)
        if team is None:
            why = f"no team {request.team}"
            self.refuse(context, grpc.StatusCode.NOT_FOUND, why, "NOT_FOUND")
        team.disqualified = request.disqualified
        return pb.UpdateTeamResponse(team=team)

    def PickSubmissions(self, request, context):
        found = self.team(request.competition, context)
        found.team.picks[:] = request.submissions
        self.state.picks.append(request)
        return pb.PickSubmissionsResponse(team=found.team)

    def SetBaseline(self, request, context):
        self.own(request.competition, context)
        self.state.baselines[request.submission] = request.label
        return pb.SetBaselineResponse()

    def Announce(self, request, context):
        said = self.own(request.competition, context).announcements.add(text=request.text)
        said.at.seconds = NOW
        return pb.AnnounceResponse()

    def RerunWinners(self, request, context):
        self.own(request.competition, context)
        self.state.reruns.append(request)
        return pb.RerunWinnersResponse(started=request.teams)

    def ListStandings(self, request, context):
        failure = self.state.fail_next.pop("ListStandings", None)
        if failure is not None:
            context.abort(failure, "the standings cannot be read")
        found = self.find(request.competition, context)
        if request.by_private and not found.may_change:
            why = "private scores are the organiser's before the end"
            self.refuse(context, grpc.StatusCode.PERMISSION_DENIED, why, "DENIED")
        return self.standings(found.competition, request.phase, pb.ListStandingsResponse)

    def standings(self, competition, phase, response):
        name = f"{competition.owner}/{competition.name}"
        shown = phase or competition.phase
        return response(
            competition=competition,
            phase=shown,
            standings=self.state.standings.get(name, []),
            is_final=any(one.name == shown and one.is_final for one in competition.settings.phases),
        )

    def WatchStandings(self, request, context):
        told = None
        while context.is_active():
            with self.state.changed:
                found = self.find(request.competition, context).competition
                now = self.standings(
                    found, request.phase, pb.WatchStandingsResponse
                ).SerializeToString()
                if now == told:
                    self.state.changed.wait(0.05)
                    continue
                told = now
                self.state.standings_sent += 1
                self.state.changed.notify_all()
            yield pb.WatchStandingsResponse.FromString(now)

    def ExportCompetition(self, request, context):
        found = self.own(request.competition, context).competition
        signing = JsonSigning(self.state.sign)
        document = {
            "format": self.state.export_format,
            "platform": "c1",
            "exported_at": "2023-11-15T22:13:20.000Z",
            "competition": {"owner": found.owner, "name": found.name, "state": "open"},
            "teams": [{"name": "löwen"}],
            "submissions": [{"id": "sub1"}, {"id": "sub2"}],
        }
        yield pb.ExportCompetitionResponse(data=signing.begin())
        yield pb.ExportCompetitionResponse(data=signing.add(to_json(document)))
        if self.state.breaks_export:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        yield pb.ExportCompetitionResponse(data=signing.end())


class WithCompetitions:
    """The competitions of a State."""

    def __init__(self):
        super().__init__()
        self.competitions: dict[str, pb.GetCompetitionResponse] = {}
        self.standings: dict[str, list[pb.Standing]] = {}
        self.invited: list[pb.InviteUsersRequest] = []
        self.merges: list[pb.MergeTeamsRequest] = []
        self.picks: list[pb.PickSubmissionsRequest] = []
        self.baselines: dict[str, str] = {}
        self.reruns: list[pb.RerunWinnersRequest] = []
        self.standings_sent = 0
        self.breaks_export = False
        self.export_format = "nsml.competition.v1"
        self.sign = lambda digest: b"signature of " + digest

    def add_competition(self, name, settings=None, *, state=pb.COMPETITION_STATE_OPEN, **fields):
        owner, _, alone = name.partition("/")
        if settings is None:
            settings = pb.CompetitionSettings(title="Digits", visibility="VISIBILITY_PUBLIC")
            for number, phase in enumerate(("qualifying", "final")):
                made = settings.phases.add(name=phase, dataset="kim/digits")
                made.starts_at.seconds = NOW - DAY + 3 * DAY * number
                made.ends_at.seconds = NOW + 2 * DAY + 3 * DAY * number
            settings.phases[0].limit.count = 10
            settings.phases[0].limit.window.seconds = DAY
            settings.phases[0].advance = 2
        found = pb.GetCompetitionResponse(
            competition=pb.Competition(
                owner=owner,
                name=alone,
                settings=settings,
                state=state,
                phase=fields.pop("phase", "qualifying" if state == 2 else ""),
            ),
            may_change=fields.pop("may_change", owner == "kim"),
            **fields,
        )
        found.competition.created_at.seconds = EPOCH
        self.competitions[name] = found
        return found

    def add_standing(self, competition, team, score=None, **fields):
        rows = self.standings.setdefault(competition, [])
        row = pb.Standing(
            rank=fields.pop("rank", len(rows) + 1 if score is not None else 0),
            team=team,
            score=score,
            members=fields.pop("members", [team]),
            **fields,
        )
        row.submitted_at.seconds = EPOCH + len(rows)
        with self.changed:
            rows.append(row)
            self.changed.notify_all()
        return row
