"""A store whose revisions continue those of an earlier store, from which it was restored.

A restored store counts its revisions from the beginning. Terms, positions of orders and resume
positions of watches are based on them, and agents, databases and clients remember the highest
that they saw. So an `offset` is added to every outgoing revision, and subtracted from every
incoming one: for all callers, revisions never go back.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.store.interface import Compacted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from controlplane.store.interface import (
        Compare,
        KeyValue,
        KeyValueStore,
        Lease,
        Listing,
        Space,
        Transaction,
        TransactionResult,
        WatchBatch,
    )


class ContinuedStore:
    """See KeyValueStore; revisions up to `offset` are of earlier stores, and compacted here."""

    def __init__(self, store: KeyValueStore, offset: int) -> None:
        self._store = store
        self._offset = offset

    async def get(self, key: str) -> KeyValue | None:
        """See KeyValueStore."""
        return self._out(await self._store.get(key))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """See KeyValueStore."""
        with self._translated():
            wanted = self._in(revision) if revision else 0
            found = await self._store.list(prefix, revision=wanted, keys_only=keys_only)
        items = tuple(self._moved(item) for item in found.items)
        return replace(found, items=items, revision=found.revision + self._offset)

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """See KeyValueStore."""
        compares = tuple(map(self._compare, transaction.compares))
        result = await self._store.commit(replace(transaction, compares=compares))
        responses = tuple(replace(one, item=self._out(one.item)) for one in result.responses)
        return replace(result, responses=responses, revision=result.revision + self._offset)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See KeyValueStore."""
        with self._translated():
            batches = self._store.watch(prefix, self._in(from_revision))
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    events = tuple(replace(one, item=self._out(one.item)) for one in batch.events)
                    yield replace(batch, events=events, revision=batch.revision + self._offset)

    async def grant(self, ttl_s: float) -> Lease:
        """See KeyValueStore."""
        return await self._store.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> Lease:
        """See KeyValueStore."""
        return await self._store.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        """See KeyValueStore."""
        await self._store.revoke(lease)

    async def compact(self, revision: int) -> None:
        """See KeyValueStore."""
        if revision > self._offset:
            with self._translated():
                await self._store.compact(revision - self._offset)

    async def reclaim(self) -> None:
        """See KeyValueStore."""
        await self._store.reclaim()

    async def space(self) -> Space:
        """See KeyValueStore."""
        return await self._store.space()

    async def members_away(self) -> Mapping[str, str]:
        """See KeyValueStore."""
        return await self._store.members_away()

    def _in(self, revision: int) -> int:
        """Return the store's own revision; Compacted for one of an earlier store."""
        if revision <= self._offset:
            raise Compacted(1)
        return revision - self._offset

    def _compare(self, compare: Compare) -> Compare:
        operand = compare.operand
        if isinstance(operand, bytes) or not operand:  # 0 stands for an absent key
            return compare
        # One of an earlier store becomes a number that no key here has ever had.
        return replace(compare, operand=operand - self._offset if operand > self._offset else -1)

    def _moved(self, item: KeyValue) -> KeyValue:
        return replace(
            item,
            create_revision=item.create_revision + self._offset,
            mod_revision=item.mod_revision + self._offset,
        )

    def _out(self, item: KeyValue | None) -> KeyValue | None:
        return None if item is None else self._moved(item)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Compacted as error:
            if error.revision:  # 0: the store does not say
                raise Compacted(error.revision + self._offset) from error
            raise
