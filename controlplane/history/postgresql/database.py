"""One PostgreSQL database for several control planes.

Each has one writing connection, with transactions shared by waiting callers (group commit), and a few
reading connections. Several writers are safe because:

- A transaction first takes the locks (advisory, until it ends) of all sessions that it touches, in
  one order: so control planes that receive the same records write them one after the other, and
  the second sees and skips the records stored by the first.
- Ids of chunks come from one sequence *after* that lock. So within a session ids grow in the order of
  commits, and a reader that has read up to an id has missed none before it.
- The notification of followers at other control planes is part of the transaction.
- Each connection is checked to keep acknowledged writes (fsync, synchronous_commit).

Every call ends: connecting takes seconds at most, statements and waits for locks have timeouts in the
server, and a call that it never answers is cut off. A stalled holder of a lock loses it (`locks`).
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from controlplane.history.errors import HistoryCorrupt, HistoryUnavailable
from controlplane.history.postgresql import locks
from controlplane.history.postgresql.connection import (
    Line,
    LockedOut,
    TryAgain,
    open_line,
    translated,
)
from controlplane.history.postgresql.dialect import PostgresDialect
from controlplane.history.postgresql.listening import CHANNEL, Listening, payloads
from controlplane.history.postgresql.migration import MIGRATION_S, migrate
from controlplane.history.sql.batches import Batches, BatchItem
from controlplane.history.subscriptions import Changes
from nsml.common.clock import in_own_thread
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    from controlplane.history.postgresql.address import Address
    from controlplane.history.sql.interface import Connection
    from controlplane.history.sql.portable import Viewing

T = TypeVar("T")
READERS: Final = 8
MOST_PARTS: Final = 256
"""Most items of a transaction: each may lock some sessions, and the server's lock table is finite."""
CALL_S: Final = 15.0
"""Timeout of a call, with its wait for a thread."""
LONG_S: Final = 600
"""Timeout of one step of a backup or a restore, and of the wait for the next one."""
GRACE_S: Final = 1.0
"""How long the first call after a lost connection waits for the server: about one restart."""
DOWN_S: Final = 0.5
"""How long other calls fail at once after a failed connection."""
_READING: Final = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
_POLL_S: Final = 0.05
_TRIES: Final = 3


class PostgresDatabase:
    """See sql.interface.Database; made by `open_database`."""

    is_shared = True
    with_ids = "OVERRIDING SYSTEM VALUE"

    def __init__(self, address: Address) -> None:
        self.changes = Changes()
        self.dialect = PostgresDialect()
        self._door = _Door(address)
        self._call_s = CALL_S
        self._shown = address.shown
        self._batches: Batches[Connection] = Batches(self._settle, most=MOST_PARTS)
        self._writing = ThreadPoolExecutor(1, "history.write")
        self._reading = ThreadPoolExecutor(READERS, "history.read")
        self._writer: Line | None = None
        self._idle: list[Line] = []
        self._listening = Listening(address, self.changes, self._is_writer)

    async def write(
        self,
        work: Callable[[Connection], T],
        *,
        touches: Collection[str] = (),
        notifies: Collection[str] = (),
    ) -> T:
        """See Database."""
        return await self._batches.write(work, touches, notifies)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """See Database."""
        return await self._errand(self._reading, lambda errand: self._read(errand, work))

    @contextlib.asynccontextmanager
    async def view(self) -> AsyncIterator[Viewing]:
        """See portable.Snapshots. On its own connection, so that no other call waits for it."""
        line = await asyncio.to_thread(self._door.enter)
        snapshot = contextlib.ExitStack()

        def begin() -> None:
            with translated(self._shown):
                snapshot.enter_context(line.transaction(_READING))
                _take_long(line)

        async def viewing(work: Callable[[Connection], T]) -> T:
            def read() -> T:
                with translated(self._shown):
                    return work(line)

            return await to_its_end(asyncio.to_thread(read))

        try:
            await to_its_end(asyncio.to_thread(begin))
            yield viewing
        finally:
            # Closing it ends the read-only transaction.
            await to_its_end(asyncio.to_thread(line.close))

    async def pour(self, work: Callable[[Connection], T]) -> T:
        """See portable.Snapshots."""
        line = await asyncio.to_thread(self._door.enter)

        def write() -> T:
            with translated(self._shown), line.transaction():
                _take_long(line)
                return work(line)

        try:
            return await to_its_end(asyncio.to_thread(write))
        finally:
            await to_its_end(asyncio.to_thread(line.close))

    def go_on(self, connection: Connection, table: str) -> None:
        """See portable.Snapshots."""
        connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'),"
            f" (SELECT coalesce(max(id), 0) + 1 FROM {table}), false)"
        )

    async def begin(self) -> None:
        """Check and migrate the database, and listen from now on."""
        await self._errand(self._writing, self._migrate, within_s=MIGRATION_S)
        self._listening.start()

    async def close(self) -> None:
        """Close all connections."""
        async with self._batches.turn:
            await to_its_end(asyncio.to_thread(self._close))

    async def _settle(self, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        try:
            await to_its_end(
                self._errand(self._writing, lambda errand: self._commit(errand, batch))
            )
        finally:
            for part in batch:
                # Unavailable may also mean committed, with the answer lost.
                if part.error is None or isinstance(part.error, HistoryUnavailable):
                    self.changes.tell(part.followed)

    async def _errand(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[_Errand], T],
        *,
        within_s: float | None = None,
    ) -> T:
        """Run work in a thread; cut off its connection on a timeout."""
        errand = _Errand(self._shown)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(within_s or self._call_s, errand.expire)
        running = loop.run_in_executor(threads, errand.run, work)
        running.add_done_callback(lambda _: timer.cancel())
        # After a cancellation the thread still finishes; its exception is then ignored.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(running)

    def _migrate(self, errand: _Errand) -> None:
        self._writer = line = self._door.enter()
        with errand.on(line), translated(self._shown):
            migrate(line, self._shown)

    def _read(self, errand: _Errand, work: Callable[[Connection], T]) -> T:
        while True:
            line, is_fresh = self._take_reader()
            try:
                with errand.on(line), translated(self._shown), line.transaction(_READING):
                    value = work(line)
            except HistoryUnavailable:
                # It was idle while the server restarted, like the others.
                if is_fresh or errand.is_late or not line.is_broken:
                    raise
                self._drop_idle()
            else:
                return value
            finally:
                self._put_back(line)

    def _commit(self, errand: _Errand, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        try:
            self._together(errand, batch)
        except (HistoryCorrupt, HistoryUnavailable) as error:
            for part in batch:
                part.fail(error)
        except Exception as error:  # noqa: BLE001 - the mistake of one of them
            if len(batch) == 1:
                batch[0].fail(error)
                return
            # It rolled back the others, too: now one by one.
            for part in batch:
                self._commit(errand, [part])

    def _together(self, errand: _Errand, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        """Run all in one transaction, once others have released their locks."""
        waits_until = time.monotonic() + locks.PATIENCE_S
        while True:
            try:
                return self._in_one(errand, batch)
            except LockedOut:
                if time.monotonic() >= waits_until:
                    raise
                line, _ = self._take_writer()
                with errand.on(line), translated(self._shown):
                    locks.free(line)

    def _in_one(self, errand: _Errand, batch: Sequence[BatchItem[Connection, Any]]) -> None:
        touched = {name for part in batch for name in part.touches}
        for tries_left in reversed(range(_TRIES)):
            line, is_fresh = self._take_writer()
            is_committing = False
            try:
                with errand.on(line), translated(self._shown), line.transaction():
                    locks.lock(line, touched)
                    for part in batch:
                        part.attempt(line)
                    _notify(line, {name for part in batch for name in part.followed})
                    is_committing = True
            except TryAgain as error:
                if not tries_left or isinstance(error, LockedOut):
                    raise
            except HistoryUnavailable:
                # It was idle while the server restarted. An interrupted commit is not repeated
                # here: the caller must find out whether it succeeded.
                if is_fresh or is_committing or errand.is_late or not line.is_broken:
                    raise
            else:
                for part in batch:
                    part.is_settled = True
                return

    def _take_writer(self) -> tuple[Line, bool]:
        """Return the writing line, and whether it is new."""
        line = self._writer
        if line is not None and not line.is_broken:
            return line, False
        if line is not None:
            line.close()
        self._writer = line = self._door.enter()
        return line, True

    def _is_writer(self, pid: int) -> bool:
        # The pid of a broken one may belong to another control plane by now.
        line = self._writer
        return line is not None and not line.is_broken and line.pid == pid

    def _take_reader(self) -> tuple[Line, bool]:
        try:
            return self._idle.pop(), False
        except IndexError:
            return self._door.enter(), True

    def _put_back(self, line: Line) -> None:
        if line.is_broken:
            line.close()
        else:
            self._idle.append(line)

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _close(self) -> None:
        self._listening.end()
        for threads in (self._reading, self._writing):
            threads.shutdown()
        self._drop_idle()
        if self._writer is not None:
            self._writer.close()


def _take_long(line: Line) -> None:
    """Raise the timeouts of a transaction that dumps or loads everything at its client's speed."""
    for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
        line.run(f"SET LOCAL {limit} = '{LONG_S}s'")
    line.run(f"SET LOCAL application_name = '{locks.LONG}'")


class _Errand:
    """A call in a thread that another thread may end."""

    def __init__(self, shown: str) -> None:
        self.is_late = False
        self._shown = shown
        self._mutex = threading.Lock()
        self._line: Line | None = None

    def run(self, work: Callable[[_Errand], T]) -> T:
        """Run it, unless already timed out."""
        if self.is_late:
            raise HistoryUnavailable(f"the history at {self._shown} has too much to do")
        return work(self)

    @contextlib.contextmanager
    def on(self, line: Line) -> Iterator[None]:
        """Use this line while inside."""
        with self._mutex:
            self._line = line
            if self.is_late:
                line.cut()
        try:
            yield
        finally:
            with self._mutex:
                self._line = None

    def expire(self) -> None:
        """Time out: cut its line."""
        with self._mutex:
            self.is_late = True
            if self._line is not None:
                self._line.cut()


class _Door:
    """Opens connections. While the server is down, few calls wait for it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._failed_at = float("-inf")
        self._failure: HistoryUnavailable | None = None

    def enter(self) -> Line:
        """Open a connection; raises as `open_line`."""
        failure = self._failure
        if failure is not None and time.monotonic() < self._failed_at + DOWN_S:
            raise HistoryUnavailable(failure.message, why=failure.why)
        # Only the first call waits for a restart; until the server is back others fail at once.
        ends_at = time.monotonic() + (GRACE_S if failure is None else 0)
        while True:
            try:
                line = open_line(self._address)
            except HistoryUnavailable as error:
                if time.monotonic() >= ends_at:
                    self._failure, self._failed_at = error, time.monotonic()
                    raise
                time.sleep(_POLL_S)
            else:
                self._failure = None
                return line


async def open_database(address: Address) -> PostgresDatabase:
    """Open, check and migrate a database.

    Raises:
        HistoryUnavailable, HistoryDenied, HistoryRefused, HistoryTooNew, HistoryCorrupt: it cannot be
            used.
    """
    # In its own thread: a caller can stop waiting for a host that does not answer.
    await in_own_thread(lambda: open_line(address).close())
    database = PostgresDatabase(address)
    try:
        await database.begin()
    except BaseException:
        await database.close()
        raise
    return database


def _notify(line: Line, touched: Collection[str]) -> None:
    for payload in payloads(touched):
        line.execute(
            "SELECT pg_notify(:channel, :payload)", {"channel": CHANNEL, "payload": payload}
        )
