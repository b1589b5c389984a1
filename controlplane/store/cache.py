"""The tables of a store in memory, fed by one watch."""

from __future__ import annotations

import asyncio
import contextlib
import os.path
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import structlog

from controlplane.store.interface import Compacted, StoreUnavailable
from controlplane.store.tables import Stored, Table, UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from controlplane.store.interface import KeyValue, KeyValueStore, WatchBatch
    from nsml.common.clock import Clock

T = TypeVar("T")

RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One record before and after a revision; None where it did not or does not exist."""

    table: Table[Any]
    key: str
    old: Stored[Any] | None
    new: Stored[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of the cached tables up to and including `revision`, as one step.

    One transaction, or, after history was lost, the difference between two listings.
    """

    revision: int
    changes: tuple[Change, ...]


class Subscription:
    """An async iterator of `Changes`: every step since its creation, in order, each once.

    Steps are queued, so a subscriber that stops reading has to `close` it.
    """

    def __init__(self, forget: Callable[[Subscription], None]) -> None:
        self._forget = forget
        self._waiting: deque[Changes] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        while not self._waiting:
            if self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def add(self, step: Changes) -> None:
        """Append a step; called by the cache."""
        self._waiting.append(step)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after the queued steps."""
        self._is_closed = True
        self._arrived.set()
        self._forget(self)


class TableCache:
    """Holds every record of some tables, whole revisions at a time.

    One watch covers the tables' common prefix, so a transaction over several tables is one step
    here too. Its owner runs `run()` in a TaskGroup; everything else is synchronous, except
    `wait_for`. A record that cannot be decoded is left out and logged.

    Every `relist_every_s` the tables are read again at the cache's own revision and compared: a
    server can lose a watch event. Differences are repaired, passed on as changes, and counted in
    `drift`.
    """

    def __init__(
        self,
        store: KeyValueStore,
        tables: Sequence[Table[Any]],
        *,
        clock: Clock,
        relist_every_s: float = 60.0,
        patience_s: float = 0.1,
    ) -> None:
        self._store = store
        self._clock = clock
        self._relist_every_s = relist_every_s
        self._patience_s = patience_s
        self._log = structlog.get_logger()
        self._prefix = os.path.commonprefix([table.prefix for table in tables])  # noqa: RUF071 - of strings
        self._records: dict[str, dict[str, Stored[Any]]] = {t.prefix: {} for t in tables}
        self._tables = tuple(tables)
        self._revision = 0
        self._reached = asyncio.Condition()
        self._wanted = 0
        self._asked = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self.drift = 0
        """Records that a periodic listing found to differ from the watch's."""

    @property
    def revision(self) -> int:
        """The cache includes all changes up to this revision; 0 before the first listing."""
        return self._revision

    def get(self, table: Table[T], key: str) -> Stored[T] | None:
        """Return a record, or None."""
        return self._records[table.prefix].get(key)

    def records(self, table: Table[T]) -> Mapping[str, Stored[T]]:
        """Return all records of a table by key: a live view, not to be kept across an await."""
        return self._records[table.prefix]

    def changes(self, *, initial: bool = False) -> Subscription:
        """Return every step from now on; with `initial`, the current records come first."""
        subscription = Subscription(self._subscriptions.remove)
        if initial:
            there = [
                Change(table=table, key=record.key, old=None, new=record)
                for table in self._tables
                for record in self._records[table.prefix].values()
            ]
            subscription.add(Changes(revision=self._revision, changes=tuple(there)))
        self._subscriptions.append(subscription)
        return subscription

    async def wait_for(self, revision: int) -> None:
        """Return once everything up to `revision` is included (1: after the first listing).

        Revisions outside the tables do not arrive by the watch, so after `patience_s` the
        tables are listed again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._is_reached(revision)
                return
        self._wanted = max(self._wanted, revision)
        self._asked.set()
        await self._is_reached(revision)

    async def _is_reached(self, revision: int) -> None:
        async with self._reached:
            await self._reached.wait_for(lambda: self._revision >= max(revision, 1))

    async def run(self) -> None:
        """Follow the store until cancelled; outages are retried.

        Raises:
            StoreReplaced, StoreRefused: the store cannot be followed any more.
        """
        while True:
            try:
                await self._relist()
                await self._follow()
            except Compacted as error:
                self._log.info("cache.history_lost", revision=self._revision, reason=str(error))
            except StoreUnavailable as error:
                self._log.warning("cache.store_unavailable", reason=str(error))
                await self._clock.sleep(RETRY_S)

    async def _follow(self) -> None:
        """Apply batches as they arrive; list again between two of them when due or requested."""
        relist_at = self._clock.monotonic() + self._relist_every_s
        watch = self._store.watch(self._prefix, self._revision + 1)
        coming = asyncio.ensure_future(anext(watch))
        asking = asyncio.ensure_future(self._asked.wait())
        try:
            while True:
                left_s = max(0.0, relist_at - self._clock.monotonic())
                await asyncio.wait(
                    (coming, asking), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if coming.done():
                    await self._apply(coming.result())
                    coming = asyncio.ensure_future(anext(watch))
                if asking.done():
                    self._asked.clear()
                    asking = asyncio.ensure_future(self._asked.wait())
                    if self._wanted > self._revision:
                        await self._relist()
                if self._clock.monotonic() >= relist_at:
                    await self._verify()
                    relist_at = self._clock.monotonic() + self._relist_every_s
        finally:
            coming.cancel()
            asking.cancel()
            await asyncio.wait((coming, asking))
            if not coming.cancelled():
                coming.exception()
            await watch.aclose()

    async def _apply(self, batch: WatchBatch) -> None:
        if batch.revision <= self._revision:
            return
        found: list[Change] = []
        for event in batch.events:
            table = self._table_of(event.key)
            if table is not None:
                new = None if event.item is None else self._decoded(table, event.item)
                found += self._replace(table, event.key[len(table.prefix) :], new)
        await self._advance(batch.revision, found)

    async def _relist(self) -> None:
        """Replace the records by a new listing; subscribers get the difference, once."""
        listing = await self._store.list(self._prefix)
        before = self._revision
        found = self._difference(listing.items)
        late = [c for c in found if c.new is not None and c.new.revision <= before]
        self._count_drift(late)
        await self._advance(max(before, listing.revision), found)

    async def _verify(self) -> None:
        """Compare with the store at the cache's own revision: any difference is drift."""
        try:
            listing = await self._store.list(self._prefix, revision=self._revision)
        except Compacted:
            await self._relist()
            return
        found = self._difference(listing.items)
        self._count_drift(found)
        if found:
            await self._advance(self._revision, found)

    def _count_drift(self, found: Sequence[Change]) -> None:
        if found:
            self.drift += len(found)
            paths = [change.table.path(change.key) for change in found[:10]]
            self._log.error("cache.drift_repaired", records=len(found), first=paths)

    def _difference(self, items: Iterable[KeyValue]) -> list[Change]:
        """Replace the records by those of a listing; return the changes."""
        found: list[Change] = []
        listed: dict[str, set[str]] = {table.prefix: set() for table in self._tables}
        for item in items:
            table = self._table_of(item.key)
            if table is None:
                continue
            key = item.key[len(table.prefix) :]
            listed[table.prefix].add(key)
            held = self._records[table.prefix].get(key)
            if held is None or held.revision != item.mod_revision:
                found += self._replace(table, key, self._decoded(table, item))
        for table in self._tables:
            for key in [k for k in self._records[table.prefix] if k not in listed[table.prefix]]:
                found += self._replace(table, key, None)
        return found

    def _replace(self, table: Table[Any], key: str, new: Stored[Any] | None) -> list[Change]:
        records = self._records[table.prefix]
        old = records.pop(key, None)
        if new is not None:
            records[key] = new
        if old is None and new is None:
            return []
        return [Change(table=table, key=key, old=old, new=new)]

    async def _advance(self, revision: int, found: Sequence[Change]) -> None:
        async with self._reached:
            self._revision = revision
            self._reached.notify_all()
        if found:
            step = Changes(revision=revision, changes=tuple(found))
            for subscription in self._subscriptions:
                subscription.add(step)

    def _table_of(self, path: str) -> Table[Any] | None:
        return next((table for table in self._tables if path.startswith(table.prefix)), None)

    def _decoded(self, table: Table[Any], item: KeyValue) -> Stored[Any] | None:
        try:
            return table.stored(item)
        except UndecodableRecord as error:
            self._log.error("cache.record_unreadable", key=item.key, reason=str(error))
            return None
