"""Trees that sessions share read-only, by digest: dataset versions and bundles.

A tree is fetched once per node, for all sessions, over a few streams. Files of other cached trees are linked, and their
chunks reused, so a new version of a dataset costs only its changes. An interrupted fetch is resumed.
Unused trees are evicted while the disk is short of room (`eviction.py`), and to make room for others
(`reservations.py`).

Layout on disk: `tree_folder.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from nodeagent.folders import flush_filesystem
from nodeagent.machine.accounts import Accounts
from nodeagent.peers.sources import Sources
from nodeagent.storage.assembly import Assembly
from nodeagent.storage.attempts import STAGED
from nodeagent.storage.cached_content import Stock
from nodeagent.storage.donors import Donors, is_large
from nodeagent.storage.eviction import NoRoom
from nodeagent.storage.filling import Filling, Tally
from nodeagent.storage.manifests import SMALL_BYTES, Manifests
from nodeagent.storage.other_sources import OtherSources
from nodeagent.storage.reservations import Reservation, Room, Size
from nodeagent.storage.transfer import uninterrupted
from nodeagent.storage.tree_folder import PARTIAL, StoredTree, TreeFolder, remove_all
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload, SystemClock
from nsml.content.digests import is_digest
from nsml.content.errors import ContentError
from nsml.content.stored_manifest import StoredManifest

_MANY_FILES = 2_000
FROM_OTHERS_BYTES = 4 << 20
"""Smaller trees are fetched from the control plane, without a search for other sources."""
_RATED_SHARE = 0.5
"""Fetches of a smaller part of their tree do not count in the throughput."""
_NOTHING = Size()

log = structlog.get_logger()


@dataclass(slots=True)
class _Fetch:
    """A fetch that several sessions may wait for."""

    task: asyncio.Task[None]
    user: str
    waiting: int = 0


class Trees:
    """The trees below one folder, named by the digest of their manifests.

    Args:
        folder: created if missing; private to the agent.
        boot: boot ID of the machine: trees are kept for this boot alone, and need not be flushed to
            count as whole. Without one a tree survives a loss of power.
        rpc: returns the current connection.
        run, run_long: run disk work in threads; the second for work of minutes.
        pause: awaited before an interrupted fetch is resumed.
        clock: measures the time of fetches.
        stock: reports the cached trees and the throughput; None: no reports.
        room: reservations on the folder's disk; None: these trees have it for themselves.
        kind: their kind in the uses of replicas.
        accounts: groups of trees, released with them.
        may_link: trees may share files: only if no program can write to a file of a tree, whatever it does.
        others: sources of large trees that are tried before the control plane.
        removing: see TreeFolder.
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
        others: OtherSources | None = None,
        removing: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._others = others or OtherSources()
        self._may_link = may_link
        self._clock = clock or SystemClock()
        self._stock = stock or Stock()
        self._run = run
        self._run_long = run_long or run
        self.cache = TreeFolder(
            folder,
            boot=boot,
            kind=kind,
            clock=self._clock,
            accounts=accounts,
            is_fetching=lambda root: root in self._fetches,
            removing=removing,
        )
        """The cached trees: for eviction, and for peers."""
        self._room = room or Room(folder, run=run, run_long=self._run_long)
        self._room.add(kind, self.cache)
        self._kind = kind
        self._manifests = Manifests(
            self._room, rpc=rpc, run=run, run_long=self._run_long, pause=pause
        )
        self._filling = Filling(rpc=rpc, run=run, pause=pause)
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fetches: dict[str, _Fetch] = {}

    @property
    def folder(self) -> Path:
        """The folder of the trees."""
        return self.cache.path

    def create(self) -> None:
        """See TreeFolder."""
        self.cache.create()

    async def get(self, digest: str, user: str = "", *, is_apart: bool = False) -> Path:
        """Return the folder of the tree, for a session of `user`; waits while the control plane is unreachable.

        `is_apart`: the session sees what others of its user may not. If the tree is fetched for it, it shares no file
        with another tree: who guesses a hidden file could see by the number of links that it is here.

        Raises:
            ClientError: the tree does not exist, or is not for this node.
            ContentError: the received content does not match the digest.
            NoRoom: it does not fit.
            OSError: the disk refused.
        """
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        while not await self._run(partial(self.cache.use, digest, user)):
            fetch = self._fetches.get(digest)
            if fetch is None:
                fetch = self._begin(digest, user, is_apart=is_apart)
            try:
                await self._wait(digest, fetch)
                if fetch.user == user:
                    break
            except NoRoom as error:
                # the share of another user is no limit of this one
                if not error.is_of_user or fetch.user == user:
                    raise
        self.tell_removed()
        tree = self.cache.get(digest)
        self._stock.used(digest, tree.size if tree is not None else None)
        return self.folder / digest

    async def settle(self, digest: str) -> None:
        """Return once no fetch of the tree, cancelled ones included, writes any more."""
        async with self._fetching.setdefault(digest, asyncio.Lock()):
            pass

    async def fetch(self, digest: str, target: Path, user: str = "") -> None:
        """Fetch the tree to the new folder `target`, writable and not shared; errors as `get`."""
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        folder = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}{PARTIAL}")
        staged = self.folder / f".{secrets.token_hex(8)}{STAGED}"
        await self._run(partial(target.parent.mkdir, parents=True, exist_ok=True))
        try:
            async with (
                self._manifests.opened(digest, staged) as manifest,
                self._laid_out(digest, manifest, folder, user, read_only=False) as assembly,
            ):
                await uninterrupted(self._run, partial(assembly.name, target))
        finally:
            await uninterrupted(self._run, partial(remove_all, folder, staged))

    @asynccontextmanager
    async def room_for_copy(self, digest: str, user: str = "") -> AsyncIterator[Reservation]:
        """Reserve room for a copy of a cached tree, while the context lasts; raises NoRoom."""
        tree = self.cache.get(digest) or StoredTree()
        async with self._room.reserved(Size.of(tree.size or 0, tree.files), user) as reservation:
            yield reservation

    def tell_removed(self) -> None:
        """Report removed trees to the stock; for the loop's thread."""
        for digest in self.cache.take_removed():
            self._stock.gone(digest)

    def _begin(self, digest: str, user: str, *, is_apart: bool) -> _Fetch:
        task = asyncio.ensure_future(self._provide(digest, user, is_apart=is_apart))
        fetch = self._fetches[digest] = _Fetch(task, user)

        def end(task: asyncio.Task[None]) -> None:
            self._forget(digest, fetch)
            if not task.cancelled():
                task.exception()  # raised to waiters, if any are left

        task.add_done_callback(end)
        return fetch

    async def _wait(self, digest: str, fetch: _Fetch) -> None:
        """Wait for its end. When the last waiter leaves, the fetch is cancelled, without waiting for that."""
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

    async def _provide(self, digest: str, user: str, *, is_apart: bool) -> None:
        # A cancelled fetch may not have ended yet.
        async with self._fetching.setdefault(digest, asyncio.Lock()):
            staged = self.cache.attempts.staged(digest)
            try:
                earlier, left = await uninterrupted(self._run, partial(self.cache.claim, digest))
                folder = self.cache.attempts.following(digest, earlier)
                async with (
                    self._manifests.opened(digest, staged, may_be_there=bool(earlier)) as manifest,
                    self._laid_out(
                        digest,
                        manifest,
                        folder,
                        user,
                        is_apart=is_apart,
                        earlier=earlier,
                        left=left,
                    ) as assembly,
                ):
                    if self.cache.is_lasting:
                        # A tree with its name is not checked again, not even after a power loss.
                        await uninterrupted(self._run, partial(flush_filesystem, self.folder))
                    finish = partial(
                        self.cache.finish, digest, manifest, assembly, user, is_apart=is_apart
                    )
                    await uninterrupted(self._run, finish)
            except asyncio.CancelledError:
                # The agent stops, or nobody waits any more: the next fetch resumes here.
                await uninterrupted(self._run_long, partial(self.cache.keep_unfinished, digest))
                raise
            except BaseException:
                await uninterrupted(self._run_long, partial(self.cache.attempts.remove, digest))
                raise
            if earlier:
                await uninterrupted(self._run_long, partial(remove_all, *earlier))

    @asynccontextmanager
    async def _laid_out(
        self,
        digest: str,
        manifest: StoredManifest,
        folder: Path,
        user: str,
        *,
        read_only: bool = True,
        is_apart: bool = False,
        earlier: Sequence[Path] = (),
        left: Size = _NOTHING,
    ) -> AsyncIterator[Assembly]:
        """Assemble all files of a tree; only its name is missing."""
        tally, began = Tally(), self._clock.monotonic()
        run_whole = self._run_long if manifest.files > _MANY_FILES else self._run
        may_link = self._may_link and read_only and not is_apart
        finding = partial(self._donors, manifest, is_apart=is_apart)
        async with self._room_for(manifest, user, finding, may_link=may_link, left=left) as (
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
                may_link=may_link,
            )
            try:
                await uninterrupted(self._run, assembly.__enter__)
                async with self._sources(digest, manifest) as sources:
                    await self._filling.fill(digest, assembly, reservation, tally, sources)
                await uninterrupted(run_whole, assembly.seal, cancel=reservation.cancel)
                yield assembly
            finally:
                await uninterrupted(self._run, partial(assembly.__exit__, None, None, None))
        if not tally.is_interrupted and read_only and tally.size >= _RATED_SHARE * manifest.size:
            self._stock.fetched(tally.size, self._clock.monotonic() - began)
        self._stock.came(tally.size, tally.others)
        log.info(
            "tree.fetched",
            digest=digest[:16],
            size=manifest.size,
            received=tally.size,
            **{f"from_{kind}": size for kind, size in tally.others.items()},
            linked=assembly.linked_bytes,
        )
        await self._tell_damage(donors)

    @asynccontextmanager
    async def _sources(
        self, digest: str, manifest: StoredManifest
    ) -> AsyncIterator[Sequence[Sources]]:
        """Return other sources of a tree than the control plane, those of least cost to others first."""
        if manifest.size < FROM_OTHERS_BYTES:
            yield ()
            return
        async with self._others.of(digest) as sources:
            yield sources

    @asynccontextmanager
    async def _room_for(
        self,
        manifest: StoredManifest,
        user: str,
        find: Callable[[], tuple[Donors, Size]],
        *,
        may_link: bool,
        left: Size,
    ) -> AsyncIterator[tuple[Reservation, Donors]]:
        """Reserve room for a tree, and find donors, which are not evicted meanwhile, unless their room is needed."""
        whole = Size.of(manifest.size, manifest.files + manifest.folders)
        run = self._run if manifest.encoded_bytes <= SMALL_BYTES else self._run_long
        donors, linked = await uninterrupted(run, find)
        if not may_link:
            linked = Size()
        names = donors.trees
        self.cache.lend(names)
        try:
            async with AsyncExitStack() as stack:
                try:
                    room = self._room.reserved(whole - linked, user, here=left)
                    reservation = await stack.enter_async_context(room)
                    if linked.files:
                        await self._run(partial(self.cache.mark_linked, names))
                except NoRoom:
                    if not names:
                        raise
                    self.cache.give_back(names)
                    donors.close()
                    donors, names = Donors(), set()
                    room = self._room.reserved(whole, user, here=left)
                    reservation = await stack.enter_async_context(room)
                yield reservation, donors
        finally:
            self.cache.give_back(names)
            donors.close()

    async def _tell_damage(self, donors: Donors) -> None:
        """Log damaged files of other trees, and remove those trees if unused."""
        for file in donors.damaged:
            log.warning("tree.damaged", digest=file.tree.name[:16], file=file.path)
        for digest in {file.tree.name for file in donors.damaged}:
            await uninterrupted(self._run_long, partial(self._room.discard, self._kind, digest))
        self.tell_removed()

    def _donors(self, manifest: StoredManifest, *, is_apart: bool) -> tuple[Donors, Size]:
        """Find content of the manifest in the trees fetched last, and the size of whole files among it."""
        is_big = is_large(manifest.encoded_bytes)
        found = self.cache.newest_manifests(large=is_big, with_apart=is_apart)
        trees = [(path.with_name(path.stem), path) for path in found]
        donors, linked = Donors.of(manifest, trees), Size()
        for entry in manifest.entries if donors.trees else ():
            donors.look_at(entry)
            if donors.file_of(entry):
                linked += Size.of(entry.size, 1)
        return donors, linked
