"""History on a real PostgreSQL: several control planes at once, kills, pauses, bad servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.identity import Role, User
from controlplane.domain.names import fits_glob
from controlplane.history.errors import (
    HistoryConflict,
    HistoryDenied,
    HistoryFenced,
    HistoryRefused,
    HistoryTooNew,
    HistoryUnavailable,
)
from controlplane.history.postgresql import (
    PostgresHistory,
    database,
    locks,
    migration,
    open_postgresql,
)
from controlplane.history.postgresql import connection as line_module
from controlplane.history.postgresql.address import read_address
from controlplane.history.postgresql.connection import open_line
from controlplane.history.postgresql.dialect import pattern_of
from controlplane.history.postgresql.listening import MOST_PAYLOAD_BYTES, payloads
from controlplane.history.sql import telemetry
from controlplane.history.values import (
    AttemptCharge,
    AuditRow,
    Channel,
    Chunk,
    NodeSample,
    Recorded,
    SessionQuery,
    SessionRecord,
    StreamKey,
)
from nsml.common.clock import SystemClock
from tests.e2e.programs import wait_for
from tests.integration.test_etcd_access import Authority
from tests.support.etcd import pause
from tests.support.examples import examples
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from controlplane.history.sql.history import History
    from controlplane.history.sql.streams import SqlStreams

T = TypeVar("T")
ADMIN = User(name="root", role=Role.ADMIN)
SEED = 20_260


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that this module may kill."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as made:
        yield made


@contextlib.asynccontextmanager
async def planes(url: str, count: int) -> AsyncIterator[list[PostgresHistory]]:
    """So many control planes on one database."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            history = await open_postgresql(url, clock=SystemClock())
            stack.push_async_callback(history.close)
            opened.append(history)
        yield opened


def ended(whose: str, number: int) -> SessionRecord:
    return SessionRecord(
        id=f"{whose}{number}",
        name=f"{whose}/None/{number}",
        owner=whose,
        state="FAILED",
        created_at=1.0,
        ended_at=2.0,
        record=b"r",
    )


def metric(session: str, rank: int) -> StreamKey:
    return StreamKey(session, 1, rank, Channel.METRIC, 7)


def reports(key: StreamKey, first: int, last: int, name: str = "n") -> Chunk:
    records = tuple(
        json.dumps(
            {"kind": "metric", "time": 1.0, "values": {name: f"{key.rank}:{number}"}}
        ).encode()
        for number in range(first, last + 1)
    )
    return Chunk(stream=key, first=first, last=last, records=records)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while it fails by name, as agents do."""
    while True:
        try:
            return await call()
        except HistoryUnavailable:
            await asyncio.sleep(0.02)


async def feed(streams: SqlStreams, key: StreamKey, end: int, chance: random.Random) -> None:
    """Send positions 1 to `end` in pieces, some of them again, until all are taken."""
    wanted = 1
    while wanted <= end:
        first = max(1, wanted - chance.randrange(4))
        last = min(end, wanted + chance.randrange(8))
        chunk = reports(key, first, last)
        marks = await patiently(lambda chunk=chunk: streams.append([chunk]))
        wanted = marks[key]


async def followed(streams: SqlStreams, session: str, count: int) -> list[str]:
    """The points of a session as a follower hears of them, until there are so many."""
    seen: list[str] = []
    mark = 0
    with streams.changed(session) as change:
        while True:
            page = await patiently(
                lambda mark=mark: streams.read_metrics(session, after=mark, limit_points=50)
            )
            seen += [point.value for point in page.points]
            mark = page.next
            if len(seen) >= count:
                return seen
            if page.is_end:
                await change.wait()


async def holds_all(history: History, session: str, ranks: int, end: int) -> None:
    for rank in range(ranks):
        parts = await history.streams.read(metric(session, rank), 1, limit_bytes=1 << 30)
        assert all(isinstance(part, Recorded) for part in parts), parts
        records = [record for part in parts for record in part.records]  # type: ignore[union-attr]
        values = [json.loads(record)["values"]["n"] for record in records]
        assert values == [f"{rank}:{number}" for number in range(1, end + 1)]
    assert await history.streams.metric_counts(session) == {"n": ranks * end}


async def load(url: str, *, ranks: int, end: int, meanwhile: Callable[[], None] | None) -> None:
    """Three control planes are given the same streams at once; each is followed at another."""
    sessions = ["s1", "s2"]
    async with planes(url, 3) as histories, asyncio.timeout(240):
        async with asyncio.TaskGroup() as group:
            followers = [
                group.create_task(followed(history.streams, session, ranks * end))
                for history in histories
                for session in sessions
            ]
            for number, history in enumerate(histories):
                for session in sessions:
                    for rank in range(ranks):
                        chance = random.Random(f"{SEED} {number} {session} {rank}")
                        key = metric(session, rank)
                        group.create_task(feed(history.streams, key, end, chance))
            if meanwhile is not None:
                await asyncio.to_thread(meanwhile)
        expected = sorted(f"{rank}:{n}" for rank in range(ranks) for n in range(1, end + 1))
        for follower in followers:
            assert sorted(follower.result()) == expected, "each point once, and none passed by"
        for session in sessions:
            await holds_all(histories[0], session, ranks, end)


async def test_the_same_streams_through_three_control_planes_are_stored_once(url: str) -> None:
    await load(url, ranks=2, end=100, meanwhile=None)


async def test_kill_9_of_the_server_under_load_loses_and_doubles_nothing(
    server: PostgresServer, url: str
) -> None:
    def nemesis() -> None:
        for end in (server.kill, server.kill, server.restart):
            threading.Event().wait(0.5)
            end()
            if server.pid is None:
                server.start()

    await load(url, ranks=3, end=300, meanwhile=nemesis)


@pytest.mark.parametrize("reads", [False, True])
async def test_a_connection_that_takes_no_statement_any_more_is_replaced(
    url: str, *, reads: bool
) -> None:
    async with planes(url, 1) as (history,), asyncio.timeout(60):
        await history.streams.append([reports(metric("s1", 0), 1, 5)])
        await history.streams.metric_counts("s1")
        place = history._database
        line = place._idle[-1] if reads else place._writer
        assert line is not None
        # As a server that is killed in the middle of many rows may leave it.
        line._connection.pgconn.enter_pipeline_mode()
        line._connection.pgconn.send_query_params(b"SELECT 1", None)
        assert not line.is_broken, "libpq does not say so"
        if not reads:
            await patiently(lambda: history.streams.append([reports(metric("s1", 0), 6, 9)]))
        counts = await patiently(lambda: history.streams.metric_counts("s1"))
        assert counts == {"n": 5 if reads else 9}


async def test_calls_fail_by_name_while_the_server_is_gone_and_soon(
    server: PostgresServer, url: str
) -> None:
    async with planes(url, 1) as (history,):
        await history.streams.append([reports(metric("s1", 0), 1, 5)])
        server.kill()
        try:
            calls = [
                history.streams.append([reports(metric("s1", 0), 6, 9)]),
                history.streams.metric_counts("s1"),
                history.catalogue.session("s1"),
                history.ledger.charged(),
                history.probe(),
            ]
            async with asyncio.timeout(60):
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} == {HistoryUnavailable}
            for result in results:
                assert server.password not in f"{result} {result!r}"
        finally:
            server.start()
        counts = await patiently(lambda: history.streams.metric_counts("s1"))
        assert counts in ({"n": 5}, {"n": 9})
        await patiently(lambda: history.streams.append([reports(metric("s1", 0), 6, 9)]))
        await holds_all(history, "s1", 1, 9)


async def test_a_restart_between_two_calls_is_not_noticed(server: PostgresServer, url: str) -> None:
    async with planes(url, 1) as (history,):
        for number in range(1, 4):
            await history.streams.append([reports(metric("s1", 0), number, number)])
            # Several that read, so that several connections are idle.
            await asyncio.gather(*[history.streams.metric_counts("s1") for _ in range(5)])
            await asyncio.to_thread(server.restart)
        assert await history.streams.metric_counts("s1") == {"n": 3}


async def test_a_server_that_stands_still_holds_nobody_for_ever(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CALL_S", 0.5)
    async with planes(url, 1) as (history,):
        # what is right may take half a second too, on a busy machine
        await patiently(lambda: history.streams.append([reports(metric("s1", 0), 1, 1)]))
        await patiently(lambda: history.streams.metric_counts("s1"))
        server.pause()
        try:
            async with asyncio.timeout(60):
                results = await asyncio.gather(
                    history.streams.append([reports(metric("s1", 0), 2, 2)]),
                    history.streams.metric_counts("s1"),
                    return_exceptions=True,
                )
        finally:
            server.resume()
        assert {type(result) for result in results} == {HistoryUnavailable}
        await patiently(lambda: history.streams.append([reports(metric("s1", 0), 2, 3)]))
        await patiently(lambda: holds_all(history, "s1", 1, 3))


@pytest.mark.parametrize("place", ["session", "fence", "migration"])
async def test_who_stands_still_within_a_transaction_loses_its_locks(
    url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A control plane that is paused between two statements, wherever it holds a lock."""
    async with planes(url, 1) as (history,):
        await history.catalogue.put_session(ended("a", 0), term=5)
        impatient(monkeypatch, idle_in_transaction_session_timeout="1s")
        line = open_line(read_address(url))
        line.run("BEGIN")
        if place == "session":
            locks.lock(line, ["s1"])
            assert await history.streams.append([reports(metric("s1", 0), 1, 1)])
        elif place == "fence":
            line.run("SELECT value FROM properties WHERE name = 'term' FOR UPDATE")
            await history.catalogue.put_session(ended("a", 1), term=6)
        else:
            line.run(f"SELECT pg_advisory_xact_lock({migration.LOCK})")
            async with planes(url, 1) as (other,):
                await other.probe()
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            line.run("COMMIT")
        line.close()


def impatient(monkeypatch: pytest.MonkeyPatch, **limits: str) -> None:
    """Of connections that are opened from now on."""
    monkeypatch.setattr(line_module, "_SETTINGS", {**line_module._SETTINGS, **limits})


def message(kind: bytes, body: bytes = b"", *, missing: int = 0) -> bytes:
    """One of PostgreSQL's protocol, of which so many bytes are never sent."""
    return kind + struct.pack("!i", 4 + len(body) + missing) + body


HALVES = {
    "after a flush": message(b"H"),
    "within a parameter": message(b"P", b"\0SELECT $1::bytea\0\0\0")
    + message(b"B", b"\0", missing=1_000_000),
}


@pytest.mark.parametrize("said", HALVES.values(), ids=HALVES.keys())
async def test_who_stands_still_where_the_server_sets_no_limit_loses_its_locks(
    url: str, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(locks, "STILL_S", 0.2)
    impatient(monkeypatch, lock_timeout="1s")
    async with planes(url, 1) as (history,):
        impatient(monkeypatch, statement_timeout="1s", idle_in_transaction_session_timeout="1s")
        line = open_line(read_address(url))
        line.run("BEGIN")
        locks.lock(line, ["s1"])
        os.write(line._connection.fileno(), said)
        assert await history.streams.append([reports(metric("s1", 0), 1, 1)])
        with pytest.raises(psycopg.Error):
            line.run("COMMIT")
        line.close()


PAUSED = """
import asyncio, os, signal, sys
from controlplane.history.postgresql import open_postgresql
from controlplane.history.postgresql.connection import Line
from nsml.common.clock import SystemClock
from tests.integration.test_postgres_history import metric, patiently, reports

whole = Line.executemany

def stopping(rows):
    for number, row in enumerate(rows):
        if number == 2:
            Line.executemany = whole
            os.kill(os.getpid(), signal.SIGSTOP)
        yield row

async def main():
    history = await open_postgresql(sys.argv[1], clock=SystemClock())
    Line.executemany = lambda self, statement, rows: whole(self, statement, stopping(rows))
    chunks = [reports(metric("s1", rank), 1, 5) for rank in range(4)]
    await patiently(lambda: history.streams.append(chunks))
    await history.close()

asyncio.run(main())
"""


def stopping_itself(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PAUSED, url])


async def test_a_control_plane_that_is_paused_within_a_pipeline_holds_up_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write what it was writing; when it wakes it finds that stored."""
    monkeypatch.setattr(locks, "STILL_S", 0.2)
    impatient(monkeypatch, lock_timeout="1s")
    chunks = [reports(metric("s1", rank), 1, 5) for rank in range(4)]
    async with planes(url, 1) as (history,):
        paused = stopping_itself(url)
        try:
            _, status = await asyncio.to_thread(os.waitpid, paused.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert set((await history.streams.append(chunks)).values()) == {6}
            os.kill(paused.pid, signal.SIGCONT)
            assert await asyncio.to_thread(paused.wait) == 0
        finally:
            paused.kill()
            paused.wait()
        await holds_all(history, "s1", 4, 5)


async def test_who_may_take_its_time_is_not_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore, who only reads, and who stands still for a moment."""
    monkeypatch.setattr(locks, "PATIENCE_S", 0.3)
    impatient(monkeypatch, lock_timeout="300ms")
    async with planes(url, 1) as (history,):
        restore, reader, brief = [open_line(read_address(url)) for _ in range(3)]
        for line in (restore, reader, brief):
            line.run("BEGIN")
        database._take_long(restore)
        locks.lock(restore, ["s1"])
        reader.run("SELECT count(*) FROM chunks")
        locks.lock(brief, ["s2"])
        with pytest.raises(HistoryUnavailable, match="busy"):
            await history.streams.append([reports(metric("s2", 0), 1, 1)])
        brief.run("COMMIT")
        monkeypatch.setattr(locks, "STILL_S", 0.0)
        with pytest.raises(HistoryUnavailable, match="busy"):
            await history.streams.append([reports(metric("s1", 0), 1, 1)])
        for line in (restore, reader):
            line.run("COMMIT")
        for line in (restore, reader, brief):
            line.close()


async def test_ids_of_a_session_grow_in_the_order_of_commits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a follower that has seen a later id would never hear of what commits after it."""
    notify = database._notify
    held, go_on = threading.Event(), threading.Event()

    def slow(line: Any, touched: Any) -> None:
        notify(line, touched)
        if not held.is_set():
            held.set()
            go_on.wait(60)

    monkeypatch.setattr(database, "_notify", slow)
    async with planes(url, 3) as (one, other, third):
        first = asyncio.create_task(one.streams.append([reports(metric("s1", 0), 1, 1)]))
        await asyncio.to_thread(held.wait)
        second = asyncio.create_task(other.streams.append([reports(metric("s1", 1), 1, 1, "m")]))
        unrelated = await other.streams.read_metrics("s1")
        assert unrelated.points == ()
        done, _ = await asyncio.wait([second], timeout=0.3)
        early = await third.streams.read_metrics("s1")
        go_on.set()
        await asyncio.gather(first, second)
        late = await third.streams.read_metrics("s1", after=early.next)
        assert sorted(point.value for point in (*early.points, *late.points)) == ["0:1", "1:1"]
        assert not done


async def test_the_newest_reading_is_known_wherever_it_came(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "SHARED_AFTER_S", 0.0)
    now = SystemClock().time()

    def sample(node: str, boot: str, sequence: int) -> NodeSample:
        return NodeSample(node=node, boot_id=boot, sequence=sequence, at=now)

    async with planes(url, 3) as histories:
        one, other, third = [history.telemetry for history in histories]
        await one.record([sample("n1", "b1", 1), sample("n2", "b1", 5)])
        assert await third.newest() == {"n1": sample("n1", "b1", 1), "n2": sample("n2", "b1", 5)}
        await other.record([sample("n1", "b1", 2)])
        await one.record([sample("n2", "b0", 1)])  # another boot, which came later
        await other.record([sample("n2", "b0", 2)])
        expected = {"n1": sample("n1", "b1", 2), "n2": sample("n2", "b0", 2)}
        for each in (one, other, third):
            assert await each.newest() == expected
        # What was held back elsewhere and comes late is not taken for newer.
        await third.record([sample("n1", "b1", 1)])
        assert await one.newest() == await third.newest() == expected


async def test_the_newest_reading_is_shown_while_the_server_is_gone(
    server: PostgresServer, url: str
) -> None:
    async with planes(url, 1) as (history,):
        sample = NodeSample(node="n1", boot_id="b1", sequence=1, at=1.0)
        await history.telemetry.record([sample])
        server.kill()
        try:
            async with asyncio.timeout(60):
                assert await history.telemetry.newest() == {"n1": sample}
        finally:
            server.start()


async def test_who_stops_while_the_server_is_gone_ends_without_its_last_readings(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "SHARED_AFTER_S", float("inf"))  # none is written before
    history = await open_postgresql(url, clock=SystemClock())
    await history.telemetry.record([NodeSample(node="n1", boot_id="b1", sequence=1, at=1.0)])
    server.kill()
    try:
        async with asyncio.timeout(60):
            await history.close()
    finally:
        server.start()


FORMER_LEADER = """
import asyncio, itertools, sys
from controlplane.history.errors import HistoryFenced, HistoryUnavailable
from controlplane.history.postgresql import open_postgresql
from nsml.common.clock import SystemClock
from tests.integration.test_postgres_history import ended

async def main():
    history = await open_postgresql(sys.argv[1], clock=SystemClock())
    for number in itertools.count():
        try:
            await history.catalogue.put_session(ended("former", number), term=5)
        except HistoryFenced:
            print("fenced", number, flush=True)
            return
        except HistoryUnavailable:
            continue  # stopped within a transaction, which was cut off
        print(number, flush=True)

asyncio.run(main())
"""


def former_leader(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FORMER_LEADER, url], stdout=subprocess.PIPE, text=True
    )


async def test_a_leader_that_was_paused_changes_nothing_when_it_wakes(url: str) -> None:
    async with planes(url, 1) as (successor,):
        former = former_leader(url)
        try:
            assert former.stdout is not None
            assert former.stdout.readline() == "0\n"
            pause(former.pid)
            # Where it was stopped within a transaction, it holds the fence until that is cut off.
            await patiently(lambda: successor.catalogue.put_session(ended("successor", 0), term=6))
            page = await successor.catalogue.sessions(SessionQuery(viewer=ADMIN), limit=10_000)
            os.kill(former.pid, signal.SIGCONT)
            told, _ = await asyncio.to_thread(former.communicate)
            assert told.splitlines()[-1].startswith("fenced")
            after = await successor.catalogue.sessions(SessionQuery(viewer=ADMIN), limit=10_000)
            assert after == page
        finally:
            former.kill()
            former.wait()


async def test_a_later_term_waits_for_what_an_earlier_one_has_begun(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then stands above it: no write of the earlier one is taken after one of the later."""
    notify, held, go_on = database._notify, threading.Event(), threading.Event()

    def slow(line: Any, touched: Any) -> None:
        notify(line, touched)
        if not held.is_set():
            held.set()
            go_on.wait(60)

    async with planes(url, 2) as (former, successor):
        await former.catalogue.put_session(ended("a", 0), term=5)
        monkeypatch.setattr(database, "_notify", slow)
        first = asyncio.create_task(former.catalogue.put_session(ended("a", 1), term=5))
        await asyncio.to_thread(held.wait)
        second = asyncio.create_task(successor.catalogue.put_session(ended("b", 1), term=6))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done
        go_on.set()
        await asyncio.gather(first, second)
        with pytest.raises(HistoryFenced):
            await former.catalogue.put_session(ended("a", 2), term=5)


async def test_followers_elsewhere_hear_of_it_also_after_the_server_came_back(
    server: PostgresServer, url: str
) -> None:
    async with planes(url, 2) as (here, there), asyncio.timeout(60):
        with there.streams.changed("s1") as change, there.streams.touched() as touched:
            await change.wait()  # of the first connection that listens
            assert touched.take() is None  # any: it does not know what was before
            await here.streams.append([reports(metric("s1", 0), 1, 1)])
            await change.wait()
            assert touched.take() == {"s1"}
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await patiently(lambda: here.streams.append([reports(metric("s1", 0), 2, 2)]))
            await change.wait()
            assert touched.take() is None
            while (await there.streams.metric_counts("s1")) != {"n": 2}:
                await change.wait()


async def test_who_listens_goes_on_while_the_connection_that_writes_is_lost(url: str) -> None:
    async with planes(url, 2) as (here, there), asyncio.timeout(60):
        with there.streams.changed("s1") as change:
            await change.wait()  # of the first connection that listens
            listening = there._database._listening._line
            writer = there._database._writer
            assert listening is not None
            assert writer is not None
            writer.close()
            await here.streams.append([reports(metric("s1", 0), 1, 1)])
            await change.wait()
            assert there._database._listening._line is listening


def test_notices_name_all_and_are_short_enough() -> None:
    names = {f"s{number:016}" for number in range(2000)} | {"x" * 9000}
    made = list(payloads(names))
    assert all(len(payload.encode()) <= MOST_PAYLOAD_BYTES for payload in made)
    assert sorted(name for payload in made for name in payload.split("\n")) == sorted(
        names - {"x" * 9000}
    )


async def test_one_that_is_refused_does_not_undo_the_others_of_its_transaction(url: str) -> None:
    def row(number: int, name: str) -> SessionRecord:
        return replace(ended("s", number), name=name)

    async with planes(url, 2) as (one, other):
        await one.catalogue.put_session(row(0, "taken"), term=1)
        puts = [
            one.catalogue.put_session(row(n, "taken" if n == 5 else f"n{n}"), term=1)
            for n in range(1, 9)
        ]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [n for n, result in enumerate(results, 1) if result is not None] == [5]
        assert isinstance(results[4], HistoryConflict)
        found = [await other.catalogue.session(f"s{n}") is not None for n in range(1, 9)]
        assert found == [n != 5 for n in range(1, 9)]


async def test_control_planes_that_start_at_once_migrate_once(url: str) -> None:
    opened = await asyncio.gather(*[open_postgresql(url, clock=SystemClock()) for _ in range(4)])
    said = await asyncio.gather(*[history.mark(f"m{n}") for n, history in enumerate(opened)])
    assert len(set(said)) == 1
    for history in opened:
        await history.close()


async def test_a_newer_schema_is_refused(url: str) -> None:
    async with planes(url, 1):
        pass
    with psycopg.connect(url) as other:
        other.execute("INSERT INTO schema_versions (version) VALUES (99)")
    with pytest.raises(HistoryTooNew, match="newer") as kept:
        await open_postgresql(url, clock=SystemClock())
    with psycopg.connect(url, autocommit=True) as other:
        connected = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'nsml'"
        )
        wait_for(lambda: other.execute(connected).fetchone() == (0,), what="no connection is left")
    assert kept.tb, "what it passed through is kept so long, and would keep a connection"


async def test_ledger_rows_cannot_be_changed_or_removed(url: str) -> None:
    async with planes(url, 1) as (history,):
        await history.ledger.audit([AuditRow(at=1.0, actor="kim", method="m")])
        charge = AttemptCharge(
            session_id="s1",
            attempt=1,
            owner="kim",
            project="",
            gpu_thousandths=1,
            seconds=1.0,
            ended_at=1.0,
        )
        await history.ledger.charge([charge], term=1)
        with psycopg.connect(url, autocommit=True) as other:
            for table in ("audit", "charges"):
                for change in (f"DELETE FROM {table}", f"TRUNCATE {table}"):
                    with pytest.raises(psycopg.IntegrityError, match="only added"):
                        other.execute(change)  # type: ignore[call-overload]
            with pytest.raises(psycopg.IntegrityError, match="only added"):
                other.execute("UPDATE charges SET seconds = 2")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("mysql://u@h/db", "no URL"),
        ("postgresql://u:geheim@db.example/nsml", "another host"),
        ("postgresql://u:geheim@db.example/nsml?sslmode=require", "another host"),
        ("postgresql://u:geheim@localhost,10.0.0.1/nsml", "another host"),
        ("postgresql://u:geheim@localhost/nsml?hostaddr=10.0.0.1", "another host"),
        ("postgresql://u:geheim@/nsml?host=10.0.0.1", "another host"),
        ("postgresql://u:geheim@localhost/nsml?service=x", "service"),
        ("postgresql://u:geheim@localhost/nsml?nonsense=geheim", "cannot be understood"),
        ("postgresql://u:ge%heim@localhost/nsml", "cannot be understood"),
    ],
)
def test_an_address_that_must_not_be_used(address: str, why: str) -> None:
    with pytest.raises(HistoryRefused) as caught:
        read_address(address)
    told = f"{caught.value} {caught.value.details}"
    assert why in told
    assert "heim" not in told


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u@localhost/nsml",
        "postgresql://u@127.0.0.1:5433,[::1]:5434/nsml",
        "postgresql:///nsml?host=/run/postgresql",
        "postgresql://u:geheim@db.example/nsml?sslmode=verify-full",
        "postgres://u@10.0.0.1,10.0.0.2/nsml?sslmode=verify-ca&target_session_attrs=read-write",
    ],
)
def test_an_address_that_may_be_used(address: str) -> None:
    assert "geheim" not in repr(read_address(address))


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("PGHOST", "db.example", "another host"),
        ("PGHOSTADDR", "10.0.0.1", "another host"),
        ("PGSERVICE", "x", "service"),
    ],
)
def test_the_environment_leads_nowhere_unchecked(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(HistoryRefused) as caught:
        read_address("postgresql://u:geheim@/nsml")
    assert why in f"{caught.value} {caught.value.details}"
    if variable != "PGSERVICE":
        monkeypatch.setenv("PGSSLMODE", "verify-full")
        assert value in read_address("postgresql://u:geheim@/nsml").shown


async def test_the_way_to_it_is_checked_and_the_password_read_from_a_file(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    certificate, key = ours.issue("server")
    passfile = tmp_path / "pgpass"
    with PostgresServer(tls=(certificate.read_bytes(), key.read_bytes())) as server:
        passfile.write_text(f"127.0.0.1:{server.port}:*:nsml:{server.password}\n")
        passfile.chmod(0o600)
        place = f"postgresql://nsml@127.0.0.1:{server.port}/postgres?passfile={passfile}"

        async def refusal(parameters: str) -> str:
            with pytest.raises(HistoryDenied) as caught:
                await open_postgresql(f"{place}&{parameters}", clock=SystemClock())
            assert server.password not in f"{caught.value!r} {caught.value.details}"
            return caught.value.why

        checked = f"sslmode=verify-full&sslrootcert={ours.path}"
        async with planes(f"{place}&{checked}", 1) as (history,):
            await history.probe()
            await history.streams.metric_counts("s1")
            ways: list[tuple[bool]] = []
            async with asyncio.timeout(60):
                while len(ways) < 3:  # the pools open their connections by and by
                    await asyncio.sleep(0.02)
                    ways = server.execute(
                        "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
                        " WHERE application_name = 'nsml'"
                    )
            assert set(ways) == {(True,)}
        assert "certificate verify failed" in await refusal(
            f"sslmode=verify-full&sslrootcert={other.path}"
        )
        assert "no encryption" in await refusal("sslmode=disable")
        passfile.chmod(0o644)
        assert "password" in await refusal(checked)


async def test_a_wrong_password_is_told_without_it(server: PostgresServer, url: str) -> None:
    with pytest.raises(HistoryDenied, match="cannot be used") as caught:
        await open_postgresql(url.replace(server.password, "geheim"), clock=SystemClock())
    assert "password authentication failed" in caught.value.why
    assert "geheim" not in f"{caught.value!r} {caught.value.details}"


async def test_a_role_that_may_do_nothing_is_told_so(server: PostgresServer, url: str) -> None:
    server.execute("CREATE ROLE poor LOGIN PASSWORD 'x'")
    place = url.partition("@")[2]
    with pytest.raises(HistoryUnavailable) as caught:
        await open_postgresql(f"postgresql://poor:x@{place}", clock=SystemClock())
    assert "permission denied" in caught.value.why


async def test_a_database_that_cannot_keep_it_is_refused(server: PostgresServer) -> None:
    # SQL_ASCII is what a server has whose machine has no locale.
    for encoding in ("LATIN1", "SQL_ASCII"):
        server.execute(
            f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'"
        )
        with pytest.raises(HistoryRefused, match="cannot be kept") as other:
            await open_postgresql(server.url(encoding.lower()), clock=SystemClock())
        assert other.value.why == f"its encoding is {encoding}"
    with PostgresServer({"fsync": "off"}) as careless:
        with pytest.raises(HistoryRefused) as caught:
            await open_postgresql(careless.url(), clock=SystemClock())
        assert "lose" in caught.value.why


async def test_each_commit_waits_for_the_disk(server: PostgresServer, url: str) -> None:
    name = url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with planes(url, 1) as (history,):
        line = history._database._writer
        assert line is not None
        assert line.ask("SHOW synchronous_commit") == ("on",)


@given(
    st.lists(
        st.tuples(
            st.text(alphabet="ab-/]![^\\.é\n", max_size=5),
            st.text(alphabet="ab-/]![^\\*?.é$(", max_size=8),
        ),
        min_size=1,
        max_size=300,
    )
)
@settings(max_examples=examples(15), deadline=None)
def test_globs_fit_as_everywhere_else(server: PostgresServer, pairs: list[tuple[str, str]]) -> None:
    names, globs = zip(*pairs, strict=True)
    with psycopg.connect(server.url()) as connection:
        rows = connection.execute(
            'SELECT name COLLATE "C" ~ pattern FROM unnest(%s::text[], %s::text[])'
            " WITH ORDINALITY AS pair (name, pattern, number) ORDER BY number",
            (list(names), [pattern_of(glob) for glob in globs]),
        ).fetchall()
    assert [row[0] for row in rows] == [fits_glob(name, glob) for name, glob in pairs]
