"""The history on one PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.postgresql.address import read_address
from controlplane.history.postgresql.connection import open_line
from controlplane.history.postgresql.database import open_database
from controlplane.history.sql.history import History
from nsml.common.clock import in_own_thread

if TYPE_CHECKING:
    from nsml.common.clock import Clock


class PostgresHistory(History):
    """See History. Any number of processes may have the same database open."""


async def check_postgresql(url: str) -> None:
    """Connect to the history without changing it; raises as `open_postgresql`."""
    address = read_address(url)
    await in_own_thread(lambda: open_line(address).close())


async def open_postgresql(
    url: str, *, clock: Clock, metric_names: int | None = None
) -> PostgresHistory:
    """Connect to, check and migrate the history at postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE.

    Parameters are libpq's. Another host needs `sslmode=verify-full` (or verify-ca); the password
    should come from a file (`passfile=...`, PGPASSFILE, ~/.pgpass). It is in no error and no log.
    The role must own the database, or may create tables in it. `metric_names`: see History.

    Raises:
        HistoryRefused: the URL or the database is unsafe; the text says why.
        HistoryUnavailable: it cannot be reached.
        HistoryDenied: it denies access.
        HistoryTooNew, HistoryCorrupt: it cannot be read.
    """
    database = await open_database(read_address(url))
    return PostgresHistory(database, clock, metric_names=metric_names)
