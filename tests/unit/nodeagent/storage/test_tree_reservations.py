"""Trees on a small disk: what would fill it is not begun, and what nobody uses goes for what comes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.replica.assignments import BUNDLE, DATASET, keep_assignment, used_things
from nodeagent.storage.cached_content import Stock
from nodeagent.storage.datasets import Trees
from nodeagent.storage.eviction import KeepFree, NoRoom, Store, relieve
from nodeagent.storage.reservations import Room, disk_of
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import agents_pb2, sessions_pb2
from tests.support import disks
from tests.support.scripted_platform import ScriptedPlatform, session_id

T = TypeVar("T")

MIB = 1 << 20
CHUNK = 256 << 10
REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MiB and 1,000 files."""
    with disks.small_disk(tmp_path / "disk", "size=16m,nr_inodes=1000") as place:
        yield place


class Node:
    """Datasets and bundles of one node, and a platform that has them."""

    def __init__(self, data: Path, rpc: Rpc, platform: ScriptedPlatform) -> None:
        self.data = data
        self.platform = platform
        self.used: set[str] = set()
        self.stock = Stock()
        self._rpc = rpc
        self.start()

    def start(self, *, share: float = 0.0, run: Any = in_thread) -> None:
        """An agent's part in it, or its successor's."""
        room = Room(
            self.data, run=run, run_long=in_thread, share=share, uses=lambda: frozenset(self.used)
        )
        shared: dict[str, Any] = {
            "rpc": lambda: self._rpc,
            "run": run,
            "pause": _pause,
            "room": room,
        }
        self.datasets = Trees(self.data / "datasets", stock=self.stock, kind=DATASET, **shared)
        self.bundles = Trees(self.data / "bundles", boot="one", kind=BUNDLE, **shared)
        for trees in (self.datasets, self.bundles):
            trees.create()

    def offer(self, chunk: bytes, times: int, *, empty: int = 0) -> str:
        """Let the platform have a file of one chunk so many times over, and empty files; its digest."""
        name = digest_of(chunk)
        refs = (ChunkRef(name, len(chunk)),) * times
        entries = [Entry(path=f"empty/{n}", mode=0o644, size=0, chunks=()) for n in range(empty)]
        entries.append(Entry(path="file", mode=0o644, size=len(chunk) * times, chunks=refs))
        manifest = build(entries)
        self.platform.blobs |= {name: chunk, manifest.digest: manifest.encode()}
        return manifest.digest

    def offer_many(self, count: int, times: int) -> list[str]:
        """Different ones of so many chunks."""
        return [self.offer(bytes([n + 1]) * CHUNK, times) for n in range(count)]

    @property
    def left(self) -> set[str]:
        """Everything below the folder of datasets, but for notes."""
        return {path.name for path in (self.data / "datasets").iterdir() if not path.suffix}

    @property
    def is_whole(self) -> bool:
        """Whether others still find on the disk what is kept for them."""
        disk = disk_of(self.data, 0)
        return disk.keep <= disk.free


@pytest.fixture
async def node(disk: Path) -> AsyncIterator[Node]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Node(disk, Rpc(channel), platform)
    await server.stop(None)


async def _pause() -> None:
    await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""
    async with asyncio.timeout(60):
        while not await in_thread(holds):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_a_manifest_that_repeats_a_chunk_counts_for_all_that_it_lays_out(node: Node) -> None:
    bomb = node.offer(bytes(CHUNK), 200)
    for trees in (node.datasets, node.bundles):
        with pytest.raises(NoRoom, match=r"no room for 52\.4 MB") as refused:
            await trees.get(bomb)
        assert refused.value.errno == errno.ENOSPC
    with pytest.raises(NoRoom):
        await node.datasets.fetch(bomb, node.data / "checkpoint")
    assert set(node.platform.asked_for) == {bomb}  # nothing of it was fetched
    assert node.left == set()
    assert not (node.data / "checkpoint").exists()
    small = node.offer(bytes(CHUNK), 20)
    tree = await node.datasets.get(small)
    assert (tree / "file").stat().st_size == 20 * CHUNK
    # what follows itself comes once
    assert node.platform.asked_for.count(digest_of(bytes(CHUNK))) == 1


async def test_files_without_content_take_room_too(node: Node) -> None:
    with pytest.raises(NoRoom, match="no room for 1,202 files"):
        await node.datasets.get(node.offer(b"x", 1, empty=1_200))
    assert node.left == set()
    tree = await node.datasets.get(node.offer(b"x", 1, empty=700))
    assert len(list((tree / "empty").iterdir())) == 700


async def test_fetches_at_once_leave_others_their_room(node: Node) -> None:
    wanted = node.offer_many(8, times=16)  # of 4 MiB each
    node.used = {f"{DATASET} {digest}" for digest in wanted}
    ended = await asyncio.gather(*map(node.datasets.get, wanted), return_exceptions=True)
    got = [one for one in ended if isinstance(one, Path)]
    assert 1 <= len(got) <= 3
    assert all(isinstance(one, Path | NoRoom) for one in ended)
    assert node.is_whole
    assert node.left == {tree.name for tree in got}


async def test_what_nobody_uses_goes_for_what_comes(node: Node) -> None:
    """The least recently used first; also what an earlier agent fetched."""
    first, second, third, fourth, fifth = node.offer_many(5, times=16)
    for digest in (first, second, third):
        await node.datasets.get(digest)
    await node.datasets.get(first)
    await node.datasets.get(fourth)
    assert node.left == {first, third, fourth}
    node.start()
    node.used = {f"{DATASET} {third}"}
    await node.bundles.get(fifth)
    assert node.left == {third, fourth}
    assert {thing.dataset_digest for thing in node.stock.message.things} == {third, fourth, first}
    node.used |= {f"{DATASET} {fourth}", f"{BUNDLE} {fifth}"}
    with pytest.raises(NoRoom):
        await node.datasets.get(second)
    assert node.left == {third, fourth}
    assert node.is_whole


async def test_one_users_trees_take_their_share_and_no_more(node: Node) -> None:
    first, second, third, fourth = node.offer_many(4, times=20)  # of 5 MiB each, in 16
    small = node.offer(b"s", 1)
    await node.bundles.get(small, "joe")  # who is on the node, too
    await node.datasets.get(first, "kim")
    node.start(share=0.5)
    node.used = {f"{BUNDLE} {small}"}
    await node.datasets.get(second, "kim")  # for which the first goes
    assert node.left == {second}
    node.used.add(f"{DATASET} {second}")
    with pytest.raises(NoRoom, match=r"may take .* of this node") as refused:
        await node.bundles.get(third, "kim")
    assert refused.value.is_of_user
    await node.datasets.get(second, "lee")  # is here already
    node.start(share=0.5)
    for who in ("kim", "lee"):
        with pytest.raises(NoRoom, match="may take"):
            await node.datasets.get(third, who)
    await node.datasets.get(third, "ann")
    node.used.add(f"{DATASET} {third}")
    with pytest.raises(NoRoom, match="may take"):
        await node.datasets.fetch(fourth, node.data / "checkpoint", "ann")
    assert node.left == {second, third}


async def test_the_share_of_one_user_says_nothing_of_anothers(node: Node) -> None:
    """They wait for the same fetch."""
    first, second = node.offer_many(2, times=20)
    node.start(share=0.5)
    node.used = {f"{DATASET} {first}"}
    await node.datasets.get(first, "kim")
    ended = await asyncio.gather(
        node.datasets.get(second, "kim"), node.datasets.get(second, "lee"), return_exceptions=True
    )
    assert isinstance(ended[1], Path)


async def test_the_disk_is_looked_at_while_it_is_written(node: Node) -> None:
    """Sessions may fill it meanwhile."""

    async def run(work: Callable[[], T], /) -> T:
        if list((node.data / "datasets").glob(".*.unfinished")):
            (node.data / "filler").write_bytes(bytes(12 * MIB))
        return await in_thread(work)

    (wanted,) = node.offer_many(1, times=16)
    node.start(run=run)
    with pytest.raises(NoRoom, match="ran full"):
        await node.datasets.get(wanted)
    assert node.left == set()
    (node.data / "filler").unlink()
    node.start()
    await node.datasets.get(wanted)


async def test_whoever_gives_up_waits_for_nothing_and_nothing_is_left(node: Node) -> None:
    is_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def run(work: Callable[[], T], /) -> T:
        if list((node.data / "datasets").glob(".*.unfinished")):
            is_begun.set()
            await may_go_on.wait()
        return await in_thread(work)

    wanted = node.offer(b"x", 1, empty=700)
    node.start(run=run)
    one, other = (asyncio.ensure_future(node.datasets.get(wanted)) for _ in range(2))
    await is_begun.wait()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    may_go_on.set()
    await until(lambda: not list((node.data / "datasets").iterdir()))
    node.start()
    assert len(list((await node.datasets.get(wanted)).rglob("*"))) == 702


async def test_who_waits_beside_one_who_gives_up_gets_it(node: Node) -> None:
    (wanted,) = node.offer_many(1, times=4)
    one, other = (asyncio.ensure_future(node.datasets.get(wanted)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert await other == node.data / "datasets" / wanted
    assert node.platform.asked_for.count(wanted) == 1


async def test_relief_takes_what_no_replica_has_been_assigned(node: Node) -> None:
    folders = ReplicaFolders(node.data / "replicas")
    folders.create()
    one, other, code = node.offer_many(3, times=4)
    for digest in (one, other):
        await node.datasets.get(digest)
    await node.bundles.get(code)
    named = sessions_pb2.DatasetReference(name="kim/one", digest=one)
    spec = sessions_pb2.SessionSpec(datasets=[named], bundle_digest=code)
    keep_assignment(folders.of(REPLICA), agents_pb2.Assignment(spec=spec))
    stores = [
        Store(kind=kind, cache=trees.cache, place=node.data)
        for kind, trees in ((DATASET, node.datasets), (BUNDLE, node.bundles))
    ]
    everything = KeepFree(share=1.0, bytes=1 << 60)
    await in_thread(partial(relieve, stores, everything, partial(used_things, folders)))
    node.datasets.tell_removed()
    assert node.left == {one}
    assert list(node.bundles.cache.stored()) == [code]
    assert [thing.dataset_digest for thing in node.stock.message.things] == [one]
    folders.of(REPLICA).remove()
    await in_thread(partial(relieve, stores, everything, partial(used_things, folders)))
    assert list((node.data / "datasets").iterdir()) == []
    assert list((node.data / "bundles" / "one").iterdir()) == []
    await node.datasets.get(one)
