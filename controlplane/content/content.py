"""Upload and download of blobs, with the access checks.

Knowing a digest grants nothing. Blobs are read through a manifest that the caller may see. To use a
manifest, a caller must have sent it with all its blobs (`history.sent`), or be allowed to read it.
No answer reveals whether other users have stored a blob: it is reported missing, sent, and stored
once. Access is checked before the object store is queried, so that the answer takes as long for
another user's blob as for an absent one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import AsyncExitStack, aclosing, nullcontext
from functools import partial
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from controlplane.content.admitted_objects import Payer, payer_of
from controlplane.content.manifests import Manifests
from controlplane.content.subtrees import Subtrees
from controlplane.domain.errors import (
    InvalidRequest,
    NotFound,
    NsmlError,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import Caller, NodeCaller, UserCaller, identity_of
from controlplane.domain.names import check_digest
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.limits.admission import unlimited
from controlplane.objects.checking import check_blobs
from controlplane.objects.errors import BlobDamaged, BlobNotFound
from controlplane.objects.pack import PACK_BYTES
from controlplane.state.lru import LruDict
from nsml.common.clock import inline
from nsml.common.concurrency import TaskGroup
from nsml.content.counted_bytes import LEAST_BLOB_BYTES, blob_bytes
from nsml.content.manifest import decode
from nsml.content.pages import is_root

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Sequence,
    )
    from collections.abc import Set as AbstractSet

    from controlplane.content.direct import DirectReads, SignedPack
    from controlplane.content.manifests import Listing
    from controlplane.content.subtrees import Subtree
    from controlplane.content.withdrawals import Withdrawals
    from controlplane.domain.values import Session, SessionSpec
    from controlplane.history.sql.history import History
    from controlplane.limits.admission import Admission
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock, Offload

MOST_ASKED: Final = 10_000
"""Max digests per request."""

MOST_LOCATED: Final = 2_000
"""Max digests per request for locations."""

MOST_BLOB_BYTES: Final = 64 << 20
"""Max size of a blob: chunks, pages, roots, and the one-blob manifests of earlier versions are smaller."""

LARGE_BYTES: Final = 4 << 20
"""Larger blobs are received, and read, one at a time per caller."""

BATCH_BYTES: Final = PACK_BYTES
BATCH_BLOBS: Final = 4_096
"""Uploads are stored in batches of this size: each is a pack."""

MOST_SENDING: Final = 8
"""Max concurrent uploads per caller; further ones wait."""

REMEMBERED: Final = 4_096
"""Cache size: complete manifests."""
FOUND_FOR_S: Final = 600.0
"""Cache lifetime: unreferenced objects may be put aside at any time. See `object_gc.py`."""

REMEMBERED_EACH: Final = 1_024
"""Cached manifests per caller: those shown to it, or those sent by it with all their blobs."""

SHOWN_FOR_S: Final = 3_600.0
"""How long a user may read a manifest after a call has shown it: access can be withdrawn. Clients retry."""

CALLERS: Final = 4_096
"""Callers with cached roots."""

PERIOD_S: Final = 86_400.0
"""Blobs sent in this or the previous period count as the caller's: for one to two days."""

MOST_SENT: Final = 10_000_000
"""Max blobs per caller and period: 10 million small files, or 2 TiB of large ones. A record takes 70 bytes."""

MOST_BASES: Final = 4
"""Max `bases` per request: manifests with blobs that need not be sent."""

READ_AT_ONCE: Final = 512
READ_BYTES: Final = 1 << 20
"""Max blobs, and bytes, per read: the size of a message."""

NOTED_BLOBS: Final = 4_096
NOTED_BYTES: Final = 32 << 20
"""An upload is recorded each time this much is stored: a broken one repeats no more than that."""

MOST_READING: Final = 16
"""Max concurrent reads per user; further ones wait. A slow reader's blob stays in memory."""

SEND_IT: Final = "send what FindMissingBlobs names, with the manifest as its root"

_PLATFORM: Final = "platform"
"""Takes turns beside the callers when the platform itself reads a manifest."""

Part = tuple[str, bytes | memoryview, bool]
"""Digest of the blob, bytes, whether this is the last part."""


class Content:
    """Stores and returns blobs, and checks access to them.

    Args:
        admission: limits of uploads; None: unlimited.
        run: for manifests: checking one of a million files takes many seconds.
        check_paged: raises if a node's agent is too old to read trees in pages.
        withdrawals: access withdrawn on any control plane; None: only on this one.
        direct: signs URLs of the bucket for nodes; None: nodes read through the control plane.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        history: History,
        state: LiveState,
        clock: Clock,
        admission: Admission | None = None,
        run: Offload = inline,
        check_paged: Callable[[str], None] = lambda _: None,
        withdrawals: Withdrawals | None = None,
        direct: DirectReads | None = None,
    ) -> None:
        self._withdrawals = withdrawals
        self._direct = direct
        self._check_paged = check_paged
        self._admission = admission or unlimited(clock)
        self._objects = objects
        self._history = history
        self._state = state
        self._clock = clock
        self._run = run
        self._manifests = Manifests(objects, run)
        self._subtrees = Subtrees(self._manifests, objects, self._admission, run, clock)
        self._complete: LruDict[str, tuple[float, str]] = LruDict(REMEMBERED)
        self._shown = _Roots(SHOWN_FOR_S, clock, self._withdrawn)
        self._shown_to_nodes = _Roots(math.inf, clock)
        self._own = _Roots(FOUND_FOR_S, clock)
        self._borrowed: LruDict[tuple[str, str], None] = LruDict(REMEMBERED)
        self._counts: LruDict[tuple[str, int], int] = LruDict(CALLERS)
        self._limits: WeakValueDictionary[str, _CallLimits] = WeakValueDictionary()

    async def run(self) -> None:
        """Run the shared tasks that read and divide large manifests, until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self._manifests.tasks.run(), name="manifests")
            group.create_task(self._subtrees.tasks.run(), name="subtrees")

    def room(
        self, caller: Caller, size: int = 0, *, session_id: str = "", project: str = ""
    ) -> int | None:
        """Return how many more bytes the caller may store, about to send `size`; None: no limit.

        `session_id`: the session of a node's upload. `project`: of a user's; "": the user's own.

        Raises:
            LimitReached: `size` exceeds it.
        """
        payer = payer_of(self._state, caller, session_id)
        if isinstance(caller, UserCaller):
            payer = payer._replace(project=self._project_of(caller, project))
        if size:
            self._admission.check_kept(payer.user, size, payer.project, is_agent=payer.is_agent)
        return self._admission.kept_room(payer.user, payer.project)

    def _project_of(self, caller: UserCaller, project: str) -> str:
        """Return the project of a user's upload; "" if it has no quota, or is not the user's."""
        name = caller.user.name
        found = self._state.project(project or name)
        if found is None or (found.name != name and name not in found.members):
            return ""
        return found.name

    async def missing(
        self,
        caller: Caller,
        digests: Sequence[str],
        *,
        root: str = "",
        bases: Sequence[str] = (),
        session_id: str = "",
    ) -> list[str]:
        """Return the blobs that the caller has to send, in order; then `root`, if it is missing.

        Blobs of `bases`, manifests that the caller may read, need not be sent. `session_id`: the
        session of a node's upload.

        Raises LimitReached if blobs are missing and the caller's storage is nearly full.
        """
        if len(digests) > MOST_ASKED:
            raise TooLarge(f"at most {MOST_ASKED} digests at a time")
        if len(bases) > MOST_BASES:
            raise TooLarge(f"at most {MOST_BASES} bases at a time")
        wanted = list(dict.fromkeys([*digests, root] if root else digests))
        for digest in (*wanted, *bases):
            check_digest(digest)
        sender = await self._sender(caller, session_id)
        payer = payer_of(self._state, caller, session_id)
        roots = [root, *bases] if root else bases
        theirs = await self._sent_or_readable(caller, sender, wanted, roots, payer)
        absent = await self._objects.has_missing(theirs)
        missing = [digest for digest in wanted if digest not in theirs or digest in absent]
        if missing:
            # Fail here: an upload that is refused halfway may only look like a broken connection.
            self._admission.check_full(payer.user, payer.project)
        return missing

    async def _sent_or_readable(
        self,
        caller: Caller,
        sender: str,
        wanted: Sequence[str],
        roots: Sequence[str],
        payer: Payer,
    ) -> set[str]:
        """Return the blobs that the caller sent recently, or may read through one of `roots`.

        They are recorded again, so that they still count as sent when they are used.
        """
        period = self._period()
        noted = await self._history.sent.among(sender, wanted, since=period - 1)
        theirs = set(noted)
        for root in roots:
            left = set(wanted) - theirs
            if not left:
                break
            if not await self._may_read(caller, root):
                continue
            try:
                blobs = await self._blobs_of(sender, root)
            except NotFound:
                continue  # lost: it has to be sent again with all its blobs
            found = await self._run(partial(_listed_of, left, root, blobs))
            if found:
                await self._borrow_noted(caller, root)
            theirs |= found
        if fresh := {digest for digest in theirs if noted.get(digest) != period}:
            await self._note(sender, payer, fresh)
        return theirs

    async def put(self, caller: Caller, parts: AsyncIterable[Part], *, session_id: str = "") -> int:
        """Store blobs in batches; return how many the caller had not sent recently.

        Waits while the caller has too many uploads, to bound memory. `session_id`: the session of
        a node's upload.

        Raises:
            InvalidRequest: a blob does not match its digest, or parts are mixed up. Earlier blobs
                are kept.
            TooLarge: a blob is over the limit, or the caller has sent too many.
        """
        sender = await self._sender(caller, session_id)
        payer = payer_of(self._state, caller, session_id)
        limits = self._limits.setdefault(identity_of(caller), _CallLimits())
        async with limits.calls, aclosing(_whole(parts, limits.large)) as blobs:
            upload = _Upload(
                self._objects,
                partial(self._note_stored, sender, payer),
                partial(
                    self._admission.check_kept,
                    payer.user,
                    project=payer.project,
                    is_agent=payer.is_agent,
                ),
                self._run,
            )
            try:
                async for digest, data in blobs:
                    await upload.add(digest, data)
                await upload.finish()
            except NsmlError:
                await upload.note()
                raise
            return upload.new

    async def _note_stored(
        self, sender: str, payer: Payer, digests: Collection[str], size: int
    ) -> int:
        """Record stored blobs of `size` bytes in total."""
        is_noted = False
        try:
            new = await self._note(sender, payer, digests, size)
            is_noted = True
        finally:
            self._admission.noted_kept(payer.user, size, project=payer.project, is_noted=is_noted)
        return new

    async def _note(
        self, sender: str, payer: Payer, digests: Collection[str], size: int = 0
    ) -> int:
        """Record blobs as sent; return how many were not recorded recently.

        `size`: bytes that were stored, charged to the payer.
        """
        period = self._period()
        key = (sender, period)
        count = self._counts.get(key)
        if count is None:
            count = await self._history.sent.count(sender, period=period)
        try:
            self._pay(payer, count, len(digests))
            paid = len(digests)
        except (TooLarge, Unavailable):
            # Count exactly: other control planes record blobs, too, perhaps many of these.
            count = await self._history.sent.count(sender, period=period)
            known = await self._history.sent.among(sender, digests, since=period)
            paid = len(digests) - len(known)
            if not paid:
                if size:
                    await self._history.sent.remember(
                        sender,
                        (),
                        period=period,
                        owner=payer.user,
                        project=payer.project,
                        size=size,
                    )
                return 0
            self._pay(payer, count, paid)
        new = 0
        try:
            new = await self._history.sent.remember(
                sender,
                digests,
                period=period,
                owner=payer.user,
                project=payer.project,
                size=size,
            )
        finally:
            self._admission.give_back_notes(payer.user, paid - new)
        self._counts.keep(key, count + new)
        return new

    def _pay(self, payer: Payer, noted: int, more: int) -> None:
        """Charge `more` records to a caller with `noted` so far; raise if they are too many."""
        if noted + more > MOST_SENT:
            raise TooLarge(
                f"more than {MOST_SENT:,} blobs were sent within a day",
                attempt="the same tomorrow, or with small files packed into larger ones",
            )
        self._admission.note_blobs(payer.user, more, is_agent=payer.is_agent)

    async def forget_sent(self) -> int:
        """Remove the expired records of sent blobs; return how many."""
        return await self._history.sent.forget(before=self._period() - 1)

    def _period(self) -> int:
        # By the wall clock: all control planes must agree on it.
        return int(self._clock.time() // PERIOD_S)

    async def _sender(self, caller: Caller, session_id: str) -> str:
        """Return the sender's key. A node has one per owner and project of its sessions: these share nothing."""
        who = identity_of(caller)
        if not session_id or not isinstance(caller, NodeCaller):
            return who
        session = self._state.session(session_id)
        found = session or await self._history.catalogue.session(session_id)
        if found is None:
            return who
        if session is not None and session.spec.is_sealed:
            return f"{who} for  in {session.id}"  # it counts for nobody, and no other session shares it
        is_own = not found.project or found.project == found.owner
        return f"{who} for {found.owner}{'' if is_own else f' in {found.project}'}"

    async def may_use(self, caller: Caller, root: str, *, session_id: str = "") -> bool:
        """Whether the caller may use a manifest: has sent all of it, or may read it.

        More users see a digest than its content. A caller that sends a blob has the content.
        Blobs sent long ago have to be sent again. `session_id`: the session of a node's manifest.
        """
        sender = await self._sender(caller, session_id)
        if self._own.has(sender, root) or await self._may_read(caller, root):
            return True
        # Agents of the previous version do not name the session of an upload.
        senders = list(dict.fromkeys([sender, identity_of(caller)]))
        try:
            # Before any page is read: the answer must not reveal pages sent by other users.
            if await self._has_unsent(senders, [root]) or await self._has_unsent(
                senders, await self._manifests.pages(sender, root)
            ):
                return False
            if await self._has_unsent(senders, await self._blobs_of(sender, root)):
                return False
        except NotFound:
            return False
        self._own.keep(sender, root)
        return True

    async def _has_unsent(self, senders: Iterable[str], digests: Iterable[str]) -> bool:
        """Whether some digest was sent recently by none of the senders."""
        since = self._period() - 1
        # In steps: the manifest of a million files must not block other calls.
        for some in _in_steps(digests):
            left = set(some)
            for sender in senders:
                left.difference_update(
                    await self._history.sent.among(sender, tuple(left), since=since)
                )
            if left:
                return True
        return False

    async def borrow(self, caller: UserCaller, root: str) -> None:
        """Charge a caller for content before something refers to it, unless they have sent it or own it.

        Raises:
            LimitReached: it exceeds the caller's quota.
        """
        sender = identity_of(caller)
        if self._own.has(sender, root) or await self._owns(caller, root):
            return
        listing = await self._manifests.listing(sender, root)
        if await self._has_unsent([sender], chain([root], listing.blobs)):
            await self._admission.borrow(caller.user.name, listing.different)

    async def borrow_trees(
        self, caller: UserCaller, roots: Sequence[str], *, beside: Sequence[str] = ()
    ) -> None:
        """Charge a caller for trees before something refers to them again; shared blobs count once.

        `beside`: trees of the caller that may share blobs with them. Of a partly known tree, the
        rest counts in proportion to its chunks: an estimate until the next count.

        Raises:
            LimitReached: they exceed the caller's quota.
        """
        size = await self._different(caller, roots, beside)
        await self._admission.borrow(caller.user.name, size)

    async def count_for_project(
        self, caller: UserCaller, project: str, roots: Sequence[str], *, beside: Sequence[str] = ()
    ) -> None:
        """Charge a project for trees, as `borrow_trees`; those of its live sessions count already.

        Raises:
            LimitReached: they exceed the project's quota.
        """
        if self._state.project(project) is None:
            return  # its first count includes them
        live = (one.value for one in self._state.sessions.values())
        used = {
            digest
            for one in live
            if (one.project or one.owner) == project
            for digest in (one.spec.bundle_digest, initial_digest(one.spec))
        }
        if new := [root for root in roots if root not in used]:
            size = await self._different(caller, new, beside)
            await self._admission.count_for_project(project, size)

    def check_project_full(self, project: str) -> None:
        """Raise LimitReached if a project's storage is nearly full."""
        self._admission.check_full("", project)

    async def _different(
        self, caller: UserCaller, roots: Sequence[str], beside: Sequence[str]
    ) -> int:
        """Estimate the bytes of trees that `beside` lacks; not less than these if nothing is shared."""
        who, size = identity_of(caller), 0
        known = [(await self._manifests.listing(who, root)).blobs for root in beside]
        for root in roots:
            listing = await self._manifests.listing(who, root)
            new = 0
            for some in _in_steps(listing.blobs):
                new += await self._run(partial(_count_new, some, known))
            count = max(len(listing.blobs), 1)
            size += max(listing.different, LEAST_BLOB_BYTES * count) * new // count
            size += LEAST_BLOB_BYTES  # the root
            known.append(listing.blobs)
        return size

    async def _owns(self, caller: UserCaller, root: str) -> bool:
        """Whether a dataset or a live session of the caller has this content."""
        name = caller.user.name
        live = (stored.value for stored in self._state.sessions.values())
        if any(one.spec.bundle_digest == root and one.owner == name for one in live):
            return True
        readers = await self._history.catalogue.readers_of(root)
        return any(one.owner == name for one in readers)

    async def _borrow_noted(self, caller: Caller, root: str) -> None:
        """Charge the caller for a manifest before its blobs are recorded as sent by the caller."""
        key = identity_of(caller), root
        if not isinstance(caller, UserCaller) or key in self._borrowed:
            return
        if not await self._owns(caller, root):
            listing = await self._manifests.listing(key[0], root)
            await self._admission.borrow(caller.user.name, listing.different)
        self._borrowed.keep(key, None)

    async def is_incomplete(self, caller: Caller, root: str) -> bool:
        """Whether the manifest or any of its blobs is missing; checked before something refers to it.

        Blobs aside are taken back: they were reported as present, so the caller skipped them.
        """
        now, losses = self._clock.monotonic(), await self._objects.losses()
        found = self._complete.get(root)
        if found is not None and now - found[0] < FOUND_FOR_S and found[1] == losses:
            return False
        try:
            blobs = await self._blobs_of(identity_of(caller), root)
        except NotFound:
            return True
        for some in _in_steps(chain([root], blobs)):
            absent = await self._objects.has_missing(some)
            if absent:
                await self._objects.take_back(absent)
                if await self._objects.has_missing(absent):
                    return True
        self._complete.keep(root, (now, losses))
        return False

    async def listing(self, caller: Caller, root: str, *, is_with_sizes: bool = False) -> Listing:
        """What a manifest lists; see `Manifests.listing`."""
        return await self._manifests.listing(identity_of(caller), root, is_with_sizes=is_with_sizes)

    async def small_file(self, root: str, path: str, *, most_bytes: int) -> bytes | None:
        """Read a file of a tree for the platform itself, whoever may; None: it is not there, or larger.

        Raises:
            NotFound, InvalidRequest: the manifest is missing, or none.
            BlobDamaged: content is missing from the store, or damaged.
        """
        listing = await self._manifests.listing(_PLATFORM, root, is_with_sizes=True)
        size = (listing.sizes or {}).get(path)
        if size is None or size > most_bytes:
            return None
        async with aclosing(self._manifests.encoding(_PLATFORM, root)) as pieces:
            data = b"".join([piece async for piece in pieces])
        manifest = await self._run(partial(decode, data))
        [entry] = [one for one in manifest.entries if one.path == path]
        chunks = [await self._objects.get(one.digest) for one in entry.chunks]
        return b"".join(chunks)

    async def subtrees(
        self,
        caller: UserCaller,
        root: str,
        parts: Collection[str],
        groups: Sequence[Collection[str]],
        *,
        search: str = "",
    ) -> list[Subtree]:
        """Store manifests of parts of a tree that the caller may read; see `Subtrees.make`."""
        return await self._subtrees.make(caller.user.name, root, parts, groups, search=search)

    @property
    def withdrawals_revision(self) -> int:
        """The revision of the store up to which withdrawn rights are known here."""
        return self._withdrawals.revision if self._withdrawals is not None else 0

    def _withdrawn(self, owner: str) -> int:
        return self._withdrawals.count(owner) if self._withdrawals is not None and owner else 0

    def show(
        self,
        caller: Caller,
        root: str,
        *,
        session_id: str = "",
        owner: str = "",
        since: int = 0,
    ) -> None:
        """Record that a call has checked access to this digest and returned it to the caller.

        `session_id`: the session of a node's call; the node may read while it is placed there.
        `owner`: of the dataset, which may have hidden parts; `since`: `withdrawals_revision` before
        the access check.
        """
        if self._withdrawals is not None and owner and self._withdrawals.written(owner) > since:
            return  # the right may be gone: the caller asks again
        if isinstance(caller, NodeCaller):
            self._shown_to_nodes.keep(_reader(caller, session_id), root)
        else:
            self._shown.keep(identity_of(caller), root, owner)

    async def withdraw(self, owner: str, roots: Collection[str]) -> None:
        """Record that access to these changed: callers that were shown one need a new access check.

        Other control planes forget what they have shown of the owner's datasets once they receive
        this; clients retry.

        Raises:
            Unavailable: the store does not answer: others may not have received it.
        """
        self._shown.forget(roots)
        if self._withdrawals is not None:
            await self._withdrawals.add(owner)

    async def read(
        self, caller: Caller, root: str, digests: Sequence[str]
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the blobs of `digests` in order; only the manifest if there are none.

        Waits while a user has too many reads, or one of a large manifest: unread data of slow
        readers stays in memory.

        Raises:
            NotFound: the caller may not see the root, or a digest is not part of it.
            BlobDamaged: a blob is missing from the store, or damaged.
            StateConflict: the caller is a node with an agent too old for it.
        """
        if len(digests) > MOST_ASKED:
            raise TooLarge(f"at most {MOST_ASKED} digests at a time")
        if not await self._may_read(caller, check_digest(root)):
            raise NotFound(f"there is no content {root[:12]}")
        who = identity_of(caller)
        if any(digest != root for digest in digests):
            # A stream has no deadline, and its readers do not retry.
            blobs = (await self._manifests.listing(who, root, within_s=None)).blobs
            await self._run(partial(_check_members, root, blobs, digests))
        limits = self._limits.setdefault(who, _CallLimits())
        # An agent reads for many sessions, as fast as its disk can write.
        async with nullcontext() if isinstance(caller, NodeCaller) else limits.reading:
            left = deque(digests or [root])
            asked = READ_AT_ONCE
            while left:
                try:
                    async with AsyncExitStack() as turn:
                        if left[0] == root and not isinstance(caller, NodeCaller):
                            await turn.enter_async_context(limits.manifest)
                        found = await self._next(caller, root, left, asked)
                        # Each read looks up the places of all it asks for: ask for few blobs if they are large.
                        asked = min(2 * len(found), READ_AT_ONCE)
                        if sum(map(len, found)) <= LARGE_BYTES:
                            await turn.aclose()
                        for data in found:
                            yield left.popleft(), data
                except BlobNotFound:
                    raise BlobDamaged(f"blob {left[0]} of {root[:12]} is lost") from None

    async def locate(
        self, caller: Caller, root: str, digests: Sequence[str]
    ) -> tuple[Sequence[SignedPack], bytes]:
        """Return the bucket's packs with some of these blobs, and its CA as PEM; raises as `read`."""
        if len(digests) > MOST_LOCATED:
            raise TooLarge(f"at most {MOST_LOCATED} digests at a time")
        if not await self._may_read(caller, check_digest(root)):
            raise NotFound(f"there is no content {root[:12]}")
        if self._direct is None:
            return (), b""
        blobs = await self._blobs_of(identity_of(caller), root)
        await self._run(partial(_check_members, root, blobs, digests))
        return await self._direct.packs(root, digests, blobs), self._direct.authority

    async def _next(self, caller: Caller, root: str, left: Iterable[str], most: int) -> list[bytes]:
        """Read the first of the remaining blobs, at most `most`, or only the root."""
        some = list(islice(takewhile(lambda one: one != root, left), most))
        if some:
            return await self._objects.get_first(some, READ_BYTES)
        data = await self._objects.get(root)
        if isinstance(caller, NodeCaller) and is_root(data):
            self._check_paged(caller.node)
        return [data]

    async def _blobs_of(self, who: str, root: str) -> AbstractSet[str]:
        return (await self._manifests.listing(who, root)).blobs

    async def _may_read(self, caller: Caller, root: str) -> bool:
        match caller:
            case NodeCaller(node=node):
                return any(
                    root in roots_of(session)
                    or self._shown_to_nodes.has(_reader(caller, session.id), root)
                    for session in self._on(node)
                )
            case UserCaller():
                if self._shown.has(identity_of(caller), root):
                    return True
                live = (stored.value for stored in self._state.sessions.values())
                if any(
                    session.spec.bundle_digest == root and may(caller, SEE, session) is ALLOW
                    for session in live
                ):
                    return True
                return any(
                    may(caller, SEE, dataset) is ALLOW
                    for dataset in await self._history.catalogue.readers_of(root)
                )
        return False

    def _on(self, node: str) -> Iterator[Session]:
        stored = self._state.allocations.get(node)
        for held in stored.value.replicas if stored else ():
            session = self._state.session(held.session_id)
            if session is not None:
                yield session


class _CallLimits:
    """Concurrency limits of one caller: sending and reading calls, and large blobs, received or read."""

    def __init__(self) -> None:
        self.calls = asyncio.Semaphore(MOST_SENDING)
        self.reading = asyncio.Semaphore(MOST_READING)
        self.manifest = asyncio.Lock()
        self.large = asyncio.Lock()


class _Upload:
    """The blobs of one call: stored in batches, and recorded as sent in larger ones.

    Blobs already present are stored again, so as not to reveal the uploads of other users.
    """

    def __init__(
        self,
        objects: ObjectStore,
        note: Callable[[Collection[str], int], Awaitable[int]],
        check: Callable[[int], None],
        run: Offload,
    ) -> None:
        self.new = 0
        self._check = check
        self._unnoted_bytes = 0
        self._objects = objects
        self._note = note
        self._run = run
        self._batch: dict[str, bytes | memoryview] = {}
        self._batch_bytes = 0
        self._stored: set[str] = set()
        self._stored_bytes = 0

    async def add(self, digest: str, data: bytes | memoryview) -> None:
        # Count duplicates, too: a message stays in memory as long as one of its blobs.
        self._batch_bytes += len(data)
        self._batch[digest] = data
        if len(self._batch) >= BATCH_BLOBS or self._batch_bytes >= BATCH_BYTES:
            await self._store()
        if len(self._stored) >= NOTED_BLOBS or self._stored_bytes >= NOTED_BYTES:
            await self.note()

    async def finish(self) -> None:
        """Store and record the rest: for a small upload, both concurrently."""
        # Blobs must match their digests before they are recorded as sent.
        await self._run(partial(check_blobs, self._batch))
        # Blobs over a limit must not be recorded as sent meanwhile.
        self._check(blob_bytes(map(len, self._batch.values())))
        self._stored.update(self._batch)
        self._unnoted_bytes += blob_bytes(map(len, self._batch.values()))
        ended = await asyncio.gather(self._put(), self.note(), return_exceptions=True)
        for failed in filter(None, ended):
            raise failed

    async def note(self) -> None:
        """Record the stored blobs."""
        noted, self._stored, self._stored_bytes = self._stored, set(), 0
        size, self._unnoted_bytes = self._unnoted_bytes, 0
        if noted:
            self.new += await self._note(noted, size)

    async def _store(self) -> None:
        batch, size = self._batch, self._batch_bytes
        await self._put()
        self._stored.update(batch)
        self._unnoted_bytes += blob_bytes(map(len, batch.values()))
        self._stored_bytes += size

    async def _put(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, {}, 0
        if batch:
            await self._objects.put_many(batch)


class _Roots:
    """Roots by caller, with expiry; one caller's roots never evict another's.

    `withdrawn`: counts an owner's withdrawals; entries made at another count are ignored.
    """

    def __init__(
        self, for_s: float, clock: Clock, withdrawn: Callable[[str], int] = lambda _: 0
    ) -> None:
        self._for_s = for_s
        self._clock = clock
        self._withdrawn = withdrawn
        self._by_caller: LruDict[str, LruDict[str, tuple[float, str, int]]] = LruDict(CALLERS)

    def keep(self, who: str, root: str, owner: str = "") -> None:
        roots = self._by_caller.get(who)
        if roots is None:
            roots = LruDict(REMEMBERED_EACH)
            self._by_caller.keep(who, roots)
        roots.keep(root, (self._clock.monotonic(), owner, self._withdrawn(owner)))

    def has(self, who: str, root: str) -> bool:
        roots = self._by_caller.get(who)
        kept = None if roots is None else roots.get(root)
        if kept is None:
            return False
        kept_at, owner, withdrawn = kept
        return self._clock.monotonic() - kept_at < self._for_s and withdrawn == self._withdrawn(
            owner
        )

    def forget(self, roots: Collection[str]) -> None:
        for kept in self._by_caller.values():
            for root in roots:
                kept.forget(root)


def roots_of(session: Session) -> Iterator[str]:
    """Yield the manifests that a session refers to; "" among them if it has no code."""
    yield session.spec.bundle_digest
    for dataset in session.spec.datasets:
        yield dataset.digest


def initial_digest(spec: SessionSpec) -> str:
    """Return the digest of a session's initial checkpoint; "": none."""
    return spec.initial_checkpoint.digest if spec.initial_checkpoint is not None else ""


def _listed_of(digests: Collection[str], root: str, blobs: AbstractSet[str]) -> set[str]:
    return {digest for digest in digests if digest == root or digest in blobs}


def _count_new(digests: Sequence[str], known: Collection[AbstractSet[str]]) -> int:
    return sum(not any(one in blobs for blobs in known) for one in digests)


def _in_steps(digests: Iterable[str]) -> Iterator[tuple[str, ...]]:
    asked = iter(digests)
    while some := tuple(islice(asked, MOST_ASKED)):
        yield some


def _reader(caller: NodeCaller, session_id: str) -> str:
    return f"{identity_of(caller)} for {session_id}"


def _check_members(root: str, known: Collection[str], digests: Sequence[str]) -> None:
    for digest in digests:
        if digest != root and digest not in known:
            raise NotFound(f"{check_digest(digest)[:12]} is not part of {root[:12]}")


async def _whole(
    parts: AsyncIterable[Part], large: asyncio.Lock
) -> AsyncGenerator[tuple[str, bytes | memoryview], None]:
    """Assemble blobs from consecutive parts.

    Holds `large` from when a blob exceeds LARGE_BYTES until the next one is requested.
    """
    current = ""
    held = bytearray()
    async with AsyncExitStack() as turn:
        async for digest, data, last in parts:
            if current and digest != current:
                raise InvalidRequest(f"blob {current[:12]} is not complete before the next begins")
            current = check_digest(digest)
            if len(held) <= LARGE_BYTES < len(held) + len(data):
                await turn.enter_async_context(large)
            if len(held) + len(data) > MOST_BLOB_BYTES:
                raise TooLarge(f"a blob has at most {MOST_BLOB_BYTES} bytes")
            if not last or held:  # most come in one part, and are not copied
                held += data
            if last:
                whole, held = bytes(held) or data, bytearray()
                yield current, whole
                current = ""
                await turn.aclose()
    if current:
        raise InvalidRequest(f"blob {current[:12]} is not complete")
