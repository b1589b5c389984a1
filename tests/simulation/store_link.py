"""The way of one control plane to the store: a `KeyValueStore` over a link that can fail.

The store lives elsewhere, as etcd does: requests and answers take time, are held up, or are lost, and
what was sent is applied whatever becomes of its sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from controlplane.store.interface import (
    DEFAULT_DEADLINE_S,
    CommitUnknown,
    KeyValue,
    KeyValueStore,
    Lease,
    Listing,
    StoreUnavailable,
    Transaction,
    TransactionResult,
    WatchBatch,
)
from tests.simulation.network import Network

STORE = "store"
T = TypeVar("T")


class Observer(Protocol):
    """Sees what the store takes, at the instant that it does."""

    def committed(
        self, member: str, sent_term: int, transaction: Transaction, result: TransactionResult
    ) -> None:
        """A transaction of `member` succeeded that was sent while it led in `sent_term` (or 0)."""
        ...


class StoreLink:
    """One process's store.

    Args:
        source: the machine of the process, for cuts of its link to STORE.
        member: the process.
        term: in which term it leads now, 0 when it does not.
    """

    def __init__(
        self,
        store: KeyValueStore,
        network: Network,
        *,
        source: str,
        member: str,
        observer: Observer,
        term: Callable[[], int],
    ) -> None:
        self._store = store
        self._network = network
        self._source = source
        self._member = member
        self._observer = observer
        self._term = term
        self._travelling: dict[asyncio.Task[Any], None] = {}
        self.is_severed = False

    def sever(self) -> None:
        """The process is dead; what it sent is on its way still."""
        self.is_severed = True

    # See KeyValueStore.

    async def get(self, key: str) -> KeyValue | None:
        return await self._exchange(lambda: self._store.get(key))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        return await self._exchange(
            lambda: self._store.list(prefix, revision=revision, keys_only=keys_only)
        )

    async def commit(self, transaction: Transaction) -> TransactionResult:
        apply = partial(self._apply, transaction, self._term())
        return await self._exchange(apply, lost=CommitUnknown)

    async def _apply(self, transaction: Transaction, sent_term: int) -> TransactionResult:
        result = await self._store.commit(transaction)
        if result.succeeded:
            self._observer.committed(self._member, sent_term, transaction, result)
        return result

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with aclosing(self._store.watch(prefix, from_revision)) as batches:
            async for batch in batches:
                await self._cross()
                await self._network.healed(self._source, STORE)
                yield batch

    async def grant(self, ttl_s: float) -> Lease:
        return await self._timed(lambda: self._store.grant(ttl_s))

    async def keep_alive(self, lease: Lease) -> Lease:
        return await self._timed(lambda: self._store.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._exchange(lambda: self._store.revoke(lease))

    async def compact(self, revision: int) -> None:
        await self._exchange(lambda: self._store.compact(revision))

    async def reclaim(self) -> None:
        await self._exchange(self._store.reclaim)

    # The way.

    @property
    def _is_cut(self) -> bool:
        return self.is_severed or self._network.is_cut(self._source, STORE)

    async def _cross(self) -> None:
        await self._network.pass_link(self._source, STORE)

    async def _timed(self, work: Callable[[], Awaitable[Lease]]) -> Lease:
        """A lease is counted from when its request was sent."""
        sent_at = asyncio.get_running_loop().time()
        lease = await self._exchange(work)
        return replace(lease, valid_until=sent_at + lease.ttl_s)

    async def _exchange(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        lost: Callable[[str], Exception] = StoreUnavailable,
    ) -> T:
        if self._is_cut:
            await self._cross()
            raise StoreUnavailable("the store cannot be reached")
        travelling = asyncio.create_task(self._travel(work))
        self._travelling[travelling] = None
        travelling.add_done_callback(self._arrived)
        try:
            async with asyncio.timeout(DEFAULT_DEADLINE_S):
                return await asyncio.shield(travelling)
        except TimeoutError:
            raise lost("the store did not answer in time") from None
        except _Lost as error:
            raise (lost if error.is_sent else StoreUnavailable)("the connection broke") from None

    async def _travel(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._cross()
        if self._network.is_cut(self._source, STORE):
            raise _Lost(is_sent=False)
        result = await work()
        await self._cross()
        if self._is_cut:
            raise _Lost(is_sent=True)
        return result

    def _arrived(self, travelling: asyncio.Task[Any]) -> None:
        self._travelling.pop(travelling, None)
        if not travelling.cancelled():
            travelling.exception()  # nobody may be there any more to be told


class _Lost(Exception):
    def __init__(self, *, is_sent: bool) -> None:
        super().__init__(is_sent)
        self.is_sent = is_sent
