import math

from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.v1.sessions_pb2 import MetricPoint
from nsml.view.live_series import MOST_SERIES, GrowingCharts, GrowingSeries
from nsml.view.series import Axis, collect
from tests.support.examples import examples

VALUES = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=examples(60))
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


def test_an_attempt_that_goes_on_takes_away_what_it_repeats():
    def points(attempt, steps):
        return [
            MetricPoint(name=name, number=attempt * 10.0 + step, step=at, attempt=attempt)
            for step in steps
            for name, at in (("loss", step), ("epoch", step // 10))
        ] + [MetricPoint(name="seen", number=1.0, attempt=attempt)]

    whole = [*points(1, range(0, 50, 5)), *points(2, range(30, 40, 5)), *points(3, range(20, 25))]
    for axis in Axis:
        charts, apart = GrowingCharts(axis), GrowingCharts(axis, is_apart=True)
        for number, point in enumerate(whole):
            point.time.seconds = number
            charts.add("a", point)
            apart.add("a", point)
        [line] = charts.groups()["loss"]
        assert list(line.y) == [10.0, 15.0, 20.0, 25.0, 50.0, 51.0, 52.0, 53.0, 54.0]
        [epochs] = charts.groups()["epoch"]
        assert list(epochs.y) == [10.0, 15.0, 20.0, 25.0, 50.0, 51.0, 52.0, 53.0, 54.0]
        assert [len(one.x) for one in charts.groups()["seen"]] == [3]
        labels = [one.label for one in apart.groups()["loss"]]
        assert labels == ["a attempt 1", "a attempt 2", "a attempt 3"]
    late = MetricPoint(name="loss", number=0.0, step=45, attempt=1)
    charts.add("a", late)
    assert 0.0 not in charts.groups()["loss"][0].y, "an earlier attempt's point that comes late"


def test_lines_say_what_reported_them_unless_it_was_the_program_itself():
    charts = GrowingCharts(Axis.STEP)
    for label, name, origin in (
        ("a", "loss", "log"),
        ("b", "loss", "wandb"),
        ("a", "own", "wandb"),
        ("b", "own", ""),
        ("a", "acc", "wandb"),
    ):
        charts.add(label, MetricPoint(name=name, number=1.0, origin=origin))
    assert charts.origins() == {"loss": "log, wandb", "acc": "wandb"}


def test_a_million_names_are_not_kept():
    charts = GrowingCharts(Axis.STEP)
    for number in range(MOST_SERIES + 5):
        charts.add("a", MetricPoint(name=f"m{number}", number=1.0))
    assert len(charts.groups()) == MOST_SERIES
    assert charts.left_out == {"a"}
