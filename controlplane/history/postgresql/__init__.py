"""The history on PostgreSQL, for several control planes at once.

The only user of psycopg.
"""

from __future__ import annotations

from controlplane.history.postgresql.history import (
    PostgresHistory,
    check_postgresql,
    open_postgresql,
)

__all__ = ["PostgresHistory", "check_postgresql", "open_postgresql"]
