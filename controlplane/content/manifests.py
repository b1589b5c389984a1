"""Reads manifests within limits: their senders decide their size, and whether they are valid.

One small and one large manifest are read at a time; callers take turns, whatever they request, and
waiting callers hold no data. Large ones are streamed through a separate process
(`manifest_reader.py`), which returns a file of digests. Invalid ones are cached, too.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from controlplane.content import manifest_reader
from controlplane.content.limited_process import NoRoom, OverLimit, no_file, run_limited
from controlplane.content.members import Members
from controlplane.content.shared_tasks import ANSWER_WITHIN_S, SharedTasks
from controlplane.domain.errors import RETRY_AFTER_S, InvalidRequest, Unavailable
from controlplane.domain.names import check_digest
from controlplane.limits.concurrency_limits import Turns
from controlplane.state.lru import LruDict
from nsml.common.concurrency import to_its_end
from nsml.content import manifest as manifests
from nsml.content.errors import ContentError, ManifestRefused
from nsml.content.pages import pages_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Offload
    from nsml.content.manifest import Manifest
    from nsml.content.pages import Page

SMALL_BYTES: Final = 1 << 20
"""Manifests up to this size are read in a thread: about 8,000 files, some 100 ms."""

MEMBERS: Final = 1_000_000
"""Cache size, in blobs, for small manifests."""
LARGE_MEMBERS: Final = 1 << 26
"""Cache size, in blobs, for large ones: 2 GiB on disk."""

REFUSED: Final = 4_096
"""Cache size: errors of invalid manifests."""
PAGES: Final = 100_000
"""Cache size: pages of large manifests."""

READ_AT_ONCE: Final = 8
READ_BYTES: Final = 2 << 20
"""Max pages, and bytes, per read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Contents of a manifest.

    Attributes:
        blobs: digests of its chunks, and of its pages if it has any.
        sizes: bytes of each file, by path; may be None unless requested.
        size: bytes of all files.
        different: bytes of `blobs`, each counted once.
        file_count: number of files.
    """

    blobs: AbstractSet[str]
    sizes: Mapping[str, int] | None = None
    size: int
    different: int
    file_count: int


class Manifests:
    """Reads manifests from the object store.

    Args:
        run: for small ones.
    """

    def __init__(self, objects: ObjectStore, run: Offload) -> None:
        self._objects = objects
        self._run = run
        self._small, self._large = (Turns("for manifests to be read") for _ in range(2))
        # Pages by root; None: an earlier version stored it as one blob.
        self._large_ones: LruDict[str, tuple[Sequence[Page] | None]] = LruDict(
            PAGES, weigh=lambda one: 1 + len(one[0] or ())
        )
        self._known: LruDict[str, Listing] = LruDict(MEMBERS, weigh=_weight)
        self._known_large: LruDict[str, Listing] = LruDict(LARGE_MEMBERS, weigh=_weight)
        self._refused: LruDict[str, str] = LruDict(REFUSED)
        self.tasks: SharedTasks[tuple[str, str, bool], Listing] = SharedTasks(
            "the manifest is being read"
        )

    async def listing(
        self,
        who: str,
        root: str,
        *,
        is_with_sizes: bool = False,
        within_s: float | None = ANSWER_WITHIN_S,
    ) -> Listing:
        """Return the contents of a manifest; the turn is taken for `who`.

        `within_s`: timeout for a large one; reading continues without the caller. None: no timeout.

        Raises:
            NotFound: the manifest, or a page of it, is missing.
            InvalidRequest: it is no manifest, or exceeds a limit for reading it.
            LimitReached: too many calls of `who` are waiting.
            Unavailable: it is still being read.
        """
        check_digest(root)
        if known := self._remembered(root, is_with_sizes=is_with_sizes):
            return known
        if root not in self._large_ones:
            async with self._small.turn(who):
                # A call before this one may have read it.
                if known := self._remembered(root, is_with_sizes=is_with_sizes):
                    return known
                if (data := await self._read_root(root)) is not None:
                    return await self._read(root, data)
        # By caller: each waits for its own turn, even for the same manifest.
        work = partial(self._read_in_turn, who, root, is_with_sizes=is_with_sizes)
        return await self.tasks.result((who, root, is_with_sizes), work, within_s=within_s)

    async def _read_in_turn(self, who: str, root: str, *, is_with_sizes: bool) -> Listing:
        async with self._large.turn(who):
            if known := self._remembered(root, is_with_sizes=is_with_sizes):
                return known
            return await self._read_large(root, is_with_sizes=is_with_sizes)

    async def pages(self, who: str, root: str) -> Sequence[str]:
        """Return the digests of its pages, without reading them; raises as `listing`."""
        check_digest(root)
        if root in self._known:
            return ()
        if root not in self._large_ones:
            async with self._small.turn(who):
                if root not in self._large_ones and await self._read_root(root) is not None:
                    return ()
        (pages,) = self._large_ones.get(root) or (None,)
        return [page.digest for page in pages or ()]

    async def encoding(self, who: str, root: str) -> AsyncGenerator[bytes, None]:
        """Yield the encoding of a root in pieces, unchecked.

        Raises as `listing`, and ManifestRefused if a page's size differs from that in the root.
        """
        check_digest(root)
        async with self._small.turn(who):
            small = await self._read_root(root)
        if small is not None:
            yield small
            return
        (pages,) = self._large_ones.get(root) or (None,)
        async with aclosing(self._encoding(root, pages)) as pieces:
            async for piece in pieces:
                yield piece

    def _remembered(self, root: str, *, is_with_sizes: bool) -> Listing | None:
        if why := self._refused.get(root):
            raise _no_manifest(root, why)
        known = self._known.get(root) or self._known_large.get(root)
        return None if known is None or (is_with_sizes and known.sizes is None) else known

    async def _read_root(self, root: str) -> bytes | None:
        """Return the encoding of a small manifest; None for a large one: its pages are cached."""
        data = await self._objects.get(root)
        try:
            pages = pages_in(data)
        except ContentError as error:
            raise self._refuse(root, error) from error
        if pages is None and len(data) <= SMALL_BYTES:
            return data
        self._large_ones.keep(root, (pages,))
        return None

    async def _read(self, root: str, data: bytes) -> Listing:
        try:
            known = _listing(await self._run(partial(manifests.decode, data)))
        except ContentError as error:
            raise self._refuse(root, error) from error
        self._known.keep(root, known)
        return known

    async def _read_large(self, root: str, *, is_with_sizes: bool) -> Listing:
        (pages,) = self._large_ones.get(root) or (None,)
        async with aclosing(self._encoding(root, pages)) as pieces:
            try:
                known = await self._read_apart(root, pieces, is_with_sizes=is_with_sizes)
            except ContentError as error:
                raise self._refuse(root, error) from error
            except OverLimit as error:
                raise _no_manifest(root, str(error)) from error
            except (NoRoom, OSError) as error:
                raise Unavailable(
                    f"manifest {root[:12]} cannot be read now",
                    why=str(error) if isinstance(error, NoRoom) else no_file(error),
                    retry_after_s=RETRY_AFTER_S,
                ) from error
        self._known_large.keep(root, known)
        return known

    async def _read_apart(
        self, root: str, pieces: AsyncGenerator[bytes, None], *, is_with_sizes: bool
    ) -> Listing:
        """Read an encoding in a separate process. Raises as `run_limited` and `pieces`, and OSError."""
        file = await self._run(tempfile.TemporaryFile)
        try:
            answer = await run_limited(
                *(manifest_reader.__name__, root, str(file.fileno())),
                *(("--sizes",) if is_with_sizes else ()),
                given=pieces,
                pass_fds=(file.fileno(),),
            )
            blobs = await self._run(partial(Members, file))
        finally:
            # Closing a nameless file frees its room, unless Members has it mapped.
            await to_its_end(self._run(file.close))
        facts, sizes = (json.loads(line) for line in answer.split(b"\n"))
        return Listing(
            blobs=blobs,
            sizes=sizes if is_with_sizes else None,
            size=facts["size"],
            different=facts["different"],
            file_count=facts["files"],
        )

    async def _encoding(
        self, root: str, pages: Sequence[Page] | None
    ) -> AsyncGenerator[bytes, None]:
        if pages is None:
            yield await self._objects.get(root)
            return
        sizes = iter(pages)
        async with aclosing(read_in_turn(self._objects, [one.digest for one in pages])) as found:
            async for data in found:
                if len(data) != next(sizes).size:
                    raise ManifestRefused("one of its pages has another size than it says")
                yield data

    def _refuse(self, root: str, error: ContentError) -> InvalidRequest:
        self._refused.keep(root, str(error))
        return _no_manifest(root, str(error))


async def read_in_turn(objects: ObjectStore, digests: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Yield blobs in order, with few in memory; raises as `ObjectStore.get`."""
    left = deque(digests)
    while left:
        for data in await objects.get_first(list(islice(left, READ_AT_ONCE)), READ_BYTES):
            left.popleft()
            yield data


def _no_manifest(root: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{root[:12]} is not a manifest", why=why)


def _weight(listing: Listing) -> int:
    return len(listing.blobs) + len(listing.sizes or ())


def _listing(manifest: Manifest) -> Listing:
    blobs = manifest.blobs()
    return Listing(
        blobs=frozenset(blobs),
        sizes={entry.path: entry.size for entry in manifest.entries},
        size=manifest.size,
        different=sum(blobs.values()),
        file_count=len(manifest.entries),
    )
