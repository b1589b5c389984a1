"""The blobs recently sent by each caller."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.history.sql.queries import change, change_each, page, select
from controlplane.history.sql.user_storage import add_kept, add_project_kept

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.history.sql.interface import Connection, Database

_KEPT_CHARS: Final = 32
"""Kept characters of a digest: 128 bits are collision-resistant enough."""
_AT_ONCE: Final = 10_000


class SqlSent:
    """Blobs recently sent by callers of the content service: these they may refer to.

    A period is a number that grows with time; its length is up to the caller. Backups leave these
    rows out: after a restore blobs are sent again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def remember(
        self,
        caller: str,
        digests: Collection[str],
        *,
        period: int,
        owner: str = "",
        project: str = "",
        size: int = 0,
    ) -> int:
        """Record that a caller has sent blobs; return how many are new in this period. On disk when this returns.

        `size` bytes count as sent by `owner`, and for `project` (`KeptFigures.all`), in the same transaction. Repeating
        it is harmless, except that they are counted twice until the next count.
        """
        # Sorted, so that two writers never deadlock.
        kept, dialect = sorted(map(_kept, digests)), self._database.dialect
        statement = (
            "INSERT INTO sent_blobs (period, caller, digest)"
            f" SELECT :period, :caller, value FROM {dialect.each('digests')} WHERE true"
            " ON CONFLICT DO NOTHING"
        )

        def work(connection: Connection) -> int:
            new = 0
            for start in range(0, len(kept), _AT_ONCE):
                some = dialect.many(kept[start : start + _AT_ONCE])
                new += connection.execute(
                    statement, {"period": period, "caller": caller, "digests": some}
                ).rowcount
            if owner and size:
                add_kept(connection, owner, sent=size)
            if project and size:
                add_project_kept(connection, project, sent=size)
            return new

        return await self._database.write(work)

    async def among(self, caller: str, digests: Collection[str], *, since: int) -> dict[str, int]:
        """Return the digests recorded for the caller in the period `since` or the next one, with the later of both."""
        by_kept, dialect = {_kept(digest): digest for digest in digests}, self._database.dialect
        wanted = sorted(by_kept)
        statement = (
            "SELECT digest, max(period) FROM sent_blobs"
            f" WHERE period IN (:since, :since + 1) AND caller = :caller"
            f" AND {dialect.among('digest', 'digests')} GROUP BY digest"
        )

        def work(connection: Connection) -> dict[str, int]:
            found: dict[str, int] = {}
            for start in range(0, len(wanted), _AT_ONCE):
                some = dialect.many(wanted[start : start + _AT_ONCE])
                rows = connection.execute(
                    statement, {"since": since, "caller": caller, "digests": some}
                )
                found.update((by_kept[kept], period) for kept, period in rows)
            return found

        return await self._database.read(work)

    async def count(self, caller: str, *, period: int) -> int:
        """Count the digests recorded for a caller in a period."""
        [count] = await select(
            self._database,
            "SELECT count(*) FROM sent_blobs WHERE period = ? AND caller = ?",
            (period, caller),
            lambda row: int(row[0]),
        )
        return count

    async def notes(
        self, after: tuple[int, str, str] | None = None
    ) -> tuple[tuple[int, str, str], ...]:
        """Return a page of all records: period, caller and the first 32 digits of the digest; () after the last."""
        key = ("period", "caller", "digest")
        query = page(", ".join(key), "sent_blobs", key, after=after, limit=_AT_ONCE)
        return await select(self._database, *query, tuple)

    async def drop(self, notes: Collection[tuple[int, str, str]]) -> None:
        """Remove records returned by `notes`: the caller would have to send these blobs again."""
        statement = "DELETE FROM sent_blobs WHERE period = ? AND caller = ? AND digest = ?"
        await change_each(self._database, statement, sorted(notes))

    async def forget(self, *, before: int) -> int:
        """Remove the records of periods before this one; return the number of rows."""
        statement = (
            "DELETE FROM sent_blobs WHERE (period, caller, digest) IN"
            " (SELECT period, caller, digest FROM sent_blobs WHERE period < ? LIMIT ?)"
        )
        # In steps, so that others can write in between.
        forgotten = 0
        while step := await change(self._database, statement, (before, _AT_ONCE)):
            forgotten += step
        return forgotten


def _kept(digest: str) -> str:
    return digest[:_KEPT_CHARS]
