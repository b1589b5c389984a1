"""A range of one series, from the coarsest level that gives the width asked. Pure but for `load`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.levels import FACTOR, FIRST, ROW, Bucket, merged, single, size_of
from controlplane.history.values import SeriesAxis, SeriesColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from controlplane.history.levels import Levels
    from controlplane.history.records import Told

    Load: TypeAlias = Callable[[int, Sequence[int]], Mapping[int, Sequence[Bucket]]]
    """The sealed rows of a level with these numbers."""

ENDS: Final = 8
"""So many buckets that a range cuts are looked into; more only where steps go back and forth."""


class Part(NamedTuple):
    """A bucket with its place: the `number`-th of its `level`, counted from 0."""

    level: int
    number: int
    bucket: Bucket

    @property
    def place(self) -> tuple[int, int]:
        """Which it is of its series."""
        return self.level, self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of an axis; `start` is where relative times begin."""

    axis: SeriesAxis
    low: float = -math.inf
    high: float = math.inf
    start: float = 0.0

    @property
    def is_all(self) -> bool:
        """Whether it leaves nothing out."""
        return self.low == -math.inf and self.high == math.inf

    def of(self, bucket: Bucket) -> tuple[float, float]:
        """Where a bucket begins and ends."""
        match self.axis:
            case SeriesAxis.STEP:
                return bucket.x_low, bucket.x_high
            case SeriesAxis.WALL:
                return bucket.time_low, bucket.time_high
            case SeriesAxis.RELATIVE:
                return (
                    max(bucket.time_low - self.start, 0.0),
                    max(bucket.time_high - self.start, 0.0),
                )

    def touches(self, bucket: Bucket) -> bool:
        """Whether a point of it may be in the range."""
        low, high = self.of(bucket)
        return low <= self.high and high >= self.low

    def cuts(self, bucket: Bucket) -> bool:
        """Whether a point of it may be in the range, and another outside."""
        low, high = self.of(bucket)
        return self.touches(bucket) and not (self.low <= low and high <= self.high)


class Look:
    """The parts of one series in a range, ever finer.

    After `settle`, `wanted` are those of level 1 whose points are to be read; `served` takes these.
    """

    def __init__(self, levels: Levels, span: Span, width: int, load: Load) -> None:
        self._levels = levels
        self._span = span
        self._width = width
        self._load = load
        self._parts: list[Part] = []
        self.wanted: list[Part] = []
        self.grain = 1
        """Points of the parts, but for the last and those at the ends."""

    def settle(self) -> None:
        """Go down to the level that is fine enough."""
        top = len(self._levels.open)
        level = min(top, self._finest_for(self._levels.count)) if self._span.is_all else top
        self._parts = list(self._touched(self._all(level)))
        while level > 1 and self._points / size_of(level) < self._width:
            self._open({part.place for part in self._parts if part.level == level})
            level -= 1
        while 0 < len(cut := self._cut(2)) <= ENDS:
            self._open(cut)
        # Points cost more than buckets: half as many of those as columns are enough.
        if level <= 1 and 2 * self._points / FIRST < self._width:
            self.grain = 1
            wanted = {part.place for part in self._parts if part.level == 1}
        else:
            self.grain = size_of(level)
            wanted = self._cut(1)
            wanted = wanted if len(wanted) <= ENDS else set()
        self._open({part.place for part in self._parts if part.bucket.dots} & wanted)
        self.wanted = [part for part in self._parts if part.place in wanted]

    def serve(self, points: Mapping[int, Sequence[Told]]) -> None:
        """Take the points of wanted buckets by their number; those that are not there stay whole."""
        if self.grain == 1 and len(points) < len(self.wanted):
            self.grain = FIRST
        parts: list[Part] = []
        for part in self._parts:
            found = points.get(part.number) if part.level == 1 else None
            parts.extend([part] if found is None else self._touched(_points(part.number, found)))
        self._parts = parts

    def columns(self) -> tuple[SeriesColumn, ...]:
        """What is in the range, in the order of the axis."""
        span = self._span
        placed = sorted(
            ((span.of(part.bucket), part.bucket) for part in self._parts), key=lambda one: one[0][0]
        )
        if len(placed) <= 2 * self._width:
            return tuple(_column(bucket, *place) for place, bucket in placed)
        left, right = placed[0][0][0], placed[-1][0][0]
        scale = self._width / ((right - left) or 1.0)
        columns: list[SeriesColumn] = []
        begin, number = 0, 0
        bins = [min(int((place[0] - left) * scale), self._width - 1) for place, _ in placed]
        while begin < len(placed):
            number = bins[begin]
            end = begin + 1
            while end < len(placed) and bins[end] == number:
                end += 1
            some = placed[begin:end]
            columns.append(
                _column(
                    merged([bucket for _, bucket in some]),
                    some[0][0][0],
                    max(place[1] for place, _ in some),
                )
            )
            begin = end
        return tuple(columns)

    def _finest_for(self, points: float) -> int:
        level = 1
        while points / size_of(level + 1) >= self._width:
            level += 1
        return level

    @property
    def _points(self) -> float:
        return sum(part.bucket.points for part in self._parts)

    def _all(self, level: int) -> Iterator[Part]:
        if level:
            sealed = self._levels.sealed[level - 1]
            rows = self._load(level, range(sealed)) if sealed else {}
            for row in range(sealed):
                for at, bucket in enumerate(rows[row]):
                    yield Part(level, row * ROW + at, bucket)
            for at, bucket in enumerate(self._levels.open[level - 1]):
                yield Part(level, sealed * ROW + at, bucket)
        for rest_level, number, bucket in self._levels.rest(level or 1):
            yield Part(rest_level, number, bucket)

    def _touched(self, parts: Iterable[Part]) -> Iterator[Part]:
        span = self._span
        return iter(parts) if span.is_all else (p for p in parts if span.touches(p.bucket))

    def _cut(self, level: int) -> set[tuple[int, int]]:
        """Parts of this level or above with points in the range and points outside."""
        if self._span.is_all:
            return set()
        return {p.place for p in self._parts if p.level >= level and self._span.cuts(p.bucket)}

    def _open(self, chosen: Collection[tuple[int, int]]) -> None:
        """Put what the chosen parts are made of in their place, as far as it is in the range."""
        lacking: dict[int, set[int]] = {}
        for level, number in chosen:
            row = number * FACTOR // ROW
            if level > 1 and row < self._levels.sealed[level - 2]:
                lacking.setdefault(level - 1, set()).add(row)
        rows = {level: self._load(level, sorted(numbers)) for level, numbers in lacking.items()}
        parts: list[Part] = []
        for part in self._parts:
            if part.place not in chosen:
                parts.append(part)
            elif part.level == 1:
                parts += self._touched(_points(part.number, part.bucket.dots))
            else:
                level, first = part.level - 1, part.number * FACTOR
                row, at = divmod(first, ROW)
                buckets = rows.get(level, {}).get(row) or self._levels.open[level - 1]
                parts += self._touched(
                    Part(level, first + n, buckets[at + n]) for n in range(FACTOR)
                )
        self._parts = parts


def _points(bucket: int, points: Iterable[Told]) -> Iterator[Part]:
    for number, (x, time, value) in enumerate(points, bucket * FIRST):
        yield Part(0, number, single(float(number) if x is None else x, time, value))


def _column(bucket: Bucket, x_low: float, x_high: float) -> SeriesColumn:
    finite = int(bucket.finite)
    low, high = (bucket.low, bucket.high) if finite else (0.0, 0.0)
    mean = bucket.total / finite if finite else 0.0
    # A sum may be beyond every number, a mean of finite values is not.
    mean = min(max(mean, low), high) if math.isfinite(mean) else low / 2 + high / 2
    return SeriesColumn(
        x_low=x_low,
        x_high=x_high,
        time=bucket.time_high,
        low=low,
        high=high,
        mean=mean,
        last=bucket.last if finite else 0.0,
        finite=finite,
        odd=int(bucket.odd),
    )
