"""A range of one series, from the coarsest level with the requested width. Pure except `load`."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.downsampling import (
    COLUMNS,
    FACTOR,
    FIRST,
    ROW,
    Bucket,
    single,
    size_of,
    total_of,
)
from controlplane.history.values import SeriesAxis, SeriesColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from controlplane.history.downsampling import Columns, Levels
    from controlplane.history.records import ReportedNumber

    Load: TypeAlias = Callable[[int, Sequence[int]], Mapping[int, Columns]]
    """Loads the sealed rows of a level with these numbers."""

ENDS: Final = 8
"""Most buckets cut by a range that are opened; only steps that go back and forth cut more."""

_FINITE, _ODD, _LOW, _HIGH, _TOTAL, _LAST, _X_LOW, _X_HIGH, _TIME_LOW, _TIME_HIGH = range(10)


class NumberedBucket(NamedTuple):
    """A bucket of level 1 with its number, from 0."""

    number: int
    bucket: Bucket


class _Parts:
    """Buckets of several levels, in commit order and column by column: see Columns."""

    def __init__(self) -> None:
        self.levels = array("q")
        self.numbers = array("q")
        """The number of each within its level, from 0."""
        self.values = [array("d") for _ in range(COLUMNS)]
        self.dots: dict[int, tuple[tuple[float, float, float], ...]] = {}
        """By number."""

    def __len__(self) -> int:
        return len(self.levels)

    def put(self, level: int, first: int, some: Columns, begin: int, end: int) -> None:
        """Add `some[begin:end]`; `first` is the number of `some[0]`."""
        for mine, other in zip(self.values, some.values, strict=True):
            mine.extend(other[begin:end])
        self.levels.extend([level] * (end - begin))
        self.numbers.extend(range(first + begin, first + end))
        for at, dots in some.dots.items():
            if begin <= at < end:
                self.dots[first + at] = dots

    def put_all(self, level: int, first: int, some: Columns) -> None:
        """Add consecutive buckets."""
        self.put(level, first, some, 0, len(some.values[0]))

    def put_one(self, level: int, number: int, bucket: Bucket) -> None:
        """Add a bucket."""
        for mine, value in zip(self.values, bucket[:COLUMNS], strict=True):
            mine.append(value)
        self.levels.append(level)
        self.numbers.append(number)

    def put_points(self, first: int, points: Iterable[ReportedNumber]) -> None:
        """Add consecutive points; `first` is the number of the first."""
        steps, times, values = zip(*points, strict=True)
        xs = [float(number) if x is None else x for number, x in enumerate(steps, first)]
        if not all(map(math.isfinite, values)):
            for number, point in enumerate(zip(xs, times, values, strict=True), first):
                self.put_one(0, number, single(*point))
            return
        some, none = [1.0] * len(xs), [0.0] * len(xs)
        columns = (some, none, *[values] * 4, xs, xs, times, times, *[none] * (COLUMNS - 10))
        for mine, column in zip(self.values, columns, strict=True):
            mine.extend(column)
        self.levels.extend([0] * len(xs))
        self.numbers.extend(range(first, first + len(xs)))

    def put_from(self, other: _Parts, begin: int, end: int) -> None:
        """Add `other[begin:end]`."""
        self.levels.extend(other.levels[begin:end])
        self.numbers.extend(other.numbers[begin:end])
        for mine, values in zip(self.values, other.values, strict=True):
            mine.extend(values[begin:end])

    def those(self, chosen: Sequence[bool]) -> _Parts:
        """Return the chosen buckets."""
        if all(chosen):
            return self
        few = _Parts()
        few.levels = array("q", compress(self.levels, chosen))
        few.numbers = array("q", compress(self.numbers, chosen))
        few.values = [array("d", compress(values, chosen)) for values in self.values]
        few.dots = self.dots
        return few

    def part(self, at: int) -> NumberedBucket:
        """Return a bucket of level 1."""
        number = self.numbers[at]
        row = (values[at] for values in self.values)
        return NumberedBucket(number, Bucket._make((*row, self.dots.get(number, ()))))

    @property
    def points(self) -> float:
        """Total number of points."""
        return sum(self.values[_FINITE]) + sum(self.values[_ODD])


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of an axis, and of steps.

    Attributes:
        axis: the axis of `low` and `high`.
        low: lower bound, included.
        high: upper bound, included.
        start: the origin of relative times.
        below: points from this step on are excluded, whatever the axis.
        offset: added to the numbers of points without a step.
    """

    axis: SeriesAxis
    low: float = -math.inf
    high: float = math.inf
    start: float = 0.0
    below: float = math.inf
    offset: float = 0.0

    @property
    def is_all(self) -> bool:
        """Whether it is unbounded."""
        return self.low == -math.inf and self.high == math.inf == self.below

    def of(self, parts: _Parts) -> tuple[list[float], list[float]]:
        """Begin and end of each part on the axis."""
        values = parts.values
        match self.axis:
            case SeriesAxis.STEP:
                if offset := self.offset:
                    return [x + offset for x in values[_X_LOW]], [
                        x + offset for x in values[_X_HIGH]
                    ]
                return values[_X_LOW].tolist(), values[_X_HIGH].tolist()
            case SeriesAxis.WALL:
                return values[_TIME_LOW].tolist(), values[_TIME_HIGH].tolist()
            case SeriesAxis.RELATIVE:
                start = self.start
                return (
                    [max(time - start, 0.0) for time in values[_TIME_LOW]],
                    [max(time - start, 0.0) for time in values[_TIME_HIGH]],
                )

    def touched(self, parts: _Parts) -> list[bool]:
        """For each part, whether it may have a point in the range."""
        low, high, below = self.low, self.high, self.below
        places = zip(*self.of(parts), parts.values[_X_LOW], strict=True)
        return [first <= high and last >= low and step < below for first, last, step in places]

    def cut(self, parts: _Parts) -> list[bool]:
        """For each part, whether it may have points in the range and points outside."""
        low, high, below = self.low, self.high, self.below
        steps = parts.values[_X_LOW], parts.values[_X_HIGH]
        places = zip(*self.of(parts), *steps, strict=True)
        return [
            first <= high
            and last >= low
            and begin < below
            and not (low <= first and last <= high and end < below)
            for first, last, begin, end in places
        ]


class RangeReader:
    """Finds the parts of one series in a range, from coarse to fine.

    After `settle`, `wanted` has the buckets of level 1 to replace by their points, with `serve`. `finest` is
    the finest level with sealed rows.
    """

    def __init__(
        self, levels: Levels, span: Span, width: int, load: Load, *, finest: int = 1
    ) -> None:
        self._levels = levels
        self._span = span
        self._width = width
        self._load = load
        self._finest = finest
        self._parts = _Parts()
        self.wanted: list[NumberedBucket] = []
        self.grain = 1
        """Points per part, except the last ones and those at the ends."""

    def settle(self) -> None:
        """Open parts down to a level that is fine enough."""
        top = self._levels.depth
        level = min(top, self._coarsest_for(self._levels.count)) if self._span.is_all else top
        level = max(level, min(top, self._finest))
        self._parts = self._touched(self._all(level))
        while level > self._finest and not self._is_enough(self._parts.points, level):
            self._open({at for at, other in enumerate(self._parts.levels) if other == level})
            level -= 1
        while 0 < len(cut := self._cut(self._finest + 1)) <= ENDS:
            self._open(cut)
        if level <= 1 and not self._is_enough(self._parts.points, 1):
            self.grain = 1
            wanted = {at for at, other in enumerate(self._parts.levels) if other == 1}
        else:
            self.grain = size_of(level)
            cut = self._cut(1)
            wanted = {at for at in cut if self._parts.levels[at] == 1}
            wanted = wanted if len(cut) <= ENDS else set()
        parts = [self._parts.part(at) for at in sorted(wanted)]
        self.wanted = [part for part in parts if not part.bucket.dots]
        self._replace({part.number: part.bucket.dots for part in parts if part.bucket.dots})

    def serve(self, points: Mapping[int, Sequence[ReportedNumber]]) -> None:
        """Replace wanted buckets by their points, by number; buckets without points here stay whole."""
        if self.grain == 1 and len(points) < len(self.wanted):
            self.grain = FIRST
        self._replace(points)

    def columns(self) -> SeriesColumns:
        """Return the columns in the range, in the order of the axis."""
        begins, ends = self._span.of(self._parts)
        values: list[Sequence[float]] = [column.tolist() for column in self._parts.values[:10]]
        if begins != sorted(begins):
            order = sorted(range(len(begins)), key=begins.__getitem__)
            begins = [begins[at] for at in order]
            ends = [ends[at] for at in order]
            values = [[column[at] for at in order] for column in values]
        finite, odd, low, high, total, last = values[:6]
        time = values[_TIME_HIGH]
        if len(begins) > 2 * self._width:
            some = self._binned(begins)

            def together(
                one: Callable[[Sequence[float]], float], of: Sequence[float]
            ) -> list[float]:
                return list(map(one, map(of.__getitem__, some)))

            def greatest(of: Sequence[float]) -> list[float]:
                # Steps and times mostly rise.
                return [of[one.stop - 1] for one in some] if of == sorted(of) else together(max, of)

            begins = [begins[one.start] for one in some]
            ends, time, high = greatest(ends), greatest(time), together(max, high)
            finite = together(sum, finite)
            odd = together(sum, odd) if any(odd) else [0.0] * len(some)
            low, total, last = together(min, low), together(total_of, total), together(_last, last)
        if not all(finite):  # without a finite value there are no extremes
            low, high, last = (
                [value if count else 0.0 for value, count in zip(column, finite, strict=True)]
                for column in (low, high, last)
            )
        return SeriesColumns(
            x_low=begins,
            x_high=ends,
            time=time,
            low=low,
            high=high,
            mean=list(map(_mean, total, finite, low, high)),
            last=last,
            finite=list(map(int, finite)),
            odd=list(map(int, odd)),
        )

    def _binned(self, begins: Sequence[float]) -> list[slice]:
        """Group too many parts into columns, as slices; `begins`: where each part begins."""
        left, right, width = begins[0], begins[-1], self._width
        # Divided first: the difference of two finite numbers may be infinite.
        step = right / width - left / width
        firsts = {bisect_left(begins, left + number * step) for number in range(1, width)}
        return [slice(*pair) for pair in pairwise(sorted({0, *firsts, len(begins)}))]

    def _coarsest_for(self, points: float) -> int:
        level = 1
        while self._is_enough(points, level + 1):
            level += 1
        return level

    def _is_enough(self, points: float, level: int) -> bool:
        """Whether so many points give enough buckets: half the requested columns.

        Finer ones cost up to eight times as much to read, only to be merged again.
        """
        return 2 * points / size_of(level) >= self._width

    def _all(self, level: int) -> _Parts:
        parts = _Parts()
        if level:
            sealed = self._levels.sealed[level - 1]
            rows = self._load(level, range(sealed)) if sealed else {}
            for row in range(sealed):
                parts.put_all(level, row * ROW, rows[row])
            parts.put_all(level, sealed * ROW, self._levels.columns(level))
        for finer, first, some, begin in self._levels.rest(level or 1):
            parts.put(finer, first, some, begin, len(some.values[0]))
        for number, bucket in self._levels.points():
            parts.put_one(0, number, bucket)
        return parts

    def _touched(self, parts: _Parts) -> _Parts:
        return parts if self._span.is_all else parts.those(self._span.touched(parts))

    def _cut(self, level: int) -> set[int]:
        """Indices of parts of this level or above with points in the range and points outside."""
        if self._span.is_all:
            return set()
        cut = zip(self._span.cut(self._parts), self._parts.levels, strict=True)
        return {at for at, (is_cut, other) in enumerate(cut) if is_cut and other >= level}

    def _open(self, chosen: Collection[int]) -> None:
        """Replace the chosen parts, of level 2 and above, by their buckets of the level below."""
        lacking: dict[int, set[int]] = {}
        for at in chosen:
            level, row = self._parts.levels[at] - 1, self._parts.numbers[at] * FACTOR // ROW
            if row < self._levels.sealed[level - 1]:
                lacking.setdefault(level, set()).add(row)
        rows = {level: self._load(level, sorted(numbers)) for level, numbers in lacking.items()}
        parts, before = _Parts(), 0
        for at in sorted(chosen):
            parts.put_from(self._parts, before, at)
            before = at + 1
            level = self._parts.levels[at] - 1
            row, begin = divmod(self._parts.numbers[at] * FACTOR, ROW)
            some = rows.get(level, {}).get(row) or self._levels.columns(level)
            parts.put(level, row * ROW, some, begin, begin + FACTOR)
        parts.put_from(self._parts, before, len(self._parts))
        parts.dots |= self._parts.dots
        self._parts = self._touched(parts)

    def _replace(self, points: Mapping[int, Iterable[ReportedNumber]]) -> None:
        """Replace buckets of level 1 by their points, by number."""
        if not points:
            return
        parts, before = _Parts(), 0
        for at, (level, number) in enumerate(
            zip(self._parts.levels, self._parts.numbers, strict=True)
        ):
            found = points.get(number) if level == 1 else None
            if found is None:
                continue
            parts.put_from(self._parts, before, at)
            before = at + 1
            parts.put_points(number * FIRST, found)
        parts.put_from(self._parts, before, len(self._parts))
        parts.dots |= self._parts.dots
        self._parts = self._touched(parts)


def _last(values: Sequence[float]) -> float:
    """The last value except NaN; NaN if there is none."""
    last = values[-1]
    if not math.isnan(last):
        return last
    return next((one for one in reversed(values) if not math.isnan(one)), math.nan)


def _mean(total: float, finite: float, low: float, high: float) -> float:
    if not finite:
        return 0.0
    mean = total / finite
    if low <= mean <= high:
        return mean
    # The sum may overflow, the mean of finite values does not.
    return min(max(mean, low), high) if math.isfinite(mean) else low / 2 + high / 2
