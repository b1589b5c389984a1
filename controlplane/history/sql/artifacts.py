"""Artifacts: their records and their outcomes, which may arrive in either order."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.history.sql.media import lose_saved, saved_replicas
from controlplane.history.sql.queries import RowType, page, select
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.values import Artifact, ArtifactKey, ArtifactState, ReplicaKey

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from controlplane.history.sql.interface import Connection, Database

MOST_OF_SESSION: Final = 10_000
"""Most artifact rows of one session, including removed ones."""

_ARTIFACT: Final = RowType(Artifact, state=ArtifactState)
_EXPIRED: Final = "expired"
"""The note of a version removed by its retention."""
_KEY: Final = ("session_id", "attempt", "rank", "folder")
_TELL: Final = f"{_ARTIFACT.insert('artifacts')} ON CONFLICT ({', '.join(_KEY)}) DO NOTHING"
_PUT: Final = _ARTIFACT.upsert("artifacts", _KEY)
_NEWEST: Final = ("saved_at", *_KEY)
"""The order of artifacts of several sessions, descending."""
_LISTED: Final = "session_id = ? AND state NOT IN ('UNCHANGED', 'REMOVED')"
_LOCK: Final = (
    "INSERT INTO artifact_names (session_id, name, numbered) VALUES (?, ?, 0)"
    " ON CONFLICT (session_id, name) DO UPDATE SET numbered = artifact_names.numbered"
)


class SqlArtifacts:
    """Versioned artifacts of sessions; rows are deleted with their session.

    A row stays when its version is removed, or is UNCHANGED: so a record received again
    adds nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tell(self, recorded: Sequence[Artifact]) -> None:
        """Store recorded artifacts, except known ones and those beyond MOST_OF_SESSION of a session."""

        def work(connection: Connection) -> None:
            for one in recorded:
                if _count(connection, one.session_id) < MOST_OF_SESSION:
                    connection.execute(_TELL, _ARTIFACT.values(one))

        await self._database.write(work, touches={one.session_id for one in recorded})

    async def restore(self, artifacts: Sequence[Artifact]) -> None:
        """Store versions of a session being restored, with their numbers and states."""

        def work(connection: Connection) -> None:
            for one in artifacts:
                connection.execute(_PUT, _ARTIFACT.values(one))
                connection.execute(_LOCK, (one.session_id, one.name))
                connection.execute(
                    "UPDATE artifact_names SET numbered = ? WHERE session_id = ? AND name = ? AND numbered < ?",
                    (one.version, one.session_id, one.name, one.version),
                )

        await self._database.write(work, touches={one.session_id for one in artifacts})

    async def settle(self, settled: Artifact, *, is_only: bool = False) -> Artifact | None:
        """Mark one DURABLE, with the next version of its name, or LOST; return its row, None if it is not stored.

        DURABLE, UNCHANGED and REMOVED ones stay unchanged. It is not stored if the session is full, or with `is_only` if
        its attempt has made another one of its name durable.
        """

        def work(connection: Connection) -> Artifact | None:
            if is_only and _has_other(connection, settled):
                return None
            known = _find(connection, settled)
            if known is None and _count(connection, settled.session_id) >= MOST_OF_SESSION:
                return None
            if known is not None and known.state not in {ArtifactState.SAVED, ArtifactState.LOST}:
                return known
            stands = settled
            if settled.state is ArtifactState.DURABLE:
                stands = _numbered(connection, settled)
            if known is not None and stands.step is None:
                stands = replace(stands, step=known.step)
            connection.execute(_PUT, _ARTIFACT.values(stands))
            return stands

        return await self._database.write(work, touches={settled.session_id})

    async def note(self, artifact: Artifact, text: str) -> None:
        """Set an artifact's note, or that of the newest version if it is UNCHANGED; "" clears it."""

        def work(connection: Connection) -> None:
            known = _find(connection, artifact)
            if known is not None and known.state is ArtifactState.UNCHANGED:
                _note_newest(connection, known, text)
            elif known is not None and known.note != text:
                connection.execute(_PUT, _ARTIFACT.values(replace(known, note=text)))

        await self._database.write(work, touches={artifact.session_id})

    async def list(
        self, session_id: str, *, name: str = "", after: ArtifactKey | None = None, limit: int
    ) -> tuple[Artifact, ...]:
        """List artifacts of one session after this key, oldest first; with `name` only its versions."""
        query = page(
            _ARTIFACT.columns,
            "artifacts",
            ArtifactKey._fields,
            after=after,
            limit=limit,
            where=(_LISTED, *(["name = ?"] if name else [])),
            values=(session_id, *([name] if name else [])),
        )
        return await select(self._database, *query, _ARTIFACT.read)

    async def of_owner(
        self,
        owner: str,
        name: str,
        *,
        live: Collection[str],
        after: Artifact | None = None,
        limit: int,
    ) -> tuple[Artifact, ...]:
        """List durable artifacts of this name among a user's sessions, newest first, after this one.

        `live`: the ids of the user's sessions that have not ended; the history knows the others.
        """
        dialect = self._database.dialect
        key = ", ".join(_NEWEST)
        places = ", ".join(f":{column}" for column in _NEWEST)
        behind = "" if after is None else f" AND ({key}) < ({places})"
        text = (
            f"SELECT {_ARTIFACT.columns} FROM artifacts WHERE name = :name AND state = 'DURABLE'"
            f" AND ({dialect.among('session_id', 'live')}"
            f" OR session_id IN (SELECT id FROM sessions WHERE owner = :owner)){behind}"
            f" ORDER BY {', '.join(f'{column} DESC' for column in _NEWEST)} LIMIT :limit"
        )
        values = {
            **({} if after is None else {column: getattr(after, column) for column in _NEWEST}),
            "name": name,
            "owner": owner,
            "live": dialect.many(sorted(live)),
            "limit": limit,
        }
        return await select(self._database, text, values, _ARTIFACT.read)

    async def count_removed(self, session_id: str, name: str) -> int:
        """Count the removed versions of a session; with `name` only its versions."""
        [(count,)] = await select(
            self._database,
            "SELECT count(*) FROM artifacts WHERE session_id = ? AND state = 'REMOVED'"
            + (" AND name = ?" if name else ""),
            (session_id, *([name] if name else [])),
            tuple,
        )
        return int(count)

    async def remove(
        self, session_id: str, owner: str, versions: Collection[tuple[str, int]]
    ) -> tuple[str, int] | None:
        """Remove versions by name and number, all or none; return a missing one, None if all were removed.

        Their content is released, and a recount requested.
        """

        def work(connection: Connection) -> tuple[str, int] | None:
            found = []
            for version in versions:
                row = connection.execute(
                    f"SELECT {_ARTIFACT.columns} FROM artifacts WHERE {_LISTED}"
                    " AND name = ? AND version = ? AND version > 0",
                    (session_id, *version),
                ).fetchone()
                if row is None:
                    return version
                found.append(_ARTIFACT.read(row))
            for one in found:
                gone = replace(one, state=ArtifactState.REMOVED, digest=None)
                connection.execute(_PUT, _ARTIFACT.values(gone))
            release(connection, owner, session_id, [one.digest or "" for one in found])
            add_kept(connection, owner, asked=1)
            return None

        return await self._database.write(work, touches={session_id})

    async def count_expired(self, session_id: str, name: str) -> int:
        """Count the versions of a name removed by their retention."""
        [(count,)] = await select(
            self._database,
            "SELECT count(*) FROM artifacts WHERE session_id = ? AND name = ? AND state = 'REMOVED'"
            " AND note = ?",
            (session_id, name, _EXPIRED),
            tuple,
        )
        return int(count)

    async def expire(self, folder: str, *, before: float, limit: int) -> int:
        """Remove versions of ended sessions saved in this folder before a time (Unix seconds); return their number.

        Their content is released, and a recount requested.
        """

        def work(connection: Connection) -> int:
            columns = ", ".join(f"a.{name}" for name in _ARTIFACT.names)
            rows = connection.execute(
                f"SELECT s.owner, {columns} FROM artifacts a JOIN sessions s ON s.id = a.session_id"
                " WHERE a.folder = ? AND a.state = 'DURABLE' AND a.saved_at < ?"
                " ORDER BY a.saved_at, a.session_id LIMIT ?",
                (folder, before, limit),
            ).fetchall()
            for owner, *row in rows:
                one = _ARTIFACT.read(row)
                gone = replace(one, state=ArtifactState.REMOVED, digest=None, note=_EXPIRED)
                connection.execute(_PUT, _ARTIFACT.values(gone))
                release(connection, owner, one.session_id, [one.digest or ""])
                add_kept(connection, owner, asked=1)
            return len(rows)

        return await self._database.write(work)

    async def unsettled(self) -> tuple[ReplicaKey, ...]:
        """List the replicas with SAVED artifacts: no node has reported their outcome."""
        return await saved_replicas(self._database, "artifacts")

    async def lose(self, replica: ReplicaKey, why: str) -> int:
        """Mark a replica's SAVED artifacts LOST, until its node reports otherwise; return their number."""
        return await lose_saved(self._database, "artifacts", replica, why)


def delete_artifacts(connection: Connection, session_id: str) -> None:
    """Remove the rows of a session; part of a larger transaction."""
    for table in ("artifacts", "artifact_names"):
        connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))


def _numbered(connection: Connection, durable: Artifact) -> Artifact:
    """Return it with the next version of its name, or UNCHANGED if the newest version has the same content."""
    name = (durable.session_id, durable.name)
    connection.execute(_LOCK, name)  # until the transaction ends: numbers are unique
    newest = connection.execute(
        "SELECT state, digest FROM artifacts WHERE session_id = ? AND name = ? AND version > 0"
        " ORDER BY version DESC LIMIT 1",
        name,
    ).fetchone()
    if newest is not None and tuple(newest) == (ArtifactState.DURABLE, durable.digest):
        _note_newest(connection, durable, durable.note)
        return replace(durable, state=ArtifactState.UNCHANGED, digest=None)
    connection.execute(
        "UPDATE artifact_names SET numbered = numbered + 1 WHERE session_id = ? AND name = ?", name
    )
    (number,) = connection.execute(
        "SELECT numbered FROM artifact_names WHERE session_id = ? AND name = ?", name
    ).fetchone()
    return replace(durable, version=int(number))


def _note_newest(connection: Connection, unchanged: Artifact, text: str) -> None:
    """Set the note of the newest version of its name: an UNCHANGED one is not listed."""
    connection.execute(
        "UPDATE artifacts SET note = ? WHERE session_id = ? AND name = ? AND state = 'DURABLE'"
        " AND version = (SELECT max(version) FROM artifacts WHERE session_id = ? AND name = ?)",
        (text, *[unchanged.session_id, unchanged.name] * 2),
    )


def _find(connection: Connection, one: Artifact) -> Artifact | None:
    row = connection.execute(
        f"SELECT {_ARTIFACT.columns} FROM artifacts"
        " WHERE session_id = ? AND attempt = ? AND rank = ? AND folder = ?",
        (one.session_id, one.attempt, one.rank, one.folder),
    ).fetchone()
    return None if row is None else _ARTIFACT.read(row)


def _has_other(connection: Connection, one: Artifact) -> bool:
    """Return whether its attempt has made another artifact of its name durable; no other transaction does so meanwhile."""
    connection.execute(_LOCK, (one.session_id, one.name))
    row = connection.execute(
        "SELECT 1 FROM artifacts WHERE session_id = ? AND attempt = ? AND name = ?"
        " AND NOT (rank = ? AND folder = ?) AND state IN ('DURABLE', 'UNCHANGED', 'REMOVED')",
        (one.session_id, one.attempt, one.name, one.rank, one.folder),
    ).fetchone()
    return row is not None


def _count(connection: Connection, session_id: str) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM artifacts WHERE session_id = ?", (session_id,)
    ).fetchone()
    return int(count)
