"""Keys with revisions in SQLite: the synchronous core of the embedded store.

`history` keeps every revision until it is compacted (a NULL value is a deletion); `live` is its
newest state, by key. Keys are UTF-8 bytes, so that SQLite sorts them as etcd does.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, assert_never

from controlplane.store.interface import (
    CommitUnknown,
    Compacted,
    Compare,
    Delete,
    DeletePrefix,
    DiskFull,
    Event,
    Get,
    KeyValue,
    LeaseLost,
    Listing,
    NoSpace,
    Operation,
    Put,
    Response,
    StoreCorrupt,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    Transaction,
    TransactionResult,
    WatchBatch,
    prefix_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MEMORY: Final = ":memory:"
FORMAT_VERSION: Final = 1
APPLICATION_ID: Final = 0x6E736D6C  # "nsml"
WATCH_PAGE: Final = 1000
"""History rows that a watch reads at a time, plus the rest of the last revision."""

_SCHEMA: Final = """
CREATE TABLE live (
    key BLOB PRIMARY KEY, value BLOB NOT NULL,
    create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, lease INTEGER
) WITHOUT ROWID;
CREATE INDEX live_lease ON live (lease) WHERE lease IS NOT NULL;
CREATE TABLE history (
    revision INTEGER NOT NULL, ordinal INTEGER NOT NULL, key BLOB NOT NULL,
    value BLOB, create_revision INTEGER NOT NULL, lease INTEGER,
    PRIMARY KEY (revision, ordinal)
) WITHOUT ROWID;
CREATE INDEX history_key ON history (key, revision);
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_s REAL NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 1), ('compacted', 0);
"""
_GET: Final = "SELECT key, value, create_revision, mod_revision, lease FROM live WHERE key = ?"
_LIST: Final = (
    "SELECT key, value, create_revision, mod_revision, lease FROM live"
    " WHERE key >= ? AND key < ? ORDER BY key"
)
_LIST_AT: Final = (
    "SELECT h.key, h.value, h.create_revision, h.revision, h.lease FROM history h"
    " WHERE h.key >= ?1 AND h.key < ?2 AND h.revision <= ?3 AND h.value IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM history n"
    " WHERE n.key = h.key AND n.revision > h.revision AND n.revision <= ?3)"
    " ORDER BY h.key"
)
_CHANGES: Final = (
    "SELECT key, value, create_revision, revision, lease FROM history"
    " WHERE revision >= ? AND revision <= ? AND key >= ? AND key < ?"
    " ORDER BY revision, ordinal"
)
_PAGE_END: Final = (
    "SELECT revision FROM history WHERE revision >= ? ORDER BY revision, ordinal LIMIT 1 OFFSET ?"
)
_FORGET: Final = (
    "DELETE FROM history WHERE revision < ?1 AND (value IS NULL OR EXISTS ("
    "SELECT 1 FROM history n"
    " WHERE n.key = history.key AND n.revision > history.revision AND n.revision <= ?1))"
)
Connection: TypeAlias = sqlite3.Connection
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_AFTER_ALL_KEYS: Final = b"\xff"  # a byte that UTF-8 does not have

T = TypeVar("T")


def connect(path: str) -> Connection:
    """Open (or make, mode 0600) the only connection that writes.

    Raises:
        StoreCorrupt: the file is damaged, or not a store of this format.
        StoreUnavailable: a disk error: it is full, failing or read-only.
    """
    if path != MEMORY:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # The connection moves to the writing thread; calls never overlap.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        if path != MEMORY:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        _check_format(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _DAMAGED:
            raise StoreCorrupt(f"{path} is not a sound store: {error}") from error
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    except StoreCorrupt:
        connection.close()
        raise
    return connection


def connect_reader(path: str) -> Connection:
    """Open a second connection that only reads, and never checkpoints."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def _check_format(connection: Connection, path: str) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        connection.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {FORMAT_VERSION}; {_SCHEMA} COMMIT;"
        )
        return
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise StoreCorrupt(f"{path} is a database of something else")
    if version != FORMAT_VERSION:
        raise StoreCorrupt(f"{path} has format {version}; this program reads {FORMAT_VERSION}")
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StoreCorrupt(f"{path} is damaged: {verdict}")


@contextmanager
def snapshot(connection: Connection) -> Iterator[Connection]:
    """Give every read inside the same state, despite concurrent commits."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


def counter(connection: Connection, name: str) -> int:
    """Return "revision" (the newest one) or "compacted" (the oldest that can be read)."""
    row = connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return int(row[0])


def find(connection: Connection, key: str) -> KeyValue | None:
    """Return the key as it is now, or None."""
    row = connection.execute(_GET, (key.encode(),)).fetchone()
    return None if row is None else _key_value(row)


def listing(connection: Connection, prefix: str, revision: int) -> Listing:
    """Return the keys under `prefix` at `revision` (0: now), as `KeyValueStore.list` does."""
    with snapshot(connection):
        now = counter(connection, "revision")
        if revision in (0, now):
            rows = connection.execute(_LIST, _range(prefix)).fetchall()
            return Listing(items=tuple(map(_key_value, rows)), revision=now)
        if revision > now:
            raise StoreReplaced(f"revision {revision} was asked for, the store is at {now}")
        compacted = counter(connection, "compacted")
        if revision < compacted:
            raise Compacted(compacted)
        rows = connection.execute(_LIST_AT, (*_range(prefix), revision)).fetchall()
        return Listing(items=tuple(map(_key_value, rows)), revision=revision)


def changes(connection: Connection, prefix: str, position: int) -> tuple[list[WatchBatch], int]:
    """Return the next changes under `prefix` from revision `position` on, and the next position.

    Raises:
        Compacted: `position` is older than the history.
    """
    with snapshot(connection):
        compacted = counter(connection, "compacted")
        if position < compacted:
            raise Compacted(compacted)
        last = counter(connection, "revision")
        page_end = connection.execute(_PAGE_END, (position, WATCH_PAGE)).fetchone()
        if page_end is not None:
            last = int(page_end[0])
        rows = connection.execute(_CHANGES, (position, last, *_range(prefix))).fetchall()
    batches: list[WatchBatch] = []
    events: list[Event] = []
    for index, row in enumerate(rows):
        item = None if row[1] is None else _key_value(row)
        events.append(Event(key=row[0].decode(), item=item))
        if index + 1 == len(rows) or rows[index + 1][3] != row[3]:
            batches.append(WatchBatch(revision=row[3], events=tuple(events)))
            events = []
    return batches, max(position, last + 1)


def space_used(connection: Connection) -> int:
    """Bytes in use, without freed pages, which are reused."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


class Revisions:
    """The writing side: units of work, applied in groups, each group in one SQLite transaction.

    A unit is a call of one of the public methods below. It raises a StoreError only before it has
    changed anything. Never called from two threads at once.

    Args:
        quota_bytes: used space beyond which puts raise NoSpace and deletes still work.
    """

    def __init__(self, connection: Connection, *, quota_bytes: int) -> None:
        self._connection = connection
        self._quota_bytes = quota_bytes
        self._revision = 0
        self._is_full = False
        self._touched: list[str] = []

    def group(self, units: Sequence[Callable[[], T]]) -> tuple[list[T | StoreError], list[str]]:
        """Run `units` in order in one transaction that is on disk when this returns.

        Returns:
            what each unit returned or raised, and the keys that were changed.
        """
        self._touched = []
        outcomes: list[T | StoreError] = []
        committing = False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._revision = counter(self._connection, "revision")
            self._is_full = space_used(self._connection) > self._quota_bytes
            for unit in units:
                try:
                    outcomes.append(unit())
                except StoreError as error:
                    outcomes.append(error)
            if self._revision != before:
                self._count("revision", self._revision)
            committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            return [_failure(error, committing=committing) for _ in units], []
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        return outcomes, self._touched

    def transact(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply one transaction that has passed `interface.check`."""
        succeeded = all(map(self._is_true, transaction.compares))
        operations = transaction.success if succeeded else transaction.failure
        self._refuse(operations)
        writing = _Writing(self._connection, self._revision + 1)
        responses = tuple(map(writing.apply, operations))
        if writing.touched:
            self._revision += 1
            self._touched += writing.touched
        return TransactionResult(succeeded=succeeded, revision=self._revision, responses=responses)

    def grant(self, ttl_s: float) -> int:
        """Record a lease and return its id, which is never used again."""
        row = self._connection.execute("INSERT INTO leases (ttl_s) VALUES (?)", (ttl_s,))
        return int(row.lastrowid or 0)

    def end_lease(self, lease_id: int) -> None:
        """Delete a lease and its keys, in one revision."""
        rows = self._connection.execute(
            "SELECT key FROM live WHERE lease = ? ORDER BY key", (lease_id,)
        ).fetchall()
        self.transact(Transaction(success=tuple(Delete(key=row[0].decode()) for row in rows)))
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease_id,))

    def leases(self) -> dict[int, float]:
        """Return the time to live of every lease, in seconds, by id."""
        return dict(self._connection.execute("SELECT id, ttl_s FROM leases").fetchall())

    def compact(self, revision: int) -> None:
        """Discard the history before `revision`; no effect if it is compacted already."""
        if revision > self._revision:
            raise StoreReplaced(f"revision {revision} has not happened, cannot compact to it")
        if revision > counter(self._connection, "compacted"):
            self._connection.execute(_FORGET, (revision,))
            self._count("compacted", revision)

    def _is_true(self, compare: Compare) -> bool:
        row = self._connection.execute(_GET, (compare.key.encode(),)).fetchone()
        if compare.field == "value":
            return row is not None and (row[1] == compare.operand) == compare.equal
        column = 2 if compare.field == "create_revision" else 3
        return ((0 if row is None else row[column]) == compare.operand) == compare.equal

    def _refuse(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            if not isinstance(operation, Put):
                continue
            if self._is_full:
                raise NoSpace(f"the store uses more than its quota of {self._quota_bytes} bytes")
            if operation.lease is not None and not self._lives(operation.lease):
                raise LeaseLost(operation.lease)

    def _lives(self, lease_id: int) -> bool:
        found = self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease_id,))
        return found.fetchone() is not None

    def _count(self, name: str, value: int) -> None:
        self._connection.execute("UPDATE counters SET value = ? WHERE name = ?", (value, name))


class _Writing:
    """The operations of one transaction, at its revision."""

    def __init__(self, connection: Connection, revision: int) -> None:
        self._connection = connection
        self._revision = revision
        self.touched: list[str] = []

    def apply(self, operation: Operation) -> Response:
        match operation:
            case Get(key=key):
                return Response(item=find(self._connection, key))
            case Put():
                return self._put(operation)
            case Delete(key=key):
                row = self._connection.execute(_GET, (key.encode(),)).fetchone()
                return self._delete([] if row is None else [row[0]])
            case DeletePrefix(prefix=prefix):
                rows = self._connection.execute(_LIST, _range(prefix)).fetchall()
                return self._delete([row[0] for row in rows])
            case _:
                assert_never(operation)

    def _put(self, put: Put) -> Response:
        key = put.key.encode()
        row = self._connection.execute(_GET, (key,)).fetchone()
        created = self._revision if row is None else row[2]
        self._connection.execute(
            "INSERT OR REPLACE INTO live VALUES (?, ?, ?, ?, ?)",
            (key, put.value, created, self._revision, put.lease),
        )
        self._remember(key, put.value, created, put.lease)
        return Response()

    def _delete(self, keys: list[bytes]) -> Response:
        for key in keys:
            self._connection.execute("DELETE FROM live WHERE key = ?", (key,))
            self._remember(key, None, 0, None)
        return Response(deleted=len(keys))

    def _remember(self, key: bytes, value: bytes | None, created: int, lease: int | None) -> None:
        self._connection.execute(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)",
            (self._revision, len(self.touched), key, value, created, lease),
        )
        self.touched.append(key.decode())


def _failure(error: sqlite3.Error, *, committing: bool) -> StoreError:
    """Return the error for a group that SQLite failed to apply."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"the store's disk is full: {error}")
    if committing:
        return CommitUnknown(f"the store's disk failed while committing: {error}")
    return StoreUnavailable(f"the store's disk failed: {error}")


def _key_value(row: tuple[Any, ...]) -> KeyValue:
    key, value, created, modified, lease = row
    return KeyValue(
        key=key.decode(),
        value=value,
        create_revision=created,
        mod_revision=modified,
        lease=lease,
    )


def _range(prefix: str) -> tuple[bytes, bytes]:
    first = prefix.encode()
    return first, prefix_end(first) if first else _AFTER_ALL_KEYS
