"""The ledger on SQLite: rows that are only added, which triggers see to."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import math
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

from controlplane.history.errors import HistoryConflict
from controlplane.history.values import AttemptCharge, AuditRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from controlplane.history.sqlite.database import Database

_CHARGE = ", ".join(field.name for field in fields(AttemptCharge))
_AUDIT = ", ".join(field.name for field in fields(AuditRow))


class SqliteLedger:
    """See interface.Ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def charge(self, charges: Sequence[AttemptCharge]) -> None:
        """See Ledger."""
        await self._database.write(lambda connection: insert_charges(connection, charges))

    async def charged(
        self, *, owner: str | None = None, project: str | None = None, since: float = 0.0
    ) -> float:
        """See Ledger."""

        def work(connection: sqlite3.Connection) -> float:
            rows = connection.execute(
                "SELECT gpu_thousandths, seconds FROM charges WHERE ended_at >= :since"
                " AND (:owner IS NULL OR owner = :owner)"
                " AND (:project IS NULL OR project = :project)",
                {"since": since, "owner": owner, "project": project},
            )
            # fsum: the sum does not depend on the order of the rows.
            return math.fsum(thousandths * seconds for thousandths, seconds in rows) / 1000

        return await self._database.read(work)

    async def audit(self, rows: Sequence[AuditRow]) -> None:
        """See Ledger."""
        await self._database.write(
            lambda connection: connection.executemany(
                f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [astuple(row) for row in rows],
            )
        )

    async def audited(
        self, *, after: int = 0, limit: int = 100
    ) -> tuple[tuple[int, AuditRow], ...]:
        """See Ledger."""

        def work(connection: sqlite3.Connection) -> tuple[tuple[int, AuditRow], ...]:
            rows = connection.execute(
                f"SELECT id, {_AUDIT} FROM audit WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
            )
            names = _AUDIT.split(", ")
            return tuple(
                (number, AuditRow(**dict(zip(names, row, strict=True)))) for number, *row in rows
            )

        return await self._database.read(work)


def insert_charges(connection: sqlite3.Connection, charges: Sequence[AttemptCharge]) -> None:
    """Add charges as part of a larger transaction; HistoryConflict for another value."""
    for charge in charges:
        known = connection.execute(
            f"SELECT {_CHARGE} FROM charges WHERE session_id = ? AND attempt = ?",
            (charge.session_id, charge.attempt),
        ).fetchone()
        if known is None:
            connection.execute(
                f"INSERT INTO charges ({_CHARGE}) VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(charge)
            )
        elif known != astuple(charge):
            raise HistoryConflict(
                f"attempt {charge.attempt} of {charge.session_id} is charged already",
                why=f"with {known[4]} thousandths for {known[5]} s",
            )
