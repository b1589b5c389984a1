"""Trees that sessions share read-only, by digest: dataset versions and bundles.

A tree is fetched once per node, whoever asks and however often, by a few streams at once. Files that another cached tree
has are linked, and chunks taken from there, so a new version of a dataset costs what changed. An interrupted fetch goes on
where it was. Trees that no replica uses go while the disk is short of room (`eviction.py`), and for others that come
(`reservations.py`).

```
<folder>/<digest>             the tree
<folder>/<digest>.manifest    what it is made of
<folder>/<digest>.bytes       its bytes, its files and folders, "linked" where it shares files; whose sessions asked for it;
                              its mtime is the last use
```

What interrupted fetches leave beside them: `attempts.py`.

What a tree takes of the disk: its bytes, or where it shares files, of each file its bytes divided by its names. So all trees
together take what is on the disk, each file counted once.

Manifests come from users. They are read piece by piece, so that one of a million files takes little memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from nodeagent.folders import flush_filesystem, write_atomically
from nodeagent.machine.accounts import Accounts
from nodeagent.peers.sources import Peers, Sources
from nodeagent.safe_paths import remove_tree
from nodeagent.storage.assembly import Assembly
from nodeagent.storage.attempts import STAGED, Attempts, Unfinished
from nodeagent.storage.cached_content import MOST_TOLD, Stock
from nodeagent.storage.donors import LARGEST_MANIFEST_BYTES, Donors, read_written
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.filling import Filling, Tally
from nodeagent.storage.reservations import Kept, Reservation, Room, Size
from nodeagent.storage.transfer import get_manifest, uninterrupted
from nsml.client.errors import Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload, SystemClock, inline
from nsml.content.digests import is_digest
from nsml.content.errors import ContentError, PathRefused
from nsml.content.manifest import ChunkRef
from nsml.content.pages import Naming
from nsml.content.paths import native_parts
from nsml.content.safe_paths import ByDescriptor
from nsml.content.stored_manifest import StoredManifest
from nsml.v1.peers_pb2 import WantedChunk

_DONORS = 8
_LARGE_BYTES = 1 << 20
"""Manifests from this size on are read in threads of their own."""
_SMALL_BYTES = 128 << 10
"""And up to this one at once: a session waits for the code."""
_LARGE_AT_ONCE = 2
_MANY_FILES = 2_000
FROM_PEERS_BYTES = 4 << 20
"""Smaller trees come from the control plane before other nodes are found."""
_RATED_SHARE = 0.5
"""A fetch of which less came from the control plane says little about how fast that is."""
_MANIFEST = ".manifest"
_NOTE = ".bytes"
_PARTIAL = ".partial"
_LINKED = "linked"
_NOTHING = Size()

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Tree:
    """A tree that is here; `size` is None where its note is missing, `own` until it is counted what of shared files is its part."""

    size: int | None = None
    files: int = 0
    users: set[str] = field(default_factory=set)
    used_at: float = 0.0
    is_linked: bool = False
    own: Size | None = None

    @classmethod
    def read(cls, note: Path) -> _Tree:
        """As this agent or an earlier one noted it; raises OSError, ValueError."""
        first, *users = note.read_text(encoding="utf-8").split("\n")
        size, files, *rest = [*first.split(" "), "0"][:3]
        return cls(
            size=int(size),
            files=int(files),
            is_linked=rest == [_LINKED],
            users=set(users),
            used_at=note.stat().st_mtime,
        )

    def write(self, note: Path) -> None:
        """Note it."""
        first = f"{self.size} {self.files}{f' {_LINKED}' if self.is_linked else ''}"
        write_atomically(note, "\n".join([first, *sorted(self.users)]).encode())
        os.utime(note, (self.used_at, self.used_at))

    @property
    def takes(self) -> Size:
        """Of the disk."""
        return self.own or Size.of(self.size or 0, self.files)


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
        may_link: trees may share files: only where no program can write to a file of a tree, whatever it does.
        peers: other nodes, which may have trees; None: they come from the control plane alone.
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
        may_link: bool = False,
        peers: Peers | None = None,
    ) -> None:
        self._peers = peers
        self._accounts = accounts
        self._may_link = may_link
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
        self._kind = kind
        self._filling = Filling(rpc=rpc, run=run, pause=pause)
        self._attempts = Attempts(self._folder)
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._checking = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._fetches: dict[str, _Fetch] = {}
        self._turn = threading.Lock()
        self._trees: dict[str, _Tree] = {}
        self._unfinished: dict[str, Unfinished] = {}
        self._donating: Counter[str] = Counter()
        self._removed: list[str] = []

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._folder

    def create(self) -> None:
        """Make the folder, find what is there, and remove what a removal or an earlier boot left."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.glob(f".*{_PARTIAL}"):
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
        self._find_unfinished()
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
        folder = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}{_PARTIAL}")
        staged = self._folder / f".{secrets.token_hex(8)}{STAGED}"
        await self._run(partial(target.parent.mkdir, parents=True, exist_ok=True))
        try:
            async with (
                self._manifest(digest, staged) as manifest,
                self._laid_out(digest, manifest, folder, user, read_only=False) as assembly,
            ):
                await uninterrupted(self._run, partial(assembly.name, target))
        finally:
            await uninterrupted(self._run, partial(_remove, folder, staged))

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

    # A `Shelf` of peers/server.py.

    def read_first(self, root: str, wanted: Sequence[WantedChunk], most_bytes: int) -> list[bytes]:
        """See there. Of a tree that is being fetched what is right already."""
        found: list[bytes] = []
        size = 0
        try:
            with ByDescriptor(self._place_of(root)) as tree:
                for one in wanted:
                    if found and size + one.size > most_bytes:
                        break
                    data = _read_at(tree, one)
                    if data is None:
                        break
                    found.append(data)
                    size += len(data)
        except (OSError, PathRefused):
            pass  # it is not here, or not so far
        return found

    def is_fetching(self, root: str) -> bool:
        """See there."""
        return root in self._fetches

    def _place_of(self, root: str) -> Path:
        """Where a tree is, or is growing. FileNotFoundError: nowhere."""
        if not is_digest(root):
            raise FileNotFoundError(errno.ENOENT, "it is no tree", root[:80])
        whole = self._folder / root
        if root in self._trees:
            return whole
        return next(iter(self._attempts.of(root)), whole)

    # A `Cache` of eviction.py: blocking, from any thread.

    def stored(self) -> dict[str, float]:
        """When each was last used, Unix seconds."""
        with self._turn:
            return {
                **{digest: left.used_at for digest, left in self._unfinished.items()},
                **{digest: tree.used_at for digest, tree in self._trees.items()},
            }

    def touch(self, key: str) -> None:
        """It is used now; nothing for one that is not there."""
        with self._turn:
            self._touch(key)

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it, unless it is used; whether it is gone."""
        with self._turn:
            if key not in self._trees and key not in self._unfinished:
                return True
            # Whoever is about to use it has said so before, and looks for it by `_use`.
            if self._donating[key] or is_used():
                return False
            doomed = [self._doom(path) for path in (self._folder / key, *self._attempts.of(key))]
            if self._trees.pop(key, None) is not None:
                self._removed.append(key)
                self._links_changed()
            self._unfinished.pop(key, None)
            self._attempts.staged(key).unlink(missing_ok=True)
            for suffix in (_MANIFEST, _NOTE):
                (self._folder / f"{key}{suffix}").unlink(missing_ok=True)
        _remove(*doomed)
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

    def kept(self) -> list[Kept]:
        """See reservations.Trees."""
        with self._turn:
            whole = [
                Kept(
                    kind=self._kind,
                    key=digest,
                    size=tree.takes,
                    users=frozenset(tree.users),
                    used_at=tree.used_at,
                    is_used=bool(self._donating[digest]),
                )
                for digest, tree in self._trees.items()
            ]
            return whole + [
                Kept(
                    kind=self._kind,
                    key=digest,
                    size=left.takes,
                    users=frozenset(),
                    used_at=left.used_at,
                    is_used=False,
                )
                for digest, left in self._unfinished.items()
            ]

    def recount(self) -> None:
        """See reservations.Trees."""
        with self._turn:
            stale = [
                digest for digest, one in self._trees.items() if one.is_linked and one.own is None
            ]
        for digest in stale:
            own = _part_of(self._folder / digest)
            with self._turn:
                if (tree := self._trees.get(digest)) is not None:
                    tree.own = own

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
        # A fetch that was given up may not have ended yet.
        async with self._fetching.setdefault(digest, asyncio.Lock()):
            staged = self._attempts.staged(digest)
            try:
                earlier, left = await uninterrupted(self._run, partial(self._claim, digest))
                folder = self._attempts.following(digest, earlier)
                async with (
                    self._manifest(digest, staged, may_be_there=bool(earlier)) as manifest,
                    self._laid_out(
                        digest, manifest, folder, user, earlier=earlier, left=left
                    ) as assembly,
                ):
                    if self._is_lasting:
                        # Once it has its name nobody looks at its bytes again, after a power loss neither.
                        await uninterrupted(self._run, partial(flush_filesystem, self._folder))
                    finish = partial(self._finish, digest, manifest, assembly, user)
                    await uninterrupted(self._run, finish)
            except asyncio.CancelledError:
                # The agent ends, or nobody waits any more: the next fetch goes on here.
                await uninterrupted(self._run_long, partial(self._keep_unfinished, digest))
                raise
            except BaseException:
                await uninterrupted(self._run_long, partial(self._attempts.remove, digest))
                raise
            if earlier:
                await uninterrupted(self._run_long, partial(_remove, *earlier))

    def _finish(self, digest: str, manifest: StoredManifest, assembly: Assembly, user: str) -> None:
        """Note what a whole tree is made of, and how much it is, and give it its name."""
        is_linked = assembly.linked_bytes > 0
        tree = _Tree(
            size=manifest.size,
            files=manifest.files + manifest.folders,
            users={user} - {""},
            used_at=self._clock.time(),
            is_linked=is_linked,
        )
        with self._turn:
            self._attempts.staged(digest).replace(self._folder / f"{digest}{_MANIFEST}")
            tree.write(self._folder / f"{digest}{_NOTE}")
            assembly.name(self._folder / digest)
            self._trees[digest] = tree
            if is_linked:
                self._links_changed()

    def _links_changed(self) -> None:
        """Trees that share files are to be counted again; with the turn."""
        for tree in self._trees.values():
            tree.own = None

    def _mark_linked(self, digests: Iterable[str]) -> None:
        """Note, before it is so, that trees share files."""
        with self._turn:
            for digest in digests:
                tree = self._trees.get(digest)
                if tree is not None and not tree.is_linked:
                    tree.is_linked = True
                    if tree.size is not None:
                        tree.write(self._folder / f"{digest}{_NOTE}")

    def _find_unfinished(self) -> None:
        for digest in self._attempts.digests():
            self._keep_unfinished(digest)
        for staged in self._folder.glob(f".*{STAGED}"):
            if staged.name[1:].removesuffix(STAGED) not in self._unfinished:
                staged.unlink()

    def _keep_unfinished(self, digest: str) -> None:
        """Leave what is there of a tree for its next fetch, or until others need the room."""
        left = self._attempts.left(digest)
        with self._turn:
            if left is not None and digest not in self._trees:
                self._unfinished[digest] = left
                return
        self._attempts.remove(digest)

    def _claim(self, digest: str) -> tuple[list[Path], Size]:
        """Take over what earlier fetches left: it is not removed for others any more. What it takes of the disk."""
        with self._turn:
            left = self._unfinished.pop(digest, None)
        return ([], _NOTHING) if left is None else (self._attempts.of(digest), left.takes)

    def _doom(self, path: Path) -> Path:
        """Take its name from what is removed next."""
        doomed = self._folder / f".{secrets.token_hex(8)}{_PARTIAL}"
        with suppress(FileNotFoundError):
            path.rename(doomed)
        return doomed

    @asynccontextmanager
    async def _manifest(
        self, digest: str, staged: Path, *, may_be_there: bool = False
    ) -> AsyncIterator[StoredManifest]:
        """The manifest in the file `staged`, checked."""
        async with self._room.reserved(Size.of(0, 1), "") as reservation:
            if not (may_be_there and await self._run(partial(_is_content, staged, digest))):
                await self._patiently(partial(self._receive, digest, staged, reservation))
            with StoredManifest(staged) as manifest:
                check = partial(manifest.check, look=reservation.look)
                is_large = manifest.encoded_bytes > _LARGE_BYTES
                run = self._run_long if is_large else self._run
                async with self._checking if is_large else nullcontext():
                    await uninterrupted(run, check, cancel=reservation.cancel)
                yield manifest

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
        self,
        digest: str,
        manifest: StoredManifest,
        folder: Path,
        user: str,
        *,
        read_only: bool = True,
        earlier: Sequence[Path] = (),
        left: Size = _NOTHING,
    ) -> AsyncIterator[Assembly]:
        """All files of it, but for its name."""
        tally, began = Tally(), self._clock.monotonic()
        run_whole = self._run_long if manifest.files > _MANY_FILES else self._run
        async with self._room_for(manifest, user, may_link=read_only, left=left) as (
            reservation,
            donors,
        ):
            self.tell_removed()
            assembly = Assembly(
                manifest,
                folder,
                reservation=reservation,
                donors=donors,
                earlier=earlier,
                read_only=read_only,
                may_link=self._may_link,
            )
            try:
                await uninterrupted(self._run, assembly.__enter__)
                async with self._sources(digest, manifest) as peers:
                    await self._filling.fill(digest, assembly, reservation, tally, peers)
                await uninterrupted(run_whole, assembly.seal, cancel=reservation.cancel)
                yield assembly
            finally:
                await uninterrupted(self._run, partial(assembly.__exit__, None, None, None))
        if not tally.is_interrupted and read_only and tally.size >= _RATED_SHARE * manifest.size:
            self._stock.fetched(tally.size, self._clock.monotonic() - began)
        self._stock.came(tally.size - tally.from_peers, tally.from_peers)
        log.info(
            "tree.fetched",
            digest=digest[:16],
            size=manifest.size,
            received=tally.size,
            from_peers=tally.from_peers,
            linked=assembly.linked_bytes,
        )
        await self._tell_damage(donors)

    def _sources(
        self, digest: str, manifest: StoredManifest
    ) -> AbstractAsyncContextManager[Sources | None]:
        """Other nodes that may have a tree; None: they are not asked."""
        if self._peers is None or manifest.size < FROM_PEERS_BYTES:
            return nullcontext()
        return self._peers.of(digest)

    @asynccontextmanager
    async def _room_for(
        self, manifest: StoredManifest, user: str, *, may_link: bool, left: Size
    ) -> AsyncIterator[tuple[Reservation, Donors]]:
        """Room for all that is to be written, and what other trees have, which stay meanwhile: unless it is their room that is needed."""
        whole = Size.of(manifest.size, manifest.files + manifest.folders)
        find = partial(self._donors, manifest)
        run = self._run if manifest.encoded_bytes <= _SMALL_BYTES else self._run_long
        donors, linked = await uninterrupted(run, find)
        if not (may_link and self._may_link):
            linked = Size()
        names = donors.trees
        with self._turn:
            self._donating.update(names)
        try:
            async with AsyncExitStack() as stack:
                try:
                    room = self._room.reserved(whole - linked, user, here=left)
                    reservation = await stack.enter_async_context(room)
                    if linked.files:
                        await self._run(partial(self._mark_linked, names))
                except NoRoom:
                    if not names:
                        raise
                    self._donating.subtract(names)
                    donors, names = Donors(), set()
                    room = self._room.reserved(whole, user, here=left)
                    reservation = await stack.enter_async_context(room)
                yield reservation, donors
        finally:
            self._donating.subtract(names)

    async def _tell_damage(self, donors: Donors) -> None:
        """Say which files of other trees were not what they should be, and remove those trees where nobody uses them."""
        for file in donors.damaged:
            log.warning("tree.damaged", digest=file.tree.name[:16], file=file.path)
        for digest in {file.tree.name for file in donors.damaged}:
            await uninterrupted(self._run_long, partial(self._room.discard, self._kind, digest))
        self.tell_removed()

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await call()
            except Unavailable:
                await self._pause()

    def _donors(self, manifest: StoredManifest) -> tuple[Donors, Size]:
        """What the trees fetched last have of it, and how much of that are whole files."""
        found = self._newest_manifests()
        trees = [(path.with_name(path.name.removesuffix(_MANIFEST)), path) for path in found]
        donors, linked = Donors.of(manifest, trees), Size()
        if donors.trees:
            linked = sum(
                (Size.of(one.size, 1) for one in manifest.entries if donors.file_of(one)),
                start=Size(),
            )
        return donors, linked

    def _newest_manifests(self) -> list[Path]:
        found = []
        for path in self._folder.glob(f"*{_MANIFEST}"):
            with suppress(FileNotFoundError):
                facts = path.stat()
                if facts.st_size <= LARGEST_MANIFEST_BYTES:
                    found.append((facts.st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:_DONORS]]


def _read_at(tree: ByDescriptor, one: WantedChunk) -> bytes | None:
    """A chunk of a tree, or of what is there of it; None: it is not there. Raises OSError, PathRefused."""
    opened = tree.open_file(native_parts(one.path))
    try:
        return read_written(opened, ChunkRef(one.digest.hex(), one.size), one.offset)
    finally:
        os.close(opened)


def _is_tree(path: Path) -> bool:
    return is_digest(path.name) and path.is_dir()


def _is_content(path: Path, digest: str) -> bool:
    """Whether a file is there, and the encoding of the tree that the digest names."""
    try:
        with path.open("rb", buffering=0) as file:
            naming = Naming(file)
            while naming.read():
                pass
            return naming.is_named(digest)
    except FileNotFoundError:
        return False


def _remove(*places: Path) -> None:
    for place in places:
        remove_tree(place)


def _part_of(tree: Path) -> Size:
    """What a tree takes of the disk: of each file its part, as many others as share it."""
    size, files = 0.0, 0.0
    for _, folders, names, here in os.fwalk(tree):
        files += len(folders)
        for name in names:
            with suppress(FileNotFoundError):
                facts = os.lstat(name, dir_fd=here)
                size += facts.st_size / facts.st_nlink
                files += 1 / facts.st_nlink
    return Size.of(round(size), round(files))
