"""Streams on SQLite. One row a chunk; a gap is a row without a body."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from controlplane.history.records import (
    NameFilter,
    dropped_in,
    number_or_value,
    points_of,
    readable_reports,
    report_of,
)
from controlplane.history.values import (
    Channel,
    Chunk,
    Gap,
    LogPage,
    MetricPage,
    Point,
    Recorded,
    StreamKey,
    Summary,
)
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from controlplane.history.changes import Change
    from controlplane.history.sqlite.database import Database
    from nsml.clock import Clock

MAX_COUNTED_NAMES = 10_000
LOG_PIECE_BYTES = 256 << 10
MAX_SUMMARY_BYTES = 64 << 10
"""What a summary keeps of the last report: listings show it for a thousand sessions at once."""
TAIL_LOOKS_BACK_BYTES = 8 << 20
_MAX_BODY_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")
_ROWS_A_STEP = 64
_PAGE_BYTES = 1 << 20
"""Of reports in a page of points, beside those of its last chunk: a report may have a MiB."""


class SqliteStreams:
    """See interface.Streams."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def append(self, chunks: Sequence[Chunk]) -> dict[StreamKey, int]:
        """See Streams."""
        if not chunks:
            return {}
        now = self._clock.time()
        return await self._database.write(
            lambda connection: _Appending(connection, now).run(chunks),
            touches={chunk.stream.session_id for chunk in chunks},
        )

    async def cursors(self, session_id: str, attempt: int) -> dict[StreamKey, int]:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> dict[StreamKey, int]:
            rows = connection.execute(
                "SELECT rank, channel, writer, wanted FROM streams"
                " WHERE session_id = ? AND attempt = ?",
                (session_id, attempt),
            )
            return {
                StreamKey(session_id, attempt, rank, Channel(channel), writer): wanted
                for rank, channel, writer, wanted in rows
            }

        return await self._database.read(work)

    async def read(
        self, stream: StreamKey, start: int, *, limit_bytes: int = 1 << 20
    ) -> tuple[Recorded | Gap, ...]:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> tuple[Recorded | Gap, ...]:
            found = _find(connection, stream)
            if found is None:
                return ()
            parts: list[Recorded | Gap] = []
            held = 0
            for row in _rows_from(connection, found.id, start):
                part = _part(row, stream.channel, start)
                parts.append(part)
                held += _weight(part)
                if held >= limit_bytes:
                    break
            return tuple(parts)

        return await self._database.read(work)

    async def read_log(
        self,
        session_id: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        tail_lines: int | None = None,
        limit_bytes: int = 64 << 10,
    ) -> LogPage:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> LogPage:
            number = _last_attempt(connection, session_id, rank) if attempt is None else attempt
            log = StreamKey(session_id, number, rank, Channel.LOG)
            found = _find(connection, log)
            if found is None:
                return LogPage(
                    attempt=number, offset=offset, data=b"", missing_bytes=0, next=offset, end=0
                )
            start = offset
            if tail_lines is not None:
                start = _tail_start(connection, found, tail_lines)
            return _log_page(connection, found, number, start, max(1, limit_bytes))

        return await self._database.read(work)

    async def next_log(self, session_id: str, attempt: int, *, rank: int = 0) -> int | None:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> int | None:
            row = connection.execute(
                "SELECT min(attempt) FROM streams"
                " WHERE session_id = ? AND attempt > ? AND rank = ? AND channel = ?",
                (session_id, attempt, rank, int(Channel.LOG)),
            ).fetchone()
            number: int | None = row[0]
            return number

        return await self._database.read(work)

    async def read_metrics(
        self,
        session_id: str,
        *,
        names: Collection[str] = (),
        after: int = 0,
        limit_points: int = 5000,
    ) -> MetricPage:
        """See Streams."""
        wanted = NameFilter(names)
        return await self._database.read(
            lambda connection: _metric_page(connection, session_id, wanted, after, limit_points)
        )

    async def summaries(self, session_ids: Collection[str]) -> Mapping[str, Summary]:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> dict[str, Summary]:
            rows = connection.execute(
                "SELECT session_id, attempt, time, step, report FROM summaries"
                " WHERE session_id IN (SELECT value FROM json_each(?))",
                (json.dumps(sorted(session_ids)),),
            )
            return {row[0]: _summary(*row[1:]) for row in rows}

        return await self._database.read(work)

    async def metric_counts(self, session_id: str) -> Mapping[str, int]:
        """See Streams."""

        def work(connection: sqlite3.Connection) -> dict[str, int]:
            return dict(
                connection.execute(
                    "SELECT name, points FROM metric_counts WHERE session_id = ? ORDER BY name",
                    (session_id,),
                ).fetchall()
            )

        return await self._database.read(work)

    def changed(self, session_id: str) -> AbstractContextManager[Change]:
        """See Streams."""
        return self._database.changes.follow(session_id)


def delete_streams(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove everything that was recorded of a session; part of a larger transaction."""
    connection.execute(
        "DELETE FROM chunks WHERE stream_id IN (SELECT id FROM streams WHERE session_id = ?)",
        (session_id,),
    )
    connection.execute("DELETE FROM streams WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM summaries WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM metric_counts WHERE session_id = ?", (session_id,))


class _Stream(NamedTuple):
    id: int
    wanted: int


class _Row(NamedTuple):
    first: int
    last: int
    received_at: float
    body: bytes | None


class _Appending:
    """The chunks of one call going into one transaction."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._streams: dict[StreamKey, _Stream] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def run(self, chunks: Sequence[Chunk]) -> dict[StreamKey, int]:
        for chunk in chunks:
            stream = self._stream(chunk.stream)
            if chunk.first < stream.wanted and not chunk.is_gap:
                self._fill_gaps(stream, chunk)
            if chunk.last >= stream.wanted:
                self._extend(stream, chunk)
        for stream in self._streams.values():
            self._connection.execute(
                "UPDATE streams SET wanted = ? WHERE id = ? AND wanted < ?",
                (stream.wanted, stream.id, stream.wanted),
            )
        self._write_counts()
        return {key: stream.wanted for key, stream in self._streams.items()}

    def _stream(self, key: StreamKey) -> _Stream:
        stream = self._streams.get(key) or _find(self._connection, key)
        if stream is None:
            wanted = key.channel.first_position
            added = self._connection.execute(
                "INSERT INTO streams (session_id, attempt, rank, channel, writer, wanted)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (key.session_id, key.attempt, key.rank, int(key.channel), key.writer, wanted),
            ).lastrowid
            assert added is not None  # noqa: S101 - an INSERT that did not raise has a row id
            stream = _Stream(added, wanted)
        self._streams[key] = stream
        return stream

    def _extend(self, stream: _Stream, chunk: Chunk) -> None:
        if chunk.first > stream.wanted:
            self._insert(stream, stream.wanted, chunk.first - 1, None)
        self._store(stream, chunk, max(chunk.first, stream.wanted), chunk.last)
        self._streams[chunk.stream] = stream._replace(wanted=chunk.last + 1)

    def _fill_gaps(self, stream: _Stream, chunk: Chunk) -> None:
        """Late data takes the place of the gaps that it covers; what is stored stays."""
        gaps = self._connection.execute(
            "SELECT id, first, last FROM chunks"
            " WHERE stream_id = ? AND last >= ? AND first <= ? AND body IS NULL ORDER BY last",
            (stream.id, chunk.first, min(chunk.last, stream.wanted - 1)),
        ).fetchall()
        for row_id, first, last in gaps:
            low, high = max(first, chunk.first), min(last, chunk.last)
            # The row keeps its key while the others are added, so that no id is used again and
            # no follower passes by.
            self._connection.execute("UPDATE chunks SET last = -id WHERE id = ?", (row_id,))
            if first < low:
                self._insert(stream, first, low - 1, None)
            self._store(stream, chunk, low, high)
            if high < last:
                self._insert(stream, high + 1, last, None)
            self._connection.execute("DELETE FROM chunks WHERE id = ?", (row_id,))

    def _store(self, stream: _Stream, chunk: Chunk, low: int, high: int) -> None:
        """Insert positions [low, high] of a chunk that has them."""
        start, end = low - chunk.first, high - chunk.first + 1
        if chunk.is_gap:
            self._insert(stream, low, high, None)
        elif chunk.stream.channel is Channel.LOG:
            for at in range(start, end, LOG_PIECE_BYTES):
                piece = chunk.data[at : min(at + LOG_PIECE_BYTES, end)]
                first = chunk.first + at
                self._insert(stream, first, first + len(piece) - 1, frame(piece))
        else:
            records = chunk.records[start:end]
            self._insert(stream, low, high, frame(_join(records)))
            if chunk.stream.channel is Channel.METRIC:
                self._note_reports(chunk.stream, records)

    def _insert(self, stream: _Stream, first: int, last: int, body: bytes | None) -> None:
        self._connection.execute(
            "INSERT INTO chunks (stream_id, first, last, received_at, body) VALUES (?, ?, ?, ?, ?)",
            (stream.id, first, last, self._now, body),
        )

    def _note_reports(self, key: StreamKey, records: Sequence[bytes]) -> None:
        latest = None
        for report in readable_reports(records):
            for name in report.values:
                counted = (key.session_id, name)
                self._counts[counted] = self._counts.get(counted, 0) + 1
            if report.is_summary and (latest is None or report.time >= latest.time):
                latest = report
        if latest is None:
            return
        self._connection.execute(
            "INSERT INTO summaries (session_id, attempt, time, step, report)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET"
            " attempt = excluded.attempt, time = excluded.time, step = excluded.step,"
            " report = excluded.report"
            " WHERE (excluded.attempt, excluded.time) >= (attempt, time)",
            (
                key.session_id,
                key.attempt,
                latest.time,
                latest.step,
                _bounded(latest.values),
            ),
        )

    def _write_counts(self) -> None:
        room: dict[str, int] = {}
        for (session_id, name), points in self._counts.items():
            known = self._connection.execute(
                "UPDATE metric_counts SET points = points + ? WHERE session_id = ? AND name = ?",
                (points, session_id, name),
            ).rowcount
            if known:
                continue
            if session_id not in room:
                row = self._connection.execute(
                    "SELECT count(*) FROM metric_counts WHERE session_id = ?", (session_id,)
                ).fetchone()
                room[session_id] = MAX_COUNTED_NAMES - row[0]
            if room[session_id] > 0:
                room[session_id] -= 1
                self._connection.execute(
                    "INSERT INTO metric_counts (session_id, name, points) VALUES (?, ?, ?)",
                    (session_id, name, points),
                )


def _bounded(values: Mapping[str, Any]) -> str:
    """As JSON, as many of the values, in their order, as there is room for."""
    kept, room = {}, MAX_SUMMARY_BYTES
    for name, value in values.items():
        room -= len(json.dumps(name)) + len(json.dumps(value)) + 4
        if room < 0:
            break
        kept[name] = value
    return json.dumps(kept)


def _find(connection: sqlite3.Connection, key: StreamKey) -> _Stream | None:
    row = connection.execute(
        "SELECT id, wanted FROM streams WHERE session_id = ? AND attempt = ? AND rank = ?"
        " AND channel = ? AND writer = ?",
        (key.session_id, key.attempt, key.rank, int(key.channel), key.writer),
    ).fetchone()
    return None if row is None else _Stream(*row)


def _rows_from(connection: sqlite3.Connection, stream_id: int, start: int) -> Iterator[_Row]:
    rows = connection.execute(
        "SELECT first, last, received_at, body FROM chunks"
        " WHERE stream_id = ? AND last >= ? ORDER BY last",
        (stream_id, start),
    )
    return (_Row(*row) for row in rows)


def _part(row: _Row, channel: Channel, start: int) -> Recorded | Gap:
    first = max(row.first, start)
    if row.body is None:
        return Gap(first, row.last)
    body = unframe(row.body, max_bytes=_MAX_BODY_BYTES)
    if channel is Channel.LOG:
        return Recorded(
            first=first, last=row.last, received_at=row.received_at, data=body[first - row.first :]
        )
    records = _split(body)[first - row.first :]
    return Recorded(first=first, last=row.last, received_at=row.received_at, records=records)


def _weight(part: Recorded | Gap) -> int:
    if isinstance(part, Gap):
        return 1
    return len(part.data) + sum(map(len, part.records))


def _last_attempt(connection: sqlite3.Connection, session_id: str, rank: int) -> int:
    row = connection.execute(
        "SELECT max(attempt) FROM streams WHERE session_id = ? AND rank = ? AND channel = ?",
        (session_id, rank, int(Channel.LOG)),
    ).fetchone()
    return int(row[0] or 0)


def _log_page(
    connection: sqlite3.Connection, log: _Stream, attempt: int, start: int, limit: int
) -> LogPage:
    pieces: list[bytes] = []
    missing = held = 0
    for row in _rows_from(connection, log.id, start):
        if row.body is None:
            if held:
                break
            missing += row.last - max(row.first, start) + 1
            continue
        data = unframe(row.body, max_bytes=_MAX_BODY_BYTES)
        piece = data[max(0, start - row.first) :][: limit - held]
        pieces.append(piece)
        held += len(piece)
        if held >= limit:
            break
    offset = start + missing
    return LogPage(
        attempt=attempt,
        offset=offset,
        data=b"".join(pieces),
        missing_bytes=missing,
        next=offset + held,
        end=log.wanted,
    )


def _tail_start(connection: sqlite3.Connection, log: _Stream, lines: int) -> int:
    """Where the last `lines` lines begin; a line end at the very end begins no line."""
    if lines <= 0:
        return log.wanted
    floor = max(0, log.wanted - TAIL_LOOKS_BACK_BYTES)
    rows = connection.execute(
        "SELECT first, last, received_at, body FROM chunks"
        " WHERE stream_id = ? AND last >= ? ORDER BY last DESC",
        (log.id, floor),
    )
    wanted = lines
    for row in map(_Row._make, rows):
        if row.body is None:
            continue
        data = unframe(row.body, max_bytes=_MAX_BODY_BYTES)
        end = len(data) - 1 if row.last == log.wanted - 1 else len(data)
        while (at := data.rfind(b"\n", 0, end)) >= 0:
            wanted -= 1
            if wanted == 0:
                return max(floor, row.first + at + 1)
            end = at
    return floor


def _metric_page(
    connection: sqlite3.Connection, session_id: str, names: NameFilter, after: int, limit: int
) -> MetricPage:
    streams: dict[int, tuple[int, int]] = {
        stream_id: (attempt, rank)
        for stream_id, attempt, rank in connection.execute(
            "SELECT id, attempt, rank FROM streams WHERE session_id = ? AND channel = ?",
            (session_id, int(Channel.METRIC)),
        )
    }
    points: list[Point] = []
    missing = unreadable = size = 0
    while len(points) < limit and size < _PAGE_BYTES:
        ids = _next_ids(connection, streams, after)
        for row_id in ids:
            stream_id, first, last, body = connection.execute(
                "SELECT stream_id, first, last, body FROM chunks WHERE id = ?", (row_id,)
            ).fetchone()
            after = row_id
            if body is None:
                missing += last - first + 1
                continue
            attempt, rank = streams[stream_id]
            whole = unframe(body, max_bytes=_MAX_BODY_BYTES)
            size += len(whole)
            for record in _split(whole):
                try:
                    report = report_of(record)
                except ValueError:
                    unreadable += 1
                    continue
                if report is None:
                    missing += dropped_in(record)
                else:
                    points.extend(points_of(report, names, attempt=attempt, rank=rank))
            if len(points) >= limit or size >= _PAGE_BYTES:
                break
        if len(ids) < _ROWS_A_STEP:
            break
    is_end = not _next_ids(connection, streams, after)
    return MetricPage(
        points=tuple(points), next=after, is_end=is_end, missing=missing, unreadable=unreadable
    )


def _next_ids(connection: sqlite3.Connection, streams: Collection[int], after: int) -> list[int]:
    """The next rows of several streams in commit order.

    Stream by stream along its index: one query over all would sort every row that is left.
    """
    ids: list[int] = []
    for stream_id in streams:
        ids += [
            row[0]
            for row in connection.execute(
                "SELECT id FROM chunks INDEXED BY idx_chunks_in_commit_order"
                " WHERE stream_id = ? AND id > ? ORDER BY id LIMIT ?",
                (stream_id, after, _ROWS_A_STEP),
            )
        ]
    return sorted(ids)[:_ROWS_A_STEP]


def _summary(attempt: int, time: float, step: float | None, report: str) -> Summary:
    values = {name: number_or_value(value) for name, value in json.loads(report).items()}
    return Summary(time=time, step=step, attempt=attempt, values=values)


def _join(records: Sequence[bytes]) -> bytes:
    """Records as one body: each with its length before it, 4 bytes little-endian."""
    return b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record))


def _split(body: bytes) -> tuple[bytes, ...]:
    records = []
    at = 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        records.append(body[at : at + length])
        at += length
    return tuple(records)
