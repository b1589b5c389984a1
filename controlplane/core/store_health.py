"""What a control plane stands on, judged by the calls that are made anyway.

A part that fails a call begins a condition; the next call of the kind that works ends it: a read for what
failed to read, a write for what failed to write. So what is shown can never disagree with what happens.
Where nobody calls, `health/probing_loop.py` does.
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
"""Which condition an error begins: the first row that fits. An error of no row is an answer."""

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
"""Those that may be answered from memory, or find nothing to write: their success shows nothing."""
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
    """Takes note of how the calls of one part end, and sets its conditions accordingly.

    Args:
        subject: what a full disk is named by: "store", "history", "objects".
        kinds: which error begins which condition.
        has_disk: whether somebody looks at its disk. Then that alone ends that it is full: a small write
            can work where others find no room.
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
        """Unix seconds of the last call that was answered."""

    @property
    def is_failing(self) -> bool:
        """Whether any of its conditions stands."""
        return bool(self._failing)

    @property
    def fails_writing(self) -> bool:
        """Whether only a write can show that it works again."""
        return any(is_write for _, is_write in self._failing)

    @property
    def quiet_s(self) -> float:
        """How long nothing has been answered."""
        return self._clock.monotonic() - self._answered

    def worked(self, *, wrote: bool) -> None:
        """A call was answered; with `wrote` something was written by it."""
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
        """Its disk was looked at: how little is free, or "" where there is room."""
        self._failing = {
            key: short if key[0] is _FULL else evidence
            for key, evidence in self._failing.items()
            if short or key[0] is not _FULL
        }
        self._tell()

    def failed(self, error: BaseException, *, writing: bool) -> None:
        """A call ended in an error, which may be an answer."""
        name = next((name for kind, name in self._kinds if isinstance(error, kind)), None)
        if name is None:
            if isinstance(error, Exception):
                self.worked(wrote=False)
            return
        # No read can show that there is room again.
        self._failing[name, writing or name is _FULL] = _evidence(error)
        self._tell()

    async def seen(self, call: Awaitable[Any], *, writing: bool, is_answer: bool = True) -> Any:
        """Await a call and take note of its end; of its success only where that is an answer."""
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
    """One thing that a control plane stands on.

    Attributes:
        read, write: the cheapest calls that show whether it reads, and whether it writes; through the
            same way as everybody's calls, so that its gauge sees them.
    """

    name: str
    gauge: Gauge
    read: Callable[[], Awaitable[object]]
    write: Callable[[], Awaitable[object]]


def _evidence(error: BaseException) -> str:
    why = getattr(error, "why", "")
    return str(why or error or type(error).__name__)


class ObservedStore:
    """A `KeyValueStore` whose calls are taken note of."""

    def __init__(self, store: KeyValueStore, gauge: Gauge) -> None:
        self._store = store
        self._gauge = gauge

    async def get(self, key: str) -> KeyValue | None:
        """See KeyValueStore, as all below."""
        return cast("KeyValue | None", await self._gauge.seen(self._store.get(key), writing=False))

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """The keys under a prefix."""
        call = self._store.list(prefix, revision=revision, keys_only=keys_only)
        return cast("Listing", await self._gauge.seen(call, writing=False))

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply: a success that put nothing says nothing of whether there is room."""
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
        """Changes; a stream that is cut resumes by itself and says nothing of it."""
        return self._store.watch(prefix, from_revision)

    async def grant(self, ttl_s: float) -> Lease:
        """A lease; a store that is full refuses it, and another engine grants it all the same."""
        try:
            lease = await self._store.grant(ttl_s)
        except BaseException as error:
            self._gauge.failed(error, writing=True)
            raise
        self._gauge.worked(wrote=False)
        return lease

    async def keep_alive(self, lease: Lease) -> Lease:
        """Renew."""
        return cast("Lease", await self._gauge.seen(self._store.keep_alive(lease), writing=False))

    async def revoke(self, lease: Lease) -> None:
        """End a lease."""
        await self._gauge.seen(self._store.revoke(lease), writing=False)

    async def compact(self, revision: int) -> None:
        """Forget history."""
        await self._gauge.seen(self._store.compact(revision), writing=False)

    async def reclaim(self) -> None:
        """Make room; whether there is some then, the next put tells."""
        await self._gauge.seen(self._store.reclaim(), writing=False)

    async def space(self) -> Space:
        """How full it is: a member of etcd says so of itself, also where the cluster answers nothing."""
        return await self._store.space()

    async def members_away(self) -> Mapping[str, str]:
        """See KeyValueStore; members that do not answer do not make the store fail."""
        return await self._store.members_away()


class _Observed:
    """Anything, with note taken of its coroutines; whatever else it has is passed through."""

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
    """A history whose calls are taken note of."""
    return cast("History", _ObservedHistory(history, gauge, HISTORY_WRITES, HISTORY_HELD))


def observed_objects(objects: ObjectStore, gauge: Gauge) -> ObjectStore:
    """An object store whose calls are taken note of."""
    return cast("ObjectStore", _Observed(objects, gauge, OBJECTS_WRITES))
