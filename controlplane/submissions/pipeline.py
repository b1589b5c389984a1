"""What a submission needs next: a pure decision on its row and on how its steps' sessions are.

Each try of a step has one session, made with a request id that names it. Whoever decides again, such as a new leader,
finds the same session and repeats nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from controlplane.domain.boards.values import SubmissionCause
from controlplane.domain.values import Cause
from controlplane.submissions.causes import (
    SENTENCES,
    evaluate_failure,
    is_by_program,
    predict_failure,
)
from nsml.spec.submission_exits import NOT_SCORED

if TYPE_CHECKING:
    from controlplane.history.board_values import SubmissionRow

MOST_TRIES: Final = 3
"""Of a step that ended through no fault of its program."""
KILLED: Final = f"the program was killed, or its result was lost, {MOST_TRIES} times"
"""Of a prediction, by nobody that the platform knows."""
RESULT_WITHIN_S: Final = 60.0
"""How long after its session's end the record of a result may come."""


class Stage(enum.StrEnum):
    """A step of a submission."""

    PREDICT = "predict"
    EVALUATE = "evaluate"


REEVALUATE: Final = "reevaluate"
"""The name for people of an evaluation of a re-evaluation."""


class Result(enum.StrEnum):
    """Where the result of a step is: nowhere, on its node, in the object store, or lost."""

    NONE = "NONE"
    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The session of a step, as it is now.

    Attributes:
        cause: of its end; None: it has not ended.
        is_held: it was tried several times and waits for a person.
        is_given_up: it was stopped by the platform, not by a user.
        dataset_version: of its first dataset; 0: it has none.
        shown: the version of its board's scores for which it is judged; 0: it is not.
        is_outdated: an evaluation with another version of the dataset than the scores that the board shows by now.
    """

    session_id: str
    started_at: float = 0.0
    ended_at: float = 0.0
    cause: Cause | None = None
    exit_code: int = 0
    is_held: bool = False
    is_given_up: bool = False
    dataset_version: int = 0
    shown: int = 0
    is_outdated: bool = False
    result: Result = Result.NONE

    @property
    def is_not_scored(self) -> bool:
        """Whether its program ended because it cannot score a dry run."""
        return self.cause is Cause.PROGRAM_FAILED and self.exit_code == NOT_SCORED


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until its session changes."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a try of a step, from 1."""

    stage: Stage
    number: int


@dataclass(frozen=True, slots=True)
class Started:
    """Record that the session of a step runs."""

    stage: Stage
    at: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the session of a step, which is held."""

    stage: Stage
    session_id: str


@dataclass(frozen=True, slots=True)
class Take:
    """Read the result of a step that succeeded."""

    stage: Stage
    session_id: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End it without a score."""

    cause: SubmissionCause
    message: str = ""

    @property
    def text(self) -> str:
        """One sentence for people."""
        return self.message or SENTENCES[self.cause]


@dataclass(frozen=True, slots=True)
class Predicted:
    """End a dry run without a score, for which there is no evaluation."""

    why: str


Action: TypeAlias = Wait | Start | Started | GiveUp | Take | Fail | Predicted


def next_step(
    row: SubmissionRow, predict: Step | None, evaluate: Step | None, now: float
) -> Action | None:
    """Decide on a submission; None: it is over.

    `predict`, `evaluate`: the sessions that the row names; None: it names none, or it was removed.
    """
    if row.state.is_over:
        return None
    if not row.prediction_digest:
        if not row.predict_session_id:
            return Start(Stage.PREDICT, row.predict_tries + 1)
        if predict is None:
            return Fail(SubmissionCause.STOPPED, "the session of its prediction was removed")
        return _judged(predict, Stage.PREDICT, row.predict_tries, row.predict_started_at, now)
    if row.is_test and evaluate is not None and evaluate.is_not_scored:
        return Predicted(
            "evaluation.py has no --test_label_path, so it can score only the test set"
        )
    return next_evaluation(
        row.evaluate_session_id, row.evaluate_tries, row.evaluate_started_at, evaluate, now
    )


def next_evaluation(
    session_id: str, tries: int, started_at: float, evaluate: Step | None, now: float
) -> Action:
    """Decide on an evaluation, the first or one of a re-evaluation: its fields in its row, and its session."""
    if not session_id:
        return Start(Stage.EVALUATE, tries + 1)
    if evaluate is None:
        return Fail(SubmissionCause.STOPPED, "the session of its evaluation was removed")
    return _judged(evaluate, Stage.EVALUATE, tries, started_at, now)


def _judged(step: Step, stage: Stage, tries: int, noted_at: float, now: float) -> Action:
    if step.cause is None:
        return _live(step, stage, noted_at)
    if step.is_outdated and step.cause is not Cause.STOP_REQUESTED:
        return Start(stage, tries + 1)
    if step.cause is Cause.COMPLETED and not step.is_given_up:
        if step.result is Result.DURABLE:
            return Take(stage, step.session_id)
        is_late = now >= step.ended_at + RESULT_WITHIN_S
        if step.result is Result.SAVED or (step.result is Result.NONE and not is_late):
            return Wait()
    why = None
    if not step.is_given_up:
        failure = predict_failure if stage is Stage.PREDICT else evaluate_failure
        why = failure(step.cause, step.exit_code, has_result=step.result is not Result.NONE)
    if why is not None:
        return Fail(why)
    return Start(stage, tries + 1) if tries < MOST_TRIES else _failed(step, stage, step.cause)


def _failed(step: Step, stage: Stage, cause: Cause) -> Fail:
    """Return why there is no further try; a program that kills itself could else be submitted beyond all limits."""
    if stage is Stage.PREDICT and is_by_program(cause) and not step.is_given_up:
        return Fail(SubmissionCause.ENDED_EARLY, KILLED)
    return Fail(SubmissionCause.PLATFORM)


def _live(step: Step, stage: Stage, noted_at: float) -> Action:
    if step.is_held:
        return GiveUp(stage, step.session_id)
    if step.started_at and step.started_at != noted_at:
        return Started(stage, step.started_at)
    return Wait()
