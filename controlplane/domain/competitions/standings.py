"""Ranks of teams in a phase: by what is shown of their public scores, in the end by private scores of their picks.

Baselines and disqualified teams have no rank, and no team has another rank because of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.public_scores import shown_scores
from controlplane.domain.boards.ranking import ranked
from controlplane.domain.boards.scores import finite, order_key
from controlplane.domain.boards.values import BestPer, Entry
from controlplane.domain.competitions.phases import (
    end_of,
    is_held,
    is_within,
    phase_after,
    phase_before,
)
from controlplane.domain.competitions.teams import ancestry
from controlplane.domain.competitions.values import CompetitionState, team_of_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from controlplane.domain.boards.values import ScoreDirection
    from controlplane.domain.competitions.values import Competition, Facts, Phase

SETTLED_AFTER_S: Final = 5.0
"""Standings are final so long after the end at the earliest: a submission of the last instant may be on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSubmission:
    """A submission of a team, or a baseline, in a phase.

    Attributes:
        key: the submission's `team`; of a baseline "".
        private: score on the rows that participants do not see; None: not known, or there are none.
        is_over: it has a score, or never will.
        is_counted: it counts for the limit: it was scored, or is on its way.
    """

    id: str
    owner: str
    key: str
    submitted_at: float
    scored_at: float = 0.0
    score: float | None = None
    private: float | None = None
    standard_error: float | None = None
    is_over: bool = True
    is_counted: bool = True
    session_id: str = ""
    gpu_seconds: float = 0.0
    digest: str = ""

    @property
    def team(self) -> str:
        """Name of the team when it was submitted, or that it merged into while the phase ran."""
        return team_of_key(self.key)

    def entry(self, score: float | None) -> Entry:
        """Return what is ranked of it, with another score."""
        return Entry(
            id=self.id,
            owner=self.owner,
            team=self.key,
            score=score,
            submitted_at=self.submitted_at,
            scored_at=self.scored_at,
            standard_error=self.standard_error,
            digest=self.digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingsRow:
    """A row of the standings.

    Attributes:
        rank: 0: none (a baseline, disqualified, or without a score).
        before: a day ago; 0: none.
        private: the private score that counts; None: not known, or not final.
        submission_id: of the score.
        public_rank: by public scores, in final standings; 0: none.
    """

    rank: int
    before: int
    team: str
    members: tuple[str, ...]
    score: float | None
    private: float | None
    submissions: int
    submitted_at: float
    gpu_seconds: float
    submission_id: str = ""
    is_baseline: bool = False
    goes_on: bool = False
    disqualified: str = ""
    public_rank: int = 0
    trend: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """The standings of a phase.

    Attributes:
        is_final: the phase took place and is over, and all of its submissions are evaluated.
        by_private: ranks are by private scores.
        waiting: submissions that are not evaluated yet.
    """

    phase: Phase
    rows: tuple[StandingsRow, ...]
    is_final: bool
    by_private: bool
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How scores of a dataset's board compare; see BoardSettings."""

    direction: ScoreDirection
    ladder_step: float = 0.0


def standings(
    facts: Facts,
    phase: Phase,
    submissions: Iterable[PhaseSubmission],
    scale: Scale,
    now: float,
    *,
    by_private: bool = False,
) -> Standings:
    """Return the standings of a phase, from all submissions to its dataset that are of a team or a baseline.

    While it is not final they are by what is shown of public scores; `by_private`: as they would be in the end.
    """
    known = tuple(submissions)
    own = [
        one for one in known if one.key and is_within(facts.competition, phase, one.submitted_at)
    ]
    waiting = sum(not one.is_over for one in own)
    is_final = is_settled(facts.competition, phase, now) and not waiting
    private = is_final or by_private
    ranking = _Ranking(facts, phase, own, scale, now)
    rows = ranking.rows(is_private=private)
    baselines = _baselines(facts, known, is_private=private)
    return Standings(
        phase=phase,
        rows=_placed(rows, baselines, scale, is_private=private),
        is_final=is_final,
        by_private=private,
        waiting=waiting,
    )


def is_settled(competition: Competition, phase: Phase, now: float) -> bool:
    """Whether a phase took place and is over, and no submission to it comes any more."""
    return (
        competition.state is not CompetitionState.DRAFT
        and is_held(competition, phase)
        and end_of(competition, phase) + SETTLED_AFTER_S <= now
    )


def may_go_on(facts: Facts, before: Standings, team: str) -> bool:
    """Whether a team goes on by the standings of a phase: it, or a team that merged into it."""
    names = ancestry(facts, team)
    return any(row.goes_on for row in before.rows if row.team in names)


def cut_before(competition: Competition, phase: Phase) -> Phase | None:
    """Return the last phase before one that lets only some teams go on; None: there is none."""
    before = phase_before(competition, phase)
    while before is not None and not before.advance:
        before = phase_before(competition, before)
    return before


def picked(
    facts: Facts, phase: Phase, own: Sequence[PhaseSubmission], scale: Scale
) -> Mapping[str, tuple[PhaseSubmission, ...]]:
    """Return the submissions that count in the end, by team: its picks, without any its best by public scores."""
    chosen = {one.submission_id: one.team for one in facts.picks if one.phase == phase.name}
    by_team: dict[str, list[PhaseSubmission]] = defaultdict(list)
    for one in own:
        by_team[one.team].append(one)
    found = {}
    for team, all_of_it in by_team.items():
        picks = [one for one in all_of_it if chosen.get(one.id) == team]
        if not picks:
            scored = [one for one in all_of_it if finite(one.score) is not None]
            scored.sort(key=lambda one: order_key(one.entry(one.score), scale.direction))
            picks = scored
        found[team] = tuple(picks[: phase.picks])
    return found


class _Ranking:
    """Ranks the teams of one phase."""

    def __init__(
        self,
        facts: Facts,
        phase: Phase,
        own: Sequence[PhaseSubmission],
        scale: Scale,
        now: float,
    ) -> None:
        self._facts = facts
        self._phase = phase
        self._own = own
        self._scale = scale
        self._now = now
        self._by_id = {one.id: one for one in own}
        self._by_team: dict[str, list[PhaseSubmission]] = defaultdict(list)
        for one in own:
            self._by_team[one.team].append(one)
        after = phase_after(facts.competition, phase)
        self._goes_on = after is not None and is_held(facts.competition, after)
        # A cut before this phase holds for it: only whoever submitted is here, and the hook let only these submit.
        self._why: dict[str, str] = {}
        self._left = frozenset(filter(self._is_left, self._by_team))
        self._teams = sorted(({*self._by_team} | self._present()) - self._left)

    def rows(self, *, is_private: bool) -> list[StandingsRow]:
        """Return the rows of all teams, the best first."""
        shown = shown_scores(
            [one.entry(one.score) for one in self._own],
            self._phase.public_score,
            self._scale.ladder_step,
            self._scale.direction,
        )
        public = {one.id: shown.get(one.id) for one in self._own}
        if not is_private:
            return self._ranked(public, public)
        exact = {one.id: one.score for one in self._own}
        has_private = any(finite(one.private) is not None for one in self._own)
        counting = {
            one.id: one.private if has_private else one.score
            for picks in picked(self._facts, self._phase, self._own, self._scale).values()
            for one in picks
        }
        by_public = {row.team: row.rank for row in self._ranked(exact, exact)}
        return [
            replace(row, public_rank=by_public.get(row.team, 0))
            for row in self._ranked(counting, exact)
        ]

    def _ranked(
        self, scores: Mapping[str, float | None], public: Mapping[str, float | None]
    ) -> list[StandingsRow]:
        """Rank by `scores`, and show `public` of the submission that gives a team its rank."""
        entries = [
            one.entry(scores[one.id])
            for one in self._own
            if one.id in scores and one.team not in self._left and not self._disqualified(one.team)
        ]
        listed = ranked(
            entries, direction=self._scale.direction, best_per=BestPer.TEAM, now=self._now
        )
        rows = []
        for one in listed:
            best = self._by_id[one.entry.id]
            if one.score is None:
                continue
            rows.append(
                self._row(
                    best.team,
                    rank=one.rank,
                    before=one.before,
                    best=best,
                    score=finite(public[best.id]),
                    trend=one.trend if scores is public else (),
                    is_private=scores is not public,
                )
            )
        there = {row.team for row in rows}
        rest = [self._row(team) for team in self._teams if team not in there]
        return rows + sorted(rest, key=lambda row: (bool(row.disqualified), row.team))

    def _row(
        self,
        team: str,
        *,
        rank: int = 0,
        before: int = 0,
        best: PhaseSubmission | None = None,
        score: float | None = None,
        trend: tuple[float, ...] = (),
        is_private: bool = False,
    ) -> StandingsRow:
        own = self._by_team.get(team, [])
        sessions = {one.session_id: 0.0 for one in own}
        for one in own:
            sessions[one.session_id] = max(sessions[one.session_id], one.gpu_seconds)
        advance = self._phase.advance
        disqualified = self._disqualified(team)
        goes_on = self._goes_on and not disqualified and (not advance or 0 < rank <= advance)
        return StandingsRow(
            rank=rank,
            before=before,
            team=team,
            members=self._facts.members_of(self._facts.present(team)),
            score=score,
            private=finite(best.private) if best is not None and is_private else None,
            submissions=sum(one.is_counted for one in own),
            submitted_at=best.submitted_at if best is not None else 0.0,
            gpu_seconds=sum(sessions.values()),
            submission_id=best.id if best is not None else "",
            goes_on=goes_on,
            disqualified=disqualified,
            trend=trend,
        )

    def _disqualified(self, team: str) -> str:
        if team not in self._why:
            found = self._facts.team(self._facts.present(team))
            self._why[team] = found.disqualified if found is not None else ""
        return self._why[team]

    def _is_left(self, team: str) -> bool:
        """Whether all left a team, and one who submitted for it was in another one before the end: that one counts."""
        if self._facts.members_of(self._facts.present(team)):
            return False
        owners = {one.owner for one in self._by_team[team]}
        end = end_of(self._facts.competition, self._phase)
        return any(one.user_name in owners and one.joined_at < end for one in self._facts.members)

    def _present(self) -> set[str]:
        """Teams with members that submitted nothing, while the phase is not over."""
        if end_of(self._facts.competition, self._phase) <= self._now:
            return set()
        return {one.team for one in self._facts.members}


def _baselines(
    facts: Facts, known: Iterable[PhaseSubmission], *, is_private: bool
) -> list[tuple[StandingsRow, PhaseSubmission]]:
    labels = {one.submission_id: one.label for one in facts.baselines}
    return [
        (
            StandingsRow(
                rank=0,
                before=0,
                team=labels[one.id],
                members=(),
                score=finite(one.score),
                private=finite(one.private) if is_private else None,
                submissions=1,
                submitted_at=one.submitted_at,
                gpu_seconds=one.gpu_seconds,
                submission_id=one.id,
                is_baseline=True,
            ),
            one,
        )
        for one in known
        if one.id in labels
    ]


def _placed(
    rows: Sequence[StandingsRow],
    baselines: Sequence[tuple[StandingsRow, PhaseSubmission]],
    scale: Scale,
    *,
    is_private: bool,
) -> tuple[StandingsRow, ...]:
    """Put baselines among the teams where their scores would be."""
    has_private = any(row.private is not None for row in rows)

    def value(row: StandingsRow) -> float | None:
        return row.private if is_private and has_private else row.score

    def key(row: StandingsRow) -> tuple[bool, float, float, str]:
        entry = Entry(
            id=row.submission_id, owner="", score=value(row), submitted_at=row.submitted_at
        )
        return order_key(entry, scale.direction)

    placed = list(rows)
    for row, _ in sorted(baselines, key=lambda one: key(one[0])):
        if value(row) is None:
            continue
        at = next(
            (
                index
                for index, other in enumerate(placed)
                if (not other.rank and not other.is_baseline) or key(other) > key(row)
            ),
            len(placed),
        )
        placed.insert(at, row)
    return tuple(placed)
