"""Blobs in and out, and who may read which: through a manifest that the caller may see."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from controlplane.domain.errors import InvalidRequest, NotFound, TooLarge
from controlplane.domain.identity import Caller, NodeCaller, UserCaller, may_see
from controlplane.domain.names import check_digest
from controlplane.objects.errors import BlobNotFound
from controlplane.operations.recent import Recent
from nsml.clock import inline
from nsml.content import manifest as manifests
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Collection,
        Iterator,
        Sequence,
    )

    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.operations.state import LiveState
    from nsml.clock import Clock, Offload
    from nsml.content.manifest import Manifest

MOST_ASKED: Final = 10_000
"""Digests in one question."""

MOST_BLOB_BYTES: Final = 64 << 20
"""Largest blob that is taken: chunks are smaller, manifests of a million files not much larger."""

BATCH_BYTES: Final = 4 << 20
BATCH_BLOBS: Final = 512

MOST_SENDING: Final = 16
"""Calls of one caller that bring blobs at once; the next ones wait."""

REMEMBERED: Final = 4_096
"""Manifests that were found to be complete,"""
FOUND_FOR_S: Final = 600.0
"""and for how long: what nothing refers to may be put aside at any time. See operations.collecting."""

REMEMBERED_EACH: Final = 1_024
"""Roots that one caller was shown, and that he sent."""

CALLERS: Final = 4_096
"""Callers of whom roots are remembered."""

MEMBERS: Final = 1_000_000
"""Digests of which it is remembered that a manifest lists them."""

SEND_IT: Final = "send what FindMissingBlobs names, with the manifest as its root"

_MANIFEST: Final = b'{"entries":['
"""How the encoding of every manifest begins."""

Part = tuple[str, bytes, bool]
"""Digest of the blob, bytes, whether they are its last."""


class Content:
    """The way of bytes, and the right to read them.

    Args:
        run: for manifests: to check one of a million files takes many seconds.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        history: History,
        state: LiveState,
        clock: Clock,
        run: Offload = inline,
    ) -> None:
        self._objects = objects
        self._history = history
        self._state = state
        self._clock = clock
        self._run = run
        self._checking = asyncio.Lock()
        self._members: Recent[str, frozenset[str]] = Recent(MEMBERS, weigh=len)
        self._complete: Recent[str, float] = Recent(REMEMBERED)
        self._shown = _Roots()
        self._sent = _Roots()
        self._own = _Roots()
        self._turns: WeakValueDictionary[str, _Turns] = WeakValueDictionary()

    async def missing(self, caller: Caller, digests: Sequence[str], *, root: str = "") -> list[str]:
        """Those that would have to be sent, in the order asked; then `root`, if it may not be used.

        See `may_use`.
        """
        if len(digests) > MOST_ASKED:
            raise TooLarge(f"at most {MOST_ASKED} digests at a time")
        for digest in digests:
            check_digest(digest)
        absent = await self._objects.has_missing(digests)
        found = [digest for digest in dict.fromkeys(digests) if digest in absent]
        if root and root not in absent and not await self.may_use(caller, check_digest(root)):
            found.append(root)
        return found

    async def put(self, caller: Caller, parts: AsyncIterable[Part]) -> int:
        """Store what comes, in batches; the number of blobs that were new.

        Waits while the caller has too many such calls, so that what they hold is bounded.

        Raises:
            InvalidRequest: a blob is not what its digest says, or parts are mixed up. What came
                before it is kept.
            TooLarge: a blob is over the limit.
        """
        turns = self._turns.setdefault(_who(caller), _Turns())
        async with turns.calls, aclosing(_whole(parts, turns.large)) as blobs:
            stored = 0
            batch: dict[str, bytes] = {}
            async for digest, data in blobs:
                batch[digest] = data
                if len(batch) >= BATCH_BLOBS or sum(map(len, batch.values())) >= BATCH_BYTES:
                    stored += await self._store(caller, batch)
                    batch = {}
            return stored + await self._store(caller, batch)

    async def _store(self, caller: Caller, batch: dict[str, bytes]) -> int:
        if not batch:
            return 0
        absent = await self._objects.has_missing(batch)
        await self._objects.put_many(batch)
        for digest, data in batch.items():
            if data.startswith(_MANIFEST):
                self._sent.keep(caller, digest)
        return len(absent)

    async def may_use(self, caller: Caller, root: str) -> bool:
        """Whether the caller may make something of a manifest: he has sent it, or may read it.

        A digest is seen by more people than the content that it names. Who sends the manifest knows
        the content; what was sent long ago is to be sent again. A manifest that lists somebody
        else's one would make that one readable, and with it everything that it lists in turn.
        """
        if self._own.has(caller, root):
            return True
        if self._sent.has(caller, root) and not await self._borrows(caller, root):
            self._own.keep(caller, root)
            return True
        return await self._may_read(caller, root)

    async def _borrows(self, caller: Caller, root: str) -> bool:
        """Whether a manifest lists, as if they were files, manifests that the caller may not read."""
        listed = await self._blobs_of(root)
        bundles = {stored.value.spec.bundle_digest for stored in self._state.sessions.values()}
        roots = await self._history.catalogue.versions_among(listed) | (bundles & listed)
        for one in sorted(roots):
            if not self._own.has(caller, one) and not await self._may_read(caller, one):
                return True
        return False

    async def is_incomplete(self, root: str) -> bool:
        """Whether the manifest or anything that it lists is missing; asked before something refers to it.

        What is aside is taken back: who was told that it is here has not sent it.
        """
        now = self._clock.monotonic()
        found_at = self._complete.get(root)
        if found_at is not None and now - found_at < FOUND_FOR_S:
            return False
        try:
            needed = {root} | await self._blobs_of(root)
        except NotFound:
            return True
        absent = await self._objects.has_missing(needed)
        if absent:
            await self._objects.take_back(absent)
            if await self._objects.has_missing(absent):
                return True
        self._complete.keep(root, now)
        return False

    async def manifest(self, root: str) -> Manifest:
        """The manifest that is stored under a digest.

        Raises:
            NotFound: there is none.
            InvalidRequest: what is there is no manifest.
        """
        data = await self._objects.get(check_digest(root))
        try:
            # One at a time: large ones must not take all threads.
            async with self._checking:
                return await self._run(partial(manifests.decode, data))
        except ContentError as error:
            raise InvalidRequest(f"{root[:12]} is not a manifest", why=str(error)) from error

    def show(self, caller: Caller, root: str) -> None:
        """Note that the caller was given this digest by a call that checked his right to it."""
        self._shown.keep(caller, root)

    async def read(
        self, caller: Caller, root: str, digests: Sequence[str]
    ) -> AsyncIterator[tuple[str, bytes]]:
        """The blobs asked for, in order; the manifest alone when none is.

        Raises:
            NotFound: the root is not the caller's to see, or a digest is not part of it.
        """
        if len(digests) > MOST_ASKED:
            raise TooLarge(f"at most {MOST_ASKED} digests at a time")
        if not await self._may_read(caller, check_digest(root)):
            raise NotFound(f"there is no content {root[:12]}")
        if any(digest != root for digest in digests):
            _check_members(root, await self._blobs_of(root), digests)
        for digest in digests or [root]:
            try:
                yield digest, await self._objects.get(digest)
            except BlobNotFound:
                raise NotFound(f"a part of {root[:12]} is lost", why=digest[:12]) from None

    async def _blobs_of(self, root: str) -> frozenset[str]:
        """What a manifest lists; a large tree is read in many calls, and checked once."""
        known = self._members.get(root)
        if known is None:
            known = frozenset((await self.manifest(root)).blobs())
            self._members.keep(root, known)
        return known

    async def _may_read(self, caller: Caller, root: str) -> bool:
        if self._shown.has(caller, root):
            return True
        match caller:
            case NodeCaller(node=node):
                return any(root in roots_of(session) for session in self._on(node))
            case UserCaller():
                live = (stored.value for stored in self._state.sessions.values())
                if any(
                    session.spec.bundle_digest == root and may_see(caller, session)
                    for session in live
                ):
                    return True
                return any(
                    may_see(caller, dataset)
                    for dataset in await self._history.catalogue.readers_of(root)
                )
        return False

    def _on(self, node: str) -> Iterator[Session]:
        stored = self._state.allocations.get(node)
        for held in stored.value.replicas if stored else ():
            session = self._state.session(held.session_id)
            if session is not None:
                yield session


class _Turns:
    """Of one caller: for his calls, and for a blob that is larger than a batch."""

    def __init__(self) -> None:
        self.calls = asyncio.Semaphore(MOST_SENDING)
        self.large = asyncio.Lock()


class _Roots:
    """Roots by caller: nobody's push out what is remembered of another."""

    def __init__(self) -> None:
        self._by_caller: Recent[str, Recent[str, None]] = Recent(CALLERS)

    def keep(self, caller: Caller, root: str) -> None:
        who = _who(caller)
        roots = self._by_caller.get(who)
        if roots is None:
            roots = Recent(REMEMBERED_EACH)
            self._by_caller.keep(who, roots)
        roots.keep(root, None)

    def has(self, caller: Caller, root: str) -> bool:
        roots = self._by_caller.get(_who(caller))
        return roots is not None and root in roots


def roots_of(session: Session) -> Iterator[str]:
    """The manifests that a session refers to; "" among them where it has no code."""
    yield session.spec.bundle_digest
    for dataset in session.spec.datasets:
        yield dataset.digest


def _who(caller: Caller) -> str:
    match caller:
        case UserCaller(user=user):
            return f"user {user.name}"
        case NodeCaller(node=node):
            return f"node {node}"
    return ""


def _check_members(root: str, known: Collection[str], digests: Sequence[str]) -> None:
    for digest in digests:
        if digest != root and digest not in known:
            raise NotFound(f"{check_digest(digest)[:12]} is not part of {root[:12]}")


async def _whole(
    parts: AsyncIterable[Part], large: asyncio.Lock
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Blobs put together from parts that follow one another.

    Holds `large` from when a blob is larger than a batch until the next one is asked for.
    """
    current = ""
    held = bytearray()
    async with AsyncExitStack() as turn:
        async for digest, data, last in parts:
            if current and digest != current:
                raise InvalidRequest(f"blob {current[:12]} is not complete before the next begins")
            current = check_digest(digest)
            if len(held) <= BATCH_BYTES < len(held) + len(data):
                await turn.enter_async_context(large)
            held += data
            if len(held) > MOST_BLOB_BYTES:
                raise TooLarge(f"a blob has at most {MOST_BLOB_BYTES} bytes")
            if last:
                whole, held = bytes(held), bytearray()
                yield current, whole
                current = ""
                await turn.aclose()
    if current:
        raise InvalidRequest(f"blob {current[:12]} is not complete")
