"""The competition of the demo: teams that submit to the dataset of its board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.v1 import boards_pb2, resources_pb2
from nsml.v1 import competitions_pb2 as pb
from tui.demo.boards import DATASET_BOARD, USER
from tui.demo.plan import BEFORE_S
from tui.demo.scripted_session import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tui.demo.boards import Submission
    from tui.model import StandingsQuery

COMPETITION: Final = "bo/leaf-cup"
_TEAMS: Final = {"ada": "maples", "cleo": "oaks", "dev": "oaks", "eun": "birches"}
"""By user; others are a team of their own name. The organiser takes part by a baseline alone."""
_ORGANISER: Final = "bo"
_BASELINE: Final = 0.8675
_ADVANCE: Final = 2
_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3_600.0
_PHASES: Final = (
    ("round-1", -BEFORE_S, _DAY_S * 2.5, _ADVANCE),
    ("final", _DAY_S * 3, _DAY_S * 10, 0),
)
"""Name, from when to when (seconds from the start of the show), how many go on."""
_SAID: Final = (
    (-7_900.0, "Welcome: 4 members at most make a team."),
    (-2_400.0, "The labels of 12 leaves were wrong. All submissions are evaluated again."),
)
_MOST_TREND: Final = 32


class Competitions:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, submissions: Sequence[Submission], origin: float) -> None:
        self._submissions = [one for one in submissions if one.part.user != _ORGANISER]
        self._origin = origin

    def every(self, now: float) -> list[pb.Competition]:
        """The one that there is."""
        found = pb.Competition(state=pb.COMPETITION_STATE_OPEN)
        found.owner, found.name = COMPETITION.split("/")
        settings = found.settings
        settings.title = "Leaf Cup 2026"
        settings.description = (
            "Whose model knows most leaves? The first two teams meet in the final."
        )
        settings.visibility, settings.team_size = resources_pb2.VISIBILITY_PUBLIC, 4
        for name, begins, ends, advance in _PHASES:
            phase = settings.phases.add(name=name, dataset=DATASET_BOARD, advance=advance, picks=2)
            stamp(phase.starts_at, self._origin + begins)
            stamp(phase.ends_at, self._origin + ends)
            phase.limit.count = 20
            phase.limit.window.FromSeconds(int(_DAY_S))
            if begins <= now < ends:
                found.phase = name
        stamp(found.created_at, self._origin - _DAY_S * 9)
        made = self._made(now)
        found.team_count, found.submission_count = len(made), sum(map(len, made.values()))
        return [found]

    def shown(self, query: StandingsQuery, now: float) -> pb.WatchStandingsResponse:
        """The standings of a phase."""
        (competition,) = self.every(now)
        phase = query.phase or competition.phase
        rows = self._rows(now) if phase == _PHASES[0][0] else []
        return pb.WatchStandingsResponse(competition=competition, phase=phase, standings=rows)

    def announcements(self, now: float) -> list[pb.Announcement]:
        """What was said by a time."""
        found = []
        for at, text in _SAID:
            if at <= now:
                one = pb.Announcement(text=text)
                stamp(one.at, self._origin + at)
                found.append(one)
        return found

    def _made(self, now: float) -> Mapping[str, list[Submission]]:
        """The submissions of each team by a time."""
        found: dict[str, list[Submission]] = {}
        for one in self._submissions:
            if one.at <= now:
                found.setdefault(_team(one), []).append(one)
        return found

    def _ranks(self, now: float) -> dict[str, int]:
        best = {
            team: max(_scores(made, now))
            for team, made in self._made(now).items()
            if _scores(made, now)
        }
        order = sorted(best, key=lambda team: (-best[team], team))
        return {team: rank for rank, team in enumerate(order, 1)}

    def _rows(self, now: float) -> list[pb.Standing]:
        ranks, before = self._ranks(now), self._ranks(now - _HOUR_S)
        rows = []
        for team, made in self._made(now).items():
            row = pb.Standing(team=team, submissions=len(made), rank=ranks.get(team, 0))
            row.members.extend(sorted({one.part.user for one in made}))
            row.is_own = USER in row.members
            row.gpu_seconds = sum(
                one.part.gpus * max(min(now, one.part.stopped) - one.part.placed, 0.0)
                for one in {one.part.id: one for one in made}.values()
            )
            if scores := _scores(made, now):
                row.score, row.rank_before = max(scores), before.get(team, 0)
                best = next(one for one in made if one.score == row.score)
                stamp(row.submitted_at, self._origin + best.at)
                row.goes_on = row.rank <= _ADVANCE
                row.trend.extend(max(scores[: place + 1]) for place in range(len(scores)))
                del row.trend[:-_MOST_TREND]
            rows.append(row)
        baseline = pb.Standing(
            team="linear model", score=_BASELINE, is_baseline=True, submissions=1
        )
        stamp(baseline.submitted_at, self._origin - _HOUR_S * 3)
        rows.append(baseline)
        return sorted(
            rows, key=lambda row: (not row.HasField("score"), -row.score, row.is_baseline, row.team)
        )


def _team(one: Submission) -> str:
    return _TEAMS.get(one.part.user, one.part.user)


def _scores(made: Sequence[Submission], now: float) -> list[float]:
    scored = boards_pb2.SUBMISSION_STATE_SCORED
    return [one.score for one in made if one.state(now) == scored]
