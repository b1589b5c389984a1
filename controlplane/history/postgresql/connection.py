"""One connection to PostgreSQL, as the history's parts use it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.types.string import StrDumperUnknown

from controlplane.history.errors import (
    HistoryConflict,
    HistoryCorrupt,
    HistoryDenied,
    HistoryFull,
    HistoryRefused,
    HistoryUnavailable,
)
from controlplane.history.postgresql.denials import denial

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from psycopg.abc import Buffer

    from controlplane.history.postgresql.address import Address
    from controlplane.history.sql.interface import Parameters, Rows

OLDEST_SERVER: Final = 130_000
_SETTINGS: Final = {
    "statement_timeout": "10s",
    # Idle holders of locks lose them as soon as a stalled leader loses its lease, and before waiters
    # give up; `locks` handles the cases that this timeout does not cover.
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "500ms",
    "timezone": "UTC",
}
_CORRUPT: Final = ("XX001", "XX002")
_FULL: Final = "53100"
_NO_TABLE: Final = "42P01"
_PLACE: Final = re.compile(r"%|\?|(?<!:):([a-z_][a-z_0-9]*)")


class TryAgain(HistoryUnavailable):
    """Two transactions conflicted, and this one was rolled back."""


class LockedOut(TryAgain):
    """Timeout for a lock of the other one, which may still hold it."""


_BUSY: Final = {"40001": TryAgain, "40P01": TryAgain, "55P03": LockedOut}


class _Text(StrDumperUnknown):
    """PostgreSQL's texts cannot have the character NUL: a replacement then matches nothing."""

    def dump(self, obj: str) -> Buffer | None:
        """See Dumper."""
        return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))


class Line:
    """An open connection; used by one thread at a time, except `cut`. See sql.interface.Connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.pid = connection.info.backend_pid
        """Pid of its server process, also after it is closed."""
        self._connection = connection
        self._mutex = threading.Lock()
        self._is_closed = False

    @property
    def is_broken(self) -> bool:
        """Whether it cannot be used any more."""
        return self._connection.closed

    def execute(self, statement: str, parameters: Parameters = (), /) -> Rows:
        """See Connection."""
        return self._connection.execute(_in_psycopgs_words(statement), parameters)

    def executemany(self, statement: str, rows: Iterable[Parameters], /) -> object:
        """See Connection."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_in_psycopgs_words(statement), rows)
        return None

    def run(self, statement: str) -> psycopg.Cursor[Any]:
        """Run statements verbatim."""
        return self._connection.execute(statement.encode())

    def ask(self, statement: str) -> tuple[Any, ...]:
        """Run a statement verbatim; return its one row."""
        return next(iter(self.run(statement)))

    @contextlib.contextmanager
    def transaction(self, kind: str = "") -> Iterator[None]:
        """Run the body in a transaction: committed at its end, rolled back if it raises.

        If the rollback fails, the connection is closed. A connection lost during executemany may stay in
        libpq's pipeline mode: libpq does not report it as lost, and it refuses all further statements.
        """
        try:
            self.run(f"BEGIN {kind}")
            yield
            ended = self.run("COMMIT").statusmessage
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                if not self.is_broken:
                    self.run("ROLLBACK")
            if not self._is_idle:
                self.close()
            raise
        if ended != "COMMIT":
            raise HistoryUnavailable("the history did not take a transaction")

    @property
    def _is_idle(self) -> bool:
        """Whether a transaction can begin."""
        status = self._connection.pgconn
        return (
            status.transaction_status == TransactionStatus.IDLE
            and status.pipeline_status == PipelineStatus.OFF
        )

    def notices(self, timeout_s: float) -> Iterator[psycopg.Notify]:
        """Yield notifications for `timeout_s`."""
        return self._connection.notifies(timeout=timeout_s)

    def cut(self) -> None:
        """End another thread's wait on it."""
        with self._mutex, contextlib.suppress(OSError, psycopg.Error):
            if not self._is_closed:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        with self._mutex:
            self._is_closed = True
            self._connection.close()


def open_line(address: Address) -> Line:
    """Connect and check that writes are durable. Blocking, for a few seconds at most.

    Raises:
        HistoryUnavailable: it cannot be reached.
        HistoryDenied: it denies access.
        HistoryRefused: it could lose acknowledged writes, or cannot store ours.
    """
    with translated(address.shown):
        line = Line(psycopg.connect(address.secret, autocommit=True))
        try:
            _prepare(line, address.shown)
        except BaseException:
            line.close()
            raise
    return line


def _prepare(line: Line, shown: str) -> None:
    connection = line._connection  # noqa: SLF001 - of this module
    connection.adapters.register_dumper(str, _Text)
    if connection.info.server_version < OLDEST_SERVER:
        old = f"it is version {connection.info.server_version // 10_000}"
        raise _refused(shown, old, "use version 13 or later")
    # First of all, and not by a query: with SQL_ASCII, psycopg returns every text as bytes.
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise _refused(
            shown,
            f"its encoding is {encoding}",
            "create it again: createdb --owner nsml --encoding UTF8 --template template0 nsml",
        )
    settings = ", ".join(
        f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items()
    )
    row = line.ask(
        f"SELECT current_setting('fsync'), current_setting('full_page_writes'),"
        f" current_setting('synchronous_commit'), pg_is_in_recovery(), {settings}"
    )
    fsync, pages, synchronous, is_copy = row[:4]
    if (fsync, pages) != ("on", "on"):
        raise _refused(
            shown, "it can lose acknowledged writes", "set fsync and full_page_writes to on"
        )
    if is_copy:
        raise HistoryUnavailable(f"the history at {shown} is a read-only replica")
    if synchronous not in ("on", "remote_apply"):
        line.run("SET synchronous_commit = on")


def _refused(shown: str, why: str, attempt: str) -> HistoryRefused:
    return HistoryRefused(f"the history at {shown} cannot be kept there", why=why, attempt=attempt)


@contextlib.contextmanager
def translated(shown: str) -> Iterator[None]:
    """Translate psycopg's errors to the history's; programming mistakes pass through."""
    try:
        yield
    except psycopg.Error as error:
        raise _by_name(error, shown) from error


def _by_name(error: psycopg.Error, shown: str) -> Exception:
    code, why = error.sqlstate or "", _first_line(error)
    if isinstance(error, psycopg.IntegrityError):
        return HistoryConflict("something else is recorded there", why=why)
    if code in _CORRUPT or code == _NO_TABLE:
        return HistoryCorrupt(
            f"the history at {shown} is damaged",
            why=why,
            attempt="restore the database from a copy; nothing of it was changed",
        )
    if code == _FULL:
        return HistoryFull(f"the history at {shown} has no room", why=why)
    if code in _BUSY:
        return _BUSY[code](f"the history at {shown} is busy", why=why)
    attempt = denial(code, str(error))
    is_mistake = isinstance(error, (psycopg.ProgrammingError, psycopg.DataError))
    if is_mistake and not attempt:
        return error
    kind = HistoryDenied if attempt else HistoryUnavailable
    return kind(f"the history at {shown} cannot be used now", why=why, attempt=attempt)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@lru_cache(maxsize=1024)
def _in_psycopgs_words(statement: str) -> bytes:
    """Convert `?` and `:name` to psycopg's placeholders."""

    def place(found: re.Match[str]) -> str:
        if found[0] == "%":
            return "%%"
        return f"%({found[1]})s" if found[1] else "%s"

    return _PLACE.sub(place, statement).encode()
