"""What only the SQLite history can suffer: kills, damage, other processes, other versions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from structlog.testing import capture_logs

from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import Role, User
from controlplane.history.errors import (
    HistoryCorrupt,
    HistoryFull,
    HistoryTooNew,
    HistoryUnavailable,
)
from controlplane.history.sql.tables import BACKED_UP
from controlplane.history.sqlite import open_history
from controlplane.history.sqlite.migration import migrate
from controlplane.history.values import (
    AuditQuery,
    AuditRow,
    Channel,
    Chunk,
    DeviceSample,
    NodeSample,
    Recorded,
    SeriesQuery,
    SessionQuery,
    SessionRecord,
    StreamKey,
)
from nsml.common.clock import SystemClock, in_thread, inline
from nsml.content.framing import frame
from tests.upgrade.old_schemas import old_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.history.sqlite import SqliteHistory

T = TypeVar("T")
LOG = StreamKey("s1", 1, 0, Channel.LOG)


async def reopen(path: Path) -> SqliteHistory:
    return await open_history(path, clock=SystemClock(), run=inline)


def text(first: int, data: bytes, key: StreamKey = LOG) -> Chunk:
    return Chunk(stream=key, first=first, last=first + len(data) - 1, data=data)


WRITER = """
import asyncio, sys
from pathlib import Path
from controlplane.history.sql.tables import BACKED_UP
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from nsml.common.clock import SystemClock, in_thread

async def feed(history, rank):
    key = StreamKey("s1", 1, rank, Channel.LOG)
    at = (await history.streams.cursors("s1", 1)).get(key, 0)
    while True:
        data = b"".join(b"%08d" % n for n in range(at // 8, at // 8 + 50))
        chunk = Chunk(stream=key, first=at, last=at + len(data) - 1, data=data)
        at = (await history.streams.append([chunk]))[key]
        print(rank, at, flush=True)

async def main():
    history = await open_history(Path(sys.argv[1]), clock=SystemClock(), run=in_thread)
    async with asyncio.TaskGroup() as group:
        for rank in range(3):
            group.create_task(feed(history, rank))

asyncio.run(main())
"""


def write_and_kill(path: Path, *, after: int) -> dict[int, int]:
    """Run a writer until it has so many acknowledgements, kill it; the last of each rank."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert writer.stdout is not None
    try:
        lines = [writer.stdout.readline() for _ in range(after)]
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate()[0]
    lines += [line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
    return {int(rank): int(at) for rank, at in map(bytes.split, lines)}


async def test_kill_9_in_the_middle_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    chance = random.Random(7)
    acknowledged = dict.fromkeys(range(3), 0)
    for _ in range(4):
        acknowledged |= write_and_kill(path, after=chance.randrange(3, 60))
        history = await reopen(path)
        for rank, at in acknowledged.items():
            key = StreamKey("s1", 1, rank, Channel.LOG)
            parts = await history.streams.read(key, 0, limit_bytes=1 << 30)
            assert all(isinstance(part, Recorded) for part in parts)
            data = b"".join(part.data for part in parts if isinstance(part, Recorded))
            assert len(data) >= at
            assert data == b"".join(b"%08d" % n for n in range(len(data) // 8))
        await history.close()
    assert all(acknowledged.values())


async def fill(path: Path) -> None:
    history = await reopen(path)
    for number in range(200):
        noise = random.Random(number).randbytes(4000)
        await history.streams.append([text(number * 4000, noise)])
    await history.close()


async def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    await fill(path)
    data = bytearray(path.read_bytes())
    page = len(data) // 4096 // 2
    data[page * 4096 : page * 4096 + 2048] = b"garbage!" * 256
    for wrong in (bytes(data), b"not a database" * 1000, bytes(data[:100_000])):
        path.write_bytes(wrong)
        with pytest.raises(HistoryCorrupt, match="is damaged") as caught:
            await reopen(path)
        assert caught.value.why
        assert path.read_bytes() == wrong, "nothing is written to a damaged database"


async def test_a_row_in_every_table_is_no_damage(tmp_path: Path) -> None:
    """The check of SQLite 3.40 finds NULLs that are not there, in columns before one of the primary key."""
    path = tmp_path / "history.sqlite"
    await (await reopen(path)).close()
    connection = sqlite3.connect(path)
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%WITHOUT ROWID'"
    )
    names = [name for (name,) in tables.fetchall()]
    assert "competition_picks" in names
    for name in names:
        columns = connection.execute("SELECT type FROM pragma_table_info(?)", (name,)).fetchall()
        for number in range(10):
            row = [f"x{number}" if kind == "TEXT" else number for (kind,) in columns]
            places = ", ".join("?" * len(row))
            connection.execute(f'INSERT INTO "{name}" VALUES ({places})', row)
    connection.commit()
    connection.close()
    await (await reopen(path)).close()


async def test_a_null_that_is_there_is_damage(tmp_path: Path) -> None:
    """Behind the rows of a table for which SQLite 3.40 finds NULLs that are not there."""
    path = tmp_path / "history.sqlite"
    await (await reopen(path)).close()

    def declare(before: str, after: str, *rows: str) -> None:
        connection = sqlite3.connect(path)
        for row in rows:
            connection.execute(f"INSERT INTO {row}")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'competition_baselines'",
            (before, after),
        )
        connection.commit()
        connection.close()

    kept, nullable = '"label" TEXT NOT NULL', '"label" TEXT'
    declare(kept, nullable)
    picks = [f"competition_picks VALUES ('c', 'one', 'lee', 'u{number}')" for number in range(10)]
    declare(nullable, kept, *picks, "competition_baselines VALUES ('c', 'u1', NULL)")
    with pytest.raises(HistoryCorrupt, match="is damaged") as caught:
        await reopen(path)
    assert caught.value.why == "NULL value in competition_baselines.label"


async def test_damage_while_running_is_a_clear_error_too(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    await fill(path)
    history = await reopen(path)
    with path.open("r+b") as file:
        for page in range(2, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"garbage!" * 512)
    with pytest.raises(HistoryCorrupt, match="is damaged"):
        await history.streams.read(LOG, 0, limit_bytes=1 << 30)
    with pytest.raises(HistoryCorrupt, match="is damaged"):
        await history.catalogue.sessions(SessionQuery(viewer=User(name="root", role=Role.ADMIN)))
    await history.close()


async def test_a_truncated_log_leaves_whole_commits(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    for number in range(50):
        await history.streams.append([text(number * 4, b"%04d" % number)])
    log = path.with_name(path.name + "-wal")
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    whole = log.read_bytes()
    await history.close()
    copy.with_name(copy.name + "-wal").write_bytes(whole[: len(whole) * 2 // 3 + 7])
    history = await reopen(copy)
    data = (await history.streams.read_log("s1")).data
    assert 0 < len(data) < 200
    assert data == b"".join(b"%04d" % number for number in range(len(data) // 4))
    await history.close()


async def test_a_full_disk_is_unavailable_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    await history.streams.append([text(0, b"before")])
    database = history._database
    pages = database._writer.execute("PRAGMA page_count").fetchone()[0]
    database._writer.execute(f"PRAGMA max_page_count = {pages}")
    noise = random.Random(1).randbytes(200_000)
    with pytest.raises(HistoryFull) as caught:
        await history.streams.append([text(6, noise)])
    assert isinstance(caught.value, Unavailable)
    database._writer.execute("PRAGMA max_page_count = 1000000")
    assert await history.streams.append([text(6, noise)]) == {LOG: 200_006}
    page = await history.streams.read_log("s1", limit_bytes=1 << 20)
    assert page.data == b"before" + noise
    await history.close()


async def test_a_full_disk_fails_everybody_in_the_transaction(tmp_path: Path) -> None:
    history = await reopen(tmp_path / "history.sqlite")
    database = history._database
    pages = database._writer.execute("PRAGMA page_count").fetchone()[0]
    database._writer.execute(f"PRAGMA max_page_count = {pages}")
    noise = random.Random(1).randbytes(200_000)
    results = await asyncio.gather(
        *[history.streams.append([text(0, noise)]) for _ in range(3)], return_exceptions=True
    )
    assert {type(result) for result in results} == {HistoryFull}
    assert await history.streams.cursors("s1", 1) == {}
    await history.close()


async def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    with pytest.raises(HistoryUnavailable, match="another control plane"):
        await reopen(path)
    await history.close()
    await (await reopen(path)).close()


async def test_a_newer_schema_is_refused_and_an_old_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    await history.streams.append([text(0, b"kept")])
    await history.close()
    history = await reopen(path)
    assert (await history.streams.read_log("s1")).data == b"kept"
    await history.close()
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO schema_versions VALUES (99, 'later')")
    other.close()
    with pytest.raises(HistoryTooNew, match="newer"):
        await reopen(path)


def insert(database: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    places = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", [*row.values()])


async def test_sessions_that_an_older_version_recorded_are_searched_alike(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    older = sqlite3.connect(path, isolation_level=None)
    older.executescript(old_steps("sqlite.sql")[0])
    facts = {
        "id": "s1",
        "name": "kim/None/1",
        "owner": "kim",
        "state": "FAILED",
        "record": b"whole",
    }
    facts |= {"created_at": 1.0, "ended_at": 2.0, "project": "p", "team": "", "visibility": 1}
    facts |= {"dataset": "", "memo": "ÜBER lauf", "arguments": "main.py --LR 0.1"}
    insert(older, "sessions", facts)
    older.close()
    history = await reopen(path)
    for text, names in [("über", ["kim/None/1"]), ("--lr", ["kim/None/1"]), ("other", [])]:
        page = await history.catalogue.sessions(SessionQuery(viewer=User(name="kim"), text=text))
        assert [found.name for found in page.sessions] == names
        assert all(found.record == b"whole" for found in page.sessions)
    await history.close()


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "made/history.sqlite"
    history = await reopen(path)
    await history.streams.append([text(0, b"x")])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    await history.close()


async def test_each_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    history = await reopen(tmp_path / "history.sqlite")
    writer = history._database._writer
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await history.close()


async def test_waiting_appends_share_a_transaction(tmp_path: Path) -> None:
    history = await open_history(tmp_path / "h.sqlite", clock=SystemClock(), run=in_thread)
    statements: list[str] = []
    history._database._writer.set_trace_callback(statements.append)
    keys = [StreamKey("s1", 1, rank, Channel.LOG) for rank in range(100)]
    await asyncio.gather(*[history.streams.append([text(0, b"x", key)]) for key in keys])
    history._database._writer.set_trace_callback(None)
    assert statements.count("COMMIT") <= 3
    assert len(await history.streams.cursors("s1", 1)) == 100
    await history.close()


async def test_ledger_rows_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    history = await reopen(tmp_path / "history.sqlite")
    await history.ledger.audit([AuditRow(at=1.0, actor="kim", method="m")])
    writer = history._database._writer
    for statement in ("DELETE FROM audit", "UPDATE audit SET actor = 'lee'"):
        with pytest.raises(sqlite3.IntegrityError, match="only added"):
            writer.execute(statement)
    await history.close()


async def test_paging_metrics_uses_the_index(tmp_path: Path) -> None:
    """Otherwise each page of a long session would sort all that is left of it."""
    history = await reopen(tmp_path / "history.sqlite")
    writer = history._database._writer
    plans = {
        "commit order": "SELECT id FROM chunks INDEXED BY idx_chunks_in_commit_order"
        " WHERE stream_id = 1 AND id > 5 ORDER BY id LIMIT 9",
        "position": "SELECT body FROM chunks WHERE stream_id = 1 AND last >= 5 ORDER BY last",
    }
    for statement in plans.values():
        plan = str(writer.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall())
        assert "SEARCH chunks USING" in plan
        assert ">" in plan
        assert "TEMP B-TREE" not in plan
    await history.close()


async def test_telemetry_held_back_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    now = SystemClock().time()
    await history.telemetry.record([NodeSample(node="n", boot_id="b", sequence=1, at=now)])
    await history.close()
    history = await reopen(path)
    assert len(await history.telemetry.read("n", since=now - 9, until=now + 1, width=9)) == 1
    assert await history.telemetry.newest() == {}
    await history.close()


async def test_a_full_disk_keeps_no_history_from_being_closed(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = await reopen(path)
    writer = history._database._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    now = SystemClock().time()
    devices = tuple(DeviceSample(uuid=f"gpu-{number}") for number in range(100))
    samples = [
        NodeSample(node=f"n{number}", boot_id="b", sequence=1, at=now, devices=devices)
        for number in range(50)
    ]
    await history.telemetry.record(samples)
    with capture_logs() as logged:
        await history.close()
    assert [one["event"] for one in logged] == ["history.readings.lost"]
    history = await reopen(path)
    assert await history.telemetry.newest() == {}
    await history.close()


async def test_listing_many_sessions_reads_in_order_of_time(tmp_path: Path) -> None:
    history = await reopen(tmp_path / "history.sqlite")
    await asyncio.gather(
        *[
            history.catalogue.put_session(
                SessionRecord(
                    id=f"s{number}",
                    name=f"kim/None/{number}",
                    owner="kim",
                    state="FAILED",
                    created_at=float(number % 97),
                    ended_at=1.0,
                    record=b"",
                ),
                term=1,
            )
            for number in range(1000)
        ]
    )
    page = await history.catalogue.sessions(
        SessionQuery(viewer=User(name="kim"), owners=("kim",)), limit=1000
    )
    keys = [(found.created_at, found.id) for found in page.sessions]
    assert len(keys) == 1000
    assert keys == sorted(keys, reverse=True)
    await history.close()


class Gate:
    """An Offload whose work waits until the gate is open; counts what came to it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.came = 0

    async def __call__(self, work: Callable[[], T], /) -> T:
        self.came += 1
        await self.open.wait()
        return work()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_transaction_under_way_is_not_left_alone_however_often_cancelled() -> None:
    gate = Gate()
    history = await open_history(":memory:", clock=SystemClock(), run=gate)
    gate.open.clear()
    before = gate.came
    first = asyncio.ensure_future(history.streams.append([text(0, b"first")]))
    await turns()
    for _ in range(3):
        first.cancel()
        await turns()
    second = asyncio.ensure_future(history.streams.append([text(5, b"second")]))
    await turns()
    assert gate.came - before == 1, "the next transaction waits for the one under way"
    gate.open.set()
    assert await second == {LOG: 11}
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await history.streams.read_log("s1")).data == b"firstsecond"
    await history.close()


async def test_a_write_cancelled_while_it_waits_is_not_made_later() -> None:
    gate = Gate()
    history = await open_history(":memory:", clock=SystemClock(), run=gate)
    gate.open.clear()
    first = asyncio.ensure_future(history.ledger.audit([AuditRow(at=1.0, actor="a", method="m")]))
    await turns()
    waiting = asyncio.ensure_future(history.ledger.audit([AuditRow(at=2.0, actor="b", method="m")]))
    await turns()
    waiting.cancel()
    await turns()
    gate.open.set()
    await first
    await history.ledger.audit([AuditRow(at=3.0, actor="c", method="m")])
    rows = await history.ledger.newest_audited(AuditQuery())
    assert [row.actor for _, row in rows] == ["c", "a"]
    assert waiting.cancelled()
    await history.close()


async def test_a_follower_hears_even_when_the_writer_was_cancelled() -> None:
    gate = Gate()
    history = await open_history(":memory:", clock=SystemClock(), run=gate)
    with history.streams.changed("s1") as change:
        gate.open.clear()
        writing = asyncio.ensure_future(history.streams.append([text(0, b"x")]))
        await turns()
        writing.cancel()
        await turns()
        gate.open.set()
        async with asyncio.timeout(60):
            await change.wait()
    assert (await history.streams.read_log("s1")).data == b"x"
    await history.close()


class Contended(list[sqlite3.Connection]):
    """Whatever is looked at, another thread takes first."""

    def pop(self, index: int = -1) -> sqlite3.Connection:  # type: ignore[override]
        self.clear()
        return super().pop(index)


async def test_readers_that_race_for_the_last_idle_connection_both_read(tmp_path: Path) -> None:
    history = await reopen(tmp_path / "history.db")
    await history.streams.append([text(0, b"hello")])
    history._database._idle = Contended()
    for _ in range(3):
        assert (await history.streams.read_log("s1")).data == b"hello"
    history._database._idle = list(history._database._idle)
    await history.close()


async def test_what_an_older_version_recorded_is_folded_too(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    older = sqlite3.connect(path, isolation_level=None)
    older.executescript(old_steps("sqlite.sql")[0])
    records = [b'{"kind":"metric","time":5.5,"values":{"loss":%d}}' % n for n in range(50)]
    body = frame(b"".join(struct.pack("<I", len(one)) + one for one in records))
    for stream, channel in ((1, 1), (2, 2)):
        facts = {"id": stream, "session_id": f"s{stream}", "channel": channel, "wanted": 51}
        insert(older, "streams", facts | {"attempt": 1, "rank": 0, "writer": 0})
    chunk = {"id": 1, "stream_id": 1, "first": 1, "last": 50, "received_at": 6.0, "body": body}
    insert(older, "chunks", chunk)
    insert(older, "metric_counts", {"session_id": "s1", "name": "loss", "points": 50})
    older.close()
    history = await reopen(path)
    assert await history.series.unfolded() == ("s1",)
    for _ in range(2):
        [view] = (await history.series.read("s1", SeriesQuery(width=100))).series
        assert [column.last for column in view.columns] == list(map(float, range(50)))
        assert not await history.series.fold("s1")
    assert await history.series.unfolded() == ()
    await history.close()


def test_portable_rows_have_every_column_of_every_table(tmp_path: Path) -> None:
    """A column that a later step adds would be missing in every backup."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate(database, ":memory:")
    tables = [
        name
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name not in {"schema_versions", "properties", "sqlite_sequence", "audit_trims"}
        and name not in {"sent_blobs", "kept_bytes", "project_kept_bytes", "released_roots"}
        and name not in {"packs", "packed_blobs"}
    ]
    found = {
        table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        for table in tables
    }
    assert found == {name: set(table.column_names) for name, table in BACKED_UP.items()}


async def test_what_an_older_control_plane_writes_of_a_long_summary_is_listed(
    tmp_path: Path,
) -> None:
    """It knows nothing of what lists carry of the report before, and leaves that as it is."""
    path = tmp_path / "history.db"
    history = await reopen(path)
    values = {f"loss/{number}": number for number in range(50)}
    told = {"kind": "metric", "time": 5.0, "step": 1, "values": values, "summary": True}
    record = json.dumps(told).encode()
    key = StreamKey("s1", 1, 0, Channel.METRIC)
    await history.streams.append([Chunk(stream=key, first=1, last=1, records=(record,))])
    first = (await history.streams.listed_summaries(["s1"]))["s1"]
    assert (first.values["loss/0"], first.left_out) == (0, 20)
    older = sqlite3.connect(path)
    report = json.dumps(dict.fromkeys(values, -1))
    with older:
        older.execute("UPDATE summaries SET time = 6.0, step = 2, report = ?", (report,))
    older.close()
    second = (await history.streams.listed_summaries(["s1"]))["s1"]
    assert (second.step, second.values["loss/0"], second.left_out) == (2, -1, 20)
    await history.close()


async def test_no_work_returns_a_cursor(tmp_path: Path) -> None:
    """Freed by another thread, one made an audited call fail in some ten thousand."""
    history = await open_history(tmp_path / "history.db", clock=SystemClock(), run=in_thread)
    for call in (history._database.write, history._database.read):
        with pytest.raises(TypeError, match="cursor"):
            await call(lambda connection: connection.execute("SELECT 1"))
    await history.close()
