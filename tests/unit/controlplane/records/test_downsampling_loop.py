"""What waits is folded, whatever is wrong with some of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql import series
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.records.downsampling_loop import Folding
from nsml.common.clock import SystemClock, inline
from tests.unit.controlplane.rig import until
from tests.unit.controlplane.workbench import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.history.sqlite.history import SqliteHistory


@pytest.fixture
async def history(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteHistory]:
    monkeypatch.setattr(Folding, "look_every_s", 0.01)
    monkeypatch.setattr(Folding, "retry_s", 0.01)
    monkeypatch.setattr(series, "FOLD_BYTES", 1)
    monkeypatch.setattr(series, "TURN_BYTES", 100)
    opened = await open_history(":memory:", clock=SystemClock(), run=inline)
    for session in ("s1", "s2"):
        for first in range(1, 31, 10):
            records = tuple(
                json.dumps({"kind": "metric", "time": 1.0, "values": {"loss": n}}).encode()
                for n in range(10)
            )
            key = StreamKey(session, 1, 0, Channel.METRIC)
            await opened.streams.append(
                [Chunk(stream=key, first=first, last=first + 9, records=records)]
            )
    yield opened
    await opened.close()


async def test_all_that_waits_is_folded(history: SqliteHistory) -> None:
    async def is_folded() -> bool:
        return not await history.series.unfolded()

    async with working(Folding(history=history, clock=SystemClock()).run()):
        await until(is_folded, "everything is folded")


async def test_more_than_a_round_takes_is_folded_without_a_pause(
    history: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folding, "look_every_s", 3_600.0)
    for limit in ("at_once", "enough", "most_turns"):
        monkeypatch.setattr(Folding, limit, 1)

    async def is_folded() -> bool:
        return not await history.series.unfolded()

    async with working(Folding(history=history, clock=SystemClock()).run()):
        await until(is_folded, "everything is folded")


async def test_a_damaged_session_and_a_lost_history_keep_nobody_waiting(
    history: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    history._database._writer.execute(
        "UPDATE chunks SET body = x'09' WHERE stream_id = 1 AND first = 11"
    )
    fold, away = history.series.fold, ["once"]

    async def sometimes(session_id: str) -> bool:
        if away:
            raise HistoryUnavailable(away.pop())
        return await fold(session_id)

    monkeypatch.setattr(history.series, "fold", sometimes)

    async def others_are_folded() -> bool:
        return await history.series.unfolded() == ("s1",)

    loop = Folding(history=history, clock=SystemClock())
    async with working(loop.run()):
        await until(others_are_folded, "what is sound is folded")
    assert list(loop._avoided) == ["s1"]
