"""Appends chunks in a transaction: trimming, gaps, point counts and summaries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from controlplane.history.records import readable_reports
from controlplane.history.sql.bodies import pieces
from controlplane.history.sql.progress import delete_progress, note_progress
from controlplane.history.sql.tables import FOLD_WHAT_IS_THERE
from controlplane.history.summaries import listed
from controlplane.history.values import Channel, Chunk, StreamKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from controlplane.history.records import Report
    from controlplane.history.sql.interface import Connection, Dialect

MAX_COUNTED_NAMES = 10_000
MAX_SUMMARY_BYTES = 64 << 10
"""Size limit of the values in a summary."""


_MORE_TO_FOLD = (
    "INSERT INTO series_folds (session_id, folded, waiting, since, series, left_out, dropped)"
    " VALUES (?, 0, ?, ?, 0, 0, 0) ON CONFLICT (session_id) DO UPDATE SET"
    " since = CASE WHEN series_folds.waiting = 0 THEN excluded.since ELSE series_folds.since END,"
    " waiting = series_folds.waiting + excluded.waiting"
)
"""`waiting`: bytes of chunks after `folded`; the first was received at `since`."""


class Stream(NamedTuple):
    """A stored stream; `wanted` is the next position to append."""

    id: int
    wanted: int


class Appending:
    """Appends the chunks of one call in one transaction."""

    def __init__(
        self, connection: Connection, dialect: Dialect, now: float, most_names: int | None = None
    ) -> None:
        self._most_names = most_names or MAX_COUNTED_NAMES
        self._connection = connection
        self._dialect = dialect
        self._now = now
        self._streams: dict[StreamKey, Stream] = {}
        self._stored: dict[StreamKey, int] = {}
        self._rows: list[tuple[int, int, int, float, bytes | None]] = []
        self._counts: dict[str, dict[str, int]] = {}
        self._origins: dict[tuple[str, str], str] = {}
        """By session and metric, of reports with one."""
        self._unfolded: dict[str, int] = {}

    def run(self, chunks: Sequence[Chunk]) -> dict[StreamKey, int]:
        """Store the chunks; return each stream's next position."""
        for chunk in chunks:
            stream = self._stream(chunk.stream)
            if chunk.first < stream.wanted and not chunk.is_gap:
                self._fill_gaps(stream, chunk)
            if chunk.last >= stream.wanted:
                self._extend(stream, chunk)
        self._flush()
        for key, stream in self._streams.items():
            if stream.wanted != self._stored[key]:
                self._connection.execute(
                    "UPDATE streams SET wanted = ? WHERE id = ?", (stream.wanted, stream.id)
                )
        for session_id, points in self._counts.items():
            self._add_counts(session_id, points)
        for session_id, size in self._unfolded.items():
            self._connection.execute(_MORE_TO_FOLD, (session_id, size, self._now))
        return {key: stream.wanted for key, stream in self._streams.items()}

    def _stream(self, key: StreamKey) -> Stream:
        known = self._streams.get(key)
        if known is not None:
            return known
        stream = find_stream(self._connection, key) or self._new(key)
        self._streams[key] = stream
        self._stored[key] = stream.wanted
        return stream

    def _new(self, key: StreamKey) -> Stream:
        self._connection.execute(
            "INSERT INTO streams (session_id, attempt, rank, channel, writer, wanted)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*key[:3], int(key.channel), key.writer, key.channel.first_position),
        )
        made = find_stream(self._connection, key)
        assert made is not None  # noqa: S101 - inserted just now
        return made

    def _extend(self, stream: Stream, chunk: Chunk) -> None:
        begin = max(chunk.first, stream.wanted)
        if chunk.is_gap:
            self._extend_gap(stream, chunk.last)
        else:
            if begin > stream.wanted:
                self._extend_gap(stream, begin - 1)
            self._store(stream, chunk, begin, chunk.last)
        self._streams[chunk.stream] = stream._replace(wanted=chunk.last + 1)

    def _extend_gap(self, stream: Stream, last: int) -> None:
        """Add a gap at the stream's end, merged with an adjacent gap of this call.

        It is not merged with gaps of earlier calls: followers have counted those.
        """
        first = stream.wanted
        if self._rows and self._rows[-1][0] == stream.id:
            _, before, end, _, body = self._rows[-1]
            if body is None and end == first - 1:
                self._rows.pop()
                first = before
        self._insert(stream, first, last, None)

    def _fill_gaps(self, stream: Stream, chunk: Chunk) -> None:
        """Replace the gaps covered by late data; stored data stays."""
        self._flush()
        gaps = self._connection.execute(
            "SELECT id, first, last FROM chunks"
            " WHERE stream_id = ? AND last >= ? AND first <= ? AND body IS NULL ORDER BY last",
            (stream.id, chunk.first, min(chunk.last, stream.wanted - 1)),
        ).fetchall()
        for row_id, first, last in gaps:
            low, high = max(first, chunk.first), min(last, chunk.last)
            # The row keeps its key while the others are added, so that no id is reused and
            # no follower skips them.
            self._connection.execute("UPDATE chunks SET last = -id WHERE id = ?", (row_id,))
            if first < low:
                self._insert(stream, first, low - 1, None)
            self._store(stream, chunk, low, high, is_late=True)
            if high < last:
                self._insert(stream, high + 1, last, None)
            self._flush()
            self._connection.execute("DELETE FROM chunks WHERE id = ?", (row_id,))
            self._connection.execute(
                "UPDATE streams SET archived = ? WHERE id = ? AND archived > ?",
                (low, stream.id, low),
            )

    def _store(
        self, stream: Stream, chunk: Chunk, low: int, high: int, *, is_late: bool = False
    ) -> None:
        """Insert positions [low, high] of a chunk; `is_late`: later positions are already stored."""
        size = 0
        for first, last, body in pieces(chunk, low, high):
            self._insert(stream, first, last, body)
            size += len(body or b"")
        if chunk.stream.channel is Channel.METRIC and not chunk.is_gap:
            whose = chunk.stream.session_id
            self._unfolded[whose] = self._unfolded.get(whose, 0) + size
            records = chunk.records[low - chunk.first : high - chunk.first + 1]
            self._note_reports(stream, chunk.stream, records, is_late=is_late)
            note_progress(self._connection, chunk.stream, records, self._now, is_late=is_late)

    def _insert(self, stream: Stream, first: int, last: int, body: bytes | None) -> None:
        self._rows.append((stream.id, first, last, self._now, body))

    def _flush(self) -> None:
        """Insert the pending rows in order: ids grow in the order of insertion."""
        rows, self._rows = self._rows, []
        if rows:
            self._connection.executemany(
                "INSERT INTO chunks (stream_id, first, last, received_at, body)"
                " VALUES (?, ?, ?, ?, ?)",
                rows,
            )

    def _is_alone(self, stream: Stream, key: StreamKey) -> bool:
        """Whether only this stream's process has reported in this attempt."""
        others = self._connection.execute(
            "SELECT id FROM streams WHERE session_id = ? AND attempt = ? AND channel = ?"
            " AND id <> ? LIMIT 1",
            (key.session_id, key.attempt, int(key.channel), stream.id),
        )
        return others.fetchone() is None

    def _note_reports(
        self, stream: Stream, key: StreamKey, records: Sequence[bytes], *, is_late: bool
    ) -> None:
        """Count points, and keep the summary.

        A report of nsml.report replaces the values of earlier ones. A report to another library replaces
        those of the same names: such libraries report each value by itself.

        Of a single process the last report counts, whatever its clock; of several, which have no
        order, the latest by their clocks, capped at our clock.
        """
        reports = []
        counts = self._counts.setdefault(key.session_id, {})
        for report in readable_reports(records):
            for name in report.values:
                count = counts.get(name, 0)
                counts[name] = count + 1
                if not count and report.origin:
                    self._origins[key.session_id, name] = report.origin
            if report.is_summary and report.values:
                reports.append(report)
        if not reports:
            return
        latest = reports[-1]
        at = min(latest.time, self._now)
        row = self._connection.execute(
            "SELECT attempt, time, step, report FROM summaries WHERE session_id = ?",
            (key.session_id,),
        ).fetchone()
        known: dict[str, Any] = {}
        step = latest.step
        is_newest = True
        if row is not None:
            known = json.loads(row[3])
            is_newest = (key.attempt, at) >= (row[0], row[1]) or (
                key.attempt == row[0] and not is_late and self._is_alone(stream, key)
            )
        if is_newest:
            values = self._merged(key.session_id, known, reports)
        else:
            added = {
                name: value
                for report in reports
                if report.origin and key.attempt == row[0]
                for name, value in report.values.items()
                if name not in known
            }
            if not added:
                return
            at, step, values = row[1], row[2], {**known, **added}
        kept = _bounded(values)
        self._connection.execute(
            "INSERT INTO summaries (session_id, attempt, time, step, report, listed)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET"
            " attempt = excluded.attempt, time = excluded.time, step = excluded.step,"
            " report = excluded.report, listed = excluded.listed",
            (key.session_id, key.attempt, at, step, json.dumps(kept), _listed(at, kept)),
        )

    def _merged(
        self, session_id: str, known: Mapping[str, Any], reports: Sequence[Report]
    ) -> dict[str, Any]:
        """Return the summary after these reports, which are later than `known`."""
        others = {name for one in reports if one.origin for name in one.values}
        plain = next((one for one in reversed(reports) if not one.origin), None)
        if plain is not None:
            gone = {name for name in known if name not in plain.values and name not in others}
            others |= self._reported_elsewhere(session_id, gone)
        values = dict(known)
        for report in reports:
            if not report.origin:
                values = {name: value for name, value in values.items() if name in others}
            values.update(report.values)
        return values

    def _reported_elsewhere(self, session_id: str, names: Collection[str]) -> set[str]:
        """Return those of the stored metrics that were reported to other libraries."""
        if not names:
            return set()
        rows = self._dialect.rows_named(
            self._connection,
            "SELECT name FROM metric_counts WHERE session_id = :session_id AND origin <> ''",
            session_id,
            names,
        )
        return {self._dialect.text_of(row[0]) for row in rows}

    def _add_counts(self, session_id: str, points: Mapping[str, int]) -> None:
        kept = {
            self._dialect.any_text(name): (count, self._origins.get((session_id, name), ""))
            for name, count in points.items()
        }
        known = {
            row[0]
            for row in self._dialect.rows_named(
                self._connection,
                "SELECT name FROM metric_counts WHERE session_id = :session_id",
                session_id,
                points,
            )
        }
        new = [name for name in kept if name not in known]
        if new:
            counted = self._connection.execute(
                "SELECT count(*) FROM metric_counts WHERE session_id = ?", (session_id,)
            ).fetchone()[0]
            for name in new[max(0, self._most_names - counted) :]:
                del kept[name]
        self._connection.executemany(
            "INSERT INTO metric_counts (session_id, name, points, origin) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session_id, name)"
            " DO UPDATE SET points = metric_counts.points + excluded.points",
            [(session_id, name, *counted) for name, counted in kept.items()],
        )


def find_stream(connection: Connection, key: StreamKey) -> Stream | None:
    """Return a stream; None if nothing of it is stored."""
    row = connection.execute(
        "SELECT id, wanted FROM streams WHERE session_id = ? AND attempt = ? AND rank = ?"
        " AND channel = ? AND writer = ?",
        (*key[:3], int(key.channel), key.writer),
    ).fetchone()
    return None if row is None else Stream(*row)


def begin_folding(connection: Connection) -> None:
    """Queue for folding all sessions without a row in series_folds."""
    connection.execute(FOLD_WHAT_IS_THERE)


def delete_streams(connection: Connection, session_id: str) -> None:
    """Remove all recorded data of a session; part of a larger transaction."""
    connection.execute(
        "DELETE FROM chunks WHERE stream_id IN (SELECT id FROM streams WHERE session_id = ?)",
        (session_id,),
    )
    connection.execute("DELETE FROM streams WHERE session_id = ?", (session_id,))
    connection.execute(
        "DELETE FROM series_rows WHERE series_id IN (SELECT id FROM series WHERE session_id = ?)",
        (session_id,),
    )
    connection.execute("DELETE FROM series WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM series_folds WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM summaries WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM metric_counts WHERE session_id = ?", (session_id,))
    delete_progress(connection, session_id)


def _bounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first values that fit in MAX_SUMMARY_BYTES."""
    kept, room = {}, MAX_SUMMARY_BYTES
    for name, value in values.items():
        room -= len(json.dumps(name)) + len(json.dumps(value)) + 4
        if room < 0:
            break
        kept[name] = value
    return kept


def _listed(at: float, values: Mapping[str, Any]) -> str | None:
    """Return a summary shortened for lists, as JSON; None if lists carry all of it."""
    short, left_out = listed(values)
    return json.dumps([at, left_out, short]) if left_out else None
