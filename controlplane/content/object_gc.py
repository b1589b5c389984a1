"""Objects that nothing refers to: they are put aside first, and removed a grace later.

What refers to an object is written after the object was found to be here, so a look at all references can miss one that is on
its way. Nothing need keep the two apart, because nothing is removed at once:

1. What was put at least a grace ago and has no reference is put aside. It is missing then for who asks what to
   send, it is still read, and who is about to refer to it takes it back (`Content.is_incomplete`).
2. What has a reference and is aside is taken back by the next look.
3. What has been aside for a grace, as of the moment before references were looked at, and still has none is removed.

How long ago that was is told by `observed_clock.py`: a clock that is wrong makes nothing older.

So an object is lost only where its reference is written longer than a grace after its presence was found. The grace is an hour at
least, and whoever refers to something finds it present at most FOUND_FOR_S and one call before.

A look also counts what is kept for each user and project (`limits/user_storage.py`): the distinct objects that anything of theirs refers to, and
those that they have sent in the last day or two and that nothing refers to yet. So it is known what they could refer to without
sending it again; what they have removed since is not among it, and would have to be sent again. A count alone, which
removes nothing, is made whenever one is asked for.

A look starts anew with each leader; it keeps nothing but what is aside. Two at the same time, a leader and
one that does not know yet that it was deposed, do each other no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from controlplane.content.counting import STEP, Counting, digests_in, end_of
from controlplane.content.manifests import read_in_turn
from controlplane.domain.errors import NotFound, NsmlError
from controlplane.history.values import Holder, KeptKind, Reference
from controlplane.objects.errors import BlobDamaged
from controlplane.state.lru import LruDict
from controlplane.stored import etcd_codec
from nsml.common.clock import inline
from nsml.content.errors import ContentError
from nsml.content.pages import pages_in

if TYPE_CHECKING:
    from controlplane.content.observed_clock import ObservedClock
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore, StoredBlob
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Offload

T = TypeVar("T")

AT_ONCE: Final = 1_000
"""Objects that are put aside or removed together."""
MOST_TOLD: Final = 10
"""Digests that one line of the log names."""
ROOTS_SEEN: Final = 100_000
"""Manifests that are not read again where several things refer to them."""
PAGES_READ: Final = 65_536
"""Pages that are not read again where several manifests have them: some 30 MB, of 25 million files."""
MARK_BITS: Final = 27

_WORDS: Final = struct.Struct("<6I")
_log = structlog.get_logger()


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
    """Looks for objects that nothing refers to, and counts what is kept for whom.

    Args:
        observed: tells what is old enough: they are kept for its grace, once under their names and once aside.
        may: whether this control plane leads still.
        term: in which it leads.
        users: names of users by their ids.
        projects: those that have a record: for each is counted what is kept, too.

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
        observed: ObservedClock,
        may: Callable[[], bool],
        term: Callable[[], int],
        users: Callable[[], Mapping[str, str]] = dict,
        projects: Callable[[], Collection[str]] = frozenset,
        run: Offload = inline,
    ) -> None:
        self._projects = projects
        self._objects = objects
        self._history = history
        self._state = state
        self._observed = observed
        self._may = may
        self._term = term
        self._users = users
        self._run = run
        self._one = asyncio.Lock()
        self.last: Collected | None = None
        self.removed = 0
        self.removed_bytes = 0

    async def look(self) -> Collected:
        """Look at everything once.

        Raises:
            ReferencesUnread: a manifest that is referred to, or a session's record, cannot be read.
            ClocksDiffer: how old anything is is unknown.
            ObjectsUnavailable, HistoryUnavailable: it was broken off; the next look begins anew.
            HistoryFenced: another control plane leads.
        """
        async with self._one, self._counting() as counted:
            done = Collected()
            before = await self._observed.cutoff()
            marks = await self._marked(done, counted)
            async for some in _batches(self._objects.list_aside(), AT_ONCE):
                await self._look_aside(some, marks, before, done)
            self.removed += done.removed
            self.removed_bytes += done.removed_bytes
            async for some in _batches(self._objects.list(), AT_ONCE):
                await counted.objects(await self._look_at(some, marks, before, done))
            if (failed := await counted.finish()) is not None:
                _log.warning("kept.not_counted", reason=f"{failed.message}: {failed.why}")
            self.last = done
            return done

    async def count(self) -> None:
        """Count what is kept for whom, and remove nothing; raises as `look`, and TallyFailed."""
        async with self._one, self._counting() as counted:
            await self._marked(Collected(), counted)
            async for some in _batches(self._objects.list(), AT_ONCE):
                await counted.objects(some)
            if (failed := await counted.finish()) is not None:
                raise failed

    @contextlib.asynccontextmanager
    async def _counting(self) -> AsyncIterator[Counting]:
        counting = Counting(
            self._history,
            self._objects,
            run=self._run,
            term=self._term,
            users=self._users,
            projects=self._projects,
        )
        try:
            yield counting
        finally:
            await counting.close()

    async def _look_at(
        self, some: list[StoredBlob], marks: Marks, before: float, done: Collected
    ) -> list[StoredBlob]:
        """Put aside what nothing refers to; the others."""
        done.objects += len(some)
        done.stored_bytes += sum(one.stored_bytes for one in some)
        idle = [one for one in some if one.put_at <= before and one.digest not in marks]
        if not idle or not self._may():
            return some
        gone = await self._objects.put_aside([one.digest for one in idle], self._may)
        for one in idle:
            if one.digest in gone:
                done.put_aside += 1
                done.put_aside_bytes += one.stored_bytes
        return [one for one in some if one.digest not in gone]

    async def _look_aside(
        self, some: list[StoredBlob], marks: Marks, before: float, done: Collected
    ) -> None:
        wanted = {one.digest for one in some if one.digest in marks}
        if wanted:
            await self._objects.take_back(wanted)
            done.taken_back += len(wanted)
            _log.warning(
                "content.taken_back", digests=[one[:12] for one in sorted(wanted)][:MOST_TOLD]
            )
        old = [one.digest for one in some if one.put_at <= before and one.digest not in wanted]
        gone = await self._objects.delete(old) if old and self._may() else set()
        for one in some:
            if one.digest in gone:
                done.removed += 1
                done.removed_bytes += one.stored_bytes
        left = [one for one in some if one.digest not in gone | wanted]
        done.aside += len(left)
        done.aside_bytes += sum(one.stored_bytes for one in left)

    async def _marked(self, done: Collected, counted: Counting) -> Marks:
        """Everything that is referred to.

        What lives first: a session that ends meanwhile is in the catalogue before it leaves the store.
        """
        marks = Marks(MARK_BITS)
        live = [stored.value for stored in tuple(self._state.sessions.values())]
        await counted.begin({session.id: (session.owner, session.project) for session in live})
        walk = _Walk(self._objects, marks, done, counted, self._run)
        await walk.roots(
            root._replace(session_id="") for session in live for root in roots_of(session)
        )
        datasets = [
            Reference(dataset.digest, KeptKind.DATASETS, session.owner, project=session.project)
            for session in live
            for dataset in session.spec.datasets
        ]
        # They count for the datasets' owners, but where these have removed them.
        there = await self._history.catalogue.versions_among({one.digest for one in datasets})
        await walk.roots(one._replace(owner="") if one.digest in there else one for one in datasets)
        async for roots, blobs in recorded(self._history, self._run):
            await walk.roots(roots)
            await walk.blobs(blobs)
        await counted.sent()
        return marks


class _Walk:
    """Marks and counts what is referred to."""

    def __init__(
        self, objects: ObjectStore, marks: Marks, done: Collected, counted: Counting, run: Offload
    ) -> None:
        self._objects = objects
        self._marks = marks
        self._done = done
        self._counted = counted
        self._run = run
        self._marked: LruDict[str, None] = LruDict(ROOTS_SEEN)
        self._read: LruDict[str, _PageRead] = LruDict(
            PAGES_READ, weigh=lambda one: len(one.holders)
        )
        self._seen: LruDict[tuple[str, tuple[Holder, ...]], None] = LruDict(ROOTS_SEEN)

    async def blobs(self, some: Sequence[Reference]) -> None:
        """What lists nothing."""
        self._done.referred += await self._run(
            partial(self._marks.add, [one.digest for one in some])
        )
        by_holders = self._counted.holders_of
        for holders, own in groupby(sorted(some, key=by_holders), by_holders):
            await self._counted.refer(holders, KeptKind.LOGS, [one.digest for one in own])

    async def roots(self, some: Iterable[Reference]) -> None:
        """Manifests, with what they list; ReferencesUnread for one that cannot be read."""
        for one in some:
            holders = self._counted.holders_of(one)
            if one.digest and (one.digest, holders) not in self._seen:
                with _readable(one.digest):
                    is_marked = one.digest in self._marked
                    await self._root(_Root(one.digest, holders, one.kind, is_marked))
                self._marked.keep(one.digest, None)
                self._seen.keep((one.digest, holders), None)

    async def _root(self, root: _Root) -> None:
        data = await self._objects.get(root.digest)
        await self._add(root, [root.digest])
        pages = pages_in(data)
        if pages is None:
            for digests in digests_in(data):
                await self._add(root, digests)
            return
        digests = [page.digest for page in pages]
        for start in range(0, len(digests), STEP):
            await self._add(root, digests[start : start + STEP])
        await self._pages(root, digests)

    async def _pages(self, root: _Root, digests: Sequence[str]) -> None:
        """What pages list. One that was read for the same holders is not read again, but for a digest that is cut at its beginning."""
        known = [self._known_page(digest, root.holders) for digest in digests]
        wanted = [digest for digest, one in zip(digests, known, strict=True) if one is None]
        end = b""
        async with aclosing(read_in_turn(self._objects, wanted)) as unknown:
            for digest, one in zip(digests, known, strict=True):
                if one is not None and one.before == end:
                    self._done.referred += 0 if root.is_marked else one.found
                    end = one.after
                    await asyncio.sleep(0)
                    continue
                page = await (anext(unknown) if one is None else self._objects.get(digest))
                data, count = end + page, 0
                for some in digests_in(data):
                    count += len(some)
                    await self._add(root, some)
                self._keep_page(
                    digest, _PageRead(end, end_of(data), count, frozenset(root.holders))
                )
                end = end_of(data)

    def _known_page(self, digest: str, holders: Collection[Holder]) -> _PageRead | None:
        """What it lists, where that is counted for all of these."""
        one = self._read.get(digest)
        return one if one is not None and one.holders.issuperset(holders) else None

    def _keep_page(self, digest: str, one: _PageRead) -> None:
        before = self._read.get(digest)
        if before is not None and before.before == one.before:
            one = one._replace(holders=before.holders | one.holders)
        self._read.keep(digest, one)

    async def _add(self, root: _Root, digests: list[str]) -> None:
        if not root.is_marked:
            self._done.referred += await self._run(partial(self._marks.add, digests))
        await self._counted.refer(root.holders, root.kind, digests)
        await asyncio.sleep(0)


class _Root(NamedTuple):
    """A manifest that something of these holders refers to; `is_marked`: for others."""

    digest: str
    holders: tuple[Holder, ...]
    kind: KeptKind
    is_marked: bool


class _PageRead(NamedTuple):
    """A page that was read in this look: what of the pages before and in it goes before it, and before the next one.

    `found`: how many digests; `holders`: for whom they are counted.
    """

    before: bytes
    after: bytes
    found: int
    holders: frozenset[Holder]


async def recorded(
    history: History, run: Offload
) -> AsyncIterator[tuple[list[Reference], Sequence[Reference]]]:
    """What the history refers to, page by page: manifests, and what lists nothing; ReferencesUnread."""
    after: tuple[int | str, ...] | None = ()
    while after is not None:
        page = await history.catalogue.referred(after)
        yield [*await run(partial(_roots_in, page.records)), *page.roots], page.blobs
        after = page.next


@contextlib.contextmanager
def _readable(root: str) -> Iterator[None]:
    """Around what reads a manifest that something refers to: ReferencesUnread where it, or a page of it, is not there, or damaged."""
    try:
        yield
    except (NotFound, BlobDamaged, ContentError) as error:
        raise ReferencesUnread(
            f"the manifest {root} cannot be read, so its blobs are unknown",
            why=error.message if isinstance(error, NsmlError) else str(error),
            attempt="restore it from a backup, or remove the session or dataset that it belongs to",
        ) from error


def _roots_in(found: Iterable[bytes]) -> list[Reference]:
    """The code that records of ended sessions refer to. Their datasets are kept by their versions, as long as there are any."""
    try:
        sessions = [etcd_codec.decode_session(record) for record in found]
    except (ValueError, KeyError) as error:
        raise ReferencesUnread("the record of a session cannot be read", why=str(error)) from error
    return [root for one in sessions for root in roots_of(one)]


def roots_of(session: Session) -> Iterator[Reference]:
    """What the record of a session refers to by itself: its code, and the checkpoint that a restored one began with.

    Of others that is among the checkpoints of the session that saved it, or among their own.
    """
    owner, project = session.owner, session.project
    yield Reference(session.spec.bundle_digest, KeptKind.CODE, owner, session.id, project)
    initial = session.spec.initial_checkpoint
    if session.imported is not None and initial is not None and initial.digest:
        yield Reference(initial.digest, KeptKind.CHECKPOINTS, owner, session.id, project)


async def _batches(blobs: AsyncIterator[StoredBlob], size: int) -> AsyncIterator[list[StoredBlob]]:
    some: list[StoredBlob] = []
    async for blob in blobs:
        some.append(blob)
        if len(some) == size:
            yield some
            some = []
            await asyncio.sleep(0)  # a page of the listing has many, and nothing here need wait
    if some:
        yield some
