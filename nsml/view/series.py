"""Reported points, or columns of them, as series to plot: grouped, on an axis, smoothed."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nsml.common.text import visible
from nsml.view.elements import element_in, elements_of
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsml.v1 import sessions_pb2 as pb
    from nsml.v1.sessions_pb2 import MetricPoint

_Key: TypeAlias = "tuple[str, str, int, int]"
"""Metric, element, rank and attempt of a line; attempt 0 where a line is of all."""


class Axis(StrEnum):
    """What the horizontal axis counts."""

    STEP = "step"
    """The reported step; the point's number where none was reported."""
    RELATIVE = "relative"
    """Seconds since the series' first point."""
    WALL = "wall"
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: `x` never decreases; `y` may hold NaN and infinities.

    A line of columns has each at up to four places, with its least, greatest and last value and, where one is
    in it, a NaN. `counts` are the finite points of a column, or the others, at the first of its places for
    them, and 0 at the rest; `means` what its finite ones are on average. Without these each place is one
    point.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    counts: Sequence[int] | None = None
    means: Sequence[float] | None = None

    @property
    def points(self) -> int:
        """How many were reported."""
        return len(self.x) if self.counts is None else sum(self.counts)

    @property
    def odd(self) -> int:
        """How many of them are no finite numbers."""
        counts = self.counts or [1] * len(self.y)
        return sum(n for n, value in zip(counts, self.y, strict=True) if not math.isfinite(value))


def collect(
    points: Iterable[MetricPoint], *, session: str, axis: Axis, is_apart: bool = False
) -> dict[str, list[Series]]:
    """The numeric points of one session by metric name, one series a replica and element.

    They are those that count (nsml/spec/attempt_points.py), or those of all attempts, which are then lines of their own.
    Points that went back are put in order, the later report last.
    """
    found: dict[_Key, list[tuple[float, float]]] = {}
    starts: dict[_Key, float] = {}
    for point in points:
        time = seconds_of(point.time)
        for name, element, number in elements_of(point):
            key = (name, element, point.rank, point.attempt if is_apart else 0)
            line = found.setdefault(key, [])
            if axis is Axis.STEP:
                x = point.step if point.HasField("step") else float(len(line))
            elif axis is Axis.RELATIVE:
                x = max(time - starts.setdefault(key, time), 0.0)
            else:
                x = time
            if math.isfinite(x):
                line.append((x, number))
    lines = {}
    for key, line in found.items():
        line.sort(key=lambda pair: pair[0])
        lines[key] = Series(label="", x=[x for x, _ in line], y=[y for _, y in line])
    return _grouped(lines, session)


class _Place(NamedTuple):
    x: float
    y: float
    points: int
    mean: float


def gather(
    parts: Iterable[tuple[pb.Series, float, float]], *, session: str, is_apart: bool = False
) -> dict[str, list[Series]]:
    """Columns of one session's numbers by metric name, one series a replica and element.

    Each part comes with the range of the axis that was asked for: no column reaches out of it. The
    columns of all attempts become one line, in the order of the axis, or each attempt's a line of its own.
    """
    found: dict[_Key, list[_Place]] = {}
    for series, low, high in parts:
        if series.x_low:
            attempt = series.attempt if is_apart else 0
            places = found.setdefault((*element_in(series.name), series.rank, attempt), [])
            places.extend(_places(series, low, high))
    lines = {}
    for key, places in found.items():
        places.sort(key=lambda place: place.x)
        x, y, counts, means = (list(column) for column in zip(*places, strict=True))
        lines[key] = Series(label="", x=x, y=y)
        if any(count != 1 for count in counts):
            lines[key] = replace(lines[key], counts=counts, means=means)
    return _grouped(lines, session)


def _places(series: pb.Series, low: float, high: float) -> Iterator[_Place]:
    """Where the columns of a series are drawn, so that a line through it rises and falls as they do."""
    columns = zip(
        series.x_low,
        series.x_high,
        series.low,
        series.high,
        series.mean,
        series.last,
        series.finite,
        series.odd,
        strict=True,
    )
    for begin, end, least, greatest, mean, last, finite, odd in columns:
        left, right = min(max(begin, low), high), max(min(end, high), low)
        if finite == 1:
            yield _Place(left, last, 1, mean)
        elif finite:
            middle = left / 2 + right / 2
            yield _Place(left, greatest if last == least else least, finite, mean)
            if last not in {least, greatest}:
                yield _Place(middle, greatest, 0, mean)
            if odd:
                yield _Place(middle, math.nan, odd, math.nan)
            yield _Place(right, last, 0, mean)
        if odd and finite <= 1:
            yield _Place(right, math.nan, odd, math.nan)


def _grouped(lines: Mapping[_Key, Series], session: str) -> dict[str, list[Series]]:
    """Lines by metric name, each called by its session, its replica where there are several, and its attempt."""
    ranks = {rank for _, _, rank, _ in lines}
    grouped: dict[str, list[Series]] = {}
    for (name, element, rank, attempt), line in lines.items():
        label = f"{session} rank {rank}" if len(ranks) > 1 else session
        label += f" attempt {attempt}" if attempt else ""
        if element:
            label += f" :{visible(element)}"
        grouped.setdefault(name, []).append(replace(line, label=label))
    return grouped


def spread(lines: Sequence[Series], *, places: int) -> list[Series]:
    """The mean of several lines, and one standard deviation above and below it, at places of the same distance.

    At each place count the lines that reach over it, each with what lies on it between its points; of lines of
    columns those are the means. Where there is one line alone its deviation is 0.
    """
    paths = list(filter(None, map(_path, lines)))
    if not paths:
        return []
    low, high = min(path[0][0] for path in paths), max(path[0][-1] for path in paths)
    found: list[tuple[float, float, float]] = []
    for number in range(places if high > low else 1):
        x = low + (high - low) * number / max(places - 1, 1)
        values = [value for path in paths if (value := _at(path, x)) is not None]
        if values:
            mean = math.fsum(values) / len(values)
            squares = math.fsum((value - mean) ** 2 for value in values)
            found.append((x, mean, math.sqrt(squares / max(len(values) - 1, 1))))
    at = [place for place, _, _ in found]
    return [
        Series(label=f"mean of {len(paths)}", x=at, y=[mean for _, mean, _ in found]),
        Series(label="mean + sd", x=at, y=[mean + sd for _, mean, sd in found]),
        Series(label="mean - sd", x=at, y=[mean - sd for _, mean, sd in found]),
    ]


_Path: TypeAlias = "tuple[Sequence[float], Sequence[float]]"


def _path(line: Series) -> _Path | None:
    """Where it is at which value, without what is no number; None: nowhere."""
    values = line.means or line.y
    pairs = [(x, y) for x, y in zip(line.x, values, strict=True) if math.isfinite(y)]
    return ([x for x, _ in pairs], [y for _, y in pairs]) if pairs else None


def _at(path: _Path, x: float) -> float | None:
    """The value of a path at a place; None: it does not reach there."""
    places, values = path
    if not places[0] <= x <= places[-1]:
        return None
    right = bisect_left(places, x)
    if places[right] == x:
        return values[right]
    share = (x - places[right - 1]) / (places[right] - places[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share


def smooth(series: Series, alpha: float) -> Series:
    """An exponential moving average without the bias of its start; 0 changes nothing.

    `alpha` is the share of the past, below 1. Values that are no numbers are passed through and
    left out of the average; a constant stays exactly what it is. A column counts as so many points of its mean.
    """
    if not alpha:
        return series
    total = weight = 0.0
    low, high = math.inf, -math.inf
    smoothed = []
    counts = series.counts or [1] * len(series.y)
    for value, mean, count in zip(series.y, series.means or series.y, counts, strict=True):
        if not math.isfinite(value):
            smoothed.append(value)
            continue
        kept = alpha**count
        total = kept * total + (1 - kept) * mean
        weight = kept * weight + (1 - kept)
        # An average is between what it is of; the last bits of the division are not always.
        low, high = min(low, mean), max(high, mean)
        smoothed.append(min(max(total / weight, low), high))
    return replace(series, y=smoothed, means=None)
