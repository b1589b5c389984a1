import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.view.figure import (
    COLOURS,
    DASHES,
    MOST_CHARTS,
    Area,
    Figure,
    Label,
    Look,
    Stroke,
    figure,
)
from nsml.view.series import Axis, Series
from nsml.view.svg import svg
from nsml.view.ticks import log_ticks, place_ticks, value_ticks
from tests.support.examples import examples

ANY = st.floats(allow_nan=True, allow_infinity=True)
PLACES = st.floats(-1e300, 1e300)
POINTS = st.lists(st.tuples(PLACES, ANY), max_size=40)


def line(points, label="a"):
    points = sorted(points, key=lambda pair: pair[0])
    return Series(label=label, x=[x for x, _ in points], y=[y for _, y in points])


def shapes(drawn: Figure, kind):
    return [shape for tile in drawn.tiles for shape in tile.shapes if isinstance(shape, kind)]


def texts(drawn):
    return [label.text for label in shapes(drawn, Label)]


@settings(max_examples=examples(60))
@given(st.lists(POINTS, max_size=3), st.booleans(), st.sampled_from([0.0, 0.9]))
def test_any_points_make_a_picture_within_its_frame(lines, is_log, smoothing):
    groups = {"a/x": [line(points, str(n)) for n, points in enumerate(lines)]}
    drawn = figure(groups, Look(is_log=is_log, smoothing=smoothing))
    for tile in drawn.tiles:
        for shape in tile.shapes:
            points = shape.points if not isinstance(shape, Label) else ((shape.x, shape.y),)
            for x, y in points:
                assert -3 <= x <= tile.width + 3
                assert -3 <= y <= tile.height + 3
    ET.fromstring("\n".join(svg(drawn)))


@settings(max_examples=examples(200))
@given(PLACES, PLACES)
def test_ticks_are_within_the_range_and_few(a, b):
    low, high = min(a, b), max(a, b)
    found = value_ticks(low, high, most=6)
    assert 1 <= len(found.at) == len(found.texts) <= 14
    slack = (high / 2 - low / 2) * 1e-9
    assert all(low - 2 * slack <= value <= high + 2 * slack for value in found.at)


def test_ticks_are_round_and_tell_values_apart():
    assert value_ticks(0.0, 0.97, most=6).texts == ("0", "0.2", "0.4", "0.6", "0.8")
    assert value_ticks(0.98761, 0.98764, most=4).texts == (
        "0.98761",
        "0.98762",
        "0.98763",
        "0.98764",
    )
    assert value_ticks(0.0, 149_999, most=6).texts == ("0", "50k", "100k")
    assert value_ticks(99_700, 106_000, most=6).texts == ("100k", "102k", "104k", "106k")
    assert value_ticks(0, 3e-6, most=4).texts == ("0", "1e-6", "2e-6", "3e-6")
    assert value_ticks(-1.7e308, 1.7e308, most=6).at
    assert log_ticks(0.002, 500, most=6).texts == ("0.01", "0.1", "1", "10", "100")
    assert log_ticks(1e-9, 1.0, most=6).texts == ("1e-9", "1e-7", "1e-5", "1e-3", "1e-1")
    assert log_ticks(2.0, 8.0, most=4).texts == ("2", "4", "6", "8")


def test_times_have_round_ticks_in_their_unit():
    found = place_ticks(0, 5400, Axis.RELATIVE, most=6)
    assert (found.texts, found.unit) == (("0", "20", "40", "60", "80"), "min")
    found = place_ticks(1_700_000_000, 1_700_003_600, Axis.WALL, most=4)
    assert found.texts == ("22:15", "22:30", "22:45", "23:00")
    assert found.unit == "UTC, 2023-11-14"
    found = place_ticks(1_700_000_000, 1_700_000_000 + 86_400 * 40, Axis.WALL, most=4)
    assert found.texts == ("2023-11-23", "2023-12-07", "2023-12-21")


def test_a_spike_is_never_lost_and_a_line_is_small():
    y = [0.0] * 100_000
    y[54_321] = 1.0
    drawn = figure({"loss": [line(list(enumerate(y)))]}, Look())
    [trace] = [stroke for stroke in shapes(drawn, Stroke) if len(stroke.points) > 2]
    assert len(trace.points) < 4 * 400
    assert len({point[1] for point in trace.points}) == 2


def test_what_is_no_number_parts_the_line_and_is_marked():
    points = [(0, 1.0), (1, 1.0), (2, math.nan), (3, 1.0), (4, 1.0)]
    drawn = figure({"loss": [line(points)]}, Look())
    lines = [s for s in shapes(drawn, Stroke) if s.colour == COLOURS[0]]
    assert len(lines) == 3  # the legend's, and two parts
    assert "5 points, 1 not a number" in texts(drawn)


def test_what_is_not_above_zero_is_counted_on_a_logarithmic_axis():
    drawn = figure({"loss": [line([(0, 0.0), (1, -1.0), (2, 1.0), (3, 100.0)])]}, Look(is_log=True))
    assert "4 points, 2 not above 0" in texts(drawn)
    assert {"1", "10", "100"} <= set(texts(drawn))
    assert "nothing to draw" in texts(figure({"loss": [line([(0, 0.0)])]}, Look(is_log=True)))


def test_a_line_looks_the_same_in_all_charts_and_unlike_others():
    groups = {
        "train/loss": [line([(0, 1), (1, 2)], label) for label in ("a", "b")],
        "train/acc": [line([(0, 1), (1, 2)], "b")],
    }
    strokes = [s for s in shapes(figure(groups, Look()), Stroke) if s.colour in COLOURS]
    looks = [(s.colour, s.dashes) for s in strokes]
    assert looks[:2] == looks[2:4]
    assert looks[1] == looks[4]
    assert len(set(looks)) == 2
    assert len({colour for colour, _ in looks}) == 2
    assert len({dashes for _, dashes in looks}) == 2


def test_no_two_of_many_lines_look_the_same():
    lines = [line([(0, 1), (1, 2)], str(n)) for n in range(len(COLOURS) * len(DASHES))]
    drawn = figure({"v@vector": lines}, Look())
    pens = {(s.colour, s.dashes) for s in shapes(drawn, Stroke) if s.colour in COLOURS}
    assert len(pens) == len(lines)


def test_long_names_keep_what_tells_them_apart():
    group = "validation/" + "layers." * 5
    names = [f"{group}/{leaf}" for leaf in ("attention", "norm", "x" * 60 + "1", "x" * 60 + "2")]
    labels = ["kim/" + "long" * 60 + f"/{number}" for number in (1, 2)]
    found = texts(figure({name: [line([(0, 1)], one) for one in labels] for name in names}, Look()))
    assert {group, "attention", "norm"} <= set(found)
    assert len({text for text in found if text.startswith("xxx")}) == 2
    assert len({text for text in found if text.startswith("kim/")}) == 2


def test_groups_share_a_heading_and_a_deviation_is_a_band():
    points = [(0, 1.0), (1, 2.0)]
    groups = {name: [line(points)] for name in ("lr", "val/loss", "val/loss@std", "val/x@std")}
    drawn = figure(groups, Look())
    found = texts(drawn)
    assert found.count("val") == 1
    assert [name for name in groups if name in found] == ["lr", "val/loss", "val/x@std"]
    assert len(shapes(drawn, Area)) == 1


def test_many_metrics_and_lines_are_bounded():
    groups = {f"m{n:03}": [line([(0, 1.0)], str(k)) for k in range(50)] for n in range(60)}
    drawn = figure(groups, Look())
    assert "12 metrics more, not drawn" in texts(drawn)
    assert "10 lines more, not named here" in texts(drawn)
    assert len(drawn.tiles) == 1 + MOST_CHARTS


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\x00b\ufffe]]>&", "\u202e" * 300])
def test_a_name_is_only_text(name):
    drawn = figure({name: [line([(0, 1.0)], name)]}, Look())
    root = ET.fromstring("\n".join(svg(drawn, [name])))
    assert {element.tag.split("}")[1] for element in root.iter()} <= {
        *("svg", "title", "desc", "rect", "g", "polyline", "text")
    }
