"""Reads the whole object store, and says what is damaged or missing and what refers to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from controlplane.content.counting import digests_in, end_of
from controlplane.content.object_gc import recorded
from controlplane.domain.errors import NotFound
from controlplane.history.values import KeptKind, Reference
from controlplane.objects.errors import BlobDamaged
from nsml.content.errors import ContentError
from nsml.content.pages import pages_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Offload

MOST_NAMES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSoFar:
    """Blobs that were read, what they take, and how many of them are damaged."""

    blobs: int = 0
    stored_bytes: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Something that refers to `lost` blobs which cannot be read; `names`: see nsml.v1.BrokenContent."""

    kind: KeptKind
    owner: str
    names: tuple[str, ...]
    digest: str
    lost: int


class Verification:
    """Verifies what is stored."""

    def __init__(
        self, *, objects: ObjectStore, history: History, state: LiveState, run: Offload
    ) -> None:
        self._objects = objects
        self._history = history
        self._state = state
        self._run = run

    async def all(self) -> AsyncGenerator[ReadSoFar | Broken, None]:
        """How far it has come, then each thing that is broken, once.

        Raises:
            ObjectsUnavailable, HistoryUnavailable: it was broken off.
            ReferencesUnread: the record of a session cannot be read.
        """
        done = ReadSoFar()
        async for verified in self._objects.verify():
            done = ReadSoFar(
                blobs=done.blobs + verified.count,
                stored_bytes=done.stored_bytes + verified.stored_bytes,
                damaged=done.damaged + len(verified.damaged),
            )
            yield done
        seen: set[tuple[str, str, str]] = set()
        async for one, is_root in self._references():
            # A dataset is named with all that have the same content.
            is_dataset = one.kind is KeptKind.DATASETS
            key = (one.digest, "", "") if is_dataset else (one.digest, one.owner, one.session_id)
            if not one.digest or key in seen:
                continue
            seen.add(key)
            if lost := await self._lost(one, is_root=is_root):
                yield Broken(
                    kind=one.kind,
                    owner=one.owner,
                    names=await self._names(one),
                    digest=one.digest,
                    lost=lost,
                )

    async def _references(self) -> AsyncIterator[tuple[Reference, bool]]:
        """Everything that is referred to, with whether it is a manifest."""
        for session in [stored.value for stored in tuple(self._state.sessions.values())]:
            yield (
                Reference(session.spec.bundle_digest, KeptKind.CODE, session.owner, session.id),
                True,
            )
        async for roots, blobs in recorded(self._history, self._run):
            for one in roots:
                yield one, True
            for one in blobs:
                yield one, False

    async def _lost(self, one: Reference, *, is_root: bool) -> int:
        """How many blobs cannot be read; 1 where it is the manifest itself.

        What a page lists that cannot be read is not known.
        """
        if await self._absent([one.digest]):
            return 1
        if not is_root:
            return 0
        try:
            data = await self._objects.get(one.digest)
            pages = pages_in(data)
        except (NotFound, BlobDamaged, ContentError):
            return 1
        if pages is None:
            return len(await self._absent_in(data))
        digests = list(dict.fromkeys(page.digest for page in pages))
        lost, end = await self._absent(digests), b""
        for page in pages:
            try:
                data = end + await self._objects.get(page.digest)
            except (NotFound, BlobDamaged):
                lost.add(page.digest)
                data = b""
            lost |= await self._absent_in(data)
            end = end_of(data)
        return len(lost)

    async def _absent_in(self, encoding: bytes) -> set[str]:
        """What an encoding, or a part of one, lists and cannot be read."""
        found = await self._run(lambda: {*chain.from_iterable(digests_in(encoding))})
        return await self._absent(found)

    async def _absent(self, digests: Iterable[str]) -> set[str]:
        """Those that cannot be read: what is aside can, and is taken back for what refers to it."""
        absent = await self._objects.has_missing(list(digests))
        if absent:
            await self._objects.take_back(absent)
            absent = await self._objects.has_missing(absent)
        return absent

    async def _names(self, one: Reference) -> tuple[str, ...]:
        if one.kind is KeptKind.DATASETS:
            found = await self._history.catalogue.readers_of(one.digest)
            return tuple(f"{dataset.owner}/{dataset.name}" for dataset in found[:MOST_NAMES])
        if not one.session_id:
            return ()
        live = self._state.session(one.session_id)
        if live is not None:
            return (live.name,)
        row = await self._history.catalogue.session(one.session_id)
        return (row.name if row is not None else one.session_id,)
