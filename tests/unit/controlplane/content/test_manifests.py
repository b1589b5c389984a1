"""Manifests are read in turns and within limits, whatever one caller sends."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.content import manifests
from controlplane.content.manifests import SMALL_BYTES, Manifests
from controlplane.domain.errors import InvalidRequest, LimitReached
from controlplane.limits.concurrency_limits import MOST_WAITING
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build, decode
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.workbench import HandClock

KIM, EVE = "kim", "eve"


def tree(files: int) -> bytes:
    chunk = ChunkRef(digest_of(b"x"), 1)
    return build(
        [Entry(path=f"f{n:06}", mode=0o644, size=1, chunks=(chunk,)) for n in range(files)]
    ).encode()


class Objects(MemoryObjects):
    """Counts what is read, and waits while it is held."""

    def __init__(self) -> None:
        super().__init__(HandClock())
        self.reads: list[str] = []
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def get(self, digest: str) -> bytes:
        self.reads.append(digest)
        await self.may_go.wait()
        return await super().get(digest)

    async def keep(self, data: bytes) -> str:
        digest = digest_of(data)
        await self.put_many({digest: data})
        return digest


@pytest.fixture
def objects() -> Objects:
    return Objects()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_no_manifest_is_read_once(objects: Objects) -> None:
    reader = Manifests(objects, inline)
    for bad in (tree(3) + b" ", tree(9_000) + b" ", b"[" * 2_000_000):
        root = await objects.keep(bad)
        for _ in range(3):
            with pytest.raises(InvalidRequest, match="is not a manifest"):
                await reader.listing(KIM, root)
        assert objects.reads.count(root) <= 2  # its size is found out by reading it
        objects.reads.clear()


@pytest.mark.parametrize("is_with_sizes", [False, True])
async def test_a_large_one_is_read_as_a_small_one(objects: Objects, is_with_sizes: bool) -> None:
    data = tree(10_000)
    assert len(data) > SMALL_BYTES
    root, manifest = await objects.keep(data), decode(data)
    listing = await Manifests(objects, inline).listing(KIM, root, is_with_sizes=is_with_sizes)
    assert listing.blobs == set(manifest.blobs())
    assert (listing.size, listing.file_count) == (10_000, 10_000)
    if is_with_sizes:
        assert listing.sizes == {entry.path: entry.size for entry in manifest.entries}


async def test_too_little_memory_refuses_the_manifest_and_harms_nobody(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await objects.keep(tree(10_000))
    monkeypatch.setattr(manifests, "READ_WITHIN_S", 0.0)
    reader = Manifests(objects, inline)
    with pytest.raises(InvalidRequest):
        await reader.listing(KIM, root)
    monkeypatch.undo()
    # Not for ever: another time there may be more.
    assert (await reader.listing(KIM, root)).file_count == 10_000


async def test_who_waits_holds_no_bytes_and_keeps_nobody_else_waiting(objects: Objects) -> None:
    bad = [await objects.keep(tree(2) + b" " * n) for n in range(1, 30)]
    good = await objects.keep(tree(1))
    reader = Manifests(objects, inline)
    objects.may_go.clear()
    floods = [asyncio.ensure_future(reader.listing(KIM, root)) for root in bad]
    await settled()
    other = asyncio.ensure_future(reader.listing(EVE, good))
    await settled()
    assert len(objects.reads) == 1
    objects.may_go.set()
    await other
    assert objects.reads.index(good) <= 2
    await asyncio.gather(*floods, return_exceptions=True)


async def test_of_one_caller_only_so_many_wait(objects: Objects) -> None:
    root = await objects.keep(tree(1))
    reader = Manifests(objects, inline)
    objects.may_go.clear()
    calls = [asyncio.ensure_future(reader.listing(KIM, root)) for _ in range(MOST_WAITING + 1)]
    await settled()
    with pytest.raises(LimitReached, match="wait"):
        await reader.listing(KIM, root)
    other = asyncio.ensure_future(reader.listing(EVE, root))
    objects.may_go.set()
    assert all(listing.file_count == 1 for listing in await asyncio.gather(other, *calls))
    assert len(objects.reads) == 1
