"""Packs the rows of ended logs into blocks, one per transaction."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.blocks import BLOCK_BYTES, BLOCK_PIECES, Piece, pack
from controlplane.history.sql.appending import find_stream
from controlplane.history.sql.bodies import Row, content, is_reference, reference
from controlplane.history.values import Channel, StreamKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.interface import Connection

_PASSED_AT_ONCE: Final = 1024
"""Most gaps and blocks skipped in one read."""


class Run(NamedTuple):
    """The rows after the position `archived` of a log to pack into a block, or no rows to skip gaps and blocks.

    `content` is the block of the rows `ids`; `next` is the position after it, or after the skipped ones.
    """

    stream_id: int
    archived: int
    next: int
    ids: tuple[int, ...] = ()
    first: int = 0
    received_at: float = 0.0
    content: bytes = b""


def unarchived(ended_before: float, limit: int, connection: Connection) -> tuple[StreamKey, ...]:
    """See SqlStreams."""
    rows = connection.execute(
        "SELECT streams.session_id, attempt, rank, writer FROM streams"
        " JOIN sessions ON sessions.id = streams.session_id"
        f" WHERE channel = {int(Channel.LOG)} AND archived < wanted AND ended_at < ?"
        " ORDER BY ended_at, streams.id LIMIT ?",
        (ended_before, limit),
    )
    return tuple(
        StreamKey(session_id, attempt, rank, Channel.LOG, writer)
        for session_id, attempt, rank, writer in rows
    )


def next_run(log: StreamKey, connection: Connection) -> Run | None:
    """Return the next run of a log; None when all of it is in blocks, or lost."""
    found = find_stream(connection, log)
    if found is None:
        return None
    archived = _archived(connection, found.id)
    start = archived
    for _ in range(_PASSED_AT_ONCE):
        row = connection.execute(
            "SELECT first, last, received_at, body FROM chunks"
            " WHERE stream_id = ? AND last >= ? ORDER BY last LIMIT 1",
            (found.id, start),
        ).fetchone()
        if row is None:
            start = found.wanted
            break
        one = Row._make(row)
        if one.body is not None and not is_reference(one):
            return _run(connection, found.id, archived, one)
        start = one.last + 1
    return Run(found.id, archived, start) if start > archived else None


def _run(connection: Connection, stream_id: int, archived: int, begin: Row) -> Run:
    end = max(begin.first + BLOCK_BYTES, begin.last + 1)
    rows = connection.execute(
        "SELECT id, first, last, received_at, body FROM chunks"
        " WHERE stream_id = ? AND last >= ? AND last < ? ORDER BY last LIMIT ?",
        (stream_id, begin.first, end, BLOCK_PIECES),
    ).fetchall()
    ids: list[int] = []
    pieces: list[Piece] = []
    for row_id, *rest in rows:
        row = Row._make(rest)
        if row.body is None or is_reference(row):
            break
        ids.append(row_id)
        pieces.append(Piece(row.first, row.last, row.received_at, content(row.body)))
    return Run(
        stream_id=stream_id,
        archived=archived,
        next=pieces[-1].last + 1,
        ids=tuple(ids),
        first=begin.first,
        received_at=begin.received_at,
        content=pack(pieces),
    )


def put_away(log: StreamKey, run: Run, digest: str, connection: Connection) -> bool:
    """Replace the run's rows with a reference to their block; False if the log was removed.

    If the rows changed in the meantime, nothing is written: the next round packs them.
    """
    found = find_stream(connection, log)
    if found is None or found.id != run.stream_id:
        return False
    if _archived(connection, found.id) != run.archived:
        return True
    if run.ids:
        last = run.next - 1
        if _ids(connection, found.id, run.first, last) != run.ids:
            return True
        connection.execute(
            "DELETE FROM chunks WHERE stream_id = ? AND last >= ? AND last <= ?",
            (found.id, run.first, last),
        )
        connection.execute(
            "INSERT INTO chunks (stream_id, first, last, received_at, body) VALUES (?, ?, ?, ?, ?)",
            (found.id, run.first, last, run.received_at, reference(digest)),
        )
    connection.execute("UPDATE streams SET archived = ? WHERE id = ?", (run.next, found.id))
    return True


def _archived(connection: Connection, stream_id: int) -> int:
    row = connection.execute("SELECT archived FROM streams WHERE id = ?", (stream_id,)).fetchone()
    return int(row[0])


def _ids(connection: Connection, stream_id: int, first: int, last: int) -> Sequence[int]:
    rows = connection.execute(
        "SELECT id FROM chunks WHERE stream_id = ? AND last >= ? AND last <= ? ORDER BY last",
        (stream_id, first, last),
    )
    return tuple(row[0] for row in rows)
