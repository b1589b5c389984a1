"""The steps of SQLite's tables, and the migration of an older database: forward only, each in one transaction.

`schema_versions` has a row for each step taken.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from controlplane.history.sql.tables import (
    FIRST,
    LATER,
    PROPERTIES,
    SESSION_FACTS,
    SESSIONS,
    Printer,
    Statement,
    Step,
    Table,
    columns_of,
    names_of,
    refuse_newer,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_TRIGGER: Final = (
    "CREATE TRIGGER {0}_never_{1} BEFORE {2} ON {0}"
    " BEGIN SELECT RAISE(ABORT, '{0} rows are only added'); END"
)
_FIRST_SESSIONS: Final = replace(
    SESSIONS, columns=f"{SESSION_FACTS}, memo text, arguments text, request_id text?"
)
_NEW_SESSIONS: Final = Table(
    "sessions_new", f"{SESSION_FACTS}, request_id text?, searched text=''", key="id"
)


class SqlitePrinter(Printer):
    """See Printer. Indexes have the names that sqlite-utils gave them in the first databases."""

    kinds: ClassVar = {
        **dict.fromkeys(("serial", "int", "small"), "INTEGER"),
        **dict.fromkeys(("text", "any_text"), "TEXT"),
        **dict.fromkeys(("bytes", "packed"), "BLOB"),
        "real": "REAL",
    }

    def table(self, table: Table) -> Iterator[str]:
        """See Printer."""
        yield self.create(table) + (" WITHOUT ROWID" if table.is_clustered else "")
        yield from self.indexes(table)

    def create(self, table: Table) -> str:
        """The statement to create the table without its indexes."""
        # Its import costs more than a start: only migrations pay for it.
        from sqlite_utils import Database  # noqa: PLC0415

        columns, key = columns_of(table.columns), names_of(table.key)
        return (
            Database(memory=True)
            .create_table_sql(
                table.name,
                {one.name: self.kinds[one.kind] for one in columns},
                pk=key if len(key) > 1 else key[0],
                not_null=[one.name for one in columns if not one.is_optional],
                defaults={one.name: one.default for one in columns if one.default},
            )
            .rstrip("; \n")
        )

    def indexes(self, table: Table) -> Iterator[str]:
        """The statements to create an existing table's indexes."""
        for kind, all_columns in (("UNIQUE INDEX", table.unique), ("INDEX", table.indexes)):
            for columns in all_columns:
                name = "_".join(("idx", table.name, *names_of(columns)))
                yield f"CREATE {kind} {name} ON {table.name} ({columns})"

    def own(self, statement: Statement) -> str:
        """See Printer."""
        return statement.sqlite


PRINTER: Final = SqlitePrinter()

STEPS: Final[tuple[Step, ...]] = (
    (
        Table("schema_versions", "version int, taken_at text", key="version", in_backups=False),
        *FIRST,
        _FIRST_SESSIONS,
        *(
            Statement(sqlite=_TRIGGER.format(table, *change))
            for table in ("audit", "charges")
            for change in (("updates", "UPDATE"), ("deletes", "DELETE"))
        ),
    ),
    # One case-folded text to search in: in the columns SQLite would fold only ASCII letters.
    (
        _NEW_SESSIONS,
        Statement(
            sqlite="INSERT INTO sessions_new SELECT id, name, owner, state, created_at, ended_at, record, project,"
            " team, visibility, dataset, request_id,"
            " casefold(name || char(10) || memo || char(10) || arguments) FROM sessions"
        ),
        Statement(sqlite="DROP TABLE sessions"),
        Statement(sqlite="ALTER TABLE sessions_new RENAME TO sessions"),
        *(Statement(sqlite=index) for index in PRINTER.indexes(SESSIONS)),
    ),
    (PROPERTIES,),
    *LATER,
)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Take every missing step; HistoryTooNew if the database has more than this version."""
    version = _version(connection)
    refuse_newer(version, STEPS, path)
    connection.create_function("casefold", 1, str.casefold, deterministic=True)
    for number in range(version + 1, len(STEPS) + 1):
        with transaction(connection):
            for statement in PRINTER.statements(STEPS[number - 1]):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_versions (version, taken_at) VALUES (?, datetime('now'))",
                (number,),
            )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body in a transaction: committed at its end, rolled back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    there = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_versions'"
    ).fetchone()
    if there is None:
        return 0
    row = connection.execute("SELECT max(version) FROM schema_versions").fetchone()
    return int(row[0] or 0)
