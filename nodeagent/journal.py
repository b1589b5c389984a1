"""What the agent remembers between its lives: whom it obeys, and what is acknowledged.

One SQLite file, one connection, one agent: a lock beside the file says so. What fences (cluster,
highest orders) is on disk before a call returns. Cursors are not forced to disk: losing the newest
only sends again what the control plane then trims. Which replicas there are is not here: the replica
folders themselves say it, and cannot disagree with themselves.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from nodeagent.collect.streams import MAX_GAP_CREDIT, Channel, Cursor, StreamId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from nodeagent.folders import ReplicaId

VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS cursors (
    replica TEXT NOT NULL, channel TEXT NOT NULL, writer INTEGER NOT NULL,
    last INTEGER NOT NULL, offset INTEGER NOT NULL,
    lost INTEGER NOT NULL, gap_credit INTEGER NOT NULL,
    PRIMARY KEY (replica, channel, writer)
) WITHOUT ROWID, STRICT;
"""
_FROM_VERSION_1 = f"""
ALTER TABLE cursors ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE cursors ADD COLUMN gap_credit INTEGER NOT NULL DEFAULT {MAX_GAP_CREDIT};
"""


class JournalError(Exception):
    """The journal cannot be used; the text says why and what to do."""


class JournalUnwritable(OSError):
    """The disk did not take what was to be remembered; what was remembered before stands."""


class JournalLocked(JournalError):
    """Another agent uses this data folder."""


class Journal:
    """The journal of one agent. Blocking; safe from several threads."""

    def __init__(self, connection: sqlite3.Connection, lock: int) -> None:
        self._connection = connection
        self._lock = lock
        self._turn = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the journal. Raises JournalLocked, JournalError."""
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise JournalLocked(f"another agent uses {path.parent}") from error
        try:
            return cls(_connect(path), lock)
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Close the file and let the next agent have it; a call that is under way ends before."""
        with self._turn:
            self._connection.close()
            os.close(self._lock)

    def cluster_id(self) -> str:
        """The platform that was obeyed; empty at first."""
        return self._fact("cluster_id", "")

    def join(self, cluster_id: str) -> None:
        """Obey this platform and no other; on disk when this returns."""
        with self._durably() as connection:
            _set(connection, "cluster_id", cluster_id)

    def highest(self) -> tuple[int, int]:
        """(term, revision) of the newest orders ever obeyed; (0, 0) before any."""
        term, _, revision = self._fact("highest", "0 0").partition(" ")
        return int(term), int(revision)

    def obey(self, term: int, revision: int) -> None:
        """Remember the newest orders, on disk when this returns. Older ones change nothing."""
        if (term, revision) <= self.highest():
            return
        with self._durably() as connection:
            _set(connection, "highest", f"{term} {revision}")

    def start_anew(self) -> None:
        """Obey orders of any position again; on disk when this returns."""
        with self._durably() as connection:
            _set(connection, "highest", "0 0")

    def control_planes(self) -> list[str]:
        """Where the control planes were, as far as they told; no more than that is believed of them."""
        return self._fact("control_planes", "").split()

    def remember_control_planes(self, addresses: Iterable[str]) -> None:
        """Find them there in the next life, should those of the settings be gone."""
        with self._turn, _writing(self._connection) as connection:
            _set(connection, "control_planes", " ".join(addresses))

    def cursors(self, replica_id: ReplicaId) -> dict[StreamId, Cursor]:
        """How far each stream of a replica is acknowledged."""
        query = (
            "SELECT channel, writer, last, offset, lost, gap_credit FROM cursors WHERE replica = ?"
        )
        with self._turn:
            rows = self._connection.execute(query, (str(replica_id),)).fetchall()
        return {
            StreamId(replica_id=replica_id, channel=Channel(channel), writer=writer): Cursor(
                last=last, offset=offset, lost=lost, gap_credit=gap_credit
            )
            for channel, writer, last, offset, lost, gap_credit in rows
        }

    def acknowledge(self, cursors: Mapping[StreamId, Cursor | None]) -> None:
        """The streams are acknowledged as far as `cursors` say; None: they are over, and forgotten."""
        kept, over = [], []
        for stream, cursor in cursors.items():
            key = (str(stream.replica_id), stream.channel.value, stream.writer)
            if cursor is None:
                over.append(key)
            else:
                kept.append((*key, cursor.last, cursor.offset, cursor.lost, cursor.gap_credit))
        with self._turn, _writing(self._connection):
            self._connection.executemany(
                "INSERT INTO cursors VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET last = excluded.last, offset = excluded.offset,"
                " lost = excluded.lost, gap_credit = excluded.gap_credit",
                kept,
            )
            self._connection.executemany(
                "DELETE FROM cursors WHERE replica = ? AND channel = ? AND writer = ?", over
            )

    def forget(self, replica_id: ReplicaId) -> None:
        """Nothing of a replica is needed any more."""
        with self._turn, _writing(self._connection):
            self._connection.execute("DELETE FROM cursors WHERE replica = ?", (str(replica_id),))

    def _fact(self, name: str, default: str) -> str:
        with self._turn:
            query = "SELECT value FROM facts WHERE name = ?"
            row = self._connection.execute(query, (name,)).fetchone()
        return default if row is None else str(row[0])

    @contextmanager
    def _durably(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is on disk when it ends."""
        with self._turn:
            self._connection.execute("PRAGMA synchronous = FULL")
            try:
                with _writing(self._connection):
                    yield self._connection
            finally:
                self._connection.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction; raises JournalUnwritable."""
    try:
        with connection:
            yield connection
    except sqlite3.OperationalError as error:
        raise JournalUnwritable(f"the journal: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, check_same_thread=False, timeout=0)
    try:
        _prepare(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise JournalError(f"{path} cannot be read ({error}): move it away, start again") from None
    except JournalError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise JournalError(f"{path} is damaged ({found}): move it away, start again")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise JournalError(f"{path} was written by a newer nsml (version {version})")
    connection.executescript(_FROM_VERSION_1 if version == 1 else _SCHEMA)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _set(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute(
        "INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        (name, value),
    )
