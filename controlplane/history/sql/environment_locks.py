"""Environment locks: the packages of sessions. Sessions with the same packages share a row.

`uses` counts the sessions of a lock: changing it locks the row, so that no lock is removed while another session
begins to use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from controlplane.history.sql.queries import RowType, select_one
from controlplane.history.values import EnvironmentLock
from nsml.content.framing import frame, unframe
from nsml.packages.locks import MOST_LOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.interface import Connection, Database

_LOCK: Final = RowType(EnvironmentLock)
_PUT: Final = (
    "INSERT INTO environment_locks (digest, package_count, content, uses) VALUES (?, ?, ?, 1)"
    " ON CONFLICT (digest) DO UPDATE SET uses = environment_locks.uses + 1"
)
_USE: Final = "UPDATE environment_locks SET uses = uses + 1 WHERE digest = ?"


class SqlEnvironmentLocks:
    """At most one lock per session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, session_id: str) -> EnvironmentLock | None:
        """Return the lock of a session."""
        return await select_one(
            self._database,
            "SELECT l.digest, l.package_count, l.content FROM session_locks s"
            " JOIN environment_locks l ON l.digest = s.digest WHERE s.session_id = ?",
            (session_id,),
            _opened,
        )

    async def facts_of(self, session_id: str) -> EnvironmentLock | None:
        """Like `of`, without the content."""
        return await select_one(
            self._database,
            "SELECT l.digest, l.package_count, '' FROM session_locks s"
            " JOIN environment_locks l ON l.digest = s.digest WHERE s.session_id = ?",
            (session_id,),
            _LOCK.read,
        )

    async def note_lock(self, session_id: str, lock: EnvironmentLock) -> None:
        """Set the lock of a session, replacing any earlier one."""
        content = frame(lock.content.encode())

        def work(connection: Connection) -> None:
            if (before := _digest_of(connection, session_id)) == lock.digest:
                return
            connection.execute(_PUT, (lock.digest, lock.package_count, content))
            _set(connection, session_id, lock.digest, before)

        await self._database.write(work, touches={session_id})

    async def propose_lock(self, session_id: str, lock: EnvironmentLock) -> EnvironmentLock:
        """Set the lock of a session unless it has one; return its lock."""
        content = frame(lock.content.encode())

        def work(connection: Connection) -> bool:
            if _digest_of(connection, session_id):
                return False
            connection.execute(_PUT, (lock.digest, lock.package_count, content))
            _set(connection, session_id, lock.digest, "")
            return True

        if await self._database.write(work, touches={session_id}):
            return lock
        return await self.of(session_id) or lock

    async def share_lock(self, session_id: str, digest: str) -> bool:
        """Use another session's lock; False if no session has it any more."""

        def work(connection: Connection) -> bool:
            if (before := _digest_of(connection, session_id)) == digest:
                return True
            if not connection.execute(_USE, (digest,)).rowcount:
                return False
            _set(connection, session_id, digest, before)
            return True

        return await self._database.write(work, touches={session_id})


def delete_lock(connection: Connection, session_id: str) -> None:
    """Delete the lock of a session; part of a larger transaction."""
    if before := _digest_of(connection, session_id):
        connection.execute("DELETE FROM session_locks WHERE session_id = ?", (session_id,))
        _release(connection, before)


def _digest_of(connection: Connection, session_id: str) -> str:
    row = connection.execute(
        "SELECT digest FROM session_locks WHERE session_id = ?", (session_id,)
    ).fetchone()
    return "" if row is None else str(row[0])


def _set(connection: Connection, session_id: str, digest: str, before: str) -> None:
    connection.execute(
        "INSERT INTO session_locks (session_id, digest) VALUES (?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET digest = excluded.digest",
        (session_id, digest),
    )
    if before:
        _release(connection, before)


def _release(connection: Connection, digest: str) -> None:
    connection.execute("UPDATE environment_locks SET uses = uses - 1 WHERE digest = ?", (digest,))
    connection.execute("DELETE FROM environment_locks WHERE digest = ? AND uses < 1", (digest,))


def _opened(row: Sequence[Any]) -> EnvironmentLock:
    digest, package_count, content = row
    text = unframe(content, max_bytes=MOST_LOCK_BYTES).decode()
    return EnvironmentLock(digest, package_count, text)
