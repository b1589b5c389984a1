"""The ledger: append-only rows, enforced by triggers in the database.

Only the oldest rows of a too large audit trail are removed, while `audit_trims` has a row, which no other transaction
sees.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from controlplane.history.errors import HistoryConflict
from controlplane.history.sql.fence import pass_fence
from controlplane.history.sql.queries import RowType, change_each, select
from controlplane.history.values import AttemptCharge, AuditQuery, AuditRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Database

_CHARGE = RowType(AttemptCharge)
_CHARGED: Final = (
    "session_id",
    "attempt",
    "owner",
    "project",
    "gpu_thousandths",
    "seconds",
    "ended_at",
)
"""Columns in which two rows of one attempt must agree. A control plane of the previous version has no others."""
_ASKED = {
    "actor": "actor = :actor",
    "method": "method = :method",
    "target": "(target = :target OR substr(target, 1, :more_size) = :more)",
}
"""A target may be followed by a space and the place inside it."""
_AUDIT = RowType(AuditRow)
_TEXTS = ("actor", "method", "target", "outcome", "request_id", "token")
_SIZE = " + ".join(f"length({name})" for name in _TEXTS)
_CUT = ", ".join(
    f"substr({name}, 1, {{most}})" if name in _TEXTS else name for name in _AUDIT.names
)

ROW_BYTES: Final = 100
"""Size of a row of the audit trail without its texts."""
LARGEST_ROW: Final = 1 << 10
"""A row is hardly larger: `access/auditing.py` cuts its texts."""
_LONGEST_SHOWN: Final = 2_000
_TRIMMED_AT_ONCE: Final = 10_000


class SqlLedger:
    """Append-only data: charges and the audit trail."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def charge(self, charges: Sequence[AttemptCharge], *, term: int) -> None:
        """Store one row per ended attempt; repeating it is harmless, another value a conflict.

        Leader only; HistoryFenced as in SqlCatalogue.put_session.
        """

        def work(connection: Connection) -> None:
            pass_fence(connection, self._database.dialect, term)
            insert_charges(connection, charges)

        await self._database.write(work, touches={charge.session_id for charge in charges})

    async def charged(
        self, *, owner: str | None = None, project: str | None = None, since: float = 0.0
    ) -> float:
        """GPU-seconds of attempts that ended at `since` or later."""
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
        """Return a page of charges of a project's attempts that ended after `since`, by end time.

        `behind`: the last row of the previous page; None: the first page.
        """
        where = "ended_at > ?"
        values: tuple[float | str, ...] = (since,)
        if behind is not None:
            # The first condition lets the index seek.
            where = "ended_at >= ? AND (ended_at, session_id, attempt) > (?, ?, ?)"
            values = (behind.ended_at, behind.ended_at, behind.session_id, behind.attempt)
        return await select(
            self._database,
            f"SELECT {_CHARGE.columns} FROM charges WHERE project = ? AND {where}"
            " ORDER BY ended_at, session_id, attempt LIMIT ?",
            (project, *values, limit),
            _CHARGE.read,
        )

    async def audit(self, rows: Sequence[AuditRow]) -> None:
        """Append rows; they cannot be changed, and only `trim_audit` removes some."""
        values = [_AUDIT.values(row) for row in rows]
        await change_each(self._database, _AUDIT.insert("audit"), values)

    async def trim_audit(self, *, most_rows: int, most_bytes: int) -> int:
        """Remove the oldest rows of the largest actors until the trail is within its limits; return how many.

        0: no limit. A flood removes rows of its own actor first.
        """
        most_rows, most_bytes = most_rows or 1 << 62, most_bytes or 1 << 62
        first, last = await self._database.read(_audit_span)
        if last - first < min(most_rows, most_bytes // LARGEST_ROW):
            return 0  # without counting
        shares = await self._database.read(_audit_shares)
        removed = 0
        for actor, count in _to_trim(shares, most_rows, most_bytes):
            left = count
            # In steps, so that others write in between.
            while left > 0:
                step = min(left, _TRIMMED_AT_ONCE)
                removed += await self._database.write(partial(_trim, actor, step))
                left -= step
        return removed

    async def newest_audited(
        self, query: AuditQuery, *, before: int | None = None, limit: int = 100
    ) -> tuple[tuple[int, AuditRow], ...]:
        """Return rows matching a query, with their numbers, newest first; only those before `before`.

        Their texts are cut to 2,000 characters.
        """
        conditions = ["at >= :since"]
        conditions += ["id < :before"] if before is not None else []
        conditions += [one for name, one in _ASKED.items() if getattr(query, name)]
        hidden = {f"hidden_{at}": method for at, method in enumerate(query.without)}
        conditions += [f"NOT (outcome = 'OK' AND method = :{name})" for name in hidden]
        more = f"{query.target} "
        values = {
            **asdict(query),
            **hidden,
            "more": more,
            "more_size": len(more),
            "before": before,
            "limit": limit,
        }
        del values["without"]
        return await select(
            self._database,
            f"SELECT id, {_CUT.format(most=_LONGEST_SHOWN)} FROM audit WHERE {' AND '.join(conditions)}"
            " ORDER BY id DESC LIMIT :limit",
            values,
            _numbered,
        )


def _numbered(row: Sequence[Any]) -> tuple[int, AuditRow]:
    return row[0], _AUDIT.read(row[1:])


def _audit_span(connection: Connection) -> tuple[int, int]:
    first, last = connection.execute("SELECT min(id), max(id) FROM audit").fetchone()
    return (0, -1) if first is None else (first, last)


def _audit_shares(connection: Connection) -> dict[str, tuple[int, int]]:
    """Rows and bytes of each actor."""
    found = connection.execute(
        f"SELECT actor, count(*), sum({ROW_BYTES} + {_SIZE}) FROM audit GROUP BY actor"
    )
    return {actor: (int(count), int(size)) for actor, count, size in found}


def _to_trim(
    shares: Mapping[str, tuple[int, int]], most_rows: int, most_bytes: int
) -> list[tuple[str, int]]:
    """The number of rows to remove per actor."""
    rows = {actor: (count, count) for actor, (count, _) in shares.items()}
    of_both = _over(rows, most_rows), _over(shares, most_bytes)
    counts = {actor: max(one.get(actor, 0) for one in of_both) for actor in shares}
    return [(actor, count) for actor, count in counts.items() if count]


def _over(shares: Mapping[str, tuple[int, int]], most: int) -> dict[str, int]:
    """Compute the rows to remove from the largest shares until the total weight is within `most`.

    `shares`: rows and their weight. All trimmed shares are left with equal weight.
    """
    weights = sorted((weight for _, weight in shares.values()), reverse=True)
    excess = sum(weights) - most
    if excess <= 0:
        return {}
    level = 0.0
    for rank in range(1, len(weights) + 1):
        # The weight left to each of the first `rank` if only they are trimmed.
        level = max((sum(weights[:rank]) - excess) / rank, 0.0)
        if rank == len(weights) or level >= weights[rank]:
            break
    return {
        actor: min(math.ceil((weight - level) * count / weight), count)
        for actor, (count, weight) in shares.items()
        if weight > level
    }


def _trim(actor: str, count: int, connection: Connection) -> int:
    connection.execute("INSERT INTO audit_trims (one) VALUES (1)")
    removed = connection.execute(
        "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE actor = ? ORDER BY id LIMIT ?)",
        (actor, count),
    ).rowcount
    connection.execute("DELETE FROM audit_trims")
    return int(removed)


def insert_charges(connection: Connection, charges: Sequence[AttemptCharge]) -> None:
    """Add charges as part of a larger transaction; HistoryConflict for another value."""
    for charge in charges:
        known = connection.execute(
            f"SELECT {', '.join(_CHARGED)} FROM charges WHERE session_id = ? AND attempt = ?",
            (charge.session_id, charge.attempt),
        ).fetchone()
        if known is None:
            connection.execute(_CHARGE.insert("charges"), _CHARGE.values(charge))
        elif known != tuple(getattr(charge, name) for name in _CHARGED):
            raise HistoryConflict(
                f"attempt {charge.attempt} of {charge.session_id} is charged already",
                why=f"with {known[4]} thousandths for {known[5]} s",
            )
