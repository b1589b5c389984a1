"""Agents of one pod over one folder: real processes, one fetch for all, whoever is killed, and nothing goes that another one uses."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.storage import pod_lock
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.pod_lock import HeldLock, PodLock
from nodeagent.storage.pod_trees import PodTrees
from nsml.client.rpc import Rpc
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import content_pb2
from tests.integration.test_killed_fetches import Killing, check_named, made
from tests.support import disks
from tests.support.living_folders import sizes_below


class Holding(Killing):
    """Holds fetches up, for good, when it has sent much."""

    holds = True

    async def GetBlobs(
        self, request: content_pb2.GetBlobsRequest, context: Any
    ) -> AsyncIterator[content_pb2.GetBlobsResponse]:
        async for answer in super().GetBlobs(request, context):
            yield answer
            if self.holds and len(self.sent) >= 200:
                await asyncio.Event().wait()


@asynccontextmanager
async def serving(platform: Killing) -> AsyncIterator[int]:
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(None)


@asynccontextmanager
async def agent(
    port: int, folder: Path, name: str, digest: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    program = ("-m", "tests.integration.pod_program", str(port), str(folder), name, digest)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, *program, **pipes)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def written(folder: Path) -> int:
    """How many small files with content a fetch has made so far."""
    return sum(size > 0 for size in sizes_below(folder, "trees/.*.unfinished/[0-9]/*"))


async def has_it(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(120):
        while not (line := (await process.stdout.readline()).decode()).startswith("has "):
            assert line, "it ended"
    return line.removeprefix("has ").strip()


async def test_agents_that_begin_together_fetch_once_though_the_first_is_killed(
    tmp_path: Path,
) -> None:
    version = made(random.Random(1))
    root = version.manifest.digest
    chunks = {ref.digest for _, _, ref in version.chunks}
    platform = Holding()
    platform.blobs = {root: version.manifest.encode()}
    for path, offset, ref in version.chunks:
        platform.blobs[ref.digest] = version.files[path][offset : offset + ref.size]
    async with serving(platform) as port, AsyncExitStack() as stack:
        start = partial(agent, port, tmp_path)
        first = await stack.enter_async_context(start("a", root))
        while written(tmp_path) < 64:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        others = [await stack.enter_async_context(start(name, root)) for name in "bcd"]
        platform.holds = False
        first.kill()
        await first.wait()
        before = len(platform.sent)
        assert {await has_it(one) for one in others} == {str(tmp_path / "trees" / root)}
        again = [one for one in platform.sent[before:] if one in chunks]
        assert len(again) == len(set(again)), "one of them fetched"
        assert len(again) < len(chunks), "and went on where the first one was"
        assert check_named(tmp_path / "trees", {root: version}) == {root}
        held = {name.rpartition(".")[2] for name in os.listdir(tmp_path / "uses")}  # noqa: PTH208
        assert held == set("abcd")
    assert PodLock(tmp_path, "e").acquire() is not None


class Node:
    """One agent's part, in this process: `used` is what its sessions need."""

    def __init__(self, folder: Path, name: str, rpc: Rpc) -> None:
        self.used: set[str] = set()
        self.trees = PodTrees(
            folder,
            name,
            uses=lambda: frozenset(f"dataset {one}" for one in self.used),
            rpc=lambda: rpc,
            run=in_thread,
            run_long=in_own_thread,
            pause=lambda: asyncio.sleep(0.01),
            clock=SystemClock(),
        )

    async def run(self, digest: str) -> Path:
        """A session with the dataset begins."""
        self.used.add(digest)
        return await self.trees.get(digest)

    async def end(self, digest: str) -> None:
        self.used.discard(digest)
        await in_thread(self.trees.sign)


def offered(platform: Killing, seed: int, size: int) -> str:
    """A version of one file."""
    rng = random.Random(seed)
    blobs = [rng.randbytes(1 << 20) for _ in range(size >> 20)]
    refs = tuple(ChunkRef(digest_of(one), len(one)) for one in blobs)
    manifest = build([Entry(path="file", mode=0o644, size=size, chunks=refs)])
    platform.blobs |= {digest_of(one): one for one in blobs}
    platform.blobs[manifest.digest] = manifest.encode()
    return manifest.digest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "small", "size=40m,nr_inodes=1000") as place:
        yield place


async def test_what_another_agent_uses_does_not_go(small: Path) -> None:
    platform = Killing()
    one, two, three = (offered(platform, seed, 14 << 20) for seed in range(3))
    async with (
        serving(platform) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        a, b = (Node(small, name, Rpc(channel)) for name in "ab")
        place = await a.run(one)
        await b.run(two)
        with pytest.raises(NoRoom):
            await b.run(three)
        assert (place / "file").stat().st_size == 14 << 20
        # an agent that is away gives no sign, and its sessions go on
        with pytest.raises(NoRoom):
            await b.trees.get(three)
        await a.end(one)
        assert (await b.run(three) / "file").exists()
        assert not place.exists()
        with pytest.raises(NoRoom):
            await a.run(one)
        await b.end(two)
        assert (await a.run(one) / "file").exists()
        assert sorted(p.name for p in (small / "trees").iterdir() if len(p.name) == 64) == sorted(
            [one, three]
        )


async def test_who_comes_while_a_tree_is_removed_is_seen_or_waits(tmp_path: Path) -> None:
    platform = Killing()
    digest = offered(platform, 1, 1 << 20)
    async with (
        serving(platform) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        a, b = (Node(tmp_path, name, Rpc(channel)) for name in "ab")
        place = await a.run(digest)
        await a.end(digest)
        trees = b.trees._make_trees()
        trees.create()
        held: list[bool] = []

        def is_used() -> bool:
            # a session of the other agent begins between the announcement and the removal
            held.append(a.trees._hold(digest))
            return f"dataset {digest}" in b.trees.used_by_any()

        assert not trees.cache.remove(digest, is_used)
        assert held == [False], "it looks again"
        assert await a.run(digest) == place
        # one that was stopped before the removal, and has lost the lock, does not know of that session yet
        looks = iter((False, True))
        assert not trees.cache.remove(digest, lambda: next(looks))
        assert (place / "file").exists()
        assert len([one for one in platform.sent if one == digest]) == 1, "it was never gone"


async def test_uses_of_an_earlier_life_go_with_their_sessions(tmp_path: Path) -> None:
    platform = Killing()
    digest = offered(platform, 1, 1 << 20)
    async with (
        serving(platform) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await Node(tmp_path, "a", Rpc(channel)).run(digest)
        again = Node(tmp_path, "a", Rpc(channel))
        again.used.add(digest)
        await in_thread(again.trees.sign)
        assert again.trees.used_by_any() == {f"dataset {digest}"}
        await again.end(digest)
        assert not again.trees.used_by_any()


def test_of_many_that_come_at_once_at_most_one_has_the_lock(tmp_path: Path) -> None:
    locks = [PodLock(tmp_path, f"agent-{number}") for number in range(8)]
    inside = 0
    most: list[int] = []
    names: list[str] = []
    turn = threading.Lock()

    def work(lock: PodLock) -> None:
        nonlocal inside
        done = 0
        while done < 5:
            held = lock.acquire()
            if held is None:
                continue
            with turn:
                inside += 1
                most.append(inside)
                names.append(held.path.name)
            with turn:
                inside -= 1
            held.release()
            done += 1

    threads = [threading.Thread(target=work, args=(lock,)) for lock in locks]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(most) == {1}
    assert len(most) == 40
    assert len(set(names)) == 40


def test_who_is_slow_to_remove_an_old_lock_removes_none_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were numbers given again, the old file's name would be the name of a lock that is held."""
    slow, other = PodLock(tmp_path, "slow"), PodLock(tmp_path, "other")
    first = other.acquire()
    assert first is not None
    first.release()
    unlink = Path.unlink
    between: list[HeldLock | None] = []

    def unlink_late(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.undo()
        os.utime(tmp_path / "lock.2", (1.0, 1.0))  # suspended for so long that it loses the lock
        for _ in range(3):
            held = other.acquire()
            assert held is not None
            held.release()
        between.append(other.acquire())
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    late = slow.acquire()
    (held,) = between
    assert late is not None
    assert held is not None
    held.beat()
    with pytest.raises(FileNotFoundError):
        late.beat()


def test_one_that_creates_a_lock_late_has_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked before others came and went, and its number is lower than theirs."""
    slow, other = PodLock(tmp_path, "slow"), PodLock(tmp_path, "other")
    create = os.open

    def create_late(*arguments: Any) -> int:
        monkeypatch.undo()
        for _ in range(3):
            held = other.acquire()
            assert held is not None
            held.release()
        return create(*arguments)

    monkeypatch.setattr(os, "open", create_late)
    assert slow.acquire() is None
    assert slow.acquire() is not None


def test_who_gives_no_sign_loses_the_lock_and_learns_it(tmp_path: Path) -> None:
    first, second = PodLock(tmp_path, "a"), PodLock(tmp_path, "b")
    held = first.acquire()
    assert held is not None
    assert second.acquire() is None
    past = first.now() - pod_lock.LEASE_S - 1
    os.utime(held.path, (past, past))
    taken = second.acquire()
    assert taken is not None
    with pytest.raises(FileNotFoundError):
        held.beat()
    held.release()
    assert first.acquire() is None
    taken.beat()
    taken.release()
    assert first.acquire() is not None
