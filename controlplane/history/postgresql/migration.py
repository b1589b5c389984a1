"""The steps of PostgreSQL's tables, and the migration of an older database: all missing steps in one transaction.

`schema_versions` has a row for each step taken. Several control planes may start at once: they take the steps under
one lock, so the second one finds them taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from controlplane.history.sql.tables import (
    FIRST,
    LATER,
    PROPERTIES,
    SESSIONS,
    Printer,
    Statement,
    Step,
    Table,
    columns_of,
    refuse_newer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.history.postgresql.connection import Line

LOCK: Final = 0x6E736D6C
"""Held while steps are taken; the letters nsml."""
MIGRATION_S: Final = 600

_ONLY_ADDED: Final = """
CREATE FUNCTION rows_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows are only added', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added();
CREATE TRIGGER charges_are_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON charges
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added()"""


class PostgresPrinter(Printer):
    """See Printer."""

    kinds: ClassVar = {
        "serial": "bigint GENERATED ALWAYS AS IDENTITY",
        "int": "bigint",
        "small": "smallint",
        "real": "double precision",
        "text": 'text COLLATE "C"',
        **dict.fromkeys(("any_text", "bytes", "packed"), "bytea"),
    }

    def table(self, table: Table) -> Iterator[str]:
        """See Printer."""
        unique = (f"UNIQUE ({columns})" for columns in table.unique)
        parts = (
            *map(self.column, columns_of(table.columns)),
            f"PRIMARY KEY ({table.key})",
            *unique,
        )
        yield f"CREATE TABLE {table.name} ({', '.join(parts)})"
        for column in columns_of(table.columns):
            if column.kind == "packed":
                yield f"ALTER TABLE {table.name} ALTER COLUMN {column.name} SET STORAGE EXTERNAL"
        for columns in table.indexes:
            yield f"CREATE INDEX ON {table.name} ({columns})"

    def own(self, statement: Statement) -> str:
        """See Printer."""
        return statement.postgresql


PRINTER: Final = PostgresPrinter()

STEPS: Final[tuple[Step, ...]] = (
    (
        PROPERTIES,
        *FIRST,
        SESSIONS,
        # The newest reading of each node, received by any control plane.
        Table(
            "readings",
            "node text, boot_id text, sequence int, received_at real, body bytes",
            key="node",
            in_backups=False,
        ),
        Statement(postgresql=_ONLY_ADDED),
    ),
    *LATER[:3],
    # The newest readings received by each control plane; see history.sql.telemetry.
    (
        Table(
            "newest_readings",
            "teller serial, told_at real, body packed",
            key="teller",
            in_backups=False,
        ),
        Statement(postgresql="DROP TABLE readings"),
    ),
    *LATER[3:],
)


def migrate(line: Line, shown: str) -> None:
    """Take every missing step; HistoryTooNew if the database has more than this version."""
    with line.transaction():
        line.run(f"SET LOCAL lock_timeout = '{MIGRATION_S}s'")
        line.run(f"SET LOCAL statement_timeout = '{MIGRATION_S}s'")
        line.run(f"SELECT pg_advisory_xact_lock({LOCK})")
        line.run(
            "CREATE TABLE IF NOT EXISTS schema_versions"
            " (version bigint PRIMARY KEY, taken_at timestamptz NOT NULL DEFAULT now())"
        )
        version: int = line.ask("SELECT coalesce(max(version), 0) FROM schema_versions")[0]
        refuse_newer(version, STEPS, shown)
        for number in range(version + 1, len(STEPS) + 1):
            line.run(";\n".join(PRINTER.statements(STEPS[number - 1])))
            line.run(f"INSERT INTO schema_versions (version) VALUES ({number})")  # noqa: S608
