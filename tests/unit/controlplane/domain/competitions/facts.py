"""Competitions for tests."""

from __future__ import annotations

from typing import Any

from controlplane.domain.boards.values import PublicScore, ScoreDirection, SubmissionLimit
from controlplane.domain.competitions.standings import PhaseSubmission, Scale
from controlplane.domain.competitions.teams import join
from controlplane.domain.competitions.values import (
    Competition,
    CompetitionSettings,
    CompetitionState,
    Facts,
    Phase,
    participant_key,
)
from controlplane.domain.identity import User
from controlplane.domain.values import Visibility

DAY_S = 86_400.0
STARTS, ENDS = 1_000.0, 1_000.0 + 10 * DAY_S
SCALE = Scale(direction=ScoreDirection.MAX)


def phase(name: str = "one", **given: Any) -> Phase:
    values: dict[str, Any] = {
        "starts_at": STARTS,
        "ends_at": ENDS,
        "dataset_owner": "kim",
        "dataset": "digits",
        "limit": SubmissionLimit(count=5),
        "public_score": PublicScore.EXACT,
    }
    return Phase(name=name, **{**values, **given})


def facts(*phases: Phase, state: CompetitionState = CompetitionState.OPEN, **given: Any) -> Facts:
    settings: dict[str, Any] = {
        "phases": phases or (phase(),),
        "visibility": Visibility.PUBLIC,
        "team_size": 3,
    }
    competition = Competition(
        id="c1",
        owner="kim",
        name="cup",
        state=state,
        settings=CompetitionSettings(**{**settings, **given}),
        created_at=1.0,
    )
    return Facts(competition=competition)


def joined(known: Facts, *names: str) -> Facts:
    for name in names:
        known = join(known, User(name=name), "", STARTS)
    return known


def submission(number: int, team: str, score: float | None, **given: Any) -> PhaseSubmission:
    values: dict[str, Any] = {
        "owner": team,
        "key": participant_key("c1", team) if team else "",
        "submitted_at": STARTS + number,
        "scored_at": STARTS + number + 0.5,
        "score": score,
        "session_id": f"s{number}",
    }
    return PhaseSubmission(id=f"u{number:03}", **{**values, **given})
