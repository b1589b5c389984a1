"""The progress of a training in words, and as a record."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsml.common.text import width
from nsml.common.units import duration_text, whole
from nsml.spec.progress import Estimate, ends_at
from nsml.v1.sessions_pb2 import SESSION_STATE_RUNNING, Session
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import TrainingProgress

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WHOLE_FROM = 1_000
"""Counts from here on are shown without decimals."""


def progress_text(session: Session, now: float) -> str:
    """Describe how far its training is, and how long it still takes: `epoch 3/10, 12m left`; "" if not reported."""
    if not session.HasField("training"):
        return ""
    one = session.training
    return _joined(f"{_singular(one.unit)} {_done_of(one)}", _left(session, now))


def progress_within(session: Session, now: float, cells: int) -> str:
    """Return as much of the progress as fits: `3/10, 12m left`, `30%, 12m left`, `30%, 12m`, `3/10`, `30%`."""
    if not session.HasField("training"):
        return ""
    one, left, end = session.training, _left(session, now), training_ends_at(session, now)
    percent, short = _percent(one), "" if end is None else _rounded(end - now)
    forms = [
        progress_text(session, now),
        _joined(_done_of(one), left),
        _joined(percent, left),
        _joined(percent, left.removesuffix(" left")),
        _joined(percent, short),
        _done_of(one),
        percent,
    ]
    return next((form for form in forms if form and width(form) <= cells), "")


def with_newer_progress(session: Session, other: Session) -> Session:
    """Return the session with the progress of its other message if that is newer: watches have it first."""
    reported = other.training.reported_at.ToNanoseconds()
    if reported <= session.training.reported_at.ToNanoseconds():
        return session
    newer = Session()
    newer.CopyFrom(session)
    newer.training.CopyFrom(other.training)
    return newer


def fraction(session: Session) -> float | None:
    """Return the done part, 0 to 1; None if it is unknown."""
    one = session.training
    return min(one.done / one.of, 1.0) if one.of > 0 else None


def training_ends_at(session: Session, now: float) -> float | None:
    """Return when its training probably ends, in Unix seconds; None if that is unknown, or it does not run."""
    one = session.training
    if session.state != SESSION_STATE_RUNNING or not one.HasField("ends_at"):
        return None
    next_at = seconds_of(one.next_report_at) if one.HasField("next_report_at") else None
    return ends_at(Estimate(seconds_of(one.ends_at), next_at), now)


def progress_record(session: Session) -> dict[str, Any] | None:
    """Return the progress in raw values: numbers, RFC 3339; None if not reported."""
    if not session.HasField("training"):
        return None
    one = session.training
    return {
        "done": whole(one.done),
        "of": whole(one.of) or None,
        "unit": one.unit,
        "origin": one.origin or None,
        "attempt": one.attempt,
        "reported_at": moment_of(one, "reported_at"),
        "ends_at": moment_of(one, "ends_at"),
        "next_report_at": moment_of(one, "next_report_at"),
    }


def _singular(unit: str) -> str:
    return unit.removesuffix("s") or unit


def _done_of(one: TrainingProgress) -> str:
    done = _number(one.done)
    return f"{done}/{_number(one.of)}" if one.of > 0 else done


def _number(value: float) -> str:
    """Round down: what is not done must not be shown as done."""
    if value < _WHOLE_FROM:
        return f"{whole(math.floor(value * 10) / 10)}"
    return f"{math.floor(value)}" if value < 1e15 else f"{value:.3g}"


def _percent(one: TrainingProgress) -> str:
    return f"{math.floor(min(one.done / one.of, 1.0) * 100)}%" if one.of > 0 else ""


def _left(session: Session, now: float) -> str:
    end = training_ends_at(session, now)
    return "" if end is None else f"{duration_text(end - now)} left"


def _rounded(seconds: float) -> str:
    """Round a duration to its largest unit: `5h`."""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{int(seconds)}s"


def _joined(progress: str, left: str) -> str:
    return ", ".join(filter(None, (progress, left)))
