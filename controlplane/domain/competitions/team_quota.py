"""The quota of a competition's teams, as the scheduler goes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.competitions.phases import last_end
from controlplane.domain.competitions.values import CompetitionState
from controlplane.domain.values import TeamQuota

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.domain.competitions.values import Competition


def team_quota(competition: Competition, merged: Mapping[str, str], now: float) -> TeamQuota | None:
    """Return the quota of an open competition's teams until its last phase is over; None: there is none.

    Also without a limit, since sessions have to be known by then if there is one later.

    Args:
        competition: with its settings.
        merged: teams that merged into others, each with that one.
        now: Unix seconds.
    """
    if competition.state is not CompetitionState.OPEN or now >= last_end(competition):
        return None
    phases = competition.settings.phases
    return TeamQuota(
        competition_id=competition.id,
        competition=competition.name,
        datasets=tuple(sorted({f"{one.dataset_owner}/{one.dataset}" for one in phases})),
        gpu_thousandths=competition.settings.gpu_thousandths,
        merged={team: _present(team, merged) for team in sorted(merged)},
    )


def _present(team: str, merged: Mapping[str, str]) -> str:
    """Return the team that a team is now a part of, over all mergers."""
    seen = {team}
    while (found := merged.get(team, team)) not in seen:
        team = found
        seen.add(team)
    return team
