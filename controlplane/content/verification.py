"""Reads the whole object store, and says what is damaged or missing and what refers to it.

With a repair, what other packs still have of that is put again first. What nodes have is asked of them then, content by
content: see `node_repairs.py`.
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
"""Of a tree: root, pages, chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSoFar:
    """Blobs that were read, what they take, and how many of them are damaged."""

    blobs: int = 0
    stored_bytes: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Something that refers to blobs that cannot be read, `lost` of them; `names`: see nsml.v1.BrokenContent.

    `repaired`: blobs of it that were put again, with what they were taken from.
    """

    kind: KeptKind
    owner: str
    names: tuple[str, ...]
    digest: str
    lost: int
    repaired: Mapping[str, str] = field(default_factory=dict)


class Verification:
    """Verifies what is stored."""

    def __init__(
        self, *, objects: ObjectStore, history: History, state: LiveState, run: Offload
    ) -> None:
        self._objects = objects
        self._history = history
        self._state = state
        self._run = run

    async def all(self, *, repairs: bool = False) -> AsyncGenerator[ReadSoFar | Broken, None]:
        """How far it has come, then each thing that is broken, or was repaired, once.

        With a repair, then how many are damaged still, and nothing refers to them; none while a manifest
        misses anything, since what a lost part of it lists is not known.

        Raises:
            ObjectsUnavailable, HistoryUnavailable: it was broken off.
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
            # A dataset is named with all that have the same content.
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
        """Blobs of a manifest, and itself, that cannot be read. What a page lists that cannot be read is not known."""
        lost, _ = await self._look(root, is_root=True)
        return lost

    async def _repaired(self, damaged: set[str]) -> dict[str, str]:
        """Put what is damaged or missing again from packs that have it; from which, by digest."""
        lost, tried, repaired = damaged, set[str](), dict[str, str]()
        # What was missing may list more: a root its pages, and these chunks.
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
        """Everything that is referred to, with whether it is a manifest."""
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
        """Of something that is referred to: the blobs that cannot be read, and those among `repaired`."""
        lost, again = set[str](), set[str]()
        async with aclosing(self._listed(digest, is_root=is_root)) as listed:
            async for some in listed:
                lost |= await self._absent(some)
                again |= some & repaired
        return lost, again

    async def _listed(self, digest: str, *, is_root: bool) -> AsyncGenerator[set[str], None]:
        """What something that is referred to consists of; what turns out not to be readable comes once more."""
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
        """What an encoding, or a part of one, lists."""
        return await self._run(lambda: {*chain.from_iterable(digests_in(encoding))})

    async def _absent(self, digests: Iterable[str]) -> set[str]:
        """Those that cannot be read: what is aside can, and is taken back for what refers to it."""
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
