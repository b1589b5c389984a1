"""The history on PostgreSQL, for several control planes at once.

The only place that knows psycopg.
"""

from __future__ import annotations

from controlplane.history.postgresql.history import (
    PostgresHistory,
    check_postgresql,
    open_postgresql,
)

__all__ = ["PostgresHistory", "check_postgresql", "open_postgresql"]
