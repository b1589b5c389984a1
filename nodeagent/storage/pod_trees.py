"""Datasets in a folder shared by the agents of a pod: each is fetched once for all of them.

```
<folder>/trees/               as in a cache of one agent (tree_folder.py); only the holder of the lock writes there
<folder>/lock.N               see pod_lock.py
<folder>/uses/<digest>.<agent>   sessions of that agent use the tree; its mtime is the agent's last refresh
<folder>/going.<digest>       the tree is being removed
```

A tree is removed only if no agent uses it. To use one, an agent first marks the use, then checks for a removal; to remove one, it
first marks the removal, then checks for uses: one of them sees the other. The remover checks again after renaming the tree,
and renames it back if used: it may have been suspended for so long that it lost the lock. A tree with its name is whole, as in a cache of one agent: each chunk was compared with its digest, by
the agent that fetched it, and the others trust that agent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

from nodeagent.storage.datasets import Trees
from nodeagent.storage.pod_lock import BEAT_S, PodLock
from nodeagent.storage.reservations import Room
from nodeagent.storage.transfer import uninterrupted
from nodeagent.storage.tree_folder import StoredTree, note_of
from nsml.common.concurrency import to_its_end
from nsml.content.digests import is_digest
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from nodeagent.storage.cached_content import Stock
    from nodeagent.storage.other_sources import OtherSources
    from nodeagent.storage.pod_lock import HeldLock
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Clock, Offload

_LOOK_EVERY_S: Final = 1.0
_SIGN_EVERY_S: Final = 60.0
_USED_FOR_S: Final = 7 * 86_400.0
"""Sessions outlive their agent: their uses count this long after its last refresh."""
_DATASET: Final = "dataset"

log = structlog.get_logger()


class PodTrees:
    """The trees of a shared folder, as one agent uses them.

    Args:
        folder: on a file system that all of them mount; never created, since it may not be mounted.
        agent: name of this node.
        uses: returns what replicas here need, as "KIND KEY"; blocking.
        rpc, run, run_long, pause, clock, stock, others, may_link: see `datasets.Trees`.
        floor_bytes: see Room.
    """

    def __init__(
        self,
        folder: Path,
        agent: str,
        *,
        uses: Callable[[], frozenset[str]],
        rpc: Callable[[], Rpc],
        run: Offload,
        run_long: Offload,
        pause: Callable[[], Awaitable[None]],
        clock: Clock,
        stock: Stock | None = None,
        others: OtherSources | None = None,
        may_link: bool = True,
        floor_bytes: int = 0,
    ) -> None:
        self._folder = folder
        self._agent = agent
        self._lock = PodLock(folder, agent)
        self._own_uses = uses
        self._run = run
        self._run_long = run_long
        self._clock = clock
        self._stock = stock
        self._turn = threading.Lock()
        self._held_at: dict[str, float] = {}
        room = Room(
            folder, run=run, run_long=run_long, floor_bytes=floor_bytes, uses=self.used_by_any
        )
        self._make_trees = partial(
            Trees,
            folder / "trees",
            rpc=rpc,
            run=run,
            run_long=run_long,
            pause=pause,
            clock=clock,
            stock=stock,
            room=room,
            kind=_DATASET,
            may_link=may_link,
            others=others,
            removing=self._removing,
        )

    async def get(self, digest: str, user: str = "", *, is_apart: bool = False) -> Path:
        """Return the folder of a tree; arguments and errors as of `Trees.get`, and OSError if the shared folder is missing."""
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        await self._run(self._make_folders)
        while not await self._run(partial(self._hold, digest)):
            lock = await self._run(self._lock.acquire)
            if lock is None:
                await self._clock.sleep(_LOOK_EVERY_S)
                continue
            try:
                await self._fetch(digest, user, lock, is_apart=is_apart)
            finally:
                await uninterrupted(self._run, lock.release)
        tree = self._folder / "trees" / digest
        if self._stock is not None:
            self._stock.used(digest, await self._run(partial(_size_of, tree)))
        return tree

    async def keep(self) -> NoReturn:
        """Refresh the uses of this agent, until cancelled."""
        while True:
            try:
                await self._run_long(self.sign)
            except OSError as error:
                log.warning("pod_cache.not_signed", error=str(error))
            await self._clock.sleep(_SIGN_EVERY_S)

    def sign(self) -> None:
        """Refresh the uses of trees by sessions here, and drop others of this agent. Blocking; raises OSError."""
        began = self._clock.monotonic()
        used = {
            key
            for kind, _, key in (one.partition(" ") for one in self._own_uses())
            if kind == _DATASET
        }
        here = {digest for digest, agent in self._named() if agent == self._agent}
        for digest in used:
            if (self._folder / "trees" / digest).is_dir():
                self._say(digest)
        for digest in here - used:
            with self._turn:
                # Trees requested since `began` are not among `used` yet.
                if self._held_at.get(digest, float("-inf")) < began:
                    self._held_at.pop(digest, None)
                    (self._uses / f"{digest}.{self._agent}").unlink(missing_ok=True)

    def used_by_any(self) -> frozenset[str]:
        """Return what sessions of any agent use, as "KIND KEY". Blocking; raises OSError."""
        now, found = self._lock.now(), set()
        for digest, agent in self._named():
            with suppress(FileNotFoundError):
                if now - (self._uses / f"{digest}.{agent}").stat().st_mtime < _USED_FOR_S:
                    found.add(f"{_DATASET} {digest}")
        return frozenset(found)

    # Internals.

    @property
    def _uses(self) -> Path:
        return self._folder / "uses"

    def _make_folders(self) -> None:
        if not self._folder.is_dir():
            raise OSError(f"shared_cache: there is no folder {self._folder} here: is it mounted?")
        for name in ("trees", "uses"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)

    def _named(self) -> list[tuple[str, str]]:
        """Digest and agent of each use."""
        # A listing asks the server; lookups by name may be cached here.
        names = os.listdir(self._uses)  # noqa: PTH208
        found = [name.partition(".") for name in names]
        return [(digest, agent) for digest, _, agent in found if is_digest(digest)]

    def _say(self, digest: str) -> None:
        place = self._uses / f"{digest}.{self._agent}"
        place.touch(mode=0o600)
        os.utime(place)

    def _hold(self, digest: str) -> bool:
        """Mark a tree as used by sessions of this agent; return whether it is here."""
        with self._turn:
            self._held_at[digest] = self._clock.monotonic()
            self._say(digest)
        is_going = f"going.{digest}" in os.listdir(self._folder)  # noqa: PTH208
        is_here = not is_going and digest in os.listdir(self._folder / "trees")  # noqa: PTH208
        if is_here:
            with suppress(OSError):
                os.utime(note_of(self._folder / "trees" / digest))
        return is_here

    @contextmanager
    def _removing(self, digest: str) -> Iterator[None]:
        place = self._folder / f"going.{digest}"
        place.touch(mode=0o600)
        try:
            yield
        finally:
            place.unlink(missing_ok=True)

    async def _fetch(self, digest: str, user: str, lock: HeldLock, *, is_apart: bool) -> None:
        """Fetch a tree, or resume the fetch of a killed agent; return early if the lock is lost."""
        await self._run_long(self._forget_removals)
        trees = self._make_trees()
        await self._run_long(trees.create)
        fetching = asyncio.ensure_future(trees.get(digest, user, is_apart=is_apart))
        beating = asyncio.ensure_future(self._beat(lock))
        try:
            await asyncio.wait({fetching, beating}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                fetching.result()
            else:
                log.warning("pod_cache.lock_lost", digest=digest[:16])
        finally:
            for task in (fetching, beating):
                task.cancel()
            await to_its_end(self._settle(trees, digest, fetching, beating))

    async def _settle(self, trees: Trees, digest: str, *tasks: asyncio.Future[Any]) -> None:
        """Return once nothing is written any more: then the lock can be released."""
        await asyncio.wait(tasks)
        await trees.settle(digest)

    def _forget_removals(self) -> None:
        """Remove marks of killed agents: their trees have been renamed already, or stay."""
        for place in self._folder.glob("going.*"):
            place.unlink(missing_ok=True)

    async def _beat(self, lock: HeldLock) -> None:
        """Refresh the lock; return once it is lost."""
        while True:
            await self._clock.sleep(BEAT_S)
            try:
                await self._run(lock.beat)
            except OSError:
                return


def _size_of(tree: Path) -> int | None:
    try:
        return StoredTree.read(note_of(tree)).size
    except (OSError, ValueError):
        return None
