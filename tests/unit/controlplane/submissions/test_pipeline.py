"""What a submission needs next, by its row and its steps' sessions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from controlplane.domain.boards.values import SubmissionCause, SubmissionState
from controlplane.domain.values import Cause
from controlplane.history.board_values import SubmissionRow
from controlplane.submissions.causes import (
    EVALUATE_EXITS,
    PREDICT_EXITS,
    SENTENCES,
    evaluate_failure,
    predict_failure,
)
from controlplane.submissions.pipeline import (
    KILLED,
    MOST_TRIES,
    RESULT_WITHIN_S,
    Action,
    Fail,
    GiveUp,
    Predicted,
    Result,
    Stage,
    Start,
    Started,
    Step,
    Take,
    Wait,
    next_step,
)
from nsml.spec import submission_exits

ROW = SubmissionRow(
    id="u1",
    owner="lee",
    dataset_owner="kim",
    dataset="digits",
    dataset_version=1,
    session_id="s1",
    session="lee/digits/1",
    checkpoint="best",
    submitted_at=1.0,
)
PREDICTS = replace(ROW, predict_session_id="p1", predict_tries=1)
EVALUATES = replace(
    PREDICTS,
    prediction_digest="d",
    evaluate_session_id="e1",
    evaluate_tries=1,
    state=SubmissionState.EVALUATING,
)
LIVE = Step(session_id="p1")
ENDED = Step(session_id="p1", started_at=2.0, ended_at=5.0, cause=Cause.COMPLETED)
DURABLE = replace(ENDED, result=Result.DURABLE)
LOST = replace(ENDED, cause=Cause.NODE_LOST)
OUTDATED = replace(DURABLE, is_outdated=True)
NOT_SCORED = replace(ENDED, cause=Cause.PROGRAM_FAILED, exit_code=submission_exits.NOT_SCORED)
LATE = 5.0 + RESULT_WITHIN_S
PREDICT, EVALUATE = Stage.PREDICT, Stage.EVALUATE


@pytest.mark.parametrize(
    ("row", "step", "now", "wanted"),
    [
        (ROW, None, 6.0, Start(PREDICT, 1)),
        (
            PREDICTS,
            None,
            6.0,
            Fail(SubmissionCause.STOPPED, "the session of its prediction was removed"),
        ),
        (PREDICTS, LIVE, 6.0, Wait()),
        (PREDICTS, replace(LIVE, started_at=2.0), 6.0, Started(PREDICT, 2.0)),
        (replace(PREDICTS, predict_started_at=2.0), replace(LIVE, started_at=2.0), 6.0, Wait()),
        (PREDICTS, replace(LIVE, is_held=True), 6.0, GiveUp(PREDICT, "p1")),
        (PREDICTS, DURABLE, 6.0, Take(PREDICT, "p1")),
        (PREDICTS, replace(ENDED, result=Result.SAVED), LATE, Wait()),
        (PREDICTS, ENDED, 6.0, Wait()),
        (PREDICTS, ENDED, LATE, Fail(SubmissionCause.ENDED_EARLY)),
        (PREDICTS, replace(ENDED, result=Result.LOST), 6.0, Start(PREDICT, 2)),
        (PREDICTS, LOST, 6.0, Start(PREDICT, 2)),
        # A program can do so on purpose: it counts.
        (
            replace(PREDICTS, predict_tries=MOST_TRIES),
            replace(ENDED, result=Result.LOST),
            6.0,
            Fail(SubmissionCause.ENDED_EARLY, KILLED),
        ),
        (
            replace(PREDICTS, predict_tries=MOST_TRIES),
            replace(ENDED, cause=Cause.PROGRAM_FAILED, exit_code=submission_exits.PLATFORM_FAILED),
            6.0,
            Fail(SubmissionCause.ENDED_EARLY, KILLED),
        ),
        (replace(PREDICTS, predict_tries=MOST_TRIES), LOST, 6.0, Fail(SubmissionCause.PLATFORM)),
        # Stopped by the platform, since it was held: no user did it.
        (
            PREDICTS,
            replace(ENDED, cause=Cause.STOP_REQUESTED, is_given_up=True),
            6.0,
            Start(PREDICT, 2),
        ),
        (PREDICTS, replace(ENDED, cause=Cause.STOP_REQUESTED), 6.0, Fail(SubmissionCause.STOPPED)),
        (EVALUATES, DURABLE, 6.0, Take(EVALUATE, "p1")),
        (
            replace(EVALUATES, is_test=True),
            NOT_SCORED,
            6.0,
            Predicted("evaluation.py has no --test_label_path, so it can score only the test set"),
        ),
        (EVALUATES, NOT_SCORED, 6.0, Fail(SubmissionCause.EVALUATION_FAILED)),
        (EVALUATES, LOST, 6.0, Start(EVALUATE, 2)),
        (
            replace(EVALUATES, evaluate_session_id="", evaluate_tries=0),
            None,
            6.0,
            Start(EVALUATE, 1),
        ),
        (EVALUATES, ENDED, LATE, Fail(SubmissionCause.EVALUATION_FAILED)),
        # A re-evaluation with another version of the dataset is shown since it began.
        (EVALUATES, OUTDATED, 6.0, Start(EVALUATE, 2)),
        (
            replace(EVALUATES, evaluate_tries=MOST_TRIES),
            replace(OUTDATED, cause=Cause.PROGRAM_FAILED, exit_code=1),
            6.0,
            Start(EVALUATE, MOST_TRIES + 1),
        ),
        (
            EVALUATES,
            replace(OUTDATED, cause=Cause.STOP_REQUESTED),
            6.0,
            Fail(SubmissionCause.STOPPED),
        ),
        (replace(EVALUATES, state=SubmissionState.SCORED), DURABLE, 6.0, None),
        (replace(PREDICTS, state=SubmissionState.FAILED), LOST, 6.0, None),
    ],
)
def test_what_is_next(
    row: SubmissionRow, step: Step | None, now: float, wanted: Action | None
) -> None:
    is_evaluated = bool(row.prediction_digest)
    predict, evaluate = (None, step) if is_evaluated else (step, None)
    assert next_step(row, predict, evaluate, now) == wanted


@pytest.mark.parametrize("failure", [predict_failure, evaluate_failure])
@pytest.mark.parametrize("cause", list(Cause))
def test_each_end_of_a_session_is_a_failure_or_is_tried_again(
    failure: Callable[..., SubmissionCause | None], cause: Cause
) -> None:
    why = failure(cause, 1, has_result=False)
    if cause.is_platforms_fault or cause.may_not_recur:
        assert why is None
    if cause in {Cause.STOP_REQUESTED, Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY, Cause.PROGRAM_FAILED}:
        assert why is not None


@pytest.mark.parametrize("failure", [predict_failure, evaluate_failure])
@pytest.mark.parametrize("has_result", [False, True])
def test_a_step_that_the_platform_failed_or_that_nobody_known_killed_is_tried_again(
    failure: Callable[..., SubmissionCause | None], has_result: bool
) -> None:
    for code in (submission_exits.PLATFORM_FAILED, 128 + signal.SIGKILL):
        assert failure(Cause.PROGRAM_FAILED, code, has_result=has_result) is None


def test_each_cause_has_a_sentence_and_each_exit_code_a_cause() -> None:
    assert SENTENCES.keys() == set(SubmissionCause) - {SubmissionCause.NONE}
    codes = {value for value in vars(submission_exits).values() if isinstance(value, int)}
    assert PREDICT_EXITS.keys() | EVALUATE_EXITS.keys() == codes
    assert Fail(SubmissionCause.STOPPED).text == SENTENCES[SubmissionCause.STOPPED]
