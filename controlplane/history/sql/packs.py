"""The index of blobs in the object store: pack, position, and the collector's decisions.

Backups leave these rows out: each pack lists its blobs at its end, and `adopt` restores the rows from it.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from controlplane.history.sql.queries import change, page, select, select_one
from controlplane.history.values import BlobPlace, ListedBlob, ListedPack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from controlplane.history.sql.interface import Connection, Database
    from controlplane.history.values import PackEntry
    from nsml.common.clock import Clock

_AT_ONCE: Final = 10_000
_PACKS_AT_ONCE: Final = 500

_PACK: Final = (
    "INSERT INTO packs (name, stored, put_at) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING"
)
_COLUMNS: Final = "digest, pack, start, stored, size, put_at"
_INSERT: Final = f"INSERT INTO packed_blobs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_IS_DAMAGED: Final = "packed_blobs.is_damaged = 1"
_PUT: Final = f"{_INSERT} ON CONFLICT (digest) DO UPDATE SET " + ", ".join(
    (
        *(
            f"{column} = CASE WHEN {_IS_DAMAGED} THEN excluded.{column} ELSE packed_blobs.{column} END"
            for column in ("pack", "start", "stored", "size")
        ),
        "put_at = excluded.put_at",
        "aside_at = NULL",
        "is_damaged = 0",
    )
)
_ADOPT: Final = f"{_INSERT} ON CONFLICT (digest) DO NOTHING"
_HAS_NONE: Final = "NOT EXISTS (SELECT 1 FROM packed_blobs WHERE packed_blobs.pack = packs.id)"
_ASIDE: Final = "UPDATE packed_blobs SET aside_at = :now"
_MADE_FOR: Final = "packs made for"
_LOSSES: Final = "packed blobs lost"
_COUNT_LOSS: Final = (
    "INSERT INTO properties (name, value) VALUES (?, '1') ON CONFLICT (name) DO UPDATE"
    " SET value = CAST(CAST(properties.value AS bigint) + 1 AS text)"
)


class SqlPacks:
    """The index of the object store's packs; see `controlplane.objects.packed`.

    Times are Unix seconds by the clock of the database, or of this process if it is the only writer.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def now(self) -> float:
        """The current time, by the clock of this index."""
        return await self._database.read(self._now)

    async def missing(self, digests: Collection[str]) -> set[str]:
        """Return the digests that are in no pack, aside, or damaged."""
        among = self._database.dialect.among("digest", "digests")
        statement = (
            f"SELECT digest FROM packed_blobs WHERE {among} AND aside_at IS NULL AND is_damaged = 0"
        )
        return set(digests) - {row[0] for row in await self._many(statement, digests)}

    async def locate(self, digests: Collection[str]) -> dict[str, BlobPlace]:
        """Return the places of the digests in packs, including aside and damaged blobs."""
        dialect = self._database.dialect
        statement = (
            "SELECT digest, name, start, packed_blobs.stored, size FROM packed_blobs"
            f" JOIN packs ON packs.id = pack WHERE {dialect.among('digest', 'digests')}"
        )
        return {row[0]: BlobPlace(*row) for row in await self._many(statement, digests)}

    async def put(self, pack: str, stored: int, entries: Collection[PackEntry]) -> bool:
        """Add a new pack and the places of its blobs; False if none is read from it.

        A known blob keeps its place, unless damaged; it is no longer aside, and its put time is now.
        Repeating it is harmless.
        """
        return await self._database.write(lambda with_: self._put(with_, pack, stored, entries))

    def _put(
        self, connection: Connection, pack: str, stored: int, entries: Collection[PackEntry]
    ) -> bool:
        number, now = self._pack(connection, pack, stored)
        connection.executemany(_PUT, _values(number, now, entries))
        used = connection.execute("SELECT 1 FROM packed_blobs WHERE pack = ? LIMIT 1", (number,))
        if used.fetchone() is not None:
            return True
        connection.execute("DELETE FROM packs WHERE id = ?", (number,))
        return False

    async def adopt(
        self, pack: str, stored: int, entries: Collection[PackEntry], aside: Collection[str] = ()
    ) -> None:
        """Add an existing pack, and its blobs without another place; those in `aside` are aside from now on."""
        dialect = self._database.dialect
        statement = f"{_ASIDE} WHERE pack = :pack AND {dialect.among('digest', 'digests')}"

        def work(connection: Connection) -> None:
            number, now = self._pack(connection, pack, stored)
            connection.executemany(_ADOPT, _values(number, now, entries))
            if aside:
                values = {"now": now, "pack": number, "digests": dialect.many(sorted(aside))}
                connection.execute(statement, values)

        await self._database.write(work)

    def _pack(self, connection: Connection, pack: str, stored: int) -> tuple[int, float]:
        now = self._now(connection)
        connection.execute(_PACK, (pack, stored, now))
        row = connection.execute("SELECT id FROM packs WHERE name = ?", (pack,)).fetchone()
        return int(row[0]), now

    async def damaged(self, place: BlobPlace) -> None:
        """Mark the blob at a place damaged: it is missing until put again."""

        def work(connection: Connection) -> None:
            changed = connection.execute(
                "UPDATE packed_blobs SET is_damaged = 1 WHERE digest = ? AND start = ?"
                " AND is_damaged = 0 AND pack = (SELECT id FROM packs WHERE name = ?)",
                (place.digest, place.start, place.pack),
            )
            if changed.rowcount:
                connection.execute(_COUNT_LOSS, (_LOSSES,))

        await self._database.write(work)

    async def losses(self) -> str:
        """A text that changes when blobs are found damaged or gone."""
        return await self._property(_LOSSES)

    async def put_aside(self, digests: Collection[str], may: Callable[[], bool]) -> set[str]:
        """Put blobs aside; return the changed ones. Changes nothing while `may` returns False."""
        return await self._change(_ASIDE, "aside_at IS NULL", digests, may)

    async def take_back(self, digests: Collection[str]) -> set[str]:
        """Take back blobs that are aside; return the changed ones."""
        statement = "UPDATE packed_blobs SET aside_at = NULL"
        return await self._change(statement, "aside_at IS NOT NULL", digests, lambda: True)

    async def delete(self, digests: Collection[str]) -> set[str]:
        """Remove blobs that are aside; return them."""
        statement = "DELETE FROM packed_blobs"
        return await self._change(statement, "aside_at IS NOT NULL", digests, lambda: True)

    async def blobs(self, after: str, *, is_aside: bool) -> list[ListedBlob]:
        """Return a page of blobs after a digest, in order; [] after the last."""
        time, null = ("aside_at", "NOT NULL") if is_aside else ("put_at", "NULL")
        query = page(
            f"digest, stored, {time}",
            "packed_blobs",
            ("digest",),
            after=(after,),
            limit=_AT_ONCE,
            where=(f"aside_at IS {null}",),
        )
        return list(await select(self._database, *query, lambda row: ListedBlob(*row)))

    async def packs(self, after: int = 0) -> list[ListedPack]:
        """Return a page of packs after a number; [] after the last."""
        query = (
            "SELECT packs.id, name, packs.stored, packs.put_at, coalesce(sum(packed_blobs.stored), 0),"
            " count(digest) FROM (SELECT * FROM packs WHERE id > ? ORDER BY id LIMIT ?) AS packs"
            " LEFT JOIN packed_blobs ON pack = packs.id"
            " GROUP BY packs.id, name, packs.stored, packs.put_at ORDER BY packs.id"
        )
        values = (after, _PACKS_AT_ONCE)
        return list(await select(self._database, query, values, lambda row: ListedPack(*row)))

    async def entries(self, pack: str) -> list[BlobPlace]:
        """List the blobs read from a pack, by position."""
        query = (
            "SELECT digest, name, start, packed_blobs.stored, size FROM packed_blobs"
            " JOIN packs ON packs.id = pack WHERE name = ? ORDER BY start"
        )
        return list(await select(self._database, query, (pack,), lambda row: BlobPlace(*row)))

    async def pack(self, name: str) -> tuple[int, list[BlobPlace]]:
        """Return the size of a pack in bytes (0: unknown), and the blobs read from it."""
        query = "SELECT stored FROM packs WHERE name = ?"
        size = await select_one(self._database, query, (name,), lambda row: int(row[0]))
        return size or 0, await self.entries(name)

    async def move(
        self, pack: str, stored: int, moved: Sequence[tuple[BlobPlace, PackEntry]]
    ) -> None:
        """Add a pack of copies: blobs still at the place they were copied from are now read from the copy."""

        def work(connection: Connection) -> None:
            number, _ = self._pack(connection, pack, stored)
            connection.executemany(
                "UPDATE packed_blobs SET pack = ?, start = ?, stored = ? WHERE digest = ?"
                " AND start = ? AND pack = (SELECT id FROM packs WHERE name = ?)",
                [
                    (number, new.start, new.stored, old.digest, old.start, old.pack)
                    for old, new in sorted(moved)
                ],
            )

        await self._database.write(work)

    async def emptied(self, *, before_s: float) -> list[str]:
        """List packs that have been empty for `before_s` seconds; newly empty ones are marked."""

        def work(connection: Connection) -> list[str]:
            now = self._now(connection)
            connection.execute(
                f"UPDATE packs SET emptied_at = ? WHERE emptied_at IS NULL AND {_HAS_NONE}", (now,)
            )
            rows = connection.execute(
                f"SELECT name FROM packs WHERE emptied_at <= ? AND {_HAS_NONE}", (now - before_s,)
            )
            return [row[0] for row in rows]

        return await self._database.write(work)

    async def forget(self, packs: Collection[str]) -> int:
        """Remove packs missing from the store, with their blobs; return the number of blobs."""

        def work(connection: Connection) -> int:
            lost = 0
            for name in sorted(packs):
                lost += connection.execute(
                    "DELETE FROM packed_blobs WHERE pack IN (SELECT id FROM packs WHERE name = ?)",
                    (name,),
                ).rowcount
                connection.execute("DELETE FROM packs WHERE name = ?", (name,))
            if lost:
                connection.execute(_COUNT_LOSS, (_LOSSES,))
            return lost

        return await self._database.write(work)

    async def made_for(self) -> str:
        """Return the mark set by `is_made_for`; "" if unset."""
        return await self._property(_MADE_FOR)

    async def is_made_for(self, mark: str) -> None:
        """Record that all packs of the objects with this mark are in the index."""
        await change(
            self._database,
            "INSERT INTO properties (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (_MADE_FOR, mark),
        )

    def _now(self, connection: Connection) -> float:
        query = self._database.dialect.now
        return float(connection.execute(query).fetchone()[0]) if query else self._clock.time()

    async def _property(self, name: str) -> str:
        query = "SELECT value FROM properties WHERE name = ?"
        return await select_one(self._database, query, (name,), lambda row: str(row[0])) or ""

    async def _many(self, statement: str, digests: Collection[str]) -> list[Any]:
        """Run a query with a list of digests."""

        def work(connection: Connection) -> list[Any]:
            rows = (
                connection.execute(statement, {"digests": some}) for some in self._some(digests)
            )
            return [row for found in rows for row in found]

        return await self._database.read(work)

    async def _change(
        self, statement: str, condition: str, digests: Collection[str], may: Callable[[], bool]
    ) -> set[str]:
        among = self._database.dialect.among("digest", "digests")
        query = (
            f"SELECT digest FROM packed_blobs WHERE {among} AND {condition} ORDER BY digest"
            f"{self._database.dialect.for_update}"
        )

        def work(connection: Connection) -> set[str]:
            changed: set[str] = set()
            now = self._now(connection)
            for some in self._some(digests):
                found = [row[0] for row in connection.execute(query, {"digests": some})]
                if not found or not may():
                    continue
                values = {"now": now, "digests": self._database.dialect.many(found)}
                connection.execute(f"{statement} WHERE {among}", values)
                changed.update(found)
            return changed

        return await self._database.write(work)

    def _some(self, digests: Collection[str]) -> Iterator[Any]:
        wanted = sorted(set(digests))
        for start in range(0, len(wanted), _AT_ONCE):
            yield self._database.dialect.many(wanted[start : start + _AT_ONCE])


def _values(number: int, now: float, entries: Iterable[PackEntry]) -> list[tuple[Any, ...]]:
    """Sorted, so that two writers never deadlock."""
    return [(one.digest, number, one.start, one.stored, one.size, now) for one in sorted(entries)]
