"""The locks by which several control planes write one after the other, and who must give them up.

PostgreSQL itself ends what takes too long (`statement_timeout`), and who holds locks and says nothing
(`idle_in_transaction_session_timeout`). Neither runs for one whose client stands still with half of
what it had to say said: between two rows of a pipeline, after a Flush, within a long parameter. The
server waits for the rest without a limit, and TCP goes on acknowledging for the client. So whoever
waits for a lock (`lock_timeout`) looks now and then for such ones, ends them, and waits on.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.history.postgresql.connection import Line

STILL_S: Final = 2.0
"""How long the server hears nothing from one that is ended: as where it looks itself."""
PATIENCE_S: Final = 8.0
"""How long anybody waits for locks of one that is not ended."""
LONG: Final = "nsml copying"
"""The application_name of what may take its time between two statements, as a restore does."""

_LOG = structlog.get_logger()
# Of this role and database alone. Who only reads has neither kind of lock. What is chosen is fixed
# first (MATERIALIZED): the planner would ask pg_terminate_backend of others before that.
_END_THEM: Final = """
WITH standing AS MATERIALIZED (
    SELECT pid, host(client_addr) AS client, clock_timestamp() - state_change AS still
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
        AND application_name <> :long AND wait_event_type = 'Client'
        AND state_change < clock_timestamp() - make_interval(secs => :still_s)
        AND pid IN (
            SELECT pid FROM pg_locks WHERE granted AND locktype IN ('advisory', 'transactionid')
        )
)
SELECT pid, client, CAST(extract(epoch FROM still) AS double precision) FROM standing
WHERE pg_terminate_backend(pid)
"""


def lock(line: Line, touched: Collection[str]) -> None:
    """Let no other process touch these until the transaction ends; always in one order."""
    if touched:
        keys = sorted(_key(name) for name in touched)
        line.execute(
            "SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key",
            {"keys": keys},
        )


def free(line: Line) -> None:
    """End transactions that hold locks and whose clients stand still.

    What they had done is undone. Their clients find the connection lost when they wake, and repeat
    it as after any loss.
    """
    ended = line.execute(_END_THEM, {"still_s": STILL_S, "long": LONG}).fetchall()
    for pid, client, still_s in ended:
        _LOG.warning("history.locks.freed", pid=pid, client=client, still_s=round(still_s, 1))


def _key(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
