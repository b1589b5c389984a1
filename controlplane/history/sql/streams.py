"""Streams: appending and reading. One row per chunk; a gap is a row without a body."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import json
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from controlplane.history.blocks import NO_BLOCKS
from controlplane.history.records import (
    NameFilter,
    dropped_in,
    number_or_value,
    points_of,
    report_of,
)
from controlplane.history.sql.appending import Appending, find_stream
from controlplane.history.sql.archiving import next_run, put_away, unarchived
from controlplane.history.sql.bodies import LET_GO, content, part, split, weight
from controlplane.history.sql.logs import (
    Tail,
    begin_tail,
    find_log,
    first_received,
    log_page,
    look_back,
    rows_from,
)
from controlplane.history.sql.progress import read_progress
from controlplane.history.sql.queries import select, select_one
from controlplane.history.summaries import listed_of
from controlplane.history.values import (
    Channel,
    Chunk,
    Gap,
    LetGo,
    LogPage,
    LogPlace,
    MetricCount,
    MetricPage,
    Point,
    Recorded,
    StreamKey,
    Summary,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from controlplane.history.blocks import Blocks
    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.subscriptions import Change, Touched
    from controlplane.history.values import TrainingProgress
    from nsml.common.clock import Clock

_IDS_A_STEP = 64
_BODIES_A_STEP = (4, 8, 16)
"""Bodies fetched at a time: few pages need many, and each may have megabytes."""
_PAGE_BYTES = 1 << 20
"""Bytes of reports in a page of points, without its last chunk: a report may have a MiB."""


class SqlStreams:
    """Records and log bytes of replicas, stored once and in order whatever is resent.

    A stream is a run of positions. `append` extends it; stored positions are ignored, skipped
    positions become a gap, which readers see, and which late data still fills.

    An archived log has references to blocks stored elsewhere. Methods that read a log take blocks from
    `blocks`, and raise LogElsewhere for a missing one: the caller repeats the call with that one as
    well. Results are the same with or without blocks.
    """

    def __init__(
        self, database: Database, clock: Clock, *, metric_names: int | None = None
    ) -> None:
        self._metric_names = metric_names
        self._database = database
        self._clock = clock

    async def append(self, chunks: Sequence[Chunk]) -> dict[StreamKey, int]:
        """Store chunks, cursors, summaries and counts in one transaction; on disk when it returns.

        Concurrent calls share a transaction. Returns the next position of each stream in `chunks`.
        """
        if not chunks:
            return {}
        now = self._clock.time()
        dialect, most = self._database.dialect, self._metric_names
        return await self._database.write(
            lambda connection: Appending(connection, dialect, now, most).run(chunks),
            touches={chunk.stream.session_id for chunk in chunks},
        )

    async def append_as_of(self, chunks: Sequence[tuple[Chunk, float]]) -> None:
        """Store chunks as received at the given times (Unix seconds), in one transaction."""
        dialect, most = self._database.dialect, self._metric_names

        def work(connection: Connection) -> None:
            for at, some in groupby(chunks, key=itemgetter(1)):
                Appending(connection, dialect, at, most).run([chunk for chunk, _ in some])

        await self._database.write(work, touches={one.stream.session_id for one, _ in chunks})

    async def cursors(self, session_id: str, attempt: int) -> dict[StreamKey, int]:
        """Return the next position of every stream of an attempt."""
        rows = await select(
            self._database,
            "SELECT rank, channel, writer, wanted FROM streams"
            " WHERE session_id = ? AND attempt = ?",
            (session_id, attempt),
            tuple,
        )
        return {
            StreamKey(session_id, attempt, rank, Channel(channel), writer): wanted
            for rank, channel, writer, wanted in rows
        }

    async def read(
        self,
        stream: StreamKey,
        start: int,
        *,
        limit_bytes: int = 1 << 20,
        blocks: Blocks = NO_BLOCKS,
    ) -> tuple[Recorded | Gap | LetGo, ...]:
        """Read stored parts from position `start` on, in order, the first trimmed to begin there.

        Ends after about `limit_bytes` of content (at least one part), empty at the stream's end.
        """

        def work(connection: Connection) -> tuple[Recorded | Gap | LetGo, ...]:
            found = find_stream(connection, stream)
            if found is None:
                return ()
            parts: list[Recorded | Gap | LetGo] = []
            held = 0
            for row in rows_from(connection, found, start, blocks):
                parts.append(part(row, stream.channel, start))
                held += weight(parts[-1])
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
        stop: int | None = None,
        limit_bytes: int = 64 << 10,
        blocks: Blocks = NO_BLOCKS,
    ) -> LogPage:
        """Read up to `limit_bytes` of a log from `offset`, or from `tail_lines` before its end if that is later.

        Without `attempt`, the last one with a log. With `stop`, the log counts as ending there. A page
        never spans a gap, and has at most 1,024 chunks. `tail_lines` looks back over 8 MiB at most, from
        the log's end at the start of the search.
        """

        def work(tail: Tail | None, connection: Connection) -> LogPage | Tail:
            log = tail.log if tail else find_log(connection, session_id, attempt, rank, stop)
            start = offset
            if tail_lines is not None:
                tail = look_back(connection, tail or begin_tail(log, tail_lines), blocks)
                if tail.start is None:
                    return tail
                start = max(offset, tail.start)
            return log_page(connection, log, start, max(1, limit_bytes), blocks)

        found = await self._database.read(partial(work, None))
        while isinstance(found, Tail):
            found = await self._database.read(partial(work, found))
        return found

    async def log_at(
        self,
        session_id: str,
        moment: float,
        *,
        attempt: int | None = None,
        rank: int = 0,
        blocks: Blocks = NO_BLOCKS,
    ) -> LogPlace:
        """Find the first byte of a log received at `moment` (Unix seconds) or later; its end if there is none.

        Times are by the wall clock of the control plane that stored the byte: if it was set back, or lost
        data arrived late, the result is approximate.
        """

        def work(connection: Connection) -> LogPlace:
            number, log = find_log(connection, session_id, attempt, rank)
            if log is None:
                return LogPlace(number, 0)
            return LogPlace(number, first_received(connection, log, moment, blocks))

        return await self._database.read(work)

    async def next_log(self, session_id: str, attempt: int, *, rank: int = 0) -> int | None:
        """Return the first attempt after `attempt` with a log; None if there is none."""
        return await select_one(
            self._database,
            "SELECT min(attempt) FROM streams"
            " WHERE session_id = ? AND attempt > ? AND rank = ? AND channel = ?",
            (session_id, attempt, rank, int(Channel.LOG)),
            itemgetter(0),
        )

    async def unarchived(self, *, ended_before: float, limit: int = 16) -> tuple[StreamKey, ...]:
        """List logs not fully archived, of sessions that ended before a Unix time, oldest first."""
        return await self._database.read(partial(unarchived, ended_before, limit))

    async def archive(self, log: StreamKey, keep: Callable[[bytes], Awaitable[str]]) -> bool:
        """Put the next rows of a log into a block; False when there was nothing (left) to do.

        `keep` stores a block durably and returns its digest. Then one transaction replaces the rows with a
        reference: after an abort the log is readable as before. Gaps stay; data that fills one later is
        archived by the next call.
        """
        run = await self._database.read(partial(next_run, log))
        if run is None:
            return False
        digest = await keep(run.content) if run.ids else ""
        return await self._database.write(
            partial(put_away, log, run, digest), touches={log.session_id}
        )

    async def read_metrics(
        self,
        session_id: str,
        *,
        names: Collection[str] = (),
        after: int = 0,
        limit_points: int = 5000,
    ) -> MetricPage:
        """Read points of all attempts and ranks in commit order after the mark `after` (0: all).

        `names` are globs; empty means all. Pages have whole chunks: so they may have somewhat more
        points, and fewer if their reports are long.
        """
        wanted, dialect = NameFilter(names), self._database.dialect

        def work(connection: Connection) -> MetricPage:
            return _MetricPage(connection, dialect, session_id, after).read(wanted, limit_points)

        return await self._database.read(work)

    async def summaries(self, session_ids: Collection[str]) -> Mapping[str, Summary]:
        """Return the latest summary of each session with one, whole."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            "SELECT session_id, attempt, time, step, report FROM summaries"
            f" WHERE {dialect.among('session_id', 'ids')}",
            {"ids": dialect.many(sorted(session_ids))},
            lambda row: (row[0], _summary(*row[1:])),
        )
        return dict(found)

    async def listed_summaries(
        self, session_ids: Collection[str], names: Sequence[str] = ()
    ) -> Mapping[str, Summary]:
        """The same, shortened for lists: the first values, and those of `names`; see controlplane.history.summaries."""
        dialect = self._database.dialect

        def work(connection: Connection) -> dict[str, Summary]:
            found, whole = {}, []
            rows = connection.execute(
                "SELECT session_id, attempt, time, step, listed,"
                " CASE WHEN listed IS NULL THEN report END FROM summaries"
                f" WHERE {dialect.among('session_id', 'ids')}",
                {"ids": dialect.many(sorted(session_ids))},
            )
            for session_id, attempt, at, step, short, report in rows:
                if short is None:
                    summary = _summary(attempt, at, step, report)
                    found[session_id] = listed_of(summary, names)
                    continue
                made_at, left_out, values = json.loads(short)
                # An older control plane leaves it unchanged, made from an earlier report.
                if names or made_at != at:
                    whole.append(session_id)
                else:
                    found[session_id] = Summary(
                        time=at,
                        step=step,
                        attempt=attempt,
                        values=_plain(values),
                        left_out=left_out,
                    )
            if whole:
                rows = connection.execute(
                    "SELECT session_id, attempt, time, step, report FROM summaries"
                    f" WHERE {dialect.among('session_id', 'ids')}",
                    {"ids": dialect.many(sorted(whole))},
                )
                found |= {row[0]: listed_of(_summary(*row[1:]), names) for row in rows}
            return found

        return await self._database.read(work)

    async def progress(self, session_ids: Collection[str]) -> Mapping[str, TrainingProgress]:
        """Return the training progress of each session that has reported it."""
        return await self._database.read(
            partial(read_progress, self._database.dialect, sorted(session_ids))
        )

    async def metric_counts(self, session_id: str) -> Mapping[str, int]:
        """Map metric names to numbers of points, by name; at most 10,000 names are counted.

        Points deleted by retention are included.
        """
        counts = await select(
            self._database,
            "SELECT name, points FROM metric_counts WHERE session_id = ? ORDER BY name",
            (session_id,),
            lambda row: (self._database.dialect.text_of(row[0]), row[1]),
        )
        return dict(counts)

    async def counted_metrics(self, session_id: str) -> Mapping[str, MetricCount]:
        """Like metric_counts, with their origins."""
        counts = await select(
            self._database,
            "SELECT name, points, origin FROM metric_counts WHERE session_id = ? ORDER BY name",
            (session_id,),
            lambda row: (self._database.dialect.text_of(row[0]), MetricCount(*row[1:])),
        )
        return dict(counts)

    async def let_go_at(self, session_id: str) -> float:
        """When retention last deleted points of a session (Unix seconds); 0: never."""
        at = await select_one(
            self._database,
            "SELECT let_go_at FROM series_folds WHERE session_id = ?",
            (session_id,),
            lambda row: float(row[0]),
        )
        return at or 0.0

    def changed(self, *names: str) -> AbstractContextManager[Change]:
        """Subscribe to commits to these sessions' streams or records, or to other things by their keys.

        Enter it before the first read: then nothing is missed between a read and `Change.wait`.
        """
        return self._database.changes.follow(*names)

    def touched(self) -> AbstractContextManager[Touched]:
        """Subscribe to commits to any session's streams or record; `take` empties it.

        Names of other things committed to may be among them.
        """
        return self._database.changes.follow_all()


def _steps() -> Iterator[int]:
    yield from _BODIES_A_STEP
    while True:
        yield _BODIES_A_STEP[-1]


class _MetricPage:
    """Builds a page of points, chunk by chunk in commit order."""

    def __init__(
        self, connection: Connection, dialect: Dialect, session_id: str, after: int
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._streams: dict[int, tuple[int, int]] = {
            stream_id: (attempt, rank)
            for stream_id, attempt, rank in connection.execute(
                "SELECT id, attempt, rank FROM streams WHERE session_id = ? AND channel = ?",
                (session_id, int(Channel.METRIC)),
            )
        }
        self._after = after
        self._points: list[Point] = []
        self._missing = self._unreadable = self._size = 0
        self._let_go_at = 0.0

    def read(self, names: NameFilter, limit: int) -> MetricPage:
        """Read whole chunks until there are `limit` points."""
        for stream_id, first, last, received_at, body in self._rows():
            if body is None:
                self._missing += last - first + 1
            elif body == LET_GO:
                self._let_go_at = max(received_at, self._let_go_at)
            else:
                self._take(self._streams[stream_id], content(body), names)
            if len(self._points) >= limit or self._size >= _PAGE_BYTES:
                break
        return MetricPage(
            points=tuple(self._points),
            next=self._after,
            is_end=not self._next(1),
            missing=self._missing,
            unreadable=self._unreadable,
            let_go_at=self._let_go_at,
        )

    def _take(self, whose: tuple[int, int], whole: bytes, names: NameFilter) -> None:
        attempt, rank = whose
        self._size += len(whole)
        for record in split(whole):
            try:
                report = report_of(record)
            except ValueError:
                self._unreadable += 1
                continue
            if report is None:
                self._missing += dropped_in(record)
            else:
                self._points.extend(points_of(report, names, attempt=attempt, rank=rank))

    def _rows(self) -> Iterator[tuple[int, int, int, float, bytes | None]]:
        """Yield the rows after the mark, advancing it."""
        steps = _steps()
        while ids := self._next(_IDS_A_STEP):
            at = 0
            while at < len(ids):
                step = next(steps)
                rows = self._connection.execute(
                    "SELECT id, stream_id, first, last, received_at, body FROM chunks"
                    f" WHERE {self._dialect.among('id', 'ids')} ORDER BY id",
                    {"ids": self._dialect.many(ids[at : at + step])},
                ).fetchall()
                at += step
                for row_id, *row in rows:
                    self._after = row_id
                    yield row[0], row[1], row[2], row[3], row[4]

    def _next(self, limit: int) -> list[int]:
        return self._dialect.next_chunks(self._connection, self._streams, self._after, limit)


def _summary(attempt: int, time: float, step: float | None, report: str) -> Summary:
    return Summary(time=time, step=step, attempt=attempt, values=_plain(json.loads(report)))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: number_or_value(value) for name, value in values.items()}
