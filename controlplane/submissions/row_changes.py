"""The fields of a submission, or of a score, that a result of its step changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controlplane.domain.boards.values import SubmissionState

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.submissions.pipeline import Fail, Stage, Step
    from controlplane.submissions.results import Scores


def begun(stage: Stage, session: Session, number: int) -> dict[str, Any]:
    """Return the fields of a submission with the session of a try of a step."""
    return {
        f"{stage}_session_id": session.id,
        f"{stage}_session": session.name,
        f"{stage}_tries": number,
        f"{stage}_started_at": 0.0,
        f"{stage}_ended_at": 0.0,
        "message": "",
    }


def score_begun(session: Session, number: int) -> dict[str, Any]:
    """Return the fields of a score with the session of a try of its evaluation."""
    return {
        "session_id": session.id,
        "session": session.name,
        "tries": number,
        "started_at": 0.0,
        "message": "",
    }


def predicted(why: str, now: float, evaluate: Step | None) -> dict[str, Any]:
    """Return the fields of a dry run with a prediction that cannot be scored."""
    fields = {
        "state": SubmissionState.SCORED,
        "ended_at": now,
        "message": f"the prediction succeeded; {why}",
    }
    ended = {"evaluate_ended_at": evaluate.ended_at} if evaluate is not None else {}
    return {**fields, **ended}


def scored(now: float) -> dict[str, Any]:
    """Return the fields of a submission, or of a score, that is scored."""
    return {"state": SubmissionState.SCORED, "ended_at": now, "message": ""}


def values(found: Scores) -> dict[str, Any]:
    """Return the values of a score."""
    return {
        "score": found.score,
        "private": found.private,
        "standard_error": found.standard_error,
        "checked": found.checked,
        "row_count": found.row_count,
    }


def failed(fail: Fail, now: float) -> dict[str, Any]:
    """Return the fields of a submission, or of a score, that failed."""
    return {
        "state": SubmissionState.FAILED,
        "cause": fail.cause,
        "message": fail.text,
        "ended_at": now,
    }
