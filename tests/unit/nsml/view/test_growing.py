import math

from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.v1.sessions_pb2 import MetricPoint
from nsml.view.growing import MOST_SERIES, GrowingCharts, GrowingSeries
from nsml.view.series import Axis, collect

VALUES = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=60)
@given(st.lists(VALUES, min_size=1, max_size=400))
def test_little_is_kept_and_no_spike_is_lost(values):
    line = GrowingSeries(most=32)
    for x, y in enumerate(values):
        line.add(x, y)
    kept = line.series("a")
    assert len(kept.x) <= 32
    assert line.count == len(values)
    assert list(kept.x) == sorted(kept.x)
    assert kept.x[-1] == len(values) - 1
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        left = [value for value in kept.y if math.isfinite(value)]
        assert (min(left), max(left)) == (min(finite), max(finite))


def test_the_same_lines_as_of_what_is_read_at_once():
    points = [
        MetricPoint(name=name, number=step / 7, step=step, rank=rank, attempt=1)
        for step in (3, 1, 2)
        for name in ("loss", "acc")
        for rank in (0, 1)
    ]
    points.append(MetricPoint(name="note", json='"x"'))
    points.append(MetricPoint(name="v@vector", json="[1, 2.5]", step=1, attempt=1))
    for axis in Axis:
        charts = GrowingCharts(axis)
        for point in points:
            charts.add("a", point)
        assert charts.groups() == collect(points, session="a", axis=axis)


def test_a_million_names_are_not_kept():
    charts = GrowingCharts(Axis.STEP)
    for number in range(MOST_SERIES + 5):
        charts.add("a", MetricPoint(name=f"m{number}", number=1.0))
    assert len(charts.groups()) == MOST_SERIES
    assert charts.left_out == {"a"}
