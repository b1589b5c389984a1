"""Objects that nothing refers to: they are put aside first, and removed a grace later.

What refers to an object is written after the object was found to be here, so a look at all references can miss one that is on
its way. Nothing need keep the two apart, because nothing is removed at once:

1. What was put at least a grace ago and has no reference is put aside. It is missing then for who asks what to
   send, it is still read, and who is about to refer to it takes it back (`Content.is_incomplete`).
2. What has a reference and is aside is taken back by the next look.
3. What has been aside for a grace, as of the moment before references were looked at, and still has none is removed.

So an object is lost only where its reference is written longer than a grace after its presence was found. The grace is an hour at
least, and whoever refers to something finds it present at most FOUND_FOR_S and one call before.

A look starts anew with each leader; it keeps nothing but what is aside. Two at the same time, a leader and
one that does not know yet that it was deposed, do each other no harm.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog
from google.protobuf.message import DecodeError

from controlplane.domain.errors import NotFound, NsmlError
from controlplane.objects.errors import BlobDamaged
from controlplane.operations import records
from controlplane.operations.content import roots_of
from controlplane.operations.recent import Recent
from nsml.clock import inline

if TYPE_CHECKING:
    from controlplane.history.interface import History
    from controlplane.objects.interface import ObjectStore, StoredBlob
    from controlplane.operations.state import LiveState
    from nsml.clock import Offload

AT_ONCE: Final = 32
"""Objects that are moved at the same time."""
STEP: Final = 10_000
"""Digests that are marked before anybody else gets a turn."""
ROOTS_SEEN: Final = 100_000
"""Manifests that are not read again where several things refer to them."""
MARK_BITS: Final = 27

_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_WORDS: Final = struct.Struct("<6I")
_log = structlog.get_logger("operations.collecting")


class ReferencesUnread(NsmlError):
    """It is not known what is referred to, so nothing may be put aside."""

    reason = "REFERENCES_UNREAD"


@dataclass(slots=True, kw_only=True)
class Collected:
    """What a look found and did.

    Attributes:
        referred: references to objects, of which several may be to the same.
        objects: how many have their name, those that were put aside now among them.
        stored_bytes: what these take.
        put_aside, put_aside_bytes: taken from their names by this look.
        taken_back: what was aside, and is referred to after all.
        aside, aside_bytes: what is aside still, without what this look put there.
        removed, removed_bytes: removed for good.
    """

    referred: int = 0
    objects: int = 0
    stored_bytes: int = 0
    put_aside: int = 0
    put_aside_bytes: int = 0
    taken_back: int = 0
    aside: int = 0
    aside_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0


class Marks:
    """The digests that are referred to, in 16 MiB however many they are.

    A Bloom filter: what was added is in it; of what was not, one in 100 million seems to be where a
    million are, one in 25 where 20 million are. Such an object is kept.
    """

    def __init__(self, bits: int) -> None:
        self._mask = (1 << bits) - 1
        self._bits = bytearray(1 << (bits - 3))

    def add(self, digests: Iterable[str]) -> int:
        """Mark some; how many they were."""
        bits, count = self._bits, 0
        for digest in digests:
            count += 1
            for at in self._places(digest):
                bits[at >> 3] |= 1 << (at & 7)
        return count

    def __contains__(self, digest: str) -> bool:
        return all(self._bits[at >> 3] >> (at & 7) & 1 for at in self._places(digest))

    def _places(self, digest: str) -> list[int]:
        """A digest is as good as random: its words are the hashes."""
        return [word & self._mask for word in _WORDS.unpack_from(bytes.fromhex(digest))]


class Collector:
    """Looks for objects that nothing refers to.

    Args:
        grace_s: how long they are kept, once under their names and once aside.
        may: whether this control plane leads still.

    Attributes:
        last: what the last look found and did, that came to its end.
        removed, removed_bytes: by all looks since the start.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        history: History,
        state: LiveState,
        grace_s: float,
        may: Callable[[], bool],
        run: Offload = inline,
    ) -> None:
        self._objects = objects
        self._history = history
        self._state = state
        self._grace_s = grace_s
        self._may = may
        self._run = run
        self.last: Collected | None = None
        self.removed = 0
        self.removed_bytes = 0

    async def look(self) -> Collected:
        """Look at everything once.

        Raises:
            ReferencesUnread: a manifest that is referred to, or a session's record, cannot be read.
            ObjectsUnavailable, HistoryUnavailable: it was broken off; the next look begins anew.
        """
        done = Collected()
        before = await self._objects.now() - self._grace_s
        marks = await self._marked(done)
        async for some in _batches(self._objects.list_aside()):
            await self._look_aside(some, marks, before, done)
        self.removed += done.removed
        self.removed_bytes += done.removed_bytes
        async for some in _batches(self._objects.list()):
            await self._look_at(some, marks, before, done)
        self.last = done
        return done

    async def _look_at(
        self, some: list[StoredBlob], marks: Marks, before: float, done: Collected
    ) -> None:
        done.objects += len(some)
        done.stored_bytes += sum(one.stored_bytes for one in some)
        idle = [one for one in some if one.put_at <= before and one.digest not in marks]
        if not idle or not self._may():
            return
        moved = await asyncio.gather(
            *[self._objects.put_aside(one.digest, self._may) for one in idle]
        )
        for one, is_moved in zip(idle, moved, strict=True):
            if is_moved:
                done.put_aside += 1
                done.put_aside_bytes += one.stored_bytes

    async def _look_aside(
        self, some: list[StoredBlob], marks: Marks, before: float, done: Collected
    ) -> None:
        absent = await self._objects.has_missing([one.digest for one in some])
        wanted = [one.digest for one in some if one.digest in marks and one.digest in absent]
        if wanted:
            await self._objects.take_back(wanted)
            done.taken_back += len(wanted)
            _log.warning("content.taken_back", digests=[one[:12] for one in wanted])
        # What was taken back may lie here still, and what was sent again does.
        gone = [
            one
            for one in some
            if one.put_at <= before and (one.digest not in marks or one.digest not in absent)
        ]
        if gone and self._may():
            was_there = await asyncio.gather(*[self._objects.delete(one.digest) for one in gone])
            for one, is_gone in zip(gone, was_there, strict=True):
                done.removed += is_gone
                done.removed_bytes += one.stored_bytes * is_gone
        else:
            gone = []
        left = [one for one in some if one not in gone and one.digest not in wanted]
        done.aside += len(left)
        done.aside_bytes += sum(one.stored_bytes for one in left)

    async def _marked(self, done: Collected) -> Marks:
        """Everything that is referred to.

        What lives first: a session that ends meanwhile is in the catalogue before it leaves the store.
        """
        marks = Marks(MARK_BITS)
        seen: Recent[str, None] = Recent(ROOTS_SEEN)
        roots = [
            root
            for stored in tuple(self._state.sessions.values())
            for root in roots_of(stored.value)
        ]
        await self._mark(roots, marks, seen, done)
        after: tuple[int | str, ...] | None = ()
        while after is not None:
            page = await self._history.catalogue.referred(after)
            recorded = await self._run(partial(_roots_in, page.records))
            await self._mark([*recorded, *page.roots], marks, seen, done)
            done.referred += await self._run(partial(marks.add, page.blobs))
            after = page.next
        return marks

    async def _mark(
        self, roots: Iterable[str], marks: Marks, seen: Recent[str, None], done: Collected
    ) -> None:
        for root in roots:
            if not root or root in seen:
                continue
            try:
                data = await self._objects.get(root)
            except (NotFound, BlobDamaged) as error:
                raise ReferencesUnread(
                    f"the manifest {root} cannot be read: what it lists is unknown",
                    why=error.message,
                    attempt="put it back from a backup, or remove what it belongs to",
                ) from error
            marks.add([root])
            # Whatever looks like a digest is marked: so a manifest of a million files takes no room.
            listed = (match[1].decode() for match in _DIGEST.finditer(data))
            while count := await self._run(partial(marks.add, islice(listed, STEP))):
                done.referred += count
                await asyncio.sleep(0)
            done.referred += 1
            seen.keep(root, None)


def _roots_in(found: Iterable[bytes]) -> list[str]:
    """The manifests that records of sessions refer to."""
    try:
        return [root for record in found for root in roots_of(records.decode_session(record))]
    except (DecodeError, ValueError, KeyError) as error:
        raise ReferencesUnread("the record of a session cannot be read", why=str(error)) from error


async def _batches(blobs: AsyncIterator[StoredBlob]) -> AsyncIterator[list[StoredBlob]]:
    some: list[StoredBlob] = []
    async for blob in blobs:
        some.append(blob)
        if len(some) == AT_ONCE:
            yield some
            some = []
            await asyncio.sleep(0)  # a page of the listing has many, and nothing here need wait
    if some:
        yield some
