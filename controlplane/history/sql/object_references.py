"""References to objects, a page at a time."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.history.sql.bodies import REFERENCE_BYTES, REFERENCE_FLAG, referred_by
from controlplane.history.sql.queries import page
from controlplane.history.values import Channel, KeptKind, Reference, Referred

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.history.sql.interface import Connection

_PAGE_ROWS: Final = 1_000
_PAGE_RECORDS: Final = 200
_PAGE_LOGS: Final = 100

_RECORDS: Final = ("sessions", ("id",), "record")
_ROOTS: Final = (
    ("dataset_versions", ("owner", "name", "number"), "digest"),
    ("checkpoints", ("session_id", "name"), "digest"),
    ("media", ("session_id", "attempt", "rank", "file"), "root"),
    ("artifacts", ("session_id", "attempt", "rank", "folder"), "digest"),
    ("dataset_roots", ("owner", "name", "number", "kind", "path"), "digest"),
    # After the artifacts: a prediction is one of them until its session is removed.
    ("submissions", ("id",), "prediction_digest"),
)
_TABLES: Final = (_RECORDS, *_ROOTS)
_KINDS: Final = {
    "dataset_versions": KeptKind.DATASETS,
    "checkpoints": KeptKind.CHECKPOINTS,
    "media": KeptKind.MEDIA,
    "artifacts": KeptKind.ARTIFACTS,
    "dataset_roots": KeptKind.DATASETS,
    "submissions": KeptKind.ARTIFACTS,
}
_REMOVED: Final = {
    "dataset_versions": "removed_at",
    "dataset_roots": "(SELECT v.removed_at FROM dataset_versions v WHERE (v.owner, v.name, v.number)"
    " = (dataset_roots.owner, dataset_roots.name, dataset_roots.number))",
}
# Kept predictions count for the dataset's owner, who evaluates them again; as the dataset, for nobody once it is removed.
_WHO_EVALUATES: Final = (
    "CASE WHEN EXISTS (SELECT 1 FROM dataset_versions v WHERE v.owner = submissions.dataset_owner"
    " AND v.name = submissions.dataset AND v.removed_at = 0) THEN dataset_owner ELSE '' END"
)


def referred(after: tuple[int | str, ...], connection: Connection) -> Referred:
    """See SqlCatalogue. `after` is the number of a table, and the key of the last row read."""
    number, key = (int(after[0]), after[1:]) if after else (0, ())
    if number == len(_TABLES):
        return _blocks(key, connection)
    table, keys, column = _TABLES[number]
    limit = _PAGE_RECORDS if table == "sessions" else _PAGE_ROWS
    # A removed version refers to its content until it is purged, but counts for no owner.
    more = [_REMOVED[table]] if table in _REMOVED else []
    more += [_WHO_EVALUATES] if table == "submissions" else []
    columns = ", ".join((column, *keys, *more))
    query = page(columns, table, keys, after=key, limit=limit)
    rows = connection.execute(*query).fetchall()
    going_on = (number, *rows[-1][1 : 1 + len(keys)]) if len(rows) == limit else (number + 1,)
    if table == "submissions":
        kept = dict.fromkeys((row[0], row[-1]) for row in rows if row[0])
        references = [Reference(digest, _KINDS[table], owner) for digest, owner in kept]
        return Referred(roots=references, next=going_on)
    found = [(row[0], "" if more and row[-1] else row[1]) for row in rows if row[0]]
    if table == "sessions":
        return Referred(records=[record for record, _ in found], next=going_on)
    kind = _KINDS[table]
    distinct = list(dict.fromkeys(found))
    if kind is KeptKind.DATASETS:
        return Referred(
            roots=[Reference(digest, kind, owner) for digest, owner in distinct], next=going_on
        )
    holders = _holders_of(connection, (session_id for _, session_id in distinct))
    roots = [
        Reference(digest, kind, owner, session_id, project)
        for digest, session_id in distinct
        for owner, project in [holders.get(session_id, ("", ""))]
    ]
    return Referred(roots=roots, next=going_on)


def owners_of(connection: Connection, session_ids: Iterable[str]) -> dict[str, str]:
    """The owners of sessions in the catalogue, by id."""
    return {one: owner for one, (owner, _) in _holders_of(connection, session_ids).items()}


def _holders_of(connection: Connection, session_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Owner and project of sessions in the catalogue, by id."""
    found = {}
    for session_id in sorted(set(session_ids)):
        row = connection.execute(
            "SELECT owner, project FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        if row is not None:
            found[session_id] = str(row[0]), str(row[1])
    return found


def roots_of_session(connection: Connection, session_id: str) -> set[str]:
    """The manifests of a session's checkpoints, media and artifacts."""
    rows = connection.execute(
        "SELECT digest FROM checkpoints WHERE session_id = ?"
        " UNION SELECT root FROM media WHERE session_id = ?"
        " UNION SELECT digest FROM artifacts WHERE session_id = ?",
        (session_id, session_id, session_id),
    )
    return {row[0] for row in rows if row[0]}


def _blocks(key: tuple[int | str, ...], connection: Connection) -> Referred:
    """Page through blocks, about one per MiB of log: other rows are skipped without their bytes."""
    begin, behind = (int(key[0]), int(key[1])) if key else (0, -1)
    streams = connection.execute(
        f"SELECT id, session_id FROM streams WHERE channel = {int(Channel.LOG)} AND id >= ? ORDER BY id"
        f" LIMIT {_PAGE_LOGS}",
        (begin,),
    ).fetchall()
    holders = _holders_of(connection, (session_id for _, session_id in streams))
    found: list[Reference] = []
    for stream, session_id in streams:
        rows = connection.execute(
            "SELECT last, body FROM chunks WHERE stream_id = ? AND last > ?"
            f" AND length(body) = {REFERENCE_BYTES} AND substr(body, 1, 1) = ?"
            f" ORDER BY last LIMIT {_PAGE_ROWS}",
            (stream, behind if stream == begin else -1, REFERENCE_FLAG),
        ).fetchall()
        owner, project = holders.get(session_id, ("", ""))
        found += [
            Reference(referred_by(body), KeptKind.LOGS, owner, session_id, project)
            for _, body in rows
        ]
        if len(rows) == _PAGE_ROWS:
            return Referred(blobs=found, next=(len(_TABLES), stream, rows[-1][0]))
    is_more = len(streams) == _PAGE_LOGS
    return Referred(blobs=found, next=(len(_TABLES), streams[-1][0] + 1, -1) if is_more else None)
