"""The catalogue: ended sessions, datasets, checkpoints."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from controlplane.domain.policy import RULES, SEE, Action, Kind, shared_rules
from controlplane.domain.values import Visibility
from controlplane.history.sql.appending import delete_streams
from controlplane.history.sql.fence import pass_fence
from controlplane.history.sql.ledger import insert_charges
from controlplane.history.sql.media import delete_media, lose_saved, saved_replicas
from controlplane.history.sql.object_references import owners_of, referred, roots_of_session
from controlplane.history.sql.queries import NO_LIMIT, RowType, change, page, select, select_one
from controlplane.history.sql.user_storage import add_kept, release
from controlplane.history.values import (
    Checkpoint,
    CheckpointCount,
    CheckpointState,
    Dataset,
    DatasetListing,
    DatasetVersion,
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

    from controlplane.domain.identity import User
    from controlplane.domain.policy import Rule
    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.values import AttemptCharge, Referred

_DIGESTS_A_STEP = 10_000


class SqlCatalogue:
    """What has ended, and what outlives sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_session(
        self, session: SessionRecord, charges: Sequence[AttemptCharge] = (), *, term: int
    ) -> None:
        """Store or replace an ended session by id, with what its attempts are charged for.

        Only the leader does; HistoryFenced when one of a later term than `term` has written.
        HistoryConflict: its name or (owner, request id) is another's, or an attempt is charged with
        something else already.
        """
        row = _session_row(session)

        def work(connection: Connection) -> None:
            pass_fence(connection, self._database.dialect, term)
            connection.execute(_PUT_SESSION, row)
            insert_charges(connection, charges)

        await self._database.write(work, touches={session.id})

    async def replace_session(self, session: SessionRecord, *, known: bytes) -> bool:
        """Replace a session whose `record` still is `known`; False when it is another or gone."""
        row = {**_session_row(session), "known": known}
        return await change(self._database, _REPLACE_SESSION, row, touches={session.id}) > 0

    async def session(self, session_id: str) -> SessionRecord | None:
        """By id."""
        return await self._one_session("id = ?", session_id)

    async def session_by_name(self, name: str) -> SessionRecord | None:
        """By USER/DATASET/N."""
        return await self._one_session("name = ?", name)

    async def session_by_request(self, owner: str, request_id: str) -> SessionRecord | None:
        """By the request that made it."""
        return await self._one_session("owner = ? AND request_id = ?", owner, request_id)

    async def sessions(
        self, query: SessionQuery, *, after: PageKey | None = None, limit: int = 100
    ) -> SessionPage:
        """A page of what the viewer may see, newest first by (created_at, id)."""
        dialect = self._database.dialect
        conditions = " AND ".join(_session_conditions(query, after, dialect))
        statement = (
            f"SELECT {_SESSION.columns} FROM sessions WHERE {conditions}"
            " ORDER BY created_at DESC, id DESC LIMIT :limit"
        )
        parameters = {
            **_viewer(query.viewer),
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
        """Remove a session with its streams, summary, checkpoints and media; False when it was not there.

        Charges and audit rows stay. Its manifests, and those of `roots`, are released, and a count is asked for.
        """

        def work(connection: Connection) -> bool:
            owner = owners_of(connection, [session_id]).get(session_id)
            if owner is not None:
                left = {*roots, *roots_of_session(connection, session_id)}
                release(connection, owner, session_id, left)
                add_kept(connection, owner, asked=1)
            gone = connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,)).rowcount
            connection.execute("DELETE FROM checkpoints WHERE session_id = ?", (session_id,))
            delete_media(connection, session_id)
            delete_streams(connection, session_id)
            return gone > 0

        return await self._database.write(work, touches={session_id})

    async def put_dataset_version(
        self,
        dataset: Dataset,
        *,
        digest: str,
        size_bytes: int,
        file_count: int,
        message: str = "",
    ) -> tuple[DatasetVersion, bool]:
        """Make content the newest version; the same digest as the newest gives that one and False.

        Makes the dataset when it is new; of one that exists, team and visibility become `dataset`'s.
        The version is created at `dataset.created_at`.
        """

        def work(connection: Connection) -> tuple[DatasetVersion, bool]:
            connection.execute(_PUT_DATASET, _DATASET.values(dataset))
            found = _listing(connection, dataset.owner, dataset.name, 0)
            if found is not None and found.version.digest == digest:
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
            )
            connection.execute(_PUT_VERSION, _VERSION.values(version))
            return version, True

        return await self._database.write(work, touches={f"{dataset.owner}/{dataset.name}"})

    async def dataset(self, owner: str, name: str, number: int = 0) -> DatasetListing | None:
        """One dataset with a version, 0 for the newest."""
        return await self._database.read(
            lambda connection: _listing(connection, owner, name, number)
        )

    async def datasets(
        self,
        viewer: User,
        *,
        name_glob: str = "",
        name: str = "",
        after: tuple[str, str] = ("", ""),
        limit: int | None = None,
    ) -> tuple[DatasetListing, ...]:
        """What the viewer may see, with the newest versions, by name and then owner.

        `name_glob` as domain.names.fits_glob has it; "" does not restrict. `after` is the name and
        owner of the last one of the page before; at most `limit` follow.
        """
        dialect = self._database.dialect
        conditions = [
            _IS_NEWEST,
            _may("d", viewer, SEE),
            "(d.name, d.owner) > (:after_name, :after_owner)",
        ]
        conditions += ["d.name = :name"] if name else []
        conditions += [dialect.fits("d.name", "glob")] if name_glob else []
        statement = f"SELECT {_LISTING} WHERE {' AND '.join(conditions)} ORDER BY d.name, d.owner LIMIT :limit"
        parameters = {
            **_viewer(viewer),
            "glob": dialect.glob(name_glob),
            "name": name,
            "after_name": after[0],
            "after_owner": after[1],
            "limit": NO_LIMIT if limit is None else limit,
        }
        return await select(self._database, statement, parameters, _dataset_listing)

    async def delete_dataset(self, owner: str, name: str, number: int = 0) -> tuple[str, ...]:
        """Remove a version, or all with the dataset (0); the digests that are gone, () where there was none.

        The dataset goes with its last version. The content is released, and a count asked for.
        """
        one = " AND number = ?" if number else ""
        key: tuple[str | int, ...] = (owner, name, number) if number else (owner, name)

        def work(connection: Connection) -> tuple[str, ...]:
            where = f"FROM dataset_versions WHERE owner = ? AND name = ?{one}"
            gone = [row[0] for row in connection.execute(f"SELECT digest {where}", key).fetchall()]
            if not gone:
                return ()
            highest = _highest(connection, owner, name)
            connection.execute(f"DELETE {where}", key)
            connection.execute(
                "UPDATE datasets SET numbered = ? WHERE owner = ? AND name = ?",
                (highest, owner, name),
            )
            if _listing(connection, owner, name, 0) is None:
                connection.execute(
                    "DELETE FROM datasets WHERE owner = ? AND name = ?", (owner, name)
                )
            release(connection, owner, "", gone)
            add_kept(connection, owner, asked=1)
            return tuple(gone)

        return await self._database.write(work, touches={f"{owner}/{name}"})

    async def owned_by(self, owner: str) -> OwnedBy:
        """How many ended sessions and datasets an owner has."""
        [counts] = await select(
            self._database,
            "SELECT (SELECT count(*) FROM sessions WHERE owner = :owner),"
            " (SELECT count(*) FROM datasets WHERE owner = :owner)",
            {"owner": owner},
            OwnedBy._make,
        )
        return counts

    async def readers_of(self, digest: str) -> tuple[Dataset, ...]:
        """The datasets that have a version of this digest: who sees one may read the content."""
        return await select(
            self._database,
            f"SELECT DISTINCT {_DATASET_COLUMNS} FROM {_VERSIONS} WHERE v.digest = ?"
            " ORDER BY d.owner, d.name",
            (digest,),
            _DATASET.read,
        )

    async def versions_among(self, digests: Collection[str]) -> set[str]:
        """Those of the digests that name a version of any dataset."""
        wanted, dialect = sorted(digests), self._database.dialect

        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for start in range(0, len(wanted), _DIGESTS_A_STEP):
                rows = connection.execute(
                    "SELECT digest FROM dataset_versions"
                    f" WHERE {dialect.among('digest', 'digests')}",
                    {"digests": dialect.many(wanted[start : start + _DIGESTS_A_STEP])},
                )
                found |= {row[0] for row in rows}
            return found

        return await self._database.read(work)

    async def referred(self, after: tuple[int | str, ...] = ()) -> Referred:
        """What refers to objects, a page at a time: all that is there from the first page to the last.

        Behind the place that the page before ended at; a page may be empty and have a next one.
        """
        return await self._database.read(partial(referred, after))

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint; of two of one name the later saved one stands, see `values.later_of`.

        Making one durable keeps what was said of it when it was saved.
        """

        def work(connection: Connection) -> None:
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
        """Of one session, oldest first; behind the one with this time and name."""
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

    async def newest_durable(self, session_id: str) -> Checkpoint | None:
        """The last saved one with content, of the latest attempt that has one."""
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
        """Names of the checkpoints that were saved last, oldest first."""
        names = await select(
            self._database,
            "SELECT name FROM checkpoints WHERE session_id = ?"
            " ORDER BY saved_at DESC, name DESC LIMIT ?",
            (session_id, limit),
            itemgetter(0),
        )
        return names[::-1]

    async def checkpoint(self, session_id: str, name: str) -> Checkpoint | None:
        """By name."""
        return await self._database.read(
            lambda connection: _find_checkpoint(connection, session_id, name)
        )

    async def checkpoint_counts(
        self, session_ids: Collection[str]
    ) -> Mapping[str, CheckpointCount]:
        """Numbers of checkpoints of each session that has any, and when the newest was saved."""
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
        """The replicas of which checkpoints are SAVED: no node has reported what became of them."""
        return await saved_replicas(self._database, "checkpoints")

    async def lose_checkpoints(self, replica: ReplicaKey, why: str) -> int:
        """What is SAVED of a replica is LOST, unless its node reports otherwise later; how many that are."""
        return await lose_saved(self._database, "checkpoints", replica, why)

    async def delete_checkpoint(self, session_id: str, name: str, *, owner: str = "") -> bool:
        """Remove its row; False when it was not there. With `owner` its content is released, and a count asked for."""

        def work(connection: Connection) -> bool:
            known = _find_checkpoint(connection, session_id, name)
            if known is None:
                return False
            connection.execute(
                "DELETE FROM checkpoints WHERE session_id = ? AND name = ?", (session_id, name)
            )
            if owner:
                release(connection, owner, session_id, [known.digest or ""])
                add_kept(connection, owner, asked=1)
            return True

        return await self._database.write(work, touches={session_id})

    async def _one_session(self, condition: str, *values: str) -> SessionRecord | None:
        statement = f"SELECT {_SESSION.columns} FROM sessions WHERE {condition}"
        return await select_one(self._database, statement, values, _SESSION.read)


def _may(table: str, viewer: User, action: Action) -> str:
    """The condition of the rows of `table` with which the viewer may do this: what domain.policy.may says, in SQL."""
    rules = shared_rules(viewer, action)
    if rules is None:
        return "true"
    return f"({' OR '.join(_holds(table, rule) for rule in rules) or 'false'})"


def _holds(table: str, rule: Rule) -> str:
    """The condition that a rule holds, of viewers that have something in the field it asks for."""
    tests = []
    if rule.visibility is not None:
        tests.append(f"{table}.visibility = {int(rule.visibility)}")
    if rule.field:
        tests.append(f"{table}.{rule.field} = :viewer_{rule.own}")
    return f"({' AND '.join(tests) or 'true'})"


def _session_conditions(
    query: SessionQuery, after: PageKey | None, dialect: Dialect
) -> Iterator[str]:
    yield _may("sessions", query.viewer, SEE)
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
_DATASET = RowType(Dataset, visibility=Visibility)
_VERSION = RowType(DatasetVersion)
_VERSIONS = "datasets d JOIN dataset_versions v ON v.owner = d.owner AND v.name = d.name"
_DATASET_COLUMNS = ", ".join(f"d.{name}" for name in _DATASET.names)
_LISTING = (
    f"{_DATASET_COLUMNS}, {', '.join(f'v.{name}' for name in _VERSION.names)} FROM {_VERSIONS}"
)
_IS_NEWEST = (
    "v.number = (SELECT max(n.number) FROM dataset_versions n"
    " WHERE n.owner = d.owner AND n.name = d.name)"
)
_PUT_SESSION = _SESSION.upsert("sessions", ["id"])
_REPLACE_SESSION = (
    "UPDATE sessions SET "
    + ", ".join(f"{name} = :{name}" for name in _SESSION.names if name != "id")
    + " WHERE id = :id AND record = :known"
)
_PUT_DATASET = (
    f"{_DATASET.insert('datasets')} ON CONFLICT (owner, name) DO UPDATE SET"
    " team = excluded.team, visibility = excluded.visibility"
)
_PUT_VERSION = _VERSION.insert("dataset_versions")
_PUT_CHECKPOINT = _CHECKPOINT.upsert("checkpoints", ["session_id", "name"])


def _viewer(viewer: User) -> dict[str, Any]:
    fields_asked = {rule.own for rule in RULES if Kind.SHARED in rule.of and rule.own}
    return {f"viewer_{one}": getattr(viewer, one) for one in fields_asked}


def _session_row(session: SessionRecord) -> dict[str, Any]:
    return {**_SESSION.values(session), "request_id": session.request_id or None}


def _find_checkpoint(connection: Connection, session_id: str, name: str) -> Checkpoint | None:
    row = connection.execute(
        f"SELECT {_CHECKPOINT.columns} FROM checkpoints WHERE session_id = ? AND name = ?",
        (session_id, name),
    ).fetchone()
    return None if row is None else _CHECKPOINT.read(row)


def _highest(connection: Connection, owner: str, name: str) -> int:
    """The highest number that a version of a dataset has, or had."""
    (number,) = connection.execute(
        "SELECT max(number) FROM (SELECT number FROM dataset_versions WHERE owner = ? AND name = ?"
        " UNION ALL SELECT numbered FROM datasets WHERE owner = ? AND name = ?) AS numbers",
        (owner, name, owner, name),
    ).fetchone()
    return int(number or 0)


def _listing(connection: Connection, owner: str, name: str, number: int) -> DatasetListing | None:
    row = connection.execute(
        f"SELECT {_LISTING} WHERE d.owner = ? AND d.name = ? AND (v.number = ? OR ? = 0)"
        " ORDER BY v.number DESC LIMIT 1",
        (owner, name, number, number),
    ).fetchone()
    return None if row is None else _dataset_listing(row)


def _dataset_listing(row: tuple[Any, ...]) -> DatasetListing:
    cut = len(_DATASET.names)
    return DatasetListing(_DATASET.read(row[:cut]), _VERSION.read(row[cut:]))
