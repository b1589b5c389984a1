"""Reported points, or columns of them, as series to plot: grouped, by axis, smoothed."""

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
"""Metric, element, rank and attempt of a line; attempt 0 for a line of all attempts."""


class Axis(StrEnum):
    """The horizontal axis."""

    STEP = "step"
    """The reported step; the point's index if none was reported."""
    RELATIVE = "relative"
    """Seconds since the series' first point."""
    WALL = "wall"
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: `x` never decreases; `y` may contain NaN and infinities.

    A downsampled line has each column at up to four positions, with its min, max and last value and, if it
    contains one, a NaN. `counts` are the finite points of a column, or the others, at the first of its positions for
    them, and 0 at the rest; `means` the mean of its finite ones. Without these each position is one
    point.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    counts: Sequence[int] | None = None
    means: Sequence[float] | None = None

    @property
    def points(self) -> int:
        """Number of reported points."""
        return len(self.x) if self.counts is None else sum(self.counts)

    @property
    def odd(self) -> int:
        """Number of non-finite points."""
        counts = self.counts or [1] * len(self.y)
        return sum(n for n, value in zip(counts, self.y, strict=True) if not math.isfinite(value))


def collect(
    points: Iterable[MetricPoint], *, session: str, axis: Axis, is_apart: bool = False
) -> dict[str, list[Series]]:
    """Return the numeric points of one session by metric name, one series per replica and element.

    Superseded points are left out (nsml/spec/attempt_points.py), or each attempt is a line of its own.
    Points out of order are sorted, the later report last.
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
    """Return columns of one session's numbers by metric name, one series per replica and element.

    Each part has the requested range of the axis: columns are clipped to it. The
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
    """Yield the positions of a series' columns, so that a line through them follows their shape."""
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
    """Return lines by metric name, labelled by session, replica if there are several, and attempt."""
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
    """Return the mean of several lines, and one standard deviation above and below it, at equidistant positions.

    At each position lines that cover it count, interpolated between their points; of downsampled lines
    the means. For a single line the deviation is 0.
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
    """Return its positions and values, without non-finite ones; None if empty."""
    values = line.means or line.y
    pairs = [(x, y) for x, y in zip(line.x, values, strict=True) if math.isfinite(y)]
    return ([x for x, _ in pairs], [y for _, y in pairs]) if pairs else None


def _at(path: _Path, x: float) -> float | None:
    """Return the interpolated value of a path; None outside of it."""
    places, values = path
    if not places[0] <= x <= places[-1]:
        return None
    right = bisect_left(places, x)
    if places[right] == x:
        return values[right]
    share = (x - places[right - 1]) / (places[right] - places[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share


def smooth(series: Series, alpha: float) -> Series:
    """Return an exponential moving average, bias-corrected; 0 changes nothing.

    `alpha` is the weight of the past, below 1. Non-finite values are passed through and
    left out of the average; a constant stays exactly the same. A column counts as all its points, at its mean.
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
        # An average is between its values; rounding may exceed them.
        low, high = min(low, mean), max(high, mean)
        smoothed.append(min(max(total / weight, low), high))
    return replace(series, y=smoothed, means=None)
