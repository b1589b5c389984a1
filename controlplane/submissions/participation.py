"""Takes part in competitions: which team submits to a dataset, to which phase, and by which limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BoardKind,
)
from controlplane.domain.competitions.entering import refusal
from controlplane.domain.competitions.phases import is_within, phase_at
from controlplane.domain.competitions.standings import (
    Scale,
    Standings,
    cut_before,
    picked,
    standings,
)
from controlplane.domain.competitions.values import CompetitionState, participant_key
from controlplane.domain.errors import StateConflict
from nsml.common.units import moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.domain.boards.values import BoardSettings, SubmissionLimit
    from controlplane.domain.competitions.standings import PhaseSubmission
    from controlplane.domain.competitions.values import Competition, Facts, Phase
    from controlplane.domain.identity import User
    from controlplane.history.board_values import SubmissionRow
    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamEntry:
    """How a user submits in a competition.

    Attributes:
        key: the `team` of the submission.
        members: of the team; the submissions of all of them count, also those from before they joined.
        limit: of the team; None: as the dataset's board.
    """

    key: str
    members: tuple[str, ...]
    limit: SubmissionLimit | None


class Participation:
    """Decides on submissions to datasets of open competitions."""

    def __init__(self, *, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock

    async def entry(
        self, dataset_owner: str, dataset: str, user: User, now: float, *, is_test: bool
    ) -> TeamEntry | None:
        """Return how a user submits to a dataset now; None: for themselves.

        Organisers submit for themselves, and so are dry runs.

        Raises:
            StateConflict: an open competition uses the dataset, and the user cannot submit to it now.
        """
        if is_test or user.name == dataset_owner:
            return None
        taking = [
            one
            for one in await self._history.competitions.every(CompetitionState.OPEN)
            if _phases_with(one, dataset_owner, dataset)
        ]
        # Those that use a dataset at one time do not overlap.
        taking.sort(key=lambda one: _running(one, dataset_owner, dataset, now) is None)
        for competition in taking[:1]:
            if competition.owner == user.name:
                return None
            facts = await self._history.competitions.facts(competition.id)
            if facts is None:
                continue
            phase = _running(facts.competition, dataset_owner, dataset, now)
            before = await self.cut(facts, phase) if phase is not None else None
            takers = _phases_with(facts.competition, dataset_owner, dataset)
            not_now = why_not_now(takers, now)
            refused = refusal(facts, phase, user.name, user.id, before, not_now=not_now)
            if refused is not None or phase is None:
                why, attempt = refused or ("", "")
                full = f"{competition.owner}/{competition.name}"
                raise StateConflict(
                    f"{dataset_owner}/{dataset} takes submissions of the competition {full} alone",
                    why=why,
                    attempt=attempt,
                )
            team = facts.team_of(user.name, user.id)
            if team is not None:
                return _entry(facts, team.name, phase)
        return None

    async def entry_of(self, row: SubmissionRow) -> TeamEntry | None:
        """Return how a team that has submitted submits again; None: no phase with this dataset runs."""
        competition_id, slash, _ = row.team.partition("/")
        if not slash:
            return None
        facts = await self._history.competitions.facts(competition_id)
        team = facts.team_of(row.owner) if facts is not None else None
        if facts is None or team is None:
            return None
        now = self._clock.time()
        phase = _running(facts.competition, row.dataset_owner, row.dataset, now)
        return _entry(facts, team.name, phase) if phase is not None else None

    async def cut(self, facts: Facts, phase: Phase) -> Standings | None:
        """Return the standings that decide who goes on to a phase; None: everybody does."""
        before = cut_before(facts.competition, phase)
        return await self.standings(facts, before) if before is not None else None

    async def standings(self, facts: Facts, phase: Phase, *, by_private: bool = False) -> Standings:
        """Return the standings of a phase now."""
        settings = await self.board(phase)
        return standings(
            facts,
            phase,
            await self.submissions(facts, phase),
            Scale(direction=settings.direction, ladder_step=settings.ladder_step),
            self._clock.time(),
            by_private=by_private,
        )

    async def submissions(self, facts: Facts, phase: Phase) -> tuple[PhaseSubmission, ...]:
        """Return the submissions of teams, of all phases with the dataset, and baselines."""
        return await self._history.competitions.submissions(
            facts.competition.id,
            phase.dataset_owner,
            phase.dataset,
            [one.submission_id for one in facts.baselines],
        )

    async def counting(
        self, facts: Facts, phase: Phase
    ) -> Mapping[str, tuple[PhaseSubmission, ...]]:
        """Return the submissions that count in the end of a phase, by team."""
        settings = await self.board(phase)
        own = [
            one
            for one in await self.submissions(facts, phase)
            if one.key and is_within(facts.competition, phase, one.submitted_at)
        ]
        return picked(facts, phase, own, Scale(direction=settings.direction))

    async def board(self, phase: Phase) -> BoardSettings:
        """Return the settings of a phase's dataset's board."""
        return await self.board_of(phase.dataset_owner, phase.dataset)

    async def board_of(self, owner: str, dataset: str) -> BoardSettings:
        """Return the settings of a dataset's board."""
        row = await self._history.boards.get(owner, dataset, BoardKind.DATASET)
        return row.settings if row is not None else DEFAULT_SETTINGS[BoardKind.DATASET]


def why_not_now(phases: Sequence[Phase], now: float) -> str:
    """Return why none of these phases takes submissions now, as people read it."""
    ahead = [one for one in phases if one.starts_at > now]
    if ahead:
        first = min(ahead, key=lambda one: one.starts_at)
        return f"its phase {first.name} starts at {moment(first.starts_at)}"
    if not phases:
        return ""
    last = max(phases, key=lambda one: one.starts_at)
    return f"its phase {last.name} is over"


def _phases_with(competition: Competition, dataset_owner: str, dataset: str) -> list[Phase]:
    """Return the phases of a competition that use a dataset."""
    wanted = dataset_owner, dataset
    return [
        one for one in competition.settings.phases if (one.dataset_owner, one.dataset) == wanted
    ]


def _running(
    competition: Competition, dataset_owner: str, dataset: str, now: float
) -> Phase | None:
    """Return the phase that takes submissions to a dataset now; None: none does."""
    phase = phase_at(competition, now)
    return phase if phase in _phases_with(competition, dataset_owner, dataset) else None


def _entry(facts: Facts, team: str, phase: Phase) -> TeamEntry:
    return TeamEntry(
        key=participant_key(facts.competition.id, team),
        members=facts.members_of(team),
        limit=phase.limit,
    )
