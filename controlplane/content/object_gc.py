"""Garbage collection of unreferenced objects: put aside first, removed a grace period later.

A reference is written after a check that its object is present, so a pass over all references can
miss a new one. No lock is needed between the two, because nothing is removed at once:

1. Unreferenced objects stored at least a grace period ago are put aside. Uploaders see them as
   missing, readers still get them, and they are taken back before something refers to them
   (`Content.is_incomplete`).
2. Referenced objects that are aside are taken back by the next pass.
3. Objects aside for a grace period before the pass read references, and still unreferenced, are
   removed.

Ages come from `observed_clock.py`: a wrong clock makes nothing older.

So an object is lost only if its reference is written more than a grace period after the check. The
grace period is at least an hour, and a check is at most FOUND_FOR_S and one call old.

A pass also counts the storage of each user and project (`limits/user_storage.py`): the distinct
objects that they refer to, and their unreferenced uploads of the last day or two. These are the
objects that they can refer to without another upload; removed ones are not among them, and would
have to be sent again. A count alone, which removes nothing, runs on request.

A pass starts anew with each leader; its only state is what is aside. Two concurrent passes, of the
leader and of a deposed one that does not know it yet, do no harm.
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
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
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
"""Objects put aside or removed per batch."""
MOST_TOLD: Final = 10
"""Max digests in a log line."""
ROOTS_SEEN: Final = 100_000
"""Cache size: manifests with several references are read once."""
PAGES_READ: Final = 65_536
"""Cache size: pages shared by manifests are read once: some 30 MB, for 25 million files."""
MARK_BITS: Final = 27

_WORDS: Final = struct.Struct("<6I")
_log = structlog.get_logger()


class ReferencesUnread(NsmlError):
    """References cannot be read, so nothing may be put aside."""

    reason = "REFERENCES_UNREAD"


@dataclass(slots=True, kw_only=True)
class Collected:
    """Result of a pass.

    Attributes:
        referred: references to objects; several may be to the same object.
        objects: objects not aside, and those put aside by this pass.
        stored_bytes: their stored size.
        put_aside, put_aside_bytes: put aside by this pass.
        taken_back: taken back, because something refers to them.
        aside, aside_bytes: still aside, without those that this pass put there.
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
    """The referenced digests, in at most 16 MiB whatever their number: pages are taken as they are written.

    A Bloom filter: false positives, one in 100 million with a million digests, one in 25 with 20
    million, are kept.
    """

    def __init__(self, bits: int) -> None:
        self._mask = (1 << bits) - 1
        self._bits = mmap(-1, 1 << (bits - 3), flags=MAP_PRIVATE | MAP_ANONYMOUS)

    def add(self, digests: Iterable[str]) -> int:
        """Mark digests; return how many."""
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
    """Collects unreferenced objects, and counts storage per user and project.

    Args:
        observed: measures ages; objects are kept for its grace period twice: in place, then aside.
        may: whether this control plane is still the leader.
        term: its term as leader.
        users: names of users by ID.
        projects: projects with a record: their storage is counted, too.

    Attributes:
        last: result of the last completed pass.
        removed, removed_bytes: totals since the start.
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
        """Run one pass over all objects.

        Raises:
            ReferencesUnread: a referenced manifest, or a session's record, cannot be read.
            ClocksDiffer: ages are unknown.
            ObjectsUnavailable, HistoryUnavailable: the pass failed; the next one starts anew.
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
        """Count storage per user and project only; raises as `look`, and TallyFailed."""
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
        """Put unreferenced objects aside; return the others."""
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
        """Mark and count everything referenced.

        Live sessions first: one that ends meanwhile is in the catalogue before it leaves the store.
        """
        marks = Marks(MARK_BITS)
        live = [stored.value for stored in tuple(self._state.sessions.values())]
        counted.sealed.update(session.id for session in live if session.spec.is_sealed)
        await counted.begin(
            {
                session.id: (session.owner, session.project)
                for session in live
                if not session.spec.is_sealed
            }
        )
        walk = _Walk(self._objects, marks, done, counted, self._run)
        await walk.roots(
            root._replace(session_id="") for session in live for root in roots_of(session)
        )
        datasets = [
            Reference(dataset.digest, KeptKind.DATASETS, session.owner, project=session.project)
            for session in live
            for dataset in session.spec.datasets
        ]
        # They count for the datasets' owners, unless these have removed them.
        there = await self._history.catalogue.versions_among({one.digest for one in datasets})
        await walk.roots(one._replace(owner="") if one.digest in there else one for one in datasets)
        async for roots, blobs in recorded(self._history, self._run, sealed=counted.sealed):
            await walk.roots(roots)
            await walk.blobs(blobs)
        await counted.sent()
        return marks


class _Walk:
    """Marks and counts referenced objects."""

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
        """Mark blobs that are not manifests."""
        self._done.referred += await self._run(
            partial(self._marks.add, [one.digest for one in some])
        )
        by_holders = self._counted.holders_of
        for holders, own in groupby(sorted(some, key=by_holders), by_holders):
            await self._counted.refer(holders, KeptKind.LOGS, [one.digest for one in own])

    async def roots(self, some: Iterable[Reference]) -> None:
        """Mark manifests and their blobs; ReferencesUnread if one cannot be read."""
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
        """Mark the blobs of pages. A page is read once for the same holders, unless it begins with another cut digest."""
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
        """Return the cached page if it is counted for all `holders`."""
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
    """A manifest that these holders refer to; `is_marked`: already, for others."""

    digest: str
    holders: tuple[Holder, ...]
    kind: KeptKind
    is_marked: bool


class _PageRead(NamedTuple):
    """A page read in this pass; `before`, `after`: a cut digest at the end of the previous page, and of this one.

    `found`: number of digests; `holders`: they count for these.
    """

    before: bytes
    after: bytes
    found: int
    holders: frozenset[Holder]


async def recorded(
    history: History, run: Offload, *, sealed: set[str] | None = None
) -> AsyncIterator[tuple[list[Reference], Sequence[Reference]]]:
    """Yield the history's references page by page: manifests, other blobs; raises ReferencesUnread.

    `sealed`: gets the sealed ones of ended sessions, before what refers to sessions.
    """
    after: tuple[int | str, ...] | None = ()
    while after is not None:
        page = await history.catalogue.referred(after)
        ended = await run(partial(_sessions_in, page.records))
        if sealed is not None:
            sealed.update(one.id for one in ended if one.spec.is_sealed)
        yield [*(root for one in ended for root in roots_of(one)), *page.roots], page.blobs
        after = page.next


@contextlib.contextmanager
def _readable(root: str) -> Iterator[None]:
    """Raise ReferencesUnread if a referenced manifest or a page of it is missing or damaged."""
    try:
        yield
    except (NotFound, BlobDamaged, ContentError) as error:
        raise ReferencesUnread(
            f"the manifest {root} cannot be read, so its blobs are unknown",
            why=error.message if isinstance(error, NsmlError) else str(error),
            attempt="restore it from a backup, or remove the session or dataset that it belongs to",
        ) from error


def _sessions_in(found: Iterable[bytes]) -> list[Session]:
    """Decode records of ended sessions. Their datasets are kept by their versions, as long as there are any."""
    try:
        return [etcd_codec.decode_session(record) for record in found]
    except (ValueError, KeyError) as error:
        raise ReferencesUnread("the record of a session cannot be read", why=str(error)) from error


def roots_of(session: Session) -> Iterator[Reference]:
    """Yield a session's own references: its code, and the initial checkpoint of an imported session.

    That of other sessions is among the checkpoints of the session that saved it, or their own.
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
            await asyncio.sleep(0)  # a listing's page is long, and nothing else here may yield
    if some:
        yield some
