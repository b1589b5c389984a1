"""`NAME@vector` and `NAME@stack`: one chart of several lines."""

from __future__ import annotations

import math

from nsml.v1.sessions_pb2 import MetricPoint
from nsml.view.elements import MOST_ELEMENTS, elements_of
from nsml.view.series import Axis, collect


def points(name: str, *told: object) -> list[MetricPoint]:
    return [
        MetricPoint(name=name, step=step, number=one)
        if isinstance(one, float)
        else MetricPoint(name=name, step=step, json=str(one))
        for step, one in enumerate(told)
    ]


def lines(told: list[MetricPoint]) -> dict[str, dict[str, list[float]]]:
    charts = collect(told, session="kim/None/1", axis=Axis.STEP)
    return {name: {line.label: list(line.y) for line in chart} for name, chart in charts.items()}


def test_the_numbers_of_a_list_are_lines_of_one_chart() -> None:
    assert lines(points("g@vector", "[1, 2.5]", "[3, 4]")) == {
        "g@vector": {"kim/None/1 :0": [1, 3], "kim/None/1 :1": [2.5, 4]}
    }


def test_elements_that_have_names_are_lines_of_one_chart() -> None:
    told = points("g@stack:a", 1.0) + points("g@stack:b:c", 2.0) + points("g:c", 3.0)
    assert lines(told) == {
        "g@stack": {"kim/None/1 :a": [1], "kim/None/1 :b:c": [2]},
        "g:c": {"kim/None/1": [3]},
    }


def test_what_is_no_number_is_left_out_and_its_place_is_kept() -> None:
    (chart,) = (
        lines(points("g@vector", '["NaN", "Infinity", null, true, "x", [1], 1' + "0" * 400 + "]"))[
            "g@vector"
        ].items(),
    )
    assert [label[-2:] for label, _ in chart] == [":0", ":1", ":6"]
    values = [y for _, (y,) in chart]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, math.inf]


def test_lists_elsewhere_and_broken_ones_are_no_lines() -> None:
    for name, text in (("g", "[1]"), ("g@vector", "{}"), ("g@vector", "[" * 10_000)):
        assert list(elements_of(points(name, text)[0])) == []


def test_of_a_long_list_the_first_are_drawn_and_the_title_says_so() -> None:
    ((title, chart),) = lines(points("g@vector", str([0] * 10_000))).items()
    assert title == "g@vector (the first 32 of 10,000)"
    assert len(chart) == MOST_ELEMENTS
