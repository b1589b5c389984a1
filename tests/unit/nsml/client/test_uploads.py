"""A folder on its way to the platform, in one pass; what an upload shares with it is in `test_content`."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from nsml.client import errors
from nsml.client.content import download, read_manifest
from nsml.client.uploads import made_of, push, upload
from nsml.common.clock import inline
from nsml.content import reading
from nsml.content.chunks import MAX_CHUNK
from nsml.content.digests import digest_of
from nsml.content.errors import ChangedWhilePacking, TooLarge, Unreadable
from nsml.content.listing import list_folder
from nsml.content.manifest import ChunkRef, Limits
from nsml.content.packing import described, pack
from nsml.content.reading import FolderReader
from nsml.content.stat_cache import FILE_NAME, StatCache
from tests.support.trees import LONG_FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    for number in range(300):
        (root / "deep" / f"{number}").write_bytes(f"file {number}".encode())
    (root / "a twin").write_bytes(b"file 7")
    (root / "empty").touch()
    (root / "large.bin").write_bytes(os.urandom(5 << 20))
    return root


@pytest.fixture
def cache(tmp_path: Path) -> StatCache:
    """One of a scan that begins long after the files were written."""
    return StatCache(tmp_path / "cache" / FILE_NAME, now_ns=time.time_ns() + 60 * 10**9)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch):
    """Makes each reading of a file an error."""

    def refuse() -> None:
        def read(*_: object) -> int:
            raise AssertionError("a file was read")

        monkeypatch.setattr("nsml.content.safe_paths.ByDescriptor.open_file", read)

    return refuse


def same(one: Path, other: Path) -> bool:
    def content(root: Path) -> dict[Path, bytes]:
        return {
            path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()
        }

    return content(one) == content(other)


async def test_each_file_is_read_once_and_arrives(
    client, server, folder, tmp_path, monkeypatch
) -> None:
    opened: list[str] = []
    real = reading._read
    monkeypatch.setattr(
        reading, "_read", lambda top, file: (opened.append(file.path), real(top, file))[1]
    )
    monkeypatch.setattr("nsml.content.packing.read_again", None)
    seen = []
    sent = await push(client, list_folder(folder), progress=seen.append)
    assert sorted(opened) == sorted(entry.path for entry in sent.packed.manifest.entries)
    assert sent.digest == pack(folder).manifest.digest
    assert sent.files_sent == 302  # the empty one has nothing to send
    assert sent.bytes_sent == sum(sent.packed.manifest.blobs().values())
    assert seen[-1].bytes == seen[-1].bytes_total == sent.packed.manifest.size
    assert server.state.largest_message <= 2 << 20
    assert server.state.largest_first_message < 64 << 10  # it has to arrive within a minute
    await download(client, sent.digest, tmp_path / "back")
    assert same(folder, tmp_path / "back")


async def test_an_unchanged_folder_is_one_question(client, server, folder, cache, unread) -> None:
    first = await push(client, list_folder(folder), cache=cache)
    server.state.calls.clear()
    unread()
    again = await push(client, list_folder(folder), cache=cache)
    assert (again.digest, again.files_sent, again.bytes_sent) == (first.digest, 0, 0)
    assert again.packed.manifest == first.packed.manifest
    assert server.state.calls == ["FindMissingBlobs"]


async def test_of_a_changed_folder_only_what_changed_is_read_and_sent(
    client, server, folder, cache
) -> None:
    await push(client, list_folder(folder), cache=cache)
    (folder / "deep" / "7").write_bytes(b"other")
    (folder / "deep" / "8").unlink()
    changed = await push(client, list_folder(folder), cache=cache)
    assert (changed.files_sent, changed.bytes_sent) == (1, 5)
    assert changed.digest == pack(folder).manifest.digest


@pytest.fixture
def limited(folder: Path) -> Path:
    """A folder of 6 MiB that cannot be compressed."""
    (folder / "more.bin").write_bytes(os.urandom(1 << 20))
    return folder


@pytest.mark.parametrize("is_known", [False, True])
async def test_what_may_not_be_kept_is_refused_before_anything_is_sent(
    client, server, limited, cache, is_known
) -> None:
    if is_known:
        described(FolderReader(list_folder(limited), cache=cache))
    server.state.room = 6 << 20  # the small files count for more than their bytes
    seen = []
    with pytest.raises(errors.NotEnough, match="it is full") as caught:
        await push(
            client, list_folder(limited), cache=cache, project="vision", progress=seen.append
        )
    assert caught.value.reason == "LIMIT_REACHED"
    assert caught.value.advice == "nsml storage"
    assert (
        "kim may keep little; nothing was sent: the new content of these 6.3 MB takes at least 6."
        in caught.value.why
    )
    assert "PutBlobs" not in server.state.calls
    assert "vision" in server.state.projects_asked
    assert all(one.is_weighed for one in seen[1:])


async def test_what_is_new_counts_as_it_is_stored(client, server, limited, cache) -> None:
    await push(client, list_folder(limited), cache=cache)
    (limited / "zeros").write_bytes(bytes(16 << 20))
    (limited / "new.bin").write_bytes(os.urandom(1 << 20))
    server.state.room = 2 << 20
    sent = await push(client, list_folder(limited), cache=cache)
    assert sent.digest == pack(limited).manifest.digest
    (limited / "zeros").write_bytes(os.urandom(4 << 20))
    server.state.calls.clear()
    with pytest.raises(errors.NotEnough, match="it is full"):
        await push(client, list_folder(limited), cache=cache)
    assert "PutBlobs" not in server.state.calls
    server.state.room = 5 << 20
    assert (await push(client, list_folder(limited), cache=cache)).bytes_sent == 4 << 20


async def test_another_platform_gets_what_the_cache_knows(
    client, server, folder, cache, tmp_path
) -> None:
    await push(client, list_folder(folder), cache=cache)
    server.state.blobs.clear()
    sent = await push(client, list_folder(folder), cache=cache)
    assert sent.files_sent == 302
    await download(client, sent.digest, tmp_path / "back")
    assert same(folder, tmp_path / "back")


async def test_a_chunk_that_the_cache_names_and_the_file_has_not_is_found_out(
    client, server, folder, cache
) -> None:
    """A file that is written to through a mapping may keep its times."""
    listed = list_folder(folder)
    await push(client, listed, cache=cache)
    server.state.blobs.clear()
    (stale,) = (file for file in listed.files if file.path == "deep/9")
    cache.keep(folder, [(stale, (ChunkRef(digest_of(b"other 9"), 7),))])
    with pytest.raises(ChangedWhilePacking) as caught:
        await push(client, list_folder(folder), cache=cache)
    assert caught.value.path == "deep/9"
    sent = await push(client, list_folder(folder), cache=cache)
    assert sent.digest == pack(folder).manifest.digest


async def test_what_was_lost_again_is_found_out_like_that(client, server, folder, cache) -> None:
    """Of a folder that is known, the platform is asked about the manifest alone."""
    listed = list_folder(folder)
    await push(client, listed, cache=cache)
    (stale,) = (file for file in listed.files if file.path == "deep/9")
    cache.keep(folder, [(stale, (ChunkRef(digest_of(b"other 9"), 7),))])
    encoded = described(FolderReader(listed, cache=cache)).manifest.encode()
    server.state.blobs[digest_of(encoded)] = encoded
    sent = await push(client, list_folder(folder), cache=cache)
    assert sent.digest == digest_of(encoded)

    async def make() -> None:
        raise errors.MissingBlobs("the dataset has not been sent completely")

    with pytest.raises(ChangedWhilePacking) as caught:
        await made_of(client, sent.packed, make, cache=cache)
    assert caught.value.path == "deep/9"
    sent = await push(client, list_folder(folder), cache=cache)
    assert sent.digest == pack(folder).manifest.digest


def _shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2_000_000)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Path.unlink, ChangedWhilePacking),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), ChangedWhilePacking),
        (lambda path: (path.unlink(), path.mkdir()), Unreadable),
        (lambda path: (path.unlink(), os.mkfifo(path)), Unreadable),
        (_shorten, None),
        (lambda path: path.write_bytes(b"replaced"), None),
    ],
    ids=["removed", "a link", "a folder", "a pipe", "shortened", "rewritten"],
)
async def test_a_file_that_changes_before_it_is_read_is_as_it_is_now_or_named(
    client, server, folder, cache, tmp_path, change, error
) -> None:
    listed = list_folder(folder)
    change(folder / "large.bin")
    if error is not None:
        with pytest.raises(error) as caught:
            await push(client, listed, cache=cache)
        assert caught.value.path == "large.bin"
        assert not any(thread.name.startswith("nsml-reader") for thread in threading.enumerate())
        return
    sent = await push(client, listed, cache=cache)
    await download(client, sent.digest, tmp_path / "back")
    assert same(folder, tmp_path / "back")
    assert cache.look_up(folder, listed.files).count(None) == 1, "what was not as listed"


@pytest.mark.parametrize("kind", ["torn", "grows", "shrinks"])
async def test_a_file_that_changes_while_it_is_read(
    client, server, folder, monkeypatch, kind, tmp_path
) -> None:
    path, before = folder / "large.bin", (folder / "large.bin").read_bytes()
    real = reading.chunks_of

    def change() -> None:
        with path.open("r+b") as file:
            if kind == "torn":
                file.write(b"new head")
                file.seek(-8, os.SEEK_END)
                file.write(b"new tail")
            elif kind == "grows":
                file.seek(0, os.SEEK_END)
                file.write(b"more")
            else:
                file.truncate(1_000)

    def chunks_of(file):
        for number, data in enumerate(real(file)):
            yield data
            if number == 1 and len(data) > 100:
                change()

    monkeypatch.setattr(reading, "chunks_of", chunks_of)
    listed = list_folder(folder)
    if kind != "grows":
        with pytest.raises(ChangedWhilePacking, match=r"large\.bin changed while it was sent"):
            await push(client, listed)
        return
    sent = await push(client, listed)
    await download(client, sent.digest, tmp_path / "back")
    assert (tmp_path / "back" / "large.bin").read_bytes() == before


async def test_a_sparse_file_is_one_chunk(client, server, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "zeros").open("wb") as file:
        file.truncate(40 * MAX_CHUNK)
    sent = await push(client, list_folder(tmp_path / "data"))
    (entry,) = sent.packed.manifest.entries
    assert (len(entry.chunks), sent.bytes_sent) == (40, MAX_CHUNK)


async def test_more_than_a_manifest_can_list_is_refused_before_the_end(
    client, server, folder, monkeypatch
) -> None:
    monkeypatch.setattr(reading, "DEFAULT_LIMITS", Limits(encoded_bytes=20_000))
    with pytest.raises(TooLarge, match="send it as several"):
        await push(client, list_folder(folder))
    encoded = len(pack_without_limit(folder, monkeypatch))
    monkeypatch.setattr(reading, "DEFAULT_LIMITS", Limits(encoded_bytes=encoded + 400))
    await push(client, list_folder(folder))


def pack_without_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(reading, "DEFAULT_LIMITS", Limits())
    return pack(folder).manifest.encode()


async def test_an_upload_that_fails_on_its_way_leaves_no_thread(
    client, server, folder, monkeypatch
) -> None:
    (folder / "more.bin").write_bytes(os.urandom(40 << 20))

    def refused(_: object):
        raise errors.NotEnough("no more is kept for you")

    monkeypatch.setattr("nsml.client.uploads._messages", refused)
    with pytest.raises(errors.NotEnough):
        await push(client, list_folder(folder))
    assert not any(thread.name.startswith("nsml-reader") for thread in threading.enumerate())


async def test_only_empty_files_are_a_tree_too(client, server, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(600):
        (tmp_path / "data" / f"{number}").touch()
    sent = await push(client, list_folder(tmp_path / "data"))
    assert len(sent.packed.manifest.entries) == 600
    assert sent.digest in server.state.blobs


async def test_a_tree_with_a_large_list_of_files_goes_in_pages(
    client, server, tmp_path, cache
) -> None:
    """And of one with a file more only what changed: a page or two, and the root."""
    data = tmp_path / "data"
    (data / LONG_FOLDER).mkdir(parents=True)
    for number in range(600):
        (data / LONG_FOLDER / f"{number}").touch()
    first = await push(client, list_folder(data), cache=cache)
    pages = {page.digest for page in first.packed.manifest.root.pages}
    assert len(pages) >= 2
    assert {*server.state.blobs} == {*pages, first.digest}
    extent = await download(client, first.digest, tmp_path / "back")
    assert (extent.files, extent.size) == (600, 0)
    assert same(data, tmp_path / "back")
    server.state.calls.clear()
    again = await push(client, list_folder(data), cache=cache)
    assert again.digest == first.digest
    assert server.state.calls.count("FindMissingBlobs") == len(server.state.calls) == 1
    before = {*server.state.blobs}
    (data / "one more").touch()
    second = await push(client, list_folder(data), cache=cache)
    assert 2 <= len({*server.state.blobs} - before) <= 4
    # What was lost is sent again with all else that names the tree.
    lost = second.packed.manifest.root.pages[-1].digest
    del server.state.blobs[lost]
    await upload(client, second.packed, run=inline, is_unheard=True)
    assert lost in server.state.blobs
    tree = await read_manifest(client, second.digest)
    assert tree == second.packed.manifest
