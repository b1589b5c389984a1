"""Series of every history: whatever was reported, however it was folded, a read is complete."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.domain.errors import InvalidRequest
from controlplane.history.errors import HistoryFull, HistoryUnavailable
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql import retention as thinning
from controlplane.history.sql import series as sql_series
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Ages,
    Channel,
    Chunk,
    Gap,
    LetGo,
    Recorded,
    SeriesAxis,
    SeriesQuery,
    SeriesView,
    SessionRecord,
    StreamKey,
)
from nsml.common.clock import SystemClock, in_thread, inline
from nsml.spec.attempt_points import superseded_from
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.history.sql.history import History


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.variant), "file", "postgresql"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[History]:
    opened: History
    if request.param == "postgresql":
        url = request.getfixturevalue("emptied_database")
        opened = await open_postgresql(url, clock=SystemClock())
    elif request.param == "file":
        opened = await open_history(tmp_path / "h.db", clock=SystemClock(), run=in_thread)
    else:
        opened = await open_history(":memory:", clock=SystemClock(), run=inline)
    yield opened
    await opened.close()


def key(attempt: int = 1, rank: int = 0, writer: int = 0, session: str = "s1") -> StreamKey:
    return StreamKey(session, attempt, rank, Channel.METRIC, writer)


def chunk(stream: StreamKey, first: int, *reports: dict[str, Any]) -> Chunk:
    records = tuple(
        json.dumps({"kind": "metric", "time": 1e9 + first + n, "step": first + n} | one).encode()
        for n, one in enumerate(reports)
    )
    return Chunk(stream=stream, first=first, last=first + len(records) - 1, records=records)


def run(stream: StreamKey, first: int, count: int, name: str = "loss") -> Chunk:
    return chunk(
        stream, first, *({"values": {name: float(n % 97)}} for n in range(first, first + count))
    )


async def fold_all(history: History, session: str = "s1") -> int:
    turns = 1
    while await history.series.fold(session):
        turns += 1
    return turns


async def views(history: History, session: str = "s1", **query: Any) -> tuple[SeriesView, ...]:
    page = await history.series.read(session, SeriesQuery(**{"width": 100} | query))
    return page.series


def points_in(view: SeriesView) -> int:
    return sum(column.finite + column.odd for column in view.columns)


async def test_nothing_reported_is_no_series(history: History) -> None:
    assert await views(history) == ()
    assert not await history.series.fold("s1")
    assert await history.series.unfolded() == ()


async def test_a_read_is_complete_before_during_and_after_folding(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FOLD_BYTES", "MOST_TURN_BYTES"):  # nothing is folded by reading
        monkeypatch.setattr(sql_series, name, 1 << 30)
    for first in range(1, 5_001, 500):
        await history.streams.append([run(key(), first, 500)])
    before = await views(history)
    [view] = before
    assert points_in(view) == 5_000
    assert (view.name, view.attempt, view.rank, view.start) == ("loss", 1, 0, 1e9 + 1)
    await fold_all(history)
    assert await views(history) == before
    await history.streams.append([run(key(), 5_001, 777)])
    [view] = await views(history)
    assert points_in(view) == 5_777
    assert (view.columns[0].x_low, view.columns[-1].x_high) == (1.0, 5_777.0)


async def test_a_spike_is_seen_at_any_width(history: History) -> None:
    reports = [{"values": {"loss": 1.0}} for _ in range(10_000)]
    reports[6_173] = {"values": {"loss": 1e6}}
    reports[8_001] = {"values": {"loss": "NaN"}}
    for first in range(0, 10_000, 1_000):
        await history.streams.append([chunk(key(), first + 1, *reports[first : first + 1_000])])
    await fold_all(history)
    for width in (1, 2, 10, 100, 1_000):
        [view] = await views(history, width=width)
        assert len(view.columns) <= 2 * width
        [spike] = [column for column in view.columns if column.high == 1e6]
        assert spike.x_low <= 6_174 <= spike.x_high
        [odd] = [column for column in view.columns if column.odd]
        assert (odd.odd, odd.x_low <= 8_002 <= odd.x_high) == (1, True)
    [view] = await views(history, low=6_170, high=6_180)
    assert view.grain == 1
    assert [column.x_low for column in view.columns] == list(range(6_170, 6_181))
    assert view.columns[4].last == 1e6


async def test_attempts_ranks_and_writers_are_told_apart(history: History) -> None:
    for stream in (key(), key(rank=1), key(attempt=2), key(attempt=2, writer=7)):
        await history.streams.append([run(stream, 1, 40)])
    for _ in range(2):
        whole = await views(history, all_attempts=True)
        found = {(v.attempt, v.rank): points_in(v) for v in whole}
        assert found == {(1, 0): 40, (1, 1): 40, (2, 0): 80}
        assert [(v.attempt, v.rank) for v in await views(history, ranks=frozenset({1}))] == [(1, 1)]
        assert [v.rank for v in await views(history, attempts=frozenset({2}))] == [0]
        await fold_all(history)


@pytest.mark.parametrize("is_folded", [True, False])
@pytest.mark.parametrize("count", [10, 3_000])
async def test_an_attempt_that_goes_on_supersedes_what_was_reported_from_its_first_step_on(
    history: History, count: int, *, is_folded: bool
) -> None:
    await history.streams.append([run(key(), 1, count)])
    middle = count // 2 + 1
    again = [{"values": {"loss": 1e3}, "step": step} for step in range(middle, count - 1)]
    await history.streams.append([chunk(key(attempt=2), 1, *again)])
    await history.streams.append([run(key(rank=1), 1, count)])
    if is_folded:
        await fold_all(history)
    for width in (5, 10_000):
        first, second, other = await views(history, width=width)
        assert (points_in(first), points_in(second)) == (middle - 1, len(again))
        assert first.columns[-1].x_high == middle - 1 < second.columns[0].x_low == middle
        assert points_in(other) == middle - 1, "a replica that has not reported again yet"
        wall = await views(history, width=width, axis=SeriesAxis.WALL)
        assert [points_in(view) for view in wall] == [middle - 1, len(again), middle - 1]
        [alone] = await views(history, width=width, ranks=frozenset({1}))
        assert alone == other
    first, second, _ = await views(history, width=10_000, low=middle - 2, high=middle + 1)
    assert [points_in(first), points_in(second)] == [2, 2]
    assert [points_in(one) for one in await views(history, attempts=frozenset({1}))] == [count] * 2


async def test_an_attempt_that_begins_at_step_0_again_supersedes_all(history: History) -> None:
    for attempt, count in ((1, 30), (2, 20), (3, 4)):
        reports = [{"values": {"loss": 1.0}, "step": step} for step in range(count)]
        await history.streams.append([chunk(key(attempt), 1, *reports)])
    for _ in range(2):
        assert [points_in(view) for view in await views(history)] == [0, 0, 4]
        await fold_all(history)


async def test_points_without_a_step_go_on_from_attempt_to_attempt(history: History) -> None:
    for attempt, count in ((1, 30), (2, 20), (3, 4)):
        reports = [{"values": {"loss": 1.0}, "step": None} for _ in range(count)]
        await history.streams.append([chunk(key(attempt), 1, *reports)])
    for _ in range(2):
        found = await views(history)
        assert [points_in(view) for view in found] == [30, 20, 4]
        xs = [column.x_low for view in found for column in view.columns]
        assert (xs[0], xs[-1]) == (0.0, 53.0)
        assert xs == sorted(xs)
        ranged = await views(history, low=29, high=30)
        assert [points_in(view) for view in ranged] == [1, 1, 0]
        await fold_all(history)


async def test_names_are_globs(history: History) -> None:
    values = {"train/loss": 1, "val/loss": 2.5, "val/note": "x", "flag": True, "list": [1, 2]}
    values |= {"nul\0": -1, "huge": 10**400, "special": "Infinity"}
    await history.streams.append([chunk(key(), 1, {"values": values})])
    for _ in range(2):
        found = [view.name for view in await views(history)]
        assert found == ["flag", "nul\0", "special", "train/loss", "val/loss"]
        assert [v.name for v in await views(history, names=("val/*",))] == ["val/loss"]
        await fold_all(history)


async def test_names_that_are_too_long_are_left_out_and_said(history: History) -> None:
    values = {"n" * 513: 1.0, "n" * 512: 2.0, "x" * 10_000: 3.0, "y" * 513: "no number"}
    await history.streams.append([chunk(key(), 1, {"values": values})])
    for _ in range(2):
        page = await history.series.read("s1", SeriesQuery(width=10))
        assert [view.name for view in page.series] == ["n" * 512]
        assert page.left_out == 2
        await fold_all(history)


async def test_without_steps_points_are_numbered(history: History) -> None:
    for first in range(1, 101, 10):
        reports = [{"values": {"loss": 1.0}, "step": step} for step in [None, "NaN"] * 5]
        await history.streams.append([chunk(key(), first, *reports)])
    for _ in range(2):
        [view] = await views(history, width=100)
        assert [column.x_low for column in view.columns] == list(map(float, range(100)))
        [view] = await views(history, width=100, low=50, high=51)
        assert [column.x_low for column in view.columns] == [50.0, 51.0]
        await fold_all(history)


async def test_time_is_an_axis_too(history: History) -> None:
    await history.streams.append([run(key(), 1, 100)])
    await history.streams.append([run(key(attempt=2), 1_001, 100)])
    late = [{"values": {"loss": 5.0}, "time": 1e9 - 3_600}]
    await history.streams.append([chunk(key(attempt=2), 1_101, *late)])
    await fold_all(history)
    apart = {"all_attempts": True}
    wall = await views(history, axis=SeriesAxis.WALL, low=1e9 + 50, high=1e9 + 60, **apart)
    assert [(view.attempt, points_in(view)) for view in wall] == [(1, 11), (2, 0)]
    first, second = await views(history, axis=SeriesAxis.RELATIVE, width=500, **apart)
    assert (first.columns[0].x_low, first.columns[-1].x_high) == (0.0, 99.0)
    assert second.start == first.start == 1e9 + 1
    assert (second.columns[0].x_low, second.columns[-1].x_high) == (0.0, 1_099.0)


async def test_late_data_that_fills_a_gap_is_folded(history: History) -> None:
    await history.streams.append([run(key(), 1, 100), run(key(), 201, 100)])
    await fold_all(history)
    await history.streams.append([run(key(), 90, 120)])
    for _ in range(2):
        [view] = await views(history, width=1_000)
        assert [column.x_low for column in view.columns] == list(map(float, range(1, 301)))
        await fold_all(history)


async def test_what_is_lost_is_told(history: History) -> None:
    dropped = b'{"kind":"dropped","time":2.0,"count":7,"reason":"full"}'
    await history.streams.append([Chunk(stream=key(), first=1, last=1, records=(dropped,))])
    await history.streams.append([run(key(), 101, 100)])
    await history.streams.append([Chunk(stream=key(), first=201, last=210, is_gap=True)])
    for lost in (7 + 99 + 10, 7 + 99 + 10 - 20):
        for _ in range(2):
            page = await history.series.read("s1", SeriesQuery(width=10))
            assert page.lost == lost
            await fold_all(history)
        await history.streams.append([run(key(), 51, 20)])


async def test_what_is_no_report_as_it_was_written_is_told_as_lost(history: History) -> None:
    """A writer of another make: both ways of reading count the same."""
    records = (
        b'{"kind":"metric","time":2.0,"values":{"loss":1.0}}',
        b'{"kind":"metric","time":"2","values":{"loss":1.0}}',
        b'{"kind":"metric","time":-2,"values":{"loss":1.0}}',
        b'{"kind":"metric","time":2.0,"values":[1.0],"summary":"yes"}',
        b'{"time":2.0}',
        b"no JSON",
        b'{"kind":"checkpoint","time":2.0,"summary":{"loss":1.0}}',
        b'{"kind":"of later","time":[],"values":7}',
        b'{"kind":"dropped","time":"2","count":2}',
    )
    whole = Chunk(stream=key(), first=1, last=len(records), records=records)
    await history.streams.append([whole])
    page = await history.streams.read_metrics("s1")
    assert (len(page.points), page.missing, page.unreadable, page.lost) == (1, 2, 5, 7)
    for _ in range(2):
        assert (await history.series.read("s1", SeriesQuery(width=10))).lost == 7
        await fold_all(history)


async def test_rare_points_among_many_others_stay_points(history: History) -> None:
    for first in range(1, 2_001, 20):
        reports = [{"values": {"loss": 1.0}} for _ in range(19)]
        reports.append({"values": {"loss": 1.0, "val": float(first)}})
        await history.streams.append([chunk(key(), first, *reports)])
    await fold_all(history)
    [view] = await views(history, names=("val",))
    assert view.grain == 1
    assert [column.last for column in view.columns] == list(map(float, range(1, 2_001, 20)))


async def test_names_beyond_the_bound_are_left_out_and_said(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.history.sql.appending.MAX_COUNTED_NAMES", 3)
    reports = [{"values": {f"m{n}": 1.0, "a": 2.0}} for n in range(10)]
    await history.streams.append([chunk(key(), 1, *reports)])
    for _ in range(2):
        page = await history.series.read("s1", SeriesQuery(width=10))
        assert len(page.series) == 3
        assert page.left_out == 8
        page = await history.series.read("s1", SeriesQuery(width=10, names=("a",)))
        assert ([view.name for view in page.series], page.left_out) == (["a"], 8)
        await fold_all(history)
    monkeypatch.setattr(sql_series, "MAX_SERIES_READ", 2)
    page = await history.series.read("s1", SeriesQuery(width=10))
    assert (len(page.series), page.more) == (2, 1)
    monkeypatch.setattr(sql_series, "MAX_SERIES", 4)
    for rank in (1, 2):
        await history.streams.append([run(key(rank=rank), 1, 5, "a")])
        await fold_all(history)
    page = await history.series.read("s1", SeriesQuery(width=10, ranks=frozenset({1, 2})))
    assert ([view.rank for view in page.series], page.left_out) == ([1], 13)


async def test_two_that_fold_at_once_do_no_harm(history: History) -> None:
    for first in range(1, 3_001, 100):
        await history.streams.append([run(key(), first, 100)])
    expected = await views(history)
    while any(await asyncio.gather(*[history.series.fold("s1") for _ in range(3)])):
        pass
    assert await views(history) == expected
    [view] = expected
    assert points_in(view) == 3_000


async def test_much_that_waits_is_due_and_a_read_folds_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.streams.append([run(key(session="little"), 1, 3)])
    monkeypatch.setattr(sql_series, "FOLD_BYTES", 5_000)
    for first in range(1, 6_001, 1_000):
        await history.streams.append([run(key(), first, 1_000)])
    assert await history.series.unfolded() == ("s1",)
    monkeypatch.setattr(sql_series, "TURN_BYTES", 5_000)
    [view] = await views(history)
    assert points_in(view) == 6_000
    assert await history.series.unfolded() == ()
    monkeypatch.setattr(sql_series, "FOLD_AFTER_S", -1.0)
    assert await history.series.unfolded() == ("little",)


async def test_several_who_read_and_fold_at_once_fold_each_chunk_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_series, "FOLD_BYTES", 5_000)
    monkeypatch.setattr(sql_series, "TURN_BYTES", 5_000)
    store, stored = sql_series._store, []

    def counting(session: Any, turn: Any, now: float) -> bool:
        stored.append((turn.before, turn.last))
        return store(session, turn, now)

    monkeypatch.setattr(sql_series, "_store", counting)
    for first in range(1, 6_001, 1_000):
        await history.streams.append([run(key(), first, 1_000)])
    reads = (views(history) for _ in range(4))
    [*found], _ = await asyncio.gather(asyncio.gather(*reads), history.series.fold("s1"))
    assert [points_in(view) for [view] in found] == [6_000] * 4
    assert len(stored) > 1
    assert all(last == before for (_, last), (before, _) in pairwise(stored))


async def test_what_cannot_be_stored_is_read_unfolded_up_to_a_bound(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(1, 6_001, 1_000):
        await history.streams.append([run(key(), first, 1_000)])
    with monkeypatch.context() as here:
        here.setattr(sql_series, "FOLD_BYTES", 5_000)
        here.setattr(sql_series, "TURN_BYTES", 5_000)
        here.setattr(sql_series, "_store", _full)
        expected = await views(history)
        assert points_in(expected[0]) == 6_000
        here.setattr(sql_series, "UNFOLDED_BYTES", 6_000)
        with pytest.raises(HistoryFull):
            await views(history)
    await fold_all(history)
    assert await views(history) == expected


def _full(*_: Any) -> bool:
    raise HistoryFull("no room")


async def test_with_little_room_buckets_stay_whole(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(1, 1_001, 100):
        await history.streams.append([run(key(), first, 100)])
    await fold_all(history)
    monkeypatch.setattr(sql_series, "POINTS_BYTES", 1_000)
    [view] = await views(history, width=1_000)
    assert (view.grain, points_in(view)) == (16, 1_000)


async def test_many_series_share_the_columns_of_an_answer(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(5):
        await history.streams.append([run(key(rank=rank), 1, 1_000)])
    monkeypatch.setattr(sql_series, "MOST_COLUMNS", 100)
    found = await views(history, width=10_000)
    assert [points_in(view) for view in found] == [1_000] * 5
    assert all(20 <= len(view.columns) <= 40 for view in found)


async def test_a_turn_is_bounded_by_what_its_chunks_unpack_to(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = {"time": 1e9, "step": 1, "values": {"loss": 1.0}}
    for first in range(1, 4_001, 2_000):
        await history.streams.append([chunk(key(), first, *[same] * 2_000)])
    monkeypatch.setattr(sql_series, "TURN_BYTES", 5_000)
    assert await fold_all(history) == 2
    [view] = await views(history)
    assert points_in(view) == 4_000


async def test_a_removed_session_leaves_no_series(history: History) -> None:
    await history.streams.append([run(key(), 1, 2_000), run(key(session="s2"), 1, 2_000)])
    await fold_all(history)
    await fold_all(history, "s2")
    record = SessionRecord(
        id="s1",
        name="kim/None/1",
        owner="kim",
        state="FAILED",
        created_at=1.0,
        ended_at=2.0,
        record=b"",
    )
    await history.catalogue.put_session(record, term=1)
    assert await history.catalogue.delete_session("s1")
    assert await views(history) == ()
    assert not await history.series.fold("s1")
    [view] = await views(history, "s2")
    assert points_in(view) == 2_000
    tables = [batch.table async for batch in history.dump()]
    assert tables.count("series_folds") == 1


async def test_a_backup_has_the_levels_and_an_older_one_gets_them(
    history: History, tmp_path: Path
) -> None:
    await history.streams.append([run(key(), 1, 2_000)])
    await fold_all(history)
    await history.streams.append([run(key(), 2_001, 100)])
    expected = await views(history)
    batches = [batch async for batch in history.dump()]
    older = [batch for batch in batches if not batch.table.startswith("series")]
    for number, some in enumerate((batches, older)):
        path = tmp_path / f"{number}.db"
        other = await open_history(path, clock=SystemClock(), run=inline)
        await other.load(some)
        assert await views(other) == expected
        await fold_all(other)
        await other.streams.append([run(key(), 2_101, 100)])
        await fold_all(other)
        [view] = await views(other)
        assert points_in(view) == 2_200
        await other.close()


POINTS = Ages(points_before=100.0)
ALL = Ages(points_before=100.0, levels_before=100.0)


async def end(history: History, session: str = "s1", at: float = 50.0) -> None:
    record = SessionRecord(
        id=session,
        name=f"kim/None/{session}",
        owner="kim",
        state="SUCCEEDED",
        created_at=1.0,
        ended_at=at,
        record=b"",
    )
    await history.catalogue.put_session(record, term=1)


async def thin_all(history: History, ages: Ages = POINTS, session: str = "s1") -> int:
    turns = 1
    while await history.series.thin(session, ages):
        turns += 1
    return turns


async def bodies(history: History) -> list[int]:
    """How long the bodies of chunks are, without gaps."""
    batches = [batch async for batch in history.dump() if batch.table == "chunks"]
    at = batches[0].columns.index("body") if batches else 0
    return [len(row[at]) for batch in batches for row in batch.rows if row[at] is not None]


async def test_of_an_old_session_levels_are_left(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "TURN_ROWS", 7)
    for first in range(1, 3_001, 100):
        await history.streams.append([run(key(), first, 100), run(key(rank=1), first, 100)])
    await end(history)
    assert await history.series.to_thin(POINTS) == ()  # not folded yet
    assert not await history.series.thin("s1", POINTS)
    await fold_all(history)
    assert await history.series.to_thin(Ages(points_before=50.0)) == ()
    assert not await history.series.thin("s1", Ages(points_before=50.0))
    assert len(await bodies(history)) == 60
    before = await views(history, width=10)
    counts = await history.streams.metric_counts("s1")
    assert await history.series.to_thin(POINTS) == ("s1",)
    assert await thin_all(history) > 8
    assert await history.series.to_thin(POINTS) == ()
    assert await bodies(history) == [1, 1]
    assert await views(history, width=10) == before
    assert await history.streams.metric_counts("s1") == counts
    assert await history.streams.let_go_at("s1") > 1e9
    page = await history.series.read("s1", SeriesQuery(width=10_000, low=100.0, high=120.0))
    assert page.let_go_at > 1e9
    assert page.lost == 0
    for view in page.series:
        assert view.grain == 16
        assert view.columns[0].x_low <= 100.0 <= view.columns[0].x_high
    told = await history.streams.read_metrics("s1")
    assert (told.points, told.missing, told.let_go_at > 1e9, told.is_end) == ((), 0, True, True)
    assert await history.streams.read(key(), 500) == (LetGo(500, 3_000),)


async def test_a_running_session_keeps_its_points(history: History) -> None:
    await history.streams.append([run(key(), 1, 100)])
    await fold_all(history)
    forever = Ages(points_before=1e12, levels_before=1e12)
    assert await history.series.to_thin(forever) == ()
    assert not await history.series.thin("s1", forever)
    assert await history.streams.let_go_at("s1") == 0.0
    assert len((await history.streams.read_metrics("s1")).points) == 100


async def test_what_comes_late_finds_its_place_once_and_is_let_go_next_time(
    history: History,
) -> None:
    await history.streams.append([run(key(), 1, 100), run(key(), 201, 100)])
    await end(history)
    await fold_all(history)
    await thin_all(history)
    mark = (await history.streams.read_metrics("s1")).next
    assert await history.streams.cursors("s1", 1) == {key(): 301}
    assert await history.streams.append([run(key(), 50, 100)]) == {key(): 301}
    assert await history.streams.append([run(key(), 250, 100)]) == {key(): 350}
    for _ in range(2):  # sent again
        await history.streams.append([run(key(), 1, 349)])
    late = await history.streams.read_metrics("s1", after=mark)
    expected = [*range(101, 150), *range(301, 350), *range(150, 201)]
    assert [point.step for point in late.points] == expected
    assert late.let_go_at == 0.0
    parts = await history.streams.read(key(), 1)
    assert [type(part) for part in parts] == [LetGo, Recorded, Recorded, LetGo, Recorded]
    assert not await history.series.thin("s1", POINTS)
    for _ in range(2):
        [view] = await views(history, width=20)
        assert points_in(view) == 349
        await fold_all(history)
    await thin_all(history)
    assert await history.streams.read(key(), 1) == (LetGo(1, 349),)
    assert await bodies(history) == [1]
    assert await history.streams.append([run(key(), 1, 349)]) == {key(): 350}
    assert (await history.streams.metric_counts("s1")) == {"loss": 349}


async def test_what_is_lost_stays_lost_and_what_was_let_go_is_not(history: History) -> None:
    await history.streams.append([run(key(), 1, 10), run(key(), 21, 10)])
    await history.streams.append([Chunk(stream=key(), first=31, last=35, is_gap=True)])
    await end(history)
    await fold_all(history)
    await thin_all(history)
    parts = await history.streams.read(key(), 1)
    assert parts == (LetGo(1, 10), Gap(11, 20), LetGo(21, 30), Gap(31, 35))
    assert (await history.streams.read_metrics("s1")).missing == 15
    assert (await history.series.read("s1", SeriesQuery(width=10))).lost == 15


async def test_a_follower_is_told_of_what_it_had_not_read_alone(history: History) -> None:
    for first in range(1, 41, 10):
        await history.streams.append([run(key(), first, 10)])
    pages = [await history.streams.read_metrics("s1", limit_points=n) for n in (10, 30, 40)]
    marks = [page.next for page in pages]
    await end(history)
    await fold_all(history)
    await thin_all(history)
    told = [await history.streams.read_metrics("s1", after=mark) for mark in marks]
    assert [page.let_go_at > 0 for page in told] == [True, True, False]
    assert [(page.points, page.missing) for page in told] == [((), 0)] * 3


async def test_points_that_are_partly_there_are_no_bucket(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "TURN_BYTES", 1)
    for first in range(1, 201, 10):
        await history.streams.append([run(key(), first, 10)])
    await end(history)
    await fold_all(history)
    is_more = True
    while is_more:
        is_more = await history.series.thin("s1", POINTS)
        for low in (1, 95, 195):
            for view in await views(history, low=low, high=low + 3):
                for column in view.columns:
                    values = [n % 97 for n in range(int(column.x_low), int(column.x_high) + 1)]
                    figures = (len(values), min(values), max(values), values[-1])
                    assert (column.finite, column.low, column.high, column.last) == figures


async def test_of_long_series_the_finest_levels_go_at_the_second_age(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "ROWS_LEFT", 1)
    monkeypatch.setattr(thinning, "TURN_ROWS", 3)
    for first in range(1, 20_001, 1_000):
        await history.streams.append([run(key(), first, 1_000)])
    await history.streams.append([run(key(), 20_001, 600, "short")])
    await end(history)
    await fold_all(history)
    await thin_all(history)
    assert await history.series.to_thin(POINTS) == ()
    rows = await _rows_by_level(history)
    assert await history.series.to_thin(ALL) == ("s1",)
    await thin_all(history, ALL)
    assert await history.series.to_thin(ALL) == ()
    left = await _rows_by_level(history)
    assert (rows[1], rows[2]) == (39 + 1, 4)
    # The short one has no full row of level 2: it keeps its only row of level 1.
    assert (left[1], left[2], left[0]) == (1, 4, 2)
    for low, high in ((-math.inf, math.inf), (5_000.0, 5_100.0), (19_990.0, 30_000.0)):
        for width in (1, 100, 10_000):
            view, short = await views(history, width=width, low=low, high=high)
            if low < 0:
                assert (points_in(view), points_in(short)) == (20_000, 600)
            for column in view.columns:
                values = [n % 97 for n in range(int(column.x_low), int(column.x_high) + 1)]
                figures = (len(values), min(values), max(values), values[-1])
                assert (column.finite, column.low, column.high, column.last) == figures
    await history.streams.append([run(key(), 20_601, 3_000)])
    await fold_all(history)
    assert await history.series.to_thin(ALL) == ("s1",)
    await thin_all(history, ALL)
    view, _ = await views(history, width=100)
    assert points_in(view) == 23_000
    assert (await _rows_by_level(history))[1] == 1


async def _rows_by_level(history: History) -> Counter[int]:
    batches = [batch async for batch in history.dump() if batch.table == "series_rows"]
    return Counter(row[1] for batch in batches for row in batch.rows)


async def test_two_that_thin_and_fold_at_once_do_no_harm(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "TURN_ROWS", 2)
    for first in range(1, 1_001, 50):
        await history.streams.append([run(key(), first, 50)])
    await end(history)
    expected = await views(history, width=10)
    for first in (1_001, 1_051):
        while any(
            await asyncio.gather(
                *[history.series.thin("s1", ALL) for _ in range(3)], history.series.fold("s1")
            )
        ):
            pass
        await history.streams.append([run(key(), first, 50)])
    await fold_all(history)
    await thin_all(history, ALL)
    assert await history.streams.read(key(), 1) == (LetGo(1, 1_100),)
    [view] = await views(history, width=10)
    assert points_in(view) == 1_100
    assert expected[0].columns[0] == view.columns[0]


async def test_a_backup_has_what_is_left(history: History, tmp_path: Path) -> None:
    await history.streams.append([run(key(), 1, 2_000)])
    await end(history)
    await fold_all(history)
    await thin_all(history)
    batches = [batch async for batch in history.dump()]
    other = await open_history(tmp_path / "other.db", clock=SystemClock(), run=inline)
    await other.load(batches)
    assert await views(other) == await views(history)
    assert await other.streams.let_go_at("s1") == await history.streams.let_go_at("s1")
    assert await other.streams.read(key(), 1) == (LetGo(1, 2_000),)
    assert await other.series.to_thin(POINTS) == ()
    await other.streams.append([run(key(), 1, 2_100)])
    await fold_all(other)
    [view] = await views(other)
    assert points_in(view) == 2_100
    await other.close()


@pytest.mark.parametrize(
    "query",
    [
        SeriesQuery(width=0),
        SeriesQuery(width=1 << 40),
        SeriesQuery(width=9, low=2.0, high=1.0),
        SeriesQuery(width=9, low=math.nan),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(history: History, query: SeriesQuery) -> None:
    with pytest.raises(InvalidRequest):
        await history.series.read("s1", query)


VALUES = st.one_of(st.floats(-100, 100), st.sampled_from(["NaN", "Infinity"]))


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["report", "report", "report", "fold", "read", "crash"]))
        if kind == "report":
            stream = draw(st.sampled_from([key(), key(writer=1), key(attempt=2)]))
            values = draw(st.lists(VALUES, min_size=1, max_size=8))
            times = draw(st.integers(1, 60))
            step = draw(st.sampled_from([None, 1, 3, -2]))
            steps.append((kind, stream, values * times, step))
        else:
            steps.append((kind,))
    return steps


@given(
    steps=_histories(),
    width=st.integers(1, 60),
    low=st.integers(-50, 900),
    length=st.integers(0, 900),
    turn=st.sampled_from([1, 300, 1 << 20]),
)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_reported_and_folded_the_envelope_is_that_of_the_points(
    steps: list[tuple[Any, ...]], width: int, low: int, length: int, turn: int
) -> None:
    asyncio.run(_tried(steps, width, float(low), float(low + length), turn))


async def _tried(
    steps: list[tuple[Any, ...]], width: int, low: float, high: float, turn: int
) -> None:
    folded = await open_history(":memory:", clock=SystemClock(), run=inline)
    plain = await open_history(":memory:", clock=SystemClock(), run=inline)
    told: dict[int, list[tuple[float, float]]] = {}
    firsts: dict[StreamKey, int] = {}
    with_steps: set[int] = set()
    for kind, *rest in steps:
        if kind == "report":
            stream, values, step = rest
            points = told.setdefault(stream.attempt, [])
            reports = []
            if step is not None and not points:
                with_steps.add(stream.attempt)
            for number, value in enumerate(values):
                x = None if step is None else 400 + step * number
                reports.append({"values": {"loss": value}, "step": x})
                points.append((float(len(points)) if x is None else float(x), float(value)))
            first = firsts.get(stream, 1)
            firsts[stream] = first + len(values)
            for history in (folded, plain):
                await history.streams.append([chunk(stream, first, *reports)])
            continue
        with pytest.MonkeyPatch.context() as here:
            here.setattr(sql_series, "TURN_BYTES", turn)
            if kind == "fold":
                await folded.series.fold("s1")
                continue
            if kind == "read":
                here.setattr(sql_series, "FOLD_BYTES", turn)
                await folded.series.read("s1", SeriesQuery(width=width))
                continue
            here.setattr(sql_series, "_store", _crashes)
            with contextlib.suppress(HistoryUnavailable):
                await folded.series.fold("s1")
    rising = {
        attempt: all(one < other for one, other in pairwise(x for x, _ in points))
        for attempt, points in told.items()
    }
    for span in ({}, {"low": low, "high": high}):
        query = SeriesQuery(width=width, all_attempts=True, **span)
        page = await folded.series.read("s1", query)
        with pytest.MonkeyPatch.context() as here:
            for name in ("FOLD_BYTES", "MOST_TURN_BYTES"):
                here.setattr(sql_series, name, 1 << 30)
            assert page == await plain.series.read("s1", query)
        assert [view.attempt for view in page.series] == sorted(told)
        for view in page.series:
            _check(view, told[view.attempt], query)
        clean = replace(query, all_attempts=False)
        page = await folded.series.read("s1", clean)
        assert page == await plain.series.read("s1", clean)
        if with_steps == set(told) and all(rising.values()):
            first_steps = {attempt: points[0][0] for attempt, points in told.items()}
            for view in page.series:
                below = superseded_from(first_steps, view.attempt)
                left = [(x, value) for x, value in told[view.attempt] if x < below]
                _check(view, left, clean)
                assert all(column.x_high < below for column in view.columns)
    await folded.close()
    await plain.close()


def _crashes(session: Any, *given: Any) -> bool:
    session.connection.execute("UPDATE series_folds SET folded = 1 << 40, waiting = 0")
    raise HistoryUnavailable("the process was killed")


def _check(view: SeriesView, told: list[tuple[float, float]], query: SeriesQuery) -> None:
    assert len(view.columns) <= 2 * query.width
    inside = [value for x, value in told if query.low <= x <= query.high]
    finite = [value for value in inside if math.isfinite(value)]
    counted = sum(column.finite for column in view.columns)
    odd = sum(column.odd for column in view.columns)
    assert counted + odd >= len(inside)
    if finite:
        assert min(c.low for c in view.columns if c.finite) <= min(finite)
        assert max(c.high for c in view.columns if c.finite) >= max(finite)
    if query.low == -math.inf:
        assert (counted, odd) == (len(finite), len(inside) - len(finite))
        total = math.fsum(column.mean * column.finite for column in view.columns)
        assert total == pytest.approx(math.fsum(finite), abs=1e-6)
    xs = [x for x, _ in told]
    if all(one < other for one, other in pairwise(xs)):
        assert counted + odd == len(inside)
        for column in view.columns:
            own = [value for x, value in told if column.x_low <= x <= column.x_high]
            sound = [value for value in own if math.isfinite(value)]
            assert (column.finite, column.odd) == (len(sound), len(own) - len(sound))
            if sound:
                assert (column.low, column.high) == (min(sound), max(sound))
                assert column.last == sound[-1]
                assert column.mean == pytest.approx(math.fsum(sound) / len(sound))


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.just("report"),
                st.integers(0, 1),
                st.lists(VALUES, min_size=1),
                st.integers(1, 90),
            ),
            st.tuples(st.just("skip"), st.integers(0, 1), st.integers(1, 200)),
            st.tuples(st.just("late"), st.lists(VALUES, min_size=1, max_size=5)),
            st.tuples(st.sampled_from(["fold", "points", "levels"])),
        ),
        min_size=3,
        max_size=25,
    ),
    width=st.integers(1, 300),
    low=st.integers(-50, 1_500),
    length=st.integers(0, 1_500),
    rows=st.integers(1, 9),
)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_let_go_of_every_bucket_is_that_of_its_points(
    steps: list[tuple[Any, ...]], width: int, low: int, length: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as here:
        here.setattr(thinning, "TURN_ROWS", rows)
        here.setattr(thinning, "ROWS_LEFT", 1)
        asyncio.run(_thinned(steps, width, float(low), float(low + length)))


async def _thinned(steps: list[tuple[Any, ...]], width: int, low: float, high: float) -> None:
    history = await open_history(":memory:", clock=SystemClock(), run=inline)
    await end(history)
    told: list[tuple[float, float]] = []
    firsts = {0: 1, 1: 1}
    skipped: list[tuple[int, int, int]] = []

    async def report(writer: int, first: int, values: list[Any]) -> None:
        reports = [{"values": {"loss": value}, "step": None} for value in values]
        wanted = await history.streams.append([chunk(key(writer=writer), first, *reports)])
        firsts[writer] = max(firsts[writer], first + len(values))
        assert wanted == {key(writer=writer): firsts[writer]}
        told.extend([(float(n), float(value)) for n, value in enumerate(values, len(told))])

    for kind, *rest in steps:
        match kind:
            case "report":
                writer, values, times = rest
                await report(writer, firsts[writer], values * times)
            case "skip":
                writer, count = rest
                first, firsts[writer] = firsts[writer], firsts[writer] + count
                skipped.append((writer, first, count))
                await report(writer, first + count, [0.5])
            case "late" if skipped:
                writer, first, count = skipped.pop()
                await report(writer, first, (rest[0] * count)[:count])
            case "fold":
                await fold_all(history)
            case "points":
                await history.series.thin("s1", POINTS)
            case "levels":
                await thin_all(history, ALL)
    for is_last in (False, True):
        for span in ({}, {"low": low, "high": high}):
            query = SeriesQuery(width=width, **span)
            for view in (await history.series.read("s1", query)).series:
                _check_buckets(view, told, query)
        page = await history.streams.read_metrics("s1", limit_points=1 << 40)
        if not is_last:
            assert page.let_go_at or len(page.points) == len(told)
            await fold_all(history)
            await thin_all(history, ALL)
        elif told:
            assert (page.points, page.let_go_at > 0) == ((), True)
        assert page.missing == sum(count for *_, count in skipped)
    assert await history.streams.cursors("s1", 1) == {
        key(writer=writer): first for writer, first in firsts.items() if first > 1
    }
    await history.close()


def _check_buckets(view: SeriesView, told: list[tuple[float, float]], query: SeriesQuery) -> None:
    for column in view.columns:
        own = [value for x, value in told if column.x_low <= x <= column.x_high]
        sound = [value for value in own if math.isfinite(value)]
        assert (column.finite, column.odd) == (len(sound), len(own) - len(sound))
        if sound:
            assert (column.low, column.high) == (min(sound), max(sound))
            assert column.last == sound[-1]
            assert column.mean * len(sound) == pytest.approx(math.fsum(sound), abs=1e-6)
    shown = [(column.x_low, column.x_high) for column in view.columns]
    for x, _ in told:
        if query.low <= x <= query.high:
            assert any(first <= x <= last for first, last in shown)


def values_told(session: str, values: list[Any], *, attempt: int = 1, rank: int = 0) -> Chunk:
    records = tuple(
        json.dumps(
            {"kind": "metric", "time": 100.0 + at, "step": at, "values": {"val/acc [1]": value}}
        ).encode()
        for at, value in enumerate(values)
    )
    stream = StreamKey(session, attempt, rank, Channel.METRIC, 1)
    return Chunk(stream=stream, first=1, last=len(records), records=records)


@pytest.mark.parametrize("count", [1, 20, 3_000])
async def test_the_extent_of_a_series_is_that_of_all_its_points(
    history: History, count: int
) -> None:
    values: list[Any] = [math.sin(at / 7.0) for at in range(count)]
    values[count // 2] = "NaN"
    values[0] = 0.0
    await history.streams.append([values_told("s1", values)])
    assert await history.series.extents(["s1", "s2"], "val/acc [1]") == {"s1": None}
    await fold_all(history, "s1")
    found = (await history.series.extents(["s1", "s2"], "val/acc [1]"))["s1"]
    finite = [(one, 100.0 + at) for at, one in enumerate(values) if not isinstance(one, str)]
    low, high = min(finite), max(finite, key=lambda one: (one[0], -one[1]))
    assert found is not None
    assert (found.low.value, found.high.value) == (low[0], high[0])
    assert found.last.value == finite[-1][0]
    for extreme, (_, at) in ((found.low, low), (found.high, high), (found.last, finite[-1])):
        assert extreme.since <= at <= extreme.until
    assert await history.series.extents(["s1"], "val/acc") == {}


async def test_the_extent_is_of_the_lowest_rank_and_unknown_of_several_attempts(
    history: History,
) -> None:
    await history.streams.append(
        [
            values_told("s1", [5.0], rank=1),
            values_told("s1", [3.0], rank=0),
            values_told("s2", [5.0]),
            values_told("s2", [3.0], attempt=2),
            values_told("s3", ["NaN", "Infinity"]),
        ]
    )
    for one in ("s1", "s2", "s3"):
        await fold_all(history, one)
    found = await history.series.extents(["s1", "s2", "s3"], "val/acc [1]")
    assert found["s1"] is not None
    assert found["s1"].high.value == 3.0
    assert found["s2"] is None
    assert found["s3"] == sql_series.NO_EXTENT
