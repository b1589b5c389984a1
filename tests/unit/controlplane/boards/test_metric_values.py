"""Values of metrics as boards rank them, over a real history."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.boards.metric_values import MetricValues
from controlplane.history.sql.history import History
from controlplane.history.sql.series import NO_EXTENT
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, Extreme, StreamKey
from nsml.common.clock import inline
from tests.unit.controlplane.workbench import HandClock


@pytest.fixture
async def history() -> AsyncIterator[History]:
    opened = await open_history(":memory:", clock=HandClock(), run=inline)
    yield opened
    await opened.close()


async def tell(
    history: History,
    values: list[dict[str, Any]],
    *,
    session: str = "s1",
    attempt: int = 1,
    first: int = 1,
) -> None:
    records = tuple(
        json.dumps(
            {"kind": "metric", "time": 100.0 + at, "step": at - first, "values": value}
        ).encode()
        for at, value in enumerate(values, first)
    )
    stream = StreamKey(session, attempt, 0, Channel.METRIC, 1)
    chunk = Chunk(stream=stream, first=first, last=first + len(records) - 1, records=records)
    await history.streams.append([chunk])


@pytest.mark.parametrize("is_folded", [False, True])
async def test_when_the_best_was_first_reported(history: History, is_folded: bool) -> None:
    scores = [math.sin(at / 500) for at in range(5_000)]
    await tell(history, [{"acc": one} for one in scores])
    while is_folded and await history.series.fold("s1"):
        pass
    values = MetricValues(history)
    found = (await values.of(["s1", "s2"], "acc"))["s1"]
    for extreme, best in ((found.high, max(scores)), (found.low, min(scores))):
        exact = await values.first_report("s1", "acc", extreme)
        assert exact.value == best
        assert exact.until == 101.0 + scores.index(best)
    assert found.last.value == scores[-1]


async def test_cached_values_are_those_before_what_is_forgotten(history: History) -> None:
    values = MetricValues(history)
    await tell(history, [{"acc": 0.5}])
    assert (await values.of(["s1"], "acc"))["s1"].high.value == 0.5
    await tell(history, [{"acc": 0.75}], first=2)
    assert (await values.of(["s1"], "acc"))["s1"].high.value == 0.5
    values.forget(["s1"])
    assert (await values.of(["s1"], "acc"))["s1"].high.value == 0.75


async def test_an_attempt_that_begins_again_supersedes_the_one_before(history: History) -> None:
    await tell(history, [{"acc": 0.9}, {"acc": 0.8}])
    await tell(history, [{"acc": 0.7}], attempt=2)
    assert (await MetricValues(history).of(["s1"], "acc"))["s1"].high.value == 0.7


async def test_values_that_are_not_finite_are_none(history: History) -> None:
    await tell(history, [{"acc": "NaN"}, {"acc": "-Infinity"}])
    assert await MetricValues(history).of(["s1"], "acc") == {"s1": NO_EXTENT}


async def test_a_standard_error_is_that_of_the_same_report(history: History) -> None:
    await tell(
        history,
        [{"acc": 0.5, "acc@std": 0.1}, {"acc": 0.7, "acc@std": 0.02}, {"acc": 0.6, "acc@std": -1}],
    )
    values = MetricValues(history)
    assert await values.standard_error("s1", "acc", 102.0) == 0.02
    assert await values.standard_error("s1", "acc", 103.0) is None
    assert await values.standard_error("s1", "acc", 50.0) is None


async def test_names_with_wildcards_are_names(history: History) -> None:
    await tell(history, [{"acc[1]": 0.5, "acc1": 0.9, "a*": 0.1}])
    values = MetricValues(history)
    assert (await values.of(["s1"], "acc[1]"))["s1"].high == Extreme(0.5, 101.0, 101.0)
    assert (await values.of(["s1"], "a*"))["s1"].high.value == 0.1
