"""Whatever is resent, reordered, overlapped or skipped: each position once, in order, gaps told."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, Gap, Recorded, StreamKey
from nsml.common.clock import SystemClock, inline
from tests.support.examples import examples

if TYPE_CHECKING:
    from controlplane.history.sql.streams import SqlStreams

LENGTH = 40
LOG = StreamKey("s", 1, 0, Channel.LOG)
METRIC = StreamKey("s", 1, 0, Channel.METRIC, 3)
TEXT = bytes(range(100, 100 + LENGTH))
RECORDS = tuple(
    json.dumps({"kind": "metric", "time": 1.0, "values": {"n": n}}).encode()
    for n in range(1, LENGTH + 1)
)
ranges = st.tuples(st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1)).map(sorted)
batches = st.lists(st.lists(ranges, min_size=1, max_size=4), max_size=12)


def chunk(key: StreamKey, low: int, high: int) -> Chunk:
    if key.channel is Channel.LOG:
        return Chunk(stream=key, first=low, last=high, data=TEXT[low : high + 1])
    return Chunk(stream=key, first=low + 1, last=high + 1, records=RECORDS[low : high + 1])


async def check(streams: SqlStreams, key: StreamKey, given_positions: set[int]) -> None:
    """The stream holds exactly what was given, and says what is missing before its end."""
    first_position = key.channel.first_position
    end = max(given_positions, default=-1) + 1
    stored: dict[int, object] = {}
    missing: set[int] = set()
    expected = first_position
    for part in await streams.read(key, 0):
        assert part.first == expected, "parts follow one another"
        expected = part.last + 1
        positions = range(part.first - first_position, part.last - first_position + 1)
        if isinstance(part, Gap):
            missing.update(positions)
        else:
            assert isinstance(part, Recorded)
            content = part.data if key.channel is Channel.LOG else part.records
            stored.update(zip(positions, content, strict=True))
    source = TEXT if key.channel is Channel.LOG else RECORDS
    assert stored == {position: source[position] for position in given_positions}
    assert missing == set(range(end)) - given_positions
    if given_positions:
        assert (await streams.cursors("s", 1))[key] == end + first_position


@given(batches)
@settings(max_examples=examples(150), deadline=None)
@pytest.mark.parametrize("key", [LOG, pytest.param(METRIC, marks=pytest.mark.variant)])
def test_each_position_once_and_in_order(key: StreamKey, plan: list[list[list[int]]]) -> None:
    async def scenario() -> None:
        history = await open_history(":memory:", clock=SystemClock(), run=inline)
        given_positions: set[int] = set()
        followed: list[float] = []
        mark = 0
        for batch in plan:
            marks = await history.streams.append([chunk(key, low, high) for low, high in batch])
            for low, high in batch:
                given_positions.update(range(low, high + 1))
            assert marks == {key: max(given_positions) + 1 + key.channel.first_position}
            page = await history.streams.read_metrics("s", after=mark)
            mark = page.next
            followed += [point.value for point in page.points]
            await check(history.streams, key, given_positions)
        if key is METRIC:
            assert sorted(followed) == sorted(position + 1 for position in given_positions)
            counted = (await history.streams.metric_counts("s")).get("n", 0)
            assert counted == len(given_positions)
        await history.close()

    asyncio.run(scenario())
