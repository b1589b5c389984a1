"""The coarser levels of one series: buckets of its points, made once and never changed. Pure.

A bucket of level 1 holds FIRST points in commit order, one of each further level FACTOR buckets of
the level before. A full row of ROW buckets is *sealed*: it is stored for good. Buckets without a
full row are the series' *open* part, with the points of the bucket being filled. Both depend only on
the points and their order, not on the number of turns.
"""

from __future__ import annotations

import math
import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.history.values import Extreme, SeriesExtent
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from controlplane.history.records import ReportedNumber

FIRST: Final = 16
"""Points per bucket of level 1."""
FACTOR: Final = 8
"""Buckets of one level per bucket of the next."""
ROW: Final = 32
"""Buckets per sealed row: whole buckets of the next level."""
SPARSE_CHUNKS: Final = 4
"""A bucket with points from at least this many chunks stores its points: reading them from their
chunks would cost more."""
_VERSION: Final = 1.0
_MAX_BYTES: Final = 1 << 20
_MAX_LEVELS: Final = 24
_NOTHING: Final = math.nan


Dot: TypeAlias = tuple[float, float, float, float, float]
"""One point: x, time, value, its chunk, and its number among the chunk's points of the series."""


class Bucket(NamedTuple):
    """Aggregated points of a series. Without finite values `low` > `high`, and `last` is NaN.

    Counts of `finite` values and of `odd` ones (NaN and infinite); `low`, `high`, `total` and `last` are of the
    finite ones. On level 1 the points begin at number `place` of the series in chunk `chunk_low`, or are
    in `dots`.
    """

    finite: float
    odd: float
    low: float
    high: float
    total: float
    last: float
    x_low: float
    x_high: float
    time_low: float
    time_high: float
    chunk_low: float = 0.0
    chunk_high: float = 0.0
    place: float = 0.0
    dots: tuple[tuple[float, float, float], ...] = ()
    """x, time and value of each point, if stored."""

    @property
    def points(self) -> float:
        """Number of points."""
        return self.finite + self.odd


class Columns(NamedTuple):
    """Buckets by column: each of `values` has one field of all buckets, in the order of Bucket's fields.

    Reads use few fields of many buckets, so no Bucket is created. `dots`: stored points, by the index
    of their bucket.
    """

    values: Sequence[array[float]]
    dots: Mapping[int, tuple[tuple[float, float, float], ...]]

    def buckets(self) -> list[Bucket]:
        """Convert to buckets."""
        rows = enumerate(zip(*self.values, strict=True))
        return [Bucket._make((*row, self.dots.get(at, ()))) for at, row in rows]


def columns_of(buckets: Sequence[Bucket]) -> Columns:
    """Convert buckets to columns."""
    if not buckets:
        return Columns([array("d") for _ in range(COLUMNS)], {})
    *values, _ = zip(*buckets, strict=True)
    dots = {at: bucket.dots for at, bucket in enumerate(buckets) if bucket.dots}
    return Columns([array("d", column) for column in values], dots)


COLUMNS: Final = 13
_KEPT: Final = -1.0
"""The stored `place` of a bucket that stores its points."""


def size_of(level: int) -> int:
    """Points per bucket; level 0 is the points themselves."""
    return 1 if level == 0 else FIRST * FACTOR ** (level - 1)


def single(x: float, time: float, value: float) -> Bucket:
    """Make a bucket of one point."""
    if math.isfinite(value):
        return Bucket(1.0, 0.0, value, value, value, value, x, x, time, time)
    return Bucket(0.0, 1.0, math.inf, -math.inf, 0.0, _NOTHING, x, x, time, time)


def together(dots: Sequence[Dot]) -> Bucket:
    """Make a bucket of points, in their order."""
    xs, times, values, chunks, places = zip(*dots, strict=True)
    chunk_low, chunk_high = min(chunks), max(chunks)
    whole = _bucket(xs, times, values, (chunk_low, chunk_high), places[0])
    if chunk_high - chunk_low < SPARSE_CHUNKS or len(set(chunks)) < SPARSE_CHUNKS:
        return whole
    return whole._replace(place=0.0, dots=tuple(zip(xs, times, values, strict=True)))


def _bucket(
    xs: Sequence[float],
    times: Sequence[float],
    values: Sequence[float],
    chunks: tuple[float, float],
    place: float,
) -> Bucket:
    """Make a bucket without stored points; `chunks`: the points' first and last chunk."""
    finite = values if _all_finite(values) else tuple(v for v in values if math.isfinite(v))
    return Bucket(
        float(len(finite)),
        float(len(values) - len(finite)),
        min(finite, default=math.inf),
        max(finite, default=-math.inf),
        total_of(finite),
        finite[-1] if finite else _NOTHING,
        min(xs),
        max(xs),
        min(times),
        max(times),
        *chunks,
        place,
    )


def merged(buckets: Sequence[Bucket]) -> Bucket:
    """Merge buckets, in their order."""
    if len(buckets) == 1:
        return Bucket(*buckets[0][:10])
    count, odd, low, high, total, last, x_low, x_high, time_low, time_high, *_ = zip(
        *buckets, strict=True
    )
    return Bucket(
        sum(count),
        sum(odd),
        min(low),
        max(high),
        total_of(total),
        next((one for one in reversed(last) if one == one), _NOTHING),  # noqa: PLR0124 - NaN
        min(x_low),
        max(x_high),
        min(time_low),
        max(time_high),
    )


def _all_finite(values: Sequence[float]) -> bool:
    total = sum(values)
    return total - total == 0


def total_of(values: Sequence[float]) -> float:
    """Exact sum, the same on every machine; infinite on overflow."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


class Row(NamedTuple):
    """A full row of buckets: `number` counts rows of its level from 0."""

    level: int
    number: int
    buckets: tuple[Bucket, ...]


class Levels:
    """The open part of one series, to which points are added.

    `count` points are in it and in the sealed rows; the first has the time `start`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.start = 0.0
        self.filling: list[Dot] = []
        self.sealed: list[int] = []
        """Number of sealed rows per level."""
        self._open: list[list[Bucket]] = []
        self._stored: list[Columns] | None = None
        """The open buckets as stored, until converted on demand: most reads need no buckets."""

    @property
    def open(self) -> list[list[Bucket]]:
        """The buckets without a full row, by level from 1."""
        if self._stored is not None:
            self._open, self._stored = [some.buckets() for some in self._stored], None
        return self._open

    @property
    def depth(self) -> int:
        """Number of levels."""
        return len(self.sealed)

    def columns(self, level: int) -> Columns:
        """The open buckets of a level."""
        if self._stored is not None:
            return self._stored[level - 1]
        return columns_of(self._open[level - 1])

    def add(self, chunk: int, points: Sequence[ReportedNumber]) -> list[Row]:
        """Add the points of a chunk, chunks in commit order; return the rows now full.

        The x of a point without one is its number in the series, from 0.
        """
        rows: list[Row] = []
        filling, number = self.filling, self.count
        if number == 0 and points:
            self.start = points[0][1]
        at, end = 0, len(points)
        while at < end:
            if not filling and end - at >= FIRST:
                # A whole bucket from one chunk, the usual case: no work per point.
                steps, times, values = zip(*points[at : at + FIRST], strict=True)
                xs = [float(n) if x is None else x for n, x in enumerate(steps, number)]
                self._push(0, _bucket(xs, times, values, (chunk, chunk), at), rows)
                at += FIRST
                number += FIRST
                continue
            x, time, value = points[at]
            filling.append((float(number) if x is None else x, time, value, chunk, at))
            at += 1
            number += 1
            if len(filling) == FIRST:
                self._push(0, together(filling), rows)
                filling.clear()
        self.count = number
        return rows

    def _push(self, at: int, bucket: Bucket, rows: list[Row]) -> None:
        if at == len(self.open):
            self.open.append([])
            self.sealed.append(0)
        level = self.open[at]
        level.append(bucket)
        if len(level) % FACTOR == 0:
            self._push(at + 1, merged(level[-FACTOR:]), rows)
        if len(level) == ROW:
            rows.append(Row(at + 1, self.sealed[at], tuple(level)))
            self.sealed[at] += 1
            level.clear()

    def rest(self, level: int) -> Iterator[tuple[int, int, Columns, int]]:
        """Yield finer buckets not yet in a bucket of `level` or above, in commit order, without `points`.

        Per finer level: its number, the number of its first open bucket, the open buckets, and the index
        of the first one to use.
        """
        for finer in range(min(level - 1, self.depth), 0, -1):
            some = self.columns(finer)
            count = len(some.values[0])
            yield finer, self.sealed[finer - 1] * ROW, some, count - count % FACTOR

    def points(self) -> Iterator[tuple[int, Bucket]]:
        """Yield the points of the bucket being filled, with their numbers in the series."""
        first = self.count - len(self.filling)
        for number, (x, time, value, *_) in enumerate(self.filling, first):
            yield number, single(x, time, value)

    def encoded(self) -> bytes:
        """Encode for storage."""
        head = [_VERSION, self.count, self.start, len(self.filling), len(self.open)]
        for sealed, buckets in zip(self.sealed, self.open, strict=True):
            head += [sealed, len(buckets)]
        values = array("d", head)
        for column in zip(*self.filling, strict=True):
            values.extend(column)
        for buckets in self.open:
            _put(values, buckets)
        return _packed(values)


def extent_of(levels: Levels) -> SeriesExtent | None:
    """Return the finite values of all points of a series; None: it has none.

    Only the open part is read: all points are in it, those of sealed rows in buckets of a higher level.
    """
    low = high = last = None
    columns = [columns_of([single(x, time, value) for x, time, value, *_ in levels.filling])]
    columns += [levels.columns(level) for level in range(1, levels.depth + 1)]
    # From the newest points to the oldest.
    for some in columns:
        finite, _, lows, highs, _, lasts, _, _, begins, ends, *_ = some.values
        for at in reversed(range(len(finite))):
            if not finite[at]:
                continue
            since, until = begins[at], ends[at]
            last = last or Extreme(lasts[at], since, until)
            # Of equal values the one that ended first: a coarser bucket may hold the same point, and no earlier one.
            if low is None or (lows[at], until) < (low.value, low.until):
                low = Extreme(lows[at], since, until)
            if high is None or (-highs[at], until) < (-high.value, high.until):
                high = Extreme(highs[at], since, until)
    if low is None or high is None or last is None:
        return None
    return SeriesExtent(low=low, high=high, last=last)


def levels_of(body: bytes) -> Levels:
    """Decode `Levels.encoded`; BlobCorrupt for anything else."""
    reader = _Reader(body)
    levels = Levels()
    levels.count = reader.whole(1 << 53)
    levels.start = reader.one()
    filling, depth = reader.whole(FIRST - 1), reader.whole(_MAX_LEVELS)
    sizes = [(reader.whole(1 << 53), reader.whole(ROW - 1)) for _ in range(depth)]
    levels.filling = list(zip(*reader.columns(5, filling), strict=True))
    levels.sealed = [sealed for sealed, _ in sizes]
    levels._stored = [reader.buckets(count) for _, count in sizes]  # noqa: SLF001 - of this module
    reader.end()
    return levels


def encode_row(row: Row) -> bytes:
    """Encode the buckets of a row for storage."""
    values = array("d", [_VERSION, len(row.buckets)])
    _put(values, row.buckets)
    return _packed(values)


def columns_in(body: bytes) -> Columns:
    """Decode the buckets of `encode_row`; BlobCorrupt for anything else."""
    reader = _Reader(body)
    buckets = reader.buckets(reader.whole(ROW))
    reader.end()
    return buckets


def _put(values: array[float], buckets: Sequence[Bucket]) -> None:
    if not buckets:
        return
    *columns, places, _ = zip(*buckets, strict=True)
    for column in columns:
        values.extend(column)
    kept = [bucket.dots for bucket in buckets]
    values.extend(_KEPT if dots else place for dots, place in zip(kept, places, strict=True))
    for column in zip(*(dot for dots in kept for dot in dots), strict=True):
        values.extend(column)


def _packed(values: array[float]) -> bytes:
    """Compress by byte planes: neighbours have the same sign, exponent and zeros."""
    if sys.byteorder == "big":
        values.byteswap()
    raw = values.tobytes()
    return frame(b"".join(raw[at::8] for at in range(8)))


class _Reader:
    """Reads numbers in the order written, without trusting them."""

    def __init__(self, body: bytes) -> None:
        raw = unframe(body, max_bytes=_MAX_BYTES)
        if len(raw) % 8:
            raise BlobCorrupt("a row of levels that is cut short")
        each = len(raw) // 8
        whole = bytearray(len(raw))
        for at in range(8):
            whole[at::8] = raw[at * each : (at + 1) * each]
        self._values = array("d", bytes(whole))
        if sys.byteorder == "big":
            self._values.byteswap()
        self._at = 0
        if self.one() != _VERSION:
            raise BlobCorrupt("a row of levels of another version")

    def one(self) -> float:
        if self._at >= len(self._values):
            raise BlobCorrupt("a row of levels that is cut short")
        self._at += 1
        return self._values[self._at - 1]

    def whole(self, most: int) -> int:
        value = self.one()
        if not (0 <= value <= most and value == int(value)):
            raise BlobCorrupt(f"a row of levels with {value} of something")
        return int(value)

    def columns(self, number: int, length: int) -> list[array[float]]:
        begin, self._at = self._at, self._at + number * length
        if self._at > len(self._values):
            raise BlobCorrupt("a row of levels that is cut short")
        return [self._values[begin + n * length : begin + (n + 1) * length] for n in range(number)]

    def buckets(self, length: int) -> Columns:
        values = self.columns(COLUMNS, length)
        places = values[-1]
        if _KEPT not in places:
            return Columns(values, {})
        kept = [at for at, place in enumerate(places) if place == _KEPT]
        dots = list(zip(*self.columns(3, FIRST * len(kept)), strict=True))
        for at in kept:
            places[at] = 0.0
        parts = (tuple(dots[at : at + FIRST]) for at in range(0, len(dots), FIRST))
        return Columns(values, dict(zip(kept, parts, strict=True)))

    def end(self) -> None:
        if self._at != len(self._values):
            raise BlobCorrupt("a row of levels with something behind it")
