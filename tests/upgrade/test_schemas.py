"""Databases from before tables were values, and those made since, have the same tables."""

from __future__ import annotations

import sqlite3
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from controlplane.history.postgresql import migration as postgresql
from controlplane.history.postgresql.address import read_address
from controlplane.history.postgresql.connection import open_line
from controlplane.history.sqlite import migration as sqlite
from tests.support.postgres import find_postgres
from tests.upgrade.old_schemas import old_steps

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer


def sqlite_catalog(connection: sqlite3.Connection) -> dict[str, Any]:
    """Tables, columns, indexes and triggers, whatever words made them."""
    found: dict[str, Any] = {}
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    for kind, name, text in rows:
        words = " ".join((text or "").replace('"', "").split())
        if kind == "table":
            found[name] = (
                [
                    # A default of 0 is 0.0 in a column of that kind.
                    tuple("0" if (part, row[2]) == ("0.0", "REAL") else part for part in row)
                    for row in connection.execute(f"PRAGMA table_xinfo({name})")
                ],
                sorted(row[1:] for row in connection.execute(f"PRAGMA index_list({name})")),
                "WITHOUT ROWID" in words,
            )
        elif kind == "index":
            keys = connection.execute(f"PRAGMA index_xinfo({name})").fetchall()
            found[name] = (keys, words.partition(" WHERE ")[2])
        else:
            found[name] = words
    return found


@pytest.mark.parametrize("taken", range(len(old_steps("sqlite.sql"))))
def test_sqlite_has_the_same_tables_from_whichever_step_on(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = old_steps("sqlite.sql")
    before, after = (sqlite3.connect(":memory:", isolation_level=None) for _ in range(2))
    before.executescript("".join(old))
    after.executescript("".join(old[:taken]))
    monkeypatch.setattr(sqlite, "STEPS", sqlite.STEPS[: len(old)])
    sqlite.migrate(after, ":memory:")
    assert sqlite_catalog(after) == sqlite_catalog(before)


def postgresql_catalog(url: str) -> str:
    """All that pg_dump would make again."""
    programs = find_postgres()
    assert programs is not None
    dump = subprocess.run(
        [programs / "pg_dump", "--schema-only", "--no-owner", url],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # `\restrict` and its end have a word that is another one each time.
    return "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))


def test_postgresql_has_the_same_tables_from_whichever_step_on(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = old_steps("postgresql.sql")
    monkeypatch.setattr(postgresql, "STEPS", postgresql.STEPS[: len(old)])
    catalogs = []
    for taken in (*range(0, len(old), 4), len(old)):
        with postgres_server.database() as url:
            if taken:
                with psycopg.connect(url) as connection:
                    connection.execute(
                        "CREATE TABLE schema_versions"
                        " (version bigint PRIMARY KEY, taken_at timestamptz NOT NULL DEFAULT now())"
                    )
                    for step in old[:taken]:
                        connection.execute(step.encode())
            line = open_line(read_address(url))
            postgresql.migrate(line, url)
            line.close()
            catalogs.append(postgresql_catalog(url))
    *after, before = catalogs
    assert "CREATE TABLE public.kept_bytes" in before
    assert after == [before] * len(after)
