"""Orders to repair: what is sent is what was asked for and is right, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.repair_orders import MOST_WAITING, WANTED_FOR_S, RepairOrders
from nodeagent.storage.datasets import Trees
from nodeagent.streaming.chunk_cache import ChunkCache
from nsml.client.rpc import Rpc
from nsml.common.clock import SystemClock, in_thread
from nsml.content.packing import Packed, pack
from nsml.v1 import agents_pb2 as pb
from tests.support.scripted_platform import ScriptedPlatform

SESSION = "s" + "a" * 16


@pytest.fixture
async def rpc(tmp_path: Path) -> AsyncIterator[tuple[Rpc, ScriptedPlatform]]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Rpc(channel), platform
    await server.stop(None)


async def pause() -> None:
    await asyncio.sleep(0.01)


class Desk:
    """Orders to a node with one dataset version, all of which the platform has lost."""

    def __init__(self, connection: Rpc, platform: ScriptedPlatform, folder: Path) -> None:
        self.platform = platform
        self.clock = SystemClock()
        self.trees = Trees(folder / "datasets", rpc=lambda: connection, run=in_thread, pause=pause)
        self.trees.create()
        self.folders = ReplicaFolders(folder / "replicas")
        self.folders.create()
        self.chunks = ChunkCache(folder / "chunks", kind="chunks", most_bytes=1 << 20)
        self.chunks.create()
        self.answered = asyncio.Event()
        self.orders = RepairOrders(
            [self.trees.cache],
            self.folders,
            self.chunks,
            rpc=lambda: connection,
            answered=self.answered.set,
            clock=self.clock,
            run_long=in_thread,
        )

    async def ask(self, root: str, *digests: str, **checkpoint: str) -> pb.RepairReport:
        order = pb.RepairOrder(order_id="o", root=root, digests=digests, **checkpoint)
        if checkpoint:
            order.replica.session_id, order.replica.attempt = SESSION, 1
        self.answered.clear()
        self.orders.obey(order)
        await self.answered.wait()
        [report] = self.orders.take_answers()
        return report


def made(folder: Path) -> Packed:
    for name in "abc":
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode() * 5_000)
    return pack(folder)


async def test_what_was_asked_for_is_sent_if_it_is_right(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    packed = made(tmp_path / "pushed")
    root, desk = packed.manifest.root.digest, Desk(connection, platform, tmp_path)
    chunk = {entry.path: entry.chunks[0].digest for entry in packed.manifest.entries}
    for digest in chunk.values():
        platform.blobs[digest] = packed.source.read(digest)
    platform.blobs[root] = packed.manifest.encode()
    tree = await desk.trees.get(root)
    had = dict(platform.blobs)
    platform.blobs.clear()
    async with desk.orders:
        assert (await desk.ask(root, root, chunk["a"], "00" * 32, "../x")).sent == 2
        assert platform.blobs == {one: had[one] for one in (root, chunk["a"])}
        (tree / "b").chmod(0o600)
        (tree / "b").write_bytes(b"x" * 5_000)
        report = await desk.ask(root, chunk["b"], chunk["c"])
        assert (report.sent, report.words) == (1, "")
        assert chunk["b"] not in platform.blobs
        report = await desk.ask("ab" * 32, chunk["b"])
        assert (report.sent, report.words) == (0, "it has nothing of that")
    assert not [one for one in desk.trees.cache.kept() if one.is_used]


async def test_a_checkpoint_is_sent_if_its_files_are_still_those(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    desk = Desk(connection, platform, tmp_path)
    replica = desk.folders.of(ReplicaId(session_id=SESSION, attempt=1, rank=0))
    replica.create()
    saved = replica.run / "checkpoints" / "1-best"
    saved.parent.mkdir(exist_ok=True)
    packed = made(saved)
    root, (chunk, *_) = packed.manifest.root.digest, sorted(packed.manifest.blobs())
    async with desk.orders:
        assert (await desk.ask(root, chunk, root, folder="1-best")).sent == 2
        assert set(platform.blobs) == {chunk, root}
        platform.blobs.clear()
        (saved / "a").write_bytes(b"trained on")
        report = await desk.ask(root, chunk, folder="1-best")
        assert (report.sent, report.words) == (0, "its files are other ones now")
        for folder in ("../..", "/etc", "none"):
            assert (await desk.ask(root, chunk, folder=folder)).sent == 0
    assert platform.blobs == {}


async def test_chunks_of_a_streamed_dataset_are_sent_if_they_are_right(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    desk = Desk(*rpc, tmp_path)
    packed = made(tmp_path / "pushed")
    root = packed.manifest.root.digest
    first, second, absent = packed.manifest.blobs()
    for digest in (first, second):
        desk.chunks.add(digest, packed.source.read(digest))
    (tmp_path / "chunks" / second[:2] / second).write_bytes(b"damaged")
    async with desk.orders:
        report = await desk.ask(root, first, second, absent, root)
        assert (report.sent, report.words) == (1, "")
        assert desk.platform.blobs == {first: packed.source.read(first)}
        assert not desk.chunks.has(second)
        report = await desk.ask(root, second, absent)
        assert (report.sent, report.words) == (0, "it has nothing of that")


async def test_an_order_that_fails_unexpectedly_is_answered_and_the_next_one_carried_out(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(*rpc, tmp_path)
    async with desk.orders:
        with monkeypatch.context() as broken:
            broken.setattr(desk.trees.cache, "get", {}.__getitem__)
            report = await desk.ask("ab" * 32)
        assert (report.sent, report.words) == (0, "the agent failed; its log says more")
        assert (await desk.ask("cd" * 32)).words == "it has nothing of that"


async def test_orders_that_nobody_waits_for_are_not_carried_out(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(*rpc, tmp_path)
    now = 100.0
    monkeypatch.setattr(desk.clock, "monotonic", lambda: now)
    async with desk.orders:
        for number in range(MOST_WAITING + 1):
            desk.orders.obey(pb.RepairOrder(order_id=f"{number}", root="ab" * 32))
        [refused] = desk.orders.take_answers()
        assert refused.words == "too many orders wait"
        now += WANTED_FOR_S + 1
        while desk.orders._waiting:  # noqa: ASYNC110 - they give no answer
            await asyncio.sleep(0)
        assert (await desk.ask("cd" * 32)).words == "it has nothing of that"
