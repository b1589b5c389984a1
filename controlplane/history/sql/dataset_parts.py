"""Parts of datasets: the access of each, for all versions, and the manifests of versions with parts.

The access of a part is kept with its dataset's name for good, as version numbers are: a hidden part stays hidden
in every version pushed or restored later, until it is opened.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.values import PartAccess, Visibility
from controlplane.history.sql.queries import RowType, select
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.values import Dataset, DatasetParts, DatasetRoot, RootKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.history.sql.interface import Connection, Database

_DATASET: Final = RowType(Dataset, visibility=Visibility)
_ROOT: Final = RowType(DatasetRoot, kind=RootKind)
_PUT_ROOT: Final = (
    f"INSERT INTO dataset_roots (owner, name, number, {_ROOT.columns})"
    f" VALUES (:owner, :name, :number, {', '.join(f':{name}' for name in _ROOT.names)})"
)
_PUT_ACCESS: Final = (
    "INSERT INTO dataset_parts (owner, name, path, access) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (owner, name, path) DO UPDATE SET access = excluded.access"
)
_DATASET_BUT_VISIBILITY: Final = ", ".join(
    f"d.{name}" for name in _DATASET.names if name != "visibility"
)
_READERS: Final = (
    # Content restricted to some viewers of a dataset counts as private.
    f"SELECT {_DATASET_BUT_VISIBILITY}, d.visibility AS visibility"
    " FROM dataset_versions v JOIN datasets d ON d.owner = v.owner AND d.name = v.name"
    " WHERE v.digest = :digest AND v.removed_at = 0"
    f" UNION SELECT {_DATASET_BUT_VISIBILITY}, CASE"
    f" WHEN r.kind = {int(RootKind.PART)} AND coalesce(p.access, {int(PartAccess.OPEN)})"
    f" = {int(PartAccess.OPEN)} THEN d.visibility ELSE {int(Visibility.PRIVATE)} END AS visibility"
    " FROM dataset_roots r"
    " JOIN dataset_versions v ON v.owner = r.owner AND v.name = r.name AND v.number = r.number"
    " JOIN datasets d ON d.owner = r.owner AND d.name = r.name"
    " LEFT JOIN dataset_parts p ON p.owner = r.owner AND p.name = r.name AND p.path = r.path"
    " WHERE r.digest = :digest AND v.removed_at = 0"
)


class PartsChanged(Exception):
    """The dataset's versions or access of parts changed since they were read; nothing was written."""


class SqlDatasetParts:
    """The catalogue's parts of datasets."""

    _database: Database

    async def part_access(self, owner: str, name: str) -> dict[str, PartAccess]:
        """Return the access of each part of a dataset, by path; {}: it has no parts."""
        return await self._database.read(lambda connection: access_of(connection, owner, name))

    async def whole_roots(self, owner: str, name: str) -> dict[int, str]:
        """Return the manifests of whole versions, by number, including removed versions."""
        return await self._database.read(lambda connection: _whole_roots(connection, owner, name))

    async def set_part_access(
        self,
        owner: str,
        name: str,
        access: Mapping[str, PartAccess],
        versions: Mapping[int, tuple[DatasetRoot, DatasetParts] | None],
        *,
        before: Mapping[str, PartAccess],
    ) -> None:
        """Change the access of a dataset's parts, in all its versions.

        `versions`: by number the new root of the open parts, and the further roots; None for one without parts.

        Raises:
            PartsChanged: the access is no longer `before`, or the versions changed.
        """

        def work(connection: Connection) -> None:
            check_access(connection, owner, name, before)
            if _whole_roots(connection, owner, name).keys() != versions.keys():
                raise PartsChanged
            put_access(connection, owner, name, access)
            for number, made in versions.items():
                if made is None:
                    continue
                opened, parts = made
                connection.execute(
                    "UPDATE dataset_versions SET digest = ?, size_bytes = ?, file_count = ?"
                    " WHERE owner = ? AND name = ? AND number = ?",
                    (opened.digest, opened.size_bytes, opened.file_count, owner, name, number),
                )
                connection.execute(
                    "DELETE FROM dataset_roots WHERE owner = ? AND name = ? AND number = ?",
                    (owner, name, number),
                )
                put_roots(connection, owner, name, number, parts.roots)
            add_kept(connection, owner, asked=1)

        await self._database.write(work, touches={f"{owner}/{name}"})

    async def readers_of(self, digest: str) -> tuple[Dataset, ...]:
        """List the datasets with this content: viewers of one may read it.

        A dataset is reported as private if only its owner may read this content.
        """
        columns = _DATASET.columns.replace("visibility", "max(visibility)")
        others = ", ".join(name for name in _DATASET.names if name != "visibility")
        return await select(
            self._database,
            f"SELECT {columns} FROM ({_READERS}) AS readers GROUP BY {others} ORDER BY owner, name",
            {"digest": digest},
            _DATASET.read,
        )


def _whole_roots(connection: Connection, owner: str, name: str) -> dict[int, str]:
    rows = connection.execute(
        "SELECT v.number, coalesce(r.digest, v.digest) FROM dataset_versions v"
        " LEFT JOIN dataset_roots r ON r.owner = v.owner AND r.name = v.name"
        f" AND r.number = v.number AND r.kind = {int(RootKind.WHOLE)}"
        " WHERE v.owner = ? AND v.name = ? ORDER BY v.number",
        (owner, name),
    )
    return {int(number): str(digest) for number, digest in rows}


def access_of(connection: Connection, owner: str, name: str) -> dict[str, PartAccess]:
    """Return the access of each part of a dataset, by path."""
    rows = connection.execute(
        "SELECT path, access FROM dataset_parts WHERE owner = ? AND name = ? ORDER BY path",
        (owner, name),
    )
    return {path: PartAccess(access) for path, access in rows}


def check_access(
    connection: Connection, owner: str, name: str, before: Mapping[str, PartAccess]
) -> None:
    """Raise PartsChanged unless the access still is `before`; part of a larger transaction."""
    if access_of(connection, owner, name) != before:
        raise PartsChanged


def put_access(
    connection: Connection, owner: str, name: str, access: Mapping[str, PartAccess]
) -> None:
    """Store the access of parts; part of a larger transaction."""
    rows = [(owner, name, path, int(one)) for path, one in sorted(access.items())]
    connection.executemany(_PUT_ACCESS, rows)


def put_roots(
    connection: Connection, owner: str, name: str, number: int, roots: Iterable[DatasetRoot]
) -> None:
    """Store the further roots of a version; part of a larger transaction."""
    key = {"owner": owner, "name": name, "number": number}
    connection.executemany(
        _PUT_ROOT, [{**key, **_ROOT.values(one), "kind": int(one.kind)} for one in roots]
    )


def parts_of(
    connection: Connection, owner: str, name: str, number: int = 0
) -> dict[int, DatasetParts]:
    """Return the parts of a version, or of all (0), by number; versions without parts are left out."""
    rows = connection.execute(
        f"SELECT number, {_ROOT.columns} FROM dataset_roots WHERE owner = ? AND name = ?"
        " AND (number = ? OR ? = 0) ORDER BY number, kind, path",
        (owner, name, number, number),
    ).fetchall()
    roots: dict[int, list[DatasetRoot]] = {}
    for row in rows:
        roots.setdefault(row[0], []).append(_ROOT.read(row[1:]))
    access = access_of(connection, owner, name) if roots else {}
    return {one: DatasetParts(access=access, roots=tuple(of)) for one, of in roots.items()}


def release_roots(connection: Connection, owner: str, name: str, numbers: Iterable[int]) -> None:
    """Release the further manifests of versions; see `user_storage.release`."""
    for number in numbers:
        rows: list[tuple[Any, ...]] = connection.execute(
            "SELECT digest FROM dataset_roots WHERE owner = ? AND name = ? AND number = ?",
            (owner, name, number),
        ).fetchall()
        release(connection, owner, "", [row[0] for row in rows])
