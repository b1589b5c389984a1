"""Series of every history: whatever was reported, however it was folded, a read is complete."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.domain.errors import InvalidRequest
from controlplane.history.errors import HistoryFull, HistoryUnavailable
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql import series as sql_series
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Channel,
    Chunk,
    SeriesAxis,
    SeriesQuery,
    SeriesView,
    SessionRecord,
    StreamKey,
)
from nsml.clock import SystemClock, in_thread, inline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.history.interface import History


@pytest.fixture(params=["memory", "file", "postgresql"])
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
        found = {(v.attempt, v.rank): points_in(v) for v in await views(history)}
        assert found == {(1, 0): 40, (1, 1): 40, (2, 0): 80}
        assert [(v.attempt, v.rank) for v in await views(history, ranks=frozenset({1}))] == [(1, 1)]
        assert [v.rank for v in await views(history, attempts=frozenset({2}))] == [0]
        await fold_all(history)


async def test_names_are_globs(history: History) -> None:
    values = {"train/loss": 1, "val/loss": 2.5, "val/note": "x", "flag": True, "list": [1, 2]}
    values |= {"nul\0": -1, "huge": 10**400, "special": "Infinity"}
    await history.streams.append([chunk(key(), 1, {"values": values})])
    for _ in range(2):
        found = [view.name for view in await views(history)]
        assert found == ["nul\0", "special", "train/loss", "val/loss"]
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
    wall = await views(history, axis=SeriesAxis.WALL, low=1e9 + 50, high=1e9 + 60)
    assert [(view.attempt, points_in(view)) for view in wall] == [(1, 11), (2, 0)]
    first, second = await views(history, axis=SeriesAxis.RELATIVE, width=500)
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
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    for kind, *rest in steps:
        if kind == "report":
            stream, values, step = rest
            points = told.setdefault(stream.attempt, [])
            reports = []
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
    for span in ({}, {"low": low, "high": high}):
        query = SeriesQuery(width=width, **span)
        page = await folded.series.read("s1", query)
        with pytest.MonkeyPatch.context() as here:
            for name in ("FOLD_BYTES", "MOST_TURN_BYTES"):
                here.setattr(sql_series, name, 1 << 30)
            assert page == await plain.series.read("s1", query)
        assert [view.attempt for view in page.series] == sorted(told)
        for view in page.series:
            _check(view, told[view.attempt], query)
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
