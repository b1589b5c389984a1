"""The engines that the store's contract is tried on, each with its own way of failing."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.store.embedded import EmbeddedStore
from controlplane.store.etcd import EtcdStore
from controlplane.store.interface import (
    MAX_OPERATIONS,
    Delete,
    Event,
    KeyValueStore,
    Put,
    Transaction,
    WatchBatch,
)
from controlplane.store.revision_offset import ContinuedStore
from controlplane.store.revisions import MEMORY
from nsml.common.clock import SystemClock, inline
from tests.support.etcd import etcd_in, pause

T = TypeVar("T")
CLOCK = SystemClock()


@dataclass(frozen=True)
class Engine:
    """`open` gives a store on the same data each time, but for "memory"."""

    name: str
    open: Callable[..., AbstractAsyncContextManager[KeyValueStore]]
    ttl_s: float = 2.0
    """A lease that ends soon, and that a busy machine with a busy disk renews in time."""


@dataclass(frozen=True)
class FreezingEngine(Engine):
    """One whose disk or server can be stopped in its tracks."""

    freeze: Callable[[], None] = lambda: None
    thaw: Callable[[], None] = lambda: None


@pytest.fixture(
    params=[
        # The store of "file", which leaves out threads and the disk.
        pytest.param("memory", marks=pytest.mark.variant),
        "file",
        pytest.param("continued", marks=pytest.mark.variant),
        "etcd",
    ]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "memory":
        yield Engine("memory", lambda **kw: EmbeddedStore(MEMORY, clock=CLOCK, run=inline, **kw))
    elif request.param == "continued":
        yield Engine("continued", lambda **kw: continued(tmp_path / "store.db", **kw))
    elif request.param == "file":
        yield Engine("file", lambda **kw: embedded_file(tmp_path / "store.db", **kw))
    else:
        server = request.getfixturevalue("etcd_server")
        root = f"test-{uuid.uuid4().hex}/"

        def opened(**settings: Any) -> EtcdStore:
            settings = {"deadline_s": 60.0, **settings}  # a busy disk may hold up any write
            return EtcdStore([server.endpoint], clock=CLOCK, root=root, **settings)

        async def emptied() -> None:
            """Keys of leases that end later would be revisions amid those that the next test counts."""
            async with opened() as store:
                every = [
                    Delete(key=one.key) for one in (await store.list("", keys_only=True)).items
                ]
                for start in range(0, len(every), MAX_OPERATIONS):
                    some = tuple(every[start : start + MAX_OPERATIONS])
                    await store.commit(Transaction(success=some))

        yield Engine("etcd", opened)
        asyncio.run(emptied())


def embedded_file(path: Path, run: Any = None, **settings: Any) -> EmbeddedStore:
    return EmbeddedStore(path, clock=CLOCK, run=run or asyncio_thread, **settings)


@asynccontextmanager
async def continued(path: Path, **settings: Any) -> AsyncIterator[KeyValueStore]:
    """A store that was restored: its numbers go on where those of the one before it may have ended."""
    async with embedded_file(path, **settings) as store:
        yield ContinuedStore(store, 1 << 40)


async def asyncio_thread(work: Callable[[], T], /) -> T:
    return await asyncio.to_thread(work)


class Gate:
    """An offload whose work waits while the gate is closed: a disk that hangs."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.close = self._open.clear
        self.open = self._open.set

    async def __call__(self, work: Callable[[], T], /) -> T:
        await self._open.wait()
        return await asyncio.to_thread(work)


@asynccontextmanager
async def freezing_engine(name: str, folder: Path) -> AsyncIterator[FreezingEngine]:
    if name == "file":
        gate = Gate()
        path = folder / "store.db"
        yield FreezingEngine(
            "file",
            lambda **kw: embedded_file(path, run=gate, **kw),
            freeze=gate.close,
            thaw=gate.open,
        )
        return
    process = etcd_in(folder / "etcd")
    process.start()
    try:
        await process.ready()
        pid = process.pid
        assert pid is not None
        yield FreezingEngine(
            "etcd",
            lambda **kw: EtcdStore([process.endpoint], clock=CLOCK, **kw),
            freeze=lambda: pause(pid),
            thaw=lambda: os.kill(pid, signal.SIGCONT),
        )
    finally:
        await process.stop()


async def put(store: KeyValueStore, key: str, value: bytes = b"", lease: int | None = None) -> int:
    """Write one key, whatever was there; returns the revision."""
    write = Put(key=key, value=value, lease=lease)
    return (await store.commit(Transaction(success=(write,)))).revision


async def take(store: KeyValueStore, prefix: str, start: int, count: int) -> list[WatchBatch]:
    """The first `count` batches with events of a watch."""
    found: list[WatchBatch] = []
    async with asyncio.timeout(60), aclosing(store.watch(prefix, start)) as batches:
        async for batch in batches:
            if batch.events:
                found.append(batch)
            if len(found) == count:
                return found
    raise AssertionError("the watch ended")


def told(events: tuple[Event, ...]) -> list[tuple[str, bytes | None]]:
    return [(e.key, None if e.item is None else e.item.value) for e in events]


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not await condition():  # noqa: ASYNC110 - the condition is in a server
            await asyncio.sleep(0.02)
