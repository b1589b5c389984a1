"""Counts the storage of each user and project during a pass over all references (`object_gc.py`)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from controlplane.content.manifests import read_in_turn
from controlplane.domain.errors import NotFound
from controlplane.history.sqlite.tally import Note, Tally, TallyFailed
from controlplane.history.values import Holder, KeptBytes, KeptKind, Reference, Release
from controlplane.objects.errors import BlobDamaged
from nsml.common.concurrency import to_its_end
from nsml.content.errors import ContentError
from nsml.content.pages import pages_in

if TYPE_CHECKING:
    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore, StoredBlob
    from nsml.common.clock import Offload

T = TypeVar("T")

STEP: Final = 10_000
"""Digests processed before other tasks get a turn."""
_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_DIGEST_BYTES: Final = 66
_CUT: Final = re.compile(rb'"[0-9a-f]{0,64}\Z')


class Counting:
    """One count of storage. If it fails, the pass goes on: garbage collection frees room for the next.

    Args:
        users: names of users by ID.
        projects: projects to count.
    """

    def __init__(
        self,
        history: History,
        objects: ObjectStore,
        *,
        run: Offload,
        term: Callable[[], int],
        users: Callable[[], Mapping[str, str]],
        projects: Callable[[], Collection[str]],
    ) -> None:
        self._tally: Tally[Holder] | None = None
        self._failed: TallyFailed | None = None
        self._history = history
        self._objects = objects
        self._run = run
        self._term = term
        self._users = users
        self._named_projects = projects
        self._projects: frozenset[str] = frozenset()
        self._live: Mapping[str, tuple[str, str]] = {}
        self.sealed: set[str] = set()
        """Sealed sessions found so far, by ID: records of sessions are read before what refers to sessions."""
        self._before: Mapping[str, KeptBytes] = {}
        self._before_of_projects: Mapping[str, KeptBytes] = {}
        self._released: Sequence[Release] = ()
        self._at = 0.0
        self._page: list[tuple[str, int]] = []

    async def close(self) -> None:
        """Remove its temporary file."""
        if self._tally is not None:
            await to_its_end(self._run(self._tally.close))

    async def _do(self, work: Callable[[Tally[Holder]], T], otherwise: T) -> T:
        """Run `work` on the tally; return `otherwise` if it fails, or has failed."""
        if self._tally is None or self._failed is not None:
            return otherwise
        try:
            return await self._run(partial(work, self._tally))
        except TallyFailed as error:
            self._failed = error
            return otherwise

    async def begin(self, live: Mapping[str, tuple[str, str]]) -> None:
        """Start, before references are read. `live`: owner and project of live sessions by ID, but for sealed ones."""
        self._live = live
        self._projects = frozenset(self._named_projects())
        try:
            self._tally = await self._run(Tally)
        except TallyFailed as error:
            self._failed = error
        self._at = await self._objects.now()
        self._before = await self._history.kept.all()
        self._before_of_projects = await self._history.kept.projects.all()
        self._released = await self._history.kept.released()
        for one in self._released:
            owner, project = one.whose, one.project
            if not owner:
                owner, project = live.get(one.session_id, ("", ""))
            with suppress(NotFound, BlobDamaged, ContentError):  # its upload records are useless
                async for digests in listed(self._objects, one.root):
                    for whose in self._holders(owner, project):
                        await self._do(partial(Tally.release, owner=whose, digests=digests), 0)

    def holders_of(self, one: Reference) -> tuple[Holder, ...]:
        """Return the holders charged for it. Nobody is for what a sealed session wrote: see `payer_of`."""
        if one.session_id in self.sealed and one.kind is not KeptKind.CODE:
            return ()
        owner, project = one.owner, one.project
        if not owner:
            owner, project = self._live.get(one.session_id, ("", ""))
        return self._holders(owner, project)

    def _holders(self, owner: str, project: str) -> tuple[Holder, ...]:
        if not owner:
            return ()
        project = project or owner
        is_counted = project in self._projects
        return Holder(owner), *([Holder(project=project)] if is_counted else [])

    async def refer(
        self, holders: Collection[Holder], kind: KeptKind, digests: Sequence[str]
    ) -> None:
        """Count blobs that these holders refer to."""
        for one in holders:
            await self._do(partial(Tally.refer, owner=one, kind=kind, digests=digests), 0)

    async def sent(self) -> None:
        """Count unreferenced uploads, after all references."""
        users, after = self._users(), None
        while page := await self._history.sent.notes(after):
            owned = [(note, one) for note in page for one in self._senders(note[1], users)]
            nothing: list[Note] = []
            if dropped := await self._do(partial(Tally.note, notes=owned), nothing):
                await self._history.sent.drop(dropped)
            after = page[-1]

    def _senders(self, sender: str, users: Mapping[str, str]) -> tuple[Holder, ...]:
        """Return an upload record's holders: see `Content._sender`. Users' uploads have no project yet.

        For nodes of the previous version, they are unknown.
        """
        kind, _, who = sender.partition(" ")
        if kind == "user":
            return (Holder(users[who]),) if who in users else ()
        owner, _, project = who.partition(" for ")[2].partition(" in ")
        return self._holders(owner, project)

    async def objects(self, some: Sequence[StoredBlob]) -> None:
        """Count objects that are not aside."""
        self._page += [(one.digest, one.stored_bytes) for one in some]
        if len(self._page) >= STEP:
            await self._store()

    async def _store(self) -> None:
        page, self._page = self._page, []
        await self._do(partial(Tally.store, objects=page), None)

    async def finish(self) -> TallyFailed | None:
        """Save the count; return the error if it failed."""
        await self._store()
        nothing: Mapping[Holder, Mapping[str, int]] = {}
        counted = await self._do(Tally.figures, nothing)
        if self._failed is None:
            # Include empty projects: their count is then 0, not unknown.
            projects = {one: counted.get(Holder(project=one), {}) for one in self._projects}
            before = {
                name: one
                for name, one in self._before_of_projects.items()
                if name in self._projects
            }
            await self._history.kept.count(
                {one.user: kinds for one, kinds in counted.items() if one.user},
                self._before,
                self._released,
                projects=(projects, before),
                removed_projects=self._before_of_projects.keys() - self._projects,
                at=self._at,
                term=self._term(),
            )
        return self._failed


async def listed(objects: ObjectStore, root: str) -> AsyncGenerator[list[str], None]:
    """Yield a root, its pages and their digests, in steps.

    Includes anything that looks like a digest, so that a manifest of any size needs little memory.
    Raises as `ObjectStore.get`, and ContentError if it is no root.
    """
    data = await objects.get(root)
    yield [root]
    pages = pages_in(data)
    if pages is None:
        for some in digests_in(data):
            yield some
        return
    digests = [page.digest for page in pages]
    for start in range(0, len(digests), STEP):
        yield digests[start : start + STEP]
    end = b""
    async with aclosing(read_in_turn(objects, digests)) as read:
        async for page in read:
            data = end + page
            for some in digests_in(data):
                yield some
            end = end_of(data)


def digests_in(data: bytes) -> Iterator[list[str]]:
    """Yield anything that looks like a digest, in steps."""
    found = (match[1].decode() for match in _DIGEST.finditer(data))
    while some := list(islice(found, STEP)):
        yield some


def end_of(data: bytes) -> bytes:
    """Return the cut digest at the end of a page, to prepend to the next one; mostly b""."""
    found = _CUT.search(data[-_DIGEST_BYTES + 1 :])
    return found[0] if found else b""
