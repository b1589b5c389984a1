"""The standings that a caller may see, and the figures of phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.competitions.competitions import organises
from controlplane.core.shared_call import SharedCall
from controlplane.domain.boards.values import SubmissionState
from controlplane.domain.competitions.phases import (
    end_of,
    has_begun,
    in_order,
    is_within,
    phase_shown,
)
from controlplane.domain.competitions.standings import is_settled
from controlplane.domain.competitions.statistics import statistics
from controlplane.domain.errors import Denied, NotFound
from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.competitions.competitions import Competitions
    from controlplane.domain.boards.values import ScoreDirection
    from controlplane.domain.competitions.standings import PhaseSubmission, Standings
    from controlplane.domain.competitions.statistics import PhaseStatistics
    from controlplane.domain.competitions.values import Facts, Phase
    from controlplane.domain.identity import UserCaller
    from controlplane.history.board_values import SubmissionEntry
    from controlplane.history.sql.history import History
    from controlplane.state.live_state import LiveState
    from controlplane.submissions.participation import Participation
    from nsml.common.clock import Clock
    from nsml.v1 import competitions_pb2 as pb

_KEPT: Final = 256


class Summary(NamedTuple):
    """What a competition's own records do not say.

    Attributes:
        submissions: in its phases.
        final: names of phases whose standings are final.
        directions: which scores are better, by name of the phase.
    """

    submissions: int
    final: tuple[str, ...]
    directions: Mapping[str, ScoreDirection]


@dataclass(frozen=True, slots=True)
class Table:
    """The standings of a phase, with what became of re-runs, by team.

    Attributes:
        rows: messages made of it, for all viewers with (True) or without private scores.
    """

    facts: Facts
    standings: Standings
    reruns: Mapping[str, str]
    summary: Summary
    rows: dict[bool, list[pb.Standing]] = field(default_factory=dict)


class _Key(NamedTuple):
    competition_id: str
    phase: str
    by_private: bool


class Tables:
    """Makes tables; watchers of one phase share them."""

    def __init__(
        self,
        *,
        history: History,
        state: LiveState,
        competitions: Competitions,
        participation: Participation,
        clock: Clock,
    ) -> None:
        self._history = history
        self._state = state
        self._competitions = competitions
        self._participation = participation
        self._clock = clock
        self._tables: LruDict[_Key, SharedCall[Table]] = LruDict(_KEPT)
        self._known: LruDict[_Key, tuple[float, Table]] = LruDict(_KEPT)
        self._summaries: LruDict[str, SharedCall[Summary]] = LruDict(_KEPT)

    async def of(
        self,
        caller: UserCaller,
        facts: Facts,
        phase_name: str,
        *,
        by_private: bool = False,
        within_s: float = 0.0,
    ) -> Table:
        """Return the standings of a phase; "": of the one that runs, else the last that began.

        They may be so many seconds old.

        Raises:
            NotFound: there is no such phase, or none at all.
            Denied: private scores before the end, and the caller is not its organiser.
        """
        shown = phase_shown(facts.competition, self._clock.time())
        if phase_name:
            shown = self._competitions.phase(facts, phase_name)
        if shown is None:
            raise NotFound(f"{facts.competition.name} has no phases yet")
        own = by_private and organises(caller, facts.competition)
        key = _Key(facts.competition.id, shown.name, own)
        table = await self._table(key, within_s)
        if by_private and not own and not table.standings.is_final:
            raise Denied(
                f"private scores of {shown.name} are its organiser's", why="it is not final yet"
            )
        return table

    async def _table(self, key: _Key, within_s: float) -> Table:
        known = self._known.get(key)
        if known is not None and self._clock.monotonic() - known[0] < within_s:
            return known[1]
        call = self._tables.get(key)
        if call is None:
            call = SharedCall(partial(self._make, key))
            self._tables.keep(key, call)
        return await call()

    async def summary(self, competition_id: str) -> Summary:
        """Return the numbers of a competition."""
        call = self._summaries.get(competition_id)
        if call is None:
            call = SharedCall(partial(self._summarise, competition_id))
            self._summaries.keep(competition_id, call)
        return await call()

    async def figures(self, facts: Facts) -> list[PhaseStatistics]:
        """Return the figures of all phases that began."""
        now = self._clock.time()
        made = []
        for phase in in_order(facts.settings.phases):
            if not has_begun(facts.competition, phase, now):
                continue
            dataset = (phase.dataset_owner, phase.dataset)
            end = end_of(facts.competition, phase)
            live = [
                (session.id, session.owner)
                for session in (one.value for one in self._state.sessions.values())
                if session.spec.stage is None
                and session.created_at < end
                and any((one.owner, one.name) == dataset for one in session.spec.datasets)
            ]
            models = await self._history.competitions.models(
                *dataset, live=live, since=phase.starts_at, until=end
            )
            users = {
                name: count
                for name, count in models.items()
                if name not in {facts.competition.owner, phase.dataset_owner}
            }
            made.append(statistics(phase.name, users, await self.within(facts, phase)))
        return made

    async def within(self, facts: Facts, phase: Phase) -> list[PhaseSubmission]:
        """Return the submissions of teams in a phase."""
        return [
            one
            for one in await self._participation.submissions(facts, phase)
            if one.key and is_within(facts.competition, phase, one.submitted_at)
        ]

    async def _summarise(self, competition_id: str) -> Summary:
        facts = await self._history.competitions.facts(competition_id)
        count = 0
        final: list[str] = []
        directions: dict[str, ScoreDirection] = {}
        now = self._clock.time()
        if facts is None:
            return Summary(0, (), {})
        baselines = [one.submission_id for one in facts.baselines]
        for phase in facts.settings.phases:
            end = end_of(facts.competition, phase)
            found, waiting = await self._history.competitions.counts(
                facts.competition.id, phase, end, baselines
            )
            count += found
            if is_settled(facts.competition, phase, now) and not waiting:
                final.append(phase.name)
            directions[phase.name] = (await self._participation.board(phase)).direction
        return Summary(count, tuple(final), directions)

    async def _make(self, key: _Key) -> Table:
        begun = self._clock.monotonic()
        table = await self._read(key)
        self._known.keep(key, (begun, table))
        return table

    async def _read(self, key: _Key) -> Table:
        facts = await self._history.competitions.facts(key.competition_id)
        if facts is None:
            raise NotFound("the competition was removed")
        phase = self._competitions.phase(facts, key.phase)
        found = await self._participation.standings(facts, phase, by_private=key.by_private)
        reruns: dict[str, str] = {}
        if found.is_final:
            made = await self._history.submissions.reruns(phase.dataset_owner, phase.dataset)
            if made:
                counting = await self._participation.counting(facts, phase)
                for team, submissions in counting.items():
                    reruns[team] = rerun_outcome(submissions, made)
        return Table(facts, found, reruns, await self._summarise(facts.competition.id))


def rerun_outcome(submissions: Iterable[PhaseSubmission], reruns: Iterable[SubmissionEntry]) -> str:
    """Return what became of the newest re-runs of a team's submissions: the worst; "": there are none."""
    newest = {one.row.rerun_of: one for one in reruns}
    outcomes = set()
    for one in submissions:
        again = newest.get(one.id)
        if again is None:
            continue
        if not again.row.state.is_over:
            outcomes.add("running")
        elif again.row.state is SubmissionState.FAILED or again.score is None:
            outcomes.add("failed")
        elif (again.score.score, again.score.private) == (one.score, one.private):
            outcomes.add("same")
        else:
            outcomes.add("differs")
    return next((one for one in ("running", "differs", "failed", "same") if one in outcomes), "")
