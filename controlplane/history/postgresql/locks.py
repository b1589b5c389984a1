"""Locks that serialize the writes of several control planes, and the release of stalled holders.

PostgreSQL itself ends slow statements (`statement_timeout`), and idle transactions with locks
(`idle_in_transaction_session_timeout`). Neither covers a client that stalls in the middle of a
message sequence: between two rows of a pipeline, after a Flush, within a long parameter. The server
waits for the rest without a limit, and TCP keeps acknowledging for the client. So waiters for a lock
(`lock_timeout`) search for such holders now and then, end them, and keep waiting.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.history.postgresql.connection import Line

STILL_S: Final = 2.0
"""Silence after which a holder is ended: the same as the server's own timeout."""
PATIENCE_S: Final = 8.0
"""How long a caller waits for locks of an active holder."""
LONG: Final = "nsml copying"
"""The application_name of transactions that may pause between statements, such as a restore."""

_LOG = structlog.get_logger()
# Only this role and database. Readers have neither kind of lock. The selection comes first
# (MATERIALIZED): otherwise the planner could call pg_terminate_backend on others.
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
    """Lock these names against other processes until the transaction ends, in a fixed order."""
    if touched:
        keys = sorted(_key(name) for name in touched)
        line.execute(
            "SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key",
            {"keys": keys},
        )


def free(line: Line) -> None:
    """End transactions that hold locks and have stalled clients.

    They are rolled back. When their clients resume, they find the connection lost, and retry as
    after any loss.
    """
    ended = line.execute(_END_THEM, {"still_s": STILL_S, "long": LONG}).fetchall()
    for pid, client, still_s in ended:
        _LOG.warning("history.locks.freed", pid=pid, client=client, still_s=round(still_s, 1))


def _key(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
