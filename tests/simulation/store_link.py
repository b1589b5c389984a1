"""The way of one control plane to the store: a `KeyValueStore` over a link that can fail.

The store lives elsewhere, as etcd does: requests and answers take time, are held up, or are lost, and
what was sent is applied whatever becomes of its sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from controlplane.store.election import LEADER_KEY
from controlplane.store.interface import (
    DEFAULT_DEADLINE_S,
    CommitUnknown,
    Delete,
    KeyValue,
    KeyValueStore,
    Lease,
    Listing,
    NoSpace,
    Put,
    Space,
    StoreUnavailable,
    Transaction,
    TransactionResult,
    WatchBatch,
)
from controlplane.stored import etcd_codec
from tests.simulation.network import Network
from tests.simulation.points import Points

STORE = "store"
T = TypeVar("T")


class Observer(Protocol):
    """Sees what the store takes, at the instant that it does."""

    def committed(self, commit: Commit) -> None:
        """A transaction succeeded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A transaction that succeeded, as the store sees it.

    Attributes:
        member: who sent it.
        sent_term: the term that it is fenced with; 0: it has no fence.
        term: that of the leader's key now; 0: there is none.
    """

    member: str
    sent_term: int
    term: int
    transaction: Transaction
    result: TransactionResult


@dataclass
class StoreTrouble:
    """What is wrong with the store, for everybody.

    Attributes:
        no_space: puts and leases are refused, half of them after they were applied.
        hurt: how many calls were refused so far.
    """

    no_space: bool = False
    hurt: int = 0


def kind_of(transaction: Transaction) -> str:
    """What a transaction is for, by the keys that it writes."""
    writes = transaction.success
    puts = [one for one in writes if isinstance(one, Put)]
    deletes = [one for one in writes if isinstance(one, Delete)]
    for kind, prefix, among in (
        ("elect", LEADER_KEY, puts),
        ("submit", etcd_codec.REQUESTS, puts),
        ("export", etcd_codec.SESSIONS, deletes),
        ("allocate", etcd_codec.ALLOCATIONS, puts),
        ("node", etcd_codec.NODES, puts),
        ("session", etcd_codec.SESSIONS, puts),
    ):
        if any(one.key.startswith(prefix) for one in among):
            return kind
    return "other"


def fence_of(transaction: Transaction) -> int:
    """The term in which alone it may succeed, or 0: what a member believes of itself proves nothing."""
    fences = (
        one.operand
        for one in transaction.compares
        if (one.key, one.field) == (LEADER_KEY, "create_revision")
    )
    return next(fences, 0)


class StoreLink:
    """One process's store.

    Args:
        source: the machine of the process, for cuts of its link to STORE.
        member: the process.
        outside: the context of what has been sent, which no pause of the process holds up.
    """

    def __init__(
        self,
        store: KeyValueStore,
        network: Network,
        *,
        source: str,
        member: str,
        observer: Observer,
        points: Points,
        trouble: StoreTrouble,
        outside: Context,
    ) -> None:
        self._store = store
        self._network = network
        self._source = source
        self._member = member
        self._observer = observer
        self._points = points
        self._trouble = trouble
        self._outside = outside
        self._losing = 0
        self._travelling: dict[asyncio.Task[Any], None] = {}
        self.is_severed = False

    def sever(self) -> None:
        """The process is dead; what it sent is on its way still."""
        self.is_severed = True

    def lose_events(self, batches: int) -> None:
        """Let its watches lose the events of so many of the next batches."""
        self._losing = batches

    # See KeyValueStore.

    async def get(self, key: str) -> KeyValue | None:
        return await self._exchange(lambda: self._store.get(key))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        return await self._exchange(
            lambda: self._store.list(prefix, revision=revision, keys_only=keys_only)
        )

    async def commit(self, transaction: Transaction) -> TransactionResult:
        kind = kind_of(transaction)
        apply = partial(self._apply, transaction)
        await self._points.passing(f"store {kind} before")
        result = await self._exchange(apply, lost=CommitUnknown)
        await self._points.passing(f"store {kind} after")
        return result

    async def _apply(self, transaction: Transaction) -> TransactionResult:
        has_puts = any(isinstance(one, Put) for one in transaction.success)
        is_refused = has_puts and self._trouble.no_space
        if is_refused and self._refuses_before():
            raise NoSpace("the store is at its quota")
        result = await self._store.commit(transaction)
        if result.succeeded:
            holder = await self._store.get(LEADER_KEY)  # in the same instant
            commit = Commit(
                member=self._member,
                sent_term=fence_of(transaction),
                term=holder.create_revision if holder else 0,
                transaction=transaction,
                result=result,
            )
            self._observer.committed(commit)
        if is_refused:
            raise NoSpace("the store is over its quota")
        return result

    def _refuses_before(self) -> bool:
        self._trouble.hurt += 1
        return self._network.rng.random() < 0.5

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with aclosing(self._store.watch(prefix, from_revision)) as batches:
            async for batch in batches:
                await self._cross(back=True)
                await self._network.healed(self._source, STORE)
                is_lost = bool(batch.events and self._losing)
                self._losing -= is_lost
                yield replace(batch, events=()) if is_lost else batch

    async def grant(self, ttl_s: float) -> Lease:
        return await self._timed(partial(self._grant, ttl_s))

    async def _grant(self, ttl_s: float) -> Lease:
        if self._trouble.no_space:
            self._trouble.hurt += 1
            raise NoSpace("the store is at its quota")
        return await self._store.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> Lease:
        return await self._timed(lambda: self._store.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._points.passing("store stop before")
        await self._exchange(lambda: self._store.revoke(lease))
        await self._points.passing("store stop after")

    async def compact(self, revision: int) -> None:
        await self._exchange(lambda: self._store.compact(revision))

    async def reclaim(self) -> None:
        await self._exchange(self._reclaim)

    async def space(self) -> Space:
        return await self._store.space()

    async def members_away(self) -> Mapping[str, str]:
        return await self._store.members_away()

    async def _reclaim(self) -> None:
        await self._store.reclaim()
        self._trouble.no_space = False

    # The way.

    @property
    def _is_cut(self) -> bool:
        return self.is_severed or self._network.is_cut(self._source, STORE)

    async def _cross(self, *, back: bool = False) -> None:
        ends = (STORE, self._source) if back else (self._source, STORE)
        await self._network.pass_link(*ends)

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
        loop = asyncio.get_running_loop()
        travelling = loop.create_task(self._travel(work), context=self._outside.copy())
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
        await self._cross(back=True)
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
