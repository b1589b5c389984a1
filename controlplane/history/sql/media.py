"""Media: what records tell of files, and what becomes of the files, in whichever order it is heard."""

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
    """What sessions showed, file by file; rows go with their session.

    A record tells of a file, and its node says what became of it, in either order: a file is listed
    once its record has come.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tell(self, told: Sequence[Media]) -> Mapping[str, int]:
        """Store what records tell, the first word on each file; by session for how many there was no room.

        At most 100,000 files of a session are kept.
        """

        def work(connection: Connection) -> dict[str, int]:
            left_out: dict[str, int] = {}
            for session_id in sorted({one.session_id for one in told}):
                some = [one for one in told if one.session_id == session_id]
                room = _room(connection, session_id)
                if len(some) > room:
                    # Those that are there take no room: records come again after a break.
                    new = [one for one in some if not _is_there(connection, one)]
                    if len(new) > room:
                        left_out[session_id] = len(new) - room
                    some = new[:room]
                connection.executemany(_TELL, [_MEDIA.values(one) for one in some])
            return left_out

        return await self._database.write(work, touches={one.session_id for one in told})

    async def settle(
        self, session_id: str, attempt: int, rank: int, contents: Sequence[MediaContent]
    ) -> None:
        """Store what became of a replica's files; one that is DURABLE stays as it is."""
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
        """A page by (time, attempt, rank, file)."""
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
        """The replicas of which media are SAVED: nobody has said what became of them."""
        return await saved_replicas(self._database, "media")

    async def lose(self, replica: ReplicaKey, why: str) -> int:
        """What is SAVED of a replica is LOST, unless its node says otherwise later; how many that are."""
        return await lose_saved(self._database, "media", replica, why)


async def saved_replicas(database: Database, table: str) -> tuple[ReplicaKey, ...]:
    """Whose rows of a table are of what is on its node only."""
    return await select(
        database,
        f"SELECT DISTINCT session_id, attempt, rank FROM {table} WHERE state = 'SAVED'"
        " ORDER BY session_id, attempt, rank",
        (),
        ReplicaKey._make,
    )


async def lose_saved(database: Database, table: str, replica: ReplicaKey, why: str) -> int:
    """Note that what is on its node only will not come; of how many rows."""
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


def _is_there(connection: Connection, told: Media) -> bool:
    """Whether it has a row already, with a name or without."""
    row = connection.execute(
        "SELECT 1 FROM media WHERE session_id = ? AND attempt = ? AND rank = ? AND file = ?",
        (told.session_id, told.attempt, told.rank, told.file),
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
    """The parameter of one glob; names of parameters have letters only."""
    return f"glob_{chr(ord('a') + number % 26) * (number // 26 + 1)}"


_MEDIA = RowType(Media, state=MediaState)
_TOLD = ("name", "kind", "time", "step", "content_type", "caption", "facts")
_TELL = (
    f"{_MEDIA.insert('media')} ON CONFLICT (session_id, attempt, rank, file) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _TOLD)
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
