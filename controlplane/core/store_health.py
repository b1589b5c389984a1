"""Health of a control plane's stores, observed by their regular calls.

A failed call begins a condition; the next successful call of its kind ends it: a read after a failed read, a
write after a failed write. So the shown state never contradicts the calls. Without calls,
`health/probing_loop.py` makes some.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

from controlplane.domain.conditions import ConditionName
from controlplane.history.errors import HistoryCorrupt, HistoryFull, HistoryUnavailable
from controlplane.objects.errors import ObjectsFull, ObjectsUnavailable
from controlplane.store.interface import (
    CommitUnknown,
    DiskFull,
    NoSpace,
    Put,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from controlplane.history.sql.history import History
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.conditions import Conditions
    from controlplane.store.interface import (
        KeyValue,
        KeyValueStore,
        Lease,
        Listing,
        Space,
        Transaction,
        TransactionResult,
        WatchBatch,
    )
    from nsml.common.clock import Clock

Kinds = tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], ConditionName], ...]
"""Conditions by error: the first matching row. An error without a row counts as an answer."""

STORE_KINDS: Final[Kinds] = (
    (DiskFull, ConditionName.DISK_FULL),
    (NoSpace, ConditionName.COORDINATION_FULL),
    ((StoreUnavailable, CommitUnknown, TimeoutError), ConditionName.COORDINATION_GONE),
)
HISTORY_KINDS: Final[Kinds] = (
    (HistoryFull, ConditionName.DISK_FULL),
    ((HistoryUnavailable, HistoryCorrupt, TimeoutError), ConditionName.HISTORY_GONE),
)
OBJECTS_KINDS: Final[Kinds] = (
    (ObjectsFull, ConditionName.DISK_FULL),
    ((ObjectsUnavailable, TimeoutError), ConditionName.OBJECTS_GONE),
)

HISTORY_WRITES: Final = frozenset(
    {
        "append",
        "put_session",
        "replace_session",
        "delete_session",
        "put_dataset_version",
        "put_checkpoint",
        "delete_checkpoint",
        "update_dataset",
        "set_part_access",
        "tag_dataset",
        "untag_dataset",
        "remove_dataset",
        "restore_dataset",
        "lose_checkpoints",
        "note_lock",
        "charge",
        "audit",
        "remember",
        "probe",
    }
)
HISTORY_HELD: Final = frozenset(
    {
        "record",
        "note",
        "newest",
        "fold",
        "archive",
        "trim_audit",
        "purge_datasets",
        "share_lock",
        "tell",
        "settle",
        "lose",
        "remove",
        "close",
    }
)
"""Calls that may be answered from memory, or have nothing to write: their success proves nothing."""
OBJECTS_WRITES: Final = frozenset({"put", "put_many", "delete"})

_FULL: Final = ConditionName.DISK_FULL
_HISTORY_PARTS: Final = frozenset(
    {
        "streams",
        "series",
        "telemetry",
        "catalogue",
        "environment_locks",
        "media",
        "artifacts",
        "ledger",
        "sent",
        "kept",
    }
)


class Gauge:
    """Records results of one part's calls, and sets its conditions accordingly.

    Args:
        subject: name of its disk: "store", "history", "objects".
        kinds: conditions by error.
        has_disk: whether its disk is checked. Then only a check ends the condition that it is full: a small write
            may succeed when others find no room.
    """

    def __init__(
        self,
        conditions: Conditions,
        clock: Clock,
        *,
        subject: str,
        kinds: Kinds,
        has_disk: bool = False,
    ) -> None:
        self._conditions = conditions
        self._clock = clock
        self._subject = subject
        self._kinds = kinds
        self._has_disk = has_disk
        self._failing: dict[tuple[ConditionName, bool], str] = {}
        self._answered = clock.monotonic()
        self.answered_at = clock.time()
        """Unix seconds of the last answered call."""

    @property
    def is_failing(self) -> bool:
        """Whether any of its conditions is active."""
        return bool(self._failing)

    @property
    def fails_writing(self) -> bool:
        """Whether only a write can show that it works again."""
        return any(is_write for _, is_write in self._failing)

    @property
    def quiet_s(self) -> float:
        """Seconds since the last answered call."""
        return self._clock.monotonic() - self._answered

    def worked(self, *, wrote: bool) -> None:
        """Record an answered call; `wrote`: it wrote something."""
        self._answered = self._clock.monotonic()
        self.answered_at = self._clock.time()
        if self._failing:
            self._failing = {
                (name, is_write): evidence
                for (name, is_write), evidence in self._failing.items()
                if (is_write and not wrote) or (self._has_disk and name is _FULL)
            }
            self._tell()

    def looked(self, short: str) -> None:
        """Record a check of its disk: a text on low space, or "" if there is room."""
        self._failing = {
            key: short if key[0] is _FULL else evidence
            for key, evidence in self._failing.items()
            if short or key[0] is not _FULL
        }
        self._tell()

    def failed(self, error: BaseException, *, writing: bool) -> None:
        """Record an error of a call, which may count as an answer."""
        name = next((name for kind, name in self._kinds if isinstance(error, kind)), None)
        if name is None:
            if isinstance(error, Exception):
                self.worked(wrote=False)
            return
        # No read can prove that there is room again.
        self._failing[name, writing or name is _FULL] = _evidence(error)
        self._tell()

    async def seen(self, call: Awaitable[Any], *, writing: bool, is_answer: bool = True) -> Any:
        """Await a call and record its result; a success only with `is_answer`."""
        try:
            answer = await call
        except BaseException as error:
            self.failed(error, writing=writing)
            raise
        if is_answer:
            self.worked(wrote=writing)
        return answer

    def _tell(self) -> None:
        found: Mapping[ConditionName, str] = {
            name: evidence for (name, _), evidence in self._failing.items()
        }
        for _, name in self._kinds:
            subject = self._subject if name is _FULL else ""
            self._conditions.set(name, subject, stands=name in found, evidence=found.get(name, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedStore:
    """One store of a control plane.

    Attributes:
        read, write: the cheapest calls that test reading, and writing; made as regular calls, so that
            its gauge observes them.
    """

    name: str
    gauge: Gauge
    read: Callable[[], Awaitable[object]]
    write: Callable[[], Awaitable[object]]


def _evidence(error: BaseException) -> str:
    why = getattr(error, "why", "")
    return str(why or error or type(error).__name__)


class ObservedStore:
    """A `KeyValueStore` with observed calls."""

    def __init__(self, store: KeyValueStore, gauge: Gauge) -> None:
        self._store = store
        self._gauge = gauge

    async def get(self, key: str) -> KeyValue | None:
        """See KeyValueStore, as all below."""
        return cast("KeyValue | None", await self._gauge.seen(self._store.get(key), writing=False))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """List the keys under a prefix."""
        call = self._store.list(prefix, revision=revision, keys_only=keys_only)
        return cast("Listing", await self._gauge.seen(call, writing=False))

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply: a success without a Put does not prove that there is room."""
        lists = (transaction.success, transaction.failure)
        writing = any(isinstance(operation, Put) for one in lists for operation in one)
        try:
            result = await self._store.commit(transaction)
        except BaseException as error:
            self._gauge.failed(error, writing=writing)
            raise
        applied = transaction.success if result.succeeded else transaction.failure
        self._gauge.worked(wrote=any(isinstance(operation, Put) for operation in applied))
        return result

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield changes; an interrupted stream resumes by itself, unobserved."""
        return self._store.watch(prefix, from_revision)

    async def grant(self, ttl_s: float) -> Lease:
        """Grant a lease; some full stores refuse it, others grant it all the same."""
        try:
            lease = await self._store.grant(ttl_s)
        except BaseException as error:
            self._gauge.failed(error, writing=True)
            raise
        self._gauge.worked(wrote=False)
        return lease

    async def keep_alive(self, lease: Lease) -> Lease:
        """Renew a lease."""
        return cast("Lease", await self._gauge.seen(self._store.keep_alive(lease), writing=False))

    async def revoke(self, lease: Lease) -> None:
        """End a lease."""
        await self._gauge.seen(self._store.revoke(lease), writing=False)

    async def compact(self, revision: int) -> None:
        """Drop old revisions."""
        await self._gauge.seen(self._store.compact(revision), writing=False)

    async def reclaim(self) -> None:
        """Free space; the next Put shows whether there is room."""
        await self._gauge.seen(self._store.reclaim(), writing=False)

    async def space(self) -> Space:
        """Return how full it is, unobserved: an etcd member reports its own space even if the cluster does not answer."""
        return await self._store.space()

    async def members_away(self) -> Mapping[str, str]:
        """See KeyValueStore; members that do not answer do not make the store fail."""
        return await self._store.members_away()


class _Observed:
    """Any object with observed coroutines; all other attributes are passed through."""

    def __init__(
        self,
        inner: Any,
        gauge: Gauge,
        writes: frozenset[str],
        held: frozenset[str] = frozenset(),
    ) -> None:
        self._inner = inner
        self._gauge = gauge
        self._writes = writes
        self._held = held

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found
        seen = _observing(
            found,
            self._gauge,
            writing=name in self._writes or name in self._held,
            is_answer=name not in self._held,
        )
        setattr(self, name, seen)
        return seen


def _observing(
    method: Callable[..., Awaitable[Any]], gauge: Gauge, *, writing: bool, is_answer: bool
) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def seen(*args: Any, **kwargs: Any) -> Any:
        return await gauge.seen(method(*args, **kwargs), writing=writing, is_answer=is_answer)

    return seen


class _ObservedHistory(_Observed):
    def __getattr__(self, name: str) -> Any:
        if name in _HISTORY_PARTS:
            inner = getattr(self._inner, name)
            part = _Observed(inner, self._gauge, self._writes, self._held)
            setattr(self, name, part)
            return part
        return super().__getattr__(name)


def observed_history(history: History, gauge: Gauge) -> History:
    """Wrap a history so that its calls are observed."""
    return cast("History", _ObservedHistory(history, gauge, HISTORY_WRITES, HISTORY_HELD))


def observed_objects(objects: ObjectStore, gauge: Gauge) -> ObjectStore:
    """Wrap an object store so that its calls are observed."""
    return cast("ObjectStore", _Observed(objects, gauge, OBJECTS_WRITES))
