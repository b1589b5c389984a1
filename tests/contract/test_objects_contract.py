"""One suite for every object store."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.errors import InvalidRequest
from controlplane.history.postgresql import open_postgresql
from controlplane.objects.errors import BlobDamaged, BlobNotFound, ObjectsUnavailable, WrongDigest
from controlplane.objects.service import BucketService
from nsml.common.clock import SystemClock, in_thread, inline
from nsml.content.digests import digest_of
from tests.support.azure import AzureServer, azure
from tests.support.gcs import GcsServer, gcs
from tests.support.memory_objects import MemoryObjects
from tests.support.packed_objects import folder_objects, shared_objects
from tests.support.s3 import KEYS, S3Server, s3

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from controlplane.history.sql.packs import SqlPacks
    from controlplane.objects.interface import ObjectStore

__all__ = ["azure", "gcs", "s3"]


@pytest.fixture(
    params=[
        "memory",
        "folder",
        "shared folder",
        "bucket",
        "bucket, postgresql",
        pytest.param("bucket of Google", marks=pytest.mark.variant),
        pytest.param("container of Azure", marks=pytest.mark.variant),
    ]
)
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    if request.param == "memory":
        yield MemoryObjects(SystemClock())
    elif request.param == "folder":
        yield folder_objects(tmp_path / "objects", inline)
    elif request.param == "shared folder":
        (tmp_path / "objects").mkdir()
        yield shared((tmp_path / "objects").as_uri())
    elif request.param == "bucket of Google":
        google: GcsServer = request.getfixturevalue("gcs")
        url = f"gs://{google.bucket()}/some/prefix"
        yield shared(url, google.endpoint, environment=google.environment)
    elif request.param == "container of Azure":
        of_azure: AzureServer = request.getfixturevalue("azure")
        url = f"az://{of_azure.container()}/some/prefix"
        yield shared(url, of_azure.endpoint, environment=of_azure.environment)
    else:
        server: S3Server = request.getfixturevalue("s3")
        url = f"s3://{server.bucket()}/some/prefix"
        if "postgresql" not in request.param:
            yield shared(url, server.endpoint)
            return
        emptied = request.getfixturevalue("emptied_database")
        history = await open_postgresql(emptied, clock=SystemClock())
        yield shared(url, server.endpoint, index=history.packs)
        await history.close()


def shared(
    url: str,
    endpoint: str = "",
    index: SqlPacks | None = None,
    environment: Mapping[str, str] = KEYS,
) -> ObjectStore:
    service = BucketService(endpoint=endpoint)
    return shared_objects(url, in_thread, service=service, environment=environment, index=index)


def always() -> bool:
    return True


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


CONTENTS = [b"", b"x", b"text " * 10_000, noise(100_000), noise(100_000) + bytes(100_000)]


@pytest.mark.parametrize("data", CONTENTS)
async def test_what_was_put_comes_back(objects: ObjectStore, data: bytes) -> None:
    digest = digest_of(data)
    assert await objects.has_missing([digest]) == {digest}
    await objects.put(digest, data)
    await objects.put(digest, data)
    assert await objects.has_missing([digest, digest]) == set()
    assert await objects.get(digest) == data
    assert [blob.digest async for blob in objects.list()] == [digest]


async def test_wrong_bytes_are_refused_and_nothing_is_kept(objects: ObjectStore) -> None:
    good, bad = digest_of(b"good"), digest_of(b"bad")
    with pytest.raises(WrongDigest):
        await objects.put_many({good: b"good", bad: b"worse"})
    assert await objects.has_missing([good, bad]) == {good, bad}


@pytest.mark.parametrize(
    "digest", ["", "a", "../" * 21 + "a", "A" * 64, "g" * 64, "a" * 63 + "\n", "a" * 65, "%2e" * 21]
)
async def test_what_is_no_digest_is_refused_everywhere(objects: ObjectStore, digest: str) -> None:
    for call in (
        objects.has_missing([digest]),
        objects.put(digest, b""),
        objects.get(digest),
        objects.delete([digest]),
        objects.put_aside([digest], always),
        objects.take_back([digest]),
    ):
        with pytest.raises(InvalidRequest):
            await call


async def test_what_is_not_there(objects: ObjectStore) -> None:
    digest = digest_of(b"nobody")
    with pytest.raises(BlobNotFound):
        await objects.get(digest)
    assert await objects.delete([digest]) == set()
    assert await objects.put_aside([digest], always) == set()
    await objects.take_back([digest])
    assert [blob async for blob in objects.list()] == []
    assert [blob async for blob in objects.list_aside()] == []


async def test_the_first_of_several(objects: ObjectStore) -> None:
    blobs = [noise(1_000, seed) for seed in range(8)]
    names = [digest_of(blob) for blob in blobs]
    await objects.put_many(dict(zip(names, blobs, strict=True)))
    assert await objects.put_aside([names[1]], always)
    missing = digest_of(b"missing")

    for asked, most_bytes, most in (
        (names, 1 << 20, 8),
        (names, 2_500, 3),
        (names, 0, 1),
        ([*names[:3], missing, *names[3:]], 1 << 20, 3),
    ):
        some = await objects.get_first(asked, most_bytes)
        assert 1 <= len(some) <= most
        assert some == blobs[: len(some)]
    with pytest.raises(BlobNotFound):
        await objects.get_first([missing, *names], 1 << 20)
    with pytest.raises(InvalidRequest):
        await objects.get_first([names[0], "../secret"], 1 << 20)
    left, read = list(names), []
    while left:
        some = await objects.get_first(left, 2_500)
        read += some
        del left[: len(some)]
    assert read == blobs


async def test_deleting(objects: ObjectStore) -> None:
    digest = digest_of(b"gone")
    await objects.put(digest, b"gone")
    assert await objects.delete([digest]) == set(), "only what is aside is removed"
    assert await objects.get(digest) == b"gone"
    await objects.put_aside([digest], always)
    assert await objects.delete([digest]) == {digest}
    assert await objects.delete([digest]) == set()
    with pytest.raises(BlobNotFound):
        await objects.get(digest)


@pytest.mark.parametrize("data", CONTENTS)
async def test_what_is_aside_is_missing_and_read_and_taken_back(
    objects: ObjectStore, data: bytes
) -> None:
    digest = digest_of(data)
    await objects.put(digest, data)
    assert await objects.put_aside([digest], always) == {digest}
    assert await objects.put_aside([digest], always) == set()
    assert await objects.has_missing([digest]) == {digest}
    assert [blob async for blob in objects.list()] == []
    assert [blob.digest async for blob in objects.list_aside()] == [digest]
    assert await objects.get(digest) == data
    await objects.take_back([digest, digest_of(b"nowhere")])
    assert await objects.has_missing([digest]) == set()
    await objects.delete([digest])
    assert await objects.get(digest) == data


async def test_what_is_aside_and_sent_again_is_there(objects: ObjectStore) -> None:
    digest = digest_of(b"again")
    await objects.put(digest, b"again")
    await objects.put_aside([digest], always)
    await objects.put(digest, b"again")
    assert await objects.has_missing([digest]) == set()
    assert [blob async for blob in objects.list_aside()] == []
    await objects.take_back([digest])
    assert await objects.delete([digest]) == set()
    assert await objects.get(digest) == b"again"


async def test_nothing_loses_its_name_when_it_may_not(objects: ObjectStore) -> None:
    digest = digest_of(b"ours")
    await objects.put(digest, b"ours")
    assert await objects.put_aside([digest], lambda: False) == set()
    assert await objects.has_missing([digest]) == set()


async def test_what_is_aside_says_since_when_by_the_clock_of_the_store(
    objects: ObjectStore,
) -> None:
    digest = digest_of(b"old")
    await objects.put(digest, b"old")
    [put] = [blob async for blob in objects.list()]
    before = await objects.now()
    await objects.put_aside([digest], always)
    [aside] = [blob async for blob in objects.list_aside()]
    assert put.put_at <= before <= aside.put_at <= await objects.now()
    assert aside.stored_bytes == put.stored_bytes
    assert await objects.mark("c1/x") == "c1/x"


async def test_what_is_read_while_it_moves_is_read(objects: ObjectStore) -> None:
    blobs = {digest_of(data): data for data in CONTENTS}
    await objects.put_many(blobs)
    for _ in range(5):
        for digest, data in blobs.items():
            for move in (
                lambda one: objects.put_aside([one], always),
                lambda one: objects.take_back([one]),
            ):
                whole, _ = await asyncio.gather(objects.get(digest), move(digest))
                assert whole == data


async def test_the_first_mark_stands(objects: ObjectStore) -> None:
    assert await objects.mark() == ""
    said = await asyncio.gather(*[objects.mark(f"c{number}/x") for number in range(5)])
    assert len(set(said)) == 1
    assert said[0] in {f"c{number}/x" for number in range(5)}
    assert await objects.mark("another") == await objects.mark() == said[0]
    assert [blob async for blob in objects.list()] == []


async def test_many_at_once_and_the_same_ones_raced(objects: ObjectStore) -> None:
    blobs = {digest_of(data): data for data in (f"blob {i}".encode() for i in range(300))}
    await asyncio.gather(*[objects.put_many(blobs) for _ in range(3)])
    assert await objects.has_missing(blobs) == set()
    listed = {blob.digest: blob async for blob in objects.list()}
    assert set(listed) == set(blobs)
    assert all(blob.stored_bytes > 0 and blob.put_at > 0 for blob in listed.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def packs(folder: Path) -> list[Path]:
    return sorted((folder / "packs").glob("??/*"))


@pytest.mark.parametrize("damage", [b"", b"\0other", b"\x01garb", b"\x07", b"\0dat", b"\0dat!"])
async def test_damage_is_noticed_and_healed_by_putting_again(folder: Path, damage: bytes) -> None:
    objects = folder_objects(folder, inline)
    digest = digest_of(b"data")
    await objects.put(digest, b"data")
    [pack] = packs(folder)
    pack.write_bytes(damage + pack.read_bytes()[5:] if len(damage) == 5 else damage)
    with pytest.raises(BlobDamaged, match="damaged"):
        await objects.get(digest)
    # Who sends only what is missing has to be told that this is.
    assert await objects.has_missing([digest]) == {digest}
    await objects.put(digest, b"data")
    assert await objects.has_missing([digest]) == set()
    assert await objects.get(digest) == b"data"


async def test_text_takes_less_room_and_the_layout_is_as_documented(folder: Path) -> None:
    objects = folder_objects(folder, inline)
    text, media = b"epoch 1 loss 0.5\n" * 10_000, noise(100_000)
    await objects.put_many({digest_of(text): text, digest_of(media): media})
    [pack] = packs(folder)
    assert len(text) // 10 > pack.stat().st_size - len(media) > 0
    assert b"\0" + media in pack.read_bytes()
    assert list((folder / "incoming").iterdir()) == []
    again = folder_objects(folder, inline)
    await again.prepare()
    assert await again.get(digest_of(text)) == text


async def test_what_a_crash_left_half_done_is_removed(folder: Path) -> None:
    folder_objects(folder, inline)
    (folder / "incoming/7-half").write_bytes(b"\0ha")
    objects = folder_objects(folder, inline)
    assert list((folder / "incoming").iterdir()) == []
    assert [blob async for blob in objects.list()] == []


async def test_a_put_that_fails_leaves_nothing_half_done(folder: Path) -> None:
    objects = folder_objects(folder, inline)
    (folder / "packs").rmdir()
    (folder / "packs").write_bytes(b"in the way")
    with pytest.raises(ObjectsUnavailable):
        await objects.put(digest_of(b"good"), b"good")
    assert list((folder / "incoming").iterdir()) == []


async def test_a_put_that_is_cancelled_leaves_nothing_half_done(folder: Path) -> None:
    objects = folder_objects(folder, in_thread)
    blobs = [noise(1 << 20, seed) for seed in range(8)]
    putting = asyncio.create_task(objects.put_many({digest_of(blob): blob for blob in blobs}))
    while not list((folder / "incoming").iterdir()):  # another thread writes
        assert not putting.done()
        await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert list((folder / "incoming").iterdir()) == []


async def test_a_folder_that_cannot_be_written_is_unavailable(folder: Path) -> None:
    objects = folder_objects(folder, inline)
    (folder / "incoming").rmdir()
    (folder / "incoming").write_bytes(b"in the way")
    digest = digest_of(b"data")
    with pytest.raises(ObjectsUnavailable):
        await objects.put(digest, b"data")
    assert await objects.has_missing([digest]) == {digest}


def vanish(folder: Path, leaves: str = "nothing") -> None:
    """Move it to AWAY beside it, with something else at its place perhaps."""
    folder.rename(folder.with_name("away"))
    if leaves != "nothing":
        folder.mkdir()
    if leaves == "folders of another start":
        (folder / "packs").mkdir()
        (folder / "incoming").mkdir()


def bring_back(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.with_name("away").rename(folder)


def all_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def files_in(folder: Path) -> list[Path]:
    return [path for path in all_in(folder) if path.is_file()]


@pytest.fixture
def mounted(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def listed(objects: ObjectStore) -> list[str]:
    return [blob.digest async for blob in objects.list()]


@pytest.mark.parametrize("kind", ["folder", "shared folder"])
@pytest.mark.parametrize("leaves", ["nothing", "an empty folder", "folders of another start"])
async def test_a_folder_that_vanishes_is_gone_and_nothing_is_written_in_its_place(
    tmp_path: Path, mounted: Path, kind: str, leaves: str
) -> None:
    """As when it is unmounted: what is at its place then is not it, until it is there again."""
    objects = folder_objects(mounted, inline) if kind == "folder" else shared(mounted.as_uri())
    await objects.mark("c1/x")
    kept, new = digest_of(b"kept"), digest_of(b"new")
    await objects.put(kept, b"kept")
    vanish(mounted, leaves)
    before = all_in(tmp_path)
    for call in (
        objects.put(new, b"new"),
        objects.has_missing([new]),
        objects.get(kept),
        objects.delete([kept]),
        objects.put_aside([kept], always),
        objects.take_back([kept]),
        objects.now(),
        listed(objects),
    ):
        with pytest.raises(ObjectsUnavailable) as caught:
            await call
        assert "is it mounted?" in caught.value.why
    assert all_in(tmp_path) == before
    bring_back(mounted)
    assert await objects.get(kept) == b"kept"
    await objects.put(new, b"new")
    assert await objects.has_missing([new]) == set()


async def test_a_folder_that_vanishes_within_a_put_gets_no_name(mounted: Path) -> None:
    """After the look at the mark: nothing on the way is made anew, and the put is refused."""
    has_vanished = False

    async def run(work: Callable[[], Any], /) -> Any:
        nonlocal has_vanished
        done = work()
        if not has_vanished and files_in(mounted / "incoming"):  # written, not named yet
            vanish(mounted, "folders of another start")
            has_vanished = True
        return done

    objects = shared_objects(mounted.as_uri(), run)
    await objects.mark("c1/x")
    with pytest.raises(ObjectsUnavailable):
        await objects.put(digest_of(b"new"), b"new")
    assert has_vanished
    assert files_in(mounted) == []


async def test_a_place_that_others_removed_is_made_again(mounted: Path) -> None:
    objects = shared(mounted.as_uri())
    await objects.mark("c1/x")
    [own] = (mounted / "incoming").iterdir()
    own.rmdir()
    await objects.put(digest_of(b"new"), b"new")
    assert await objects.get(digest_of(b"new")) == b"new"


async def test_names_appear_only_after_their_bytes_are_flushed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that a power cut needs: bytes, name, folder."""
    objects = folder_objects(folder, inline)
    digest = digest_of(b"data")
    seen: list[tuple[str, bool]] = []
    flush = os.fsync

    def watched(opened: int) -> None:
        path = Path(f"/proc/self/fd/{opened}").readlink()
        seen.append((os.path.relpath(path, folder), bool(packs(folder))))
        flush(opened)

    monkeypatch.setattr("os.fsync", watched)
    await objects.put(digest, b"data")
    first, *rest = seen
    [pack] = packs(folder)
    assert first == (f"incoming/0-{pack.name}", False)
    assert rest == [(f"packs/{pack.parent.name}", True), ("packs", True)]
