"""Metrics of several numbers: the elements of `NAME@vector` and `NAME@stack`, drawn in one chart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.v1.sessions_pb2 import MetricPoint

MOST_ELEMENTS = 32
"""Most drawn elements of a list: more lines are indistinguishable."""

_FAMILIES = ("@vector", "@stack")
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Element(NamedTuple):
    """One number of a point: `metric` is its chart, `name` its line there, "" if it is the only one."""

    metric: str
    name: str
    value: float


def element_in(name: str) -> tuple[str, str]:
    """Split the name of a scalar metric into its chart and its name there; "" if it is the only one."""
    if "@" in name:
        for family in _FAMILIES:
            metric, found, element = name.partition(family + ":")
            if found and element:
                return metric + family, element
    return name, ""


def may_be_list(name: str) -> bool:
    """Return whether reported lists of a metric with this name are drawn."""
    return name.endswith(_FAMILIES)


def elements_of(point: MetricPoint) -> Iterator[Element]:
    """Yield the numbers of a point: itself, or those of a list; none if it is not numeric.

    NSML's `NAME@vector:a` and `NAME@stack:a` are elements, too; so is each number of a
    list reported as `NAME@vector`, by its index from 0.
    """
    if point.HasField("number"):
        yield Element(*element_in(point.name), point.number)
    elif may_be_list(point.name):
        yield from _listed(point)


def reported(point: MetricPoint) -> Any:
    """Return the reported value; the text if it is neither a number nor readable JSON."""
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
