"""Sessions that are being restored from backups: their rows are written before they are sessions.

Whatever breaks a restore off, its rows are found by these notes, and removed.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from controlplane.history.sql.queries import change, select

if TYPE_CHECKING:
    from controlplane.history.sql.interface import Database


class SqlRestores:
    """Which ids have rows and no session yet."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, session_id: str, at: float) -> None:
        """Note an id before anything is written of it; `at` in Unix seconds."""
        await change(
            self._database,
            "INSERT INTO session_restores (session_id, begun_at) VALUES (?, ?)",
            (session_id, at),
        )

    async def end(self, session_id: str) -> None:
        """Forget an id: it is a session now, or nothing is left of it."""
        await change(
            self._database, "DELETE FROM session_restores WHERE session_id = ?", (session_id,)
        )

    async def begun_before(self, at: float, limit: int = 100) -> tuple[str, ...]:
        """Ids that were noted before a moment, the oldest first."""
        return await select(
            self._database,
            "SELECT session_id FROM session_restores WHERE begun_at < ? ORDER BY begun_at, session_id"
            " LIMIT ?",
            (at, limit),
            itemgetter(0),
        )
