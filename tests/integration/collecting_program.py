"""A control plane reduced to its object store, with a writer and a collector, that kills itself at a certain moment.

Usage: python -m tests.integration.collecting_program FOLDER SEED MOMENT [--ask]

A moment is a write to the database or the bucket, or a file that is opened for writing, renamed or removed. At moment number
MOMENT the process kills itself (SIGKILL); 0: it runs until nothing is left to collect, and exits with 0. With --ask it stops there
instead, prints "moment", and reads from stdin after how many moments to stop again. The clock belongs to the folder: it advances by
the grace period whenever no content is between the check that it is present and the reference to it.

Database and objects are in the folder, unless a `Servers` record is there. Operations are retried while a server is unavailable.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from controlplane.content.object_gc import Collector
from controlplane.content.observed_clock import ObservedClock
from controlplane.domain.errors import Unavailable
from controlplane.history.postgresql import PostgresHistory, address, database
from controlplane.history.postgresql.dialect import PostgresDialect
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.history.sqlite.database import SqliteDatabase
from controlplane.history.values import Dataset
from controlplane.objects import maintenance
from controlplane.objects.bucket_files import BucketFiles
from controlplane.objects.files import Files
from controlplane.objects.folder_files import open_folder
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from nsml.common.clock import SystemClock, in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build

GRACE_S = 600.0
CONTENTS = 400
"""Different files; those of a tree are some of them."""
NAMES = 12
OWNER = "kim"
T = TypeVar("T")


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Servers with the database and the objects of a folder.

    Attributes:
        keys: environment variables with the keys of the bucket.
        term: the term of the last leader that wrote to the database.
    """

    history: str
    objects: str
    endpoint: str
    keys: dict[str, str]
    term: int = 1

    def write(self, folder: Path) -> None:
        """Write the record: later runs in this folder use the servers."""
        (folder / "servers.json").write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> "Servers | None":
        """Return the servers of a folder; None: its own files."""
        file = folder / "servers.json"
        return msgspec.json.decode(file.read_bytes(), type=cls) if file.exists() else None


def content(number: int) -> bytes:
    """The bytes of a file; some are as large as chunks are at most."""
    chance = random.Random(number)
    return chance.randbytes(chance.choice([10, 3_000, 60_000, 300_000 if number % 20 else 1 << 20]))


def tree(seed: int) -> tuple[str, dict[str, bytes]]:
    """A manifest's digest, and it with all that it lists, by digest."""
    contents = [content(one) for one in random.Random(seed).sample(range(CONTENTS), 25)]
    refs = [ChunkRef(digest_of(one), len(one)) for one in contents]
    entries = [
        Entry(path=f"f{at}", mode=0o644, size=ref.size, chunks=(ref,))
        for at, ref in enumerate(refs)
    ]
    manifest = build(entries).encode()
    root = digest_of(manifest)
    return root, {root: manifest, **{digest_of(one): one for one in contents}}


class FolderClock(SystemClock):
    """The machine's clock, and how far this folder's is ahead of it."""

    def __init__(self, folder: Path) -> None:
        self._ahead = folder / "ahead"
        self._ahead_s = float(self._ahead.read_text()) if self._ahead.exists() else 0.0

    def time(self) -> float:
        """See Clock."""
        return super().time() + self._ahead_s

    def monotonic(self) -> float:
        """See Clock."""
        return super().monotonic() + self._ahead_s

    @property
    def ahead_s(self) -> float:
        """How far it is ahead of the machine's clock, in seconds."""
        return self._ahead_s

    def advance(self, by_s: float) -> None:
        """Have it so much further ahead, also for who opens the folder next."""
        self._ahead_s += by_s
        fresh = self._ahead.with_suffix(".new")
        fresh.write_text(str(self._ahead_s))
        fresh.rename(self._ahead)


class _AheadDialect(PostgresDialect):
    """The server's clock, advanced like the folder's."""

    def __init__(self, clock: FolderClock) -> None:
        self._clock = clock

    @property
    def now(self) -> str:  # type: ignore[override]
        """See Dialect."""
        return f"{PostgresDialect.now} + {self._clock.ahead_s}"


class World:
    """What is in the folder, opened."""

    def __init__(
        self, clock: FolderClock, history: History, objects: PackedObjects, term: int
    ) -> None:
        self.clock = clock
        self.history = history
        self.objects = objects
        state: Any = SimpleNamespace(sessions={}, allocations={})
        self.collector = Collector(
            objects=objects,
            history=history,
            state=state,
            observed=ObservedClock(objects=objects, history=history, clock=clock, grace_s=GRACE_S),
            may=lambda: True,
            term=lambda: term,
            run=in_thread,
        )
        self._referring = asyncio.Lock()

    async def refer(self, name: str, seed: int) -> None:
        """Send a tree and make it the newest version of a dataset, whose message says which."""
        _, blobs = tree(seed)
        absent = await self.objects.has_missing(blobs)
        await self.objects.put_many({digest: blobs[digest] for digest in absent})
        async with self._referring:
            # As the service does: what was put aside meanwhile is sent again.
            for _ in range(100):
                absent = await self.objects.has_missing(blobs)
                if not absent:
                    break
                await self.objects.put_many({digest: blobs[digest] for digest in absent})
            else:
                raise AssertionError("what was put goes missing over and over")
            await self.note(name, seed)

    async def note(self, name: str, seed: int) -> None:
        """Make a tree the newest version of a dataset."""
        root, blobs = tree(seed)
        await self.history.catalogue.put_dataset_version(
            Dataset(owner=OWNER, name=name, created_at=self.clock.time()),
            digest=root,
            size_bytes=sum(map(len, blobs.values())),
            file_count=len(blobs) - 1,
            message=str(seed),
        )

    async def collect(self) -> bool:
        """A look a grace later, with all else that a store needs now and then; whether anything is left to do."""
        async with self._referring:
            self.clock.advance(GRACE_S + 1)
        done = await self.collector.look()
        await self.objects.maintain(lambda: True)
        purged = await self.history.catalogue.purge_datasets(self.clock.time())
        return bool(done.put_aside or done.aside or done.removed or purged)


async def open_world(folder: Path) -> World:
    """Open it as a control plane does at its start."""
    clock, servers = FolderClock(folder), Servers.read(folder)
    history, files = await _opened(folder, clock, servers)
    objects = PackedObjects(files, history.packs)
    await objects.mark("c1/x")
    await objects.prepare()
    return World(clock, history, objects, servers.term if servers else 1)


async def _opened(
    folder: Path, clock: FolderClock, servers: Servers | None
) -> tuple[History, Files]:
    if servers is None:
        history = await open_history(folder / "history.db", clock=clock, run=in_thread)
        return history, open_folder(folder / "objects", in_thread)
    kept = await database.open_database(address.read_address(servers.history))
    kept.dialect = _AheadDialect(clock)
    service = BucketService(endpoint=servers.endpoint)
    files = open_shared(servers.objects, in_thread, service=service, environment=servers.keys)
    return PostgresHistory(kept, clock), files


def say(*words: str) -> None:
    """Tell the test, at once."""
    os.write(1, (" ".join(words) + "\n").encode())


def die() -> int:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it was killed")


def ask() -> int:
    """Stop until the test sends the number of moments until the next call."""
    say("moment")
    return int(sys.stdin.readline())


def at_moment(moment: int, act: Callable[[], int]) -> None:
    """Call `act` at a moment from now on; it returns the number of moments until the next call."""
    left = moment

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            left = act()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_written or event in {"os.rename", "os.remove", "os.link"}:
            count()

    sys.addaudithook(audit)
    for kind, name in (
        (SqliteDatabase, "write"),
        (database.PostgresDatabase, "write"),
        (BucketFiles, "put"),
        (BucketFiles, "remove"),
    ):
        setattr(kind, name, _counting(getattr(kind, name), count))


def _counting(
    done: Callable[..., Awaitable[Any]], count: Callable[[], None]
) -> Callable[..., Awaitable[Any]]:
    """Add a moment before a method and one after it."""

    async def counted(*arguments: Any, **options: Any) -> Any:
        count()
        found = await done(*arguments, **options)
        count()
        return found

    return counted


async def retried(call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call while a server is unavailable."""
    while True:
        try:
            return await call()
        except Unavailable:
            say("refused")
            await asyncio.sleep(0.05)


async def change(world: World, chance: random.Random) -> None:
    """Versions come and go, for ever."""
    while True:
        name, seed = f"d{chance.randrange(NAMES)}", chance.randrange(1_000)
        if chance.random() < 0.6:
            await retried(partial(world.refer, name, seed))
            say("made", name, str(seed))
        else:
            say("removing", name)
            remove = partial(world.history.catalogue.remove_dataset, OWNER, name)
            await retried(partial(remove, at=world.clock.time()))
        # Else nearly all moments are the writer's, and few fall into a look.
        await asyncio.sleep(0.05)


async def collect(world: World) -> None:
    """Look and look again, for ever."""
    while True:
        await retried(world.collect)
        say("collected")


async def main() -> None:
    """See above."""
    folder, seed, moment = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if moment:
        asks = "--ask" in sys.argv
        if not asks:
            at_moment(moment, die)
        world = await open_world(folder)
        if asks:  # opening is not retried: no server is killed before
            at_moment(moment, ask)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change(world, random.Random(seed)))
            tasks.create_task(collect(world))
    # A pack that the index does not know may be another process's for an hour; here is no other.
    maintenance.ADOPT_AFTER_S = 0.0  # type: ignore[misc]
    world = await open_world(folder)
    idle = 0
    # Small packs are copied together once they are old; what is left of them is removed once that is.
    while idle < 4 + 2 * maintenance.EMPTY_S // GRACE_S:
        idle = 0 if await world.collect() else idle + 1
    await world.history.close()


if __name__ == "__main__":
    asyncio.run(main())
