"""Metadata of checkpoints not reported by their sessions: tags, uses by sessions, retirement."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.history.sql.queries import RowType, change, select
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.values import (
    SAME_SAVE_S,
    Checkpoint,
    CheckpointState,
    CheckpointUse,
    Retired,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from controlplane.history.sql.interface import Connection, Database

_CHECKPOINT: Final = RowType(Checkpoint, state=CheckpointState)
_DURABLE: Final = (
    f"SELECT {_CHECKPOINT.columns} FROM checkpoints WHERE session_id = ? AND state = 'DURABLE'"
)
_USE: Final = (
    "INSERT INTO checkpoint_uses (session_id, name, used_by, used_at)"
    " SELECT session_id, name, :used_by, :used_at FROM checkpoints"
    " WHERE session_id = :session_id AND name = :name"
    " ON CONFLICT (session_id, name, used_by) DO UPDATE SET used_at = excluded.used_at"
)
_TAG: Final = (
    "INSERT INTO checkpoint_tags (session_id, tag, name) VALUES (?, ?, ?)"
    " ON CONFLICT (session_id, tag) DO UPDATE SET name = excluded.name"
)
_RETIRE: Final = (
    "INSERT INTO retired_checkpoints"
    " (session_id, name, attempt, saved_at, times, size_bytes, retired_at)"
    " VALUES (?, ?, ?, ?, 1, ?, ?) ON CONFLICT (session_id, name) DO UPDATE SET"
    " attempt = excluded.attempt, saved_at = excluded.saved_at, retired_at = excluded.retired_at,"
    " times = retired_checkpoints.times + 1,"
    " size_bytes = retired_checkpoints.size_bytes + excluded.size_bytes"
)


class Marks(NamedTuple):
    """Reasons to keep checkpoints of a session: `tags` to names, and uses."""

    tags: Mapping[str, str]
    uses: tuple[CheckpointUse, ...]


Choice: TypeAlias = "Callable[[Iterable[Checkpoint], Marks], Collection[str]]"


class SqlCheckpointMarks:
    """Tables separate from the rows of checkpoints, which nodes write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, session_id: str) -> Marks:
        """Tags and uses of the checkpoints of a session."""
        return await self._database.read(lambda connection: _marks(connection, session_id))

    async def note_use(self, session_id: str, use: CheckpointUse) -> bool:
        """Record that a session loads a checkpoint; False if there is no such checkpoint."""
        row = {"session_id": session_id, **use._asdict()}
        return await change(self._database, _USE, row, touches={session_id}) > 0

    async def tag(self, session_id: str, tag: str, name: str, *, most: int) -> bool:
        """Tag a checkpoint; the tag moves from any other one of the session.

        False: no such checkpoint, or its session would have more than `most` tags.
        """

        def work(connection: Connection) -> bool:
            there = connection.execute(
                "SELECT 1 FROM checkpoints WHERE session_id = ? AND name = ?", (session_id, name)
            ).fetchone()
            (others,) = connection.execute(
                "SELECT count(*) FROM checkpoint_tags WHERE session_id = ? AND tag <> ?",
                (session_id, tag),
            ).fetchone()
            if there is None or others >= most:
                return False
            connection.execute(_TAG, (session_id, tag, name))
            return True

        return await self._database.write(work, touches={session_id})

    async def untag(self, session_id: str, tag: str) -> None:
        """Remove a tag."""
        await change(
            self._database,
            "DELETE FROM checkpoint_tags WHERE session_id = ? AND tag = ?",
            (session_id, tag),
            touches={session_id},
        )

    async def tagged(self, session_id: str, tag: str) -> str | None:
        """Return the name of the checkpoint with this tag."""
        found = await select(
            self._database,
            "SELECT name FROM checkpoint_tags WHERE session_id = ? AND tag = ?",
            (session_id, tag),
            lambda row: str(row[0]),
        )
        return found[0] if found else None

    async def retired(self, session_id: str) -> Retired:
        """Count the retired checkpoints of a session."""
        [found] = await select(
            self._database,
            "SELECT coalesce(sum(times), 0), coalesce(sum(size_bytes), 0) FROM retired_checkpoints"
            " WHERE session_id = ?",
            (session_id,),
            lambda row: Retired(int(row[0]), int(row[1])),
        )
        return found

    async def retire(
        self, session_id: str, owner: str, choose: Choice, *, now: float
    ) -> tuple[Checkpoint, ...]:
        """Remove the durable checkpoints chosen by `choose`, and record it; return the removed ones.

        `choose` runs in the transaction that removes them, so its input cannot have changed. Their content
        is released, and a recount requested.
        """

        def look(connection: Connection) -> Collection[str]:
            rows = connection.execute(_DURABLE, (session_id,))
            return choose(map(_CHECKPOINT.read, rows), _marks(connection, session_id))

        def work(connection: Connection) -> tuple[Checkpoint, ...]:
            chosen = set(look(connection))
            rows = connection.execute(_DURABLE, (session_id,)).fetchall()
            gone = tuple(one for one in map(_CHECKPOINT.read, rows) if one.name in chosen)
            for one in gone:
                attempt, saved_at = one.content_of
                connection.execute(
                    _RETIRE, (session_id, one.name, attempt, saved_at, one.size_bytes, now)
                )
                connection.execute(
                    "DELETE FROM checkpoints WHERE session_id = ? AND name = ?",
                    (session_id, one.name),
                )
                delete_marks_of(connection, session_id, one.name)
            if gone:
                release(connection, owner, session_id, [one.digest or "" for one in gone])
                add_kept(connection, owner, asked=1)
            return gone

        # Mostly nothing is chosen: a read saves the write transaction.
        if not await self._database.read(look):
            return ()
        return await self._database.write(work, touches={session_id})


def is_retired(connection: Connection, checkpoint: Checkpoint) -> bool:
    """Whether this save, or a later one of its name, was retired; part of a larger transaction."""
    row = connection.execute(
        "SELECT attempt, saved_at FROM retired_checkpoints WHERE session_id = ? AND name = ?",
        (checkpoint.session_id, checkpoint.name),
    ).fetchone()
    return row is not None and (checkpoint.attempt, checkpoint.saved_at - SAME_SAVE_S) <= tuple(row)


def delete_marks_of(connection: Connection, session_id: str, name: str) -> None:
    """Delete tags and uses of a checkpoint; part of a larger transaction."""
    for table in ("checkpoint_tags", "checkpoint_uses"):
        connection.execute(
            f"DELETE FROM {table} WHERE session_id = ? AND name = ?", (session_id, name)
        )


def delete_marks(connection: Connection, session_id: str) -> None:
    """Delete the marks of a session's checkpoints, and its uses of others; part of a larger transaction."""
    for table in ("checkpoint_tags", "checkpoint_uses", "retired_checkpoints"):
        connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
    connection.execute("DELETE FROM checkpoint_uses WHERE used_by = ?", (session_id,))


def _marks(connection: Connection, session_id: str) -> Marks:
    tags = connection.execute(
        "SELECT tag, name FROM checkpoint_tags WHERE session_id = ? ORDER BY tag", (session_id,)
    )
    found: dict[str, str] = dict(tags)
    uses = connection.execute(
        "SELECT name, used_by, used_at FROM checkpoint_uses WHERE session_id = ?"
        " ORDER BY used_at, used_by",
        (session_id,),
    )
    return Marks(found, tuple(CheckpointUse(*row) for row in uses))
