"""The history's contract: parts over one database.

Every method may raise HistoryUnavailable (nothing was changed, or it is not known: the same call may
be repeated, all writes here are idempotent) and HistoryCorrupt. What a write changed is on disk when
it returns, telemetry excepted. Cancelling a call leaves its write whole or absent.

What only the leader writes is *fenced*: the database keeps the highest term that has written, and
refuses a lower one in the same transaction. So a leader that was paused for longer than its lease
changes nothing when it wakes. Everything else is any control plane's to write: streams, checkpoints
and telemetry come to whichever an agent calls, and each position is stored once; datasets, changes
of ended sessions and their removal compare what they were decided from in their own transaction.

The parts are written once, in `sql`, on what `sql.interface` asks of a database: `sqlite` (one process, file or
":memory:"), `postgresql` (any number of processes). A suite in tests/contract holds for both.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from controlplane.history.sql import portable
from controlplane.history.sql.artifacts import SqlArtifacts
from controlplane.history.sql.catalogue import SqlCatalogue
from controlplane.history.sql.checkpoint_marks import SqlCheckpointMarks
from controlplane.history.sql.environment_locks import SqlEnvironmentLocks
from controlplane.history.sql.interface import Database
from controlplane.history.sql.ledger import SqlLedger
from controlplane.history.sql.media import SqlMedia
from controlplane.history.sql.packs import SqlPacks
from controlplane.history.sql.portable import Snapshots
from controlplane.history.sql.queries import change, select
from controlplane.history.sql.restores import SqlRestores
from controlplane.history.sql.series import SERIES_A_NAME, SqlSeries
from controlplane.history.sql.streams import SqlStreams
from controlplane.history.sql.telemetry import SqlTelemetry
from controlplane.history.sql.uploads import SqlSent
from controlplane.history.sql.user_storage import SqlKept

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from controlplane.history.portable import Batch
    from controlplane.history.sql.interface import Connection
    from nsml.common.clock import Clock


class _Kept(Database, Snapshots, Protocol):
    """A database that can be told as a whole."""


class History:
    """The parts together; `close` ends them, after which nothing may be called.

    Args:
        metric_names: of one session that are counted; None: the usual number. Five times as many series are drawn.
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
        self.ledger = SqlLedger(database)
        self.sent = SqlSent(database)
        self.packs = SqlPacks(database, clock)
        self.kept = SqlKept(database)
        self.restores = SqlRestores(database)

    async def mark(self, fresh: str = "") -> str:
        """The mark that says whose this database is; "" while it has none.

        A database without one gets `fresh`, for good: of several that come at once one is taken, and
        all are told which.
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
        """Write something of no meaning; returns once it is on disk: whether writing works again."""
        now = str(self._clock.time())  # another value each time, or nothing would be written
        await change(
            self._database,
            "INSERT INTO properties (name, value) VALUES ('probe', ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (now,),
        )

    async def update_property(self, name: str, change: Callable[[str], str]) -> str:
        """Replace a property ("" before it has a value) by what `change` makes of it; its new value. No backup has it."""

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
        """Bytes that the database takes, free room within its files included."""
        [size] = await select(
            self._database, self._database.dialect.size, (), lambda row: int(row[0])
        )
        return size

    async def dump(self) -> AsyncGenerator[Batch, None]:
        """Everything in portable rows, as it is at one moment, while others go on writing."""
        await self.telemetry.flush()
        async with contextlib.aclosing(portable.dump(self._database)) as batches:
            async for batch in batches:
                yield batch

    async def load(self, batches: Iterable[Batch]) -> None:
        """Take what `dump` gave, of this or another implementation, all or nothing.

        HistoryConflict: something is here already. HistoryCorrupt: rows of a newer version.
        """
        await portable.load(self._database, batches)

    async def close(self) -> None:
        """Write the readings that are held back, if it can be done now, and let go of the database."""
        try:
            await self.telemetry.close()
        finally:
            await self._database.close()
