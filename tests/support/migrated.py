"""Histories in memory that have every step of the schema from the start.

A test that needs a whole control plane opens one, and the steps would take a third of its time. They are
taken once a process, and their result copied; files are migrated as ever.
"""

from __future__ import annotations

import sqlite3
from functools import cache

from controlplane.history.sqlite import database
from controlplane.history.sqlite.migration import migrate


@cache
def _template() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(connection, ":memory:")
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    if path == database.MEMORY:
        _template().backup(connection)
    else:
        migrate(connection, path)


def copy_migrated_histories() -> None:
    """Do so in this process from now on."""
    database.migrate = _migrate  # type: ignore[attr-defined]
