"""Lines of columns say of what was reported what lines of its points say."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2 as pb
from nsml.view.figure import Look, figure
from nsml.view.plot import above_zero, chart, words
from nsml.view.series import Axis, Series, gather, smooth, spread
from tests.support.examples import examples

VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=60)


def of_points(values):
    return Series(label="s", x=[float(x) for x in range(len(values))], y=values)


def columns_of(values, size, **named):
    series = pb.Series(**{"session_id": "s", "name": "loss", "attempt": 1, **named})
    for begin in range(0, len(values), size):
        some = values[begin : begin + size]
        finite = [value for value in some if math.isfinite(value)]
        series.x_low.append(begin)
        series.x_high.append(begin + len(some) - 1)
        series.low.append(min(finite, default=0.0))
        series.high.append(max(finite, default=0.0))
        series.mean.append(sum(finite) / len(finite) if finite else 0.0)
        series.last.append(finite[-1] if finite else 0.0)
        series.finite.append(len(finite))
        series.odd.append(len(some) - len(finite))
    return series


def of_columns(values, size):
    parts = [(columns_of(values, size), -math.inf, math.inf)]
    [line] = gather(parts, session="s")["loss"]
    return line


@settings(max_examples=examples(60))
@given(VALUES, st.integers(1, 9))
def test_columns_keep_extremes_and_counts(values, size):
    line, points = of_columns(values, size), of_points(values)
    finite = [value for value in values if math.isfinite(value)]
    drawn = [value for value in line.y if math.isfinite(value)]
    assert (line.points, line.odd) == (points.points, points.odd)
    assert list(line.x) == sorted(line.x)
    assert len(line.x) <= 4 * math.ceil(len(values) / size)
    if finite:
        assert (min(drawn), max(drawn), drawn[-1]) == (min(finite), max(finite), finite[-1])
    for is_log in (False, True):
        chart("loss", [line], axis=Axis.STEP, columns=40, rows=4, is_log=is_log)
        figure({"loss": [line], "loss@std": [line]}, Look(is_log=is_log, smoothing=0.5))
    assert f"{len(values):,} point" in words("loss", line, axis=Axis.STEP)


@given(VALUES)
def test_columns_of_one_point_are_the_points(values):
    line, points = of_columns(values, 1), of_points(values)
    assert list(line.x) == points.x
    assert [y for y in line.y if y == y] == [y for y in values if y == y]
    assert line.counts is None


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.sampled_from([0.3, 0.9]))
def test_a_moving_average_counts_every_point_of_a_column(levels, alpha):
    values = [level for level in levels for _ in range(5)]
    expected = smooth(of_points(values), alpha)
    smoothed = smooth(of_columns(values, 5), alpha)
    assert smoothed.y[-1] == pytest.approx(expected.y[-1])
    assert smoothed.points == len(values)


def test_words_say_what_the_first_is_a_mean_of():
    said = words("loss", of_columns([4.0, 2.0, 3.0, 1.0], 2), axis=Axis.STEP)
    assert "fell 3 (mean of the first 2) -> 1 over 4 points, step 0 to 3; min 1" in said


def test_a_logarithmic_line_of_columns_keeps_its_counts():
    line, dropped = above_zero(of_columns([0.0, 5.0, 1.0, -1.0, 2.0, 3.0], 3))
    assert dropped == 2
    assert line.points == 6
    shown = "".join(
        piece.text
        for piece in chart(
            "loss",
            [of_columns([0.0, 5.0, 1.0], 3)],
            axis=Axis.STEP,
            columns=60,
            rows=4,
            is_log=True,
        )[0]
    )
    assert "3 points, some left out: not above 0" in shown


def test_attempts_are_one_line_replicas_and_elements_several():
    def part(values, **named):
        return columns_of(values, 2, **named), 1.0, 4.0

    groups = gather(
        [
            part([1.0, 2.0, 3.0]),
            part([4.0, 5.0, 6.0], attempt=2),
            part([7.0], rank=1),
            part([8.0], name="v@vector:a"),
        ],
        session="s",
    )
    assert [line.label for line in groups["loss"]] == ["s rank 0", "s rank 1"]
    assert [line.label for line in groups["v@vector"]] == ["s rank 0 :a"]
    assert groups["loss"][0].points == 6
    assert all(1 <= x <= 4 for lines in groups.values() for line in lines for x in line.x)


LINES = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.floats(-1e6, 1e6) | st.just(math.nan)), max_size=20),
    max_size=6,
)


@given(LINES, st.integers(2, 40))
def test_a_mean_lies_between_the_lines_and_its_deviation_around_it(some, places):
    lines = [
        Series(label="s", x=[float(x) for x, _ in sorted(one)], y=[y for _, y in sorted(one)])
        for one in some
    ]
    finite = [y for line in lines for y in line.y if math.isfinite(y)]
    found = spread(lines, places=places)
    if not finite:
        assert found == []
        return
    mean, above, below = found
    assert mean.x == above.x == below.x == sorted(mean.x)
    assert len(mean.x) <= places
    assert all(min(finite) - 1e-3 <= y <= max(finite) + 1e-3 for y in mean.y)
    assert all(
        low <= middle <= high for low, middle, high in zip(below.y, mean.y, above.y, strict=True)
    )


def test_the_mean_of_lines_counts_those_that_reach_there():
    lines = [of_points([1.0, 1.0, 1.0]), of_points([3.0, math.nan, 3.0]), of_points([5.0])]
    mean, above, below = spread(lines, places=3)
    assert (mean.label, mean.x, mean.y) == ("mean of 3", [0.0, 1.0, 2.0], [3.0, 2.0, 2.0])
    assert above.y == [5.0, 2 + math.sqrt(2), 2 + math.sqrt(2)]
    assert below.y == [1.0, 2 - math.sqrt(2), 2 - math.sqrt(2)]
