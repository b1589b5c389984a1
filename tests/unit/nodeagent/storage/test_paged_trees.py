"""Trees that are stored in pages, on a node: fetched, streamed, and sent as a checkpoint is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.storage import transfer
from nodeagent.storage.datasets import Trees
from nodeagent.storage.manifests import is_content
from nodeagent.storage.transfer import Weighed, get_manifest, is_passing, put_tree
from nodeagent.streaming.index import Index, build_index
from nsml.client.errors import NotEnough
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread, inline
from nsml.content.counted_bytes import stored_bytes
from nsml.content.digests import digest_of
from nsml.content.errors import BlobCorrupt
from nsml.content.packing import pack
from tests.support.scripted_platform import ScriptedPlatform
from tests.support.trees import LONG_FOLDER, paged_tree


@pytest.fixture
async def rpc() -> AsyncIterator[tuple[Rpc, ScriptedPlatform]]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Rpc(channel), platform
    await server.stop(None)


async def never() -> None:
    raise AssertionError("the platform was there")


async def test_one_is_fetched_and_its_list_of_files_is_kept_whole(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    manifest, blobs = paged_tree(files=600, folder=LONG_FOLDER)
    assert len(manifest.root.pages) >= 2
    platform.blobs |= blobs
    trees = Trees(tmp_path / "datasets", rpc=lambda: connection, run=in_thread, pause=never)
    trees.create()
    tree = await trees.get(manifest.digest)
    assert len(list((tree / LONG_FOLDER).iterdir())) == 600
    assert (tree / LONG_FOLDER / "00007").read_bytes() == b"7"
    kept = tree.with_name(f"{manifest.digest}.manifest")
    assert kept.read_bytes() == manifest.encode()
    # An interrupted fetch goes on with the list that it has.
    assert is_content(kept, manifest.digest)
    assert is_content(kept, digest_of(manifest.encode()))  # as an earlier version named it
    assert not is_content(kept, manifest.root.pages[0].digest)
    assert not is_content(tmp_path / "nothing", manifest.digest)
    build_index(kept, tmp_path / "index")
    with Index(tmp_path / "index") as index:
        assert index.files == 600


async def test_other_pages_than_the_root_lists_are_refused(
    rpc: tuple[Rpc, ScriptedPlatform],
) -> None:
    connection, platform = rpc
    manifest, blobs = paged_tree()
    platform.blobs |= blobs
    page = manifest.root.pages[1]
    platform.blobs[page.digest] = blobs[page.digest].replace(b'"0644"', b'"0755"', 1)
    taken: list[bytes] = []

    async def take(data: bytes) -> None:
        taken.append(data)

    with pytest.raises(BlobCorrupt):
        await get_manifest(connection, manifest.digest, take)
    assert b"".join(taken) == blobs[manifest.root.pages[0].digest]


async def test_what_is_sent_has_its_root_last(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    (tmp_path / LONG_FOLDER).mkdir(parents=True)
    for number in range(600):
        (tmp_path / LONG_FOLDER / f"{number}").write_text(f"{number}")
    packed = pack(tmp_path)
    root = packed.manifest.root
    assert len(root.pages) >= 2
    assert await put_tree(connection, packed, inline) == root.digest
    naming = [*(page.digest for page in root.pages), root.digest]
    assert list(platform.blobs)[600:] == naming


async def test_what_may_not_be_kept_is_refused_before_anything_is_sent(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    (tmp_path / "weights").write_bytes(os.urandom(3 << 20))
    (tmp_path / "zeros").write_bytes(bytes(16 << 20))
    platform.room = 2 << 20
    with pytest.raises(NotEnough) as caught:
        await put_tree(connection, pack(tmp_path), inline, session_id="s")
    assert is_passing(caught.value), "it is sent once there is room"
    assert platform.blob_calls == 0
    platform.room = 4 << 20  # as it is stored
    root = await put_tree(connection, pack(tmp_path), inline, session_id="s")
    assert root in platform.blobs


async def test_what_waits_for_room_is_weighed_once(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, platform = rpc
    (tmp_path / "a").write_bytes(os.urandom(3 << 20))
    (tmp_path / "b").write_bytes(bytes(8 << 20))
    sizes: list[int] = []

    def counted(blobs: Sequence[bytes]) -> int:
        sizes.append(sum(map(len, blobs)))
        return stored_bytes(blobs)

    monkeypatch.setattr(transfer, "stored_bytes", counted)
    weighed = Weighed()
    for room in (1 << 20, 1 << 20, 2 << 20, 2 << 20):
        platform.room = room
        with pytest.raises(NotEnough):
            await put_tree(connection, pack(tmp_path), inline, weighed=weighed)
    packed = pack(tmp_path)
    platform.room = 7 << 19
    root = await put_tree(connection, packed, inline, weighed=weighed)
    assert root in platform.blobs
    assert sum(sizes) == sum(piece.ref.size for piece in packed.source.pieces())
    # Of other content nothing is known.
    (tmp_path / "c").write_bytes(os.urandom(3 << 20))
    platform.room = 1 << 20
    with pytest.raises(NotEnough):
        await put_tree(connection, pack(tmp_path), inline, weighed=weighed)
    platform.room = 4 << 20
    assert await put_tree(connection, pack(tmp_path), inline, weighed=weighed) in platform.blobs
