"""Trees that sessions share read-only, by digest: dataset versions and bundles.

A tree is fetched once per node, whoever asks and however often. Chunks that another cached tree
holds are taken from there, so a new version of a dataset costs what changed. Trees that no replica
uses go while the disk is short of room (`eviction.py`), and for others that come (`reservations.py`).

```
<folder>/<digest>             the tree
<folder>/<digest>.manifest    what it is made of
<folder>/<digest>.bytes       its bytes, its files and folders, whose sessions asked for it; its mtime is the last use
```

Manifests come from users. They are read piece by piece, so that one of a million files takes little memory.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from nodeagent.folders import flush_filesystem, write_atomically
from nodeagent.machine.accounts import Accounts
from nodeagent.safe_paths import remove_tree
from nodeagent.storage.cached_content import MOST_TOLD, Stock
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.reservations import Reservation, Room, Size
from nodeagent.storage.transfer import get_blobs, get_manifest, uninterrupted
from nsml.client.errors import Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload, SystemClock, inline
from nsml.content.digests import digest_of, is_digest
from nsml.content.errors import ContentError
from nsml.content.extract import Extraction
from nsml.content.manifest import ChunkRef
from nsml.content.paths import native_parts
from nsml.content.stored_manifest import StoredManifest

_DONORS = 8
_DONOR_MANIFEST_BYTES = 8 << 20
"""Of larger manifests no chunks are looked for elsewhere, nor taken: that would take much memory."""
_LARGE_BYTES = 1 << 20
"""Manifests from this size on are read in threads of their own."""
_SMALL_BYTES = 128 << 10
"""And up to this one at once: a session waits for the code."""
_LARGE_AT_ONCE = 2
_FETCHED_AT_ONCE = 500
_LOOKED_AT_ONCE = 5_000
_MADE_AT_ONCE = 2_000
_HELD_CHUNKS = 64
_HELD_BYTES = 64 << 10
"""So many chunks smaller than that are written together: to hand one to a thread takes longer than to write it."""
"""Files that are made before others have their turn in the threads."""
_MANIFEST = ".manifest"
_NOTE = ".bytes"
_PARTIAL, _STAGED = ".partial", ".staged"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a chunk is in a tree that is here already."""

    path: Path
    offset: int


@dataclass(slots=True)
class _Tally:
    """What came from the control plane, and whether that was interrupted."""

    size: int = 0
    is_interrupted: bool = False


@dataclass(slots=True, kw_only=True)
class _Tree:
    """A tree that is here; `size` is None where its note is missing."""

    size: int | None = None
    files: int = 0
    users: set[str] = field(default_factory=set)
    used_at: float = 0.0

    @classmethod
    def read(cls, note: Path) -> _Tree:
        """As this agent or an earlier one noted it; raises OSError, ValueError."""
        first, *users = note.read_text(encoding="utf-8").split("\n")
        size, _, files = first.partition(" ")
        used_at = note.stat().st_mtime
        return cls(size=int(size), files=int(files or 0), users=set(users), used_at=used_at)

    def write(self, note: Path) -> None:
        """Note it."""
        lines = [f"{self.size} {self.files}", *sorted(self.users)]
        write_atomically(note, "\n".join(lines).encode())
        os.utime(note, (self.used_at, self.used_at))


@dataclass(slots=True)
class _Fetch:
    """A fetch that several sessions may wait for."""

    task: asyncio.Task[None]
    user: str
    waiting: int = 0


class Trees:
    """The trees below one folder, named by the digest of their manifests.

    Args:
        folder: made when missing; private to the agent.
        boot: of the machine; trees given one are kept for that boot alone, and need not be on disk
            before they count as whole. Without one a tree outlives a loss of power.
        rpc: gives the connection of the moment.
        run, run_long: for the disk; the second for what may take minutes.
        pause: awaited before an interrupted fetch goes on.
        clock: by which fetches are timed.
        stock: is told what is here, and how fast it came; None: nobody asks.
        room: on the disk of the folder; None: these trees have it for themselves.
        kind: what they are called among what replicas use.
        accounts: has groups of trees, which are given back with them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
        run_long: Offload | None = None,
        boot: str = "",
        clock: Clock | None = None,
        stock: Stock | None = None,
        room: Room | None = None,
        kind: str = "tree",
        accounts: Accounts | None = None,
    ) -> None:
        self._accounts = accounts
        self._clock = clock or SystemClock()
        self._stock = stock or Stock()
        self._folder = folder / boot
        self._is_lasting = not boot
        self._rpc = rpc
        self._run = run
        self._run_long = run_long or run
        self._pause = pause
        self._room = room or Room(folder, run=run, run_long=self._run_long)
        self._room.add(kind, self)
        self._checking = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._fetches: dict[str, _Fetch] = {}
        self._turn = threading.Lock()
        self._trees: dict[str, _Tree] = {}
        self._removed: list[str] = []

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._folder

    def create(self) -> None:
        """Make the folder, and remove what an interrupted fetch or an earlier boot left."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in [*self._folder.glob(f".*{_PARTIAL}"), *self._folder.glob(f".*{_STAGED}")]:
            remove_tree(left)
        if not self._is_lasting:
            for earlier in set(self._folder.parent.iterdir()) - {self._folder}:
                remove_tree(earlier)
        self._trees = {
            path.name: self._found(path) for path in self._folder.iterdir() if _is_tree(path)
        }
        for suffix in (_MANIFEST, _NOTE):
            for note in self._folder.glob(f"*{suffix}"):
                if note.name.removesuffix(suffix) not in self._trees:
                    note.unlink()
        if self._accounts is not None:
            self._release(*self._accounts.trees() - self._trees.keys())

    async def get(self, digest: str, user: str = "") -> Path:
        """The folder of the tree, for a session of `user`; waits for the control plane when it is away.

        Raises:
            ClientError: it is not there, or not for this node.
            ContentError: what came is not what the digest names.
            NoRoom: it does not fit.
            OSError: the disk refused.
        """
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        while not await self._run(partial(self._use, digest, user)):
            fetch = self._fetches.get(digest)
            if fetch is None:
                fetch = self._begin(digest, user)
            try:
                await self._wait(digest, fetch)
                if fetch.user == user:
                    break
            except NoRoom as error:
                # the share of another user says nothing of this one's
                if not error.is_of_user or fetch.user == user:
                    raise
        self.tell_removed()
        tree = self._trees.get(digest)
        self._stock.used(digest, tree.size if tree is not None else None)
        return self._folder / digest

    async def fetch(self, digest: str, target: Path, user: str = "") -> None:
        """Lay the tree out as the new folder `target`, writable and not shared; errors as `get`."""
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        async with (
            self._staged(digest) as staged,
            self._laid_out(digest, staged, target, user, read_only=False) as extraction,
        ):
            await uninterrupted(self._run, extraction.finish)

    @asynccontextmanager
    async def room_for_copy(self, digest: str, user: str = "") -> AsyncIterator[Reservation]:
        """Room for a copy of a tree that is here, while the context lasts; raises NoRoom."""
        tree = self._trees.get(digest, _Tree())
        async with self._room.reserved(Size.of(tree.size or 0, tree.files), user) as reservation:
            yield reservation

    def left(self) -> list[tuple[str, int]]:
        """Digest and bytes of the trees that are here and were used last, oldest first."""
        noted = sorted(self._trees.items(), key=lambda one: one[1].used_at)
        return [(digest, tree.size) for digest, tree in noted if tree.size is not None][-MOST_TOLD:]

    def tell_removed(self) -> None:
        """Tell the stock which trees went; for the loop's thread."""
        with self._turn:
            removed, self._removed = self._removed, []
        for digest in removed:
            self._stock.gone(digest)

    # A `Cache` of eviction.py: blocking, from any thread.

    def stored(self) -> dict[str, float]:
        """When each was last used, Unix seconds."""
        with self._turn:
            return {digest: tree.used_at for digest, tree in self._trees.items()}

    def touch(self, key: str) -> None:
        """It is used now; nothing for one that is not there."""
        with self._turn:
            self._touch(key)

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it, unless it is used; whether it is gone."""
        doomed = self._folder / f".{secrets.token_hex(8)}{_PARTIAL}"
        with self._turn:
            if key not in self._trees:
                return True
            # Whoever is about to use it has said so before, and looks for it by `_use`.
            if is_used():
                return False
            with suppress(FileNotFoundError):
                (self._folder / key).rename(doomed)
            del self._trees[key]
            self._removed.append(key)
            for suffix in (_MANIFEST, _NOTE):
                (self._folder / f"{key}{suffix}").unlink(missing_ok=True)
        remove_tree(doomed)
        with self._turn:
            if key not in self._trees:  # or it is here again, with the same group
                self._release(key)
        return True

    def _release(self, *keys: str) -> None:
        """Give back the groups of trees that are gone; what fails is done at the next start."""
        if self._accounts is not None:
            try:
                self._accounts.release(*keys)
            except OSError as error:
                log.warning("tree.group_kept", error=str(error))

    def kept(self) -> list[tuple[str, Size, frozenset[str], float]]:
        """Of each its digest, what it takes of the disk, its users, and when it was last used."""
        with self._turn:
            return [
                (digest, Size.of(tree.size or 0, tree.files), frozenset(tree.users), tree.used_at)
                for digest, tree in self._trees.items()
            ]

    # Its inside.

    def _found(self, path: Path) -> _Tree:
        try:
            return _Tree.read(path.with_name(path.name + _NOTE))
        except (OSError, ValueError):
            return _Tree(used_at=path.stat().st_mtime)

    def _use(self, digest: str, user: str) -> bool:
        """Whether it is here; then it is noted that it is used, and by whom."""
        with self._turn:
            tree = self._trees.get(digest)
            if tree is None:
                return False
            if not (self._folder / digest).is_dir():
                del self._trees[digest]
                return False
            if user in {"", *tree.users} or tree.size is None:
                self._touch(digest)
            else:
                tree.users.add(user)
                tree.used_at = self._clock.time()
                tree.write(self._folder / f"{digest}{_NOTE}")
            return True

    def _touch(self, digest: str) -> None:
        tree = self._trees.get(digest)
        if tree is not None:
            tree.used_at = now = self._clock.time()
            with suppress(OSError):
                os.utime(self._folder / f"{digest}{_NOTE}", (now, now))

    def _begin(self, digest: str, user: str) -> _Fetch:
        task = asyncio.ensure_future(self._provide(digest, user))
        fetch = self._fetches[digest] = _Fetch(task, user)

        def end(task: asyncio.Task[None]) -> None:
            self._forget(digest, fetch)
            if not task.cancelled():
                task.exception()  # it is raised where it is waited for, if it still is

        task.add_done_callback(end)
        return fetch

    async def _wait(self, digest: str, fetch: _Fetch) -> None:
        """Return when it has ended. Once nobody waits it is given up, which takes nobody's time."""
        fetch.waiting += 1
        try:
            await asyncio.shield(fetch.task)
        finally:
            fetch.waiting -= 1
            if not fetch.waiting and not fetch.task.done():
                fetch.task.cancel()
                self._forget(digest, fetch)

    def _forget(self, digest: str, fetch: _Fetch) -> None:
        if self._fetches.get(digest) is fetch:
            del self._fetches[digest]

    async def _provide(self, digest: str, user: str) -> None:
        target = self._folder / digest
        async with (
            self._staged(digest) as staged,
            self._laid_out(digest, staged, target, user, read_only=True) as extraction,
        ):
            if self._is_lasting:
                # Once it has its name nobody looks at its bytes again, after a power loss neither.
                await uninterrupted(self._run, partial(flush_filesystem, self._folder))
            finish = partial(self._finish, digest, staged, extraction, user)
            await uninterrupted(self._run, finish)

    def _finish(self, digest: str, staged: _Staged, extraction: Extraction, user: str) -> None:
        """Note what a whole tree is made of, and how much it is, and give it its name."""
        manifest = staged.manifest
        tree = _Tree(
            size=manifest.size,
            files=manifest.files + manifest.folders,
            users={user} - {""},
            used_at=self._clock.time(),
        )
        with self._turn:
            staged.path.replace(self._folder / f"{digest}{_MANIFEST}")
            tree.write(self._folder / f"{digest}{_NOTE}")
            extraction.finish()
            self._trees[digest] = tree

    @asynccontextmanager
    async def _staged(self, digest: str) -> AsyncIterator[_Staged]:
        """The manifest in a file, checked."""
        path = self._folder / f".{secrets.token_hex(8)}{_STAGED}"
        try:
            async with self._room.reserved(Size.of(0, 1), "") as reservation:
                await self._patiently(partial(self._receive, digest, path, reservation))
                with StoredManifest(path) as manifest:
                    check = partial(manifest.check, look=reservation.look)
                    is_large = manifest.encoded_bytes > _LARGE_BYTES
                    run = self._run_long if is_large else self._run
                    async with self._checking if is_large else nullcontext():
                        await uninterrupted(run, check, cancel=reservation.cancel)
                    yield _Staged(path, manifest)
        finally:
            path.unlink(missing_ok=True)

    async def _receive(self, digest: str, path: Path, reservation: Reservation) -> None:
        """A manifest, to a file: its size is not known before."""
        with path.open("wb") as file:

            def write(data: bytes) -> None:
                reservation.look()
                file.write(data)

            async def take(data: bytes) -> None:
                run = inline if len(data) <= _SMALL_BYTES else self._run
                await uninterrupted(run, partial(write, data))

            await get_manifest(self._rpc(), digest, take)

    @asynccontextmanager
    async def _laid_out(
        self, digest: str, staged: _Staged, target: Path, user: str, *, read_only: bool
    ) -> AsyncIterator[Extraction]:
        """All files of it, but for its name."""
        manifest = staged.manifest
        need = Size.of(manifest.size, manifest.files + manifest.folders)
        tally, began = _Tally(), self._clock.monotonic()
        async with self._room.reserved(need, user) as reservation:
            self.tell_removed()
            donors = await uninterrupted(self._run, partial(self._donors, manifest))
            extraction = Extraction(manifest, target, limits=None, read_only=read_only)
            try:
                await uninterrupted(self._run, extraction.__enter__)
                async with aclosing(self._chunks(digest, manifest, donors, tally)) as chunks:
                    held: deque[bytes] = deque()
                    write = partial(_write, extraction, held, reservation)
                    async for data in chunks:
                        held.append(data)
                        if len(data) >= _HELD_BYTES or len(held) >= _HELD_CHUNKS:
                            await self._step(write, reservation)
                    if held or manifest.files > _MADE_AT_ONCE:  # the end makes those that are left
                        await self._step(write, reservation)
                yield extraction
            finally:
                run = self._run_long if manifest.files > _MADE_AT_ONCE else self._run
                await uninterrupted(run, partial(extraction.__exit__, None, None, None))
        if not tally.is_interrupted and read_only:
            self._stock.fetched(tally.size, self._clock.monotonic() - began)
        log.info("tree.fetched", digest=digest[:16], size=manifest.size, reused=len(donors))

    async def _step(self, work: Callable[[], bool], reservation: Reservation) -> None:
        """Do it, in pieces: a million files are made between two chunks, and others wait for a thread."""
        while not await uninterrupted(self._run, work, cancel=reservation.cancel):
            pass

    async def _chunks(
        self, root: str, manifest: StoredManifest, donors: dict[str, _Place], tally: _Tally
    ) -> AsyncGenerator[bytes, None]:
        """The chunks in the order of `manifest.refs()`."""
        batches = _batches(manifest)
        run = inline if manifest.encoded_bytes <= _SMALL_BYTES else self._run
        while (batch := await uninterrupted(run, lambda: next(batches, None))) is not None:
            wanted: list[tuple[ChunkRef, int]] = []
            for ref, times in batch:
                data = await self._local(ref, donors)
                if data is None:
                    wanted.append((ref, times))
                    continue
                async with aclosing(self._remote(root, wanted, tally)) as fetched:
                    async for piece in fetched:
                        yield piece
                wanted = []
                for _ in range(times):
                    yield data
            async with aclosing(self._remote(root, wanted, tally)) as fetched:
                async for piece in fetched:
                    yield piece

    async def _local(self, ref: ChunkRef, donors: dict[str, _Place]) -> bytes | None:
        place = donors.get(ref.digest)
        if place is None:
            return None
        return await self._run(partial(_read_chunk, place, ref))

    async def _remote(
        self, root: str, wanted: Sequence[tuple[ChunkRef, int]], tally: _Tally
    ) -> AsyncGenerator[bytes, None]:
        """Chunks from the store, each as often as it is wanted, going on where a broken connection stopped."""
        digests = [ref.digest for ref, _ in wanted]
        done = 0
        while done < len(digests):
            try:
                async with aclosing(get_blobs(self._rpc(), root, digests[done:])) as blobs:
                    async for _, data in blobs:
                        tally.size += len(data)
                        times = wanted[done][1]
                        done += 1
                        for _ in range(times):
                            yield data
            except Unavailable as error:
                tally.is_interrupted = True
                log.warning("tree.interrupted", digest=root[:16], error=error.message)
                await self._pause()

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await call()
            except Unavailable:
                await self._pause()

    def _donors(self, manifest: StoredManifest) -> dict[str, _Place]:
        """Where chunks of `manifest` are in the trees fetched last."""
        if manifest.encoded_bytes > _DONOR_MANIFEST_BYTES:
            return {}
        paths = self._newest_manifests()
        wanted = {ref.digest for ref in manifest.refs()} if paths else set()
        places: dict[str, _Place] = {}
        for path in paths:
            tree = path.with_name(path.name.removesuffix(_MANIFEST))
            with suppress(OSError, ContentError), StoredManifest(path) as donor:
                for entry in donor.entries:
                    offset = 0
                    for ref in entry.chunks:
                        if ref.digest in wanted:
                            places.setdefault(
                                ref.digest, _Place(tree.joinpath(*native_parts(entry.path)), offset)
                            )
                        offset += ref.size
        return places

    def _newest_manifests(self) -> list[Path]:
        found = []
        for path in self._folder.glob(f"*{_MANIFEST}"):
            with suppress(FileNotFoundError):
                facts = path.stat()
                if facts.st_size <= _DONOR_MANIFEST_BYTES:
                    found.append((facts.st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:_DONORS]]


@dataclass(frozen=True, slots=True)
class _Staged:
    """A manifest on its way to its place."""

    path: Path
    manifest: StoredManifest


def _batches(manifest: StoredManifest) -> Iterator[list[tuple[ChunkRef, int]]]:
    """Chunks in order, and how often each follows itself; now and then none, where few files have any."""
    batch: list[tuple[ChunkRef, int]] = []
    looked = 0
    for entry in manifest.entries:
        looked += 1
        for ref in entry.chunks:
            looked += 1
            if batch and batch[-1][0] == ref:
                batch[-1] = (ref, batch[-1][1] + 1)
            else:
                batch.append((ref, 1))
            if len(batch) >= _FETCHED_AT_ONCE or looked >= _LOOKED_AT_ONCE:
                yield batch
                batch, looked = [], 0
        if looked >= _LOOKED_AT_ONCE:
            yield batch
            batch, looked = [], 0
    yield batch


def _write(extraction: Extraction, chunks: deque[bytes], reservation: Reservation) -> bool:
    """Take chunks, and make the files before and after them; False when many were made and some may be left."""
    left = _MADE_AT_ONCE
    while left > 0:
        made = extraction.advance()
        if made is not None:
            reservation.spend(0, made)
            left -= made
        elif chunks:
            reservation.spend(len(chunks[0]))
            extraction.write(chunks.popleft())
        else:
            return True
    return False


def _is_tree(path: Path) -> bool:
    return is_digest(path.name) and path.is_dir()


def _read_chunk(place: _Place, ref: ChunkRef) -> bytes | None:
    """The chunk, or None when the file does not hold it any more."""
    try:
        with place.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), ref.size, place.offset)
    except OSError:
        return None
    return data if digest_of(data) == ref.digest else None
