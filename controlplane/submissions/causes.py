"""Why submissions fail: from how a step's session ended, with one sentence for people."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.values import SubmissionCause as Why
from controlplane.domain.values import Cause
from nsml.spec import submission_exits as exits

if TYPE_CHECKING:
    from collections.abc import Mapping

AGAIN: Final = None
"""In place of a cause: through no fault of the program, so the step is repeated."""

PREDICT_EXITS: Final[Mapping[int, Why | None]] = {
    exits.LOAD_FAILED: Why.LOAD_FAILED,
    exits.INFER_FAILED: Why.INFER_FAILED,
    exits.NO_PREDICTION: Why.NO_PREDICTION,
    exits.TOO_LARGE: Why.TOO_LARGE,
    exits.NOT_PAUSED: Why.NOT_PAUSED,
    exits.PREDICTION_TIMEOUT: Why.PREDICTION_TIMEOUT,
    exits.MALFORMED: Why.MALFORMED,
    exits.PLATFORM_FAILED: AGAIN,
}
EVALUATE_EXITS: Final[Mapping[int, Why | None]] = {
    exits.EVALUATION_FAILED: Why.EVALUATION_FAILED,
    exits.NOT_FINITE: Why.NOT_FINITE,
    exits.MALFORMED_ROWS: Why.MALFORMED,
    exits.EVALUATION_TIMEOUT: Why.EVALUATION_TIMEOUT,
    exits.NOT_SCORED: Why.EVALUATION_FAILED,  # of a submission that is no dry run: none ends so
    exits.PLATFORM_FAILED: AGAIN,
}
_KILLED: Final = 128 + signal.SIGKILL

SENTENCES: Final[Mapping[Why, str]] = {
    Why.ENDED_EARLY: "the program ended before it called nsml.paused()",
    Why.NOT_PAUSED: "the program did not call nsml.paused() within 10 minutes",
    Why.LOAD_FAILED: "the bound load function failed, or the checkpoint cannot be loaded",
    Why.INFER_FAILED: "infer or data_loader.py failed on the test inputs",
    Why.NO_PREDICTION: "the prediction is empty",
    Why.TOO_LARGE: "the prediction is larger than the board allows",
    Why.PREDICTION_TIMEOUT: "the prediction took longer than the board allows",
    Why.MALFORMED: "the prediction does not fit the test set",
    Why.EVALUATION_FAILED: "the dataset's evaluation failed on the prediction",
    Why.EVALUATION_TIMEOUT: "the dataset's evaluation took longer than the board allows",
    Why.NOT_FINITE: "the score is not a finite number",
    Why.PLATFORM: "the platform failed; it does not count for a limit",
    Why.REMOVED: "the session, the checkpoint or the dataset version was removed",
    Why.STOPPED: "it was stopped",
    Why.LIMIT_EXCEEDED: "its session ran out of memory, or over another limit",
}
"""For participants: nothing of what a program printed, which may have seen hidden files."""


def predict_failure(cause: Cause, exit_code: int, *, has_result: bool) -> Why | None:
    """Return why a prediction that ended so failed, without a usable result; AGAIN: repeat it."""
    if cause is Cause.PROGRAM_FAILED:
        if exit_code == _KILLED:  # by nobody that the platform knows
            return AGAIN
        return PREDICT_EXITS.get(exit_code, Why.ENDED_EARLY)
    if cause is Cause.COMPLETED:
        return AGAIN if has_result else Why.ENDED_EARLY
    return _of_session(cause, Why.PREDICTION_TIMEOUT)


def evaluate_failure(cause: Cause, exit_code: int, *, has_result: bool) -> Why | None:
    """Return why an evaluation that ended so failed, without a usable result; AGAIN: repeat it."""
    if cause is Cause.PROGRAM_FAILED:
        if exit_code == _KILLED:  # by nobody that the platform knows
            return AGAIN
        return EVALUATE_EXITS.get(exit_code, Why.EVALUATION_FAILED)
    if cause is Cause.COMPLETED:
        return AGAIN if has_result else Why.EVALUATION_FAILED
    if cause is Cause.ENVIRONMENT_FAILED:
        return Why.EVALUATION_FAILED
    return _of_session(cause, Why.EVALUATION_TIMEOUT)


def is_by_program(cause: Cause) -> bool:
    """Whether a program can end so by itself, whatever its exit code says of the platform."""
    return cause in {Cause.PROGRAM_FAILED, Cause.COMPLETED}


def _of_session(cause: Cause, timeout: Why) -> Why | None:
    """Return the failure for an end that the program did not choose."""
    match cause:
        case Cause.STOP_REQUESTED:
            return Why.STOPPED
        case Cause.TIME_LIMIT:
            return timeout
        case Cause.OUT_OF_MEMORY | Cause.LIMIT_EXCEEDED:
            return Why.LIMIT_EXCEEDED
    return AGAIN
