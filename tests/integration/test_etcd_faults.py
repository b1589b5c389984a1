"""A real etcd that is killed, paused, filled up and wiped under a working client."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from controlplane.store.cache import TableCache
from controlplane.store.etcd import EtcdStore
from controlplane.store.etcd_process import EtcdProcess, end_leftover, find_etcd
from controlplane.store.interface import (
    CommitUnknown,
    Delete,
    KeyValueStore,
    NoSpace,
    Put,
    StoreReplaced,
    StoreUnavailable,
    Transaction,
    WatchBatch,
    absent,
)
from controlplane.store.tables import Table
from nsml.common.clock import SystemClock
from tests.contract.store_engines import put, take, told, until
from tests.support.etcd import etcd_in, pause, require_etcd
from tests.support.proxy import Proxy

CLOCK = SystemClock()
WRITES: Table[bytes] = Table("w/", encode=bytes, decode=bytes)


@asynccontextmanager
async def running(folder: Path, **settings: int) -> AsyncIterator[EtcdProcess]:
    """An etcd that stays dead when it is killed, until the test starts it again."""
    process = etcd_in(folder / "etcd", **settings)
    process.start()
    try:
        await process.ready()
        yield process
    finally:
        await process.stop()


async def kill_and_restart(process: EtcdProcess) -> None:
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: _is_dead(process))
    process.start()
    await process.ready()


async def _is_dead(process: EtcdProcess) -> bool:
    return process.pid is None


class Writer:
    """Writes one new key after another and notes what the store said about each."""

    def __init__(self, store: KeyValueStore, name: str) -> None:
        self._store = store
        self._name = name
        self.acknowledged: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.enough = asyncio.Event()

    async def run(self) -> None:
        number = 0
        while not self.enough.is_set():
            number += 1
            key = f"w/{self._name}/{number:06}"
            write = Transaction(compares=(absent(key),), success=(Put(key=key, value=b"x"),))
            try:
                result = await self._store.commit(write)
            except CommitUnknown:
                self.unknown.add(key)
            except StoreUnavailable:
                self.refused.add(key)
            else:
                assert result.succeeded  # nothing was applied twice behind our back
                self.acknowledged[key] = result.revision


async def test_nothing_is_lost_or_doubled_over_kills_and_restarts(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with (
        running(tmp_path) as process,
        EtcdStore([process.endpoint], clock=CLOCK, progress_every_s=0.3) as store,
        asyncio.timeout(120),
        asyncio.TaskGroup() as group,
    ):
        seen: list[WatchBatch] = []

        async def watch() -> None:
            async with aclosing(store.watch("w/", 1)) as batches:
                async for batch in batches:
                    seen.extend([batch] if batch.events else [])

        cache = TableCache(store, [WRITES], clock=CLOCK, relist_every_s=0.5)
        followers = [group.create_task(watch()), group.create_task(cache.run())]
        writers = [Writer(store, name) for name in "abcd"]
        writing = [group.create_task(writer.run()) for writer in writers]
        for _ in range(4):
            before = sum(len(writer.acknowledged) for writer in writers)

            async def goes_on(before: int = before) -> bool:
                return sum(len(writer.acknowledged) for writer in writers) > before + 50

            await until(goes_on, deadline_s=60)
            await asyncio.sleep(rng.random() / 20)
            await kill_and_restart(process)
        for writer in writers:
            writer.enough.set()
        await asyncio.wait(writing)
        last = await put(store, "w/last")
        await until(lambda: _has_reached(seen, last))
        await cache.wait_for(last)
        for follower in followers:
            follower.cancel()
        listing = await store.list("w/")

    watched = [event.key for batch in seen for event in batch.events]
    acknowledged = {key: rev for writer in writers for key, rev in writer.acknowledged.items()}
    unknown = {key for writer in writers for key in writer.unknown}
    refused = {key for writer in writers for key in writer.refused}
    assert len(watched) == len(set(watched))
    assert [batch.revision for batch in seen] == sorted({batch.revision for batch in seen})
    revisions = {event.key: batch.revision for batch in seen for event in batch.events}
    assert {key: revisions.get(key) for key in acknowledged} == acknowledged
    assert set(watched) <= set(acknowledged) | unknown | {"w/last"}
    assert not refused & set(watched)
    assert {item.key for item in listing.items} == set(watched)
    assert {WRITES.path(key) for key in cache.records(WRITES)} == set(watched)
    assert cache.drift == 0
    assert unknown | refused  # the kills did hit writes


async def _has_reached(seen: list[WatchBatch], revision: int) -> bool:
    return bool(seen) and seen[-1].revision >= revision


async def test_a_paused_server_costs_a_watch_nothing(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as process,
        EtcdStore([process.endpoint], clock=CLOCK, progress_every_s=0.1, deadline_s=2.0) as store,
    ):
        start = await put(store, "a", b"1")
        taking = asyncio.create_task(take(store, "a", start, 2))
        pid = process.pid
        assert pid is not None
        pause(pid)
        try:
            # Long enough that the stream is given up, and with it what it was waiting for.
            with pytest.raises(StoreUnavailable):
                await store.get("a")
        finally:
            os.kill(pid, signal.SIGCONT)

        async def wrote() -> bool:
            with suppress(StoreUnavailable, CommitUnknown):
                return (
                    await store.commit(
                        Transaction(compares=(absent("b"),), success=(Put(key="b", value=b""),))
                    )
                ).revision > 0
            return False

        await until(wrote)
        await until(lambda: _wrote(store, "a"))
        batches = await taking
        assert told(batches[0].events) == [("a", b"1")]
        assert batches[1].revision > batches[0].revision


async def _wrote(store: KeyValueStore, key: str) -> bool:
    with suppress(StoreUnavailable, CommitUnknown):
        return await put(store, key, b"2") > 0
    return False


async def test_a_dead_endpoint_among_several_costs_no_call(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        endpoints = ["http://127.0.0.1:1", f"unix://{tmp_path}/nobody", process.endpoint]
        async with EtcdStore(endpoints, clock=CLOCK) as store:
            for n in range(20):
                await put(store, f"k{n}")
            assert len((await store.list("k")).items) == 20
            await kill_and_restart(process)
            await until(lambda: _wrote(store, "again"))


async def test_a_member_that_hangs_holds_no_read_and_no_watch(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as process,
        Proxy(process.endpoint.removeprefix("unix://")) as proxy,
        EtcdStore([f"http://{proxy.address}", process.endpoint], clock=CLOCK) as store,
        EtcdStore([process.endpoint], clock=CLOCK) as other,
    ):
        start = await put(store, "a", b"1")
        taking = asyncio.create_task(take(store, "b", start, 2))
        await put(other, "b", b"1")
        await until(lambda: _has_written(store, "b"))
        proxy.silence()
        assert await store.get("a")
        await put(other, "b", b"2")
        got = await taking
        assert [told(batch.events) for batch in got] == [[("b", b"1")], [("b", b"2")]]


async def _has_written(store: KeyValueStore, key: str) -> bool:
    return await store.get(key) is not None


async def test_a_full_store_refuses_puts_takes_deletes_and_recovers(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quota_bytes=1 << 20) as process,
        EtcdStore([process.endpoint], clock=CLOCK) as store,
    ):
        number = 100

        async def fill() -> None:
            for n in range(number):
                await put(store, f"fill/{n}", b"x" * 100_000)

        with pytest.raises(NoSpace):
            await fill()
        with pytest.raises(NoSpace):
            await store.grant(5)
        assert await store.get("fill/1") is not None
        deletes = tuple(Delete(key=f"fill/{n}") for n in range(number))
        await store.commit(Transaction(success=deletes))
        await store.reclaim()
        await put(store, "fits", b"again")


async def test_of_puts_that_fill_a_store_none_is_there_that_was_told_it_is_not(
    tmp_path: Path,
) -> None:
    outcomes: dict[str, int | BaseException] = {}

    async def fill(store: KeyValueStore) -> None:
        keys = [f"fill/{n}" for n in range(len(outcomes), len(outcomes) + 200)]
        puts = [put(store, key, b"x" * 60_000) for key in keys]
        outcomes.update(zip(keys, await asyncio.gather(*puts, return_exceptions=True), strict=True))

    async with (
        running(tmp_path, quota_bytes=4 << 20) as process,
        EtcdStore([process.endpoint], clock=CLOCK, deadline_s=10) as store,
    ):
        # etcd sees that it is full some time after it was filled.
        while not any(isinstance(outcome, NoSpace) for outcome in outcomes.values()):
            await fill(store)
        there = {item.key for item in (await store.list("fill/")).items}
    surely_not = [
        key
        for key, outcome in outcomes.items()
        if isinstance(outcome, Exception) and not isinstance(outcome, CommitUnknown)
    ]
    assert there.isdisjoint(surely_not)


async def test_a_store_that_went_back_in_time_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        async with EtcdStore([process.endpoint], clock=CLOCK) as store:
            for n in range(10):
                await put(store, f"k{n}")
            highest = store.highest_revision
            await process.stop()
            shutil.rmtree(tmp_path / "etcd" / "data")
            process.start()
            await process.ready()
            with pytest.raises(StoreReplaced):
                await put(store, "a")
            with pytest.raises(StoreReplaced):
                await store.get("k1")
        with pytest.raises(StoreReplaced):
            await EtcdStore([process.endpoint], clock=CLOCK, floor_revision=highest).__aenter__()


async def test_nobody_there_is_said_within_the_deadline(tmp_path: Path) -> None:
    store = EtcdStore([f"unix://{tmp_path}/nobody"], clock=CLOCK, deadline_s=0.3)
    with pytest.raises(StoreUnavailable, match="nobody"):
        await store.__aenter__()


# The child process


async def test_an_own_etcd_is_started_again_and_stopped_with_us(tmp_path: Path) -> None:
    async with EtcdProcess(require_etcd(), tmp_path / "e", clock=CLOCK) as process:
        first = process.pid
        assert first is not None
        async with EtcdStore([process.endpoint], clock=CLOCK) as store:
            await put(store, "a", b"1")
            os.kill(first, signal.SIGKILL)
            await until(lambda: _wrote(store, "b"))
            item = await store.get("a")
            assert item is not None
        second = process.pid
        assert second not in (None, first)
    assert second is not None
    assert not psutil.pid_exists(second)
    assert (tmp_path / "e").stat().st_mode & 0o777 == 0o700


async def test_what_a_killed_parent_left_running_is_ended(tmp_path: Path) -> None:
    leftover = etcd_in(tmp_path / "e")
    leftover.start()
    await leftover.ready()
    async with EtcdProcess(require_etcd(), tmp_path / "e", clock=CLOCK) as process:
        assert leftover.pid is None
        assert process.pid is not None
        assert end_leftover(tmp_path / "e")
        assert process.pid is None
        assert not end_leftover(tmp_path / "e")


async def test_a_long_folder_name_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    async with EtcdProcess(require_etcd(), folder, clock=CLOCK) as process:
        assert (folder / "data").is_dir()
        async with EtcdStore([process.endpoint], clock=CLOCK) as store:
            await put(store, "a")
        sockets = Path(process.endpoint.removeprefix("unix://")).parent
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not sockets.exists()


def test_an_etcd_that_loses_writes_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() is None
    for version, is_sound in (("3.5.1", False), ("3.5.9", True), ("3.4.23", True)):
        program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
        program.chmod(0o755)
        assert (find_etcd() == program) is is_sound


async def test_an_etcd_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "member").write_text("not a folder")
    process = etcd_in(folder)
    process.start()
    try:
        with pytest.raises(StoreUnavailable, match="ended at once"):
            await process.ready()
    finally:
        await process.stop()
