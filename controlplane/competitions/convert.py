"""Competitions to the contract's messages, and settings back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.competitions.competitions import Asked
from controlplane.domain.boards.values import DAY_S, PublicScore, SubmissionLimit
from controlplane.domain.competitions.phases import end_of, in_order, is_held, phase_at
from controlplane.domain.competitions.values import (
    DEFAULT_PICKS,
    DEFAULT_TEAM_SIZE,
    CompetitionSettings,
    Phase,
)
from controlplane.domain.errors import InvalidRequest
from controlplane.wire.resources import VISIBILITIES, to_visibility
from controlplane.wire.times import duration, seconds_of, time_of, timestamp
from nsml.v1 import boards_pb2
from nsml.v1 import competitions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from controlplane.domain.boards.values import ScoreDirection
    from controlplane.domain.competitions.standings import PhaseSubmission, StandingsRow
    from controlplane.domain.competitions.statistics import PhaseStatistics
    from controlplane.domain.competitions.values import Competition, Facts, Team


def to_settings(message: pb.CompetitionSettings) -> Asked:
    """Return the settings of a request.

    Raises:
        InvalidRequest: there is no such visibility or way to show scores.
    """
    settings = CompetitionSettings(
        title=message.title,
        description=message.description,
        phases=tuple(map(_to_phase, message.phases)),
        by_invitation=message.by_invitation,
        team_size=message.team_size or DEFAULT_TEAM_SIZE,
        mergers_until=time_of(message.mergers_until) if message.HasField("mergers_until") else 0.0,
        gpu_thousandths=message.gpu_thousandths,
    )
    return Asked(
        settings=settings,
        datasets={one.name: one.dataset for one in message.phases},
        visibility=to_visibility(message.visibility),
    )


def _to_phase(message: pb.Phase) -> Phase:
    limit = None
    if message.HasField("limit"):
        window = seconds_of(message.limit.window) if message.limit.HasField("window") else DAY_S
        limit = SubmissionLimit(count=message.limit.count, window_s=window)
    try:
        mode = PublicScore(message.public_score) if message.public_score else PublicScore.OWN_BEST
    except ValueError:
        raise InvalidRequest(f"there is no way {message.public_score} to show scores") from None
    return Phase(
        name=message.name,
        starts_at=time_of(message.starts_at),
        ends_at=time_of(message.ends_at),
        dataset_owner="",
        dataset=message.dataset,
        limit=limit,
        public_score=mode,
        advance=message.advance,
        picks=message.picks or DEFAULT_PICKS,
    )


def settings_message(
    competition: Competition,
    final: Collection[str] = (),
    directions: Mapping[str, ScoreDirection] | None = None,
) -> pb.CompetitionSettings:
    """Build the message of a competition's settings.

    Args:
        competition: whose settings.
        final: names of phases whose standings are.
        directions: which scores are better, by name of the phase; None: not said.
    """
    known = directions or {}
    settings = competition.settings
    return pb.CompetitionSettings(
        title=settings.title,
        description=settings.description,
        phases=[
            _phase(competition, one, is_final=one.name in final, direction=known.get(one.name))
            for one in in_order(settings.phases)
        ],
        by_invitation=settings.by_invitation,
        team_size=settings.team_size,
        mergers_until=timestamp(settings.mergers_until),
        gpu_thousandths=settings.gpu_thousandths,
        visibility=VISIBILITIES[settings.visibility],
    )


def _phase(
    competition: Competition, phase: Phase, *, is_final: bool, direction: ScoreDirection | None
) -> pb.Phase:
    is_taking_place = is_held(competition, phase)
    message = pb.Phase(
        name=phase.name,
        starts_at=timestamp(phase.starts_at),
        ends_at=timestamp(end_of(competition, phase) if is_taking_place else phase.end),
        dataset=f"{phase.dataset_owner}/{phase.dataset}",
        public_score=int(phase.public_score),  # type: ignore[arg-type]
        advance=phase.advance,
        picks=phase.picks,
        is_final=is_final,
        is_not_held=not is_taking_place,
        direction=int(direction or 0),  # type: ignore[arg-type]
    )
    if phase.limit is not None:
        limit = boards_pb2.SubmissionLimit(
            count=phase.limit.count, window=duration(phase.limit.window_s)
        )
        message.limit.CopyFrom(limit)
    return message


def competition_message(
    competition: Competition,
    now: float,
    *,
    teams: int = 0,
    submissions: int = 0,
    final: Collection[str] = (),
    directions: Mapping[str, ScoreDirection] | None = None,
) -> pb.Competition:
    """Build the message of a competition."""
    running = phase_at(competition, now)
    return pb.Competition(
        owner=competition.owner,
        name=competition.name,
        settings=settings_message(competition, final, directions),
        state=int(competition.state),  # type: ignore[arg-type]
        created_at=timestamp(competition.created_at),
        team_count=teams,
        submission_count=submissions,
        phase=running.name if running is not None else "",
    )


def team_count(facts: Facts) -> int:
    """Count the teams with members."""
    return len({one.team for one in facts.members})


def team_message(
    facts: Facts,
    team: Team,
    submissions: Iterable[PhaseSubmission],
    *,
    phase: str,
    next_at: float = 0.0,
    left: int | None = None,
    is_own: bool,
) -> pb.Team:
    """Build the message of a team; `submissions`: of the phase that runs, `is_own`: for its members.

    `left`: how many more it may submit now; None: no limit.
    """
    message = pb.Team(
        name=team.name,
        members=facts.members_of(team.name),
        disqualified=team.disqualified,
        submissions=sum(one.team == team.name and one.is_counted for one in submissions),
    )
    if is_own:
        message.invited.extend(
            sorted(one.user_name for one in facts.invitations if one.team == team.name)
        )
        message.merge_requests.extend(
            sorted(one.team for one in facts.merges if one.other == team.name)
        )
        message.picks.extend(
            one.submission_id for one in facts.picks if (one.phase, one.team) == (phase, team.name)
        )
        if (at := timestamp(next_at)) is not None:
            message.next_at.CopyFrom(at)
        if left is not None:
            message.submissions_left = left
    return message


def standing_message(
    row: StandingsRow, *, is_private: bool, reruns: Mapping[str, str]
) -> pb.Standing:
    """Build the message of a row; `is_private`: for who may know private scores."""
    message = pb.Standing(
        rank=row.rank,
        rank_before=row.before,
        team=row.team,
        members=row.members,
        submissions=row.submissions,
        submitted_at=timestamp(row.submitted_at),
        gpu_seconds=row.gpu_seconds,
        is_baseline=row.is_baseline,
        goes_on=row.goes_on,
        disqualified=row.disqualified,
        public_rank=row.public_rank,
        rerun="" if row.is_baseline else reruns.get(row.team, ""),
        trend=row.trend,
    )
    if row.score is not None:
        message.score = row.score
    if is_private and row.private is not None:
        message.private_score = row.private
    return message


def statistics_message(figures: PhaseStatistics) -> pb.PhaseStatistics:
    """Build the message of a phase's figures."""
    return pb.PhaseStatistics(
        phase=figures.phase,
        users=figures.users,
        models=figures.models,
        mean_models=figures.mean_models,
        most_models=figures.most_models,
        under_five=figures.under_five,
        submissions=figures.submissions,
        mean_submissions=figures.mean_submissions,
        most_submissions=figures.most_submissions,
        gpu_seconds=figures.gpu_seconds,
    )
