"""Lineage of dataset versions made from sessions' output folders. Only the control plane writes it, with the version."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.policy import SEE
from controlplane.history.sql.queries import select
from controlplane.history.sql.visible import may_condition, viewer_parameters
from controlplane.history.values import DatasetLineage, DatasetUse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from controlplane.domain.identity import User
    from controlplane.history.sql.interface import Connection, Database
    from controlplane.history.values import DatasetVersion

_COLUMNS: Final = "session_id, session, attempt, code, environment_lock, command, datasets"
_PUT: Final = (
    f"INSERT INTO dataset_lineage (owner, name, number, {_COLUMNS})"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_IS_THERE: Final = (
    "EXISTS (SELECT 1 FROM dataset_versions v WHERE v.owner = d.owner AND v.name = d.name"
    " AND v.removed_at = 0)"
)


class SqlDatasetLineage:
    """The catalogue's lineage of versions, by version and by session."""

    _database: Database

    async def made_by(self, session_id: str) -> tuple[tuple[DatasetUse, int], ...]:
        """List the versions made by a session, including removed ones, with the attempt, by owner, name and number."""
        return await select(
            self._database,
            "SELECT owner, name, number, attempt FROM dataset_lineage WHERE session_id = ?"
            " ORDER BY owner, name, number",
            (session_id,),
            lambda row: (DatasetUse(*row[:3]), int(row[3])),
        )

    async def seen_made_by(self, session_id: str, viewer: User) -> tuple[DatasetUse, ...]:
        """List the versions made by a session, without removed ones, of datasets visible to the viewer."""
        return await select(
            self._database,
            "SELECT l.owner, l.name, l.number FROM dataset_lineage l"
            " JOIN dataset_versions v ON v.owner = l.owner AND v.name = l.name AND v.number = l.number"
            " JOIN datasets d ON d.owner = l.owner AND d.name = l.name"
            f" WHERE l.session_id = :session_id AND v.removed_at = 0 AND {may_condition('d', viewer, SEE)}"
            " ORDER BY l.owner, l.name, l.number",
            {**viewer_parameters(viewer), "session_id": session_id},
            lambda row: DatasetUse(*row),
        )

    async def seen_sessions(self, ids: Collection[str], viewer: User) -> set[str]:
        """Return the ended sessions visible to the viewer."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            f"SELECT s.id FROM sessions s WHERE {dialect.among('s.id', 'ids')}"
            f" AND {may_condition('s', viewer, SEE)}",
            {**viewer_parameters(viewer), "ids": dialect.many(ids)},
            lambda row: str(row[0]),
        )
        return set(found)

    async def seen_datasets(
        self, names: Collection[tuple[str, str]], viewer: User
    ) -> set[tuple[str, str]]:
        """Return the datasets, by owner and name, visible to the viewer; removed ones only if the viewer's own."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            f"SELECT d.owner, d.name FROM datasets d WHERE {dialect.among('d.owner', 'owners')}"
            f" AND {dialect.among('d.name', 'names')} AND {may_condition('d', viewer, SEE)}"
            f" AND (d.owner = :viewer OR {_IS_THERE})",
            {
                **viewer_parameters(viewer),
                "viewer": viewer.name,
                "owners": dialect.many({owner for owner, _ in names}),
                "names": dialect.many({name for _, name in names}),
            },
            lambda row: (str(row[0]), str(row[1])),
        )
        return set(found) & set(names)

    async def ended_users(
        self, owner: str, name: str, number: int, viewer: User, *, limit: int
    ) -> tuple[str, ...]:
        """List the ended sessions visible to the viewer that used a version of a dataset, or any (0), newest first."""
        return await select(
            self._database,
            "SELECT s.name FROM dataset_uses u JOIN sessions s ON s.id = u.session_id"
            " WHERE u.owner = :owner AND u.name = :name AND (u.number = :number OR :number = 0)"
            f" AND {may_condition('s', viewer, SEE)} ORDER BY u.used_at DESC, s.name LIMIT :limit",
            {
                **viewer_parameters(viewer),
                "owner": owner,
                "name": name,
                "number": number,
                "limit": limit,
            },
            lambda row: str(row[0]),
        )


def put_lineage(connection: Connection, version: DatasetVersion, made: DatasetLineage) -> None:
    """Store a version's lineage; part of the transaction that makes it."""
    connection.execute(
        _PUT,
        (
            *(version.owner, version.name, version.number),
            *(made.session_id, made.session, made.attempt, made.code, made.environment_lock),
            *(json.dumps(made.command), json.dumps(made.datasets)),
        ),
    )


def lineage_of(
    connection: Connection, owner: str, name: str, number: int = 0
) -> dict[int, DatasetLineage]:
    """Return the lineage of a version, or of all (0), by number; pushed versions have none."""
    rows = connection.execute(
        f"SELECT number, {_COLUMNS} FROM dataset_lineage WHERE owner = ? AND name = ?"
        " AND (number = ? OR ? = 0)",
        (owner, name, number, number),
    )
    return {int(row[0]): _read(row[1:]) for row in rows}


def _read(row: Sequence[Any]) -> DatasetLineage:
    session_id, session, attempt, code, environment_lock, command, datasets = row
    return DatasetLineage(
        session_id=session_id,
        session=session,
        attempt=attempt,
        code=code,
        environment_lock=environment_lock,
        command=tuple(json.loads(command)),
        datasets=tuple(DatasetUse(*one) for one in json.loads(datasets)),
    )
