"""Metrics of several numbers: the elements of `NAME@vector` and `NAME@stack`, drawn in one chart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

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


def elements_of(point: MetricPoint) -> Iterator[Element]:
    """The numbers of a point: itself, or those of a list; none of what is no number.

    `NAME@vector:a` and `NAME@stack:a`, as NSML had them, are elements, too; so is each number of a
    list that was reported as `NAME@vector`, by its place from 0.
    """
    is_number = point.HasField("number")
    if "@" in point.name:
        for family in _FAMILIES if is_number else ():
            metric, found, name = point.name.partition(family + ":")
            if found and name:
                yield Element(metric + family, name, point.number)
                return
        if not is_number and point.name.endswith(_FAMILIES):
            yield from _listed(point)
            return
    if is_number:
        yield Element(point.name, "", point.number)


def _listed(point: MetricPoint) -> Iterator[Element]:
    try:
        values = json.loads(point.json)
    except (ValueError, RecursionError):
        return
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
