"""The history's contract: parts over one database.

Every method may raise HistoryUnavailable (nothing changed, or the outcome is unknown: the call may be
repeated, all writes here are idempotent) and HistoryCorrupt. Writes are on disk when they return,
except telemetry. Cancelling a call leaves its write whole or absent.

Writes reserved to the leader are *fenced*: the database keeps the highest term that has written, and
refuses a lower one in the same transaction. So a leader paused for longer than its lease changes
nothing when it resumes. Any control plane may write everything else: streams, checkpoints and
telemetry arrive at whichever one an agent calls, and each position is stored once; writes to datasets,
changes of ended sessions and their removal check their preconditions in their own transaction.

The parts are written once, in `sql`, on the interface in `sql.interface`: `sqlite` (one process, file or
":memory:"), `postgresql` (any number of processes). A suite in tests/contract holds for both.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from controlplane.history.sql import portable
from controlplane.history.sql.artifacts import SqlArtifacts
from controlplane.history.sql.board_lists import SqlBoardLists
from controlplane.history.sql.boards import SqlBoards
from controlplane.history.sql.catalogue import SqlCatalogue
from controlplane.history.sql.checkpoint_marks import SqlCheckpointMarks
from controlplane.history.sql.competitions import SqlCompetitions
from controlplane.history.sql.environment_locks import SqlEnvironmentLocks
from controlplane.history.sql.interface import Database
from controlplane.history.sql.ledger import SqlLedger
from controlplane.history.sql.media import SqlMedia
from controlplane.history.sql.packs import SqlPacks
from controlplane.history.sql.portable import Snapshots
from controlplane.history.sql.queries import change, select
from controlplane.history.sql.reported_config import SqlReportedConfig
from controlplane.history.sql.restores import SqlRestores
from controlplane.history.sql.series import SERIES_A_NAME, SqlSeries
from controlplane.history.sql.streams import SqlStreams
from controlplane.history.sql.submissions import SqlSubmissions
from controlplane.history.sql.telemetry import SqlTelemetry
from controlplane.history.sql.uploads import SqlSent
from controlplane.history.sql.user_storage import SqlKept

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from controlplane.history.portable import Batch
    from controlplane.history.sql.interface import Connection
    from nsml.common.clock import Clock


class _Kept(Database, Snapshots, Protocol):
    """A database with snapshots."""


class History:
    """The parts together; nothing may be called after `close`.

    Args:
        metric_names: most names counted per session; None: the default. The limit of series is five times that.
    """

    def __init__(self, database: _Kept, clock: Clock, *, metric_names: int | None = None) -> None:
        self._database = database
        self._clock = clock
        self.streams = SqlStreams(database, clock, metric_names=metric_names)
        self.series = SqlSeries(database, clock, most=metric_names and metric_names * SERIES_A_NAME)
        self.telemetry = SqlTelemetry(database, clock)
        self.catalogue = SqlCatalogue(database)
        self.checkpoint_marks = SqlCheckpointMarks(database)
        self.environment_locks = SqlEnvironmentLocks(database)
        self.media = SqlMedia(database)
        self.artifacts = SqlArtifacts(database)
        self.reported_config = SqlReportedConfig(database)
        self.ledger = SqlLedger(database)
        self.sent = SqlSent(database)
        self.packs = SqlPacks(database, clock)
        self.kept = SqlKept(database)
        self.restores = SqlRestores(database)
        self.boards = SqlBoards(database)
        self.board_lists = SqlBoardLists(database)
        self.submissions = SqlSubmissions(database)
        self.competitions = SqlCompetitions(database)

    async def mark(self, fresh: str = "") -> str:
        """Return the mark of this database's owner; "" if it has none.

        A database without one gets `fresh`, permanently: of concurrent calls one wins, and all return
        its mark.
        """

        def work(connection: Connection) -> str:
            if fresh:
                connection.execute(
                    "INSERT INTO properties (name, value) VALUES ('mark', ?)"
                    " ON CONFLICT (name) DO NOTHING",
                    (fresh,),
                )
            row = connection.execute("SELECT value FROM properties WHERE name = 'mark'").fetchone()
            return "" if row is None else str(row[0])

        return await (self._database.write(work) if fresh else self._database.read(work))

    async def probe(self) -> None:
        """Write a dummy value to disk, to check whether writing works again."""
        now = str(self._clock.time())  # another value each time, or nothing would be written
        await change(
            self._database,
            "INSERT INTO properties (name, value) VALUES ('probe', ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (now,),
        )

    async def update_property(self, name: str, change: Callable[[str], str]) -> str:
        """Update a property ("" if unset) with `change`; return its new value. Backups leave properties out."""

        def work(connection: Connection) -> str:
            connection.execute(
                "INSERT INTO properties (name, value) VALUES (?, '') ON CONFLICT (name) DO NOTHING",
                (name,),
            )
            lock = self._database.dialect.for_update
            row = connection.execute(
                f"SELECT value FROM properties WHERE name = ?{lock}",  # noqa: S608
                (name,),
            ).fetchone()
            value = change(str(row[0]))
            connection.execute("UPDATE properties SET value = ? WHERE name = ?", (value, name))
            return value

        return await self._database.write(work)

    async def size(self) -> int:
        """Size of the database in bytes, including free space in its files."""
        [size] = await select(
            self._database, self._database.dialect.size, (), lambda row: int(row[0])
        )
        return size

    async def dump(self) -> AsyncGenerator[Batch, None]:
        """Dump everything in portable rows, as one snapshot, without blocking writers."""
        await self.telemetry.flush()
        async with contextlib.aclosing(portable.dump(self._database)) as batches:
            async for batch in batches:
                yield batch

    async def load(self, batches: Iterable[Batch]) -> None:
        """Load a dump of this or another implementation, all or nothing.

        HistoryConflict: the database is not empty. HistoryCorrupt: rows of a newer version.
        """
        await portable.load(self._database, batches)

    async def close(self) -> None:
        """Write the buffered readings, if possible, and close the database."""
        try:
            await self.telemetry.close()
        finally:
            await self._database.close()
