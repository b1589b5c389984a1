"""Which reported points count in a session with several attempts: one rule for charts, events, files and tables.

An attempt resumed from a checkpoint repeats steps. Metric by metric it supersedes the points of earlier attempts
from its first step on, of all replicas, since they all resume together. So each replica has one value of a metric per
step, that of the last attempt. An attempt that starts again at step 0 supersedes all. Points without a step are never
superseded and supersede nothing: it is unknown which of them are repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from nsml.v1.sessions_pb2 import MetricPoint


def superseded_from(first_steps: Mapping[int, float], attempt: int) -> float:
    """Return the first superseded step of an attempt's points; infinity: none is superseded.

    Args:
        first_steps: of a metric, by attempt; the least of all replicas.
        attempt: from 1.
    """
    later = (step for other, step in first_steps.items() if other > attempt)
    return min(later, default=math.inf)


class PointKey(NamedTuple):
    """Key of a point; `step` is None if none was reported."""

    metric: Hashable
    attempt: int
    rank: int
    step: float | None


def place_of(point: MetricPoint) -> PointKey:
    """Return the key of a reported point."""
    step = point.step if point.HasField("step") else None
    return PointKey(point.name, point.attempt, point.rank, step)


class FirstSteps:
    """First steps of attempts, collected from points in the order of their reports."""

    def __init__(self) -> None:
        self._noted: set[tuple[Hashable, int, int]] = set()
        self._by_metric: dict[Hashable, dict[int, float]] = {}

    def note(self, place: PointKey) -> bool:
        """Add a point; return whether it supersedes points of earlier attempts that were not superseded before."""
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
        """Return whether a point counts, by the points added so far."""
        known = self._by_metric.get(place.metric)
        if not known or place.step is None or not math.isfinite(place.step):
            return True
        return place.step < superseded_from(known, place.attempt)
