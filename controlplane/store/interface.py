"""Interface and guarantees of the coordination store, the same for every engine.

Errors:

    StoreError
    ├── StoreUnavailable      nothing was changed; the same call may work later
    ├── CommitUnknown         the transaction may or may not have been applied
    │   └── NoSpace           only deletes are accepted until space is reclaimed
    │       └── DiskFull      and until the disk has room again
    ├── Compacted             the requested history is gone: list again
    ├── LeaseLost             the lease has ended, and its keys with it
    ├── StoreReplaced         this is not the same store as before: do not go on
    ├── StoreRefused          wrong credentials, or a server that is known to lose writes
    ├── StoreLocked           another process has the embedded store's file open
    ├── StoreCorrupt          the embedded store's file is damaged or of another format
    └── InvalidTransaction    the caller's mistake: too large, a key written twice
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

DEFAULT_QUOTA_BYTES: Final = 2 << 30
"""etcd's own default."""

MAX_OPERATIONS: Final = 128
"""Maximum compares, success operations and failure operations (each) of one transaction."""

MAX_TRANSACTION_BYTES: Final = 1_500_000
"""Maximum bytes of keys and values in one transaction (etcd's request limit is 1.5 MiB with framing)."""

DEFAULT_DEADLINE_S: Final = 2.0
"""Total time of a call with its retries, in seconds, before it raises."""


class StoreError(Exception):
    """An error of the store; the module lists the kinds."""


class StoreUnavailable(StoreError):
    """The store did not answer in time, is not there, or has no space. Nothing was changed."""


class CommitUnknown(StoreError):
    """A write was sent and its answer was lost: it may have been applied, now or shortly.

    Never repeat it blindly. Read what it would have written (a request id, the compared key) and
    decide by that.
    """


class Compacted(StoreError):
    """The requested revision is older than the kept history.

    Attributes:
        revision: the oldest readable revision, or 0 if the store does not report it.
    """

    def __init__(self, revision: int) -> None:
        super().__init__(f"history before revision {revision} has been compacted: list again")
        self.revision = revision


class LeaseLost(StoreError):
    """The lease has expired or was revoked; every key under it is deleted."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(f"lease {lease_id:x} is gone: it expired or was revoked")
        self.lease_id = lease_id


class NoSpace(CommitUnknown):
    """The store is at its quota. Reads and deletes work; `reclaim` frees space.

    A put may have been applied: etcd answers the same to the puts that exceeded the
    quota.
    """


class DiskFull(NoSpace):
    """The store's disk is full: only its operator can free space."""


class StoreReplaced(StoreError):
    """The store went back in time (restored from an old copy, wiped, or another cluster).

    Decisions on the lost revisions cannot be fenced any more, so nothing continues automatically.
    """


class StoreRefused(StoreError):
    """The server or the caller's credentials are refused; a retry does not help."""


class StoreLocked(StoreError):
    """Another process has the embedded store open; only one may."""


class StoreCorrupt(StoreError):
    """The embedded store's file fails its check, or is of another version."""


class InvalidTransaction(StoreError, ValueError):
    """The transaction exceeds a limit of every engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """One key at one revision.

    Attributes:
        key: UTF-8 text, never empty.
        create_revision: revision of the transaction that created the key.
        mod_revision: revision of the transaction that last wrote it.
        lease: id of the key's lease, or None.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Every key under a prefix at one revision, sorted by the bytes of the key."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Used and total space, in bytes; a quota of 0 is unknown."""

    used_bytes: int
    quota_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one key; `item` is None when the key was deleted or its lease ended."""

    key: str
    item: KeyValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBatch:
    """All changes of one transaction under a watched prefix, in its order.

    A batch without events is progress: everything up to `revision` has been delivered, and the
    connection is alive.
    """

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease on keys: they are deleted when it ends.

    Attributes:
        ttl_s: granted time, in seconds; may be longer than requested.
        valid_until: the instant on the store's monotonic clock until which the lease is surely alive,
            counted from when the last successful request was *sent*.
    """

    id: int
    ttl_s: float
    valid_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """One condition of a transaction: `field` of `key` equals (or not) `operand`.

    An absent key has create_revision and mod_revision 0, and fails every comparison of a value.
    The functions below build the usual ones.
    """

    key: str
    field: Literal["create_revision", "mod_revision", "value"]
    operand: int | bytes
    equal: bool = True


def absent(key: str) -> Compare:
    """The key does not exist."""
    return Compare(key=key, field="create_revision", operand=0)


def present(key: str) -> Compare:
    """The key exists, whatever its value."""
    return Compare(key=key, field="create_revision", operand=0, equal=False)


def created_at(key: str, revision: int) -> Compare:
    """The key is the one that was created at `revision`, never deleted since."""
    return Compare(key=key, field="create_revision", operand=revision)


def unchanged(key: str, mod_revision: int) -> Compare:
    """The key was last written at `mod_revision`; 0 means that it does not exist."""
    return Compare(key=key, field="mod_revision", operand=mod_revision)


def holds(key: str, value: bytes) -> Compare:
    """The key exists and has exactly this value."""
    return Compare(key=key, field="value", operand=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write a key; with a lease, the key is deleted when the lease ends. No lease detaches it."""

    key: str
    value: bytes
    lease: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a key; nothing happens if it is not there."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePrefix:
    """Delete every key that begins with `prefix` (not empty)."""

    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """Read a key, including the transaction's earlier operations."""

    key: str


Operation = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """If every compare holds, apply `success`, else `failure`: atomically, in one revision.

    A transaction that changes nothing makes no revision. One list may not write a key twice (put
    and put, or put and delete): etcd refuses it, so every engine does.
    """

    compares: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The result of one operation: the item of a Get, the number of deleted keys."""

    item: KeyValue | None = None
    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResult:
    """The outcome of a decided transaction.

    Attributes:
        succeeded: whether every compare held.
        revision: the store's revision after it: the transaction's own if it changed something.
        responses: one for each applied operation, in order.
    """

    succeeded: bool
    revision: int
    responses: tuple[Response, ...]


class KeyValueStore(Protocol):
    """An ordered key-value store with one revision counter for all its keys.

    Terms: every transaction that changes something gets the next *revision* (from 2 up: a new
    store is at revision 1). A key carries the revision that created it and the one that last
    wrote it. *History* is every revision since the last *compaction*.

    Guarantees, the same for every engine and tried by `tests/contract/test_store_contract.py`:
    transactions are strictly serializable; reads are linearizable; acknowledged writes are on
    disk; a watch delivers whole revisions in order, each once, across reconnects.

    Every call has a deadline and raises StoreUnavailable or, for a write with unknown outcome,
    CommitUnknown. Reads are repeated inside the deadline; writes are repeated only when they
    surely were not applied. Any call may raise StoreReplaced or StoreRefused. Calls may run
    concurrently from one event loop. A cancelled write may still be applied.
    """

    async def get(self, key: str) -> KeyValue | None:
        """Return the key as it is now, or None."""
        ...

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """Return every key under `prefix` at one revision; 0 means now, "" means all keys.

        With `keys_only` every value is empty: for large or unneeded values.

        Raises:
            Compacted: `revision` is older than the history.
            StoreReplaced: `revision` has not happened yet in this store.
        """
        ...

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply a transaction.

        Raises:
            InvalidTransaction: it exceeds a limit; nothing was sent.
            LeaseLost: a Put names an ended lease; nothing was changed.
            NoSpace: the store is at its quota; this may have been its last accepted write.
            CommitUnknown: it may have been applied.
        """
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Deliver every change under `prefix` from `from_revision` (inclusive, at least 1) on.

        Runs until closed (`contextlib.aclosing`), over lost connections and restarts of the
        server. Now and then it yields a batch without events.

        Raises:
            Compacted: `from_revision`, or the current position, is older than the history; engines
                may raise it for the oldest revision left, too.
        """
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Make a lease of at least `ttl_s` seconds; engines may round up to whole seconds."""
        ...

    async def keep_alive(self, lease: Lease) -> Lease:
        """Renew a lease; the result has the new `valid_until`.

        Success shows that the store answers, never that one leads: decide that by a compare.

        Raises:
            LeaseLost: it has ended.
        """
        ...

    async def revoke(self, lease: Lease) -> None:
        """End a lease and delete its keys in one revision; no effect on an ended one."""
        ...

    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`. Keys are kept, as they are at `revision`."""
        ...

    async def reclaim(self) -> None:
        """Compact up to now, return freed space and lift NoSpace. May take seconds."""
        ...

    async def space(self) -> Space:
        """Return the used and total space; success does not mean that the store reads or writes."""
        ...

    async def members_away(self) -> Mapping[str, str]:
        """Return unanswering members of a cluster, with the reason of each; empty for a single member."""
        ...


def check(transaction: Transaction) -> None:
    """Raise InvalidTransaction if a limit of every engine is exceeded."""
    lists = (transaction.compares, transaction.success, transaction.failure)
    longest = max(len(entries) for entries in lists)
    if longest > MAX_OPERATIONS:
        raise InvalidTransaction(
            f"a transaction has at most {MAX_OPERATIONS} operations, this one has {longest}"
        )
    size = sum(_sizes(transaction))
    if size > MAX_TRANSACTION_BYTES:
        raise InvalidTransaction(
            f"a transaction has at most {MAX_TRANSACTION_BYTES} bytes, this one has {size}"
        )
    _check_writes(transaction.success)
    _check_writes(transaction.failure)


def _sizes(transaction: Transaction) -> Iterator[int]:
    for compare in transaction.compares:
        yield _size_of_key(compare.key)
        if isinstance(compare.operand, bytes):
            yield len(compare.operand)
    for operation in (*transaction.success, *transaction.failure):
        match operation:
            case Put(key=key, value=value):
                yield _size_of_key(key) + len(value)
            case Delete(key=key) | Get(key=key) | DeletePrefix(prefix=key):
                yield _size_of_key(key)


def _size_of_key(key: str) -> int:
    if not key:
        raise InvalidTransaction("a key is never empty")
    if key.isascii():
        return len(key)
    try:
        return len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidTransaction(f"{key!r} is no key: it has no form in UTF-8") from error


def _check_writes(operations: tuple[Operation, ...]) -> None:
    puts: set[str] = set()
    for operation in operations:
        if isinstance(operation, Put):
            if operation.key in puts:
                raise InvalidTransaction(f"{operation.key} is written twice in one transaction")
            puts.add(operation.key)
    for operation in operations:
        if isinstance(operation, Delete) and operation.key in puts:
            raise InvalidTransaction(f"{operation.key} is written and deleted in one transaction")
        if isinstance(operation, DeletePrefix):
            for key in puts:
                if key.startswith(operation.prefix):
                    raise InvalidTransaction(f"{key} is written and deleted in one transaction")


def prefix_end(prefix: bytes) -> bytes:
    """Return the first bytes that sort after every key that begins with `prefix` (not empty)."""
    for position in range(len(prefix) - 1, -1, -1):
        if prefix[position] < 0xFF:
            return prefix[:position] + bytes([prefix[position] + 1])
    raise ValueError("a prefix of 0xff bytes has no end")
