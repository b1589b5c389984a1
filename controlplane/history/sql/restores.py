"""Sessions being restored from backups: their rows are written before the session exists.

The rows of an aborted restore are found by these entries, and removed.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from controlplane.history.sql.queries import change, select

if TYPE_CHECKING:
    from controlplane.history.sql.interface import Database


class SqlRestores:
    """Ids with rows but no session yet."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, session_id: str, at: float) -> None:
        """Add an id before any of its rows is written; `at` in Unix seconds."""
        await change(
            self._database,
            "INSERT INTO session_restores (session_id, begun_at) VALUES (?, ?)",
            (session_id, at),
        )

    async def end(self, session_id: str) -> None:
        """Remove an id: it is a session now, or all its rows are gone."""
        await change(
            self._database, "DELETE FROM session_restores WHERE session_id = ?", (session_id,)
        )

    async def begun_before(self, at: float, limit: int = 100) -> tuple[str, ...]:
        """List ids added before a Unix time, oldest first."""
        return await select(
            self._database,
            "SELECT session_id FROM session_restores WHERE begun_at < ? ORDER BY begun_at, session_id"
            " LIMIT ?",
            (at, limit),
            itemgetter(0),
        )
