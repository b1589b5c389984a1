"""One SQLite database: one connection writes and checkpoints, others only read.

SQLite up to 3.51.2 can corrupt a write-ahead log that two connections write or checkpoint at once;
so there is one that does, transactions are shared by whoever waits (group commit), and readers are
opened read-only. A lock file keeps other processes out. Each transaction is on disk (synchronous
FULL) before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from controlplane.domain.errors import NsmlError
from controlplane.domain.names import fits_glob
from controlplane.history.changes import Changes
from controlplane.history.errors import HistoryConflict, HistoryCorrupt, HistoryUnavailable
from controlplane.history.sqlite.schema import migrate
from nsml.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from nsml.clock import Offload

T = TypeVar("T")
MEMORY = ":memory:"
_IDLE_READERS = 8
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class Database:
    """An open database; made by `open_database`."""

    def __init__(
        self, path: str, writer: sqlite3.Connection, lock: int | None, run: Offload
    ) -> None:
        self.changes = Changes()
        self._path = path
        self._writer = writer
        self._lock = lock
        self._run = run
        self._turn = asyncio.Lock()
        self._queue: list[_Pending[Any]] = []
        self._mutex = threading.Lock()
        self._idle: list[sqlite3.Connection] = []

    async def write(
        self, work: Callable[[sqlite3.Connection], T], *, touches: Collection[str] = ()
    ) -> T:
        """Run `work` in a transaction that it may share; on disk when this returns.

        What `work` raises undoes its own changes only. `touches` are the sessions whose followers
        hear of it after the commit. `work` must not keep the connection.
        """
        pending = _Pending(work, touches)
        self._queue.append(pending)
        try:
            async with self._turn:
                if not pending.is_settled:
                    batch, self._queue = self._queue, []
                    await self._settle(batch)
        except asyncio.CancelledError:
            if pending in self._queue:
                self._queue.remove(pending)
            raise
        return pending.result()

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a consistent view of what is committed."""
        return await self._run(lambda: self._reading(work))

    async def close(self) -> None:
        """Close every connection; the writer last, so that it makes the last checkpoint."""
        async with self._turn:
            await to_its_end(self._run(self._close))

    async def _settle(self, batch: list[_Pending[Any]]) -> None:
        try:
            await to_its_end(self._run(lambda: self._commit(batch)))
        finally:
            for pending in batch:
                if not pending.is_settled:
                    pending.fail(HistoryUnavailable("the history did not finish a transaction"))
                elif pending.error is None:
                    self.changes.tell(pending.touches)

    def _commit(self, batch: list[_Pending[Any]]) -> None:
        try:
            with self._mutex, translated(self._path), _transaction(self._writer):
                for pending in batch:
                    pending.attempt(self._writer, self._path)
        except NsmlError as error:
            for pending in batch:
                pending.fail(error)
            return
        for pending in batch:
            pending.is_settled = True

    def _reading(self, work: Callable[[sqlite3.Connection], T]) -> T:
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
        """One that is idle, or another one; other threads ask at the same time."""
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


class _Pending(Generic[T]):
    """One caller's part of a transaction."""

    def __init__(self, work: Callable[[sqlite3.Connection], T], touches: Collection[str]) -> None:
        self.touches = touches
        self.error: BaseException | None = None
        self.is_settled = False
        self._work = work
        self._value: T

    def attempt(self, connection: sqlite3.Connection, path: str) -> None:
        """Do the work inside a savepoint, and keep what it raises for its caller."""
        connection.execute("SAVEPOINT part")
        try:
            with translated(path):
                self._value = self._work(connection)
        except (HistoryCorrupt, HistoryUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - one caller's mistake must not undo the others
            connection.execute("ROLLBACK TO part")
            self.error = error
        connection.execute("RELEASE part")

    def fail(self, error: BaseException) -> None:
        """The transaction as a whole failed."""
        self.error = error
        self.is_settled = True

    def result(self) -> T:
        """The value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self._value


def open_database(path: Path | str, run: Offload) -> Database:
    """Open and check the database at `path`, or an empty one in memory for ":memory:".

    Raises HistoryCorrupt when it is damaged, HistoryTooNew when a newer version wrote it, and
    HistoryUnavailable when another process has it open or the disk refuses. Blocking.
    """
    if str(path) == MEMORY:
        writer = _with_functions(
            sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        )
        migrate(writer, MEMORY)
        return Database(MEMORY, writer, None, run)
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _lock(place)
    try:
        writer = _open_writer(place)
    except BaseException:
        os.close(lock)
        raise
    return Database(str(place), writer, lock, run)


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors by the history's names; programming mistakes pass through."""
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
        raise HistoryUnavailable(
            f"the history at {path} cannot be used now", why=str(error)
        ) from error


def corrupt(path: str, evidence: str) -> HistoryCorrupt:
    """The one sentence about a damaged database."""
    return HistoryCorrupt(
        f"the history at {path} is damaged",
        why=evidence,
        attempt=f"move it away and put a copy in its place; nothing of {path} was changed",
    )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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
    findings = [row[0] for row in writer.execute("PRAGMA quick_check(5)")]
    if findings != ["ok"]:
        raise corrupt(path, "; ".join(findings))


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
    """Give a connection that reads what statements call by our rules, not SQLite's."""
    connection.create_function("fits_glob", 2, fits_glob, deterministic=True)
    return connection


def _lock(place: Path) -> int:
    """Hold the lock file for as long as the descriptor that this gives is open."""
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
