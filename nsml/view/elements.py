"""Metrics of several numbers: the elements of `NAME@vector` and `NAME@stack`, drawn in one chart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.v1.sessions_pb2 import MetricPoint

MOST_ELEMENTS = 32
"""Of a list that is drawn: more lines than that nobody tells apart."""

_FAMILIES = ("@vector", "@stack")
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Element(NamedTuple):
    """One number of a point: `metric` names its chart, `name` it within that, "" where it is alone."""

    metric: str
    name: str
    value: float


def element_in(name: str) -> tuple[str, str]:
    """The chart of a metric that holds numbers alone, and its name within that; "" where it is alone."""
    if "@" in name:
        for family in _FAMILIES:
            metric, found, element = name.partition(family + ":")
            if found and element:
                return metric + family, element
    return name, ""


def may_be_list(name: str) -> bool:
    """Whether a metric of this name is drawn where lists of numbers were reported."""
    return name.endswith(_FAMILIES)


def elements_of(point: MetricPoint) -> Iterator[Element]:
    """The numbers of a point: itself, or those of a list; none of what is no number.

    `NAME@vector:a` and `NAME@stack:a`, as NSML had them, are elements, too; so is each number of a
    list that was reported as `NAME@vector`, by its place from 0.
    """
    if point.HasField("number"):
        yield Element(*element_in(point.name), point.number)
    elif may_be_list(point.name):
        yield from _listed(point)


def reported(point: MetricPoint) -> Any:
    """What was reported; of what is no number, and no JSON that can be read, the text."""
    if point.HasField("number"):
        return point.number
    try:
        return json.loads(point.json)
    except (ValueError, RecursionError):
        return point.json


def _listed(point: MetricPoint) -> Iterator[Element]:
    values = reported(point)
    if not isinstance(values, list):
        return
    metric = point.name
    if len(values) > MOST_ELEMENTS:
        metric += f" (the first {MOST_ELEMENTS} of {len(values):,})"
    for place, value in enumerate(values[:MOST_ELEMENTS]):
        number = _SPECIAL.get(value) if isinstance(value, str) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield Element(metric, str(place), _float(number))


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
