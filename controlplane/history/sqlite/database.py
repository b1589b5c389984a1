"""One SQLite database: one connection writes and checkpoints, others only read.

SQLite up to 3.51.2 can corrupt a write-ahead log that two connections write or checkpoint at once;
so only one does, transactions are shared by waiting callers (group commit), and readers are opened
read-only. A lock file keeps other processes out. Each transaction is on disk (synchronous FULL)
before it is reported.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from controlplane.domain.errors import NsmlError
from controlplane.domain.names import fits_glob
from controlplane.history.errors import (
    HistoryConflict,
    HistoryCorrupt,
    HistoryFull,
    HistoryUnavailable,
)
from controlplane.history.sql.batches import Batches, BatchItem
from controlplane.history.sqlite.dialect import SqliteDialect, null_query
from controlplane.history.sqlite.migration import migrate, transaction
from controlplane.history.subscriptions import Changes
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence

    from controlplane.history.sql.interface import Connection
    from controlplane.history.sql.portable import Viewing
    from nsml.common.clock import Offload

T = TypeVar("T")
MEMORY = ":memory:"
_IDLE_READERS = 8
_NULL_FINDING = re.compile(r"NULL value in (\w+)\.(\w+)")
_MOST_FINDINGS = 2**31 - 1
_NAMED_FINDINGS = 5
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class SqliteDatabase:
    """See sql.interface.Database; made by `open_database`."""

    is_shared = False
    with_ids = ""

    def __init__(
        self, path: str, writer: sqlite3.Connection, lock: int | None, run: Offload
    ) -> None:
        self.changes = Changes()
        self.dialect = SqliteDialect()
        self._path = path
        self._writer = writer
        self._lock = lock
        self._run = run
        self._batches: Batches[Connection] = Batches(self._settle)
        self._mutex = threading.Lock()
        self._idle: list[sqlite3.Connection] = []

    async def write(
        self,
        work: Callable[[Connection], T],
        *,
        touches: Collection[str] = (),
        notifies: Collection[str] = (),
    ) -> T:
        """See Database."""
        return await self._batches.write(lambda one: _owned(work(one)), touches, notifies)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """See Database."""
        return await self._run(lambda: self._reading(lambda one: _owned(work(one))))

    @contextlib.asynccontextmanager
    async def view(self) -> AsyncIterator[Viewing]:
        """See portable.Snapshots."""
        reader = await self._run(self._open_view)
        try:

            async def viewing(work: Callable[[Connection], T]) -> T:
                def read() -> T:
                    with translated(self._path):
                        return _owned(work(reader))

                return await to_its_end(self._run(read))

            yield viewing
        finally:
            await to_its_end(self._run(reader.close))

    async def pour(self, work: Callable[[Connection], T]) -> T:
        """See portable.Snapshots."""
        return await self.write(work)

    def go_on(self, connection: Connection, table: str) -> None:
        """See portable.Snapshots. Not needed on SQLite."""

    def _open_view(self) -> sqlite3.Connection:
        with translated(self._path):
            if self._path == MEMORY:
                copy = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
                with self._mutex:
                    self._writer.backup(copy)
                return copy
            reader = _open_reader(self._path)
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM schema_versions").fetchone()  # begins the snapshot
            return reader

    async def close(self) -> None:
        """Close all connections; the writer last, so that it makes the last checkpoint."""
        async with self._batches.turn:
            await to_its_end(self._run(self._close))

    async def _settle(self, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        try:
            await to_its_end(self._run(lambda: self._commit(batch)))
        finally:
            for part in batch:
                if part.is_settled and part.error is None:
                    self.changes.tell(part.followed)

    def _commit(self, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        try:
            with self._mutex, translated(self._path), transaction(self._writer):
                for part in batch:
                    self._attempt(part)
        except NsmlError as error:
            for part in batch:
                part.fail(error)
            return
        for part in batch:
            part.is_settled = True

    def _attempt(self, part: BatchItem[Connection, Any]) -> None:
        """Do its work inside a savepoint, and keep its exception for its caller."""
        self._writer.execute("SAVEPOINT part")
        try:
            with translated(self._path):
                part.attempt(self._writer)
        except (HistoryCorrupt, HistoryUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - one caller's mistake must not undo the others
            self._writer.execute("ROLLBACK TO part")
            part.error = error
        self._writer.execute("RELEASE part")

    def _reading(self, work: Callable[[Connection], T]) -> T:
        with translated(self._path):
            if self._path == MEMORY:
                with self._mutex:
                    return work(self._writer)
            reader = self._reader()
            try:
                reader.execute("BEGIN")
                try:
                    return work(reader)
                finally:
                    reader.execute("COMMIT")
            finally:
                if len(self._idle) < _IDLE_READERS:
                    self._idle.append(reader)
                else:
                    reader.close()

    def _reader(self) -> sqlite3.Connection:
        """Return an idle reader, or a new one; called by several threads at once."""
        try:
            return self._idle.pop()
        except IndexError:
            return _open_reader(self._path)

    def _close(self) -> None:
        with self._mutex:
            while self._idle:
                self._idle.pop().close()
            self._writer.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


def open_database(path: Path | str, run: Offload) -> SqliteDatabase:
    """Open and check the database at `path`, or an empty one in memory for ":memory:".

    Raises HistoryCorrupt if it is damaged, HistoryTooNew if a newer version wrote it, and
    HistoryUnavailable if another process has it open or the disk fails. Blocking.
    """
    if str(path) == MEMORY:
        writer = _with_functions(
            sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        )
        migrate(writer, MEMORY)
        return SqliteDatabase(MEMORY, writer, None, run)
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _lock(place)
    try:
        writer = _open_writer(place)
    except BaseException:
        os.close(lock)
        raise
    return SqliteDatabase(str(place), writer, lock, run)


def _owned(value: T) -> T:
    """Return a result of work; TypeError: it is a cursor.

    One that is freed by another thread resets its statement, which the connection runs again by then.
    """
    if isinstance(value, sqlite3.Cursor):
        msg = "a cursor must not leave its connection's thread"
        raise TypeError(msg)
    return value


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate SQLite's errors to the history's; programming mistakes pass through."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise HistoryConflict("something else is recorded there", why=str(error)) from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in _CORRUPT:
            raise corrupt(path, str(error)) from error
        if primary in {None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE}:
            raise
        kind = HistoryFull if primary == sqlite3.SQLITE_FULL else HistoryUnavailable
        raise kind(f"the history at {path} cannot be used now", why=str(error)) from error


def corrupt(path: str, evidence: str) -> HistoryCorrupt:
    """The error for a damaged database."""
    return HistoryCorrupt(
        f"the history at {path} is damaged",
        why=evidence,
        attempt=f"move it away and put a copy in its place; nothing of {path} was changed",
    )


def _open_writer(place: Path) -> sqlite3.Connection:
    path = str(place)
    with translated(path):
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute("PRAGMA trusted_schema = OFF")
            _check(writer, path)
            migrate(writer, path)
        except BaseException:
            writer.close()
            raise
    return writer


def _check(writer: sqlite3.Connection, path: str) -> None:
    # One by one: findings that are wrong, a row each, must not hide others.
    found = (row[0] for row in writer.execute(f"PRAGMA quick_check({_MOST_FINDINGS})"))
    findings = list(islice(_true_findings(writer, found), _NAMED_FINDINGS))
    if findings:
        raise corrupt(path, "; ".join(findings))


def _true_findings(writer: sqlite3.Connection, findings: Iterable[str]) -> Iterator[str]:
    """Yield the findings of a check that hold.

    SQLite 3.40 reports a NULL in each row of a table without rowids for columns that lie before a column of its primary
    key without belonging to it, though no value is NULL.
    """
    refuted: dict[str, bool] = {}
    for finding in findings:
        if (match := _NULL_FINDING.fullmatch(finding)) is None:
            if finding != "ok":
                yield finding
            continue
        if finding not in refuted:
            refuted[finding] = not _has_null(writer, *match.groups())
        if not refuted[finding]:
            yield finding


def _has_null(writer: sqlite3.Connection, table: str, column: str) -> bool:
    column_query = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
    known = writer.execute(column_query, (table, column)).fetchone()
    return known is None or writer.execute(null_query(table, column)).fetchone() is not None


def _open_reader(path: str) -> sqlite3.Connection:
    reader = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    reader.execute("PRAGMA wal_autocheckpoint = 0")
    reader.execute("PRAGMA query_only = ON")
    return _with_functions(reader)


def _with_functions(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Register our own functions used in queries."""
    connection.create_function("fits_glob", 2, fits_glob, deterministic=True)
    return connection


def _lock(place: Path) -> int:
    """Lock the lock file while the returned descriptor is open."""
    import fcntl  # noqa: PLC0415 - a control plane runs on POSIX; importing this module does not ask

    path = place.with_name(place.name + ".lock")
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(opened)
        raise HistoryUnavailable(
            f"the history at {place} is in use by another control plane",
            why=f"{path} is locked",
            attempt="stop the other one: SQLite serves one process",
        ) from error
    return opened
