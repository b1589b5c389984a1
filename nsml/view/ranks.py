"""Reduces values reported by the replicas of a gang for the same step to one."""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsml.v1.sessions_pb2 import MetricPoint

_Place: TypeAlias = "tuple[int, str, float | None]"


class Reduction(StrEnum):
    """How several numbers become one. With a NaN the result is NaN."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    SUM = "sum"


def over_ranks(points: Iterable[MetricPoint], how: Reduction) -> list[tuple[MetricPoint, int]]:
    """Return a point for each attempt, metric and step, with its number of replicas.

    Points with the same attempt, metric and step are reduced; without a step, or if one
    is repeated, those with the same index within their replica. The time is that of the last one. Non-numeric
    values are left out.
    """
    seen: Counter[tuple[_Place, int]] = Counter()
    found: dict[tuple[_Place, int], list[MetricPoint]] = {}
    for point in points:
        if not point.HasField("number"):
            continue
        place = (point.attempt, point.name, point.step if point.HasField("step") else None)
        turn = seen[place, point.rank]
        seen[place, point.rank] += 1
        found.setdefault((place, turn), []).append(point)
    return [(_one(together, how), len(together)) for together in found.values()]


def _one(points: Sequence[MetricPoint], how: Reduction) -> MetricPoint:
    last = max(points, key=lambda point: (point.time.seconds, point.time.nanos))
    made = type(last)()
    made.CopyFrom(last)
    made.rank = 0
    made.number = reduce([point.number for point in points], how)
    return made


def reduce(values: Sequence[float], how: Reduction) -> float:
    """Reduce one or more numbers."""
    if any(math.isnan(value) for value in values):
        return math.nan
    match how:
        case Reduction.MEAN:
            # Each divided first: the sum of finite numbers may be infinite, their mean never.
            return sum(value / len(values) for value in values)
        case Reduction.MIN:
            return min(values)
        case Reduction.MAX:
            return max(values)
        case Reduction.SUM:
            return sum(values)
