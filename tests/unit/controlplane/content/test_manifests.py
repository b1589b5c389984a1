"""Manifests are read in turns and within limits, whatever one caller sends."""

from __future__ import annotations

import asyncio
import tempfile

import pytest

from controlplane.content import limited_process
from controlplane.content.manifests import SMALL_BYTES, Manifests
from controlplane.content.members import Members, MembersBuilder
from controlplane.domain.errors import InvalidRequest, LimitReached, NotFound, Unavailable
from controlplane.limits.concurrency_limits import MOST_WAITING
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, Manifest, build, decode
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
    monkeypatch.setattr(limited_process, "WITHIN_S", 0.0)
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


def large(files: int = 12_000) -> Manifest:
    return build(
        [
            Entry(path=f"f{n:06}", mode=0o644, size=1, chunks=(ChunkRef(digest_of(b"%d" % n), 1),))
            for n in range(files)
        ]
    )


async def keep_tree(objects: Objects, manifest: Manifest) -> str:
    root = manifest.root
    wanted = {root.digest, *(page.digest for page in root.pages)}
    await objects.put_many(dict(manifest.naming_blobs(wanted)))
    return root.digest


@pytest.mark.parametrize("is_with_sizes", [False, True])
async def test_one_in_pages_lists_these_too(objects: Objects, is_with_sizes: bool) -> None:
    manifest = large()
    reader, root = Manifests(objects, inline), await keep_tree(objects, manifest)
    pages = {page.digest: page.size for page in manifest.root.pages}
    assert len(pages) > 1
    assert set(await reader.pages(KIM, root)) == set(pages)
    assert objects.reads == [root]
    listing = await reader.listing(KIM, root, is_with_sizes=is_with_sizes)
    assert listing.blobs == {*manifest.blobs(), *pages}
    assert len(listing.blobs) == 12_000 + len(pages)
    assert digest_of(b"other") not in listing.blobs
    assert (listing.size, listing.file_count) == (12_000, 12_000)
    assert listing.different == 12_000 + sum(pages.values())
    if is_with_sizes:
        assert listing.sizes == {entry.path: 1 for entry in manifest.entries}
    objects.reads.clear()
    await reader.listing(KIM, root)
    assert not objects.reads


async def test_an_earlier_version_has_other_names_for_large_trees(objects: Objects) -> None:
    manifest = large()
    root = await objects.keep(manifest.encode())
    reader = Manifests(objects, inline)
    assert (await reader.listing(KIM, root)).blobs == manifest.blobs().keys()
    assert not await reader.pages(KIM, root)


def rooted(pages: list[bytes]) -> bytes:
    items = ",".join(f'["{digest_of(page)}",{len(page)}]' for page in pages)
    return f'{{"pages":[{items}],"version":2}}'.encode()


async def test_other_pages_than_the_encoding_is_cut_into_are_refused(objects: Objects) -> None:
    """A tree has one name: what is there already is found again, and is no new version."""
    encoding = large().encode()
    half = len(encoding) // 2
    thirds = [encoding[:400_000], encoding[400_000:800_000], encoding[800_000:]]
    longer = [encoding[:half] + b"[", encoding[half + 1 :]]
    inner = rooted([bytes([n]) * (64 << 10) for n in range(256)] * 60)
    nested = [inner[:1_000_000], inner[1_000_000:]]
    for pages in (thirds, longer, nested):
        assert all(64 << 10 <= len(page) <= 1 << 20 for page in pages)
        for page in pages:
            await objects.keep(page)
        root = await objects.keep(rooted(pages))
        reader = Manifests(objects, inline)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="is not a manifest"):
                await reader.listing(KIM, root)
        assert objects.reads.count(root) == 1


async def test_a_page_that_is_not_there_or_is_another_one_is_said(objects: Objects) -> None:
    manifest = large()
    root, reader = await keep_tree(objects, manifest), Manifests(objects, inline)
    await objects.put_aside([manifest.root.pages[0].digest], lambda: True)
    await objects.delete([manifest.root.pages[0].digest])
    with pytest.raises(NotFound):
        await reader.listing(KIM, root)
    await keep_tree(objects, manifest)
    assert (await reader.listing(KIM, root)).file_count == 12_000
    first = manifest.root.pages[0]
    lies = await objects.keep(
        manifest.root.data.replace(b",%d]" % first.size, b",%d]" % (first.size + 1), 1)
    )
    with pytest.raises(InvalidRequest, match="is not a manifest"):
        await Manifests(objects, inline).listing(KIM, lies)


async def test_a_read_goes_on_without_its_callers(objects: Objects) -> None:
    """A call has half a minute and a large manifest takes more: the next call finds it."""
    manifest = large()
    root, reader = await keep_tree(objects, manifest), Manifests(objects, inline)
    await reader.pages(KIM, root)
    objects.may_go.clear()
    gone = asyncio.ensure_future(reader.listing(KIM, root))
    await settled()
    gone.cancel()
    with pytest.raises(Unavailable, match="is being read"):
        await reader.listing(KIM, root, within_s=0.0)
    objects.may_go.set()
    assert (await reader.listing(KIM, root, within_s=None)).file_count == 12_000
    assert objects.reads.count(manifest.root.pages[0].digest) == 1


def test_digests_are_collected_once_each() -> None:
    """A chunk that a file has over and over takes no room."""
    with MembersBuilder() as collected, tempfile.TemporaryFile() as file:
        for n in range(80_000):
            collected.add(digest_of(b"%d" % (n // 2)), 1 + n % 2)
            collected.add("0" * 64, 5)
        assert collected.write(file) == 40_000 + 5
        members = Members(file)
    assert len(members) == 40_001
    assert "0" * 64 in members
    assert all(digest_of(b"%d" % n) in members for n in range(0, 40_000, 1_000))
    assert {*members} == {"0" * 64, *(digest_of(b"%d" % n) for n in range(40_000))}
