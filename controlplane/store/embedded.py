"""The embedded store: etcd's semantics over one SQLite file, for one process.

One connection writes and checkpoints, and no other ever does: SQLite before 3.51.3 can corrupt a
WAL that two connections checkpoint at once.

On a file, concurrent writes share one SQLite transaction, and so one fsync; each commit has a
revision of its own. On ":memory:" everything happens at once in the caller, without a thread or a
turn of the event loop, so that a simulation on a virtual clock is reproducible.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import structlog

from controlplane.store import revisions
from controlplane.store.background_task import Companion
from controlplane.store.filelock import FileLock
from controlplane.store.interface import (
    DEFAULT_DEADLINE_S,
    CommitUnknown,
    KeyValue,
    Lease,
    LeaseLost,
    Listing,
    Space,
    StoreError,
    StoreUnavailable,
    Transaction,
    TransactionResult,
    WatchBatch,
    check,
)
from controlplane.store.revisions import MEMORY, Revisions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from controlplane.store.revisions import Connection
    from nsml.common.clock import Clock, Offload

GROUP_MAX: Final = 256
"""Maximum units of work in one SQLite transaction."""

LEASE_RETRY_S: Final = 1.0
"""Pause before retrying to end a lease after a disk error."""

T = TypeVar("T")


@dataclass(slots=True)
class _Request:
    """A queued unit of work, and the future of its result."""

    unit: Callable[[], Any]
    outcome: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class _Watcher:
    prefix: str
    wake: asyncio.Event


@dataclass(slots=True)
class _LiveLease:
    ttl_s: float
    deadline: float
    is_ended: bool = False
    """It expired or was revoked, but its keys could not be deleted yet."""


class EmbeddedStore:
    """A `KeyValueStore` over one SQLite file or in memory, used as an async context manager.

    Args:
        path: the file, made with mode 0600 when absent; or MEMORY.
        run: where blocking writes go: `in_thread`, or `inline` for tests and the simulation.
        retention_s: history is kept at least this long, and at most twice as long.
        progress_every_s: how often a quiet watch yields a batch without events.
        quota_bytes: space in use beyond which puts raise NoSpace.

    Raises:
        StoreLocked: (on entering) another process has the file open.
        StoreCorrupt: (on entering) the file fails its check or is of another format.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Clock,
        run: Offload,
        deadline_s: float = DEFAULT_DEADLINE_S,
        retention_s: float = 300.0,
        progress_every_s: float = 5.0,
        quota_bytes: int = 2 << 30,
    ) -> None:
        self._path = str(path)
        self._clock = clock
        self._run = run
        self._deadline_s = deadline_s
        self._retention_s = retention_s
        self._progress_every_s = progress_every_s
        self._quota_bytes = quota_bytes
        self._log = structlog.get_logger()
        self._stack = contextlib.AsyncExitStack()
        self._reader: Connection | None = None
        self._revisions: Revisions | None = None
        self._requests: deque[_Request] = deque()
        self._requested = asyncio.Event()
        self._leases: dict[int, _LiveLease] = {}
        self._leases_changed = asyncio.Event()
        # A dictionary as a set: the order of waking must not depend on memory addresses.
        self._watchers: dict[_Watcher, None] = {}

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._path != MEMORY:
                stack.enter_context(FileLock(self._path + ".lock"))
            writer = reader = revisions.connect(self._path)
            stack.callback(writer.close)
            if self._path != MEMORY:
                reader = revisions.connect_reader(self._path)
                stack.callback(reader.close)
            self._reader = reader
            self._revisions = Revisions(writer, quota_bytes=self._quota_bytes)
            now = self._clock.monotonic()
            for lease_id, ttl_s in self._revisions.leases().items():
                self._leases[lease_id] = _LiveLease(ttl_s, now + ttl_s)
            if self._path != MEMORY:
                await stack.enter_async_context(Companion(self._write(), name="store.write"))
            await stack.enter_async_context(Companion(self._expire(), name="store.expire"))
            await stack.enter_async_context(Companion(self._retire(), name="store.retire"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._stack.__aexit__(kind, error, trace)
        finally:
            self._reader = self._revisions = None
            for watcher in self._watchers:
                watcher.wake.set()
            for request in self._requests:
                if not request.outcome.done():
                    request.outcome.set_exception(StoreUnavailable("the store has been closed"))
            self._requests.clear()

    # Reads

    async def get(self, key: str) -> KeyValue | None:
        """Return the key as it is now, or None."""
        return revisions.find(self._reading(), key)

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """Return every key under `prefix` at one revision."""
        listing = revisions.listing(self._reading(), prefix, revision)
        if keys_only:
            bare = tuple(replace(item, value=b"") for item in listing.items)
            listing = replace(listing, items=bare)
        return listing

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Deliver every change under `prefix` from `from_revision` on."""
        if from_revision < 1:
            raise ValueError("a watch begins at revision 1 or later")
        watcher = _Watcher(prefix, asyncio.Event())
        self._watchers[watcher] = None
        position = from_revision
        try:
            while True:
                watcher.wake.clear()
                batches, following = revisions.changes(self._reading(), prefix, position)
                is_at_end = following == position
                position = following
                for batch in batches:
                    yield batch
                if is_at_end and not await self._is_woken(watcher):
                    yield WatchBatch(revision=position - 1, events=())
        finally:
            self._watchers.pop(watcher, None)

    async def _is_woken(self, watcher: _Watcher) -> bool:
        try:
            async with asyncio.timeout(self._progress_every_s):
                return await watcher.wake.wait()
        except TimeoutError:
            return False

    def _reading(self) -> Connection:
        if self._reader is None:
            raise StoreUnavailable("the store is not open")
        return self._reader

    # Writes

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply a transaction."""
        check(transaction)
        self._end_due_leases()
        return await self._do(partial(self._writing().transact, transaction))

    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`."""
        await self._do(partial(self._writing().compact, revision))

    async def reclaim(self) -> None:
        """Compact up to now; SQLite reuses the freed pages."""
        await self.compact(revisions.counter(self._reading(), "revision"))

    async def space(self) -> Space:
        """Return the used and total space."""
        used = revisions.space_used(self._reading())
        return Space(used_bytes=used, quota_bytes=self._quota_bytes)

    async def members_away(self) -> Mapping[str, str]:
        """Empty: there are no members."""
        return {}

    def _writing(self) -> Revisions:
        if self._revisions is None:
            raise StoreUnavailable("the store is not open")
        return self._revisions

    async def _do(self, unit: Callable[[], T]) -> T:
        """Run one unit of work and return its result, or raise its exception."""
        return await self._outcome(self._ask(unit))

    async def _outcome(self, request: asyncio.Future[T]) -> T:
        if request.done():
            return request.result()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await request
        except TimeoutError:
            for waiting in self._requests:
                if waiting.outcome is request:
                    self._requests.remove(waiting)
                    raise StoreUnavailable("the store's disk does not keep up") from None
            raise CommitUnknown("the store's disk did not answer in time") from None

    def _ask(self, unit: Callable[[], T]) -> asyncio.Future[T]:
        """Queue one unit of work; on ":memory:" run it now."""
        request = _Request(unit, asyncio.get_running_loop().create_future())
        if self._path == MEMORY:
            self._settle([request], *self._writing().group([unit]))
        else:
            self._requests.append(request)
            self._requested.set()
        return request.outcome

    async def _write(self) -> None:
        """Run queued work, in groups; on a file the only user of the connection."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            while self._requests:
                size = min(len(self._requests), GROUP_MAX)
                group = [self._requests.popleft() for _ in range(size)]
                await self._write_group(group)

    async def _write_group(self, group: Sequence[_Request]) -> None:
        units = [request.unit for request in group]
        working = asyncio.ensure_future(self._run(partial(self._writing().group, units)))
        try:
            outcomes, touched = await asyncio.shield(working)
        except asyncio.CancelledError:
            # A thread cannot be stopped: nobody may close the connection under it.
            await asyncio.wait([working])
            for request in group:
                if not request.outcome.done():
                    request.outcome.set_exception(CommitUnknown("the store was closed"))
            raise
        self._settle(group, outcomes, touched)

    def _settle(
        self, group: Iterable[_Request], outcomes: Iterable[Any], touched: Iterable[str]
    ) -> None:
        keys = tuple(touched)
        for watcher in self._watchers:
            if any(key.startswith(watcher.prefix) for key in keys):
                watcher.wake.set()
        for request, outcome in zip(group, outcomes, strict=True):
            if request.outcome.done():
                continue
            if isinstance(outcome, StoreError):
                request.outcome.set_exception(outcome)
            else:
                request.outcome.set_result(outcome)

    # Leases: the file has the list of leases, this process's clock their ends. After a
    # restart every lease has its whole time again, as with etcd.

    async def grant(self, ttl_s: float) -> Lease:
        """Make a lease of `ttl_s` seconds."""
        sent_at = self._clock.monotonic()
        lease_id = await self._do(partial(self._writing().grant, ttl_s))
        self._leases[lease_id] = _LiveLease(ttl_s, self._clock.monotonic() + ttl_s)
        self._leases_changed.set()
        return Lease(id=lease_id, ttl_s=ttl_s, valid_until=sent_at + ttl_s)

    async def keep_alive(self, lease: Lease) -> Lease:
        """Renew a lease."""
        self._end_due_leases()
        live = self._leases.get(lease.id)
        if live is None or live.is_ended:
            raise LeaseLost(lease.id)
        live.deadline = self._clock.monotonic() + live.ttl_s
        return Lease(id=lease.id, ttl_s=live.ttl_s, valid_until=live.deadline)

    async def revoke(self, lease: Lease) -> None:
        """End a lease and delete its keys."""
        if lease.id in self._leases:
            await self._outcome(self._end_lease(lease.id))

    def _end_due_leases(self) -> None:
        """Queue the end of every expired lease, before any later work."""
        now = self._clock.monotonic()
        for lease_id in [key for key, live in self._leases.items() if live.deadline <= now]:
            self._end_lease(lease_id)

    def _end_lease(self, lease_id: int) -> asyncio.Future[None]:
        live = self._leases.pop(lease_id)
        outcome = self._ask(partial(self._writing().end_lease, lease_id))
        outcome.add_done_callback(partial(self._lease_ended, lease_id, live.ttl_s))
        return outcome

    def _lease_ended(self, lease_id: int, ttl_s: float, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled():
            error = outcome.exception()
            if error is None or self._revisions is None:
                return
            self._log.warning("lease.end_failed", lease_id=lease_id, error=str(error))
        retry_at = self._clock.monotonic() + LEASE_RETRY_S
        self._leases[lease_id] = _LiveLease(ttl_s, retry_at, is_ended=True)
        self._leases_changed.set()

    async def _expire(self) -> None:
        while True:
            self._leases_changed.clear()
            self._end_due_leases()
            deadlines = [live.deadline for live in self._leases.values()]
            wait_s = min(deadlines) - self._clock.monotonic() if deadlines else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s is None else max(wait_s, 0.001)):
                    await self._leases_changed.wait()

    async def _retire(self) -> None:
        """Compact history older than the retention."""
        oldest = revisions.counter(self._reading(), "revision")
        while True:
            await self._clock.sleep(self._retention_s)
            try:
                await self.compact(oldest)
            except StoreError as error:
                self._log.warning("compaction.failed", revision=oldest, error=str(error))
            oldest = revisions.counter(self._reading(), "revision")
