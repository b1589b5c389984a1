"""A fetch that was interrupted goes on with what is right on the disk, and nothing that is not right is ever shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.storage.datasets import Trees
from nodeagent.storage.eviction import KeepFree, Store, relieve
from nodeagent.storage.reservations import Room
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import content_pb2
from tests.support import disks
from tests.support.scripted_platform import ScriptedPlatform

KIB = 1 << 10
MANY, LARGE = 700, 8
FILES = {
    **{f"many/{n // 100}/{n}": (n.to_bytes(4, "big") * 256,) for n in range(MANY)},
    "large": tuple(bytes([n + 1]) * 256 * KIB for n in range(LARGE)),
    "zeros": (bytes(256 * KIB),) * 4,
    "empty": (),
}


class Halting(ScriptedPlatform):
    """Sends so many chunks, and then none until it may go on."""

    def __init__(self) -> None:
        super().__init__(patience_s=30)
        self.sends = 1 << 30
        self.has_halted = asyncio.Event()
        self.calls = 0

    async def GetBlobs(
        self, request: content_pb2.GetBlobsRequest, context: Any
    ) -> AsyncIterator[content_pb2.GetBlobsResponse]:
        self.calls += 1
        try:
            async for answer in super().GetBlobs(request, context):
                if request.digests and not self.sends:
                    self.has_halted.set()
                    await asyncio.Event().wait()
                self.sends -= bool(request.digests)
                yield answer
        finally:
            self.calls -= 1


class Node:
    """The datasets of one node."""

    def __init__(self, place: Path, rpc: Rpc, platform: Halting) -> None:
        self.place = place / "datasets"
        self.platform = platform
        self.used: set[str] = set()
        self._rpc = rpc
        entries = []
        for path, chunks in FILES.items():
            refs = tuple(ChunkRef(digest_of(one), len(one)) for one in chunks)
            platform.blobs |= {digest_of(one): one for one in chunks}
            size = sum(map(len, chunks))
            entries.append(Entry(path=path, mode=0o644, size=size, chunks=refs))
        manifest = build(entries)
        self.digest = manifest.digest
        platform.blobs[manifest.digest] = manifest.encode()
        self.start()

    def start(self) -> None:
        """An agent, or its successor."""
        room = Room(self.place.parent, run=in_thread, uses=lambda: frozenset(self.used))
        self.trees = Trees(
            self.place,
            rpc=lambda: self._rpc,
            run=in_thread,
            pause=lambda: asyncio.sleep(0.01),
            room=room,
            kind="dataset",
            may_link=True,
        )
        self.trees.create()

    async def interrupt(self, after: int) -> None:
        """Begin to fetch, and stop when so many chunks were sent, at least 150, and some of them written."""
        before = len(self.written())
        self.platform.sends = after
        self.platform.has_halted.clear()
        fetching = asyncio.ensure_future(self.trees.get(self.digest))
        async with asyncio.timeout(60):
            await self.platform.has_halted.wait()
            while len(await in_thread(self.written)) <= before:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        fetching.cancel()
        with suppress(asyncio.CancelledError):
            await fetching
        async with asyncio.timeout(60):
            while self.platform.calls or not self.trees.cache.kept():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        self.platform.sends = 1 << 30

    def attempt(self) -> Path:
        """The folder of the newest attempt."""
        return max(self.place.glob(".*.unfinished"), key=lambda path: path.name)

    def written(self) -> set[str]:
        """Chunks that are on the disk of what is unfinished; not those of zeros, which a hole has, too."""
        found = {}
        for path, chunks in FILES.items():
            data = b""
            for attempt in self.place.glob(".*.unfinished"):
                with suppress(FileNotFoundError):
                    data = (attempt / path).read_bytes()
            offset = 0
            for one in chunks:
                found[digest_of(one)] = any(one) and data[offset : offset + len(one)] == one
                offset += len(one)
        return {digest for digest, is_there in found.items() if is_there}

    def relieve(self) -> None:
        """Remove whatever may be removed."""
        everything = KeepFree(share=1.0, bytes=1 << 60)
        store = Store(kind="dataset", cache=self.trees.cache, place=self.place)
        relieve([store], everything, lambda: frozenset(self.used))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    platform = Halting()
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Node(tmp_path, Rpc(channel), platform)
    await server.stop(None)


def is_whole(tree: Path) -> bool:
    found = {str(p.relative_to(tree)): p for p in tree.rglob("*") if p.is_file()}
    modes = {p.stat().st_mode & 0o777 for p in found.values()}
    content = {path: p.read_bytes() for path, p in found.items()}
    return modes == {0o444} and content == {path: b"".join(of) for path, of in FILES.items()}


async def test_it_goes_on_with_what_is_there(node: Node) -> None:
    """Also after several interruptions, with a file that came in part, and in another agent."""
    await node.interrupt(after=200)
    node.start()
    for after in (200, 150):
        await node.interrupt(after)
        before, asked = node.written(), len(node.platform.asked_for)
        assert before
        node.start()
        assert [one.key for one in node.trees.cache.kept()] == [node.digest]
    tree = await node.trees.get(node.digest)
    assert is_whole(tree)
    assert not before & set(node.platform.asked_for[asked:])
    assert node.platform.asked_for.count(node.digest) == 1  # the manifest, too
    assert {path.name for path in node.place.iterdir()} == {
        node.digest,
        f"{node.digest}.manifest",
        f"{node.digest}.bytes",
    }


async def test_what_is_damaged_meanwhile_is_fetched_again(node: Node) -> None:
    await node.interrupt(after=MANY - 100)
    attempt = node.attempt()
    files = [path for path in attempt.rglob("*") if path.is_file() and path.stat().st_size]
    changed, shorter, gone, other, *_ = [
        path for path in files if path.parent.parent.name == "many"
    ]
    for path in (changed, shorter, other):
        path.chmod(0o600)
    changed.write_bytes(b"!" + changed.read_bytes()[1:])
    shorter.write_bytes(shorter.read_bytes()[:-1])
    gone.unlink()
    other.unlink()
    outside = node.place.parent / "outside"
    other.symlink_to(outside)
    outside.write_bytes(b"x" * LARGE * 256 * KIB)
    (attempt / "large").unlink(missing_ok=True)
    (attempt / "large").hardlink_to(outside)
    node.start()
    assert is_whole(await node.trees.get(node.digest))
    assert outside.read_bytes() == b"x" * LARGE * 256 * KIB


async def test_a_staged_manifest_that_is_damaged_is_fetched_again(node: Node) -> None:
    await node.interrupt(after=MANY - 100)
    staged = node.place / f".{node.digest}.staged"
    staged.write_bytes(staged.read_bytes()[:-9])
    node.start()
    assert is_whole(await node.trees.get(node.digest))


async def test_what_is_there_needs_no_room_again(node: Node, tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "small", "size=8m") as disk:
        node.place = disk / "datasets"
        node.start()
        await node.interrupt(after=MANY - 100)
        node.start()
        assert is_whole(await node.trees.get(node.digest))


async def test_what_is_unfinished_goes_for_others_unless_a_session_needs_it(node: Node) -> None:
    await node.interrupt(after=MANY - 100)
    (left,) = node.trees.cache.kept()
    assert left.size.bytes >= MANY // 2 * KIB
    node.start()
    node.used = {f"dataset {node.digest}"}
    await in_thread(node.relieve)
    assert node.written()
    node.used = set()
    await in_thread(node.relieve)
    assert list(node.place.iterdir()) == []
    assert not node.trees.cache.kept()
    assert is_whole(await node.trees.get(node.digest))


async def test_an_agent_that_ended_as_it_gave_the_tree_its_name_is_followed(node: Node) -> None:
    """Both of its last steps: all is written but the name; it has its name, and older attempts are left."""
    await node.interrupt(after=MANY - 100)
    (old,) = node.place.glob(".*.unfinished")
    tree = await node.trees.get(node.digest)
    old.mkdir()
    (old / "some").write_bytes(b"x")
    node.start()
    assert not old.exists()
    assert is_whole(await node.trees.get(node.digest))
    # The manifest and the note have their names first.
    tree.rename(node.place / f".{node.digest}.3.unfinished")
    node.start()
    asked = len(node.platform.asked_for)
    assert is_whole(await node.trees.get(node.digest))
    assert set(node.platform.asked_for[asked:]) == {node.digest}


async def test_sessions_at_once_share_one_fetch_that_goes_on(node: Node) -> None:
    await node.interrupt(after=MANY // 2)
    before, asked = node.written(), len(node.platform.asked_for)
    node.start()
    trees = await asyncio.gather(*(node.trees.get(node.digest, f"u{n}") for n in range(50)))
    assert set(trees) == {node.place / node.digest}
    again = node.platform.asked_for[asked:]
    assert len(again) == len(set(again))
    assert not before & set(again)
