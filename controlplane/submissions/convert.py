"""Submissions to the contract's messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.competitions.values import team_of_key
from controlplane.domain.identity import Role
from controlplane.submissions.pipeline import REEVALUATE, Stage
from controlplane.submissions.submissions import is_own, may_see_private
from controlplane.submissions.wait_reasons import NOTHING
from controlplane.wire.times import timestamp
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.domain.identity import UserCaller
    from controlplane.history.board_values import ScoreRow, SubmissionEntry, SubmissionRow
    from controlplane.submissions.wait_reasons import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Reevaluation:
    """The evaluation of a submission in a re-evaluation that is not over."""

    score: ScoreRow
    waiting: Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a message has beside the row.

    Attributes:
        score: as the board shows it to participants.
        keeps_best: that is the score of an earlier submission.
        competition: OWNER/NAME, of a team's submission; "": of none.
        waiting: why a step waits, by step.
        reevaluation: one that is not over.
    """

    score: float | None = None
    keeps_best: bool = False
    rank: int = 0
    competition: str = ""
    evaluation: int = 1
    next_at: float = 0.0
    output: str = ""
    waiting: Mapping[Stage, Waiting]
    reevaluation: Reevaluation | None = None


def submission_message(caller: UserCaller, entry: SubmissionEntry, facts: Facts) -> pb.Submission:
    """Build the message of a submission with what the caller may know of it."""
    row, score = entry
    sees_private = may_see_private(caller, row)
    message = pb.Submission(
        id=row.id,
        dataset=f"{row.dataset_owner}/{row.dataset}",
        dataset_version=row.dataset_version,
        owner=row.owner,
        team=team_of_key(row.team),
        session=row.session,
        session_id=row.session_id,
        checkpoint=row.checkpoint,
        is_test=row.is_test,
        state=int(entry.state),  # type: ignore[arg-type]
        cause=int(entry.cause),  # type: ignore[arg-type]
        submitted_at=timestamp(row.submitted_at),
        ended_at=timestamp(row.ended_at),
        steps=[_step(caller, row, stage, facts) for stage in Stage if _has(row, stage)],
        rank=facts.rank,
        evaluation=facts.evaluation if score is not None else 0,
        message=_message(entry),
        next_at=timestamp(facts.next_at),
        competition=facts.competition,
    )
    if facts.reevaluation is not None:
        sees = sees_step(caller, row, Stage.EVALUATE)
        message.steps.append(reevaluation_step(facts.reevaluation, sees_session=sees))
    exact = score.score if score is not None else None
    sees_exact = sees_private or row.is_test
    shown = exact if sees_exact else facts.score
    message.keeps_best = facts.keeps_best and not sees_exact
    if shown is not None:
        message.score = shown
    if sees_private:
        message.evaluation_output = facts.output
        if score is not None and score.private is not None:
            message.private_score = score.private
    return message


def _message(entry: SubmissionEntry) -> str:
    """Return the sentence on how a submission ended, in the version of its score; "": it did not."""
    row, score = entry
    if not row.state.is_over:
        return ""
    return row.message if score is None else score.message or row.message


def _has(row: SubmissionRow, stage: Stage) -> bool:
    return stage is Stage.PREDICT or bool(row.prediction_digest)


def _step(caller: UserCaller, row: SubmissionRow, stage: Stage, facts: Facts) -> pb.SubmissionStep:
    if stage is Stage.PREDICT:
        session = row.predict_session if row.predict_session_id else ""
        started_at, ended_at = row.predict_started_at, row.predict_ended_at
    else:
        session = row.evaluate_session if row.evaluate_session_id else ""
        started_at, ended_at = row.evaluate_started_at, row.evaluate_ended_at
    waiting = facts.waiting.get(stage, NOTHING)
    return pb.SubmissionStep(
        kind=stage.value,
        session=session if sees_step(caller, row, stage) else "",
        started_at=timestamp(started_at),
        ended_at=timestamp(ended_at),
        waiting=waiting.reason,
        failing_since=timestamp(waiting.failing_since),
    )


def reevaluation_step(one: Reevaluation, *, sees_session: bool) -> pb.SubmissionStep:
    """Build the step of a re-evaluation; `sees_session`: whether the caller sees its session."""
    return pb.SubmissionStep(
        kind=REEVALUATE,
        session=one.score.session if sees_session and one.score.session_id else "",
        started_at=timestamp(one.score.started_at),
        waiting=one.waiting.reason,
        failing_since=timestamp(one.waiting.failing_since),
    )


def sees_step(caller: UserCaller, row: SubmissionRow, stage: Stage) -> bool:
    """Whether the caller sees the session of a step: the prediction's is the participant's, the other the owner's."""
    if stage is Stage.PREDICT:
        return is_own(caller, row) or caller.user.role is Role.ADMIN
    return may_see_private(caller, row)
