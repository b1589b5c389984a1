"""Object store usage of each user and project: the last count, bytes sent since, and released content."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from controlplane.domain.identity import UserCaller
from controlplane.domain.policy import ACT_FOR, ALLOW, SEE, Personal, may
from controlplane.history.sql.fence import pass_fence
from controlplane.history.sql.queries import change, select
from controlplane.history.sql.visible import may_condition, viewer_parameters
from controlplane.history.values import Item, KeptBytes, KeptKind, Release, RootKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from controlplane.domain.identity import User
    from controlplane.domain.values import Session
    from controlplane.history.sql.interface import Connection, Database

_AT_ONCE: Final = 50_000

_USERS: Final = "kept_bytes"
_PROJECTS: Final = "project_kept_bytes"

_ADD: Final = (
    "INSERT INTO {table} (owner, counted, counted_at, sent, asked) VALUES (?, '{{}}', 0, ?, ?)"
    " ON CONFLICT (owner) DO UPDATE SET sent = {table}.sent + excluded.sent,"
    " asked = {table}.asked + excluded.asked"
)
_COUNT: Final = (
    "INSERT INTO {table} (owner, counted, counted_at, sent, asked) VALUES (?, ?, ?, 0, 0)"
    " ON CONFLICT (owner) DO UPDATE SET counted = excluded.counted, counted_at = excluded.counted_at"
)
_CORRECT: Final = "UPDATE {table} SET sent = sent - ?, asked = asked - ? WHERE owner = ?"
_FORGET: Final = f"DELETE FROM {_PROJECTS} WHERE owner = ?"
_RELEASE: Final = (
    "INSERT INTO released_roots (owner, session_id, root) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
)
_SIZES: Final = (
    "SELECT session_id, size_bytes FROM checkpoints WHERE digest IS NOT NULL"
    " UNION ALL SELECT session_id, size_bytes FROM media WHERE root IS NOT NULL"
    " UNION ALL SELECT session_id, size_bytes FROM artifacts WHERE digest IS NOT NULL"
)


def add_kept(connection: Connection, owner: str, *, sent: int = 0, asked: int = 0) -> None:
    """Add bytes sent by a user, or requests for a recount; part of a larger transaction."""
    connection.execute(_ADD.format(table=_USERS), (owner, sent, asked))


def add_project_kept(connection: Connection, project: str, *, sent: int) -> None:
    """Add bytes sent for a project; as `add_kept`."""
    connection.execute(_ADD.format(table=_PROJECTS), (project, sent, 0))


def release(connection: Connection, owner: str, session_id: str, roots: Collection[str]) -> None:
    """Record manifests no longer referred to by content of a user or session; as `add_kept`."""
    for root in sorted(filter(None, set(roots))):
        connection.execute(_RELEASE, (owner, session_id, root))


class KeptFigures:
    """Object store usage of each user, or of each project."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table

    async def all(self) -> dict[str, KeptBytes]:
        """By name."""
        rows = await select(
            self._database,
            f"SELECT owner, counted, counted_at, sent, asked FROM {self._table}",
            (),
            lambda row: (row[0], KeptBytes(json.loads(row[1]), *row[2:])),
        )
        return dict(rows)

    async def add(self, owner: str, *, sent: int = 0, asked: int = 0) -> None:
        """Add sent bytes, or requests for a recount."""
        await change(self._database, _ADD.format(table=self._table), (owner, sent, asked))


class SqlKept(KeptFigures):
    """Object store usage of each user: the last count plus the bytes sent since.

    So it is at least the real usage, except for content referred to without being sent. Backups leave these rows out:
    after a restore they are recounted.

    Attributes:
        projects: the same for each project.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database, _USERS)
        self.projects = KeptFigures(database, _PROJECTS)

    async def released(self) -> tuple[Release, ...]:
        """Return the first page of content released since the last count."""
        return await select(
            self._database,
            "SELECT r.owner, r.session_id, r.root, coalesce(s.owner, r.owner), coalesce(s.project, '')"
            " FROM released_roots AS r LEFT JOIN sessions AS s ON s.id = r.session_id"
            " ORDER BY r.owner, r.session_id, r.root LIMIT ?",
            (_AT_ONCE,),
            Release._make,
        )

    async def released_among(self, owner: str, roots: Collection[str]) -> set[str]:
        """Return the manifests released by a user since the last count, except with a session."""
        dialect = self._database.dialect
        found = await select(
            self._database,
            "SELECT root FROM released_roots WHERE owner = :owner AND session_id = ''"
            f" AND {dialect.among('root', 'roots')}",
            {"owner": owner, "roots": dialect.many(sorted(roots))},
            lambda row: str(row[0]),
        )
        return set(found)

    async def count(
        self,
        counted: Mapping[str, Mapping[str, int]],
        before: Mapping[str, KeptBytes],
        released: Collection[Release],
        *,
        projects: tuple[Mapping[str, Mapping[str, int]], Mapping[str, KeptBytes]] = ({}, {}),
        removed_projects: Collection[str] = (),
        at: float,
        term: int,
    ) -> None:
        """Store a count of all users, in one transaction; `projects`: their `counted` and `before`.

        Rows of `removed_projects` are deleted.

        Leader only; HistoryFenced as in SqlCatalogue.put_session. The count covers bytes sent, requests and releases
        until it began (`before`, `released`).
        """
        dialect = self._database.dialect

        def work(connection: Connection) -> None:
            pass_fence(connection, dialect, term)
            _store(connection, _USERS, counted, before, at)
            _store(connection, _PROJECTS, *projects, at)
            for name in sorted(removed_projects):
                connection.execute(_FORGET, (name,))
            for one in sorted(released):
                connection.execute(
                    "DELETE FROM released_roots WHERE owner = ? AND session_id = ? AND root = ?",
                    one[:3],
                )

        await self._database.write(work)

    async def largest(
        self, owner: str, live: Mapping[str, str], *, limit: int = 10
    ) -> tuple[Item, ...]:
        """Return the largest datasets and sessions of a user, by file sizes; `live`: names of live sessions by id."""
        dialect = self._database.dialect
        sizes = f"FROM ({_SIZES}) AS sizes"

        def work(connection: Connection) -> tuple[Item, ...]:
            datasets = _datasets(connection, owner)[:limit]
            ended = connection.execute(
                f"SELECT name, sum(size_bytes) AS bytes {sizes}"
                " JOIN sessions ON sessions.id = session_id WHERE owner = ?"
                " GROUP BY name ORDER BY bytes DESC, name LIMIT ?",
                (owner, limit),
            ).fetchall()
            running = connection.execute(
                f"SELECT session_id, sum(size_bytes) AS bytes {sizes}"
                f" WHERE {dialect.among('session_id', 'ids')}"
                " GROUP BY session_id ORDER BY bytes DESC, session_id LIMIT :limit",
                {"ids": dialect.many(sorted(live)), "limit": limit},
            ).fetchall()
            # A session that ends meanwhile is briefly in both.
            sizes_live = {live[one]: size for one, size in running if live[one] not in dict(ended)}
            found = [
                *datasets,
                *(Item(name, KeptKind.CHECKPOINTS, int(size)) for name, size in ended),
            ]
            found += [
                Item(name, KeptKind.CHECKPOINTS, int(size), is_live=True)
                for name, size in sizes_live.items()
            ]
            return tuple(sorted(found, key=lambda one: (-one.bytes, one.name))[:limit])

        return await self._database.read(work)

    async def of_project(
        self, project: str, viewer: User, live: Iterable[Session], *, limit: int = 10
    ) -> tuple[tuple[tuple[str, int], ...], tuple[Item, ...]]:
        """Return each user's bytes in a project, most first, and the largest items visible to the viewer, by file sizes.

        `live`: its sessions outside the catalogue. Datasets of the user with the project's name belong to it, too.
        """
        dialect = self._database.dialect
        sizes = f"FROM ({_SIZES}) AS sizes"
        theirs = (
            f"{sizes} JOIN sessions ON sessions.id = session_id"
            " WHERE (project = :project OR (project = '' AND sessions.owner = :project))"
        )
        caller, by_id = UserCaller(user=viewer), {one.id: one for one in live}
        is_own = may(caller, ACT_FOR, Personal(project)) is ALLOW

        def work(connection: Connection) -> tuple[Counter[str], list[Item]]:
            users: Counter[str] = Counter()
            parameters = {"project": project, "limit": limit, **viewer_parameters(viewer)}
            for owner, size in connection.execute(
                f"SELECT sessions.owner, sum(size_bytes) {theirs} GROUP BY sessions.owner",
                parameters,
            ):
                users[owner] += int(size)
            ended = connection.execute(
                f"SELECT name, sum(size_bytes) AS bytes {theirs}"
                f" AND {may_condition('sessions', viewer, SEE)}"
                " GROUP BY name ORDER BY bytes DESC, name LIMIT :limit",
                parameters,
            ).fetchall()
            found = [Item(name, KeptKind.CHECKPOINTS, int(size)) for name, size in ended]
            running = connection.execute(
                f"SELECT session_id, sum(size_bytes) {sizes}"
                f" WHERE {dialect.among('session_id', 'ids')} AND session_id NOT IN (SELECT id FROM sessions)"
                " GROUP BY session_id",
                {"ids": dialect.many(sorted(by_id))},
            ).fetchall()
            for session_id, size in running:
                session = by_id[session_id]
                users[session.owner] += int(size)
                if may(caller, SEE, session) is ALLOW:
                    found.append(Item(session.name, KeptKind.CHECKPOINTS, int(size), is_live=True))
            datasets = _datasets(connection, project)
            if datasets:
                users[project] += sum(one.bytes for one in datasets)
            return users, [*found, *(datasets if is_own else [])]

        users, found = await self._database.read(work)
        by_size = sorted(users.items(), key=lambda one: (-one[1], one[0]))
        largest = sorted(found, key=lambda one: (-one.bytes, one.name))[:limit]
        return tuple(by_size), tuple(largest)


def _datasets(connection: Connection, owner: str) -> list[Item]:
    """The datasets of a user, by the sizes of their files, largest first."""
    rows = connection.execute(
        "SELECT v.name, sum(coalesce(r.size_bytes, v.size_bytes)) AS bytes"
        " FROM dataset_versions v LEFT JOIN dataset_roots r ON r.owner = v.owner"
        f" AND r.name = v.name AND r.number = v.number AND r.kind = {int(RootKind.WHOLE)}"
        " WHERE v.owner = ? AND v.removed_at = 0"
        " GROUP BY v.name ORDER BY bytes DESC, v.name",
        (owner,),
    )
    return [Item(name, KeptKind.DATASETS, int(size)) for name, size in rows]


def _store(
    connection: Connection,
    table: str,
    counted: Mapping[str, Mapping[str, int]],
    before: Mapping[str, KeptBytes],
    at: float,
) -> None:
    for owner in sorted({*counted, *before}):
        figures = json.dumps(dict(counted.get(owner, {})))
        connection.execute(_COUNT.format(table=table), (owner, figures, at))
        known = before.get(owner)
        if known is not None and (known.sent or known.asked):
            statement = _CORRECT.format(table=table)
            connection.execute(statement, (known.sent, known.asked, owner))
