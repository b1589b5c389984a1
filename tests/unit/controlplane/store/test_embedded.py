"""What only the embedded store has: a file, a lock, groups of commits, a virtual clock."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import structlog

from controlplane.store.election import Candidate, Leadership
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import (
    Compacted,
    Delete,
    LeaseLost,
    NoSpace,
    Put,
    StoreCorrupt,
    StoreLocked,
    StoreUnavailable,
    Transaction,
    created_at,
)
from controlplane.store.revisions import MEMORY, connect
from nsml.common.clock import SystemClock, in_thread, inline
from tests.contract.store_engines import put, take, told, until
from tests.simulation import virtual_time

T = TypeVar("T")
CLOCK = SystemClock()


def on_file(path: Path, **settings) -> EmbeddedStore:
    return EmbeddedStore(path, clock=CLOCK, run=settings.pop("run", in_thread), **settings)


def run_program(program: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


def test_each_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    with contextlib.closing(connect(str(tmp_path / "store.db"))) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_the_file_is_private_and_one_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with on_file(path):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(StoreLocked, match="one process"):
            await on_file(path).__aenter__()
        program = (
            "import asyncio, sys\n"
            "from controlplane.store.embedded import EmbeddedStore\n"
            "from controlplane.store.interface import StoreLocked\n"
            "from nsml.common.clock import SystemClock, in_thread\n"
            "store = EmbeddedStore(sys.argv[1], clock=SystemClock(), run=in_thread)\n"
            "try:\n"
            "    asyncio.run(store.__aenter__())\n"
            "except StoreLocked:\n"
            "    sys.exit(7)\n"
        )
        assert run_program(program, path).returncode == 7
    async with on_file(path) as store:
        await put(store, "a")


async def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from controlplane.store.embedded import EmbeddedStore\n"
        "from controlplane.store.interface import Put, Transaction\n"
        "from nsml.common.clock import SystemClock, in_thread\n"
        "async def main():\n"
        "    async with EmbeddedStore(sys.argv[1], clock=SystemClock(), run=in_thread) as store:\n"
        "        for n in range(50):\n"
        "            put = Put(key=f'k{n:02}', value=b'x')\n"
        "            print((await store.commit(Transaction(success=(put,)))).revision, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "store.db"
    killed = run_program(program, path)
    assert killed.returncode == -9
    acknowledged = [int(line) for line in killed.stdout.split()]
    async with on_file(path) as store:
        listing = await store.list("k")
        assert [item.mod_revision for item in listing.items] == acknowledged
        assert listing.revision == acknowledged[-1]


async def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreCorrupt):
        await on_file(garbage).__aenter__()
    assert garbage.read_bytes() == b"not a database" * 100

    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(StoreCorrupt, match="something else"):
        await on_file(foreign).__aenter__()

    later = tmp_path / "later.db"
    async with on_file(later) as store:
        await put(store, "a")
    with sqlite3.connect(later) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreCorrupt, match="format 99"):
        await on_file(later).__aenter__()


async def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with on_file(path) as store:
        for n in range(200):
            await put(store, f"k{n}", b"x" * 500)
    content = bytearray(path.read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        await on_file(path).__aenter__()


OPENS_WITHOUT_ROOM = """
import asyncio, resource, sys
from controlplane.store.embedded import EmbeddedStore
from nsml.common.clock import SystemClock, in_thread

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    async with EmbeddedStore(sys.argv[1], clock=SystemClock(), run=in_thread):
        pass

try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__)
"""


async def test_a_disk_without_room_is_not_called_damage(tmp_path: Path) -> None:
    assert run_program(OPENS_WITHOUT_ROOM, tmp_path / "store.db").stdout == b"StoreUnavailable\n"
    async with on_file(tmp_path / "store.db") as store:
        assert await put(store, "k") == 2


class CountingRun:
    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, work: Callable[[], T], /) -> T:
        self.calls += 1
        return await asyncio.to_thread(work)


async def test_commits_that_arrive_together_share_a_write_and_keep_their_revisions(
    tmp_path: Path,
) -> None:
    run = CountingRun()
    async with on_file(tmp_path / "store.db", run=run) as store:
        revisions = await asyncio.gather(*(put(store, f"k{n}") for n in range(100)))
        assert sorted(revisions) == list(range(2, 102))
        assert run.calls < 10


async def test_a_store_over_its_quota_takes_only_deletes_until_there_is_room() -> None:
    async with EmbeddedStore(MEMORY, clock=CLOCK, run=inline, quota_bytes=500_000) as store:

        async def fill() -> None:
            for _ in range(100):
                await put(store, "same", b"x" * 20_000)

        with pytest.raises(NoSpace):
            await fill()
        await store.commit(Transaction(success=(Delete(key="same"),)))
        with pytest.raises(NoSpace):  # the history still has it all
            await fill()
        await store.reclaim()
        for _ in range(10):
            await put(store, "same", b"x" * 20_000)


async def test_who_stands_for_election_waits_while_the_store_is_full() -> None:
    async with EmbeddedStore(MEMORY, clock=CLOCK, run=inline, quota_bytes=500_000) as store:
        with contextlib.suppress(NoSpace):
            while True:
                await put(store, "filling", b"x" * 20_000)
        candidate = Candidate(member="m", address="here")

        async def lead(leadership: Leadership) -> int:
            async with leadership:
                return leadership.term

        with structlog.testing.capture_logs() as logs:
            leadership = Leadership(store, candidate, clock=CLOCK)
            leading = asyncio.create_task(lead(leadership))
            await until(lambda: _is_logged(logs, "leader.campaign_failed"))
        await store.commit(Transaction(success=(Delete(key="filling"),)))
        await store.reclaim()
        assert await leading


async def _is_logged(logs: Sequence[Mapping[str, object]], event: str) -> bool:
    return any(entry["event"] == event for entry in logs)


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    for store in (EmbeddedStore(MEMORY, clock=CLOCK, run=inline), on_file(tmp_path / "s.db")):
        async with store:
            start = await put(store, "a")
            watching = asyncio.create_task(take(store, "a", start, 2))
            await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            await put(store, "b")
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        with pytest.raises(StoreUnavailable):
            await watching


async def test_leases_have_their_whole_time_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with on_file(path) as store:
        lease = await store.grant(2.0)
        start = await put(store, "l", b"", lease.id)
    async with on_file(path) as store:
        assert await store.get("l") is not None
        await store.keep_alive(lease)
        assert (await store.grant(5)).id != lease.id
        _, ended = await take(store, "l", start, 2)
        assert told(ended.events) == [("l", None)]
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)


def test_hours_of_leases_and_retention_pass_on_a_virtual_clock() -> None:
    async def main() -> None:
        clock = virtual_time.VirtualClock(asyncio.get_running_loop())
        store = EmbeddedStore(MEMORY, clock=clock, run=inline, retention_s=300)
        async with store:
            lease = await store.grant(3600)
            start = await put(store, "l", b"", lease.id)
            await put(store, "later")
            await clock.sleep(3000)
            await store.keep_alive(lease)
            await clock.sleep(3599)
            assert await store.get("l") is not None
            await clock.sleep(2)
            assert await store.get("l") is None
            with pytest.raises(Compacted):
                await take(store, "l", start, 1)
            position = (await store.list("")).revision
            assert told((await take(store, "l", position, 1))[0].events) == [("l", None)]

    virtual_time.run(main())


def test_a_commit_after_a_pause_finds_its_lease_ended() -> None:
    """The clock jumps while nothing runs, as it does for a process that was stopped."""

    class Jumping(SystemClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    async def main() -> None:
        clock = Jumping()
        async with EmbeddedStore(MEMORY, clock=clock, run=inline) as store:
            lease = await store.grant(60)
            made = await put(store, "leader", b"", lease.id)
            clock.ahead_s = 61
            result = await store.commit(
                Transaction(
                    compares=(created_at("leader", made),),
                    success=(Put(key="a", value=b""),),
                )
            )
            assert not result.succeeded
            assert await store.get("a") is None

    asyncio.run(main())
