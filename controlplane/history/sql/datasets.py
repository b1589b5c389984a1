"""Datasets, their versions, tags and uses.

A removed version keeps its row, and so still refers to its content, until it is purged: restoring it changes
only this row. So a scan of all references, in key order, cannot miss it. A dataset keeps its row permanently, so that
numbers are never reused.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.policy import SEE
from controlplane.domain.values import Visibility
from controlplane.history.board_values import board_key
from controlplane.history.sql.dataset_lineage import SqlDatasetLineage, lineage_of, put_lineage
from controlplane.history.sql.dataset_parts import (
    SqlDatasetParts,
    check_access,
    parts_of,
    put_access,
    put_roots,
    release_roots,
)
from controlplane.history.sql.queries import NO_LIMIT, RowType, select
from controlplane.history.sql.submissions import delete_submissions
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.sql.visible import may_condition, viewer_parameters
from controlplane.history.values import Dataset, DatasetListing, DatasetVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from controlplane.domain.identity import User
    from controlplane.domain.values import PartAccess
    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.values import DatasetLineage, DatasetParts, DatasetUse

MOST_TAGS: Final = 256
"""Tags per dataset."""
_DIGESTS_A_STEP: Final = 10_000
_PURGED_AT_ONCE: Final = 100


class Restored(NamedTuple):
    """The result of restoring versions.

    Attributes:
        numbers: of the restored versions; () if there are none to restore.
        is_wider: nothing was changed: the dataset is visible to more users than the versions were.
    """

    numbers: tuple[int, ...] = ()
    is_wider: bool = False


class Tagging(NamedTuple):
    """The result of setting a tag. `before`: the version tagged before, 0: none; both False: no such version."""

    before: int = 0
    is_set: bool = False
    is_full: bool = False


class SqlDatasets(SqlDatasetParts, SqlDatasetLineage):
    """Names for immutable, numbered versions of content."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_dataset_version(
        self,
        dataset: Dataset,
        *,
        digest: str,
        size_bytes: int,
        file_count: int,
        message: str = "",
        in_place: str = "",
        parts: DatasetParts | None = None,
        access_before: Mapping[str, PartAccess] | None = None,
        lineage: DatasetLineage | None = None,
    ) -> tuple[DatasetVersion, bool]:
        """Make content the newest version; if the newest has the same content and place, return that one and False.

        Creates the dataset if it is new or all its versions are removed; else sets its team and visibility from
        `dataset`. The version is created at `dataset.created_at`. `digest`, `size_bytes` and `file_count` are of the
        open files; `parts` has the other roots and the new access. `lineage`: the session that made it; None: pushed.

        Raises:
            PartsChanged: the access of the dataset's parts is no longer `access_before`; None: it had no parts.
        """

        def work(connection: Connection) -> tuple[DatasetVersion, bool]:
            check_access(connection, dataset.owner, dataset.name, access_before or {})
            found = _listing(connection, dataset.owner, dataset.name, 0)
            put = _MAKE_DATASET if found is None else _PUT_DATASET
            connection.execute(put, _DATASET.values(dataset))
            if parts is not None:
                put_access(connection, dataset.owner, dataset.name, parts.access)
            newest = None if found is None else (found.version.digest, found.version.in_place)
            if found is not None and newest == (digest, in_place):
                number = found.version.number
                of = parts_of(connection, dataset.owner, dataset.name, number).get(number)
                if set(of.roots if of else ()) == set(parts.roots if parts else ()):
                    return found.version, False
            version = DatasetVersion(
                owner=dataset.owner,
                name=dataset.name,
                number=_highest(connection, dataset.owner, dataset.name) + 1,
                digest=digest,
                size_bytes=size_bytes,
                file_count=file_count,
                created_at=dataset.created_at,
                message=message,
                in_place=in_place,
            )
            connection.execute(_PUT_VERSION, _VERSION.values(version))
            if parts is not None:
                put_roots(connection, version.owner, version.name, version.number, parts.roots)
            if lineage is not None:
                put_lineage(connection, version, lineage)
            return version, True

        return await self._database.write(work, touches={_key(dataset.owner, dataset.name)})

    async def update_dataset(
        self,
        owner: str,
        name: str,
        *,
        visibility: Visibility | None = None,
        team: str | None = None,
        description: str | None = None,
    ) -> bool:
        """Change the fields that are not None; False if there is no such dataset."""
        given = {"visibility": visibility, "team": team, "description": description}
        changes = {column: value for column, value in given.items() if value is not None}

        def work(connection: Connection) -> bool:
            if _listing(connection, owner, name, 0) is None:
                return False
            if changes:
                connection.execute(
                    f"UPDATE datasets SET {', '.join(f'{one} = :{one}' for one in changes)}"
                    " WHERE owner = :owner AND name = :name",
                    {**changes, "owner": owner, "name": name},
                )
            return True

        return await self._database.write(work, touches={_key(owner, name)})

    async def dataset(self, owner: str, name: str, number: int = 0) -> DatasetListing | None:
        """Return a dataset with a version, 0 for the newest; None if missing or removed."""
        return await self._database.read(
            lambda connection: full_listing(connection, owner, name, number)
        )

    async def datasets(
        self,
        viewer: User,
        *,
        name_glob: str = "",
        name: str = "",
        words: Sequence[str] = (),
        after: tuple[str, str] = ("", ""),
        limit: int | None = None,
    ) -> tuple[DatasetListing, ...]:
        """List datasets visible to the viewer, with their newest versions, by name and then owner.

        `name_glob` as in domain.names.fits_glob, matched against OWNER/NAME if it has a slash; "" does not restrict. Each
        of the words must occur in the name, the description, the newest version's message or its tags; A to Z match
        either case. `after`: name and owner of the last one of the previous page.
        """
        dialect = self._database.dialect
        conditions = [
            _IS_NEWEST,
            may_condition("d", viewer, SEE),
            "(d.name, d.owner) > (:after_name, :after_owner)",
        ]
        conditions += ["d.name = :name"] if name else []
        conditions += [dialect.fits(_globbed("d", name_glob), "glob")] if name_glob else []
        conditions += [_has_word(dialect, f"word{place}") for place in range(len(words))]
        parameters = {
            **viewer_parameters(viewer),
            "glob": dialect.glob(name_glob),
            "name": name,
            "after_name": after[0],
            "after_owner": after[1],
            "limit": NO_LIMIT if limit is None else limit,
            **{f"word{place}": word for place, word in enumerate(words)},
            **{f"word{place}_small": word.lower() for place, word in enumerate(words)},
        }
        chosen = f"WHERE {' AND '.join(conditions)} ORDER BY d.name, d.owner LIMIT :limit"
        tagged = (
            "SELECT t.owner, t.name, t.tag"
            f" FROM (SELECT v.owner, v.name, v.number FROM {_VERSIONS} {chosen}) AS listed"
            " JOIN dataset_tags t ON t.owner = listed.owner AND t.name = listed.name"
            " AND t.number = listed.number ORDER BY t.tag"
        )

        def work(connection: Connection) -> tuple[DatasetListing, ...]:
            rows = connection.execute(f"SELECT {_FULL_LISTING} {chosen}", parameters).fetchall()
            tags: dict[tuple[str, str], list[str]] = defaultdict(list)
            for owner, of, tag in connection.execute(tagged, parameters):
                tags[owner, of].append(tag)
            parts = _parts_of_newest(connection, rows)
            return tuple(
                _dataset_listing(
                    row,
                    tags.get((row[_OWNER], row[_NAME]), ()),
                    parts.get((row[_OWNER], row[_NAME])),
                )
                for row in rows
            )

        return await self._database.read(work)

    async def dataset_versions(
        self,
        owner: str,
        name: str,
        *,
        with_removed: bool = False,
        before: int = 0,
        limit: int | None = None,
    ) -> tuple[DatasetListing, ...]:
        """List the versions of a dataset, newest first; only those below `before`, unless 0."""
        conditions = ["d.owner = ?", "d.name = ?", "(v.number < ? OR ? = 0)"]
        conditions += [] if with_removed else [_IS_THERE]
        parameters = (owner, name, before, before, NO_LIMIT if limit is None else limit)

        def work(connection: Connection) -> tuple[DatasetListing, ...]:
            rows = connection.execute(
                f"SELECT {_LISTING} WHERE {' AND '.join(conditions)} ORDER BY v.number DESC LIMIT ?",
                parameters,
            ).fetchall()
            tags = _tags(connection, owner, name)
            parts = parts_of(connection, owner, name)
            lineage = lineage_of(connection, owner, name)
            return tuple(
                replace(
                    one,
                    tags=tags.get(one.version.number, ()),
                    parts=parts.get(one.version.number),
                    lineage=lineage.get(one.version.number),
                )
                for one in map(_dataset_listing, rows)
            )

        return await self._database.read(work)

    async def tagged(self, owner: str, name: str, tag: str) -> int:
        """Return the number of the version with this tag, even if removed; 0: there is none."""
        [number] = await select(
            self._database,
            "SELECT coalesce(max(number), 0) FROM dataset_tags"
            " WHERE owner = ? AND name = ? AND tag = ?",
            (owner, name, tag),
            itemgetter(0),
        )
        return int(number)

    async def tag_dataset(self, owner: str, name: str, number: int, tag: str) -> Tagging:
        """Set a tag to a version, moving it from any other."""

        def work(connection: Connection) -> Tagging:
            if _listing(connection, owner, name, number) is None:
                return Tagging()
            before = _tagged(connection, owner, name, tag)
            if not before and _tag_count(connection, owner, name) >= MOST_TAGS:
                return Tagging(is_full=True)
            connection.execute(_PUT_TAG, (owner, name, tag, number))
            return Tagging(before=before, is_set=True)

        return await self._database.write(work, touches={_key(owner, name)})

    async def untag_dataset(self, owner: str, name: str, tag: str) -> int:
        """Remove a tag; return the number of its version, 0 if there was none."""

        def work(connection: Connection) -> int:
            before = _tagged(connection, owner, name, tag)
            connection.execute(
                "DELETE FROM dataset_tags WHERE owner = ? AND name = ? AND tag = ?",
                (owner, name, tag),
            )
            return before

        return await self._database.write(work, touches={_key(owner, name)})

    async def remove_dataset(
        self, owner: str, name: str, number: int = 0, *, at: float
    ) -> tuple[DatasetVersion, ...]:
        """Remove a version, or all (0), as of the Unix time `at`; return the removed ones, () if there were none.

        They can be restored until purged. The content is released, and a recount requested.
        """
        one = " AND number = :number" if number else ""
        where = f"WHERE owner = :owner AND name = :name AND removed_at = 0{one}"
        parameters = {"owner": owner, "name": name, "number": number, "at": at}

        def work(connection: Connection) -> tuple[DatasetVersion, ...]:
            rows = connection.execute(
                f"SELECT {_VERSION.columns} FROM dataset_versions {where} ORDER BY number",
                parameters,
            ).fetchall()
            if not rows:
                return ()
            connection.execute(
                f"UPDATE dataset_versions SET removed_at = :at, removed_visibility = {_VISIBILITY_NOW}"
                f" {where}",
                parameters,
            )
            connection.execute(
                "UPDATE datasets SET numbered = :highest WHERE owner = :owner AND name = :name",
                {**parameters, "highest": _highest(connection, owner, name)},
            )
            gone = tuple(map(_VERSION.read, rows))
            release(connection, owner, "", [version.digest for version in gone])
            release_roots(connection, owner, name, [version.number for version in gone])
            add_kept(connection, owner, asked=1)
            return gone

        return await self._database.write(work, touches={_key(owner, name)})

    async def removed_versions(
        self, owner: str, name: str, number: int = 0, *, since: float
    ) -> tuple[DatasetVersion, ...]:
        """List the versions that `restore_dataset` would restore, by number."""
        return await self._database.read(
            lambda connection: _removed(connection, owner, name, number, since)
        )

    async def every_removed_version(
        self,
        owner: str,
        *,
        since: float,
        name_glob: str = "",
        after: tuple[str, str, int] = ("", "", 0),
        limit: int | None = None,
    ) -> tuple[DatasetListing, ...]:
        """List versions of an owner's datasets, or of all (""), removed at `since` or later, by name, owner and number.

        `after`: name, owner and number of the last one of the previous page.
        """
        dialect = self._database.dialect
        conditions = [
            "v.removed_at > 0",
            "v.removed_at >= :since",
            "(v.name, v.owner, v.number) > (:after_name, :after_owner, :after_number)",
        ]
        conditions += ["v.owner = :owner"] if owner else []
        conditions += [dialect.fits(_globbed("v", name_glob), "glob")] if name_glob else []
        return await select(
            self._database,
            f"SELECT {_LISTING} WHERE {' AND '.join(conditions)}"
            " ORDER BY v.name, v.owner, v.number LIMIT :limit",
            {
                "since": since,
                "after_name": after[0],
                "after_owner": after[1],
                "after_number": after[2],
                "owner": owner,
                "glob": dialect.glob(name_glob),
                "limit": NO_LIMIT if limit is None else limit,
            },
            _dataset_listing,
        )

    async def restore_dataset(
        self, owner: str, name: str, number: int = 0, *, since: float
    ) -> Restored:
        """Restore a removed version, or all of the last removal (0), unless removed before `since`.

        If it has other versions, the dataset keeps its visibility, team and description, and nothing is restored if
        a version was visible to fewer users. Else it gets the narrowest visibility of the versions.
        """

        def work(connection: Connection) -> Restored:
            found = _removed(connection, owner, name, number, since)
            if not found:
                return Restored()
            narrowest = min(one.removed_visibility for one in found)
            there = _listing(connection, owner, name, 0)
            if there is not None and there.dataset.visibility > narrowest:
                return Restored(is_wider=True)
            if there is None:
                connection.execute(
                    "UPDATE datasets SET visibility = ? WHERE owner = ? AND name = ?",
                    (narrowest, owner, name),
                )
            connection.executemany(
                "UPDATE dataset_versions SET removed_at = 0"
                " WHERE owner = ? AND name = ? AND number = ?",
                [(owner, name, one.number) for one in found],
            )
            add_kept(connection, owner, asked=1)
            return Restored(tuple(one.number for one in found))

        return await self._database.write(work, touches={_key(owner, name)})

    async def purge_datasets(self, before: float) -> int:
        """Permanently delete some versions removed before a Unix time; return how many, 0 once none is left.

        With the last version of a dataset go its submissions and the settings of its board.
        """
        due = await select(
            self._database,
            "SELECT owner, name FROM dataset_versions WHERE removed_at > 0 AND removed_at < ?"
            " GROUP BY owner, name ORDER BY owner, name LIMIT ?",
            (before, _PURGED_AT_ONCE),
            lambda row: (row[0], row[1]),
        )
        purged = 0
        for owner, name in due:

            def work(connection: Connection, owner: str = owner, name: str = name) -> int:
                where = (
                    "WHERE owner = ? AND name = ? AND number IN (SELECT number FROM dataset_versions"
                    " WHERE owner = ? AND name = ? AND removed_at > 0 AND removed_at < ?)"
                )
                key = (owner, name, owner, name, before)
                connection.execute(f"DELETE FROM dataset_tags {where}", key)
                connection.execute(f"DELETE FROM dataset_roots {where}", key)
                connection.execute(f"DELETE FROM dataset_lineage {where}", key)
                gone = connection.execute(f"DELETE FROM dataset_versions {where}", key).rowcount
                if not _has_versions(connection, owner, name):
                    delete_submissions(connection, owner, name)
                return gone

            touches = {_key(owner, name), board_key(owner, name)}
            purged += await self._database.write(work, touches=touches)
        return purged

    async def ended_uses(self, owner: str, name: str, number: int = 0) -> int:
        """Count the ended sessions that used a version of a dataset, or any (0)."""
        [count] = await select(
            self._database,
            "SELECT count(*) FROM dataset_uses"
            " WHERE owner = ? AND name = ? AND (number = ? OR ? = 0)",
            (owner, name, number, number),
            itemgetter(0),
        )
        return int(count)

    async def versions_of(self, digest: str, *, limit: int) -> tuple[str, ...]:
        """Return OWNER/NAME@VERSION of the versions, including removed ones, that have this manifest as a root."""
        return await select(
            self._database,
            "SELECT owner, name, number FROM dataset_versions WHERE digest = ?"
            " UNION SELECT owner, name, number FROM dataset_roots WHERE digest = ?"
            " ORDER BY owner, name, number LIMIT ?",
            (digest, digest, limit),
            lambda row: f"{row[0]}/{row[1]}@{row[2]}",
        )

    async def versions_among(self, digests: Collection[str]) -> set[str]:
        """Return the digests that are roots of versions of any dataset, except removed ones."""
        wanted, dialect = sorted(digests), self._database.dialect

        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for start in range(0, len(wanted), _DIGESTS_A_STEP):
                rows = connection.execute(
                    "SELECT digest FROM dataset_versions"
                    f" WHERE removed_at = 0 AND {dialect.among('digest', 'digests')}"
                    " UNION SELECT r.digest FROM dataset_roots r JOIN dataset_versions v"
                    " ON v.owner = r.owner AND v.name = r.name AND v.number = r.number"
                    f" WHERE v.removed_at = 0 AND {dialect.among('r.digest', 'digests')}",
                    {"digests": dialect.many(wanted[start : start + _DIGESTS_A_STEP])},
                )
                found |= {row[0] for row in rows}
            return found

        return await self._database.read(work)


def note_uses(
    connection: Connection, session_id: str, uses: Collection[DatasetUse], at: float
) -> None:
    """Record the versions of datasets used by an ended session; part of a larger transaction."""
    connection.executemany(
        "INSERT INTO dataset_uses (session_id, owner, name, number, used_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        [(session_id, *use, at) for use in uses],
    )


def forget_uses(connection: Connection, session_id: str) -> None:
    """Delete the uses of a removed session; part of a larger transaction."""
    connection.execute("DELETE FROM dataset_uses WHERE session_id = ?", (session_id,))


_DATASET = RowType(Dataset, visibility=Visibility)
_VERSION = RowType(DatasetVersion, removed_visibility=Visibility)
_OWNER, _NAME = _DATASET.names.index("owner"), _DATASET.names.index("name")
_VERSIONS = "datasets d JOIN dataset_versions v ON v.owner = d.owner AND v.name = d.name"
_DATASET_COLUMNS = ", ".join(f"d.{name}" for name in _DATASET.names)
_COLUMNS = f"{_DATASET_COLUMNS}, {', '.join(f'v.{name}' for name in _VERSION.names)}"
_LISTING = f"{_COLUMNS} FROM {_VERSIONS}"
_FULL_LISTING = (
    f"{_COLUMNS}, (SELECT count(*) FROM dataset_versions c"
    " WHERE c.owner = d.owner AND c.name = d.name AND c.removed_at = 0),"
    " coalesce((SELECT max(u.used_at) FROM dataset_uses u"
    f" WHERE u.owner = d.owner AND u.name = d.name), 0.0) FROM {_VERSIONS}"
)
_IS_THERE = "v.removed_at = 0"
_IS_NEWEST = (
    "v.number = (SELECT max(n.number) FROM dataset_versions n"
    " WHERE n.owner = d.owner AND n.name = d.name AND n.removed_at = 0)"
)
_VISIBILITY_NOW = (
    "(SELECT d.visibility FROM datasets d"
    " WHERE d.owner = dataset_versions.owner AND d.name = dataset_versions.name)"
)
_MAKE_DATASET = _DATASET.upsert("datasets", ["owner", "name"])
_PUT_DATASET = (
    "UPDATE datasets SET team = :team, visibility = :visibility"
    " WHERE owner = :owner AND name = :name"
)
_PUT_VERSION = _VERSION.insert("dataset_versions")
_PUT_TAG = (
    "INSERT INTO dataset_tags (owner, name, tag, number) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (owner, name, tag) DO UPDATE SET number = excluded.number"
)


def _key(owner: str, name: str) -> str:
    return f"{owner}/{name}"


def _globbed(table: str, glob: str) -> str:
    """The expression matched against a glob."""
    name = f"{table}.name"
    return f"({table}.owner || '/' || {name})" if "/" in glob else name


def _has_word(dialect: Dialect, word: str) -> str:
    """The condition that a word occurs in a dataset's texts or tags, as is or in lower case."""

    def held_by(column: str) -> str:
        small = dialect.holds(f"lower({column})", f"{word}_small")
        return f"{dialect.holds(column, word)} OR {small}"

    columns = map(held_by, ("d.name", "d.description", "v.message"))
    return (
        f"({' OR '.join(columns)} OR EXISTS (SELECT 1 FROM dataset_tags w WHERE w.owner = d.owner"
        f" AND w.name = d.name AND w.number = v.number AND ({held_by('w.tag')})))"
    )


def _has_versions(connection: Connection, owner: str, name: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM dataset_versions WHERE owner = ? AND name = ? LIMIT 1", (owner, name)
    ).fetchone()
    return row is not None


def _highest(connection: Connection, owner: str, name: str) -> int:
    """Return the highest version number ever used in a dataset."""
    (number,) = connection.execute(
        "SELECT max(number) FROM (SELECT number FROM dataset_versions WHERE owner = ? AND name = ?"
        " UNION ALL SELECT numbered FROM datasets WHERE owner = ? AND name = ?) AS numbers",
        (owner, name, owner, name),
    ).fetchone()
    return int(number or 0)


def _listing(connection: Connection, owner: str, name: str, number: int) -> DatasetListing | None:
    row = _row(connection, _LISTING, owner, name, number)
    return None if row is None else _dataset_listing(row)


def full_listing(
    connection: Connection, owner: str, name: str, number: int = 0
) -> DatasetListing | None:
    """See SqlDatasets.dataset; part of a larger transaction."""
    row = _row(connection, _FULL_LISTING, owner, name, number)
    if row is None:
        return None
    number = _dataset_listing(row).version.number
    tags = _tags(connection, owner, name).get(number, ())
    found = _dataset_listing(row, tags, parts_of(connection, owner, name, number).get(number))
    return replace(found, lineage=lineage_of(connection, owner, name, number).get(number))


def _row(
    connection: Connection, columns: str, owner: str, name: str, number: int
) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = connection.execute(
        f"SELECT {columns} WHERE d.owner = ? AND d.name = ? AND (v.number = ? OR ? = 0)"
        f" AND {_IS_THERE} ORDER BY v.number DESC LIMIT 1",
        (owner, name, number, number),
    ).fetchone()
    return row


def _dataset_listing(
    row: Sequence[Any], tags: Sequence[str] = (), parts: DatasetParts | None = None
) -> DatasetListing:
    cut = len(_DATASET.names)
    end = cut + len(_VERSION.names)
    dataset, version = _DATASET.read(row[:cut]), _VERSION.read(row[cut:end])
    return replace(DatasetListing(dataset, version, tuple(tags), *row[end:]), parts=parts)


def _parts_of_newest(
    connection: Connection, rows: Iterable[Sequence[Any]]
) -> dict[tuple[str, str], DatasetParts]:
    """Return the parts of the listed versions, by owner and name."""
    found: dict[tuple[str, str], DatasetParts] = {}
    for row in rows:
        version = _dataset_listing(row).version
        parts = parts_of(connection, version.owner, version.name, version.number)
        if parts:
            found[version.owner, version.name] = parts[version.number]
    return found


def _tags(connection: Connection, owner: str, name: str) -> Mapping[int, tuple[str, ...]]:
    """By version."""
    found: dict[int, tuple[str, ...]] = {}
    rows = connection.execute(
        "SELECT number, tag FROM dataset_tags WHERE owner = ? AND name = ? ORDER BY tag",
        (owner, name),
    )
    for number, tag in rows:
        found[number] = (*found.get(number, ()), tag)
    return found


def _tagged(connection: Connection, owner: str, name: str, tag: str) -> int:
    row = connection.execute(
        "SELECT number FROM dataset_tags WHERE owner = ? AND name = ? AND tag = ?",
        (owner, name, tag),
    ).fetchone()
    return 0 if row is None else int(row[0])


def _tag_count(connection: Connection, owner: str, name: str) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM dataset_tags WHERE owner = ? AND name = ?", (owner, name)
    ).fetchone()
    return int(count)


def _removed(
    connection: Connection, owner: str, name: str, number: int, since: float
) -> tuple[DatasetVersion, ...]:
    rows = connection.execute(
        f"SELECT {_VERSION.columns} FROM dataset_versions WHERE owner = :owner AND name = :name"
        " AND removed_at > 0 AND removed_at >= :since AND (number = :number OR :number = 0"
        " AND removed_at = (SELECT max(m.removed_at) FROM dataset_versions m"
        " WHERE m.owner = :owner AND m.name = :name)) ORDER BY number",
        {"owner": owner, "name": name, "number": number, "since": since},
    )
    return tuple(map(_VERSION.read, rows))
