import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.v1.sessions_pb2 import MetricPoint
from nsml.view.plot import (
    BLANK,
    DOTS,
    MARK,
    Average,
    Piece,
    axis_texts,
    chart,
    heights,
    rasterise,
    short_legend,
    words,
)
from nsml.view.series import Axis, Series, collect, smooth
from tests.support.examples import examples

ANY = st.floats(allow_nan=True, allow_infinity=True)
POINTS = st.lists(st.tuples(st.floats(-1e300, 1e300), ANY), max_size=60)


def line(points, label="a"):
    points = sorted(points, key=lambda pair: pair[0])
    return Series(label=label, x=[x for x, _ in points], y=[y for _, y in points])


def lit(raster, row, column):
    return raster.cells[row][column][0] != "\u2800"


@settings(max_examples=examples(60))
@given(st.lists(POINTS.filter(bool), max_size=3), st.integers(1, 40), st.integers(1, 10))
def test_any_points_can_be_drawn(lines, columns, rows):
    raster = rasterise([line(points) for points in lines], columns=columns, rows=rows)
    assert [len(row) for row in raster.cells] == [columns] * rows


@settings(max_examples=examples(60))
@given(POINTS)
def test_any_points_make_a_chart(points):
    rows = chart("loss", [line(points)], axis=Axis.STEP, columns=60, rows=5)
    assert all(len("".join(p.text for p in row)) <= 60 for row in rows if "┤" in row[0].text)
    assert words("loss", line(points), axis=Axis.STEP) if points else True


def test_a_long_title_is_cut_before_what_follows_it():
    name = "layers/" + "attention/" * 20 + "loss"
    [head], *_ = chart(name, [line([(0, 1.0), (1, 2.0)])], axis=Axis.STEP, columns=60, rows=4)
    assert head.text.startswith("layers/")
    assert "…" in head.text
    assert head.text.endswith("loss  (step)  2 points")
    assert len(head.text) == 60


def test_the_greatest_number_alone_can_be_drawn():
    raster = rasterise([line([(0.0, -1.7e308)])], columns=1, rows=1)
    assert lit(raster, 0, 0)


def test_the_smallest_difference_can_be_drawn():
    rasterise([line([(0.0, 0.0), (1.0, 5e-324)])], columns=1, rows=1)


def test_a_single_spike_is_never_lost():
    y = [0.0] * 100_000
    y[54_321] = 1.0
    raster = rasterise([line(list(enumerate(y)))], columns=40, rows=6)
    assert [place for place in range(40) if lit(raster, 0, place)] == [54_321 * 79 // 99_999 // 2]


def test_a_value_that_is_no_number_is_a_gap_and_a_mark():
    with_gap = line([(0, 0.0), (10, 0.0), (20, math.nan), (30, 0.0), (40, 1.0)])
    rows = chart("loss", [with_gap], axis=Axis.STEP, columns=51, rows=4)
    text = ["".join(piece.text for piece in row) for row in rows]
    assert "1 of them not a number" in text[0]
    assert text[5].index(MARK) == 10 + 20
    bottom = text[4][10:]
    assert bottom[12] == "\u2800"
    assert bottom[5] != "\u2800"


@given(st.integers(1, 30), st.integers(1, 8), st.booleans())
def test_two_points_are_joined_by_a_straight_line(columns, rows, falls):
    ends = [(0.0, float(falls)), (1.0, float(not falls))]
    raster = rasterise([line(ends)], columns=columns, rows=rows)
    width, height = 2 * columns - 1, 4 * rows - 1
    found = set()
    for row, cells in enumerate(raster.cells):
        for column, (letter, _) in enumerate(cells):
            for y, pair in enumerate(DOTS):
                for x, bit in enumerate(pair):
                    if ord(letter) - BLANK & bit:
                        found.add((2 * column + x, 4 * row + y))
    assert len(found) == max(width, height) + 1
    for x, y in found:
        share = y / height if falls else 1 - y / height
        assert abs(x - share * width) <= 0.5 or abs(x / width - share) * height <= 0.5


def test_the_first_line_is_on_top():
    flat = [(float(x), 1.0) for x in range(10)]
    raster = rasterise([line(flat, "a"), line(flat, "b")], columns=10, rows=3)
    assert {owner for row in raster.cells for mark, owner in row if mark != "\u2800"} == {0}


def test_lines_are_told_apart_without_colour():
    rising, falling = line([(0, 0), (9, 9)], "up"), line([(0, 9), (9, 0)], "down")
    shown = chart("m", [rising, falling], axis=Axis.STEP, columns=40, rows=5)
    _, *plot, _, first, second = ["".join(piece.text for piece in row) for row in shown]
    assert [row[-1] for row in (plot[0], plot[-1])] == ["A", "B"]
    assert first.startswith("  A up  last 9")
    assert second.startswith("  B down  last 0")
    alone = chart("m", [rising], axis=Axis.STEP, columns=40, rows=5)
    assert "A" not in "".join(piece.text for row in alone for piece in row)


def test_no_number_of_a_legend_is_cut():
    told = line([(0, 2.2831), (1, 1.9971)], "root/mydata/3")

    def legend(columns):
        rows = chart("loss", [told], axis=Axis.STEP, columns=columns, rows=5)
        return "".join(piece.text for piece in rows[-1])

    assert legend(60) == "  ━ root/mydata/3  last 1.997  min 1.997  max 2.283"
    assert legend(47) == "  ━ root/mydata/3  last 1.997  min 1.997"
    assert legend(30) == "  ━ root/mydata/3  last 1.997"
    assert legend(20) == "  ━ root/mydata/3"
    told = line([(0, 2.2831), (1, 1.9971)], "somebody/a-long-data-set/3")
    assert legend(60) == "  ━ somebody/a-…data-set/3  last 1.997  min 1.997  max 2.283"
    assert all(len(legend(columns)) <= columns for columns in range(18, 90))
    sweep = [line([(0, 2.2831), (1, 1.9971)], f"kim/mnist/{at} lr=1e-{at} (sim)") for at in (1, 2)]
    row = chart("loss", sweep, axis=Axis.STEP, columns=60, rows=5)[-1]
    told = "".join(piece.text for piece in row)
    assert told == "  B kim/mnist/2 lr=1e-2 (sim)  last 1.997  min 1.997", (
        "what tells it apart is whole"
    )


@given(st.floats(-1e6, 1e6), st.floats(0, 0.999), st.integers(1, 50))
def test_smoothing_leaves_a_constant_alone(value, alpha, count):
    smoothed = smooth(Series(label="a", x=range(count), y=[value] * count), alpha)
    assert all(y == value for y in smoothed.y)


@given(st.integers(8, 60), st.lists(st.integers(1, 4), min_size=1, max_size=9), st.booleans())
def test_charts_share_all_the_room_that_there_is(room, legends, has_gap):
    y = math.nan if has_gap else 1.0
    groups = [[line([(0, 0.0), (1, y), (2, 2.0)])] * size for size in legends]
    rows = heights(room, groups, least=3)
    assert min(rows) >= 3
    assert max(rows) - min(rows) <= 1
    taken = len(rows) - 1 + (len(rows) < len(groups))
    for drawn, height in zip(groups, rows, strict=False):
        taken += len(chart("m", drawn, axis=Axis.STEP, columns=40, rows=height))
    assert taken == room or len(rows) == 1


@pytest.mark.parametrize(("metrics", "rows"), [(1, 25), (2, 11), (4, 4), (5, 3), (50, 3)])
def test_a_screen_of_thirty_lines(metrics, rows):
    shares = heights(28, [[line([(0, 1.0)])]] * metrics, least=3)
    assert (len(shares), shares[0]) == (min(metrics, 4), rows)


@pytest.mark.parametrize("is_log", [False, True])
def test_the_dust_of_sums_is_drawn_flat(is_log):
    dusty = line([(x, 0.1 + x % 3 * 1e-17) for x in range(30)])
    dusty.y[::2] = [math.nextafter(y, 1.0) for y in dusty.y[::2]]
    shown = chart("m", [dusty], axis=Axis.STEP, columns=40, rows=5, is_log=is_log)
    plot = ["".join(piece.text for piece in row)[10:] for row in shown[1:6]]
    assert sum(set(row) != {"\u2800"} for row in plot) == 1


@given(POINTS.filter(bool), st.floats(0.01, 0.99), st.booleans())
def test_any_average_can_be_drawn(points, alpha, is_log):
    raw = line(points)
    average = Average(lines=[smooth(raw, alpha)], share=alpha)
    chart("m", [raw], axis=Axis.STEP, columns=40, rows=4, is_log=is_log, average=average)
    words("m", raw, axis=Axis.STEP, average=average)


@pytest.mark.parametrize(
    ("axis", "low", "high", "texts"),
    [
        (Axis.RELATIVE, 0, 1.9, ("0s", "1.9s")),
        (Axis.RELATIVE, 1.2, 1.7, ("1.2s", "1.7s")),
        (Axis.RELATIVE, 600, 640, ("10m", "10m40s")),
        (Axis.RELATIVE, 0, 5400, ("0s", "1h30m")),
        (Axis.RELATIVE, 59.96, 64, ("1m", "1m4s")),
        (Axis.RELATIVE, 3600, 3600.004, ("1h", "1h0.004s")),
        (Axis.RELATIVE, 0, 86_400 * 20, ("0s", "20d")),
        (Axis.STEP, 0, 1000, ("0", "1,000")),
        (Axis.STEP, 12_345_678, 12_345_999, ("12,345,678", "12,345,999")),
    ],
)
def test_the_ends_of_an_axis_are_told_apart(axis, low, high, texts):
    assert axis_texts(low, high, axis) == texts


@given(st.floats(0, 1e7), st.floats(1e-3, 1e7))
def test_ends_that_differ_read_differently(low, span):
    for axis in (Axis.STEP, Axis.RELATIVE):
        left, right = axis_texts(low, low + span, axis)
        assert left != right


def test_values_that_are_near_one_another_have_their_digits():
    shown = chart("m", [line([(0, 0.98761), (9, 0.98764)])], axis=Axis.STEP, columns=40, rows=3)
    assert [row[0].text.strip("┤ ") for row in shown[1:4]] == ["0.98764", "0.98762", "0.98761"]


def test_smoothing_passes_over_what_is_no_number():
    smoothed = smooth(Series(label="a", x=[0, 1, 2], y=[1.0, math.nan, 1.0]), 0.9)
    assert smoothed.y[0] == smoothed.y[2] == 1.0
    assert math.isnan(smoothed.y[1])


def point(name, number, *, step=None, seconds=0, rank=0, attempt=1):
    made = MetricPoint(name=name, number=number, step=step, rank=rank, attempt=attempt)
    made.time.seconds = seconds
    return made


def test_axes():
    points = [point("x", 1.0, step=5, seconds=100), point("x", 2.0, step=7, seconds=160)]
    assert collect(points, session="s", axis=Axis.STEP)["x"][0].x == [5, 7]
    assert collect(points, session="s", axis=Axis.RELATIVE)["x"][0].x == [0, 60]
    assert collect(points, session="s", axis=Axis.WALL)["x"][0].x == [100, 160]
    bare = [point("x", 1.0), point("x", 2.0)]
    assert collect(bare, session="s", axis=Axis.STEP)["x"][0].x == [0, 1]


def test_replicas_are_lines_of_their_own():
    found = collect(
        [point("x", 1.0, step=0), point("x", 2.0, step=0, rank=1)], session="s", axis=Axis.STEP
    )
    assert [series.label for series in found["x"]] == ["s rank 0", "s rank 1"]


def test_a_repeated_attempt_keeps_steps_in_order():
    points = [point("x", float(n), step=step) for n, step in enumerate([0, 1, 2, 1, 2, 3])]
    assert collect(points, session="s", axis=Axis.STEP)["x"][0].x == [0, 1, 1, 2, 2, 3]


def test_lines_with_numbers_of_their_own_keep_letters_and_colours_whichever_is_on_top():
    lines = [
        line([*enumerate(range(9))]),
        line([*enumerate(range(9, 0, -1))], "b"),
        Series(label="empty", x=[], y=[]),
    ]
    drawn = chart("loss", lines, axis=Axis.STEP, columns=40, rows=4, numbers=[27, 3, 5], named=1)
    pieces = [piece for row in drawn for piece in row]
    assert {piece.series for piece in pieces} == {None, 27, 3}
    assert any("b" in piece.text for piece in pieces if piece.series == 27)
    assert sum("min" in piece.text for piece in pieces) == 1
    assert len(heights(16, [lines] * 2, least=4)) == 1
    assert len(heights(16, [lines] * 2, least=4, named=[1, 1])) == 2


def test_a_legend_without_room_has_several_lines_in_a_row_and_counts_the_others():
    lines = [Series(label="", x=[0, 1], y=[5.0, place]) for place in range(6)]
    labels = [f"lr=0.{place}" for place in range(6)]
    some = {"labels": labels, "numbers": range(6), "columns": 40}
    rows = short_legend(lines, **some, rows=2)
    texts = ["".join(piece.text for piece in row) for row in rows]
    assert texts == [
        "  A lr=0.0 0  B lr=0.1 1  C lr=0.2 2",
        "  D lr=0.3 3  E lr=0.4 4  F lr=0.5 5",
    ]
    assert rows[0][2] == Piece(text="  B lr=0.1", series=1)
    [row] = short_legend(lines, **some, rows=1)
    assert "".join(piece.text for piece in row) == "  A lr=0.0 0  and 5 more lines"
