"""A competition on a dataset that takes submissions, with users who trained, and a clock that tests put forward."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from controlplane.competitions.feature import competition_views, competitions, tables, team_changes
from controlplane.domain.boards.values import UNFINISHED, SubmissionState
from controlplane.history.board_values import ScoreRow
from controlplane.submissions.feature import participation, submissions
from controlplane.wire.times import timestamp
from nsml.v1 import boards_pb2, resources_pb2, sessions_pb2
from nsml.v1 import competitions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs
from tests.unit.controlplane.services.submissions import NONE, OWN, pushed, trained
from tests.unit.controlplane.services.test_rights import save

DAY_S = 86_400.0
NAME = "kim/cup"
_numbers = itertools.count()


class AheadClock:
    """A control plane's clock, put forward."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.ahead = 0.0

    def time(self) -> float:
        return self._clock.time() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()


@dataclass
class Contest:
    """`kim` organises it; `sessions`: of each user, who submits it."""

    rig: Rig
    kim: Stubs
    node: Agent
    clock: AheadClock
    start: float
    users: dict[str, Stubs] = field(default_factory=dict)
    sessions: dict[str, sessions_pb2.Session] = field(default_factory=dict)

    @classmethod
    async def of(cls, rig: Rig, *names: str, **settings: Any) -> Contest:
        """An open competition with one phase that runs, of which these users are participants."""
        kim = await rig.user("kim")
        await pushed(kim)
        node = await (await rig.agent("a", gpus=8, networks=[OWN, NONE])).connect()
        core = rig.plane.core
        clock = AheadClock(core.clock)
        parts: tuple[Any, ...] = (
            *(competitions, tables, competition_views, team_changes, participation, submissions),
        )
        for part in parts:
            core.shared(part)._clock = clock
        one = cls(rig, kim, node, clock, clock.time())
        await one.create(**settings)
        await kim.competitions.OpenCompetition(pb.OpenCompetitionRequest(competition="cup"))
        for name in names:
            await one.user(name)
            await one.join(name)
        return one

    def phase(
        self, name: str = "one", begins: float = -60.0, ends: float = DAY_S, **other: Any
    ) -> pb.Phase:
        """A phase in seconds from the start of the test."""
        values: dict[str, Any] = {"dataset": "digits", **other}
        return pb.Phase(
            name=name,
            starts_at=timestamp(self.start + begins),
            ends_at=timestamp(self.start + ends),
            **values,
        )

    async def create(self, name: str = "cup", **settings: Any) -> pb.Competition:
        settings.setdefault("phases", [self.phase()])
        request = pb.CreateCompetitionRequest(
            name=name, settings=pb.CompetitionSettings(**settings)
        )
        return (await self.kim.competitions.CreateCompetition(request)).competition

    async def user(self, name: str) -> Stubs:
        """A user with a session that trained."""
        self.users[name] = who = self.kim if name == "kim" else await self.rig.user(name)
        self.sessions[name] = session = await trained(
            who, self.node, resources=resources_pb2.Resources(gpu_thousandths=0)
        )
        await save(self.node, session.id)
        return who

    async def join(self, name: str, team: str = "") -> pb.Team:
        request = pb.JoinCompetitionRequest(competition=NAME, team=team)
        return (await self.users[name].competitions.JoinCompetition(request)).team

    async def submit(self, name: str, **asked: Any) -> str:
        request = boards_pb2.CreateSubmissionRequest(
            session=self.sessions[name].name, request_id=f"q{next(_numbers)}", **asked
        )
        answer = await self.users[name].submissions.CreateSubmission(request)
        return str(answer.submission.id)

    async def score(self, submission_id: str, score: float, private: float | None = None) -> None:
        """What the leader stores once it is evaluated."""
        core = self.rig.plane.core
        now = self.clock.time()
        row = ScoreRow(submission_id=submission_id, score=score, private=private, ended_at=now)
        changed = await core.history.submissions.change(
            submission_id, UNFINISHED, state=SubmissionState.SCORED, ended_at=now, score=row
        )
        assert changed is not None

    async def scored(self, name: str, score: float, private: float | None = None) -> str:
        submission_id = await self.submit(name)
        await self.score(submission_id, score, private)
        return submission_id

    async def get(self, who: Stubs | None = None) -> pb.GetCompetitionResponse:
        request = pb.GetCompetitionRequest(competition=NAME)
        response: pb.GetCompetitionResponse = await (who or self.kim).competitions.GetCompetition(
            request
        )
        return response

    async def standings(self, who: Stubs | None = None, **asked: Any) -> pb.ListStandingsResponse:
        request = pb.ListStandingsRequest(competition=NAME, **asked)
        response: pb.ListStandingsResponse = await (who or self.kim).competitions.ListStandings(
            request
        )
        return response

    async def close(self, phase: str = "") -> pb.Competition:
        request = pb.CloseCompetitionRequest(competition=NAME, phase=phase)
        closed: pb.Competition = (await self.kim.competitions.CloseCompetition(request)).competition
        return closed
