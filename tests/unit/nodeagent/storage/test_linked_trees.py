"""New versions beside old ones: what did not change is the same file, and neither version can harm the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest

from nodeagent.storage import donors
from nodeagent.storage.datasets import Trees
from nodeagent.storage.eviction import KeepFree, NoRoom, Store, relieve
from nodeagent.storage.reservations import Room, Size
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from tests.support import disks
from tests.support.scripted_platform import ScriptedPlatform

T = TypeVar("T")
KIB = 1 << 10
EVERYTHING = KeepFree(share=1.0, bytes=1 << 60)

Files = Mapping[str, tuple[bytes, ...]]
"""The chunks of each file."""


class Node:
    """The datasets of one node, and a platform that has more."""

    def __init__(self, place: Path, rpc: Rpc, platform: ScriptedPlatform) -> None:
        self.place = place / "datasets"
        self.platform = platform
        self.used: set[str] = set()
        self._rpc = rpc
        self.start()

    def start(self, *, may_link: bool = True, run: Any = in_thread) -> None:
        """An agent, or its successor."""
        room = Room(self.place.parent, run=run, uses=lambda: frozenset(self.used))
        self.trees = Trees(
            self.place,
            rpc=lambda: self._rpc,
            run=run,
            pause=lambda: asyncio.sleep(0.01),
            room=room,
            kind="dataset",
            may_link=may_link,
        )
        self.trees.create()

    def offer(self, files: Files, mode: int = 0o644) -> str:
        """Let the platform have a tree; its digest."""
        entries = []
        for path, chunks in files.items():
            refs = tuple(ChunkRef(digest_of(one), len(one)) for one in chunks)
            self.platform.blobs |= {digest_of(one): one for one in chunks}
            size = sum(map(len, chunks))
            entries.append(Entry(path=path, mode=mode, size=size, chunks=refs))
        manifest = build(entries)
        self.platform.blobs[manifest.digest] = manifest.encode()
        return manifest.digest

    def takes(self) -> dict[str, Size]:
        """Of the disk, by tree."""
        self.trees.cache.recount()
        return {one.key: one.size for one in self.trees.cache.kept()}

    async def relieve(self) -> None:
        """Remove whatever may be removed."""
        store = Store(kind="dataset", cache=self.trees.cache, place=self.place)
        await in_thread(lambda: relieve([store], EVERYTHING, lambda: frozenset(self.used)))

    def sent(self, since: int) -> set[str]:
        """Blobs that the platform sent."""
        return set(self.platform.asked_for[since:])


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


@pytest.fixture
def node(rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path) -> Node:
    return Node(tmp_path, *rpc)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MiB."""
    with disks.small_disk(tmp_path / "small", "size=16m,nr_inodes=1000") as place:
        yield place


def content_of(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def whole(files: Files) -> dict[str, bytes]:
    return {path: b"".join(chunks) for path, chunks in files.items()}


def shared(one: Path, other: Path) -> set[str]:
    """Paths of files that are the same in both."""
    return {
        path
        for path in content_of(one)
        if (other / path).exists() and (one / path).samefile(other / path)
    }


def held_open() -> list[str]:
    """Files that this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(str(one.readlink()))
    return found


OLD: Files = {
    "same/a": (b"a" * KIB,),
    "same/large": (b"1" * KIB, b"2" * KIB, b"3" * KIB),
    "changed": (b"old" * KIB,),
    "grown": (b"4" * KIB, b"5" * KIB),
    "empty": (),
}
NEW: Files = {
    **OLD,
    "changed": (b"new" * KIB,),
    "grown": (b"4" * KIB, b"5" * KIB, b"6" * KIB),
    "moved/a": (b"a" * KIB,),
}


async def test_unchanged_files_are_those_of_the_version_before(node: Node) -> None:
    old = await node.trees.get(node.offer(OLD))
    before = len(node.platform.asked_for)
    digest = node.offer(NEW)
    new = await node.trees.get(digest)
    assert content_of(new) == whole(NEW)
    assert shared(old, new) == {"same/a", "same/large"}
    assert (old / "same/a").samefile(new / "moved/a")
    assert node.sent(before) == {digest, digest_of(b"new" * KIB), digest_of(b"6" * KIB)}
    for path in content_of(new):
        assert (new / path).stat().st_mode & 0o777 == 0o444
    # The older one goes, and nothing of the newer one with it.
    assert await in_thread(lambda: node.trees.cache.remove(old.name, lambda: False))
    assert not old.exists()
    assert content_of(new) == whole(NEW)


async def test_files_with_another_mode_or_owner_rights_are_not_linked(node: Node) -> None:
    old = await node.trees.get(node.offer(OLD))
    new = await node.trees.get(node.offer(OLD, mode=0o755))
    assert content_of(new) == whole(OLD)
    assert shared(old, new) == set()
    (old / "same/a").chmod(0o644)  # as no tree of the cache has it
    newest = await node.trees.get(node.offer({"same/a": OLD["same/a"], "x": (b"x",)}))
    assert content_of(newest) == {"same/a": b"a" * KIB, "x": b"x"}
    assert shared(old, newest) == set()


async def test_a_tree_with_hidden_files_shares_none(node: Node) -> None:
    """Else who has the same content, a guess, sees by the links of that file that it is here."""
    hidden, guess = {"test_label": (b"7",), "open": (b"open",)}, {"guess": (b"7",)}
    before = await node.trees.get(node.offer({"open": (b"open",)}), "kim")
    label = await node.trees.get(node.offer(hidden), "kim", is_apart=True)
    node.start()  # it is known to the next agent, too
    node.trees.cache.mark_linked([label.name])
    node.start()
    guessed = await node.trees.get(node.offer(guess), "lee")
    both = await node.trees.get(node.offer({"a": (b"7",), "b": (b"open",)}), "kim")
    again = await node.trees.get(node.offer({"a": (b"7",), "c": (b"open",)}), "kim", is_apart=True)
    assert {path.stat().st_nlink for path in label.iterdir()} == {1}
    assert (guessed / "guess").stat().st_nlink == 2  # with its own next version
    assert (both / "a").samefile(guessed / "guess")
    assert (both / "b").samefile(before / "open")
    assert {path.stat().st_nlink for path in again.iterdir()} == {1}
    assert content_of(again) == {"a": b"7", "c": b"open"}


async def test_where_programs_could_write_to_trees_nothing_is_linked(node: Node) -> None:
    """Nor in a checkpoint that a program gets for itself."""
    digest = node.offer(OLD)
    old = await node.trees.get(digest)
    copy = node.place.parent / "copy"
    await node.trees.fetch(digest, copy)
    assert shared(old, copy) == set()
    assert (copy / "same/a").stat().st_nlink == 1
    node.start(may_link=False)
    before = len(node.platform.asked_for)
    digest = node.offer(NEW)
    new = await node.trees.get(digest)
    assert shared(old, new) == set()
    assert content_of(new) == whole(NEW)
    assert node.sent(before) == {digest, digest_of(b"new" * KIB), digest_of(b"6" * KIB)}


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_damaged_file_is_found_before_it_is_shared(node: Node, *, is_used: bool) -> None:
    """Also where size and times tell nothing; its tree goes, unless a session has it."""
    old = await node.trees.get(node.offer(OLD))
    damaged = old / "same/large"
    facts = damaged.stat()
    damaged.chmod(0o644)
    with damaged.open("r+b") as file:
        file.seek(KIB + 7)
        file.write(b"!")
    damaged.chmod(0o444)
    os.utime(damaged, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    node.used = {f"dataset {old.name}"} if is_used else set()
    new = await node.trees.get(node.offer(NEW))
    assert content_of(new) == whole(NEW)
    assert old.exists() == is_used
    if is_used:
        assert shared(old, new) == {"same/a"}


async def test_each_file_counts_once_whatever_trees_come_and_go(node: Node) -> None:
    one = {f"{n}": (bytes([n]) * 64 * KIB,) for n in range(8)}
    two = {**one, "8": (b"8" * 64 * KIB,)}
    three = {**two, "0": (b"0" * 64 * KIB,)}
    first, second, third = [node.offer(files) for files in (one, two, three)]
    for digest in (first, second, third):
        await node.trees.get(digest)

    def on_disk() -> Size:
        files = [p.stat() for p in node.place.glob("[!.]*/*") if p.is_file()]
        different = {facts.st_ino: facts.st_size for facts in files}
        return Size.of(sum(different.values()), len(different))

    def total(takes: dict[str, Size]) -> int:
        return sum(size.bytes for size in takes.values())

    slack = 3 * 4 * KIB  # parts of files are rounded to whole ones
    assert abs(total(node.takes()) - on_disk().bytes) <= slack
    node.start()  # an agent that comes later knows which trees share files
    assert abs(total(node.takes()) - on_disk().bytes) <= slack
    for digest in (first, second):
        assert await in_thread(lambda key=digest: node.trees.cache.remove(key, lambda: False))
        assert abs(total(node.takes()) - on_disk().bytes) <= slack
    assert node.takes() == {third: Size.of(9 * 64 * KIB, 9)}


async def test_a_new_version_needs_room_for_what_is_new(node: Node, small_disk: Path) -> None:
    node.place = small_disk / "datasets"
    node.start()
    old = {f"{n}": (bytes([n]) * 1024 * KIB,) for n in range(9)}  # 9 of 16 MiB
    new = {**old, "0": (b"0" * 1024 * KIB,)}
    one, other = await node.trees.get(node.offer(old)), await node.trees.get(node.offer(new))
    assert content_of(other) == whole(new)
    assert one.exists()
    # Where nothing is linked there is no room for both: the old one goes, also if it has what is wanted.
    node.start(may_link=False)
    last = await node.trees.get(node.offer({**new, "1": (b"1" * 1024 * KIB,)}))
    assert not one.exists()
    assert not other.exists()
    assert len(content_of(last)) == 9


async def test_trees_that_share_files_go_until_there_is_room(node: Node, small_disk: Path) -> None:
    """Each frees little as long as others are there."""
    node.place = small_disk / "datasets"
    node.start()
    files = {f"{n}": (bytes([n]) * 512 * KIB,) for n in range(18)}  # 9 MiB
    versions = []
    for n in range(8):
        files = {**files, "0": (bytes([100 + n]) * 256 * KIB,)}
        versions.append((await node.trees.get(node.offer(files))).name)
    await node.trees.get(node.offer({"large": (b"x" * 512 * KIB,) * 16}))  # 8 MiB
    assert not [digest for digest in versions if (node.place / digest).exists()]
    assert not [name for name in node.takes() if name in versions]


async def test_what_is_linked_from_stays_until_that_is_done(node: Node) -> None:
    """Whoever wants its room: relief, another fetch, a removal."""
    old = await node.trees.get(node.offer(OLD))
    is_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def run(work: Callable[[], T], /) -> T:
        if list(node.place.glob(".*.unfinished")):
            is_begun.set()
            await may_go_on.wait()
        return await in_thread(work)

    node.start(run=run)
    fetching = asyncio.ensure_future(node.trees.get(node.offer(NEW)))
    await is_begun.wait()
    await node.relieve()
    assert not await in_thread(lambda: node.trees.cache.remove(old.name, lambda: False))
    assert [one.is_used for one in node.trees.cache.kept()] == [True]
    assert old.exists()
    may_go_on.set()
    new = await fetching
    assert shared(old, new)
    await node.relieve()
    assert not old.exists()
    assert not new.exists()


async def test_what_a_session_uses_stays_across_agents(node: Node, small_disk: Path) -> None:
    """Also with files of its own that others share."""
    node.place = small_disk / "datasets"
    node.start()
    old, new = [(await node.trees.get(node.offer(files))).name for files in (OLD, NEW)]
    node.used = {f"dataset {new}"}
    for _ in range(2):
        await node.relieve()
        assert content_of(node.place / new) == whole(NEW)
        assert not (node.place / old).exists()
        node.start()
    with pytest.raises(NoRoom):
        await node.trees.get(node.offer({"x": (b"x" * 1024 * KIB,) * 16}))
    assert content_of(node.place / new) == whole(NEW)


@pytest.mark.parametrize("may_link", [True, False])
async def test_versions_too_large_for_an_index_share_files_with_the_same_path(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, may_link: bool
) -> None:
    monkeypatch.setattr(donors, "LARGEST_MANIFEST_BYTES", 100)
    node.start(may_link=may_link)
    many = {f"many/{number:03}": (b"%d" % number * KIB,) for number in range(200)}
    old = await node.trees.get(node.offer(OLD | many))
    since = len(node.platform.asked_for)
    changed = (
        NEW | many | {"many/100": (b"other" * KIB,), "first": (b"f" * KIB,), "zz": (b"z" * KIB,)}
    )
    del changed["many/150"]
    digest = node.offer(changed)
    new = await node.trees.get(digest)
    assert content_of(new) == whole(changed)
    # "moved/a" has the content of a file with another path
    fresh = ("other", "f", "z", "new", "6", "a")
    assert node.sent(since) == {digest, *(digest_of(one.encode() * KIB) for one in fresh)}
    same = {*many, "same/a", "same/large"} - {"many/100", "many/150"}
    assert shared(old, new) == (same if may_link else set())
    assert not [one for one in held_open() if one.endswith(".manifest")]
