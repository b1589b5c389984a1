"""Media: records of files and the files' outcomes, which may arrive in either order."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from controlplane.history.sql.queries import RowType, change, select
from controlplane.history.values import Media, MediaKey, MediaPage, MediaState, ReplicaKey
from nsml.content.media import MOST_OF_SESSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.values import MediaContent, MediaQuery


class SqlMedia:
    """Media files of sessions; rows are deleted with their session.

    A file's record and its outcome, reported by its node, may arrive in either order: a file is listed
    once its record has arrived.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tell(self, recorded: Sequence[Media]) -> Mapping[str, int]:
        """Store records of files, the first record of each; return how many did not fit, by session.

        At most 100,000 files of a session are kept.
        """

        def work(connection: Connection) -> dict[str, int]:
            left_out: dict[str, int] = {}
            for session_id in sorted({one.session_id for one in recorded}):
                some = [one for one in recorded if one.session_id == session_id]
                room = _room(connection, session_id)
                if len(some) > room:
                    # Stored ones take no room: records are resent after a disconnect.
                    new = [one for one in some if not _is_there(connection, one)]
                    if len(new) > room:
                        left_out[session_id] = len(new) - room
                    some = new[:room]
                connection.executemany(_TELL, [_MEDIA.values(one) for one in some])
            return left_out

        return await self._database.write(work, touches={one.session_id for one in recorded})

    async def settle(
        self, session_id: str, attempt: int, rank: int, contents: Sequence[MediaContent]
    ) -> None:
        """Store the outcomes of a replica's files; DURABLE is final."""
        replica = {"session_id": session_id, "attempt": attempt, "rank": rank}
        rows = [
            {
                **replica,
                **asdict(content),
                "state": MediaState.LOST if content.root is None else MediaState.DURABLE,
            }
            for content in contents
        ]

        def work(connection: Connection) -> None:
            has_room = _room(connection, session_id) >= len(rows)
            connection.executemany(_SETTLE_ANY if has_room else _SETTLE, rows)

        await self._database.write(work, touches={session_id})

    async def list(
        self, query: MediaQuery, *, after: MediaKey | None = None, limit: int = 100
    ) -> MediaPage:
        """Return a page by (time, attempt, rank, file)."""
        dialect = self._database.dialect
        statement = (
            f"SELECT {_MEDIA.columns} FROM media"
            f" WHERE {' AND '.join(_conditions(query, after, dialect))}"
            " ORDER BY time, attempt, rank, file LIMIT :limit"
        )
        parameters: dict[str, Any] = {
            "session_id": query.session_id,
            "kind": query.kind,
            "first_step": query.first_step,
            "last_step": query.last_step,
            **{_glob(n): dialect.glob(glob) for n, glob in enumerate(query.globs)},
            **({} if after is None else after._asdict()),
            "limit": limit + 1,
        }

        def work(connection: Connection) -> MediaPage:
            rows = connection.execute(statement, parameters).fetchall()
            found = tuple(map(_MEDIA.read, rows[:limit]))
            if len(rows) > limit and found:
                return MediaPage(media=found, next=_key(found[-1]))
            is_full = not _room(connection, query.session_id)
            return MediaPage(media=found, next=None, is_full=is_full)

        return await self._database.read(work)

    async def unsettled(self) -> tuple[ReplicaKey, ...]:
        """List the replicas with SAVED media: no node has reported their outcome."""
        return await saved_replicas(self._database, "media")

    async def lose(self, replica: ReplicaKey, why: str) -> int:
        """Mark a replica's SAVED media LOST, until its node reports otherwise; return their number."""
        return await lose_saved(self._database, "media", replica, why)


async def saved_replicas(database: Database, table: str) -> tuple[ReplicaKey, ...]:
    """List the replicas with SAVED rows in a table."""
    return await select(
        database,
        f"SELECT DISTINCT session_id, attempt, rank FROM {table} WHERE state = 'SAVED'"
        " ORDER BY session_id, attempt, rank",
        (),
        ReplicaKey._make,
    )


async def lose_saved(database: Database, table: str, replica: ReplicaKey, why: str) -> int:
    """Mark a replica's SAVED rows LOST; return their number."""
    return await change(
        database,
        f"UPDATE {table} SET state = 'LOST', why_lost = :why WHERE session_id = :session_id"
        " AND attempt = :attempt AND rank = :rank AND state = 'SAVED'",
        {**replica._asdict(), "why": why},
        touches={replica.session_id},
    )


def delete_media(connection: Connection, session_id: str) -> None:
    """Remove the rows of a session; part of a larger transaction."""
    connection.execute("DELETE FROM media WHERE session_id = ?", (session_id,))


def _room(connection: Connection, session_id: str) -> int:
    held = connection.execute(
        "SELECT count(*) FROM media WHERE session_id = ?", (session_id,)
    ).fetchone()[0]
    return max(0, MOST_OF_SESSION - int(held))


def _is_there(connection: Connection, one: Media) -> bool:
    """Whether it has a row, with or without a name."""
    row = connection.execute(
        "SELECT 1 FROM media WHERE session_id = ? AND attempt = ? AND rank = ? AND file = ?",
        (one.session_id, one.attempt, one.rank, one.file),
    ).fetchone()
    return row is not None


def _conditions(query: MediaQuery, after: MediaKey | None, dialect: Dialect) -> Iterator[str]:
    yield "session_id = :session_id AND name <> ''"
    if query.globs:
        fits = (dialect.fits("name", _glob(number)) for number in range(len(query.globs)))
        yield f"({' OR '.join(fits)})"
    if query.kind:
        yield "kind = :kind"
    if query.first_step is not None:
        yield "step >= :first_step"
    if query.last_step is not None:
        yield "step <= :last_step"
    if after is not None:
        yield "(time, attempt, rank, file) > (:time, :attempt, :rank, :file)"


def _glob(number: int) -> str:
    """The parameter of a glob; its suffix must be letters only."""
    return f"glob_{chr(ord('a') + number % 26) * (number // 26 + 1)}"


_MEDIA = RowType(Media, state=MediaState)
_RECORDED = ("name", "kind", "time", "step", "content_type", "caption", "facts")
_TELL = (
    f"{_MEDIA.insert('media')} ON CONFLICT (session_id, attempt, rank, file) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _RECORDED)
    + ", size_bytes = CASE media.state WHEN 'DURABLE' THEN media.size_bytes ELSE excluded.size_bytes END"
    " WHERE media.name = ''"
)
_SETTLE = (
    "UPDATE media SET state = :state, root = :root, why_lost = :why_lost,"
    " size_bytes = CASE :state WHEN 'DURABLE' THEN :size_bytes ELSE size_bytes END"
    " WHERE session_id = :session_id AND attempt = :attempt AND rank = :rank AND file = :file"
    " AND state <> 'DURABLE'"
)
_SETTLE_ANY = (
    "INSERT INTO media (session_id, attempt, rank, file, name, kind, time, content_type, caption,"
    " facts, size_bytes, state, root, why_lost)"
    " VALUES (:session_id, :attempt, :rank, :file, '', '', 0, '', '', '{}', :size_bytes, :state,"
    " :root, :why_lost)"
    " ON CONFLICT (session_id, attempt, rank, file) DO UPDATE SET"
    " state = excluded.state, root = excluded.root, why_lost = excluded.why_lost,"
    " size_bytes = CASE excluded.state WHEN 'DURABLE' THEN excluded.size_bytes ELSE media.size_bytes END"
    " WHERE media.state <> 'DURABLE'"
)


def _key(media: Media) -> MediaKey:
    return MediaKey(media.time, media.attempt, media.rank, media.file)
