"""Reported points, or columns of them, as series to plot: grouped, on an axis, smoothed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nsml.view.elements import element_in, elements_of
from nsml.view.sessions import seconds_of
from nsml.view.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsml.v1 import sessions_pb2 as pb
    from nsml.v1.sessions_pb2 import MetricPoint

_Key: TypeAlias = "tuple[str, str, int]"
"""Metric, element and rank of a line."""


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


def collect(points: Iterable[MetricPoint], *, session: str, axis: Axis) -> dict[str, list[Series]]:
    """The numeric points of one session by metric name, one series a replica and element.

    Points that went back (a later attempt repeats steps) are put in order, the later report last.
    """
    found: dict[_Key, list[tuple[float, float]]] = {}
    starts: dict[_Key, float] = {}
    for point in points:
        time = seconds_of(point.time)
        for name, element, number in elements_of(point):
            key = (name, element, point.rank)
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
    parts: Iterable[tuple[pb.Series, float, float]], *, session: str
) -> dict[str, list[Series]]:
    """Columns of one session's numbers by metric name, one series a replica and element.

    Each part comes with the range of the axis that was asked for: no column reaches out of it. The
    columns of all attempts become one line, in the order of the axis.
    """
    found: dict[_Key, list[_Place]] = {}
    for series, low, high in parts:
        if series.x_low:
            places = found.setdefault((*element_in(series.name), series.rank), [])
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
    """Lines by metric name, each called by its session, and by its replica where there are several."""
    ranks = {rank for _, _, rank in lines}
    grouped: dict[str, list[Series]] = {}
    for (name, element, rank), line in lines.items():
        label = f"{session} rank {rank}" if len(ranks) > 1 else session
        if element:
            label += f" :{visible(element)}"
        grouped.setdefault(name, []).append(replace(line, label=label))
    return grouped


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
