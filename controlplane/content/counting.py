"""A count of what is kept for each user, made with a look at all references (`object_gc.py`)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from controlplane.content.manifests import read_in_turn
from controlplane.domain.errors import NotFound
from controlplane.history.sqlite.tally import Note, Tally, TallyFailed
from controlplane.history.values import KeptBytes, KeptKind, Reference, Release
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
"""Digests that are marked before anybody else gets a turn."""
_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_DIGEST_BYTES: Final = 66
_CUT: Final = re.compile(rb'"[0-9a-f]{0,64}\Z')


class Counting:
    """One count of what is kept for whom. Where it fails all else goes on: what is removed makes room for it."""

    def __init__(
        self,
        history: History,
        objects: ObjectStore,
        *,
        run: Offload,
        term: Callable[[], int],
        users: Callable[[], Mapping[str, str]],
    ) -> None:
        self._tally: Tally | None = None
        self._failed: TallyFailed | None = None
        self._history = history
        self._objects = objects
        self._run = run
        self._term = term
        self._users = users
        self._live: Mapping[str, str] = {}
        self._before: Mapping[str, KeptBytes] = {}
        self._released: Sequence[Release] = ()
        self._at = 0.0
        self._page: list[tuple[str, int]] = []

    async def close(self) -> None:
        """Remove its temporary file."""
        if self._tally is not None:
            await to_its_end(self._run(self._tally.close))

    async def _do(self, work: Callable[[Tally], T], otherwise: T) -> T:
        """Have the tally do something; `otherwise` when it cannot, now or before."""
        if self._tally is None or self._failed is not None:
            return otherwise
        try:
            return await self._run(partial(work, self._tally))
        except TallyFailed as error:
            self._failed = error
            return otherwise

    async def begin(self, live: Mapping[str, str]) -> None:
        """Before references are looked at. `live`: owners of live sessions by id."""
        self._live = live
        try:
            self._tally = await self._run(Tally)
        except TallyFailed as error:
            self._failed = error
        self._at = await self._objects.now()
        self._before = await self._history.kept.all()
        self._released = await self._history.kept.released()
        for one in self._released:
            whose = one.whose or live.get(one.session_id, "")
            if not whose:
                continue
            with suppress(NotFound, BlobDamaged, ContentError):  # its notes are worth nothing
                async for digests in listed(self._objects, one.root):
                    await self._do(partial(Tally.release, owner=whose, digests=digests), 0)

    def owner_of(self, one: Reference) -> str:
        """For whom it counts; "": for nobody."""
        return one.owner or self._live.get(one.session_id, "")

    async def refer(self, owner: str, kind: KeptKind, digests: Sequence[str]) -> None:
        """Something of an owner ("": of nobody) refers to these."""
        if owner:
            await self._do(partial(Tally.refer, owner=owner, kind=kind, digests=digests), 0)

    async def sent(self) -> None:
        """After all references: what was sent and is not referred to."""
        users, after = self._users(), None
        while page := await self._history.sent.notes(after):
            owned = [(note, owner) for note in page if (owner := _owner_of(note[1], users))]
            nothing: list[Note] = []
            if dropped := await self._do(partial(Tally.note, notes=owned), nothing):
                await self._history.sent.drop(dropped)
            after = page[-1]

    async def objects(self, some: Sequence[StoredBlob]) -> None:
        """Objects that have their name."""
        self._page += [(one.digest, one.stored_bytes) for one in some]
        if len(self._page) >= STEP:
            await self._store()

    async def _store(self) -> None:
        page, self._page = self._page, []
        await self._do(partial(Tally.store, objects=page), None)

    async def finish(self) -> TallyFailed | None:
        """Keep what was found; why there is nothing to keep."""
        await self._store()
        nothing: Mapping[str, Mapping[str, int]] = {}
        counted = await self._do(Tally.figures, nothing)
        if self._failed is None:
            await self._history.kept.count(
                counted, self._before, self._released, at=self._at, term=self._term()
            )
        return self._failed


def _owner_of(sender: str, users: Mapping[str, str]) -> str:
    """The user of a note: see `Content._sender`. "": of nodes of the version before it is not known."""
    kind, _, who = sender.partition(" ")
    return users.get(who, "") if kind == "user" else who.partition(" for ")[2]


async def listed(objects: ObjectStore, root: str) -> AsyncGenerator[list[str], None]:
    """A root, its pages and what they list, in steps.

    Whatever looks like a digest: so a manifest of any size takes no room. Raises what `ObjectStore.get` does, and
    ContentError for a root that is none.
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
    """Whatever looks like a digest in an encoding, in steps."""
    found = (match[1].decode() for match in _DIGEST.finditer(data))
    while some := list(islice(found, STEP)):
        yield some


def end_of(data: bytes) -> bytes:
    """What goes before the next page, for a digest that begins in this one; no whole one is in it. Mostly nothing."""
    found = _CUT.search(data[-_DIGEST_BYTES + 1 :])
    return found[0] if found else b""
