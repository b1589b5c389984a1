"""Reported points as series to plot: grouped, on an axis, smoothed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from nsml.view.elements import elements_of
from nsml.view.sessions import seconds_of
from nsml.view.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsml.v1.sessions_pb2 import MetricPoint


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
    """One line: `x` never decreases; `y` may hold NaN and infinities."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def collect(points: Iterable[MetricPoint], *, session: str, axis: Axis) -> dict[str, list[Series]]:
    """The numeric points of one session by metric name, one series a replica and element.

    Points that went back (a later attempt repeats steps) are put in order, the later report last.
    """
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    starts: dict[tuple[str, str, int], float] = {}
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
    ranks = {rank for _, _, rank in found}
    grouped: dict[str, list[Series]] = {}
    for (name, element, rank), line in found.items():
        line.sort(key=lambda pair: pair[0])
        label = f"{session} rank {rank}" if len(ranks) > 1 else session
        if element:
            label += f" :{visible(element)}"
        grouped.setdefault(name, []).append(
            Series(label=label, x=[x for x, _ in line], y=[y for _, y in line])
        )
    return grouped


def smooth(series: Series, alpha: float) -> Series:
    """An exponential moving average without the bias of its start; 0 changes nothing.

    `alpha` is the share of the past, below 1. Values that are no numbers are passed through and
    left out of the average; a constant stays constant.
    """
    if not alpha:
        return series
    total = weight = 0.0
    smoothed = []
    for value in series.y:
        if not math.isfinite(value):
            smoothed.append(value)
            continue
        total = alpha * total + (1 - alpha) * value
        weight = alpha * weight + (1 - alpha)
        smoothed.append(total / weight)
    return Series(label=series.label, x=series.x, y=smoothed)
