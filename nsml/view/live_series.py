"""Growing series in bounded memory: old points are thinned out, spikes stay."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from nsml.common.text import visible
from nsml.spec.attempt_points import FirstSteps, place_of
from nsml.view.elements import elements_of
from nsml.view.metrics import lines_in_order
from nsml.view.series import Axis, Series
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.spec.attempt_points import PointKey
    from nsml.v1.sessions_pb2 import MetricPoint

MOST_POINTS = 8192
"""Most points kept of one series: many for each column of any terminal."""
MOST_SERIES = 400
"""Most series kept: more than anybody looks at."""


_Key: TypeAlias = "tuple[str, str, str, int, int]"
"""Label, metric, element, rank and attempt of a line; attempt 0 for a line of all attempts."""


_Point: TypeAlias = "tuple[float, float, PointKey | None]"
"""Position on the axis, value, and the point's key."""


class GrowingSeries:
    """One line. Above its limit, of every four neighbours the min and the max are kept."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._points: list[_Point] = []
        self.count = 0
        """Added points."""

    def add(self, x: float, y: float, place: PointKey | None = None) -> None:
        """Add a point, anywhere; `place` is the argument of `keep`."""
        self.count += 1
        self._points.append((x, y, place))
        if len(self._points) > self._most:
            self._thin()

    def _thin(self) -> None:
        self._points.sort(key=lambda point: point[0])
        kept: list[_Point] = []
        # The newest ones are unchanged: their neighbours are yet to come.
        end = len(self._points) - self._most // 8
        for place in range(0, end, 4):
            kept += _extremes(self._points[place : min(place + 4, end)])
        self._points = kept + self._points[end:]

    def keep(self, is_kept: Callable[[PointKey], bool]) -> None:
        """Drop the points refused by `is_kept`."""
        self._points = [one for one in self._points if one[2] is None or is_kept(one[2])]

    def series(self, label: str) -> Series:
        """Return the kept points for drawing."""
        self._points.sort(key=itemgetter(0))
        x, y, _ = zip(*self._points, strict=True) if self._points else ((), (), ())
        return Series(label=label, x=list(x), y=list(y))


def _extremes(points: list[_Point]) -> list[_Point]:
    """Return the min and the max in order; a gap if there is no finite value."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return points[:1]
    low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
    return [point for point in points if point is low or point is high]


class GrowingCharts:
    """The numeric points of some sessions as they arrive, grouped like `series.collect`.

    At most `most_series` are kept, with `most_points` each. A new attempt removes the points that it
    supersedes (nsml/spec/attempt_points.py), unless attempts are drawn separately.
    """

    def __init__(
        self,
        axis: Axis,
        *,
        most_series: int = MOST_SERIES,
        most_points: int = MOST_POINTS,
        is_apart: bool = False,
    ) -> None:
        self._axis = axis
        self._is_apart = is_apart
        self._steps = FirstSteps()
        self._most_series = most_series
        self._most_points = most_points
        self._lines: dict[_Key, GrowingSeries] = {}
        self._of_metric: dict[tuple[str, str], list[GrowingSeries]] = {}
        """By label and reported name."""
        self._origins: dict[str, set[str]] = {}
        self._starts: dict[_Key, float] = {}
        self.left_out: set[str] = set()
        """Labels of sessions with dropped series."""

    def add(self, label: str, point: MetricPoint) -> None:
        """Add a point of the session with this label."""
        attempt = point.attempt if self._is_apart else 0
        numbers = [
            ((label, metric, element, point.rank, attempt), number)
            for metric, element, number in elements_of(point)
        ]
        if not self._is_apart and not self._is_current(label, point):
            return
        for key, number in numbers:
            self._add(key, point, number)

    def _is_current(self, label: str, point: MetricPoint) -> bool:
        """Return whether no later attempt supersedes it; drops points superseded by it."""
        place = place_of(point)
        place = place._replace(metric=(label, place.metric))
        if self._steps.note(place):
            for line in self._of_metric.get((label, point.name), ()):
                line.keep(lambda one: self._steps.keeps(one._replace(metric=place.metric)))
        return self._steps.keeps(place)

    def _add(self, key: _Key, point: MetricPoint, number: float) -> None:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= self._most_series:
                self.left_out.add(key[0])
                return
            line = self._lines[key] = GrowingSeries(self._most_points)
            self._of_metric.setdefault((key[0], point.name), []).append(line)
            self._origins.setdefault(key[1], set()).add(point.origin)
        time = seconds_of(point.time)
        if self._axis is Axis.STEP:
            x = point.step if point.HasField("step") else float(line.count)
        elif self._axis is Axis.RELATIVE:
            x = max(time - self._starts.setdefault(key, time), 0.0)
        else:
            x = time
        if math.isfinite(x):
            line.add(x, number, place_of(point))

    def origins(self) -> dict[str, str]:
        """Return what reported the metrics, without those of `nsml.report`; several are joined: `log, wandb`."""
        return {
            name: visible(", ".join(sorted(origins)))
            for name, origins in self._origins.items()
            if "" not in origins
        }

    @property
    def count(self) -> int:
        """Number of kept series."""
        return len(self._lines)

    def groups(self) -> dict[str, list[Series]]:
        """Return the series by metric, in display order."""
        ranks: dict[str, set[int]] = {}
        for label, _, _, rank, _ in self._lines:
            ranks.setdefault(label, set()).add(rank)
        found: dict[str, list[Series]] = {}
        for (label, name, element, rank, attempt), line in self._lines.items():
            if line.count:
                shown = f"{label} rank {rank}" if len(ranks[label]) > 1 else label
                shown += f" attempt {attempt}" if attempt else ""
                shown += f" :{visible(element)}" if element else ""
                found.setdefault(name, []).append(line.series(shown))
        return lines_in_order(found)
