"""Series: folded from committed chunks of metrics, and read. See history.downsampling."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import Counter
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from controlplane.domain.errors import InvalidRequest
from controlplane.history.downsampling import (
    FIRST,
    Levels,
    Row,
    columns_in,
    columns_of,
    encode_row,
    extent_of,
    levels_of,
    together,
)
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.range_read import RangeReader, Span
from controlplane.history.records import NameFilter, numbers_in
from controlplane.history.sql.bodies import LET_GO, content, split
from controlplane.history.sql.queries import select
from controlplane.history.sql.retention import thin, to_thin
from controlplane.history.values import (
    Channel,
    Extreme,
    SeriesExtent,
    SeriesPage,
    SeriesQuery,
    SeriesView,
)
from nsml.spec.attempt_points import superseded_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.history.downsampling import Bucket, Columns
    from controlplane.history.range_read import NumberedBucket
    from controlplane.history.records import ReportedNumber
    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.values import Ages
    from nsml.common.clock import Clock

MAX_SERIES: Final = 50_000
"""Most series per session: names by ranks by attempts."""
SERIES_A_NAME: Final = 5
"""The limit of series, as a multiple of the limit of counted names."""
MAX_SERIES_READ: Final = 1_000
"""Most series of one session in one answer."""
MOST_WIDTH: Final = 10_000
TURN_BYTES: Final = 128 << 10
"""Stored bytes of chunks folded in one turn: some milliseconds' work. See `_weight`."""
MOST_TURN_BYTES: Final = 512 << 10
"""The same for a session with very many series: each turn rewrites their open parts."""
UNFOLDED_BYTES: Final = 2 << 20
"""Stored bytes of chunks that a read uses unfolded if it cannot fold them."""
POINTS_BYTES: Final = 2 << 20
"""Stored bytes of chunks from which a read takes points: beyond that it returns buckets."""
FOLD_BYTES: Final = 16 << 10
"""Stored bytes worth a turn, which a read folds first: each turn rewrites the open parts of its series."""
FOLD_SERIES_BYTES: Final = 64
"""Added to FOLD_BYTES for each series of the session."""
FOLD_AFTER_S: Final = 300.0
"""Fewer bytes are folded after this many seconds."""
MOST_COLUMNS: Final = 50_000
"""Columns of one session in one answer, at most twice as many: with many series each gets fewer."""
_USUAL_RATIO: Final = 16
"""Chunks with a higher compression ratio are weighed by their unpacked size."""
_ROWS_A_STEP: Final = 16
_IDS_A_STEP: Final = 64
_SERIES_A_STEP: Final = 200


_NONE: Final = Extreme(math.nan, 0.0, 0.0)
NO_EXTENT: Final = SeriesExtent(low=_NONE, high=_NONE, last=_NONE)
"""Of a series without finite values."""


class Key(NamedTuple):
    """A series within its session; sorts in the order of answers."""

    name: str
    rank: int
    attempt: int


class SqlSeries:
    """Metric values as series with coarser levels: fast to read at any length.

    A series has the values reported by one replica of one attempt under one name. Its levels are
    *folded* from committed chunks; values not folded yet are read from the chunks.
    """

    def __init__(self, database: Database, clock: Clock, *, most: int | None = None) -> None:
        self._most = most
        self._database = database
        self._clock = clock
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, session_id: str, query: SeriesQuery) -> SeriesPage:
        """Read a range of each selected series, complete as of now.

        Unfolded chunks worth a turn are folded first, so that only the first reader waits for it. If that cannot be
        stored, they are read unfolded, up to a bound; beyond it HistoryUnavailable is raised.

        Columns come from the coarsest level with the requested width, the ends of the range from finer
        ones. A bucket is whole in one column: a range that cuts more than a few buckets (steps that go
        back and forth) includes outside points that share a bucket with points inside.
        """
        _check(query)
        names, dialect = NameFilter(query.names), self._database.dialect

        async def answer(most: int | None = None) -> SeriesPage | None:
            return await self._database.read(
                lambda connection: _Reading(
                    _Session(connection, dialect, session_id, self._most), query, names
                ).run(most)
            )

        if (page := await answer()) is not None:
            return page
        refused: HistoryUnavailable | None = None
        try:
            # Concurrent reads fold only once.
            async with self._turn_of(session_id):
                while (page := await answer()) is None and (await self._turn(session_id)).is_full:
                    pass
        except HistoryUnavailable as error:  # a full disk can still be read
            refused = error
        while page is None and (page := await answer(UNFOLDED_BYTES)) is None:
            if refused is not None:
                raise refused
            await self.fold(session_id)
        return page

    async def extents(
        self, session_ids: Collection[str], name: str
    ) -> Mapping[str, SeriesExtent | None]:
        """Return the values of one metric of many sessions; sessions that never reported it are left out.

        Of the lowest rank that reported it. None: `read` has to tell, since the session has reports that are not
        folded yet, or several attempts with this metric.
        """
        dialect = self._database.dialect

        def work(connection: Connection) -> dict[str, SeriesExtent | None]:
            ids = dialect.many(sorted(session_ids))
            of_ids = dialect.among("session_id", "ids")
            rows = connection.execute(
                f"SELECT session_id FROM series_folds WHERE waiting > 0 AND {of_ids}", {"ids": ids}
            )
            found: dict[str, SeriesExtent | None] = {row[0]: None for row in rows}
            best: dict[str, tuple[int, int, int]] = {}
            rows = connection.execute(
                f"SELECT session_id, rank, attempt, id FROM series WHERE name = :name AND {of_ids}",
                {"ids": ids, "name": dialect.any_text(name)},
            )
            for session_id, rank, attempt, series_id in rows:
                if session_id in found:
                    continue
                known = best.get(session_id)
                if known is None or rank < known[0]:
                    best[session_id] = rank, attempt, series_id
                elif rank == known[0]:
                    best[session_id] = rank, 0, series_id
            folded = {series_id: one for one, (_, attempt, series_id) in best.items() if attempt}
            found |= dict.fromkeys(best)
            for series_id, levels in _Session(connection, dialect, "").levels(sorted(folded)):
                found[folded[series_id]] = extent_of(levels) or NO_EXTENT
            return found

        return await self._database.read(work)

    async def fold(self, session_id: str) -> bool:
        """Fold some more chunks; False when there was nothing (left) to do.

        Of concurrent calls only one takes effect.
        """
        async with self._turn_of(session_id):
            return (await self._turn(session_id)).is_more

    def _turn_of(self, session_id: str) -> asyncio.Lock:
        """Held while a session is folded here: a concurrent turn would be wasted."""
        return self._turns.setdefault(session_id, asyncio.Lock())

    async def _turn(self, session_id: str) -> _Turned:
        dialect = self._database.dialect
        turn = await self._database.read(
            lambda connection: _Turn(_Session(connection, dialect, session_id, self._most)).made()
        )
        if turn is None:
            return _Turned(is_full=False, is_more=False)
        now = self._clock.time()
        is_more = await self._database.write(
            lambda connection: _store(
                _Session(connection, dialect, session_id, self._most), turn, now
            ),
            touches={session_id},
        )
        return _Turned(turn.is_full, is_more)

    async def unfolded(self, *, limit: int = 16) -> tuple[str, ...]:
        """List sessions with many unfolded bytes, or with old ones, longest waiting first."""
        return await select(
            self._database,
            "SELECT session_id FROM series_folds WHERE waiting > 0"
            " AND (waiting >= ? + ? * series OR since <= ?) ORDER BY since LIMIT ?",
            (FOLD_BYTES, FOLD_SERIES_BYTES, self._clock.time() - FOLD_AFTER_S, limit),
            itemgetter(0),
        )

    async def to_thin(self, ages: Ages, *, limit: int = 16) -> tuple[str, ...]:
        """List ended sessions due for `thin`, earliest end first."""
        return await self._database.read(partial(to_thin, ages, limit))

    async def thin(self, session_id: str, ages: Ages) -> bool:
        """Delete some more of an ended session's reports; False when there was nothing (left) to do.

        At the first age its points, once all are folded: levels, counts and the summary stay, and values
        that are not numbers are lost. At the second age, when no points are left, levels finer than a chart
        of the whole needs; short series keep all of theirs. Each call is one transaction of bounded size;
        concurrent and repeated calls are harmless. Late data is stored, folded, and deleted next time.
        """
        return await self._database.write(
            partial(thin, session_id, ages, self._clock.time()), touches={session_id}
        )


def _check(query: SeriesQuery) -> None:
    if not 1 <= query.width <= MOST_WIDTH:
        raise InvalidRequest(
            f"a width of {query.width} columns", attempt=f"from 1 to {MOST_WIDTH:,}"
        )
    if not query.low <= query.high:  # NaN neither
        raise InvalidRequest(
            f"a range from {query.low} to {query.high}", attempt="the smaller end first"
        )


class _Turned(NamedTuple):
    """The result of a turn."""

    is_full: bool
    """Whether there may have been more than it took when it began."""
    is_more: bool
    """Whether more was left when it ended."""


_Chunks: TypeAlias = "list[tuple[int, list[ReportedNumber]]]"
"""The numbers of one series by chunk."""


class _Fold(NamedTuple):
    """How far a session is folded; the defaults hold before the first turn."""

    last: int = 0
    """The last folded chunk."""
    waiting: int = 1
    """Bytes of chunks after it, about; 0: none."""
    series: int = 0
    left_out: int = 0
    """Points without a series."""
    dropped: int = 0
    """Reports lost by programs."""
    let_go_at: float = 0.0
    """When points were deleted by retention; 0: never."""


class _Session:
    """The tables' rows of one session's series."""

    def __init__(
        self, connection: Connection, dialect: Dialect, session_id: str, most: int | None = None
    ) -> None:
        self.most = most or MAX_SERIES
        self.connection = connection
        self.dialect = dialect
        self.id = session_id

    def folded(self, *, is_to_change: bool = False) -> _Fold:
        """How far it is folded."""
        lock = self.dialect.for_update if is_to_change else ""
        row = self.connection.execute(
            "SELECT folded, waiting, series, left_out, dropped, let_go_at FROM series_folds"
            f" WHERE session_id = ?{lock}",
            (self.id,),
        ).fetchone()
        return _Fold() if row is None else _Fold(*row)

    def lost(self, streams: Collection[int]) -> int:
        """Count the reports lost by its nodes."""
        row = self.connection.execute(
            "SELECT sum(last - first + 1) FROM chunks WHERE body IS NULL"
            f" AND {self.dialect.among('stream_id', 'ids')}",
            {"ids": self.dialect.many(streams)},
        ).fetchone()
        return int(row[0] or 0)

    def streams(self) -> dict[int, tuple[int, int]]:
        """Rank and attempt of each stream of metrics."""
        return {
            stream_id: (rank, attempt)
            for stream_id, rank, attempt in self.connection.execute(
                "SELECT id, rank, attempt FROM streams WHERE session_id = ? AND channel = ?",
                (self.id, int(Channel.METRIC)),
            )
        }

    def chunks(
        self, streams: Collection[int], after: int
    ) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield id, stream and body of the chunks after one, in commit order; fetched a few at a time.

        Gaps and rows deleted by retention have no body.
        """
        dialect = self.dialect
        while ids := dialect.next_chunks(self.connection, streams, after, _IDS_A_STEP):
            for at in range(0, len(ids), _ROWS_A_STEP):
                rows = self.connection.execute(
                    "SELECT id, stream_id, body FROM chunks"
                    f" WHERE {dialect.among('id', 'ids')} ORDER BY id",
                    {"ids": dialect.many(ids[at : at + _ROWS_A_STEP])},
                ).fetchall()
                for chunk, stream_id, body in rows:
                    yield chunk, stream_id, None if body == LET_GO else body
            after = ids[-1]

    def body_of(self, chunk: int) -> bytes | None:
        """The body of a chunk; None if deleted by retention."""
        row = self.connection.execute("SELECT body FROM chunks WHERE id = ?", (chunk,)).fetchone()
        return None if row is None or row[0] == LET_GO else row[0]

    def counted(self, names: Collection[str]) -> set[str]:
        """Return the names counted for the session: others have no series."""
        statement = "SELECT name FROM metric_counts WHERE session_id = :session_id"
        rows = self.dialect.rows_named(self.connection, statement, self.id, names)
        return {self.dialect.text_of(row[0]) for row in rows}

    def series(self, names: Collection[str] | None = None) -> dict[Key, int]:
        """The ids of its series with these names, or of all."""
        statement = "SELECT name, rank, attempt, id FROM series WHERE session_id = :session_id"
        rows = (
            self.connection.execute(statement, {"session_id": self.id})
            if names is None
            else self.dialect.rows_named(self.connection, statement, self.id, names)
        )
        return {
            Key(self.dialect.text_of(name), rank, attempt): series_id
            for name, rank, attempt, series_id in rows
        }

    def finest(self, series: Collection[int]) -> dict[int, int]:
        """The finest level kept of each series."""
        rows = self.connection.execute(
            f"SELECT id, finest FROM series WHERE {self.dialect.among('id', 'ids')}",
            {"ids": self.dialect.many(series)},
        )
        return dict(iter(rows))

    def levels(self, series: Sequence[int]) -> Iterator[tuple[int, Levels]]:
        """The open parts of series."""
        for at in range(0, len(series), _SERIES_A_STEP):
            rows = self.connection.execute(
                "SELECT series_id, body FROM series_rows WHERE level = 0 AND number = 0"
                f" AND {self.dialect.among('series_id', 'ids')}",
                {"ids": self.dialect.many(series[at : at + _SERIES_A_STEP])},
            )
            for series_id, body in rows:
                yield series_id, levels_of(body)

    def rows(self, series_id: int, level: int, numbers: Sequence[int]) -> dict[int, Columns]:
        """Sealed rows."""
        if isinstance(numbers, range):
            rows = self.connection.execute(
                "SELECT number, body FROM series_rows"
                " WHERE series_id = ? AND level = ? AND number >= ? AND number < ?",
                (series_id, level, numbers.start, numbers.stop),
            )
        else:
            rows = self.connection.execute(
                "SELECT number, body FROM series_rows WHERE series_id = :id AND level = :level"
                f" AND {self.dialect.among('number', 'numbers')}",
                {"id": series_id, "level": level, "numbers": self.dialect.many(numbers)},
            )
        return {number: columns_in(body) for number, body in rows}


def _weight(body: bytes, plain: bytes) -> int:
    """Weigh a chunk by its stored size, and at least by a part of its unpacked size, which is in memory."""
    return max(len(body), len(plain) // _USUAL_RATIO)


def _gathered(
    into: dict[Key, _Chunks],
    whose: tuple[int, int],
    chunk: int,
    found: Mapping[str, list[ReportedNumber]],
) -> None:
    """Add a chunk's points to those of their series."""
    for name, points in found.items():
        into.setdefault(Key(name, *whose), []).append((chunk, points))


def _added(levels: Levels, chunks: _Chunks) -> list[Row]:
    return [row for chunk, points in chunks for row in levels.add(chunk, points)]


class _Folded(NamedTuple):
    """The result of one turn, to be stored unless another turn came first."""

    before: int
    """The last folded chunk when the turn began."""
    last: int
    size: int
    is_full: bool
    """Whether the turn reached its limit."""
    left_out: int
    dropped: int
    series: list[tuple[Key, int | None, bytes, list[tuple[int, int, bytes]]]]
    """Per series its id, if it has one yet, its open part and its new rows."""


class _Turn:
    """Folds some chunks of one session."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def made(self) -> _Folded | None:
        """Fold; None if there is nothing to fold."""
        streams = self._session.streams()
        if not streams:
            return None
        fold = self._session.folded()
        most = max(TURN_BYTES, min(FOLD_SERIES_BYTES * fold.series, MOST_TURN_BYTES))
        last, size, weight, dropped, left_out = fold.last, 0, 0, 0, 0
        taken: dict[Key, _Chunks] = {}
        for chunk, stream_id, body in self._session.chunks(streams, fold.last):
            last = chunk
            if body is not None:
                plain = content(body)
                size += len(body)
                weight += _weight(body, plain)
                numbers = numbers_in(split(plain))
                dropped += numbers.dropped
                left_out += numbers.left_out
                _gathered(taken, streams[stream_id], chunk, numbers.by_name)
            if weight >= most:
                break
        if last == fold.last and not fold.waiting:
            return None
        ids = self._session.series({key.name for key in taken}) if taken else {}
        left_out += _leave_out(self._session, taken, ids, self._session.most - fold.series)
        made = list(self._folded(taken, ids))
        return _Folded(fold.last, last, size, weight >= most, left_out, dropped, made)

    def _folded(
        self,
        taken: dict[Key, _Chunks],
        ids: Mapping[Key, int],
    ) -> Iterator[tuple[Key, int | None, bytes, list[tuple[int, int, bytes]]]]:
        """In steps: the open parts of many series are large before they are encoded."""
        keys = sorted(taken)
        for at in range(0, len(keys), _SERIES_A_STEP):
            step = keys[at : at + _SERIES_A_STEP]
            open_parts = dict(self._session.levels([ids[key] for key in step if key in ids]))
            for key in step:
                series_id = ids.get(key)
                levels = Levels() if series_id is None else open_parts[series_id]
                rows = [
                    (row.level, row.number, encode_row(row))
                    for row in _added(levels, taken.pop(key))
                ]
                yield key, series_id, levels.encoded(), rows


def _leave_out(
    session: _Session,
    taken: dict[Key, _Chunks],
    known: Collection[Key],
    room: int,
) -> int:
    """Remove the points that may not have a series; return how many."""
    new = [key for key in taken if key not in known]
    if not new:
        return 0
    counted = session.counted({key.name for key in new})
    left_out = 0
    for key in new:
        if key.name in counted and room > 0:
            room -= 1
        else:
            left_out += sum(len(points) for _, points in taken.pop(key))
    return left_out


def _store(session: _Session, turn: _Folded, now: float) -> bool:
    """Store a turn's result, unless it is outdated; return whether there is more to fold."""
    connection = session.connection
    streams = session.streams()
    if not streams:  # removed meanwhile
        return False
    fold = session.folded(is_to_change=True)
    if fold.last != turn.before:
        return True
    new = [key for key, series_id, *_ in turn.series if series_id is None]
    connection.executemany(
        "INSERT INTO series (session_id, attempt, rank, name) VALUES (?, ?, ?, ?)",
        [(session.id, key.attempt, key.rank, session.dialect.any_text(key.name)) for key in new],
    )
    ids = session.series({key.name for key in new}) if new else {}
    rows: list[tuple[int, int, int, bytes]] = []
    for key, series_id, open_part, sealed in turn.series:
        place = ids[key] if series_id is None else series_id
        rows.append((place, 0, 0, open_part))
        rows += [(place, *row) for row in sealed]
    connection.executemany(
        "INSERT INTO series_rows (series_id, level, number, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (series_id, level, number) DO UPDATE SET body = excluded.body",
        rows,
    )
    is_more = bool(session.dialect.next_chunks(connection, streams, turn.last, 1))
    waits = max(fold.waiting - turn.size, 1) if is_more else 0
    connection.execute(
        "INSERT INTO series_folds (session_id, folded, waiting, since, series, left_out, dropped)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET"
        " folded = excluded.folded, waiting = excluded.waiting, since = excluded.since,"
        " series = series_folds.series + excluded.series,"
        " left_out = series_folds.left_out + excluded.left_out,"
        " dropped = series_folds.dropped + excluded.dropped",
        (session.id, turn.last, waits, now, len(new), turn.left_out, turn.dropped),
    )
    return is_more


def _first_lines(keys: list[Key]) -> tuple[int, list[Key]]:
    """Return how many series do not fit in one answer, and the others: all attempts of a line, or none."""
    end = min(MAX_SERIES_READ, len(keys))
    while 0 < end < len(keys) and keys[end][:2] == keys[end - 1][:2]:
        end += 1
    return len(keys) - end, keys[:end]


class _Given(NamedTuple):
    """A series as read: its open part with unfolded points, its id, the finest level kept."""

    levels: Levels
    series_id: int | None
    finest: int


class _Counting(NamedTuple):
    """The step from which points of a series are superseded, and the offset of the numbers of points without a step."""

    below: float
    offset: float


_ALL_COUNT: Final = _Counting(math.inf, 0.0)


class _Reading:
    """Builds one answer."""

    def __init__(self, session: _Session, query: SeriesQuery, names: NameFilter) -> None:
        self._session = session
        self._query = query
        self._names = names
        self._streams = session.streams()
        self._fresh: dict[Key, dict[tuple[int, int], Columns]] = {}
        """Rows sealed by points not folded yet."""
        self._dropped = 0
        self._left_out = 0

    def run(self, most: int | None) -> SeriesPage | None:
        """Return the answer, or None if over `most` bytes are unfolded; `most` None: the bytes worth a turn."""
        fold = self._session.folded()
        if most is None:
            most = min(FOLD_BYTES + FOLD_SERIES_BYTES * fold.series, MOST_TURN_BYTES)
        tail = self._tail(fold.last, most)
        if tail is None:
            return None
        known = self._session.series()
        left_out = fold.left_out + self._left_out
        left_out += _leave_out(self._session, tail, known, self._session.most - fold.series)
        more, keys = _first_lines(
            sorted(key for key in known.keys() | tail.keys() if self._is_wanted(key))
        )
        beside = self._beside(keys, known.keys() | tail.keys()) if self._query.supersedes else ()
        every = sorted([*keys, *beside])
        ids = {key: known[key] for key in every if key in known}
        levels = self._levels(every, ids, tail)
        finest = self._session.finest(ids.values()) if fold.let_go_at else {}
        given = {
            key: _Given(levels[key], ids.get(key), finest.get(ids.get(key, 0), 1)) for key in every
        }
        starts: dict[tuple[str, int], float] = {}
        for key in keys:  # the first attempt comes first
            starts.setdefault((key.name, key.rank), levels[key].start)
        counting = self._counting(given) if self._query.supersedes else {}
        width = max(min(self._query.width, MOST_COLUMNS // max(len(keys), 1)), 1)
        looks = {}
        for key in keys:
            start = starts[key.name, key.rank]
            looks[key] = self._look(key, given[key], counting.get(key, _ALL_COUNT), start, width)
        if fold.let_go_at:
            # The remaining points of a bucket may be incomplete.
            for look in looks.values():
                look.serve({})
        else:
            self._serve(looks)
        return SeriesPage(
            series=tuple(
                SeriesView(
                    name=key.name,
                    attempt=key.attempt,
                    rank=key.rank,
                    start=starts[key.name, key.rank],
                    grain=look.grain,
                    columns=look.columns(),
                )
                for key, look in looks.items()
            ),
            left_out=left_out,
            more=more,
            lost=self._session.lost(self._streams) + fold.dropped + self._dropped,
            let_go_at=fold.let_go_at,
        )

    def _look(
        self, key: Key, given: _Given, counting: _Counting, start: float, width: int
    ) -> RangeReader:
        """The parts of one series in the range, settled."""
        query = self._query
        span = Span(
            axis=query.axis,
            low=query.low,
            high=query.high,
            start=start,
            below=counting.below,
            offset=counting.offset,
        )
        load = partial(self._rows, key, given.series_id)
        look = RangeReader(given.levels, span, width, load, finest=given.finest)
        look.settle()
        return look

    @staticmethod
    def _beside(keys: Sequence[Key], known: Iterable[Key]) -> list[Key]:
        """Series of other replicas: their first steps also decide what an attempt supersedes."""
        names, wanted = {key.name for key in keys}, {*keys}
        return [key for key in known if key.name in names and key not in wanted]

    def _counting(self, given: Mapping[Key, _Given]) -> dict[Key, _Counting]:
        """Decide which points count if several attempts reported a metric: see nsml/spec/attempt_points.py."""
        found: dict[Key, _Counting] = {}
        for _, of_name in groupby(given, key=itemgetter(0)):
            keys = list(of_name)
            if len({key.attempt for key in keys}) == 1:
                continue
            firsts = {key: self._first_step(key, given[key]) for key in keys}
            first_steps: dict[int, float] = {}
            for key, step in firsts.items():
                if step is not None:
                    first_steps[key.attempt] = min(step, first_steps.get(key.attempt, math.inf))
            before: Counter[int] = Counter()
            for key, step in firsts.items():
                if step is None:
                    found[key] = _Counting(math.inf, float(before[key.rank]))
                else:
                    found[key] = _Counting(superseded_from(first_steps, key.attempt), 0.0)
                before[key.rank] += given[key].levels.count
        return found

    def _first_step(self, key: Key, given: _Given) -> float | None:
        """The step of the first point of a series; None: it has none.

        Deleted points count as having one, equal to their number: it is unknown whether they had.
        """
        levels = given.levels
        at = given.finest - 1
        if at < len(levels.sealed) and levels.sealed[at]:
            columns = self._rows(key, given.series_id, given.finest, [0])[0]
            first = columns.buckets()[0]
        elif at < levels.depth and levels.open[at]:
            first = levels.open[at][0]
        elif levels.filling:
            first = together(levels.filling[:1])
        else:
            return None
        if first.x_low:
            return first.x_low
        body = self._session.body_of(int(first.chunk_low))
        points = (
            numbers_in(split(content(body)), {key.name}).by_name.get(key.name) if body else None
        )
        return None if points and points[int(first.place)][0] is None else 0.0

    def _is_wanted(self, key: Key) -> bool:
        query = self._query
        return (
            self._names.takes(key.name)
            and (not query.ranks or key.rank in query.ranks)
            and (not query.attempts or key.attempt in query.attempts)
        )

    def _tail(self, folded: int, most: int) -> dict[Key, _Chunks] | None:
        """Return the unfolded points; None if there are too many."""
        chunks: list[tuple[int, int, bytes]] = []
        weight = 0
        for chunk, stream_id, body in self._session.chunks(self._streams, folded):
            if body is None:
                continue
            plain = content(body)
            weight += _weight(body, plain)
            if weight > most:
                return None
            chunks.append((chunk, stream_id, plain))
        tail: dict[Key, _Chunks] = {}
        for chunk, stream_id, plain in chunks:
            numbers = numbers_in(split(plain))
            self._dropped += numbers.dropped
            self._left_out += numbers.left_out
            _gathered(tail, self._streams[stream_id], chunk, numbers.by_name)
        return tail

    def _levels(
        self,
        keys: Sequence[Key],
        ids: Mapping[Key, int],
        tail: Mapping[Key, _Chunks],
    ) -> dict[Key, Levels]:
        open_parts = dict(self._session.levels([ids[key] for key in keys if key in ids]))
        levels = {}
        for key in keys:
            levels[key] = open_parts[ids[key]] if key in ids else Levels()
            rows = _added(levels[key], tail.get(key, []))
            self._fresh[key] = {(row.level, row.number): columns_of(row.buckets) for row in rows}
        return levels

    def _rows(
        self, key: Key, series_id: int | None, level: int, numbers: Sequence[int]
    ) -> dict[int, Columns]:
        fresh = self._fresh[key]
        rows = {number: fresh[level, number] for number in numbers if (level, number) in fresh}
        lacking = [number for number in numbers if number not in rows] if rows else numbers
        if lacking and series_id is not None:
            rows |= self._session.rows(series_id, level, lacking)
        return rows

    def _serve(self, looks: Mapping[Key, RangeReader]) -> None:
        """Read the points of the buckets wanted by readers, each chunk once for all series."""
        wants: dict[tuple[int, int], dict[Key, list[NumberedBucket]]] = {}
        for key, look in looks.items():
            if look.wanted:
                wants.setdefault((key.rank, key.attempt), {})[key] = look.wanted
        room = POINTS_BYTES
        for whose, wanted in wants.items():
            streams = [stream for stream, other in self._streams.items() if other == whose]
            names = {key.name for key in wanted}
            found: dict[str, dict[int, list[ReportedNumber]]] = {}
            read: list[tuple[int, int]] = []
            for low, high in _ranges(wanted.values()):
                for chunk, body in self._chunks_between(streams, low, high):
                    plain = content(body)
                    room -= _weight(body, plain)
                    for name, points in numbers_in(split(plain), names).by_name.items():
                        found.setdefault(name, {})[chunk] = points
                    if room <= 0:
                        high = min(chunk, high) if len(streams) == 1 else low - 1  # noqa: PLW2901
                        break
                read.append((low, high))
                if room <= 0:
                    break
            for key, parts in wanted.items():
                chunks = sorted(found.get(key.name, {}).items())
                served = ((part.number, _points_of(part.bucket, chunks, read)) for part in parts)
                looks[key].serve({number: points for number, points in served if points})

    def _chunks_between(
        self, streams: Sequence[int], low: int, high: int
    ) -> Iterator[tuple[int, bytes]]:
        for stream in streams:
            after = low - 1
            while True:
                rows = self._session.connection.execute(
                    "SELECT id, body FROM chunks WHERE stream_id = ? AND id > ? AND id <= ?"
                    " ORDER BY id LIMIT ?",
                    (stream, after, high, _ROWS_A_STEP),
                ).fetchall()
                yield from ((chunk, body) for chunk, body in rows if body is not None)
                if len(rows) < _ROWS_A_STEP:
                    break
                after = rows[-1][0]


def _ranges(wanted: Iterable[Sequence[NumberedBucket]]) -> list[tuple[int, int]]:
    """Return the chunks of buckets, as ranges of ids that do not overlap."""
    ranges: list[tuple[int, int]] = []
    for parts in wanted:
        before = -1
        for part in parts:
            low, high = int(part.bucket.chunk_low), int(part.bucket.chunk_high)
            if part.number == before + 1 and ranges:  # nothing of this series is in between
                ranges[-1] = ranges[-1][0], high
            else:
                ranges.append((low, high))
            before = part.number
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _points_of(
    bucket: Bucket,
    chunks: Sequence[tuple[int, Sequence[ReportedNumber]]],
    read: Iterable[tuple[int, int]],
) -> list[ReportedNumber] | None:
    """Return the points of a bucket from the chunks read; None if incomplete."""
    low, high = int(bucket.chunk_low), int(bucket.chunk_high)
    if not any(first <= low and high <= last for first, last in read):
        return None
    points: list[ReportedNumber] = []
    for at in range(bisect_left(chunks, low, key=itemgetter(0)), len(chunks)):
        chunk, some = chunks[at]
        points += some[int(bucket.place) :] if chunk == low else some
        if len(points) >= FIRST:
            return points[:FIRST]
    return None
