"""The points of MLflow's metrics in the memory of this process: bounded."""

from __future__ import annotations

from array import array
from math import isnan

from nsml._echo._mlflow_rest import number_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    Facts = Dict[str, Any]

_MOST_POINTS = 1_000_000
"""Beyond it, every second point of the longest metric is forgotten: 24 bytes each."""
_MOST_SERIES = 100_000
"""Most metrics of all runs."""


class Series:
    """The points of a metric, as they came."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.stamps = array("q")
        self.values = array("d")
        self._last: Tuple[int, int, float] = (0, 0, 0.0)

    def add(self, step: int, stamp: int, value: float) -> bool:
        """Add a point; return False if it is there already, as MLflow reports a metric once per model."""
        if self.values and self._is_last(step, stamp, value):
            return False
        if not self.values or (step, stamp, value) >= self._last:
            self._last = step, stamp, value
        self.steps.append(step)
        self.stamps.append(stamp)
        self.values.append(value)
        return True

    def thin(self) -> int:
        """Forget every second point; return how many."""
        before = len(self.values)
        for one in (self.steps, self.stamps, self.values):
            del one[1:-1:2]
        return before - len(self.values)

    def last(self, key: str) -> Facts:
        """Return the point that MLflow shows: of the largest step, then the latest."""
        step, stamp, value = self._last
        return {"key": key, "value": number_json(value), "timestamp": stamp, "step": step}

    def json(self, key: str, begins: int, ends: int) -> List[Facts]:
        return [
            {"key": key, "value": number_json(value), "timestamp": stamp, "step": step}
            for step, stamp, value in zip(
                self.steps[begins:ends], self.stamps[begins:ends], self.values[begins:ends]
            )
        ]

    def _is_last(self, step: int, stamp: int, value: float) -> bool:
        before = self.values[-1]
        is_same = before == value or (isnan(before) and isnan(value))
        return is_same and self.steps[-1] == step and self.stamps[-1] == stamp


class Points:
    """All points of the process: bounded."""

    def __init__(self) -> None:
        self._count = 0
        self._series: List[Series] = []

    def add(self, series: Series, step: int, stamp: int, value: float) -> None:
        if not series.values:
            self._series.append(series)
        if series.add(step, stamp, value):
            self._count += 1
        if self._count > _MOST_POINTS:
            longest = max(self._series, key=lambda one: len(one.values))
            self._count -= longest.thin()

    @property
    def has_room(self) -> bool:
        """Whether a further metric is kept."""
        return len(self._series) < _MOST_SERIES

    def forget(self, series: Series) -> None:
        self._count -= len(series.values)
        self._series = [one for one in self._series if one is not series]
