"""For which teams of competitions a session counts, and whether their quotas can ever let it start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.errors import OverQuota
from controlplane.projects.projects import within_gpus, within_quota
from controlplane.scheduler.entitlement import claim_of, never_in_team
from controlplane.scheduler.team_quotas import first_exceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from controlplane.core.infeasible import Alternatives
    from controlplane.domain.identity import User
    from controlplane.domain.values import DatasetVersion, TeamQuota
    from controlplane.history.sql.history import History
    from controlplane.scheduler import Request
    from controlplane.state.live_state import LiveState


class CompetitionTeams:
    """Finds teams by the records of open competitions; without one that uses a dataset, nothing is read."""

    def __init__(self, *, state: LiveState, history: History) -> None:
        self._state = state
        self._history = history

    async def of(self, user: User, datasets: Iterable[DatasetVersion]) -> tuple[str, ...]:
        """Return the user's teams in open competitions with these datasets, as COMPETITION_ID/TEAM, sorted.

        Raises:
            HistoryUnavailable: the history does not answer.
        """
        used = {f"{one.owner}/{one.name}" for one in datasets}
        found = [
            one.value.competition_id
            for one in self._state.team_quotas.values()
            if used.intersection(one.value.datasets)
        ]
        if not found:
            return ()
        return await self._history.competitions.teams_of(user.name, user.id, sorted(found))


def check_team_quotas(
    state: LiveState, teams: Sequence[str], request: Request, nearest: Alternatives
) -> None:
    """Raise OverQuota if a request exceeds what a team may hold at once; `nearest` suggests alternatives."""
    gpus = claim_of(request).gpu_thousandths
    if (small := first_exceeded(_quotas(state, teams), gpus)) is not None:
        raise OverQuota(
            "this can never start in its competition",
            why=never_in_team(small, gpus),
            attempt=nearest.words(request),
        )


def within_quotas(
    state: LiveState, project: str, teams: Sequence[str], request: Request
) -> Request:
    """Return the largest part of a request that the quotas of a project and of teams allow at once."""
    request = within_quota(state, project, request)
    for one in _quotas(state, teams):
        if one.gpu_thousandths:
            request = within_gpus(one.gpu_thousandths, request)
    return request


def _quotas(state: LiveState, teams: Iterable[str]) -> Iterator[TeamQuota]:
    for one in teams:
        stored = state.team_quotas.get(one.partition("/")[0])
        if stored is not None:
            yield stored.value
