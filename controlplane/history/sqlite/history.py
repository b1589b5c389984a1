"""The history on one SQLite database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.sql.history import History
from controlplane.history.sqlite.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

    from nsml.common.clock import Clock, Offload


class SqliteHistory(History):
    """See History. Exactly one process has a file open."""


async def open_history(
    path: Path | str, *, clock: Clock, run: Offload, metric_names: int | None = None
) -> SqliteHistory:
    """Open, check and migrate the history at `path` (":memory:" for a temporary one).

    `metric_names`: see History.

    Raises HistoryCorrupt, HistoryTooNew, or HistoryUnavailable if another process has it open.
    """
    database = await run(lambda: open_database(path, run))
    return SqliteHistory(database, clock, metric_names=metric_names)
