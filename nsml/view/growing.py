"""Series that grow while they are watched, in bounded memory: old points thin out, spikes stay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from nsml.view.elements import elements_of
from nsml.view.metrics import lines_in_order
from nsml.view.series import Axis, Series
from nsml.view.sessions import seconds_of
from nsml.view.text import visible

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import MetricPoint

MOST_POINTS = 8192
"""Of one series that are kept: many for each column of any terminal."""
MOST_SERIES = 400
"""That are kept at all: more than anybody looks at."""


_Key: TypeAlias = "tuple[str, str, str, int]"
"""Label, metric, element and rank of a line."""


class GrowingSeries:
    """One line. Beyond its most points, of every four neighbours the least and the greatest stay."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._points: list[tuple[float, float]] = []
        self.count = 0
        """Points that were added."""

    def add(self, x: float, y: float) -> None:
        """One more point, anywhere."""
        self.count += 1
        self._points.append((x, y))
        if len(self._points) > self._most:
            self._thin()

    def _thin(self) -> None:
        self._points.sort(key=lambda point: point[0])
        kept: list[tuple[float, float]] = []
        # The newest ones stay as they are: their neighbours are still to come.
        end = len(self._points) - self._most // 8
        for place in range(0, end, 4):
            kept += _extremes(self._points[place : min(place + 4, end)])
        self._points = kept + self._points[end:]

    def series(self, label: str) -> Series:
        """What is kept, as it can be drawn."""
        self._points.sort(key=lambda point: point[0])
        return Series(label=label, x=[x for x, _ in self._points], y=[y for _, y in self._points])


def _extremes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least and the greatest in their order; a gap where there is no finite value."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return points[:1]
    low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
    return [point for point in points if point is low or point is high]


class GrowingCharts:
    """The numeric points of some sessions as they come, as `series.collect` would group them.

    `most_series` are kept of all, and `most_points` of each.
    """

    def __init__(
        self, axis: Axis, *, most_series: int = MOST_SERIES, most_points: int = MOST_POINTS
    ) -> None:
        self._axis = axis
        self._most_series = most_series
        self._most_points = most_points
        self._lines: dict[_Key, GrowingSeries] = {}
        self._starts: dict[_Key, float] = {}
        self.left_out: set[str] = set()
        """Labels of sessions of which not every series is kept."""

    def add(self, label: str, point: MetricPoint) -> None:
        """A point of the session that is called `label`."""
        for metric, element, number in elements_of(point):
            self._add((label, metric, element, point.rank), point, number)

    def _add(self, key: _Key, point: MetricPoint, number: float) -> None:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= self._most_series:
                self.left_out.add(key[0])
                return
            line = self._lines[key] = GrowingSeries(self._most_points)
        time = seconds_of(point.time)
        if self._axis is Axis.STEP:
            x = point.step if point.HasField("step") else float(line.count)
        elif self._axis is Axis.RELATIVE:
            x = max(time - self._starts.setdefault(key, time), 0.0)
        else:
            x = time
        if math.isfinite(x):
            line.add(x, number)

    @property
    def count(self) -> int:
        """Series that are kept."""
        return len(self._lines)

    def groups(self) -> dict[str, list[Series]]:
        """The series by metric, in the order in which metrics are looked at."""
        ranks: dict[str, set[int]] = {}
        for label, _, _, rank in self._lines:
            ranks.setdefault(label, set()).add(rank)
        found: dict[str, list[Series]] = {}
        for (label, name, element, rank), line in self._lines.items():
            if line.count:
                shown = f"{label} rank {rank}" if len(ranks[label]) > 1 else label
                shown += f" :{visible(element)}" if element else ""
                found.setdefault(name, []).append(line.series(shown))
        return lines_in_order(found)
