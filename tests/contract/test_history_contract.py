"""One suite for every history: SQLite in memory and in a file, inline and in threads; PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.domain.values import PartAccess, Visibility
from controlplane.history.errors import HistoryConflict, HistoryFenced
from controlplane.history.portable import Batch
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql import datasets as sql_datasets
from controlplane.history.sql import logs
from controlplane.history.sql import object_references as referring
from controlplane.history.sql import uploads as sent
from controlplane.history.sql.checkpoint_marks import Marks
from controlplane.history.sql.dataset_parts import PartsChanged
from controlplane.history.sql.datasets import Restored, Tagging
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Artifact,
    ArtifactKey,
    ArtifactState,
    AttemptCharge,
    AuditQuery,
    AuditRow,
    Channel,
    Checkpoint,
    CheckpointState,
    CheckpointUse,
    Chunk,
    ConfigValue,
    Dataset,
    DatasetListing,
    DatasetParts,
    DatasetRoot,
    DatasetUse,
    EnvironmentLock,
    Gap,
    Item,
    KeptBytes,
    KeptKind,
    Media,
    MediaContent,
    MediaQuery,
    MediaState,
    MetricCount,
    Recorded,
    Release,
    ReplicaKey,
    ReportedConfig,
    Retired,
    RootKind,
    SessionQuery,
    SessionRecord,
    StreamKey,
)
from controlplane.scheduler.fair_share import Past
from nsml.common.clock import SystemClock, in_thread, inline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from controlplane.history.sql.history import History

ADMIN = User(name="root", role=Role.ADMIN)


class Hand(SystemClock):
    """A clock of which the test says what the time is."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "postgresql"])
async def at_times(request: pytest.FixtureRequest) -> AsyncIterator[tuple[History, Hand]]:
    clock = Hand()
    opened: History
    if request.param == "postgresql":
        opened = await open_postgresql(request.getfixturevalue("emptied_database"), clock=clock)
    else:
        opened = await open_history(":memory:", clock=clock, run=inline)
    yield opened, clock
    await opened.close()


@pytest.fixture(
    params=[
        "memory",
        # Threads and files each have a turn of their own; together they are what a platform has.
        pytest.param("memory in threads", marks=pytest.mark.variant),
        pytest.param("file", marks=pytest.mark.variant),
        "file in threads",
        "postgresql",
    ]
)
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[History]:
    opened: History
    if request.param == "postgresql":
        url = request.getfixturevalue("emptied_database")
        opened = await open_postgresql(url, clock=SystemClock())
    else:
        path = ":memory:" if request.param.startswith("memory") else tmp_path / "h/history.sqlite"
        run = in_thread if "threads" in request.param else inline
        opened = await open_history(path, clock=SystemClock(), run=run)
    yield opened
    await opened.close()


async def test_the_first_mark_stands(history: History) -> None:
    assert await history.mark() == ""
    said = await asyncio.gather(*[history.mark(f"c{number}/x") for number in range(5)])
    assert len(set(said)) == 1
    assert said[0] in {f"c{number}/x" for number in range(5)}
    assert await history.mark("another") == await history.mark() == said[0]


async def test_properties_are_changed_by_one_after_the_other(history: History) -> None:
    await asyncio.gather(*[history.update_property("x", lambda had: had + "a") for _ in range(9)])
    assert await history.update_property("x", lambda had: had + "b") == "a" * 9 + "b"
    assert await history.update_property("y", lambda had: had) == ""


async def test_a_probe_changes_nothing_that_is_seen(history: History) -> None:
    await history.streams.append([text(log(), 0, b"before")])
    await history.probe()
    await history.probe()
    assert await history.streams.cursors("s1", 1) == {log(): 6}
    assert (await history.streams.read_log("s1")).data == b"before"


def log(session: str = "s1", *, attempt: int = 1, rank: int = 0) -> StreamKey:
    return StreamKey(session, attempt, rank, Channel.LOG)


def metric(session: str = "s1", *, attempt: int = 1, rank: int = 0, writer: int = 0) -> StreamKey:
    return StreamKey(session, attempt, rank, Channel.METRIC, writer)


def text(key: StreamKey, first: int, data: bytes) -> Chunk:
    return Chunk(stream=key, first=first, last=first + len(data) - 1, data=data)


def reports(key: StreamKey, first: int, *values: dict[str, Any], **more: Any) -> Chunk:
    records = tuple(
        json.dumps(
            {"kind": "metric", "time": first + i, "step": first + i, "values": value, **more}
        ).encode()
        for i, value in enumerate(values)
    )
    return Chunk(stream=key, first=first, last=first + len(records) - 1, records=records)


def session(number: int, **changes: Any) -> SessionRecord:
    made = SessionRecord(
        id=f"s{number:04}",
        name=f"kim/mnist/{number}",
        owner="kim",
        state="SUCCEEDED",
        created_at=1000.0 + number,
        ended_at=2000.0 + number,
        record=f"record {number}".encode(),
        dataset="mnist",
        request_id=f"r{number}",
    )
    return replace(made, **changes)


# Streams


async def test_a_log_grows_and_is_read_by_range(history: History) -> None:
    streams = history.streams
    assert await streams.append([text(log(), 0, b"hello ")]) == {log(): 6}
    assert await streams.append([text(log(), 6, b"world\n")]) == {log(): 12}
    page = await streams.read_log("s1")
    assert (page.attempt, page.offset, page.data, page.next, page.end) == (
        1,
        0,
        b"hello world\n",
        12,
        12,
    )
    assert (await streams.read_log("s1", offset=4, limit_bytes=3)).data == b"o w"
    assert (await streams.read_log("s1", offset=4, limit_bytes=3)).next == 7
    assert (await streams.read_log("s1", offset=12)).data == b""
    assert (await streams.read_log("s1", offset=99)).data == b""


async def test_resending_changes_nothing_and_overlap_is_trimmed(history: History) -> None:
    streams = history.streams
    whole = b"0123456789"
    await streams.append([text(log(), 0, whole[:6])])
    for first, last in [(0, 6), (2, 4), (0, 1), (4, 9), (3, 10), (9, 10)]:
        await streams.append([text(log(), first, whole[first:last])])
    assert (await streams.read_log("s1")).data == whole
    short = reports(metric(), 1, {"a": 1}, {"a": 2})
    longer = reports(metric(), 1, {"a": 1}, {"a": 2}, {"a": 3})
    assert await streams.append([short, short, longer, short]) == {metric(): 4}
    assert [point.value for point in (await streams.read_metrics("s1")).points] == [1, 2, 3]
    assert await streams.metric_counts("s1") == {"a": 3}


async def test_a_gap_is_seen_and_late_data_fills_it(history: History) -> None:
    streams = history.streams
    whole = bytes(range(100))
    await streams.append([text(log(), 0, whole[:10]), text(log(), 50, whole[50:])])
    assert [
        part if isinstance(part, Gap) else (part.first, part.last)
        for part in await streams.read(log(), 0)
    ] == [(0, 9), Gap(10, 49), (50, 99)]
    page = await streams.read_log("s1", offset=5)
    assert (page.data, page.missing_bytes, page.next) == (whole[5:10], 0, 10)
    page = await streams.read_log("s1", offset=20)
    assert (page.offset, page.data, page.missing_bytes) == (50, whole[50:], 30)
    mark = (await streams.append([text(log(), 20, whole[20:30])]))[log()]
    assert mark == 100
    assert [
        part if isinstance(part, Gap) else (part.first, part.last)
        for part in await streams.read(log(), 0)
    ] == [(0, 9), Gap(10, 19), (20, 29), Gap(30, 49), (50, 99)]
    await streams.append([text(log(), 0, whole)])
    parts = await streams.read(log(), 0)
    assert b"".join(part.data for part in parts if isinstance(part, Recorded)) == whole


async def test_a_node_may_say_that_positions_are_lost(history: History) -> None:
    streams = history.streams
    await streams.append([reports(metric(), 1, {"a": 1})])
    lost = Chunk(stream=metric(), first=2, last=4, is_gap=True)
    assert await streams.append([lost]) == {metric(): 5}
    assert await streams.append([lost]) == {metric(): 5}
    await streams.append([reports(metric(), 5, {"a": 5})])
    page = await streams.read_metrics("s1")
    assert ([point.value for point in page.points], page.missing) == ([1, 5], 3)
    await streams.append([Chunk(stream=metric(), first=1, last=5, is_gap=True)])
    assert len((await streams.read_metrics("s1")).points) == 2


async def test_gaps_that_come_together_are_one(history: History) -> None:
    streams = history.streams
    gaps = [Chunk(stream=metric(), first=at, last=at + 1, is_gap=True) for at in (1, 3, 7)]
    await streams.append(gaps)
    assert await streams.read(metric(), 1) == (Gap(1, 8),)
    seen = await streams.read_metrics("s1")
    await streams.append([reports(metric(), 10, {"a": 1})])
    more = await streams.read_metrics("s1", after=seen.next)
    assert (seen.missing, more.missing) == (8, 1)


async def test_what_a_program_had_to_drop_is_missing(history: History) -> None:
    dropped = json.dumps({"kind": "dropped", "time": 2.0, "count": 7, "reason": "full"}).encode()
    lie = json.dumps({"kind": "dropped", "count": 1 << 70}).encode()
    streams = history.streams
    await streams.append([reports(metric(), 1, {"a": 1})])
    await streams.append([Chunk(stream=metric(), first=2, last=3, records=(dropped, lie))])
    await streams.append([reports(metric(), 4, {"a": 4})])
    page = await streams.read_metrics("s1")
    assert ([point.value for point in page.points], page.missing) == ([1, 4], 7)


async def test_a_follower_hears_of_late_data_once(history: History) -> None:
    streams = history.streams
    await streams.append([reports(metric(), 3, {"a": 3})])
    seen = await streams.read_metrics("s1")
    assert ([point.value for point in seen.points], seen.missing) == ([3], 2)
    await streams.append([reports(metric(), 1, {"a": 1}, {"a": 2}, {"a": 3})])
    late = await streams.read_metrics("s1", after=seen.next)
    assert [point.value for point in late.points] == [1, 2]
    assert (await streams.read_metrics("s1", after=late.next)).points == ()


async def test_reading_starts_inside_a_chunk_and_stops_at_the_limit(history: History) -> None:
    streams = history.streams
    await streams.append([reports(metric(), 1, *[{"a": i} for i in range(1, 9)])])
    await streams.append([reports(metric(), 9, *[{"a": i} for i in range(9, 12)])])
    (part,) = await streams.read(metric(), 4, limit_bytes=1)
    assert isinstance(part, Recorded)
    assert (part.first, part.last, len(part.records)) == (4, 8, 5)
    assert json.loads(part.records[0])["values"] == {"a": 4}
    assert len(await streams.read(metric(), 4)) == 2
    assert await streams.read(metric(), 12) == ()
    assert await streams.read(metric("nobody"), 1) == ()


async def test_streams_do_not_mix(history: History) -> None:
    streams = history.streams
    keys = [
        log(),
        log(rank=1),
        log(attempt=2),
        log("s2"),
        metric(),
        metric(writer=7),
        StreamKey("s1", 1, 0, Channel.STATE),
    ]
    chunks = [
        text(key, 0, str(key).encode()) if key.channel is Channel.LOG else reports(key, 1, {"a": 1})
        for key in keys
    ]
    marks = await streams.append(chunks)
    assert set(marks) == set(keys)
    assert await streams.cursors("s1", 1) == {
        key: mark for key, mark in marks.items() if (key.session_id, key.attempt) == ("s1", 1)
    }
    assert (await streams.read_log("s1", rank=1)).data == str(log(rank=1)).encode()
    assert (await streams.read_log("s1")).data == str(log(attempt=2)).encode()
    assert (await streams.read_log("s1", attempt=1)).data == str(log()).encode()
    assert len((await streams.read_metrics("s1")).points) == 2
    assert (await streams.read_log("nobody")).attempt == 0
    await streams.append([text(log(attempt=4), 0, b"4"), reports(metric(attempt=3), 1, {"a": 1})])
    found = [await streams.next_log("s1", attempt) for attempt in (0, 1, 2, 4)]
    assert found == [1, 2, 4, None]
    assert await streams.next_log("s1", 1, rank=1) is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(0, b""), (1, b"d"), (2, b"c\nd"), (3, b"\nc\nd"), (4, b"a\n\nc\nd"), (99, b"a\n\nc\nd")],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_the_last_lines(history: History, lines: int, expected: bytes, end: bytes) -> None:
    data = b"a\n\nc\nd" + end
    for at in range(len(data)):
        await history.streams.append([text(log(), at, data[at : at + 1])])
    page = await history.streams.read_log("s1", tail_lines=lines)
    assert page.data == (expected + end if lines else b"")


async def test_a_log_by_the_time_at_which_it_came(at_times: tuple[History, Hand]) -> None:
    history, clock = at_times
    streams = history.streams
    for moment in range(100):
        clock.now = 1000.0 + moment
        await streams.append([text(log(), moment * 10, b"line %04d\n" % moment)])
    clock.now = 1200.0
    await streams.append([text(log(), 1010, b"late\n")])  # behind a gap
    for moment, offset in [(0.0, 0), (1000.0, 0), (1000.5, 10), (1042.0, 420), (1099.0, 990)]:
        assert await streams.log_at("s1", moment) == (1, offset)
    assert (await streams.log_at("s1", 9e9)) == (1, 1015)
    assert (await streams.log_at("s1", 1010.0, rank=3)) == (0, 0)
    assert (await streams.log_at("s1", 1010.0, attempt=2)) == (2, 0)
    page = await streams.read_log("s1", offset=415, stop=433)
    assert (page.data, page.next, page.end) == (b"0041\nline 0042\nlin", 433, 433)
    assert page.times == ((415, 1041.0), (420, 1042.0), (430, 1043.0))
    for stop, lines, offset, expected in [
        (430, 2, 0, b"line 0041\nline 0042\n"),
        (433, 2, 0, b"line 0042\nlin"),
        (430, 9, 405, b"0040\nline 0041\nline 0042\n"),
        (0, 5, 0, b""),
        (9999, 1, 0, b"late\n"),
    ]:
        page = await streams.read_log("s1", offset=offset, tail_lines=lines, stop=stop)
        assert page.data == expected
    page = await streams.read_log("s1", offset=995, stop=1005)
    assert (page.data, page.next, page.end) == (b"0099\n", 1000, 1005)
    page = await streams.read_log("s1", offset=1000, stop=1005)
    assert (page.missing_bytes, page.data, page.next, page.end) == (5, b"", 1005, 1005)


async def test_a_log_of_very_many_chunks_comes_in_pages_of_bounded_work(history: History) -> None:
    await history.streams.append([text(log(), at, b"x") for at in range(2500)])
    page = await history.streams.read_log("s1")
    assert (len(page.data), page.end) == (1024, 2500)
    page = await history.streams.read_log("s1", offset=2000)
    assert (len(page.data), page.next) == (500, 2500)


async def test_the_last_lines_of_very_many_chunks_are_looked_for_in_several_reads(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(b"%d\n" % number for number in range(500))
    chunks = [text(log(), at, data[at : at + 1]) for at in range(len(data))]
    await history.streams.append([one for one in chunks if not 300 <= one.first < 320])
    monkeypatch.setattr(logs, "TAIL_ROWS_A_LOOK", 100)
    looks: list[int] = []

    async def grow(*given: Any) -> Any:
        """While it is looked for, more is written: it is not of the lines that were the last."""
        if looks:
            await history.streams.append([text(log(), len(data), b"more\nand more\n")])
        looks.append(1)
        return await read(*given)

    database = history.streams._database  # type: ignore[attr-defined]
    read = database.read
    monkeypatch.setattr(database, "read", grow)
    page = await history.streams.read_log("s1", tail_lines=200, limit_bytes=1 << 20)
    assert page.data == b"".join(b"%d\n" % number for number in range(300, 500))
    assert page.end == len(data)
    assert len(looks) == 9  # 800 chunks, and the one before that ends a line
    monkeypatch.setattr(logs, "TAIL_LOOKS_BACK_BYTES", 1000)
    before = len(data) + len(b"more\nand more\n") - 1000
    assert (await history.streams.read_log("s1", tail_lines=400)).offset == before


async def test_a_huge_line_is_kept_byte_for_byte_in_bounded_pages(history: History) -> None:
    data = (bytes(range(256)) * 4096).replace(b"\n", b"\0")
    at = 0
    for size in (300_000, 500_000, len(data) - 800_000):
        await history.streams.append([text(log(), at, data[at : at + size])])
        at += size
    read = bytearray()
    while len(read) < len(data):
        page = await history.streams.read_log("s1", offset=len(read), limit_bytes=65_536)
        assert 0 < len(page.data) <= 65_536
        read += page.data
    assert bytes(read) == data
    tail = await history.streams.read_log("s1", tail_lines=3, limit_bytes=10)
    assert tail.offset == 0


async def test_metrics_page_by_page_with_names(history: History) -> None:
    streams = history.streams
    for number in range(1, 201):
        await streams.append(
            [
                reports(
                    metric(writer=number % 3), (number - 1) // 3 + 1, {"train/loss": number, "x": 0}
                )
            ]
        )
    seen: list[Any] = []
    mark, pages = 0, 0
    while True:
        page = await streams.read_metrics("s1", names=["train/*"], after=mark, limit_points=7)
        seen += [point.value for point in page.points]
        mark, pages = page.next, pages + 1
        if page.is_end:
            break
    assert sorted(seen) == list(range(1, 201))
    assert 28 < pages <= 201
    assert (await streams.read_metrics("s1", names=["nothing"])).points == ()
    assert await streams.metric_counts("s1") == {"train/loss": 200, "x": 200}


async def test_values_come_back_as_they_were_reported(history: History) -> None:
    values = {
        "z": 1,
        "a": "NaN",
        "b": "-Infinity",
        "text": "x",
        "list": [1, {"k": None}],
        "t": True,
    }
    await history.streams.append([reports(metric(rank=2, attempt=3), 1, values, summary=True)])
    points = (await history.streams.read_metrics("s1")).points
    assert [point.name for point in points] == list(values)
    by_name = {point.name: point.value for point in points}
    assert by_name["a"] != by_name["a"]
    assert by_name["b"] == float("-inf")
    assert (by_name["list"], by_name["t"]) == ([1, {"k": None}], True)
    assert {(point.attempt, point.rank, point.step) for point in points} == {(3, 2, 1.0)}
    summary = (await history.streams.summaries(["s1", "s2"]))["s1"]
    assert list(summary.values) == list(values)


async def test_the_latest_summary_stands(history: History) -> None:
    streams = history.streams
    await streams.append([reports(metric(), 5, {"v": "first"}, summary=True)])
    await streams.append([reports(metric(writer=1), 1, {"v": "older"}, summary=True)])
    assert (await streams.summaries(["s1"]))["s1"].values == {"v": "first"}
    await streams.append([reports(metric(), 6, {"v": "no summary"})])
    await streams.append([reports(metric(), 7, {"v": "x"}, {"v": "newer"}, summary=True)])
    assert (await streams.summaries(["s1"]))["s1"].values == {"v": "newer"}
    await streams.append([reports(metric(), 9, {}, summary=True)])
    assert (await streams.summaries(["s1"]))["s1"].values == {"v": "newer"}
    await streams.append([reports(metric(attempt=2), 1, {"v": "second attempt"}, summary=True)])
    assert (await streams.summaries(["s1"]))["s1"].values == {"v": "second attempt"}
    assert await streams.summaries(["other"]) == {}


async def test_the_summary_keeps_what_was_reported_to_other_libraries(history: History) -> None:
    streams = history.streams

    async def shown(key: StreamKey, first: int, *values: dict[str, Any], **more: Any) -> Any:
        await streams.append([reports(key, first, *values, summary=True, **more)])
        summary = (await streams.summaries(["s1"]))["s1"]
        return list(summary.values.items()), summary.step

    ours, other = metric(), metric(writer=1)
    assert await shown(ours, 1, {"loss": 3, "acc": 1}, {"val/loss": 4}, origin="wandb") == (
        [("loss", 3), ("acc", 1), ("val/loss", 4)],
        2,
    )
    assert await shown(ours, 3, {"best": 9}, {"loss": 2}, origin="wandb") == (
        [("loss", 2), ("acc", 1), ("val/loss", 4), ("best", 9)],
        4,
    )
    # Of another process, and earlier: it adds what is not there, and changes nothing.
    assert await shown(other, 1, {"f1": 5, "best": 8}, origin="mlflow") == (
        [("loss", 2), ("acc", 1), ("val/loss", 4), ("best", 9), ("f1", 5)],
        4,
    )
    # nsml.report replaces its own alone.
    await streams.append([reports(ours, 5, {"score": 1, "x": 1}, summary=True)])
    assert await shown(ours, 6, {"score": 2}) == (
        [("loss", 2), ("acc", 1), ("val/loss", 4), ("best", 9), ("f1", 5), ("score", 2)],
        6,
    )
    assert await shown(ours, 7, {"acc": 0}, origin="wandb") == (
        [("loss", 2), ("acc", 0), ("val/loss", 4), ("best", 9), ("f1", 5), ("score", 2)],
        7,
    )
    again = metric(attempt=2)
    assert await shown(again, 1, {"loss": 1}, origin="wandb") == (
        [("loss", 1), ("acc", 0), ("val/loss", 4), ("best", 9), ("f1", 5), ("score", 2)],
        1,
    )
    # What an earlier attempt sends late is not added.
    values, _ = await shown(metric(writer=2), 8, {"late": 1}, origin="wandb")
    assert "late" not in dict(values)


async def test_lists_carry_the_first_values_of_a_summary(history: History) -> None:
    streams = history.streams
    text = {"notes": "x" * 3_000}
    many = text | {f"loss/{number}": number / 7 for number in range(500)}
    few = {"b": "Infinity", "a": [1, {"k": None}], "c": "\0"}
    await streams.append(
        [
            reports(metric(), 1, many, summary=True),
            reports(metric("s2"), 1, few, summary=True),
            reports(metric("s3"), 1, text, summary=True),
        ]
    )
    found = await streams.listed_summaries(["s1", "s2", "s3", "other"])
    assert found.keys() == {"s1", "s2", "s3"}
    assert found["s2"] == (await streams.summaries(["s2"]))["s2"]
    assert list(found["s2"].values) == list(few)
    assert (found["s3"].values, found["s3"].left_out) == ({}, 1)
    short = found["s1"]
    # What has no room takes none from those behind it.
    assert list(short.values.items()) == list(many.items())[1:31]
    assert (short.left_out, short.step) == (len(many) - 30, 1.0)
    whole = (await streams.summaries(["s1"]))["s1"]
    assert (whole.values, whole.left_out) == (many, 0)
    names = ["loss/499", "loss/2", "notes", "nothing"]
    found = await streams.listed_summaries(["s1", "s2"], names)
    assert list(found["s1"].values.items()) == [*list(many.items())[1:31], ("loss/499", 499 / 7)]
    assert found["s1"].left_out == len(many) - 31
    assert list(found["s2"].values) == list(few)
    # One that has become short is whole again.
    await streams.append([reports(metric(), 2, {"v": 1}, summary=True)])
    assert (await streams.listed_summaries(["s1"]))["s1"].values == {"v": 1}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"kind":"metric","values":3}',
        b'{"kind":"metric","values":{"a":1},"time":"x"}',
        b'{"kind":"metric","values":{"\\ud800":1},"time":1}',
    ],
)
async def test_a_record_that_is_no_report_is_kept_and_hurts_nothing(
    history: History, record: bytes
) -> None:
    streams = history.streams
    bad = Chunk(stream=metric(), first=1, last=1, records=(record,))
    await streams.append([bad, reports(metric(), 2, {"a": 1})])
    page = await streams.read_metrics("s1")
    assert ([point.value for point in page.points], page.unreadable) == ([1], 1)
    (first, _) = await streams.read(metric(), 1)
    assert isinstance(first, Recorded)
    assert first.records == (record,)


async def test_a_clock_that_is_set_hides_no_later_summary(
    at_times: tuple[History, Hand],
) -> None:
    history, clock = at_times

    async def report(at: float, position: int, value: float, *, rank: int = 0) -> float:
        chunk = reports(metric(rank=rank), position, {"v": value}, summary=True, time=at)
        await history.streams.append([chunk])
        return (await history.streams.summaries(["s1"]))["s1"].values["v"]

    clock.now = 10_000.0
    assert await report(10_000.0, 1, 1.0) == 1.0
    assert await report(6_400.0, 2, 2.0) == 2.0  # set back by an hour
    assert await report(6_401.0, 3, 3.0) == 3.0
    clock.now = 10_001.0
    assert await report(13_600.0, 1, 4.0, rank=1) == 4.0  # an hour ahead
    clock.now = 10_002.0
    assert await report(10_002.0, 4, 5.0) == 5.0
    assert await report(6_402.0, 5, 6.0) == 5.0  # of several processes the latest by their clocks


def advances(key: StreamKey, first: int, *points: Any, **more: Any) -> Chunk:
    """Progress records, as (time, done), and states as (time, word)."""
    records = []
    for at, what in points:
        record = {"kind": "progress", "time": at, "done": what, "of": 100, "unit": "steps", **more}
        if isinstance(what, str):
            record = {"kind": "state", "time": at, "state": what}
        records.append(json.dumps(record).encode())
    return Chunk(stream=key, first=first, last=first + len(records) - 1, records=tuple(records))


async def test_the_newest_progress_of_rank_0_stands_with_an_estimate(
    at_times: tuple[History, Hand],
) -> None:
    history, clock = at_times
    clock.now = 5000.0

    async def progress(*chunks: Chunk) -> tuple[int, float, float | None]:
        await history.streams.append(chunks)
        found = (await history.streams.progress(["s1", "s2"]))["s1"]
        return found.attempt, found.reported.done, found.estimate.ends_at

    assert await history.streams.progress(["s1"]) == {}
    with pytest.raises(KeyError):
        await progress(advances(metric(rank=1), 1, (1000, 90)))
    assert await progress(advances(metric(), 1, (1000, 0))) == (1, 0, None)
    assert await progress(advances(metric(), 2, (1010, 1), (1020, 2))) == (1, 2, 2000.0)
    # Sent again, and a gap that is filled late: nothing changes.
    assert await progress(advances(metric(), 2, (1010, 1), (1020, 2))) == (1, 2, 2000.0)
    assert await progress(advances(metric(), 6, (1030, 3))) == (1, 3, 2000.0)
    assert await progress(advances(metric(), 4, (1022, 2.2), (1025, 2.5))) == (1, 3, 2000.0)
    # A pause of 500 seconds, in several chunks.
    assert await progress(advances(metric(), 7, (1030, "PAUSED"))) == (1, 3, None)
    assert await progress(advances(metric(), 8, (1530, "RUNNING"))) == (1, 3, 2500.0)
    assert await progress(advances(metric(), 9, (1540, 4))) == (1, 4, 2500.0)
    # Other processes count by their clocks.
    assert await progress(advances(metric(writer=2), 1, (1535, 7))) == (1, 4, 2500.0)
    assert (await progress(advances(metric(writer=2), 2, (1550, 8))))[:2] == (1, 8)
    # Another attempt begins anew, and earlier ones never come back.
    assert await progress(advances(metric(attempt=2), 1, (2000, 4))) == (2, 4, None)
    assert await progress(advances(metric(), 10, (2100, 50))) == (2, 4, None)
    assert await progress(advances(metric(attempt=2), 2, (2001, 5), unit="epochs")) == (2, 5, None)
    # A clock ahead of ours is capped.
    assert (await progress(advances(metric(attempt=3), 1, (9000, 1))))[:2] == (3, 1)
    [found] = (await history.streams.progress(["s1"])).values()
    assert found.reported.time == 5000.0
    own = advances(metric(attempt=3), 2, (4990, 2), ends_at=8000, origin="keras")
    assert await progress(own) == (3, 2, 8000.0)
    [found] = (await history.streams.progress(["s1"])).values()
    assert (found.reported.origin, found.reported.unit, found.reported.of) == (
        "keras",
        "steps",
        100,
    )
    page = await history.streams.read_metrics("s1")
    assert (page.points, page.unreadable) == ((), 0)
    assert page.missing == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"done": -1},
        {"done": "NaN"},
        {"done": None},
        {"done": 10**400},
        {"done": [1]},
        {"done": True},
        {"of": -1},
        {"of": {}},
        {"of": 1e300},
        {"unit": ""},
        {"unit": 7},
        {"unit": "Epochs"},
        {"unit": "steps\0"},
        {"unit": "a" * 17},
        {"origin": "a b"},
        {"origin": "\ud800"},
        {"origin": ["x"]},
        {"time": -1},
        {"time": 1e300},
        {"time": "x"},
        {"ends_at": -1},
        {"ends_at": "soon"},
    ],
)
async def test_hostile_progress_is_skipped(history: History, fields: dict[str, Any]) -> None:
    good = {"kind": "progress", "time": 1.0, "done": 1, "of": 2, "unit": "steps"}
    records = tuple(json.dumps(one).encode() for one in (good, good | fields))
    extra = (
        b'{"kind":"progress"',
        b'{"kind":"progress"}',
        b'"progress"',
        b"[" * 10_000 + b'"state"',
    )
    records += extra
    chunk = Chunk(stream=metric(), first=1, last=len(records), records=records)
    await history.streams.append([chunk, reports(metric(), chunk.last + 1, {"a": 1})])
    [found] = (await history.streams.progress(["s1"])).values()
    assert (found.reported.done, found.reported.of, found.reported.unit) == (1, 2, "steps")
    assert [one.value for one in (await history.streams.read_metrics("s1")).points] == [1]


async def test_a_hundred_thousand_progress_records_at_once_are_one_row(history: History) -> None:
    points = [(1.0 + number / 1000, number / 1000) for number in range(100_000)]
    await history.streams.append([advances(metric(), 1, *points)])
    [found] = (await history.streams.progress(["s1"])).values()
    assert found.reported.done == 99.999
    assert found.estimate.ends_at == pytest.approx(101.0)
    assert found.estimate.next_at == pytest.approx(1.0 + 99.999 + 10.0, abs=0.2)


async def test_odd_but_valid_reports_hurt_nothing(history: History) -> None:
    values = {"\0": 1, "big": 10**40, "n" * 513: 1, "": 2, "deep": [[[[]]]]}
    await history.streams.append([reports(metric(), 1, values, summary=True, extra=[1])])
    names = [point.name for point in (await history.streams.read_metrics("s1")).points]
    assert names == ["\0", "big", "", "deep"]
    checkpoint = Chunk(stream=metric(), first=2, last=2, records=(b'{"kind":"checkpoint"}',))
    await history.streams.append([checkpoint])
    page = await history.streams.read_metrics("s1")
    assert (len(page.points), page.unreadable) == (4, 0)


async def test_counted_names_are_bounded(history: History) -> None:
    many = {f"m{i:05}": 1 for i in range(10_500)}
    await history.streams.append([reports(metric(), 1, many)])
    await history.streams.append([reports(metric(), 2, many)])
    counts = await history.streams.metric_counts("s1")
    assert len(counts) == 10_000
    assert set(counts.values()) == {2}
    assert len((await history.streams.read_metrics("s1")).points) >= 10_500


async def test_a_name_with_nul_is_counted_on_when_there_is_room_for_no_more(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.history.sql.appending.MAX_COUNTED_NAMES", 2)
    for first in (1, 2):
        values = {"los": 1, "los\0s": 1, f"more\0{first}": 1}
        await history.streams.append([reports(metric(), first, values)])
    assert await history.streams.metric_counts("s1") == {"los": 2, "los\0s": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"first": 0},
        {"first": 3},
        {"last": 3},
        {"records": ()},
        {"data": b"x"},
        {"is_gap": True},
        {"stream": log()},
    ],
)
def test_a_chunk_that_contradicts_itself_cannot_be_made(change: dict[str, Any]) -> None:
    good = reports(metric(), 1, {"a": 1}, {"a": 2})
    with pytest.raises(ValueError):
        replace(good, **change)


async def test_concurrent_appends_all_arrive(history: History) -> None:
    keys = [metric(writer=writer) for writer in range(8)]

    async def feed(key: StreamKey) -> None:
        for number in range(1, 26):
            marks = await history.streams.append([reports(key, number, {"n": number})])
            assert marks == {key: number + 1}

    await asyncio.gather(*[feed(key) for key in keys])
    assert await history.streams.metric_counts("s1") == {"n": 200}
    assert await history.streams.cursors("s1", 1) == dict.fromkeys(keys, 26)


async def test_a_follower_of_all_is_told_which_were_committed_to(history: History) -> None:
    streams = history.streams
    with streams.touched() as touched:
        # None: whoever has only now begun to listen over the network may have missed any.
        await streams.append([text(log("s1"), 0, b"x"), reports(metric("s2"), 1, {"a": 1})])
        await streams.append([text(log("s1"), 1, b"x")])
        assert touched.take() in (None, {"s1", "s2"})
        with streams.touched() as other:
            await streams.append([text(log("s3"), 0, b"x")])
            assert other.take() in (None, {"s3"})
        assert touched.take() in (None, {"s3"})
        assert touched.take() in (None, set())


async def test_a_follower_is_told_after_each_commit(history: History) -> None:
    streams = history.streams
    received: list[bytes] = []

    async def follow() -> None:
        offset = 0
        with streams.changed("s1") as change:
            while offset < 300:
                page = await streams.read_log("s1", offset=offset)
                if page.data:
                    received.append(page.data)
                    offset = page.next
                else:
                    await change.wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(follow())
        for at in range(0, 300, 10):
            await streams.append([text(log("other"), at, b"-" * 10)])
            await streams.append([text(log(), at, b"x" * 10)])
    assert b"".join(received) == b"x" * 300


async def test_a_cancelled_append_is_whole_or_absent_and_harms_nobody(history: History) -> None:
    streams = history.streams
    for number in range(20):
        tasks = [
            asyncio.ensure_future(
                streams.append([text(log(f"s{i}"), number * 4, f"{number:04}".encode())])
            )
            for i in range(4)
        ]
        for _ in range(number % 5):
            await asyncio.sleep(0)
        tasks[number % 4].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(results):
            if isinstance(result, BaseException):
                assert isinstance(result, asyncio.CancelledError)
                await streams.append([text(log(f"s{i}"), number * 4, f"{number:04}".encode())])
    expected = b"".join(f"{number:04}".encode() for number in range(20))
    for i in range(4):
        assert (await streams.read_log(f"s{i}")).data == expected


async def test_one_callers_mistake_does_not_undo_the_others(history: History) -> None:
    catalogue = history.catalogue
    await catalogue.put_session(session(1), term=1)
    results = await asyncio.gather(
        catalogue.put_session(session(2), term=1),
        catalogue.put_session(session(3, name=session(1).name), term=1),
        history.streams.append([text(log(), 0, b"kept")]),
        catalogue.put_session(session(4), term=1),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), HistoryConflict, dict, type(None)]
    page = await catalogue.sessions(SessionQuery(viewer=ADMIN))
    assert [found.id for found in page.sessions] == ["s0004", "s0002", "s0001"]
    assert (await history.streams.read_log("s1")).data == b"kept"


# Catalogue


async def test_a_session_is_found_by_id_name_and_request(history: History) -> None:
    catalogue = history.catalogue
    await catalogue.put_session(session(1), term=1)
    await catalogue.put_session(session(1), term=1)
    await catalogue.put_session(session(2, request_id=""), term=1)
    await catalogue.put_session(session(3, request_id=""), term=1)
    assert await catalogue.session("s0001") == session(1)
    assert await catalogue.session_by_name("kim/mnist/1") == session(1)
    assert await catalogue.session_by_request("kim", "r1") == session(1)
    assert await catalogue.session("s9") is None
    assert await catalogue.sessions_among({"s0001", "s9"}) == (session(1),)
    assert await catalogue.session_by_name("kim/mnist/9") is None
    assert await catalogue.session_by_request("lee", "r1") is None
    await catalogue.put_session(session(1, searched="changed"), term=1)
    found = await catalogue.session("s0001")
    assert found is not None
    assert found.searched == "changed"
    other = replace(found, searched="again", record=b"newer")
    assert not await catalogue.replace_session(other, known=b"older")
    assert await catalogue.session("s0001") == found
    assert await catalogue.replace_session(other, known=found.record)
    assert await catalogue.session("s0001") == other
    assert await catalogue.session("s0002") == session(2, request_id="")
    assert not await catalogue.replace_session(session(9), known=session(9).record)
    assert await catalogue.session("s0009") is None
    with pytest.raises(HistoryConflict):
        await catalogue.put_session(session(4, request_id="r1"), term=1)


async def test_pages_join_without_repeats_or_holes(history: History) -> None:
    for number in range(25):
        await history.catalogue.put_session(session(number, created_at=float(number // 10)), term=1)
    query = SessionQuery(viewer=ADMIN)
    seen: list[SessionRecord] = []
    key = None
    while True:
        page = await history.catalogue.sessions(query, after=key, limit=4)
        seen += page.sessions
        key = page.next
        if key is None:
            break
    assert [(found.created_at, found.id) for found in seen] == sorted(
        ((number // 10, f"s{number:04}") for number in range(25)), reverse=True
    )


async def test_each_sees_what_he_may(history: History) -> None:
    put = history.catalogue.put_session
    await put(session(1), term=1)
    await put(session(2, owner="lee", team="vision", visibility=Visibility.TEAM), term=1)
    await put(session(3, owner="lee", team="", visibility=Visibility.TEAM), term=1)
    await put(session(4, owner="lee", team="vision", visibility=Visibility.PRIVATE), term=1)
    await put(session(5, owner="lee", visibility=Visibility.PUBLIC), term=1)

    async def seen_by(viewer: User) -> list[str]:
        page = await history.catalogue.sessions(SessionQuery(viewer=viewer))
        return [found.id[-1] for found in page.sessions]

    assert await seen_by(User(name="kim")) == ["5", "1"]
    assert await seen_by(User(name="lee")) == ["5", "4", "3", "2"]
    assert await seen_by(User(name="park", team="vision")) == ["5", "2"]
    assert await seen_by(User(name="park")) == ["5"]
    assert await seen_by(ADMIN) == ["5", "4", "3", "2", "1"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "54321"),
        ({"owners": ("lee",)}, "3"),
        ({"owners": ("lee", "kim")}, "54321"),
        ({"states": ("FAILED",)}, "2"),
        ({"dataset": "cifar"}, "4"),
        ({"project": "vision"}, "42"),
        ({"project": "kim"}, "51"),
        ({"project": "lee"}, "3"),
        ({"project": "vis"}, ""),
        ({"project": "vision", "dataset": "cifar"}, "4"),
        ({"name_glob": "kim/mnist/1*"}, "51"),
        ({"name_glob": "kim/*/1?"}, "5"),
        ({"name_glob": "KIM/*"}, ""),
        ({"name_glob": "[!kl]*"}, ""),
        ({"name_glob": "kim/*/[1-2]"}, "21"),
        ({"name_glob": "kim/mnist/1*\0"}, ""),
        ({"name_glob": "*/m[nist/4"}, "4"),
        ({"text": "first"}, "1"),
        ({"text": "FIRST"}, ""),
        ({"text": "über"}, "1"),
        ({"text": "100%"}, "2"),
        ({"text": "%"}, "2"),
        ({"text": "_"}, "3"),
        ({"text": "\\"}, "3"),
        ({"text": "--lr"}, "5"),
        ({"text": "' OR 1=1 --"}, ""),
        ({"owners": ("kim' OR '1'='1",)}, ""),
        ({"owners": ("lee\0", "kim\0lee")}, ""),
    ],
)
async def test_filters(history: History, query: dict[str, Any], expected: str) -> None:
    for found in (
        session(1, searched="first try über", project="kim"),
        session(2, state="FAILED", searched="100% sure", project="vision"),
        session(3, owner="lee", name="lee/mnist/3", searched="a_b\\c"),
        session(4, dataset="cifar", name="kim/m[nist/4", project="vision"),
        session(5, name="kim/mnist/15", searched="main.py --lr 0.1"),
    ):
        await history.catalogue.put_session(found, term=1)
    page = await history.catalogue.sessions(SessionQuery(viewer=ADMIN, **query))
    assert "".join(found.id[-1] for found in page.sessions) == expected


async def test_removing_a_session_removes_all_of_it_but_its_charges(history: History) -> None:
    charge = AttemptCharge(
        session_id="s0001",
        attempt=1,
        owner="kim",
        project="p",
        gpu_thousandths=500,
        seconds=10.0,
        ended_at=5.0,
    )
    await history.catalogue.put_session(session(1), [charge], term=1)
    await history.catalogue.put_checkpoint(
        Checkpoint(session_id="s0001", name="best", saved_at=1.0, size_bytes=1, file_count=1)
    )
    await history.streams.append(
        [text(log("s0001"), 0, b"x"), reports(metric("s0001"), 1, {"a": 1}, summary=True)]
    )
    await history.streams.append([advances(metric("s0001"), 2, (1.0, 1))])
    await history.streams.append([text(log("s0002"), 0, b"other")])
    await history.media.tell([medium(1, session_id="s0001"), medium(1, session_id="s0002")])
    await history.reported_config.tell(
        [setting("lr", "0.1", session_id="s0001"), setting("lr", "0.2", session_id="s0002")],
        cut=["s0001"],
    )
    assert await history.catalogue.delete_session("s0001") is True
    assert await history.catalogue.delete_session("s0001") is False
    assert await history.catalogue.session("s0001") is None
    assert await history.catalogue.checkpoints("s0001") == ()
    assert (await history.streams.read_log("s0001")).data == b""
    assert await history.streams.cursors("s0001", 1) == {}
    assert await history.streams.summaries(["s0001"]) == {}
    assert await history.streams.progress(["s0001"]) == {}
    assert await history.streams.metric_counts("s0001") == {}
    assert (await history.media.list(MediaQuery(session_id="s0001"))).media == ()
    assert len((await history.media.list(MediaQuery(session_id="s0002"))).media) == 1
    assert (await history.reported_config.of(["s0001", "s0002"])).keys() == {"s0002"}
    assert (await history.streams.read_log("s0002")).data == b"other"
    assert await history.ledger.charged(owner="kim") == 5.0


async def test_dataset_versions_count_up_and_repeat_harmlessly(history: History) -> None:
    put = history.catalogue.put_dataset_version
    mnist = Dataset(owner="kim", name="mnist", created_at=1.0)
    first, created = await put(mnist, digest="d1", size_bytes=10, file_count=2, message="one")
    assert (first.number, created) == (1, True)
    assert await put(mnist, digest="d1", size_bytes=10, file_count=2) == (first, False)
    later = replace(mnist, created_at=2.0, visibility=Visibility.PUBLIC)
    second, _ = await put(later, digest="d2", size_bytes=20, file_count=3)
    third, _ = await put(later, digest="d1", size_bytes=10, file_count=2)
    assert (second.number, third.number) == (2, 3)
    newest = await history.catalogue.dataset("kim", "mnist")
    assert newest is not None
    assert newest.version == third
    assert (newest.dataset.created_at, newest.dataset.visibility) == (1.0, Visibility.PUBLIC)
    old = await history.catalogue.dataset("kim", "mnist", 2)
    assert old is not None
    assert old.version == second
    assert await history.catalogue.dataset("kim", "mnist", 9) is None
    assert await history.catalogue.dataset("lee", "mnist") is None
    assert [found.name for found in await history.catalogue.readers_of("d1")] == ["mnist"]
    assert await history.catalogue.readers_of("d9") == ()
    assert await history.catalogue.versions_among({"d1", "d9"}) == {"d1"}


async def test_concurrent_pushes_get_numbers_of_their_own(history: History) -> None:
    mnist = Dataset(owner="kim", name="mnist", created_at=1.0)
    results = await asyncio.gather(
        *[
            history.catalogue.put_dataset_version(mnist, digest=f"d{i}", size_bytes=1, file_count=1)
            for i in range(10)
        ]
    )
    assert sorted(version.number for version, _ in results) == list(range(1, 11))


async def pushed(history: History, *digests: str, at: float = 1.0, **fields: Any) -> list[int]:
    """Push versions of kim/mnist; the newest number after each."""
    dataset = Dataset(owner="kim", name="mnist", created_at=at, **fields)
    put = history.catalogue.put_dataset_version
    made = [await put(dataset, digest=one, size_bytes=1, file_count=1) for one in digests]
    return [version.number for version, _ in made]


async def there(history: History) -> list[int]:
    """Numbers of the versions of kim/mnist that are not removed, the newest first."""
    found = await history.catalogue.dataset_versions("kim", "mnist")
    return [one.version.number for one in found]


async def test_removed_versions_are_out_of_sight_and_keep_their_content(history: History) -> None:
    catalogue = history.catalogue
    await pushed(history, "1a" * 32, "1b" * 32, "1c" * 32, visibility=Visibility.TEAM, team="t")
    [gone] = await catalogue.remove_dataset("kim", "mnist", 3, at=50.0)
    assert (gone.number, gone.digest) == (3, "1c" * 32)
    newest = await catalogue.dataset("kim", "mnist")
    assert newest is not None
    assert (newest.version.number, newest.version_count) == (2, 2)
    assert await catalogue.dataset("kim", "mnist", 3) is None
    assert await catalogue.readers_of("1c" * 32) == ()
    assert await catalogue.versions_among({"1b" * 32, "1c" * 32}) == {"1b" * 32}
    assert await there(history) == [2, 1]
    every = await catalogue.dataset_versions("kim", "mnist", with_removed=True, before=4, limit=2)
    assert [(one.version.number, one.version.removed_at) for one in every] == [(3, 50.0), (2, 0.0)]
    _, roots, _ = await referred(history)
    assert roots == {"1a" * 32, "1b" * 32, "1c" * 32}
    assert await pushed(history, "1c" * 32) == [4], "the number of a removed version is its own"
    assert len(await catalogue.remove_dataset("kim", "mnist", at=60.0)) == 3
    assert await catalogue.dataset("kim", "mnist") is None
    assert await catalogue.datasets(ADMIN) == ()
    assert await catalogue.owned_by("kim") == (0, 0, 1), "nobody else gets the name of its owner"
    assert await catalogue.purge_datasets(50.0) == 0
    assert await catalogue.purge_datasets(61.0) == 4
    assert await catalogue.purge_datasets(61.0) == 0
    assert (await referred(history))[1] == set()
    assert await catalogue.owned_by("kim") == (0, 0, 0)
    assert await pushed(history, "1a" * 32) == [5]


async def test_removed_versions_of_all_datasets_are_listed_in_pages(history: History) -> None:
    every = history.catalogue.every_removed_version
    for owner, name in (("kim", "mnist"), ("lee", "mnist"), ("kim", "abc")):
        dataset = Dataset(owner=owner, name=name, created_at=1.0)
        for digest in ("1a" * 32, "1b" * 32):
            await history.catalogue.put_dataset_version(
                dataset, digest=digest, size_bytes=1, file_count=1
            )
        await history.catalogue.remove_dataset(owner, name, at=50.0 if name == "abc" else 60.0)

    def told(found: Sequence[DatasetListing]) -> list[tuple[str, str, int]]:
        return [(one.version.name, one.version.owner, one.version.number) for one in found]

    of_mnist = [("mnist", owner, number) for owner in ("kim", "lee") for number in (1, 2)]
    assert told(await every("", since=55.0)) == of_mnist
    assert told(await every("kim", since=0.0, name_glob="m*")) == of_mnist[:2]
    assert told(await every("kim", since=0.0, name_glob="kim/m*")) == of_mnist[:2]
    assert told(await every("", since=0.0, after=of_mnist[0], limit=2)) == of_mnist[1:3]


async def test_the_last_removal_is_undone(history: History) -> None:
    catalogue = history.catalogue
    restore = partial(catalogue.restore_dataset, "kim", "mnist")
    await pushed(history, *(f"{number}a" * 32 for number in range(1, 5)))
    assert await restore(since=0.0) == Restored()
    await catalogue.remove_dataset("kim", "mnist", 2, at=50.0)
    await catalogue.remove_dataset("kim", "mnist", at=60.0)
    since = await catalogue.removed_versions("kim", "mnist", since=55.0)
    assert [one.number for one in since] == [1, 3, 4]
    assert await restore(since=60.5) == Restored(), "too late"
    assert await restore(since=0.0) == Restored((1, 3, 4))
    assert await there(history) == [4, 3, 1]
    assert await restore(9, since=0.0) == Restored()
    assert await restore(3, since=0.0) == Restored(), "it is there"
    assert await restore(2, since=0.0) == Restored((2,))
    assert await there(history) == [4, 3, 2, 1]
    assert [one.name for one in await catalogue.readers_of("2a" * 32)] == ["mnist"]
    assert (await history.kept.all())["kim"].asked == 4
    assert await catalogue.purge_datasets(1e12) == 0


async def test_parts_of_a_version_are_read_by_whom_they_are_for(history: History) -> None:
    catalogue, dataset = history.catalogue, Dataset(owner="kim", name="kin", created_at=1.0)
    dataset = replace(dataset, visibility=Visibility.PUBLIC)
    whole, opened, labels = "3a" * 32, "3b" * 32, "3c" * 32

    def made(access: PartAccess, root: str) -> tuple[DatasetRoot, DatasetParts]:
        roots = [
            DatasetRoot(kind=kind, path=path, digest=digest, size_bytes=size, file_count=1)
            for kind, path, digest, size in (
                (RootKind.PART, "", opened, 2),
                (RootKind.PART, "test/label", labels, 1),
                (RootKind.WHOLE, "", whole, 3),
            )
        ]
        first = replace(roots[0], digest=root)
        return first, DatasetParts(access={"test/label": access}, roots=tuple(roots))

    _, hidden = made(PartAccess.HIDDEN, opened)
    put = partial(catalogue.put_dataset_version, dataset, digest=opened, size_bytes=2, file_count=1)
    _, created = await put(parts=hidden)
    assert created
    with pytest.raises(PartsChanged):
        await put(parts=hidden)
    version, created = await put(parts=hidden, access_before=hidden.access)
    assert (version.number, created) == (1, False)
    found = await catalogue.dataset("kim", "kin")
    assert found is not None
    assert found.parts == hidden
    assert (found.owner_digest, found.whole_digest) == (opened, whole)
    for listed in (
        await catalogue.datasets(User(name="lee")),
        await catalogue.dataset_versions("kim", "kin"),
    ):
        assert [one.parts for one in listed] == [hidden]

    async def readers() -> list[list[Visibility]]:
        roots = (whole, opened, labels)
        return [[one.visibility for one in await catalogue.readers_of(root)] for root in roots]

    private, public = Visibility.PRIVATE, Visibility.PUBLIC
    # What is open is a part, too.
    assert await readers() == [[private], [public], [private]]
    assert await catalogue.versions_among({whole, labels, "9a" * 32}) == {whole, labels}
    owners = [one for one in await history.kept.largest("kim", {}) if one.name == "kin"]
    assert owners == [Item("kin", KeptKind.DATASETS, 3)]

    shown = made(PartAccess.OPEN, whole)
    change = partial(catalogue.set_part_access, "kim", "kin", shown[1].access)
    for versions, before in (
        ({}, hidden.access),
        ({1: shown}, {}),
        ({1: shown, 2: None}, hidden.access),
    ):
        with pytest.raises(PartsChanged):
            await change(versions, before=before)
    await change({1: shown}, before=hidden.access)
    assert await catalogue.part_access("kim", "kin") == {"test/label": PartAccess.OPEN}
    assert await readers() == [[public], [public], [public]]
    assert await catalogue.whole_roots("kim", "kin") == {1: whole}
    await catalogue.remove_dataset("kim", "kin", at=5.0)
    assert {one.root for one in await history.kept.released()} == {whole, opened, labels}
    assert await readers() == [[], [], []]
    assert (await referred(history))[1] == {whole, opened, labels}
    await catalogue.purge_datasets(6.0)
    assert (await referred(history))[1] == set()
    assert await catalogue.part_access("kim", "kin") == {"test/label": PartAccess.OPEN}


async def test_nothing_is_restored_into_a_dataset_that_more_users_see(history: History) -> None:
    """Its owner may have pushed a public one of that name meanwhile."""
    catalogue = history.catalogue
    restore = partial(catalogue.restore_dataset, "kim", "mnist", since=0.0)
    await pushed(history, "1a" * 32)
    await catalogue.update_dataset("kim", "mnist", description="of before")
    await catalogue.remove_dataset("kim", "mnist", at=50.0)
    assert not await catalogue.update_dataset("kim", "mnist", visibility=Visibility.PUBLIC)
    assert await pushed(history, "1b" * 32, at=70.0, visibility=Visibility.PUBLIC) == [2]
    new = await catalogue.dataset("kim", "mnist")
    assert new is not None
    assert (new.dataset.created_at, new.dataset.description) == (70.0, ""), "it is another one"
    assert await restore() == Restored(is_wider=True)
    assert await there(history) == [2]
    # With all of them removed nobody sees any: those of the public one do not open the private ones.
    await catalogue.remove_dataset("kim", "mnist", at=80.0)
    assert await restore(1) == Restored((1,))
    back = await catalogue.dataset("kim", "mnist")
    assert back is not None
    assert back.dataset.visibility is Visibility.PRIVATE
    assert await restore(2) == Restored((2,)), "private where it was public"


async def test_a_version_is_restored_or_purged_whoever_comes_first(history: History) -> None:
    catalogue = history.catalogue
    for turn in range(5):
        [number] = await pushed(history, f"{turn}a" * 32)
        await catalogue.remove_dataset("kim", "mnist", number, at=50.0)
        done, purged = await asyncio.gather(
            catalogue.restore_dataset("kim", "mnist", number, since=0.0),
            catalogue.purge_datasets(60.0),
        )
        assert (done.numbers, purged) in {((number,), 0), ((), 1)}
        assert (number in await there(history)) is (done.numbers != ())


async def test_tags_name_versions_until_they_are_moved(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = history.catalogue
    tag = partial(catalogue.tag_dataset, "kim", "mnist")
    monkeypatch.setattr(sql_datasets, "MOST_TAGS", 3)
    await pushed(history, "1a" * 32, "1b" * 32)
    assert await tag(3, "best") == Tagging()
    assert await tag(1, "best") == Tagging(is_set=True)
    assert await tag(1, "Best") == Tagging(is_set=True)
    assert await tag(2, "good") == Tagging(is_set=True)
    assert await tag(2, "one-more") == Tagging(is_full=True)
    assert await tag(2, "best") == Tagging(before=1, is_set=True)
    versions = await catalogue.dataset_versions("kim", "mnist")
    assert [one.tags for one in versions] == [("best", "good"), ("Best",)]
    [listed] = await catalogue.datasets(ADMIN)
    assert set(listed.tags) == {"best", "good"}
    found = await catalogue.dataset("kim", "mnist", 1)
    assert found is not None
    assert found.tags == ("Best",)
    assert await catalogue.tagged("kim", "mnist", "best") == 2
    assert await catalogue.tagged("kim", "mnist", "none") == 0
    await catalogue.remove_dataset("kim", "mnist", 2, at=50.0)
    assert await catalogue.tagged("kim", "mnist", "best") == 2, "it does not go back by itself"
    assert await tag(1, "good") == Tagging(before=2, is_set=True)
    await catalogue.restore_dataset("kim", "mnist", 2, since=0.0)
    versions = await catalogue.dataset_versions("kim", "mnist")
    assert [one.tags for one in versions] == [("best",), ("Best", "good")]
    assert await catalogue.untag_dataset("kim", "mnist", "best") == 2
    assert await catalogue.untag_dataset("kim", "mnist", "best") == 0
    await catalogue.remove_dataset("kim", "mnist", 1, at=60.0)
    await catalogue.purge_datasets(70.0)
    assert await catalogue.tagged("kim", "mnist", "good") == 0


async def test_datasets_are_found_by_words(history: History) -> None:
    catalogue = history.catalogue
    put = partial(catalogue.put_dataset_version, digest="d", size_bytes=1, file_count=1)
    for owner, name, visibility in [
        ("kim", "MNIST", Visibility.PRIVATE),
        ("kim", "kin-audio", Visibility.PUBLIC),
        ("lee", "mnist-small", Visibility.PRIVATE),
    ]:
        made = Dataset(owner=owner, name=name, created_at=1.0, visibility=visibility)
        await put(made, message=f"first of {name[:3]} 100%")
    await catalogue.update_dataset("kim", "kin-audio", description="Stimmen, Größe M")
    await catalogue.tag_dataset("kim", "kin-audio", 1, "Gold")

    async def found(*words: str, viewer: User | None = None) -> list[str]:
        listed = await catalogue.datasets(viewer or User(name="kim"), words=words)
        return [one.dataset.name for one in listed]

    assert await found("mnist") == ["MNIST"]
    assert await found("MNIST", viewer=ADMIN) == ["MNIST", "mnist-small"]
    assert await found("FIRST", "stimmen") == ["kin-audio"]
    assert await found("Größe") == ["kin-audio"]
    assert await found("gold") == ["kin-audio"]
    assert await found("gold", viewer=User(name="lee")) == ["kin-audio"], "it is public"
    assert await found("gold", "mnist") == []
    assert await found("100%") == ["MNIST", "kin-audio"]
    assert await found("1%0") == await found("_") == await found("kim") == []


async def test_uses_are_of_ended_sessions(history: History) -> None:
    catalogue = history.catalogue
    await pushed(history, "1a" * 32, "1b" * 32)
    for number, version in enumerate((1, 2, 2), start=1):
        used = [DatasetUse("kim", "mnist", version), DatasetUse("lee", "mnist", 7)]
        ended = session(number, ended_at=float(100 + number))
        await catalogue.put_session(ended, (), used, term=1)
        await catalogue.put_session(ended, (), used, term=1)
    assert await catalogue.ended_uses("kim", "mnist") == 3
    assert await catalogue.ended_uses("kim", "mnist", 2) == 2
    assert await catalogue.ended_uses("lee", "mnist", 2) == 0
    [listed] = await catalogue.datasets(ADMIN)
    assert listed.used_at == 103.0
    await catalogue.delete_session(session(3).id)
    found = await catalogue.dataset("kim", "mnist", 1)
    assert found is not None
    assert found.used_at == 102.0


async def test_datasets_are_listed_to_who_may_see_them(history: History) -> None:
    for owner, name, team, visibility in [
        ("lee", "mnist", "", Visibility.PUBLIC),
        ("kim", "mnist", "", Visibility.PRIVATE),
        ("lee", "kin_1", "vision", Visibility.TEAM),
        ("lee", "secret", "", Visibility.PRIVATE),
    ]:
        dataset = Dataset(owner=owner, name=name, created_at=1.0, team=team, visibility=visibility)
        for digest in ("d1", "d2"):
            await history.catalogue.put_dataset_version(
                dataset, digest=digest, size_bytes=1, file_count=1
            )

    async def seen_by(viewer: User, **query: str) -> list[tuple[str, str, int]]:
        found = await history.catalogue.datasets(viewer, **query)
        return [(item.dataset.name, item.dataset.owner, item.version.number) for item in found]

    assert await seen_by(User(name="kim")) == [("mnist", "kim", 2), ("mnist", "lee", 2)]
    park = User(name="park", team="vision")
    assert await seen_by(park) == [("kin_1", "lee", 2), ("mnist", "lee", 2)]
    assert len(await seen_by(ADMIN)) == 4
    assert await seen_by(ADMIN, name_glob="kin_*") == [("kin_1", "lee", 2)]
    assert await seen_by(ADMIN, name_glob="kim/*") == [("mnist", "kim", 2)]
    assert await seen_by(ADMIN, name="secret") == [("secret", "lee", 2)]


NAMES, TEAMS = ("kim", "Kim", "o'hara %_"), ("", "vision", "Vision ")
"""Two that are alike but for what a database may take for the same, and one that is text of SQL."""


async def test_listings_hold_what_the_policy_says(history: History) -> None:
    """All there is to compare: who it is of, which team, how far it opens, to everybody who may ask."""
    things = []
    for owner, team, visibility in product(NAMES, TEAMS, Visibility):
        name = f"d{len(things)}"
        dataset = Dataset(owner=owner, name=name, created_at=1.0, team=team, visibility=visibility)
        await history.catalogue.put_dataset_version(
            dataset, digest="d1", size_bytes=1, file_count=1
        )
        ended = session(len(things), name=name, owner=owner, team=team, visibility=visibility)
        await history.catalogue.put_session(ended, term=1)
        things.append(dataset)
    for name, team, role in product((*NAMES, "park"), TEAMS, Role):
        viewer = User(name=name, team=team, role=role)
        caller = UserCaller(user=viewer)
        allowed = {one.name for one in things if may(caller, SEE, one) is ALLOW}
        datasets = await history.catalogue.datasets(viewer)
        assert {one.dataset.name for one in datasets} == allowed
        page = await history.catalogue.sessions(SessionQuery(viewer=viewer))
        assert {one.name for one in page.sessions} == allowed


async def test_of_two_checkpoints_of_a_name_the_later_stands(history: History) -> None:
    put, get = history.catalogue.put_checkpoint, history.catalogue.checkpoint
    saved = Checkpoint(
        session_id="s1",
        name="best",
        saved_at=10.0,
        size_bytes=5,
        file_count=1,
        elapsed_s=2.5,
        summary='{"loss":1}',
        step=3.0,
        attempt=1,
        node="n1",
        folder="1-best",
    )
    durable = Checkpoint(
        session_id="s1",
        name="best",
        saved_at=10.0000001,
        size_bytes=5,
        file_count=1,
        state=CheckpointState.DURABLE,
        digest="d1",
        attempt=1,
    )
    both = replace(saved, state=CheckpointState.DURABLE, digest="d1")
    await put(saved)
    assert await get("s1", "best") == saved
    await put(durable)
    assert await get("s1", "best") == both
    await put(saved)
    assert await get("s1", "best") == both
    later = replace(saved, saved_at=20.0, summary='{"loss":0}')
    # until it is durable itself, the earlier one can be read
    stands = replace(later, digest="d1", content_attempt=1, content_saved_at=10.0)
    await put(later)
    assert await get("s1", "best") == stands
    await put(durable)
    assert await get("s1", "best") == stands
    await put(replace(durable, name="other", saved_at=5.0))
    await put(replace(saved, name="other", saved_at=5.0))
    found = await get("s1", "other")
    assert found is not None
    assert (found.state, found.digest, found.summary) == (
        CheckpointState.DURABLE,
        "d1",
        '{"loss":1}',
    )
    assert [item.name for item in await history.catalogue.checkpoints("s1")] == ["other", "best"]
    assert await history.catalogue.checkpoint_counts(["s1", "s2"]) == {"s1": (2, 0, 20.0)}
    assert await history.catalogue.delete_checkpoint("s1", "best") is True
    assert await history.catalogue.delete_checkpoint("s1", "best") is False
    assert await get("s1", "best") is None


async def test_checkpoints_are_read_page_by_page_and_the_newest_alone(history: History) -> None:
    catalogue = history.catalogue
    assert await catalogue.newest_durable("s1") is None
    assert await catalogue.newest_names("s1", 2) == ()
    made = [
        Checkpoint(
            session_id="s1",
            name=name,
            saved_at=saved_at,
            size_bytes=1,
            file_count=1,
            state=CheckpointState.DURABLE if digest else CheckpointState.SAVED,
            digest=digest,
            attempt=attempt,
        )
        # Of one moment by name; the clock of the second attempt's node is behind.
        for name, saved_at, digest, attempt in [
            ("second", 5.0, "d1", 2),
            ("a\0", 7.1, "d1", 1),
            ("a", 7.1, None, 1),
            ("\U0001f600", 9.0, "d1", 1),
            ("lost", 11.0, None, 2),
        ]
    ]
    for one in made:
        await catalogue.put_checkpoint(one)
    every = await catalogue.checkpoints("s1")
    assert [one.saved_at for one in every] == [5.0, 7.1, 7.1, 9.0, 11.0]
    paged, after = [], None
    while page := await catalogue.checkpoints("s1", after=after, limit=2):
        paged += page
        after = page[-1].saved_at, page[-1].name
    assert tuple(paged) == every
    newest = await catalogue.newest_durable("s1")
    assert newest is not None
    assert newest.name == "second"
    assert await catalogue.newest_names("s1", 2) == ("\U0001f600", "lost")


async def test_a_checkpoint_that_is_lost_says_so_and_takes_no_earlier_one_along(
    history: History,
) -> None:
    put, get = history.catalogue.put_checkpoint, history.catalogue.checkpoint
    first = Checkpoint(
        session_id="s1",
        name="best",
        saved_at=10.0,
        size_bytes=5,
        file_count=1,
        attempt=1,
        state=CheckpointState.DURABLE,
        digest="d1",
    )
    saved = replace(
        first, saved_at=20.0, size_bytes=6, state=CheckpointState.SAVED, digest=None, folder="2"
    )
    lost = replace(
        saved, size_bytes=0, file_count=0, state=CheckpointState.LOST, why_lost="gone", folder=""
    )
    stands = replace(
        saved,
        state=CheckpointState.LOST,
        why_lost="gone",
        digest="d1",
        content_attempt=1,
        content_saved_at=10.0,
    )
    for order in ([first, saved, lost], [saved, lost, first], [first, lost, saved]):
        for one in order:
            await put(one)
        await put(lost)
        found = await get("s1", "best")
        assert found == stands
        assert found.content_of == (1, 10.0)
        assert await history.catalogue.checkpoint_counts(["s1"]) == {"s1": (0, 1, 0.0)}
        await history.catalogue.delete_checkpoint("s1", "best")
    await put(replace(lost, attempt=2, saved_at=1.0))
    await put(stands)
    found = await get("s1", "best")
    assert found is not None
    assert (found.attempt, found.digest, found.content_of) == (2, "d1", (1, 10.0))
    sent = replace(saved, attempt=2, saved_at=1.0, state=CheckpointState.DURABLE, digest="d2")
    await put(sent)
    await put(lost)
    assert await get("s1", "best") == sent


async def test_checkpoints_that_no_node_sends_are_lost_until_one_does(history: History) -> None:
    put, get = history.catalogue.put_checkpoint, history.catalogue.checkpoint
    here, there = ReplicaKey("s1", 1, 0), ReplicaKey("s1", 2, 1)
    saved = Checkpoint(
        session_id="s1", name="a", saved_at=1.0, size_bytes=1, file_count=1, attempt=1
    )
    await put(saved)
    await put(replace(saved, name="b", state=CheckpointState.DURABLE, digest="d1"))
    await put(replace(saved, name="c", attempt=2, rank=1))
    assert await history.catalogue.unsettled_checkpoints() == (here, there)
    assert await history.catalogue.lose_checkpoints(here, "its node is gone") == 1
    assert await history.catalogue.lose_checkpoints(here, "again") == 0
    assert await history.catalogue.unsettled_checkpoints() == (there,)
    lost = await get("s1", "a")
    assert lost is not None
    assert (lost.state, lost.why_lost) == (CheckpointState.LOST, "its node is gone")
    await put(replace(saved, state=CheckpointState.DURABLE, digest="d2"))
    sent = await get("s1", "a")
    assert sent is not None
    assert (sent.state, sent.digest, sent.why_lost) == (CheckpointState.DURABLE, "d2", "")


def durable(name: str, saved_at: float = 1.0, *, session_id: str = "s1") -> Checkpoint:
    return Checkpoint(
        session_id=session_id,
        name=name,
        saved_at=saved_at,
        size_bytes=5,
        file_count=1,
        state=CheckpointState.DURABLE,
        digest=f"d{name}",
        attempt=1,
        folder=name,
    )


async def test_retired_checkpoints_are_gone_and_stay_so(history: History) -> None:
    catalogue, marks = history.catalogue, history.checkpoint_marks
    for number in range(1, 4):
        await catalogue.put_checkpoint(durable(str(number), float(number)))
    await catalogue.put_checkpoint(replace(durable("4"), state=CheckpointState.SAVED, digest=None))
    asked: list[list[str]] = []

    def first_two(found: Iterable[Checkpoint], known: Marks) -> list[str]:
        names = [one.name for one in found]
        asked.append(names)
        return [name for name in ("1", "2", "4") if name not in known.tags.values()]

    assert await marks.tag("s1", "paper", "2", most=9)
    gone = await marks.retire("s1", "kim", first_two, now=9.0)
    assert [one.name for one in gone] == ["1"]
    assert all(sorted(names) == ["1", "2", "3"] for names in asked)
    assert await marks.retired("s1") == Retired(1, 5)
    # Reported once more, by whichever way: it stays away.
    await catalogue.put_checkpoint(durable("1", 1.0))
    await catalogue.put_checkpoint(
        replace(durable("1", 1.0), state=CheckpointState.SAVED, digest=None)
    )
    assert await catalogue.checkpoint("s1", "1") is None
    # Saved once more it is there, and may go again.
    await catalogue.put_checkpoint(durable("1", 2.0))
    assert await catalogue.checkpoint("s1", "1") is not None
    assert len(await marks.retire("s1", "kim", first_two, now=9.0)) == 1
    assert await marks.retired("s1") == Retired(2, 10)
    assert await marks.retire("s1", "kim", lambda *_: [], now=9.0) == ()
    assert {(one.session_id, one.root) for one in await history.kept.released()} == {("s1", "d1")}


async def test_a_lock_is_kept_once_for_as_long_as_a_session_has_it(history: History) -> None:
    locks, catalogue = history.environment_locks, history.catalogue
    first, second = (EnvironmentLock(name * 64, 2, f"{name}==1\n" * 99) for name in "ab")
    assert await locks.of("s1") is None
    assert not await locks.share_lock("s2", first.digest)
    await asyncio.gather(*(locks.note_lock("s1", first) for _ in range(5)))
    assert await asyncio.gather(*(locks.share_lock(f"s{n}", first.digest) for n in range(2, 9)))
    assert await locks.of("s1") == await locks.of("s8") == first
    assert await locks.facts_of("s2") == EnvironmentLock(first.digest, 2)
    assert await locks.propose_lock("s1", second) == first
    proposed = await asyncio.gather(*(locks.propose_lock("s0", one) for one in (first, second)))
    assert proposed[0] == proposed[1] == await locks.of("s0")
    await catalogue.delete_session("s0")
    await locks.note_lock("s1", second)
    assert (await locks.of("s1"), await locks.of("s2")) == (second, first)
    # Those that go take it with them when the last one goes, also while another comes to have it.
    await asyncio.gather(*(catalogue.delete_session(f"s{n}") for n in range(2, 8)))
    await asyncio.gather(catalogue.delete_session("s8"), locks.note_lock("s9", first))
    assert await locks.of("s9") == first
    await catalogue.delete_session("s9")
    assert not await locks.share_lock("s2", first.digest)
    assert await locks.of("s1") == second


async def test_tags_and_uses_go_with_their_checkpoint_and_their_sessions(history: History) -> None:
    catalogue, marks = history.catalogue, history.checkpoint_marks
    await catalogue.put_checkpoint(durable("a"))
    await catalogue.put_checkpoint(durable("b"))
    assert not await marks.tag("s1", "paper", "c", most=9)
    assert await marks.tag("s1", "paper", "a", most=1)
    assert not await marks.tag("s1", "more", "a", most=1)
    assert await marks.tag("s1", "paper", "b", most=1)
    assert await marks.tag("s1", "first", "a", most=2)
    assert await marks.tagged("s1", "paper") == "b"
    assert await marks.tagged("s2", "paper") is None
    for use in (CheckpointUse("a", "s2", 1.0), CheckpointUse("a", "s3", 2.0)):
        assert await marks.note_use("s1", use)
    assert await marks.note_use("s1", CheckpointUse("a", "s2", 3.0))
    assert not await marks.note_use("s1", CheckpointUse("c", "s2", 1.0))
    uses = (CheckpointUse("a", "s3", 2.0), CheckpointUse("a", "s2", 3.0))
    assert await marks.of("s1") == Marks({"first": "a", "paper": "b"}, uses)
    await catalogue.delete_session("s3")
    assert (await marks.of("s1")).uses == uses[1:]
    await marks.untag("s1", "paper")
    await catalogue.delete_checkpoint("s1", "a")
    assert await marks.of("s1") == Marks({}, ())
    await marks.tag("s1", "paper", "b", most=9)
    await catalogue.delete_session("s1")
    assert await marks.of("s1") == Marks({}, ())


@pytest.mark.parametrize("name", ["\0", "a\0b", "\U0001f600" * 512, "' --", "%s :name ?", "\n"])
async def test_names_that_programs_make_up_hurt_nothing(history: History, name: str) -> None:
    made = Checkpoint(
        session_id="s1", name=name, saved_at=1.0, size_bytes=1, file_count=1, folder=name
    )
    await history.catalogue.put_checkpoint(made)
    await history.catalogue.put_checkpoint(made)
    assert await history.catalogue.checkpoint("s1", name) is not None
    assert len(await history.catalogue.checkpoints("s1")) == 1
    await history.streams.append([reports(metric(), 1, {name: 1}, {name: 2}, summary=True)])
    assert await history.streams.metric_counts("s1") == {name: 2}
    assert (await history.streams.summaries(["s1"]))["s1"].values == {name: 2}
    assert await history.catalogue.delete_checkpoint("s1", name)


# The fence


def charge_of(number: int) -> AttemptCharge:
    return AttemptCharge(
        session_id=f"s{number:04}",
        attempt=1,
        owner="kim",
        project="p",
        gpu_thousandths=1000,
        seconds=1.0,
        ended_at=1.0,
    )


async def test_a_former_leader_changes_nothing(history: History) -> None:
    put, charge = history.catalogue.put_session, history.ledger.charge
    await put(session(1), [charge_of(1)], term=5)
    await put(session(1), [charge_of(1)], term=5)
    await put(session(1, searched="by its successor"), [charge_of(1)], term=7)
    for late in (1, 5, 6):
        with pytest.raises(HistoryFenced, match="another control plane leads"):
            await put(session(1), [charge_of(1)], term=late)
        with pytest.raises(HistoryFenced):
            await put(session(2), [charge_of(2)], term=late)
        with pytest.raises(HistoryFenced):
            await charge([charge_of(3)], term=late)
    found = await history.catalogue.session("s0001")
    assert found is not None
    assert found.searched == "by its successor"
    assert await history.catalogue.session("s0002") is None
    assert await history.ledger.charged() == 1.0
    # What any control plane writes is not the leader's.
    await history.streams.append([text(log(), 0, b"x")])
    assert await history.catalogue.replace_session(session(1), known=found.record)
    await put(session(2), [charge_of(2)], term=7)


async def test_of_leaders_that_write_at_once_none_comes_after_a_later_one(history: History) -> None:
    terms = [3, 9, 4, 12, 5, 11, 12, 1]
    results = await asyncio.gather(
        *[
            history.catalogue.put_session(session(number), [charge_of(number)], term=term)
            for number, term in enumerate(terms)
        ],
        return_exceptions=True,
    )
    taken = [term for term, result in zip(terms, results, strict=True) if result is None]
    assert taken == sorted(taken)
    assert taken[-2:] == [12, 12]
    assert {type(result) for result in results} == {type(None), HistoryFenced}
    page = await history.catalogue.sessions(SessionQuery(viewer=ADMIN))
    assert len(page.sessions) == len(taken)
    assert await history.ledger.charged() == len(taken)


# Ledger


async def test_the_charges_of_a_project_since_an_instant(history: History) -> None:
    def charge(number: int, project: str, ended_at: float) -> AttemptCharge:
        return AttemptCharge(
            session_id=f"s{number}",
            attempt=1,
            owner="kim",
            project=project,
            gpu_thousandths=500,
            seconds=2.5,
            ended_at=ended_at,
        )

    rows = [charge(1, "p", 9.0), charge(2, "p", 4.0), charge(3, "q", 9.0), charge(4, "p", 5.0)]
    await history.ledger.charge(rows, term=1)
    assert await history.ledger.charges("p", since=0.0) == (rows[1], rows[3], rows[0])
    assert await history.ledger.charges("p", since=4.0) == (rows[3], rows[0])
    assert await history.ledger.charges("p", since=9.0) == ()
    assert await history.ledger.charges("nobody", since=0.0) == ()
    many = [charge(number, "r", 9.0) for number in range(100, 601)]
    await history.ledger.charge(many, term=1)
    page = await history.ledger.charges("r", since=0.0)
    assert page == tuple(many[:500])
    assert await history.ledger.charges("r", since=0.0, behind=page[-1]) == (many[-1],)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_what_an_account_held_lately_is_the_same_in_pages_of_any_size(
    history: History, limit: int
) -> None:
    """Rows of one instant are neither lost nor read twice, and what counts no more is not read."""
    half_life_s, now = 7 * 86_400.0, 1_800_000_000.0
    rows = [
        AttemptCharge(
            session_id=f"s{number % 5}",
            attempt=number,
            owner="kim",
            project="p" if number % 3 else "q",
            gpu_thousandths=500 * (number % 4),
            seconds=100.0 * number,
            ended_at=now - number // 6 * half_life_s,
        )
        for number in range(60)
    ]
    await history.ledger.charge(rows, term=1)
    since = now - 8 * half_life_s
    expected = [one for one in rows if one.project == "p" and one.ended_at > since]
    found: list[AttemptCharge] = []
    page = await history.ledger.charges("p", since=since, limit=limit)
    while page:
        assert len(page) <= limit
        found += page
        page = await history.ledger.charges("p", since=since, behind=page[-1], limit=limit)
    assert found == sorted(expected, key=lambda one: (one.ended_at, one.session_id, one.attempt))
    assert tuple(found) == await history.ledger.charges("p", since=since)
    one_by_one, all_at_once = Past(half_life_s), Past(half_life_s)
    for past, some in ((one_by_one, found), (all_at_once, expected)):
        for one in some:
            past.held(one.gpu_thousandths, one.ended_at - one.seconds, one.ended_at)
    assert one_by_one.lately(now) == all_at_once.lately(now) > 0


async def test_an_attempt_is_charged_once(history: History) -> None:
    def charge(attempt: int, **changes: Any) -> AttemptCharge:
        made = AttemptCharge(
            session_id="s1",
            attempt=attempt,
            owner="kim",
            project="p",
            gpu_thousandths=1000,
            seconds=0.1,
            ended_at=float(attempt),
            gpu_models='{"A100": 1000}',
            priority=2,
            cause="PREEMPTED",
            durable_until=attempt - 0.05,
        )
        return replace(made, **changes)

    await history.ledger.charge([charge(number) for number in range(1, 11)], term=1)
    await history.ledger.charge([charge(number) for number in range(1, 11)], term=1)
    await history.catalogue.put_session(session(1), [charge(3)], term=1)
    assert await history.ledger.charged(owner="kim") == pytest.approx(1.0, abs=1e-12)
    assert await history.ledger.charged(project="q") == 0
    assert await history.ledger.charged(since=6.0) == pytest.approx(0.5, abs=1e-12)
    # A control plane of the version before would have written no more; what stands, stands.
    older = {"gpu_models": "", "priority": 0, "cause": "", "durable_until": 0.0}
    await history.ledger.charge([charge(3, **older)], term=1)
    expected = tuple(charge(number) for number in range(1, 11))
    assert await history.ledger.charges("p", since=0.0) == expected
    with pytest.raises(HistoryConflict):
        await history.ledger.charge([charge(11), charge(3, seconds=0.2)], term=1)
    with pytest.raises(HistoryConflict):
        await history.catalogue.put_session(session(2), [charge(3, gpu_thousandths=1)], term=1)
    assert await history.catalogue.session("s0002") is None
    assert await history.ledger.charged() == pytest.approx(1.0, abs=1e-12)


async def audited(history: History) -> list[tuple[int, AuditRow]]:
    return [*await history.ledger.newest_audited(AuditQuery(), limit=2_000)][::-1]


async def test_the_audit_trail_is_read_backwards_too(history: History) -> None:
    rows = [
        AuditRow(at=float(at), actor=("kim", "root")[at % 2], method="m", target=f"t{at % 3}")
        for at in range(6)
    ]
    await history.ledger.audit(rows)
    newest = await history.ledger.newest_audited(AuditQuery(), limit=4)
    assert [row.at for _, row in newest] == [5.0, 4.0, 3.0, 2.0]
    rest = await history.ledger.newest_audited(AuditQuery(), before=newest[-1][0])
    assert [row.at for _, row in rest] == [1.0, 0.0]
    query = AuditQuery(actor="root", method="m", target="t2", since=1.0)
    assert [row.at for _, row in await history.ledger.newest_audited(query)] == [5.0]
    inside = [
        AuditRow(at=at, actor="kim", method="m", target=target)
        for at, target in ((5.1, "t9 agent.program"), (5.2, "t99"), (5.3, "t9"), (5.4, "T9 x"))
    ]
    await history.ledger.audit(inside)
    found = await history.ledger.newest_audited(AuditQuery(target="t9"))
    assert [row.at for _, row in found] == [5.3, 5.1]
    await history.ledger.audit([AuditRow(at=6.0, actor="kim", method="uploads", outcome="OK")])
    shown = await history.ledger.newest_audited(AuditQuery(without=("n", "uploads")), limit=1)
    assert [row.at for _, row in shown] == [5.4]


async def test_of_a_large_audit_trail_the_oldest_rows_go_of_who_has_most(history: History) -> None:
    rows = [AuditRow(at=float(at), actor="eve", method="m", target="x" * 50) for at in range(1100)]
    rows[500:500] = [
        AuditRow(at=0.5, actor="kim", method="m"),
        AuditRow(at=0.6, actor="", method="m"),
    ]
    await history.ledger.audit(rows)
    assert await history.ledger.trim_audit(most_rows=0, most_bytes=0) == 0
    assert await history.ledger.trim_audit(most_rows=1102, most_bytes=1 << 30) == 0
    assert await history.ledger.trim_audit(most_rows=1000, most_bytes=0) == 102
    left = [row for _, row in await audited(history)]
    assert left == rows[102:], "nobody else's"
    assert await history.ledger.trim_audit(most_rows=0, most_bytes=100_000) > 300
    left = [row for _, row in await audited(history)]
    assert {row.actor for row in left} == {"eve", "kim", ""}
    assert left[-1] == rows[-1]
    await history.ledger.audit(rows[:1])
    newest = await history.ledger.newest_audited(AuditQuery(), limit=1)
    assert newest[0][1] == rows[0], "numbers go on"


async def test_rows_of_a_backup_from_before_bursts_were_counted_stand_for_one_call(
    history: History,
) -> None:
    columns = ("id", "at", "actor", "method", "target", "outcome", "request_id", "token")
    row = (7, 1.0, "kim", "m", "", "OK", "", "")
    await history.load([Batch(table="audit", columns=columns, rows=(row,))])
    expected = AuditRow(at=1.0, actor="kim", method="m")
    assert await audited(history) == [(7, expected)]


async def test_it_says_how_large_it_is(history: History) -> None:
    before = await history.size()
    assert before > 0
    rows = [AuditRow(at=0.0, actor="kim", method="m", target="x" * 1000)] * 1_000
    await history.ledger.audit(rows)
    assert await history.size() > before


async def dumped(history: History) -> list[tuple[str, dict[str, Any]]]:
    return [
        (batch.table, dict(zip(batch.columns, row, strict=True)))
        async for batch in history.dump()
        for row in batch.rows
    ]


async def test_a_dump_is_of_one_moment_and_another_history_takes_it(history: History) -> None:
    await history.streams.append([text(log(), 0, b"one\ntwo\n"), text(log(), 20, b"late\n")])
    await history.streams.append([reports(metric(), 1, {"loss": 0.5}, {"loss": 0.25})])
    charge = AttemptCharge(
        session_id="s0001",
        attempt=1,
        owner="kim",
        project="p",
        gpu_thousandths=1000,
        seconds=2.5,
        ended_at=1004.0,
    )
    await history.catalogue.put_session(session(1, request_id="r1"), [charge], term=1)
    await history.catalogue.put_session(session(2), term=1)
    dataset = Dataset(owner="kim", name="mnist", created_at=1.0)
    await history.catalogue.put_dataset_version(
        dataset, digest="d" * 64, size_bytes=3, file_count=1
    )
    await history.catalogue.tag_dataset("kim", "mnist", 1, "best")
    await history.catalogue.remove_dataset("kim", "mnist", at=9.0)
    used = [DatasetUse("kim", "mnist", 1)]
    await history.catalogue.put_session(session(2), (), used, term=1)
    await history.ledger.audit([AuditRow(at=1.0, actor="kim", method="m", token="f")])
    await history.media.tell([medium(1), medium(2, step=None)])
    for name in ("kept", "gone"):
        await history.catalogue.put_checkpoint(durable(name))
    await history.checkpoint_marks.tag("s1", "paper", "kept", most=9)
    await history.checkpoint_marks.note_use("s1", CheckpointUse("kept", "s2", 1.0))
    await history.checkpoint_marks.retire("s1", "kim", lambda *_: ["gone"], now=9.0)
    await history.environment_locks.note_lock("s1", EnvironmentLock("e" * 64, 1, "a==1\n"))
    await history.reported_config.tell([setting("lr", "0.1", time=2.5)], cut=["s1"])
    rows = await dumped(history)

    async with aclosing(history.dump()) as batches:
        first = await anext(batches)
        await history.catalogue.put_session(session(3), term=1)
        rest = [batch async for batch in batches]
    assert [row for batch in (first, *rest) for row in batch.rows] == [
        tuple(values.values()) for _, values in rows
    ]

    other = await open_history(":memory:", clock=SystemClock(), run=inline)
    try:
        await other.load([first, *rest])
        assert await dumped(other) == rows
        assert await other.streams.read_log("s1") == await history.streams.read_log("s1")
        assert await other.ledger.charged(owner="kim") == 2.5
        marks = other.checkpoint_marks
        assert (await marks.of("s1")).tags == {"paper": "kept"}
        assert await marks.retired("s1") == Retired(1, 5)
        kept = await other.environment_locks.of("s1")
        assert kept == EnvironmentLock("e" * 64, 1, "a==1\n")
        config = ReportedConfig(values=(setting("lr", "0.1", time=2.5),), is_cut=True)
        assert await other.reported_config.of(["s1"]) == {"s1": config}
        with pytest.raises(HistoryConflict, match="not empty"):
            await other.load([first, *rest])
        # What comes after goes on from there.
        await other.streams.append([text(log(), 25, b"more\n")])
        assert await other.catalogue.session_by_request("kim", "r1") is not None
    finally:
        await other.close()


async def test_an_empty_history_takes_what_another_engine_told(history: History) -> None:
    """From SQLite into each: the way from one machine to a shared platform."""
    source = await open_history(":memory:", clock=SystemClock(), run=inline)
    try:
        await source.streams.append([text(log(), 0, b"one\ntwo\n")])
        await source.streams.append([reports(metric(), 1, {"los\0s \U0001f600": 0.5})])
        await source.catalogue.put_session(session(1, request_id="r1"), term=1)
        await source.ledger.audit([AuditRow(at=1.0, actor="kim", method="m")])
        await source.media.tell([medium(1), medium(2, step=None)])
        rows = await dumped(source)
        await history.load([batch async for batch in source.dump()])
        assert await dumped(history) == rows
        assert await history.streams.metric_counts("s1") == {"los\0s \U0001f600": 1}
    finally:
        await source.close()
    # Its own ids go on behind those that it was given.
    await history.streams.append([text(log(), 8, b"more\n"), text(log("s2"), 0, b"other\n")])
    await history.ledger.audit([AuditRow(at=2.0, actor="kim", method="m")])
    assert (await history.streams.read_log("s1")).data == b"one\ntwo\nmore\n"
    assert [row.at for _, row in await audited(history)] == [1.0, 2.0]


def medium(number: int, **given: Any) -> Media:
    values: dict[str, Any] = {
        "session_id": "s1",
        "attempt": 1,
        "rank": 0,
        "file": f"{number:064x}-1",
        "name": f"val/{number}",
        "kind": "image",
        "time": float(number),
        "step": float(number),
        "size_bytes": 7,
    }
    return Media(**{**values, **given})


async def shown(history: History, **given: Any) -> list[Media]:
    return list((await history.media.list(MediaQuery(session_id="s1", **given))).media)


@pytest.mark.parametrize("is_told_first", [True, False])
async def test_a_record_and_its_file_meet_in_either_order(
    history: History, is_told_first: bool
) -> None:
    one = medium(1, facts='{"width": 3}', caption="a\ud7ff", step=None)
    sent = [MediaContent(file=one.file, root="ab" * 32, size_bytes=9)]
    if is_told_first:
        assert await history.media.tell([one]) == {}
        assert await shown(history) == [one]
        await history.media.settle("s1", 1, 0, sent)
    else:
        await history.media.settle("s1", 1, 0, sent)
        assert await shown(history) == [], "no record, nothing to show"
        await history.media.tell([one])
    durable = replace(one, state=MediaState.DURABLE, root="ab" * 32, size_bytes=9)
    assert await shown(history) == [durable]
    # whatever comes again, or later, changes nothing
    await history.media.tell([one, replace(one, name="another", size_bytes=1)])
    await history.media.settle("s1", 1, 0, sent)
    await history.media.settle("s1", 1, 0, [MediaContent(file=one.file, why_lost="gone")])
    assert await shown(history) == [durable]


async def test_a_lost_file_says_why_and_another_replica_has_its_own(history: History) -> None:
    one, other = medium(1), medium(1, rank=1)
    await history.media.tell([one, other])
    await history.media.settle("s1", 1, 0, [MediaContent(file=one.file, why_lost="too large")])
    assert await shown(history) == [
        replace(one, state=MediaState.LOST, why_lost="too large"),
        other,
    ]


async def referred(history: History) -> tuple[set[bytes], set[str], set[str]]:
    """Everything that refers to objects: records, manifests, blobs."""
    found: tuple[set[bytes], set[str], set[str]] = (set(), set(), set())
    after: tuple[int | str, ...] | None = ()
    while after is not None:
        page = await history.catalogue.referred(after)
        found[0].update(page.records)
        found[1].update(one.digest for one in page.roots)
        found[2].update(one.digest for one in page.blobs)
        after = page.next
    return found


@pytest.mark.parametrize("rows", [1, 2, 1000])
async def test_what_refers_to_objects_is_told_in_pages(
    history: History, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PAGE_ROWS", "_PAGE_RECORDS", "_PAGE_LOGS"):
        monkeypatch.setattr(referring, name, rows)
    assert await referred(history) == (set(), set(), set())
    for number in (1, 2, 3):
        await history.catalogue.put_session(session(number), term=1)
    dataset = Dataset(owner="kim", name="mnist", created_at=1.0)
    for digest in ("1a" * 32, "1b" * 32):
        await history.catalogue.put_dataset_version(
            dataset, digest=digest, size_bytes=1, file_count=1
        )
    saved = Checkpoint(session_id="s1", name="saved", saved_at=1.0, size_bytes=1, file_count=1)
    await history.catalogue.put_checkpoint(saved)
    for name, digest in (("a", "2a" * 32), ("b", "2b" * 32)):
        durable = replace(saved, name=name, state=CheckpointState.DURABLE, digest=digest)
        await history.catalogue.put_checkpoint(durable)
    files = [medium(number).file for number in range(1, 5)]
    contents = [MediaContent(file=file, root="3a" * 32) for file in files[:3]]
    await history.media.settle("s1", 1, 0, [*contents, MediaContent(file=files[3], why_lost="no")])
    blocks = {f"{number:064x}" for number in range(1, 8)}
    left = sorted(blocks)

    async def keep(_: bytes) -> str:
        return left.pop()

    for attempt, count in ((1, 4), (2, 3)):
        key = StreamKey("s2", attempt, 0, Channel.LOG)
        for at in range(count):  # a row that is longer than a block, so that each becomes one
            chunk = Chunk(stream=key, first=at << 21, last=(at << 21) + 1, data=b"x\n")
            gap = Chunk(stream=key, first=chunk.last + 1, last=((at + 1) << 21) - 1, is_gap=True)
            await history.streams.append([chunk, gap])
        while await history.streams.archive(key, keep):
            pass
    live = StreamKey("s3", 1, 0, Channel.LOG)
    await history.streams.append([Chunk(stream=live, first=0, last=32, data=b"\x02" * 33)])
    assert left == []
    records, roots, found = await referred(history)
    assert records == {b"record 1", b"record 2", b"record 3"}
    assert roots == {"1a" * 32, "1b" * 32, "2a" * 32, "2b" * 32, "3a" * 32}
    assert found == blocks


def artifact(number: int, **given: Any) -> Artifact:
    values: dict[str, Any] = {
        "session_id": "s1",
        "attempt": 1,
        "rank": 0,
        "folder": f"{number}-%artifact/model",
        "name": "report",
        "saved_at": float(number),
        "size_bytes": 7,
    }
    return Artifact(**{**values, **given})


async def settled(history: History, number: int, digest: str, **given: Any) -> int:
    state = ArtifactState.DURABLE if digest else ArtifactState.LOST
    one = artifact(number, state=state, digest=digest or None, **given)
    stands = await history.artifacts.settle(one)
    assert stands is not None
    return stands.version


async def test_artifacts_of_a_name_are_found_among_a_users_sessions(history: History) -> None:
    await history.catalogue.put_session(session(1, id="s1", owner="kim"), term=1)
    await history.catalogue.put_session(session(4, id="s4", owner="lee"), term=1)
    await history.artifacts.tell([artifact(5, session_id="s3")])
    for number, session_id in ((1, "s1"), (3, "s2"), (2, "s1"), (7, "s4"), (8, "s5")):
        await settled(history, number, f"{number}a" * 32, session_id=session_id)
    await settled(history, 4, "", session_id="s2")
    await settled(history, 6, "6a" * 32, name="other")
    of_kim = partial(history.artifacts.of_owner, "kim", live=["s2", "s3"])
    found = await of_kim("report", limit=2)
    assert [(one.session_id, one.saved_at) for one in found] == [("s2", 3.0), ("s1", 2.0)]
    found = await of_kim("report", after=found[-1], limit=2)
    assert [(one.session_id, one.saved_at) for one in found] == [("s1", 1.0)]
    await history.artifacts.remove("s2", "kim", [("report", 1)])
    found = await of_kim("report", limit=9)
    assert [one.saved_at for one in found] == [2.0, 1.0]
    assert await of_kim("nothing", limit=9) == ()


async def test_artifacts_get_versions_that_are_never_given_again(history: History) -> None:
    one, other = "4a" * 32, "4b" * 32
    await history.artifacts.tell([artifact(1, step=3.0), artifact(2), artifact(3, rank=1)])
    assert await history.artifacts.unsettled() == (ReplicaKey("s1", 1, 0), ReplicaKey("s1", 1, 1))
    assert [await settled(history, 1, one) for _ in range(2)] == [1, 1]
    assert await settled(history, 2, one) == 0, "unchanged"
    assert await settled(history, 3, other, rank=1) == 2
    assert await settled(history, 4, one) == 3
    assert await settled(history, 5, one, name="another") == 1
    assert await settled(history, 6, "") == 0
    await history.artifacts.tell([artifact(2), artifact(7)])
    assert await history.artifacts.lose(ReplicaKey("s1", 1, 0), "gone") == 1
    found = await history.artifacts.list("s1", limit=9)
    assert [(one.name, one.version, one.state.value) for one in found] == [
        ("report", 1, "DURABLE"),
        ("report", 2, "DURABLE"),
        ("report", 3, "DURABLE"),
        ("another", 1, "DURABLE"),
        ("report", 0, "LOST"),
        ("report", 0, "LOST"),
    ]
    assert found[0].step == 3.0
    key = ArtifactKey(2.5, 9, 9, "z")
    named = await history.artifacts.list("s1", name="report", after=key, limit=2)
    assert [one.version for one in named] == [2, 3]
    assert (await referred(history))[1] == {one, other}

    versions = [("report", 3), ("report", 9)]
    assert await history.artifacts.remove("s1", "kim", versions) == ("report", 9)
    assert len(await history.artifacts.list("s1", limit=9)) == 6
    assert await history.artifacts.remove("s1", "kim", [("report", 3), ("report", 2)]) is None
    assert (await referred(history))[1] == {one}
    assert await settled(history, 4, one) == 3, "it stays removed"
    assert await settled(history, 8, other) == 4
    assert [one.version for one in await history.artifacts.list("s1", name="report", limit=9)] == [
        *(1, 0, 0, 4)
    ]
    await history.catalogue.put_session(session(1, id="s1"), term=1)
    await history.catalogue.delete_session("s1")
    assert await history.artifacts.list("s1", limit=9) == ()
    assert (await referred(history))[1] == set()


async def test_an_attempt_has_one_durable_artifact_of_a_name_where_only_one_is_kept(
    history: History,
) -> None:
    def durable(number: int, digest: str, **given: Any) -> Artifact:
        return artifact(number, state=ArtifactState.DURABLE, digest=digest, **given)

    only = partial(history.artifacts.settle, is_only=True)
    await history.artifacts.tell([artifact(1), artifact(2)])
    assert await only(artifact(5, state=ArtifactState.LOST)) is not None
    for _ in range(2):
        first = await only(durable(1, "1a" * 32))
        assert first is not None
        assert (first.version, first.digest) == (1, "1a" * 32)
    assert await only(durable(2, "2a" * 32)) is None
    assert await only(durable(3, "1a" * 32)) is None, "equal files are a second one, too"
    assert await only(artifact(4, state=ArtifactState.LOST)) is None
    assert await only(durable(1, "2a" * 32, rank=1)) is None
    for given in ({"name": "another"}, {"attempt": 2}, {"session_id": "s2"}):
        assert await only(durable(6, "3a" * 32, **given)) is not None
    assert await settled(history, 7, "4a" * 32) == 3
    found = await history.artifacts.list("s1", name="report", limit=9)
    assert [(one.attempt, one.folder[0], one.state.value) for one in found] == [
        (1, "1", "DURABLE"),
        (1, "2", "SAVED"),
        (1, "5", "LOST"),
        (2, "6", "DURABLE"),
        (1, "7", "DURABLE"),
    ]


async def test_media_are_listed_by_name_kind_and_step_in_pages(history: History) -> None:
    every = [medium(n, kind="text" if n % 2 else "image") for n in range(1, 8)]
    every.append(medium(8, name="a[b", step=None))
    await history.media.tell(every[::-1])
    assert await shown(history) == every
    assert await shown(history, globs=("val/[12]", "a[[]b")) == [every[0], every[1], every[7]]
    assert await shown(history, kind="text") == every[0:7:2]
    assert await shown(history, first_step=6.0) == every[5:7]
    assert await shown(history, first_step=2.0, last_step=3.0) == every[1:3]
    found: list[Media] = []
    after = None
    while True:
        page = await history.media.list(MediaQuery(session_id="s1"), after=after, limit=3)
        found += page.media
        after = page.next
        if after is None:
            break
    assert found == every


async def test_a_session_shows_only_so_many(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.history.sql.media.MOST_OF_SESSION", 3)
    assert await history.media.tell([medium(1), medium(2)]) == {}
    again = [medium(2), medium(3), medium(4), medium(1, session_id="s2")]
    assert await history.media.tell(again) == {"s1": 1}, "what is there takes no room"
    assert await history.media.tell([medium(1), medium(2), medium(3)]) == {}
    stray = [MediaContent(file=medium(5).file, root="ab" * 32)]
    await history.media.settle("s1", 1, 0, stray)
    await history.media.tell([medium(5)])
    assert [one.name for one in await shown(history)] == ["val/1", "val/2", "val/3"]
    await history.media.settle("s1", 1, 0, [MediaContent(file=medium(3).file, root="ab" * 32)])
    assert (await shown(history))[2].state is MediaState.DURABLE
    pages = [await history.media.list(MediaQuery(session_id=one)) for one in ("s1", "s2")]
    assert [page.is_full for page in pages] == [True, False]
    assert not (await history.media.list(MediaQuery(session_id="s1"), limit=1)).is_full


async def test_what_no_node_speaks_of_is_lost_until_one_does(history: History) -> None:
    here, there = ReplicaKey("s1", 1, 0), ReplicaKey("s1", 2, 1)
    await history.media.tell([medium(1), medium(2), medium(3, attempt=2, rank=1)])
    sent = [MediaContent(file=medium(1).file, root="ab" * 32)]
    await history.media.settle("s1", 1, 0, sent)
    assert await history.media.unsettled() == (here, there)
    assert await history.media.lose(here, "its node is gone") == 1
    assert await history.media.lose(here, "again") == 0
    assert await history.media.unsettled() == (there,)
    one, two, three = await shown(history)
    assert (two.state, two.why_lost) == (MediaState.LOST, "its node is gone")
    assert (one.state, three.state) == (MediaState.DURABLE, MediaState.SAVED)
    late = [MediaContent(file=medium(2).file, root="cd" * 32)]
    await history.media.settle("s1", 1, 0, late)
    two = (await shown(history))[1]
    assert (two.state, two.root, two.why_lost) == (MediaState.DURABLE, "cd" * 32, "")


async def test_what_callers_have_sent_is_known_by_caller_and_period(history: History) -> None:
    sent, digests = history.sent, [f"{number:064x}"[::-1] for number in range(5)]
    assert await sent.remember("user kim", digests[:3], period=7) == 3
    assert await sent.remember("user kim", digests[2:4], period=8) == 2
    assert await sent.remember("user kim", digests[2:], period=8) == 1
    assert await sent.remember("user lee", digests[4:], period=8) == 1
    assert await sent.among("user kim", digests, since=7) == dict(
        zip(digests, (7, 7, 8, 8, 8), strict=True)
    )
    assert await sent.among("user kim", digests, since=8) == dict.fromkeys(digests[2:], 8)
    assert await sent.among("user lee", digests, since=7) == {digests[4]: 8}
    assert await sent.among("user eve", digests, since=7) == {}
    assert await sent.among("user kim", [], since=7) == {}
    assert [await sent.count("user kim", period=one) for one in (6, 7, 8)] == [0, 3, 3]
    assert await sent.forget(before=8) == 3
    assert await sent.among("user kim", digests, since=7) == dict.fromkeys(digests[2:], 8)


async def test_what_is_kept_for_projects_is_counted_beside_it(history: History) -> None:
    kept, digests = history.kept, ["ab" * 32]
    await history.sent.remember(
        "node n for kim in vision", digests, period=7, owner="kim", project="vision", size=100
    )
    await kept.projects.add("vision", sent=11, asked=1)
    before = await kept.projects.all()
    assert before == {"vision": KeptBytes({}, 0.0, 111, 1)}
    assert (await kept.all())["kim"].sent == 100
    await kept.projects.add("vision", sent=7)
    counted = {"vision": {"CODE": 40}, "speech": {}}
    await kept.count({}, {}, (), projects=(counted, before), at=9.0, term=2)
    assert await kept.projects.all() == {
        "vision": KeptBytes({"CODE": 40}, 9.0, 7, 0),
        "speech": KeptBytes({}, 9.0, 0, 0),
    }


async def test_a_project_is_shown_by_user_and_largest_that_the_viewer_sees(
    history: History,
) -> None:
    catalogue = history.catalogue
    for number, owner in enumerate(("kim", "lee", "lee")):
        project = "vision" if number < 2 else ""
        row = session(number, owner=owner, project=project)
        await catalogue.put_session(row, term=1)
        await catalogue.put_checkpoint(
            replace(durable("a", session_id=row.id), size_bytes=10 + number)
        )
    users, largest = await history.kept.of_project("vision", User(name="lee"), ())
    assert users == (("lee", 11), ("kim", 10))
    assert [one.bytes for one in largest] == [11]
    _, largest = await history.kept.of_project("vision", User(name="r", role=Role.ADMIN), ())
    assert [one.bytes for one in largest] == [11, 10]
    users, largest = await history.kept.of_project("lee", User(name="lee"), ())
    assert (users, [one.bytes for one in largest]) == ((("lee", 12),), [12])


async def test_what_is_kept_is_counted_and_corrected_by_what_is_sent(history: History) -> None:
    kept, digests = history.kept, [f"{number:064x}"[::-1] for number in range(3)]
    assert await kept.all() == {}
    await history.sent.remember("user kim", digests, period=7, owner="kim", size=100)
    await kept.add("kim", sent=11, asked=1)
    await kept.add("lee", sent=5)
    before = await kept.all()
    assert before["kim"] == KeptBytes({}, 0.0, 111, 1)
    # What comes while it is counted stays.
    await kept.add("kim", sent=7, asked=1)
    await kept.count({"kim": {"CODE": 40}, "eve": {"LOGS": 3}}, before, (), at=9.0, term=2)
    found = await kept.all()
    assert found["kim"] == KeptBytes({"CODE": 40}, 9.0, 7, 1)
    assert found["kim"].bytes == 47
    assert found["lee"] == KeptBytes({}, 9.0, 0, 0)
    assert found["eve"] == KeptBytes({"LOGS": 3}, 9.0, 0, 0)
    with pytest.raises(HistoryFenced):
        await kept.count({}, found, (), at=10.0, term=1)
    assert await kept.all() == found


async def test_notes_are_told_in_order_and_dropped(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent, "_AT_ONCE", 2)
    digests = [f"{number:064x}"[::-1] for number in range(5)]
    await history.sent.remember("user kim", digests, period=7)
    notes: list[tuple[int, str, str]] = []
    while page := await history.sent.notes(notes[-1] if notes else None):
        notes += page
    assert notes == sorted((7, "user kim", digest[:32]) for digest in digests)
    await history.sent.drop(notes[:3])
    assert await history.sent.notes() == tuple(notes[3:])


async def test_what_is_removed_is_released_and_a_count_asked_for(history: History) -> None:
    for number in (1, 2):
        await history.catalogue.put_session(session(number), term=1)
    owner = session(1).owner
    saved = Checkpoint(
        session_id="s0001",
        name="last",
        saved_at=1.0,
        size_bytes=30,
        file_count=1,
        state=CheckpointState.DURABLE,
        digest="1a" * 32,
    )
    await history.catalogue.put_checkpoint(saved)
    await history.catalogue.put_checkpoint(replace(saved, saved_at=2.0, digest="1b" * 32))
    await history.catalogue.put_checkpoint(replace(saved, name="other", digest="1c" * 32))
    live = replace(saved, session_id="live", size_bytes=40)
    await history.catalogue.put_checkpoint(live)
    dataset = Dataset(owner=owner, name="mnist", created_at=1.0)
    for digest in ("2a" * 32, "2b" * 32):
        await history.catalogue.put_dataset_version(
            dataset, digest=digest, size_bytes=50, file_count=1
        )
    assert await history.kept.largest(owner, {"live": "L"}) == (
        Item("mnist", KeptKind.DATASETS, 100),
        Item(session(1).name, KeptKind.CHECKPOINTS, 60),
        Item("L", KeptKind.CHECKPOINTS, 40, is_live=True),
    )
    assert await history.kept.released() == (Release("", "s0001", "1a" * 32, owner),)
    assert await history.kept.all() == {}, "it is replaced, which nobody waits for"
    assert await history.catalogue.delete_checkpoint("s0001", "other", owner=owner)
    [gone] = await history.catalogue.remove_dataset(owner, "mnist", 2, at=5.0)
    assert gone.digest == "2b" * 32
    assert await history.catalogue.remove_dataset(owner, "mnist", 2, at=6.0) == ()
    assert (
        await history.kept.largest(owner, {})
        == (
            Item(session(1).name, KeptKind.CHECKPOINTS, 30),
            Item("mnist", KeptKind.DATASETS, 50),
        )[::-1]
    )
    again, created = await history.catalogue.put_dataset_version(
        dataset, digest="2c" * 32, size_bytes=1, file_count=1
    )
    assert (again.number, created) == (3, True), "a number is never given twice"
    wanted = ["2b" * 32, "2c" * 32]
    assert await history.kept.released_among(owner, wanted) == {"2b" * 32}
    assert await history.kept.released_among("eve", wanted) == set()
    assert await history.catalogue.delete_session("s0001", roots=["3a" * 32])
    released = await history.kept.released()
    roots = {"1a" * 32, "1b" * 32, "1c" * 32, "2b" * 32, "3a" * 32}
    assert {one.root for one in released} == roots
    assert (await history.kept.all())[owner].asked == 3
    rest = await history.catalogue.remove_dataset(owner, "mnist", at=7.0)
    assert [one.digest for one in rest] == ["2a" * 32, "2c" * 32]
    assert await history.catalogue.dataset(owner, "mnist") is None
    await history.kept.count({}, await history.kept.all(), released, at=1.0, term=1)
    assert {one.root for one in await history.kept.released()} == {"2a" * 32, "2c" * 32}


async def test_two_note_the_same_at_once(history: History) -> None:
    digests = [f"{number:064x}"[::-1] for number in range(12_000)]
    orders = (digests, digests[::-1])
    await asyncio.gather(*[history.sent.remember("user kim", one, period=1) for one in orders])
    assert len(await history.sent.among("user kim", digests, since=1)) == len(digests)
    assert await history.sent.forget(before=2) == len(digests)


def setting(name: str, value: str, **given: Any) -> ConfigValue:
    values = {"session_id": "s1", "origin": "wandb", "run": "", "attempt": 1, "time": 1.0}
    return ConfigValue(**{**values, "name": name, "value": value, **given})


async def configured(history: History, session_id: str = "s1") -> dict[str, str]:
    found = await history.reported_config.of([session_id])
    values = found.get(session_id, ReportedConfig()).values
    return {"/".join(filter(None, (one.origin, one.run, one.name))): one.value for one in values}


async def test_the_latest_value_of_each_key_of_a_configuration_counts(history: History) -> None:
    tell = history.reported_config.tell
    assert await history.reported_config.of(["s1", "s2"]) == {}
    first = [setting("lr", "0.1", position=1), setting("model", '{"layers": 3}', leaves=2)]
    await tell(first)
    await tell([setting("lr", "0.2", position=2), setting("lr", "0.3", position=3)])
    for _ in range(2):
        await tell([*first, setting("lr", "9", attempt=0, time=5.0)])  # sent again, and late
    await tell([setting("lr", "1", origin="mlflow"), setting("lr", "2", run="second \U0001f600")])
    await tell([setting("lr", "7", session_id="s2")])
    assert await configured(history) == {
        "mlflow/lr": "1",
        "wandb/lr": "0.3",
        "wandb/model": '{"layers": 3}',
        "wandb/second \U0001f600/lr": "2",
    }
    await tell([setting("lr", "0.4", attempt=2, time=0.5)])
    assert (await configured(history))["wandb/lr"] == "0.4", (
        "of a later attempt, whatever its clock"
    )
    both = await history.reported_config.of(["s1", "s2", "s3"])
    assert both.keys() == {"s1", "s2"}
    assert both["s2"] == ReportedConfig(values=(setting("lr", "7", session_id="s2"),))


async def test_a_configuration_has_only_so_many_values_and_bytes(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.history.sql.reported_config.MOST_LEAVES", 3)
    monkeypatch.setattr("controlplane.history.sql.reported_config.MOST_BYTES", 100)
    tell = history.reported_config.tell
    await tell([setting("a", "1"), setting("b", "2", leaves=2)])
    assert not (await history.reported_config.of(["s1"]))["s1"].is_cut
    await tell([setting("c", "3"), setting("a", "4", time=2.0)])
    assert await configured(history) == {"wandb/a": "4", "wandb/b": "2"}
    assert (await history.reported_config.of(["s1"]))["s1"].is_cut
    await tell([setting("b", "5", time=3.0), setting("c", "6", time=3.0)])
    assert await configured(history) == {"wandb/a": "4", "wandb/b": "5", "wandb/c": "6"}
    await tell([setting("a", "0" * 90, session_id="s2"), setting("b", "0" * 90, session_id="s2")])
    assert (await configured(history, "s2")).keys() == {"wandb/a"}
    await tell([], cut=["s3"])
    assert (await history.reported_config.of(["s3"]))["s3"] == ReportedConfig(is_cut=True)


async def test_a_metric_has_the_origin_of_its_first_report(history: History) -> None:
    def told(value: float, name: str, **more: str) -> bytes:
        return json.dumps({"kind": "metric", "time": 1.0, "values": {name: value}, **more}).encode()

    first = (
        told(1, "loss", origin="wandb"),
        told(2, "loss"),
        told(3, "own"),
        told(4, "x", origin="!"),
    )
    await history.streams.append([Chunk(stream=metric(), first=1, last=4, records=first)])
    later = (told(5, "loss", origin="mlflow"), told(6, "own", origin="mlflow"))
    await history.streams.append([Chunk(stream=metric(), first=5, last=6, records=later)])
    assert await history.streams.counted_metrics("s1") == {
        "loss": MetricCount(3, "wandb"),
        "own": MetricCount(2, ""),
        "x": MetricCount(1, ""),
    }
    page = await history.streams.read_metrics("s1")
    assert [one.origin for one in page.points] == ["wandb", "", "", "", "mlflow", "mlflow"]
