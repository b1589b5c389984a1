"""A competition as one signed JSON file, which others check with the platform's certificate.

See nsml.common.signed_json for the form. It is made and sent part by part: the file is never in memory as a whole.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.competitions.phases import end_of, in_order, is_within
from controlplane.domain.competitions.values import CompetitionState, participant_key, team_of_key
from nsml.common.signed_json import JsonSigning, to_json
from nsml.common.units import moment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from controlplane.competitions.tables import Tables
    from controlplane.domain.competitions.values import Facts, Phase
    from controlplane.history.board_values import ScoreRow, SubmissionEntry
    from controlplane.history.sql.history import History
    from controlplane.submissions.participation import Participation
    from nsml.common.clock import Clock

PART_BYTES: Final = 64 << 10


class Export:
    """Makes the file.

    Args:
        sign: signs a SHA-256 digest with the platform's key.
        cluster_id: of the platform.
    """

    def __init__(
        self,
        *,
        history: History,
        participation: Participation,
        tables: Tables,
        clock: Clock,
        sign: Callable[[bytes], bytes],
        cluster_id: str,
    ) -> None:
        self._history = history
        self._participation = participation
        self._tables = tables
        self._clock = clock
        self._sign = sign
        self._cluster_id = cluster_id

    async def parts(self, facts: Facts) -> AsyncGenerator[bytes, None]:
        """Yield the file."""
        signing = JsonSigning(self._sign)
        waiting = bytearray(signing.begin())
        async for text in self._document(facts):
            waiting += signing.add(text)
            if len(waiting) >= PART_BYTES:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting) + signing.end()

    async def _document(self, facts: Facts) -> AsyncGenerator[str, None]:
        head = to_json(
            {
                "format": "nsml.competition.v1",
                "platform": self._cluster_id,
                "exported_at": moment(self._clock.time()),
                "competition": _competition(facts),
                "teams": [_team(facts, one.name) for one in facts.teams],
                "announcements": [
                    {"number": one.number, "at": moment(one.at), "text": one.text}
                    for one in facts.announcements
                ],
                "picks": [asdict(one) for one in facts.picks],
                "baselines": [asdict(one) for one in facts.baselines],
                "statistics": [asdict(one) for one in await self._tables.figures(facts)],
                "standings": [
                    await self._standings(facts, one) for one in in_order(facts.settings.phases)
                ],
            }
        )
        yield head[:-1] + ',"submissions":['
        is_first = True
        async for one in self._submissions(facts):
            yield ("\n" if is_first else ",\n") + to_json(one)
            is_first = False
        yield "]}"

    async def _standings(self, facts: Facts, phase: Phase) -> dict[str, Any]:
        found = await self._participation.standings(facts, phase)
        rows = [
            {
                **asdict(row),
                "submitted_at": moment(row.submitted_at) if row.submitted_at else None,
            }
            for row in found.rows
        ]
        return {"phase": phase.name, "is_final": found.is_final, "rows": rows}

    async def _submissions(self, facts: Facts) -> AsyncGenerator[dict[str, Any], None]:
        prefix = participant_key(facts.competition.id, "")
        labels = {one.submission_id: one.label for one in facts.baselines}
        datasets = {(one.dataset_owner, one.dataset) for one in facts.settings.phases}
        for owner, dataset in sorted(datasets):
            submissions = self._history.submissions
            found = await submissions.entries(owner, dataset)
            reruns = await submissions.reruns(owner, dataset)
            for one in (*found, *reruns):
                if one.row.team.startswith(prefix) or one.row.id in labels:
                    scores = await submissions.scores_of(one.row.id)
                    yield _submission(facts, one, scores, labels.get(one.row.id, ""))


def _competition(facts: Facts) -> dict[str, Any]:
    competition = facts.competition
    settings = asdict(competition.settings)
    settings["phases"] = [
        {
            **asdict(one),
            "public_score": one.public_score.name.lower(),
            "starts_at": moment(one.starts_at),
            "ends_at": moment(one.ends_at),
            "closed_at": moment(one.closed_at) if one.closed_at else None,
            "end": moment(end_of(competition, one)),
        }
        for one in in_order(competition.settings.phases)
    ]
    mergers_until = competition.settings.mergers_until
    settings["mergers_until"] = moment(mergers_until) if mergers_until else None
    settings["visibility"] = competition.visibility.name.lower()
    return {
        "id": competition.id,
        "owner": competition.owner,
        "name": competition.name,
        "state": CompetitionState(competition.state).name.lower(),
        "created_at": moment(competition.created_at),
        "closed_at": moment(competition.closed_at) if competition.closed_at else None,
        "settings": settings,
    }


def _team(facts: Facts, name: str) -> dict[str, Any]:
    team = facts.team(name)
    return {
        "name": name,
        "members": list(facts.members_of(name)),
        "created_at": moment(team.created_at) if team is not None else None,
        "disqualified": team.disqualified if team is not None else "",
        "merged_into": team.merged_into if team is not None else "",
    }


def _submission(
    facts: Facts, one: SubmissionEntry, scores: Iterable[ScoreRow], label: str
) -> dict[str, Any]:
    row = one.row
    phases = [
        phase.name
        for phase in facts.settings.phases
        if (phase.dataset_owner, phase.dataset) == (row.dataset_owner, row.dataset)
        and is_within(facts.competition, phase, row.submitted_at)
    ]
    return {
        "id": row.id,
        "number": row.number,
        "phase": phases[0] if phases and not row.rerun_of and not label else "",
        "owner": row.owner,
        "team": "" if label else team_of_key(row.team),
        "baseline": label,
        "rerun_of": row.rerun_of,
        "dataset": f"{row.dataset_owner}/{row.dataset}",
        "dataset_version": row.dataset_version,
        "session": row.session,
        "session_id": row.session_id,
        "args": row.args,
        "checkpoint": row.checkpoint,
        "checkpoint_digest": row.checkpoint_digest,
        "prediction_digest": row.prediction_digest,
        "submitted_at": moment(row.submitted_at),
        "ended_at": moment(row.ended_at) if row.ended_at else None,
        "state": row.state.name.lower(),
        "cause": row.cause.name.lower(),
        "gpu_seconds": row.gpu_seconds,
        "scores": [
            {
                "evaluation": score.evaluation,
                "state": score.state.name.lower(),
                "cause": score.cause.name.lower(),
                "score": score.score,
                "private": score.private,
                "standard_error": score.standard_error,
                "checked": score.checked,
                "rows": score.row_count,
                "session": score.session,
                "ended_at": moment(score.ended_at) if score.ended_at else None,
            }
            for score in scores
        ],
    }
