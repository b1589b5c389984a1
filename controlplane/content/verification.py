"""Reads the whole object store, and reports damaged and missing blobs, and what refers to them.

A repair first restores blobs from other packs. Then nodes are asked for theirs, content by content:
see `node_repairs.py`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from controlplane.content.counting import digests_in, end_of
from controlplane.content.object_gc import recorded, roots_of
from controlplane.domain.errors import NotFound
from controlplane.history.values import KeptKind, Reference
from controlplane.objects.errors import BlobDamaged
from nsml.content.errors import ContentError
from nsml.content.pages import pages_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Offload

MOST_NAMES: Final = 20
_LAYERS: Final = 3
"""Root, pages, chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSoFar:
    """Progress: blobs read, their stored size, and how many are damaged."""

    blobs: int = 0
    stored_bytes: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Content with `lost` unreadable blobs; `names`: see nsml.v1.BrokenContent.

    `repaired`: its restored blobs, with their sources.
    """

    kind: KeptKind
    owner: str
    names: tuple[str, ...]
    digest: str
    lost: int
    repaired: Mapping[str, str] = field(default_factory=dict)


class Verification:
    """Verifies stored blobs."""

    def __init__(
        self, *, objects: ObjectStore, history: History, state: LiveState, run: Offload
    ) -> None:
        self._objects = objects
        self._history = history
        self._state = state
        self._run = run

    async def all(self, *, repairs: bool = False) -> AsyncGenerator[ReadSoFar | Broken, None]:
        """Yield the progress, then each broken or repaired content once.

        With a repair, finally yields how many unreferenced blobs are still damaged: 0 while a manifest
        has lost blobs, since the contents of a lost part are unknown.

        Raises:
            ObjectsUnavailable, HistoryUnavailable: the verification failed.
            ReferencesUnread: the record of a session cannot be read.
        """
        done = ReadSoFar()
        damaged: set[str] = set()
        async for verified in self._objects.verify():
            done = ReadSoFar(
                blobs=done.blobs + verified.count,
                stored_bytes=done.stored_bytes + verified.stored_bytes,
                damaged=done.damaged + len(verified.damaged),
            )
            damaged.update(verified.damaged)
            yield done
        repaired = await self._repaired(damaged) if repairs else {}
        damaged -= repaired.keys()
        seen: set[tuple[str, str, str]] = set()
        async for one, is_root in self._references():
            # A dataset is reported once, with all versions of the same content.
            is_dataset = one.kind is KeptKind.DATASETS
            key = (one.digest, "", "") if is_dataset else (one.digest, one.owner, one.session_id)
            if not one.digest or key in seen:
                continue
            seen.add(key)
            lost, again = await self._look(one.digest, is_root=is_root, repaired=repaired.keys())
            damaged -= lost
            if lost and is_root:
                damaged.clear()
            if lost or again:
                yield Broken(
                    kind=one.kind,
                    owner=one.owner,
                    names=await self._names(one),
                    digest=one.digest,
                    lost=len(lost),
                    repaired={digest: repaired[digest] for digest in sorted(again)},
                )
        if repairs:
            yield replace(done, damaged=len(damaged))

    async def lost(self, root: str) -> set[str]:
        """Return unreadable blobs of a manifest, itself included. The blobs of an unreadable page are unknown."""
        lost, _ = await self._look(root, is_root=True)
        return lost

    async def _repaired(self, damaged: set[str]) -> dict[str, str]:
        """Restore damaged and missing blobs from other packs; return the sources by digest."""
        lost, tried, repaired = damaged, set[str](), dict[str, str]()
        # A restored blob may list more: a root its pages, and these chunks.
        for _ in range(_LAYERS):
            repaired |= await self._objects.recover(lost)
            tried |= lost
            lost = set()
            async for one, is_root in self._references():
                if one.digest:
                    found, _ = await self._look(one.digest, is_root=is_root)
                    lost |= found - tried
            if not lost:
                break
        return repaired

    async def _references(self) -> AsyncIterator[tuple[Reference, bool]]:
        """Yield all references, and whether each is to a manifest."""
        for session in [stored.value for stored in tuple(self._state.sessions.values())]:
            for root in roots_of(session):
                yield root, True
        async for roots, blobs in recorded(self._history, self._run):
            for one in roots:
                yield one, True
            for one in blobs:
                yield one, False

    async def _look(
        self, digest: str, *, is_root: bool, repaired: AbstractSet[str] = frozenset()
    ) -> tuple[set[str], set[str]]:
        """Return a reference's unreadable blobs, and those among `repaired`."""
        lost, again = set[str](), set[str]()
        async with aclosing(self._listed(digest, is_root=is_root)) as listed:
            async for some in listed:
                lost |= await self._absent(some)
                again |= some & repaired
        return lost, again

    async def _listed(self, digest: str, *, is_root: bool) -> AsyncGenerator[set[str], None]:
        """Yield the blobs of a reference; those that turn out to be unreadable are yielded again."""
        yield {digest}
        if not is_root:
            return
        try:
            data = await self._objects.get(digest)
            pages = pages_in(data)
        except (NotFound, BlobDamaged, ContentError):
            yield {digest}
            return
        if pages is None:
            yield await self._digests_in(data)
            return
        yield {page.digest for page in pages}
        end = b""
        for page in pages:
            try:
                data = end + await self._objects.get(page.digest)
            except (NotFound, BlobDamaged):
                yield {page.digest}
                data = b""
            yield await self._digests_in(data)
            end = end_of(data)

    async def _digests_in(self, encoding: bytes) -> set[str]:
        """Return the digests in an encoding, or a part of one."""
        return await self._run(lambda: {*chain.from_iterable(digests_in(encoding))})

    async def _absent(self, digests: Iterable[str]) -> set[str]:
        """Return the unreadable blobs; referenced ones that are aside are taken back."""
        absent = await self._objects.has_missing(list(digests))
        if absent:
            await self._objects.take_back(absent)
            absent = await self._objects.has_missing(absent)
        return absent

    async def _names(self, one: Reference) -> tuple[str, ...]:
        if one.kind is KeptKind.DATASETS:
            return await self._history.catalogue.versions_of(one.digest, limit=MOST_NAMES)
        if not one.session_id:
            return ()
        session = self._state.session(one.session_id) or await self._history.catalogue.session(
            one.session_id
        )
        name = session.name if session is not None else one.session_id
        if one.kind is not KeptKind.CHECKPOINTS:
            return (name,)
        saved = await self._history.catalogue.checkpoints_of(one.digest)
        theirs = [each.name for each in saved if each.session_id == one.session_id]
        return tuple(f"{name} {each}" for each in theirs[:MOST_NAMES]) or (name,)
