"""Each of the parts that keep files, on a small disk that is full, and has room again."""

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.health import LEAST_FREE_BYTES, Health
from controlplane.domain.conditions import ConditionName
from controlplane.history.errors import HistoryFull
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.objects.errors import ObjectsFull, ObjectsUnavailable
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import DiskFull, Put, Transaction
from nsml.common.clock import SystemClock, in_own_thread, in_thread, inline
from nsml.content.digests import digest_of
from tests.support import disks
from tests.support.memory_objects import MemoryObjects
from tests.support.packed_objects import folder_objects, shared_objects

CLOCK = SystemClock()
LOG = StreamKey("s1", 1, 0, Channel.LOG)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    with disks.small_disk(tmp_path / "disk", "size=6m,mode=700") as place:
        yield place


def fill(disk: Path) -> Callable[[], None]:
    """Take all of a disk; what gives it back."""
    junk = disk / "junk"
    with junk.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(os.urandom(size))
            except OSError:
                size //= 2
    return junk.unlink


def leave_little(disk: Path) -> None:
    """Take all of a disk but so much that a few bytes can be written, and no more."""
    fill(disk)
    junk = disk / "junk"
    os.truncate(junk, junk.stat().st_size - 200_000)


def give_room(disk: Path) -> None:
    """Make it ten times as large."""
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)


@asynccontextmanager
async def health(**parts: Any) -> AsyncIterator[Health]:
    """The parts that are given, observed, and others in memory."""
    async with EmbeddedStore(":memory:", clock=CLOCK, run=inline) as memory:
        history = await open_history(":memory:", clock=CLOCK, run=inline)
        made = {"store": memory, "history": history, "objects": MemoryObjects(CLOCK)}
        yield Health(**{"disks": {}, "folders": {}, **made, **parts}, clock=CLOCK)
        await history.close()


def full(health: Health) -> list[str]:
    standing = health.conditions.standing()
    assert all(one.name is ConditionName.DISK_FULL for one in standing), standing
    return [one.subject for one in standing]


async def ask(health: Health, name: str) -> Exception | None:
    """Do what the probing loop does for a part that failed to write."""
    [part] = [one for one in health.parts() if one.name == name]
    assert part.gauge.fails_writing
    try:
        await part.write()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    return None


async def test_a_history_on_a_full_disk_is_read_and_written_again_once_there_is_room(
    disk: Path,
) -> None:
    history = await open_history(disk / "history.db", clock=CLOCK, run=in_thread)
    async with health(history=history) as observed:
        streams = observed.history.streams
        await streams.append([Chunk(stream=LOG, first=0, last=5, data=b"before")])
        empty = fill(disk)
        with pytest.raises(HistoryFull):
            await streams.append(
                [Chunk(stream=LOG, first=6, last=200_005, data=os.urandom(200_000))]
            )
        assert full(observed) == ["history"]
        assert (await streams.read_log("s1")).data == b"before"
        assert isinstance(await ask(observed, "history"), HistoryFull)
        assert full(observed) == ["history"]
        empty()
        assert await ask(observed, "history") is None
        assert full(observed) == []
        await streams.append([Chunk(stream=LOG, first=6, last=10, data=b"after")])
        assert (await streams.read_log("s1")).data == b"beforeafter"
    await history.close()


async def test_objects_on_a_full_disk_are_read_and_written_again_once_there_is_room(
    disk: Path,
) -> None:
    objects = folder_objects(disk / "objects", in_thread)
    async with health(objects=objects) as observed:
        kept, more = os.urandom(1000), os.urandom(100_000)
        await observed.objects.put(digest_of(kept), kept)
        empty = fill(disk)
        with pytest.raises(ObjectsFull):
            await observed.objects.put(digest_of(more), more)
        assert full(observed) == ["objects"]
        assert await observed.objects.get(digest_of(kept)) == kept
        assert isinstance(await ask(observed, "objects"), ObjectsFull)
        empty()
        assert await ask(observed, "objects") is None
        assert full(observed) == []
        await observed.objects.put(digest_of(more), more)


Writes = Callable[[Health, bytes], Awaitable[object]]


@asynccontextmanager
async def on_disk(part: str, disk: Path) -> AsyncIterator[tuple[Any, Writes]]:
    """A part whose files are on this disk, and what writes bytes to it."""
    if part == "objects":
        yield (
            folder_objects(disk / "objects", in_thread),
            lambda of, data: of.objects.put(digest_of(data), data),
        )
    elif part == "store":
        async with EmbeddedStore(disk / "store.db", clock=CLOCK, run=in_thread) as store:
            yield store, lambda of, data: of.store.commit(_put("a", data))
    else:
        history = await open_history(disk / "history.db", clock=CLOCK, run=in_thread)
        ends = count()

        def append(of: Health, data: bytes) -> Awaitable[object]:
            stream = StreamKey(f"s{next(ends)}", 1, 0, Channel.LOG)
            chunk = Chunk(stream=stream, first=0, last=len(data) - 1, data=data)
            return of.history.streams.append([chunk])

        yield history, append
        await history.close()


@pytest.mark.parametrize("part", ["store", "history", "objects"])
async def test_a_disk_stays_full_while_only_a_little_can_be_written(disk: Path, part: str) -> None:
    """A small write that finds the last room does not hide that others find none."""
    async with (
        on_disk(part, disk) as (given, write),
        health(**{part: given}, folders={part: disk}) as observed,
    ):
        await write(observed, os.urandom(10))
        leave_little(disk)
        for _ in range(3):
            with pytest.raises((ObjectsFull, HistoryFull, DiskFull)):
                await write(observed, os.urandom(400_000))
            assert full(observed) == [part]
            await write(observed, os.urandom(10))
            assert full(observed) == [part]
            assert await ask(observed, part) is None
            assert full(observed) == [part]
            [condition] = observed.conditions.standing()
            assert "bytes are free" in condition.evidence
        give_room(disk)
        assert await ask(observed, part) is None
        assert full(observed) == []
        await write(observed, os.urandom(400_000))


class Mounted:
    """A folder that is mounted at a place."""

    def __init__(self, folder: Path) -> None:
        self._real, self.place = folder / "real", folder / "place"
        self._real.mkdir()
        self.place.mkdir()

    def mount(self) -> bool:
        """Whether that is allowed here."""
        mount = ["mount", "--bind", str(self._real), str(self.place)]
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def unmount(self) -> None:
        """Refused by the system while anybody has a file of it open."""
        subprocess.run(["umount", str(self.place)], check=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    made = Mounted(tmp_path)
    if not made.mount():
        pytest.skip("file systems cannot be mounted here")
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", str(made.place)], capture_output=True, check=False)


async def test_a_folder_of_objects_that_is_unmounted_is_told_of_until_it_is_back(
    mounted: Mounted,
) -> None:
    url = mounted.place.as_uri()
    objects = shared_objects(url, in_own_thread)
    await objects.mark("c1/x")
    kept = os.urandom(1000)
    async with health(objects=objects) as observed:
        [part] = [one for one in observed.parts() if one.name == "objects"]
        await observed.objects.put(digest_of(kept), kept)
        assert await part.read()
        assert observed.conditions.standing() == ()
        mounted.unmount()
        for call in (part.read, part.write):
            with pytest.raises(ObjectsUnavailable):
                await call()
        [condition] = observed.conditions.standing()
        assert condition.name is ConditionName.OBJECTS_GONE
        assert list(mounted.place.iterdir()) == []
        mounted.mount()
        assert await ask(observed, "objects") is None
        assert await part.read() == set()
        assert observed.conditions.standing() == ()
        assert await observed.objects.get(digest_of(kept)) == kept


async def test_a_store_on_a_full_disk_is_read_and_written_again_once_there_is_room(
    disk: Path,
) -> None:
    async with (
        EmbeddedStore(disk / "store.db", clock=CLOCK, run=in_thread) as store,
        health(store=store) as observed,
    ):
        await observed.store.commit(_put("a", b"kept"))
        empty = fill(disk)
        with pytest.raises(DiskFull):
            await observed.store.commit(_put("b", os.urandom(200_000)))
        assert full(observed) == ["store"]
        item = await observed.store.get("a")
        assert item is not None
        assert item.value == b"kept"
        assert await observed.store.get("b") is None
        empty()
        assert await ask(observed, "store") is None
        assert full(observed) == []
        await observed.store.commit(_put("b", os.urandom(200_000)))


async def test_the_disk_of_an_etcd_of_our_own_is_looked_at(disk: Path) -> None:
    async with health(disks={"store": disk}) as observed:
        observed.look_at_disks()
        assert full(observed) == ["store"], f"less than {LEAST_FREE_BYTES} bytes are free"
        give_room(disk)
        observed.look_at_disks()
        assert full(observed) == []


def _put(key: str, value: bytes) -> Transaction:
    return Transaction(success=(Put(key=key, value=value),))
