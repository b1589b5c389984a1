"""Which reported points count where a session had several attempts: one rule for charts, events, files and tables.

An attempt that goes on from a checkpoint repeats steps. Metric by metric it supersedes what earlier attempts reported
from its first step on, of all replicas, since all of them go on together. So each replica has one value of a metric a
step, that of the last attempt. An attempt that begins at step 0 again supersedes all. Points without a step are never
superseded and supersede nothing: nothing says which of them are repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from nsml.v1.sessions_pb2 import MetricPoint


def superseded_from(first_steps: Mapping[int, float], attempt: int) -> float:
    """The step from which on points of an attempt are superseded; infinity: none are.

    Args:
        first_steps: of a metric, by attempt; of several replicas the least.
        attempt: from 1.
    """
    later = (step for other, step in first_steps.items() if other > attempt)
    return min(later, default=math.inf)


class PointKey(NamedTuple):
    """Where a point stands; no step: none was reported."""

    metric: Hashable
    attempt: int
    rank: int
    step: float | None


def place_of(point: MetricPoint) -> PointKey:
    """Where a reported point stands."""
    step = point.step if point.HasField("step") else None
    return PointKey(point.name, point.attempt, point.rank, step)


class FirstSteps:
    """The first steps of attempts, as points come in the order in which they were reported."""

    def __init__(self) -> None:
        self._noted: set[tuple[Hashable, int, int]] = set()
        self._by_metric: dict[Hashable, dict[int, float]] = {}

    def note(self, place: PointKey) -> bool:
        """Take a point; whether it supersedes points of earlier attempts that nothing superseded before."""
        metric, attempt, rank, step = place
        if step is None or not math.isfinite(step) or (metric, attempt, rank) in self._noted:
            return False
        self._noted.add((metric, attempt, rank))
        known = self._by_metric.setdefault(metric, {})
        if step >= known.get(attempt, math.inf):
            return False
        known[attempt] = step
        return any(other < attempt for other in known)

    def keeps(self, place: PointKey) -> bool:
        """Whether a point counts, as far as is known."""
        known = self._by_metric.get(place.metric)
        if not known or place.step is None or not math.isfinite(place.step):
            return True
        return place.step < superseded_from(known, place.attempt)
