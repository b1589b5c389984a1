"""The history on one SQLite database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.sqlite.catalogue import SqliteCatalogue
from controlplane.history.sqlite.database import Database, open_database
from controlplane.history.sqlite.ledger import SqliteLedger
from controlplane.history.sqlite.streams import SqliteStreams
from controlplane.history.sqlite.telemetry import SqliteTelemetry

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from nsml.clock import Clock, Offload


class SqliteHistory:
    """See interface.History. Exactly one process has a file open."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self.streams = SqliteStreams(database, clock)
        self.telemetry = SqliteTelemetry(database, clock)
        self.catalogue = SqliteCatalogue(database)
        self.ledger = SqliteLedger(database)

    async def mark(self, fresh: str = "") -> str:
        """See History."""

        def work(connection: sqlite3.Connection) -> str:
            if fresh:
                connection.execute(
                    "INSERT OR IGNORE INTO properties (name, value) VALUES ('mark', ?)", (fresh,)
                )
            row = connection.execute("SELECT value FROM properties WHERE name = 'mark'").fetchone()
            return "" if row is None else str(row[0])

        return await (self._database.write(work) if fresh else self._database.read(work))

    async def close(self) -> None:
        """See History."""
        try:
            await self.telemetry.flush()
        finally:
            await self._database.close()


async def open_history(path: Path | str, *, clock: Clock, run: Offload) -> SqliteHistory:
    """Open, check and migrate the history at `path` (":memory:" for one that is not kept).

    Raises HistoryCorrupt, HistoryTooNew, or HistoryUnavailable when another process has it.
    """
    database = await run(lambda: open_database(path, run))
    return SqliteHistory(database, clock)
