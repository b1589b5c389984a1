"""The catalogue: ended sessions, datasets, checkpoints."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from controlplane.domain.policy import SEE
from controlplane.domain.values import Visibility
from controlplane.history.sql.appending import delete_streams
from controlplane.history.sql.artifacts import delete_artifacts
from controlplane.history.sql.checkpoint_marks import delete_marks, delete_marks_of, is_retired
from controlplane.history.sql.datasets import SqlDatasets, forget_uses, note_uses
from controlplane.history.sql.environment_locks import delete_lock
from controlplane.history.sql.fence import pass_fence
from controlplane.history.sql.ledger import insert_charges
from controlplane.history.sql.media import delete_media, lose_saved, saved_replicas
from controlplane.history.sql.object_references import owners_of, referred, roots_of_session
from controlplane.history.sql.queries import RowType, change, page, select, select_one
from controlplane.history.sql.reported_config import delete_config
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.sql.visible import may_condition, viewer_parameters
from controlplane.history.values import (
    Checkpoint,
    CheckpointCount,
    CheckpointState,
    OwnedBy,
    PageKey,
    ReplicaKey,
    SessionPage,
    SessionQuery,
    SessionRecord,
    later_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Dialect
    from controlplane.history.values import AttemptCharge, DatasetUse, Referred


class SqlCatalogue(SqlDatasets):
    """Ended sessions and their checkpoints; datasets by inheritance."""

    async def put_session(
        self,
        session: SessionRecord,
        charges: Sequence[AttemptCharge] = (),
        uses: Collection[DatasetUse] = (),
        *,
        term: int,
    ) -> None:
        """Store or replace an ended session by id, with its attempts' charges and the datasets it used.

        Leader only; HistoryFenced if a leader of a later term than `term` has written.
        HistoryConflict: another session has its name or (owner, request id), or an attempt already has
        another charge.
        """
        row = _session_row(session)

        def work(connection: Connection) -> None:
            pass_fence(connection, self._database.dialect, term)
            connection.execute(_PUT_SESSION, row)
            insert_charges(connection, charges)
            note_uses(connection, session.id, uses, session.ended_at)

        await self._database.write(work, touches={session.id})

    async def replace_session(self, session: SessionRecord, *, known: bytes) -> bool:
        """Replace a session if its `record` still is `known`; False if it changed or is gone."""
        row = {**_session_row(session), "known": known}
        return await change(self._database, _REPLACE_SESSION, row, touches={session.id}) > 0

    async def session(self, session_id: str) -> SessionRecord | None:
        """By id."""
        return await self._one_session("id = ?", session_id)

    async def sessions_among(self, session_ids: Collection[str]) -> tuple[SessionRecord, ...]:
        """List those of some ids that are of sessions."""
        dialect = self._database.dialect
        return await select(
            self._database,
            f"SELECT {_SESSION.columns} FROM sessions WHERE {dialect.among('id', 'ids')}",
            {"ids": dialect.many(sorted(session_ids))},
            _SESSION.read,
        )

    async def session_by_name(self, name: str) -> SessionRecord | None:
        """By USER/DATASET/N."""
        return await self._one_session("name = ?", name)

    async def session_by_request(self, owner: str, request_id: str) -> SessionRecord | None:
        """By the request that created it."""
        return await self._one_session("owner = ? AND request_id = ?", owner, request_id)

    async def sessions(
        self, query: SessionQuery, *, after: PageKey | None = None, limit: int = 100
    ) -> SessionPage:
        """Return a page of sessions visible to the viewer, newest first by (created_at, id)."""
        dialect = self._database.dialect
        conditions = " AND ".join(_session_conditions(query, after, dialect))
        statement = (
            f"SELECT {_SESSION.columns} FROM sessions WHERE {conditions}"
            " ORDER BY created_at DESC, id DESC LIMIT :limit"
        )
        parameters = {
            **viewer_parameters(query.viewer),
            "owners": dialect.many(query.owners),
            "states": dialect.many(query.states),
            "dataset": query.dataset,
            "project": query.project,
            "glob": dialect.glob(query.name_glob),
            "text": query.text,
            **({} if after is None else after._asdict()),
            "limit": limit + 1,
        }

        rows = await select(self._database, statement, parameters, _SESSION.read)
        found = rows[:limit]
        more = len(rows) > limit and found
        return SessionPage(
            sessions=found,
            next=PageKey(found[-1].created_at, found[-1].id) if more else None,
        )

    async def delete_session(self, session_id: str, *, roots: Collection[str] = ()) -> bool:
        """Remove a session with its streams, summary, checkpoints, media, artifacts and reported configuration; False if there is none.

        Charges and audit rows stay. Its manifests and `roots` are released, and a recount is requested.
        """

        def work(connection: Connection) -> bool:
            owner = owners_of(connection, [session_id]).get(session_id)
            if owner is not None:
                left = {*roots, *roots_of_session(connection, session_id)}
                release(connection, owner, session_id, left)
                add_kept(connection, owner, asked=1)
            gone = connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,)).rowcount
            connection.execute("DELETE FROM checkpoints WHERE session_id = ?", (session_id,))
            forget_uses(connection, session_id)
            delete_marks(connection, session_id)
            delete_lock(connection, session_id)
            delete_media(connection, session_id)
            delete_artifacts(connection, session_id)
            delete_config(connection, session_id)
            delete_streams(connection, session_id)
            return gone > 0

        return await self._database.write(work, touches={session_id})

    async def owned_by(self, owner: str) -> OwnedBy:
        """Count an owner's ended sessions, datasets, and removed datasets that can be restored."""
        [counts] = await select(
            self._database,
            "SELECT (SELECT count(*) FROM sessions WHERE owner = :owner),"
            f" {_DATASETS_OWNED} AND removed_at = 0),"
            f" {_DATASETS_OWNED} AND NOT EXISTS (SELECT 1 FROM dataset_versions t WHERE t.owner = v.owner"
            " AND t.name = v.name AND t.removed_at = 0))",
            {"owner": owner},
            OwnedBy._make,
        )
        return counts

    async def referred(self, after: tuple[int | str, ...] = ()) -> Referred:
        """Return a page of references to objects; complete for all rows that exist from the first page to the last.

        `after`: `next` of the previous page; a page may be empty and have a next one.
        """
        return await self._database.read(partial(referred, after))

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint; of two with one name the later one wins, see `values.later_of`.

        One becoming durable keeps the facts recorded when it was saved. Repeated reports do not bring back
        a retired one.
        """

        def work(connection: Connection) -> None:
            if is_retired(connection, checkpoint):
                return
            known = _find_checkpoint(connection, checkpoint.session_id, checkpoint.name)
            stands = checkpoint if known is None else later_of(known, checkpoint)
            if stands != known:
                connection.execute(_PUT_CHECKPOINT, _CHECKPOINT.values(stands))
                if known is not None and known.digest not in {None, "", stands.digest}:
                    release(connection, "", checkpoint.session_id, [known.digest or ""])

        await self._database.write(work, touches={checkpoint.session_id})

    async def checkpoints(
        self, session_id: str, *, after: tuple[float, str] | None = None, limit: int | None = None
    ) -> tuple[Checkpoint, ...]:
        """List a session's checkpoints after this time and name, oldest first."""
        query = page(
            _CHECKPOINT.columns,
            "checkpoints",
            ("saved_at", "name"),
            after=after,
            limit=limit,
            where=("session_id = ?",),
            values=(session_id,),
        )
        return await select(self._database, *query, _CHECKPOINT.read)

    async def checkpoints_of(self, digest: str) -> tuple[Checkpoint, ...]:
        """List the checkpoints of any session with this content, newest first; at most 100."""
        return await select(
            self._database,
            f"SELECT {_CHECKPOINT.columns} FROM checkpoints WHERE digest = ?"
            " ORDER BY saved_at DESC, session_id, name LIMIT 100",
            (digest,),
            _CHECKPOINT.read,
        )

    async def newest_durable(self, session_id: str) -> Checkpoint | None:
        """Return the newest checkpoint with content, of the latest attempt with one."""
        return await select_one(
            self._database,
            f"SELECT {_CHECKPOINT.columns} FROM checkpoints WHERE session_id = ? AND digest <> ''"
            " ORDER BY CASE WHEN content_attempt > 0 THEN content_attempt ELSE attempt END DESC,"
            " CASE WHEN content_saved_at > 0 THEN content_saved_at ELSE saved_at END DESC,"
            " name DESC LIMIT 1",
            (session_id,),
            _CHECKPOINT.read,
        )

    async def newest_names(self, session_id: str, limit: int) -> tuple[str, ...]:
        """Return the names of the newest checkpoints, oldest first."""
        names = await select(
            self._database,
            "SELECT name FROM checkpoints WHERE session_id = ?"
            " ORDER BY saved_at DESC, name DESC LIMIT ?",
            (session_id, limit),
            itemgetter(0),
        )
        return names[::-1]

    async def checkpoints_among(self, session_id: str, names: Collection[str]) -> set[str]:
        """Return the names for which a session has checkpoints."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            "SELECT name FROM checkpoints WHERE session_id = :session_id"
            f" AND {dialect.among('name', 'names')}",
            {"session_id": session_id, "names": dialect.many(names)},
            itemgetter(0),
        )
        return set(found)

    async def checkpoint(self, session_id: str, name: str) -> Checkpoint | None:
        """By name."""
        return await self._database.read(
            lambda connection: _find_checkpoint(connection, session_id, name)
        )

    async def checkpoint_counts(
        self, session_ids: Collection[str]
    ) -> Mapping[str, CheckpointCount]:
        """Count the checkpoints of each session with any, with the save time of the newest."""
        dialect = self._database.dialect
        counts = await select(
            self._database,
            "SELECT session_id, count(CASE WHEN state <> 'LOST' THEN 1 END),"
            " count(CASE WHEN state = 'LOST' THEN 1 END),"
            " coalesce(max(CASE WHEN state <> 'LOST' THEN saved_at END), 0) FROM checkpoints"
            f" WHERE {dialect.among('session_id', 'ids')} GROUP BY session_id",
            {"ids": dialect.many(sorted(session_ids))},
            lambda row: (row[0], CheckpointCount(*row[1:])),
        )
        return dict(counts)

    async def unsettled_checkpoints(self) -> tuple[ReplicaKey, ...]:
        """List the replicas with SAVED checkpoints: no node has reported their outcome."""
        return await saved_replicas(self._database, "checkpoints")

    async def lose_checkpoints(self, replica: ReplicaKey, why: str) -> int:
        """Mark a replica's SAVED checkpoints LOST, until its node reports otherwise; return their number."""
        return await lose_saved(self._database, "checkpoints", replica, why)

    async def delete_checkpoint(self, session_id: str, name: str, *, owner: str = "") -> bool:
        """Remove its row; False if there is none. With `owner` its content is released, and a recount requested."""

        def work(connection: Connection) -> bool:
            known = _find_checkpoint(connection, session_id, name)
            if known is None:
                return False
            connection.execute(
                "DELETE FROM checkpoints WHERE session_id = ? AND name = ?", (session_id, name)
            )
            delete_marks_of(connection, session_id, name)
            if owner:
                release(connection, owner, session_id, [known.digest or ""])
                add_kept(connection, owner, asked=1)
            return True

        return await self._database.write(work, touches={session_id})

    async def _one_session(self, condition: str, *values: str) -> SessionRecord | None:
        statement = f"SELECT {_SESSION.columns} FROM sessions WHERE {condition}"
        return await select_one(self._database, statement, values, _SESSION.read)


def _session_conditions(
    query: SessionQuery, after: PageKey | None, dialect: Dialect
) -> Iterator[str]:
    yield may_condition("sessions", query.viewer, SEE)
    if query.owners:
        yield dialect.among("owner", "owners")
    if query.states:
        yield dialect.among("state", "states")
    if query.dataset:
        yield "dataset = :dataset"
    if query.project:
        yield "(project = :project OR (project = '' AND owner = :project))"
    if query.name_glob:
        yield dialect.fits("name", "glob")
    if query.text:
        yield dialect.holds("searched", "text")
    if after is not None:
        yield "(created_at, id) < (:created_at, :id)"


_CHECKPOINT = RowType(Checkpoint, state=CheckpointState)
_SESSION = RowType(SessionRecord, visibility=Visibility, request_id=lambda kept: kept or "")
_DATASETS_OWNED = "(SELECT count(DISTINCT v.name) FROM dataset_versions v WHERE v.owner = :owner"
_PUT_SESSION = _SESSION.upsert("sessions", ["id"])
_REPLACE_SESSION = (
    "UPDATE sessions SET "
    + ", ".join(f"{name} = :{name}" for name in _SESSION.names if name != "id")
    + " WHERE id = :id AND record = :known"
)
_PUT_CHECKPOINT = _CHECKPOINT.upsert("checkpoints", ["session_id", "name"])


def _session_row(session: SessionRecord) -> dict[str, Any]:
    return {**_SESSION.values(session), "request_id": session.request_id or None}


def _find_checkpoint(connection: Connection, session_id: str, name: str) -> Checkpoint | None:
    row = connection.execute(
        f"SELECT {_CHECKPOINT.columns} FROM checkpoints WHERE session_id = ? AND name = ?",
        (session_id, name),
    ).fetchone()
    return None if row is None else _CHECKPOINT.read(row)
