"""The training progress of sessions: one row each, updated with the streams.

The newest record of rank 0 in the newest attempt counts: of one process its last one, of several the newest by their
clocks, which are capped at ours.
"""

# ruff: noqa: S608 - statements are put together from constants here

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.history.records import course_of
from controlplane.history.values import TrainingProgress
from nsml.spec.progress import Course, CourseState, Estimate, Reported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Dialect
    from controlplane.history.values import StreamKey

_REPORTED: Final = "time, done, total, unit, origin, own_end"
_ALL: Final = f"attempt, writer, {_REPORTED}, ends_at, next_at, course"

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(CourseState)


def note_progress(
    connection: Connection,
    stream: StreamKey,
    records: Sequence[bytes],
    now: float,
    *,
    is_late: bool = False,
) -> None:
    """Update a session's progress; part of a larger transaction. `is_late`: later records are already stored."""
    if stream.rank != 0 or not (found := list(course_of(records))):
        return
    row = connection.execute(
        f"SELECT attempt, writer, {_REPORTED}, course FROM progress WHERE session_id = ?",
        (stream.session_id,),
    ).fetchone()
    if row is not None and row[0] > stream.attempt:
        return
    course, is_next = Course(), True
    if row is not None and row[0] == stream.attempt:
        course = Course.of_state(Reported(*row[2:8]), _state_of(row[8]))
        is_next = row[1] == stream.writer and not is_late
    for one in found:
        at = min(one.time, now)
        if not is_next and course.last is not None and at <= course.last.time:
            continue
        if isinstance(one, Reported):
            course.add(one if one.time <= now else one._replace(time=at))
        elif one.is_paused:
            course.pause(at)
        else:
            course.go_on(at)
    last = course.last
    if last is None:
        return
    facts = (last.time, last.done, last.of, last.unit, last.origin, last.ends_at)
    connection.execute(
        f"INSERT INTO progress (session_id, {_ALL}) VALUES (?, {', '.join('?' * 11)})"
        " ON CONFLICT (session_id) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in _ALL.split(", ")),
        (
            *(stream.session_id, stream.attempt, stream.writer, *facts),
            *(*course.estimate(), _ENCODER.encode(course.state).decode()),
        ),
    )


def _state_of(text: str) -> CourseState:
    """Parse a stored state; one of another version is not continued."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return CourseState()


def delete_progress(connection: Connection, session_id: str) -> None:
    """Remove a session's progress; part of a larger transaction."""
    connection.execute("DELETE FROM progress WHERE session_id = ?", (session_id,))


def read_progress(
    dialect: Dialect, session_ids: Sequence[str], connection: Connection
) -> Mapping[str, TrainingProgress]:
    """Return the progress of each of these sessions that has reported it."""
    rows = connection.execute(
        f"SELECT session_id, attempt, ends_at, next_at, {_REPORTED} FROM progress"
        f" WHERE {dialect.among('session_id', 'ids')}",
        {"ids": dialect.many(session_ids)},
    )
    return {
        session_id: TrainingProgress(
            attempt=attempt, reported=Reported(*facts), estimate=Estimate(ends_at, next_at)
        )
        for session_id, attempt, ends_at, next_at, *facts in rows
    }
