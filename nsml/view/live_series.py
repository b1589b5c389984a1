"""Series that grow while they are watched, in bounded memory: old points thin out, spikes stay."""

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
"""Of one series that are kept: many for each column of any terminal."""
MOST_SERIES = 400
"""That are kept at all: more than anybody looks at."""


_Key: TypeAlias = "tuple[str, str, str, int, int]"
"""Label, metric, element, rank and attempt of a line; attempt 0 where a line is of all."""


_Point: TypeAlias = "tuple[float, float, PointKey | None]"
"""Place on the axis, value, and where it was reported."""


class GrowingSeries:
    """One line. Beyond its most points, of every four neighbours the least and the greatest stay."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._points: list[_Point] = []
        self.count = 0
        """Points that were added."""

    def add(self, x: float, y: float, place: PointKey | None = None) -> None:
        """One more point, anywhere; `place` is what `keep` looks at."""
        self.count += 1
        self._points.append((x, y, place))
        if len(self._points) > self._most:
            self._thin()

    def _thin(self) -> None:
        self._points.sort(key=lambda point: point[0])
        kept: list[_Point] = []
        # The newest ones stay as they are: their neighbours are still to come.
        end = len(self._points) - self._most // 8
        for place in range(0, end, 4):
            kept += _extremes(self._points[place : min(place + 4, end)])
        self._points = kept + self._points[end:]

    def keep(self, is_kept: Callable[[PointKey], bool]) -> None:
        """Forget the points that are not kept."""
        self._points = [one for one in self._points if one[2] is None or is_kept(one[2])]

    def series(self, label: str) -> Series:
        """What is kept, as it can be drawn."""
        self._points.sort(key=itemgetter(0))
        x, y, _ = zip(*self._points, strict=True) if self._points else ((), (), ())
        return Series(label=label, x=list(x), y=list(y))


def _extremes(points: list[_Point]) -> list[_Point]:
    """The least and the greatest in their order; a gap where there is no finite value."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return points[:1]
    low, high = min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])
    return [point for point in points if point is low or point is high]


class GrowingCharts:
    """The numeric points of some sessions as they come, as `series.collect` would group them.

    `most_series` are kept of all, and `most_points` of each. An attempt that begins takes away the points that it
    supersedes (nsml/spec/attempt_points.py), unless attempts are drawn apart.
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
        self._starts: dict[_Key, float] = {}
        self.left_out: set[str] = set()
        """Labels of sessions of which not every series is kept."""

    def add(self, label: str, point: MetricPoint) -> None:
        """A point of the session that is called `label`."""
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
        """Whether no later attempt supersedes it; what it supersedes is forgotten."""
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
        time = seconds_of(point.time)
        if self._axis is Axis.STEP:
            x = point.step if point.HasField("step") else float(line.count)
        elif self._axis is Axis.RELATIVE:
            x = max(time - self._starts.setdefault(key, time), 0.0)
        else:
            x = time
        if math.isfinite(x):
            line.add(x, number, place_of(point))

    @property
    def count(self) -> int:
        """Series that are kept."""
        return len(self._lines)

    def groups(self) -> dict[str, list[Series]]:
        """The series by metric, in the order in which metrics are looked at."""
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
