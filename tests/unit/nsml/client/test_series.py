"""What charts are drawn of is read and grouped by one rule."""

import math
from fnmatch import fnmatchcase

import pytest

from nsml.client import series, streams
from nsml.client.series import ChartQuery, first_charts, globs_of, grouped, read_columns
from nsml.v1 import sessions_pb2 as pb
from nsml.view.figure import MOST_CHARTS
from nsml.view.series import Axis, Series

NAMES = ["loss", "val[0]", "what?", "all*", "grads@vector:a", "grads@vector:b", "odd[x]@stack:0"]


@pytest.fixture
def asked(monkeypatch):
    """The requests to a platform on which every session reported each of NAMES at 0 to 9."""
    requests = []

    async def read_series(_client, request, **_):
        requests.append(request)
        low = request.low if request.HasField("low") else 0.0
        high = request.high if request.HasField("high") else 9.0
        xs = [float(x) for x in range(10) if low <= x <= high]
        return [
            pb.ReadSeriesResponse(
                session_id=one,
                series=[
                    {"session_id": one, "name": name, "x_low": xs, "x_high": xs}
                    for name in NAMES
                    if not request.names or any(fnmatchcase(name, glob) for glob in request.names)
                ],
            )
            for one in request.sessions
        ]

    monkeypatch.setattr(streams, "read_series", read_series)
    return requests


def sessions(count):
    return [pb.Session(id=f"s{number}") for number in range(count)]


def told(columns):
    return {
        session_id: [(one.name, list(one.x_low), low, high) for one, low, high in parts]
        for session_id, parts in columns.parts().items()
    }


def test_globs_fit_their_metrics_and_are_no_longer_and_few():
    globs = globs_of(NAMES)
    assert globs == ["all?", "grads@vector:*", "loss", "odd?x]@stack:*", "val?0]", "what?"]
    assert all(any(fnmatchcase(name, glob) for glob in globs) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_only_what_was_named_is_read_whatever_is_in_the_name(asked, name):
    columns = await read_columns(None, sessions(2), ChartQuery(names=(name,), width=50))
    assert {one.name for answer in columns.answers for one in answer.series} == {name}
    assert [len(answer.series) for answer in columns.answers] == [1, 1]
    (request,) = asked
    assert (request.width, list(request.sessions)) == (50, ["s0", "s1"])


async def test_a_list_that_is_named_is_read_with_its_elements(asked):
    columns = await read_columns(None, sessions(1), ChartQuery(names=("grads@vector",)))
    names = [one.name for answer in columns.answers for one in answer.series]
    assert names == ["grads@vector:a", "grads@vector:b"]


async def test_a_query_says_which_replica_attempt_axis_and_part(asked):
    query = ChartQuery(axis=Axis.WALL, low=2.0, high=3.0, rank=1, attempt=2, is_apart=True)
    columns = await read_columns(None, sessions(1), query)
    (request,) = asked
    assert request == pb.ReadSeriesRequest(
        sessions=["s0"], ranks=[1], attempts=[2], axis=pb.SERIES_AXIS_WALL,
        low=2.0, high=3.0, width=400, all_attempts=True,
    )  # fmt: skip
    assert told(columns)["s0"][0] == ("loss", [2.0, 3.0], 2.0, 3.0)


async def test_more_sessions_than_one_request_takes_are_read_in_several(asked, monkeypatch):
    monkeypatch.setattr(series, "MOST_SESSIONS", 2)
    columns = await read_columns(None, sessions(5), ChartQuery(names=("loss",)))
    assert [len(request.sessions) for request in asked] == [2, 2, 1]
    assert list(columns.parts()) == ["s0", "s1", "s2", "s3", "s4"]


async def test_what_is_before_a_part_is_read_where_an_average_has_to_know_of_it(asked):
    query = ChartQuery(names=("loss",), low=7.0)
    found = told(await read_columns(None, sessions(1), query, with_preceding=True))
    assert [xs for _, xs, _, _ in found["s0"]] == [[7.0, 8.0, 9.0], [5.0, 6.0], [0.0, 1, 2, 3, 4]]
    below = math.nextafter
    assert [ends for _, _, *ends in found["s0"]] == [
        [7.0, math.inf],
        [5.0, below(7.0, -math.inf)],
        [-math.inf, below(5.0, -math.inf)],
    ]
    asked.clear()
    await read_columns(None, sessions(1), ChartQuery(names=("loss",)), with_preceding=True)
    await read_columns(None, sessions(1), query)
    await read_columns(
        None, sessions(1), ChartQuery(names=("loss",), low=10.0), with_preceding=True
    )
    assert len(asked) == 3, "nothing is before the beginning, of points alone, of nothing"


def test_lines_of_several_sessions_are_together_with_whose_they_are():
    line = Series(label="one", x=[0.0], y=[1.0])
    lines = grouped([("s1", {"lr": [line], "\x1b[1m": [line]}), ("s2", {"loss": [line, line]})])
    assert list(lines.groups) == ["loss", "␛[1m", "lr"]
    assert lines.owners["loss"] == ["s2", "s2"]
    assert lines.owners["␛[1m"] == lines.owners["lr"] == ["s1"]


def test_of_many_metrics_the_first_charts_are_drawn_with_their_deviations():
    losses = [f"loss{number:03}" for number in range(MOST_CHARTS)]
    lists = ["loss000@std", "zeta", "zeta@std", "many@vector:a", "many@vector:b"]
    names, left_out = first_charts([*lists, *losses])
    assert names == {*losses, "loss000@std"}
    assert left_out == 4
    assert first_charts(lists) == (frozenset(lists), 0)
