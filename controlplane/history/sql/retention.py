"""Retention of sessions that ended long ago: deletes their points, then the finest levels of their series.

Consecutive rows of points in a stream become one row with only their positions: so resent data is
recognized, and the greatest id stays, from which followers and folding continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.sql.bodies import LET_GO
from controlplane.history.values import Channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from controlplane.history.sql.interface import Connection
    from controlplane.history.values import Ages

TURN_ROWS: Final = 512
"""Rows of chunks, or of levels, per turn."""
TURN_BYTES: Final = 8 << 20
"""Bytes of points per turn, exceeded by one chunk at most."""
ROWS_LEFT: Final = 16
"""Full rows of the finest level that is kept, at least: 512 buckets, enough for a chart of the whole series.
Finer levels are for zooming in."""


class _Row(NamedTuple):
    """A row of a stream; `size` is None for a gap."""

    id: int
    first: int
    last: int
    size: int | None


def to_thin(ages: Ages, limit: int, connection: Connection) -> tuple[str, ...]:
    """See SqlSeries."""
    rows = connection.execute(
        "SELECT session_id FROM series_folds JOIN sessions ON sessions.id = session_id"
        " WHERE waiting = 0 AND coarsened < folded"
        " AND (thinned < folded AND ended_at < ? OR thinned = folded AND ended_at < ?)"
        " ORDER BY ended_at LIMIT ?",
        (ages.points_before, ages.levels_before, limit),
    )
    return tuple(row[0] for row in rows)


def thin(session_id: str, ages: Ages, now: float, connection: Connection) -> bool:
    """Run one turn; return whether more is left. Changes nothing unless the session is due."""
    row = connection.execute(
        "SELECT folded, thinned, coarsened, ended_at FROM series_folds"
        " JOIN sessions ON sessions.id = session_id WHERE session_id = ? AND waiting = 0",
        (session_id,),
    ).fetchone()
    if row is None:
        return False
    folded, thinned, coarsened, ended_at = row
    if thinned < folded:
        if ended_at >= ages.points_before:
            return False
        is_done = _let_go_of_points(connection, session_id, now)
        connection.execute(
            "UPDATE series_folds SET let_go_at = ?, thinned = ? WHERE session_id = ?",
            (now, folded if is_done else thinned, session_id),
        )
        return not is_done or ended_at < ages.levels_before
    if coarsened == folded or ended_at >= ages.levels_before:
        return False
    if not _let_go_of_levels(connection, session_id):
        return True
    connection.execute(
        "UPDATE series_folds SET coarsened = ? WHERE session_id = ?", (folded, session_id)
    )
    return False


def _let_go_of_points(connection: Connection, session_id: str, now: float) -> bool:
    """Delete some points; True when none are left."""
    streams = connection.execute(
        "SELECT id, archived, wanted FROM streams"
        " WHERE session_id = ? AND channel = ? AND archived < wanted ORDER BY id LIMIT ?",
        (session_id, int(Channel.METRIC), TURN_ROWS + 1),
    ).fetchall()
    rows_left, bytes_left = TURN_ROWS, TURN_BYTES
    for stream_id, archived, wanted in streams:
        if rows_left <= 0 or bytes_left <= 0:
            return False
        # From the row before: points deleted earlier are merged with what follows.
        found = connection.execute(
            "SELECT id, first, last, length(body) FROM chunks"
            " WHERE stream_id = ? AND last >= ? ORDER BY last LIMIT ?",
            (stream_id, archived - 1, TURN_ROWS + 1),
        ).fetchall()
        taken: list[_Row] = []
        for row in map(_Row._make, found):
            if bytes_left <= 0:
                break
            taken.append(row)
            bytes_left -= row.size if row.size and row.size > len(LET_GO) else 0
        is_whole = len(taken) == len(found) <= TURN_ROWS
        for run in _runs(taken):
            _make_one(connection, run, now)
        connection.execute(
            "UPDATE streams SET archived = ? WHERE id = ?",
            (wanted if is_whole else taken[-1].last + 1, stream_id),
        )
        if not is_whole:
            return False
        rows_left -= len(taken)
    return len(streams) <= TURN_ROWS


def _runs(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Group the rows between gaps, without groups already deleted."""
    runs: list[list[_Row]] = [[]]
    for row in rows:
        if row.size is None:
            runs.append([])
        else:
            runs[-1].append(row)
    return [run for run in runs if any(row.size != len(LET_GO) for row in run)]


def _make_one(connection: Connection, run: Sequence[_Row], now: float) -> None:
    kept = max(row.id for row in run)
    connection.executemany(
        "DELETE FROM chunks WHERE id = ?", [(row.id,) for row in run if row.id != kept]
    )
    connection.execute(
        "UPDATE chunks SET first = ?, last = ?, received_at = ?, body = ? WHERE id = ?",
        (run[0].first, run[-1].last, now, LET_GO, kept),
    )


def _let_go_of_levels(connection: Connection, session_id: str) -> bool:
    """Delete some rows of levels finer than a chart of the whole needs; True when none are left."""
    enough = connection.execute(
        "SELECT series_id, max(level) FROM series_rows JOIN series ON series.id = series_id"
        " WHERE session_id = ? AND level > finest AND number = ? GROUP BY series_id",
        (session_id, ROWS_LEFT - 1),
    ).fetchall()
    connection.executemany(
        "UPDATE series SET finest = ? WHERE id = ?",
        [(level, series_id) for series_id, level in enough],
    )
    rows = connection.execute(
        "SELECT series_id, level, number FROM series_rows JOIN series ON series.id = series_id"
        " WHERE session_id = ? AND level > 0 AND level < finest LIMIT ?",
        (session_id, TURN_ROWS),
    ).fetchall()
    connection.executemany(
        "DELETE FROM series_rows WHERE series_id = ? AND level = ? AND number = ?", rows
    )
    return len(rows) < TURN_ROWS
