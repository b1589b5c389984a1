"""State of the agent that survives restarts: its platform, and acknowledged cursors.

One SQLite file, one connection, one agent: enforced by a lock beside the file. Fencing data (cluster,
highest orders) is on disk before a call returns. Cursors are not forced to disk: losing the newest
only sends data again, which the control plane then removes. The list of replicas is not here: the replica
folders are that list, and cannot contradict themselves.
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
    """The journal cannot be used; the text gives the reason and advice."""


class JournalUnwritable(OSError):
    """The disk did not accept new data; earlier data is unchanged."""


class JournalLocked(JournalError):
    """Another agent uses this data folder."""


class Journal:
    """The journal of one agent. Blocking; thread-safe."""

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
        """Close the file and release it for the next agent, after a call in progress."""
        with self._turn:
            self._connection.close()
            os.close(self._lock)

    def cluster_id(self) -> str:
        """Return the platform of this node; empty at first."""
        return self._fact("cluster_id", "")

    def join(self, cluster_id: str) -> None:
        """Bind the node to this platform; on disk when this returns."""
        with self._durably() as connection:
            _set(connection, "cluster_id", cluster_id)

    def highest(self) -> tuple[int, int]:
        """Return (term, revision) of the newest orders ever obeyed; (0, 0) before any."""
        term, _, revision = self._fact("highest", "0 0").partition(" ")
        return int(term), int(revision)

    def obey(self, term: int, revision: int) -> None:
        """Store the newest orders, on disk when this returns. Older ones change nothing."""
        if (term, revision) <= self.highest():
            return
        with self._durably() as connection:
            _set(connection, "highest", f"{term} {revision}")

    def start_anew(self) -> None:
        """Accept orders of any position again; on disk when this returns."""
        with self._durably() as connection:
            _set(connection, "highest", "0 0")

    def control_planes(self) -> list[str]:
        """Return the last addresses of the control planes, by their own report; trusted for nothing else."""
        return self._fact("control_planes", "").split()

    def remember_control_planes(self, addresses: Iterable[str]) -> None:
        """Store their addresses for the next start, in case those of the settings are gone."""
        with self._turn, _writing(self._connection) as connection:
            _set(connection, "control_planes", " ".join(addresses))

    def cursors(self, replica_id: ReplicaId) -> dict[StreamId, Cursor]:
        """Return the acknowledged cursor of each stream of a replica."""
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
        """Store acknowledged cursors; None: the stream has ended, and is forgotten."""
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
        """Remove all data of a replica."""
        with self._turn, _writing(self._connection):
            self._connection.execute("DELETE FROM cursors WHERE replica = ?", (str(replica_id),))

    def _fact(self, name: str, default: str) -> str:
        with self._turn:
            query = "SELECT value FROM facts WHERE name = ?"
            row = self._connection.execute(query, (name,)).fetchone()
        return default if row is None else str(row[0])

    @contextmanager
    def _durably(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is on disk at its end."""
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
