"""The ledger: rows that are only added, which triggers in the database see to."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import math
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING

from controlplane.history.errors import HistoryConflict
from controlplane.history.sql.fence import pass_fence
from controlplane.history.values import AttemptCharge, AuditQuery, AuditRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.interface import Connection, Database

_CHARGE = ", ".join(field.name for field in fields(AttemptCharge))
_ASKED = ("actor", "method", "target")
_AUDIT = ", ".join(field.name for field in fields(AuditRow))


class SqlLedger:
    """See interface.Ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def charge(self, charges: Sequence[AttemptCharge], *, term: int) -> None:
        """See Ledger."""

        def work(connection: Connection) -> None:
            pass_fence(connection, self._database.dialect, term)
            insert_charges(connection, charges)

        await self._database.write(work, touches={charge.session_id for charge in charges})

    async def charged(
        self, *, owner: str | None = None, project: str | None = None, since: float = 0.0
    ) -> float:
        """See Ledger."""
        conditions = ["ended_at >= :since"]
        conditions += ["owner = :owner"] if owner is not None else []
        conditions += ["project = :project"] if project is not None else []

        def work(connection: Connection) -> float:
            rows = connection.execute(
                f"SELECT gpu_thousandths, seconds FROM charges WHERE {' AND '.join(conditions)}",
                {"since": since, "owner": owner, "project": project},
            )
            # fsum: the sum does not depend on the order of the rows.
            return math.fsum(thousandths * seconds for thousandths, seconds in rows) / 1000

        return await self._database.read(work)

    async def charges(
        self,
        project: str,
        *,
        since: float,
        behind: AttemptCharge | None = None,
        limit: int = 500,
    ) -> tuple[AttemptCharge, ...]:
        """See Ledger."""
        where = "ended_at > ?"
        values: tuple[float | str, ...] = (since,)
        if behind is not None:
            # The first says to the index where to begin.
            where = "ended_at >= ? AND (ended_at, session_id, attempt) > (?, ?, ?)"
            values = (behind.ended_at, behind.ended_at, behind.session_id, behind.attempt)

        def work(connection: Connection) -> tuple[AttemptCharge, ...]:
            rows = connection.execute(
                f"SELECT {_CHARGE} FROM charges WHERE project = ? AND {where}"
                " ORDER BY ended_at, session_id, attempt LIMIT ?",
                (project, *values, limit),
            )
            names = _CHARGE.split(", ")
            return tuple(AttemptCharge(**dict(zip(names, row, strict=True))) for row in rows)

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

        def work(connection: Connection) -> tuple[tuple[int, AuditRow], ...]:
            rows = connection.execute(
                f"SELECT id, {_AUDIT} FROM audit WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
            )
            names = _AUDIT.split(", ")
            return tuple(
                (number, AuditRow(**dict(zip(names, row, strict=True)))) for number, *row in rows
            )

        return await self._database.read(work)

    async def newest_audited(
        self, query: AuditQuery, *, before: int | None = None, limit: int = 100
    ) -> tuple[tuple[int, AuditRow], ...]:
        """See Ledger."""
        conditions = ["at >= :since"]
        conditions += ["id < :before"] if before is not None else []
        conditions += [f"{name} = :{name}" for name in _ASKED if getattr(query, name)]
        values = {**asdict(query), "before": before, "limit": limit}

        def work(connection: Connection) -> tuple[tuple[int, AuditRow], ...]:
            rows = connection.execute(
                f"SELECT id, {_AUDIT} FROM audit WHERE {' AND '.join(conditions)} "
                "ORDER BY id DESC LIMIT :limit",
                values,
            )
            names = _AUDIT.split(", ")
            return tuple(
                (number, AuditRow(**dict(zip(names, row, strict=True)))) for number, *row in rows
            )

        return await self._database.read(work)


def insert_charges(connection: Connection, charges: Sequence[AttemptCharge]) -> None:
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
