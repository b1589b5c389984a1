"""Trees that sessions share: fetched once, whole before they have their names."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc.aio
import pytest

from nodeagent.folders import flush_filesystem
from nodeagent.machine.accounts import Accounts, IdRange
from nodeagent.storage.datasets import Trees
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from nsml.content.packing import pack
from tests.support import disks
from tests.support.scripted_platform import ScriptedPlatform

T = TypeVar("T")
FILES = {"train/a.txt": "one", "train/b.txt": "two", "labels": "3"}


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


def offer(platform: ScriptedPlatform, folder: Path) -> str:
    """Let the platform have a tree of FILES; its digest."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    packed = pack(folder)
    platform.blobs[packed.manifest.digest] = packed.manifest.encode()
    for ref in packed.manifest.refs():
        platform.blobs[ref.digest] = packed.source.read(ref.digest)
    return packed.manifest.digest


def files_of(tree: Path) -> dict[str, str]:
    return {str(p.relative_to(tree)): p.read_text() for p in tree.rglob("*") if p.is_file()}


def opened_below(folder: Path) -> list[str]:
    opened = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    return [path for path in opened if path.startswith(str(folder))]


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""
    async with asyncio.timeout(60):
        while not await in_thread(holds):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_its_files_are_on_the_disk_before_it_has_its_name(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, platform = rpc
    digest = offer(platform, tmp_path / "pushed")
    place = tmp_path / "datasets"
    flushed: list[tuple[bool, list[dict[str, str]]]] = []

    def flush(folder: Path) -> None:
        there = (place / digest).exists()
        flushed.append((there, [files_of(tree) for tree in place.glob(".*.unfinished")]))
        flush_filesystem(folder)

    async def pause() -> None:
        await asyncio.sleep(0.01)

    monkeypatch.setattr("nodeagent.storage.datasets.flush_filesystem", flush)
    trees = Trees(place, rpc=lambda: connection, run=in_thread, pause=pause)
    trees.create()
    for _ in range(2):
        assert files_of(await trees.get(digest)) == FILES
        assert flushed == [(False, [FILES])]


async def test_a_fetch_that_is_cancelled_as_it_begins_leaves_nothing(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    digest = offer(platform, tmp_path / "pushed")
    place = tmp_path / "datasets"
    is_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def run(work: Callable[[], T], /) -> T:
        result = await in_thread(work)
        if list(place.glob(".*.unfinished")):
            is_begun.set()
            await may_go_on.wait()
        return result

    async def pause() -> None:
        await asyncio.sleep(0.01)

    trees = Trees(place, rpc=lambda: connection, run=run, pause=pause)
    trees.create()
    fetching = asyncio.create_task(trees.get(digest))
    await is_begun.wait()
    fetching.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    # Who gave it up does not wait for that.
    await until(lambda: not list(place.iterdir()) and not opened_below(place))


async def test_what_another_tree_has_is_not_sent_again_unless_it_is_damaged(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    first = offer(platform, tmp_path / "pushed")
    (tmp_path / "pushed" / "more").write_text("four")
    second = offer(platform, tmp_path / "pushed")

    async def pause() -> None:
        await asyncio.sleep(0.01)

    trees = Trees(tmp_path / "datasets", rpc=lambda: connection, run=in_thread, pause=pause)
    trees.create()
    donor = await trees.get(first)
    damaged = donor / "labels"
    damaged.chmod(0o600)
    damaged.write_text("4")
    for text in ("one", "two"):
        del platform.blobs[digest_of(text.encode())]
    assert files_of(await trees.get(second)) == {**FILES, "more": "four"}


async def test_trees_of_one_boot_wait_for_no_flush_and_go_with_it(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, platform = rpc
    digest = offer(platform, tmp_path / "pushed")
    place = tmp_path / "bundles"

    def flush(folder: Path) -> None:
        raise AssertionError(f"{folder} is flushed")

    async def pause() -> None:
        await asyncio.sleep(0.01)

    def trees(boot: str) -> Trees:
        made = Trees(place, rpc=lambda: connection, run=in_thread, pause=pause, boot=boot)
        made.create()
        return made

    monkeypatch.setattr("nodeagent.storage.datasets.flush_filesystem", flush)
    before = await trees("one").get(digest)
    assert files_of(before) == FILES
    assert await trees("one").get(digest) == before
    after = trees("two")
    assert not before.exists()
    assert files_of(await after.get(digest)) == FILES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MiB."""
    with disks.small_disk(tmp_path / "small", "size=16m") as place:
        yield place


async def test_a_tree_that_would_leave_sessions_no_room_is_not_begun(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, small_disk: Path
) -> None:
    """What runs on the node keeps its part of the disk."""
    connection, platform = rpc

    async def pause() -> None:
        await asyncio.sleep(0.01)

    (small_disk / "taken").write_bytes(bytes((16 << 20) - 340_000))
    trees = Trees(small_disk / "trees", rpc=lambda: connection, run=in_thread, pause=pause)
    trees.create()
    digest = offer(platform, tmp_path / "pushed")
    with pytest.raises(OSError, match="no room for") as refused:
        await trees.get(digest)
    assert refused.value.errno == errno.ENOSPC
    (small_disk / "taken").unlink()
    assert files_of(await trees.get(digest)) == FILES


async def test_the_group_of_a_tree_is_given_back_with_it(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    """At once, and at the next start where an agent died in between; of one that is here it stays."""
    if os.geteuid():
        pytest.skip("only root gives files to groups")
    connection, platform = rpc
    digest = offer(platform, tmp_path / "pushed")

    async def pause() -> None:
        await asyncio.sleep(0.01)

    def made() -> tuple[Trees, Accounts]:
        accounts = Accounts(tmp_path, IdRange(1_900_000_000, 20), by_group=True)
        trees = Trees(
            tmp_path / "datasets",
            rpc=lambda: connection,
            run=in_thread,
            pause=pause,
            accounts=accounts,
        )
        trees.create()
        return trees, accounts

    trees, accounts = made()
    accounts.admit(await trees.get(digest))
    gone = tmp_path / "gone"
    gone.mkdir()
    accounts.admit(gone)
    assert accounts.trees() == {digest, "gone"}
    trees, accounts = made()
    assert accounts.trees() == {digest}
    assert not await in_thread(lambda: trees.cache.remove(digest, lambda: True))
    assert accounts.trees() == {digest}
    assert await in_thread(lambda: trees.cache.remove(digest, lambda: False))
    assert accounts.trees() == set()
