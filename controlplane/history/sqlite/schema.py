"""Tables, and how older ones become these. Migrations go forward only, each in one transaction.

`schema_versions` has a row for each step taken. A step is never edited once released: changes are
further steps (sqlite-utils' `transform` alters what SQLite cannot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.errors import HistoryTooNew
from controlplane.history.sql.appending import FOLD_WHAT_IS_THERE
from controlplane.history.values import Channel

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from sqlite_utils import Database
    from sqlite_utils.db import Table


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Take every step that the database lacks; HistoryTooNew when it has more than there are."""
    version = _version(connection)
    if version > len(STEPS):
        raise HistoryTooNew(
            f"the history at {path} was written by a newer version (schema {version})",
            why=f"this version knows schema {len(STEPS)}",
            attempt="start the newer version again",
        )
    if version == len(STEPS):
        return
    # Its import costs more than a start: only a database that changes pays for it.
    from sqlite_utils import Database  # noqa: PLC0415

    tables = Database(connection, recursive_triggers=False, execute_plugins=False)
    for number in range(version + 1, len(STEPS) + 1):
        with tables.atomic():
            STEPS[number - 1](tables)
            connection.execute(
                "INSERT INTO schema_versions (version, taken_at) VALUES (?, datetime('now'))",
                (number,),
            )


def _version(connection: sqlite3.Connection) -> int:
    there = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_versions'"
    ).fetchone()
    if there is None:
        return 0
    row = connection.execute("SELECT max(version) FROM schema_versions").fetchone()
    return int(row[0] or 0)


def _first(tables: Database) -> None:
    _table(tables, "schema_versions", {"version": int, "taken_at": str}, "version")
    _streams(tables)
    _sessions(tables)
    _datasets(tables)
    _ledger(tables)


def _streams(tables: Database) -> None:
    # `wanted` is the first position that is not stored. channel: see values.Channel.
    streams = _table(
        tables,
        "streams",
        {
            "id": int,
            "session_id": str,
            "attempt": int,
            "rank": int,
            "channel": int,
            "writer": int,
            "wanted": int,
        },
        "id",
    )
    streams.create_index(["session_id", "attempt", "rank", "channel", "writer"], unique=True)
    # `body` is a frame (nsml.content.framing) of records or log bytes; NULL for a gap. Ids grow
    # with each commit: followers resume by them.
    chunks = _table(
        tables,
        "chunks",
        {
            "id": int,
            "stream_id": int,
            "first": int,
            "last": int,
            "received_at": float,
            "body": bytes,
        },
        "id",
        optional={"body"},
    )
    chunks.create_index(["stream_id", "last"], unique=True)
    chunks.create_index(["stream_id"], index_name="idx_chunks_in_commit_order")
    _table(
        tables,
        "summaries",
        {"session_id": str, "attempt": int, "time": float, "step": float, "report": str},
        "session_id",
        optional={"step"},
    )
    _table(
        tables,
        "metric_counts",
        {"session_id": str, "name": str, "points": int},
        ("session_id", "name"),
    )
    telemetry = _table(
        tables, "telemetry", {"id": int, "node": str, "at": float, "body": bytes}, "id"
    )
    telemetry.create_index(["node", "at"])
    telemetry.create_index(["at"])


def _sessions(tables: Database) -> None:
    sessions = _table(
        tables,
        "sessions",
        {
            "id": str,
            "name": str,
            "owner": str,
            "state": str,
            "created_at": float,
            "ended_at": float,
            "record": bytes,
            "project": str,
            "team": str,
            "visibility": int,
            "dataset": str,
            "memo": str,
            "arguments": str,
            "request_id": str,
        },
        "id",
        optional={"request_id"},
    )
    sessions.create_index(["name"], unique=True)
    sessions.create_index(["owner", "request_id"], unique=True)
    sessions.create_index(["created_at", "id"])
    _table(
        tables,
        "checkpoints",
        {
            "session_id": str,
            "name": str,
            "saved_at": float,
            "size_bytes": int,
            "file_count": int,
            "state": str,
            "digest": str,
            "elapsed_s": float,
            "summary": str,
            "step": float,
            "attempt": int,
            "rank": int,
            "node": str,
            "folder": str,
        },
        ("session_id", "name"),
        optional={"digest", "step"},
    )


def _datasets(tables: Database) -> None:
    _table(
        tables,
        "datasets",
        {"owner": str, "name": str, "created_at": float, "team": str, "visibility": int},
        ("owner", "name"),
    )
    versions = _table(
        tables,
        "dataset_versions",
        {
            "owner": str,
            "name": str,
            "number": int,
            "digest": str,
            "size_bytes": int,
            "file_count": int,
            "created_at": float,
            "message": str,
        },
        ("owner", "name", "number"),
    )
    versions.create_index(["digest"])


def _ledger(tables: Database) -> None:
    charges = _table(
        tables,
        "charges",
        {
            "session_id": str,
            "attempt": int,
            "owner": str,
            "project": str,
            "gpu_thousandths": int,
            "seconds": float,
            "ended_at": float,
        },
        ("session_id", "attempt"),
    )
    charges.create_index(["owner", "ended_at"])
    charges.create_index(["project", "ended_at"])
    _table(
        tables,
        "audit",
        {
            "id": int,
            "at": float,
            "actor": str,
            "method": str,
            "target": str,
            "outcome": str,
            "request_id": str,
            "token": str,
        },
        "id",
    )
    for table in ("audit", "charges"):
        for change in ("UPDATE", "DELETE"):
            tables.execute(
                f"CREATE TRIGGER {table}_never_{change.lower()}s BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} rows are only added'); END"
            )


def _table(
    tables: Database,
    name: str,
    columns: dict[str, type],
    key: str | tuple[str, ...],
    *,
    optional: frozenset[str] | set[str] = frozenset(),
) -> Table:
    table = tables.table(name)
    table.create(columns, pk=key, not_null=set(columns) - optional)
    return table


def _searched(tables: Database) -> None:
    """One folded text to search in, instead of columns of which SQLite folds ASCII letters only."""
    sessions = tables.table("sessions")
    sessions.add_column("searched", str, not_null_default="")
    rows = tables.execute("SELECT id, name, memo, arguments FROM sessions").fetchall()
    tables.conn.executemany(
        "UPDATE sessions SET searched = ? WHERE id = ?",
        [("\n".join(texts).casefold(), session_id) for session_id, *texts in rows],
    )
    sessions.transform(drop={"memo", "arguments"})


def _marked(tables: Database) -> None:
    """What is said of the database as a whole; `mark`: see interface.History.mark."""
    _table(tables, "properties", {"name": str, "value": str}, "name")


def _telemetry_in_blocks(tables: Database) -> None:
    """`body`: see history.cells. `telemetry_folds`: up to where each level is made of the one below.

    `telemetry` has what older versions wrote, until that is too old.
    """
    blocks = _table(
        tables,
        "telemetry_blocks",
        {"level": int, "node": str, "start": float, "body": bytes},
        ("level", "node", "start"),
    )
    blocks.create_index(["level", "start"])
    _table(tables, "telemetry_folds", {"level": int, "until": float, "node": str}, "level")


def _media(tables: Database) -> None:
    """Files that sessions showed; `name` is "" until the record of one has come."""
    media = _table(
        tables,
        "media",
        {
            "session_id": str,
            "attempt": int,
            "rank": int,
            "file": str,
            "name": str,
            "kind": str,
            "time": float,
            "step": float,
            "content_type": str,
            "caption": str,
            "facts": str,
            "size_bytes": int,
            "state": str,
            "root": str,
            "why_lost": str,
        },
        ("session_id", "attempt", "rank", "file"),
        optional={"step", "root"},
    )
    media.create_index(["session_id", "time", "attempt", "rank", "file"])


def _folded(tables: Database) -> None:
    """Series of metrics and their levels; see controlplane.history.downsampling.

    `series_folds` says up to which chunk those of a session are folded, and how many bytes of
    chunks wait since when. Rows of level 0 are the open parts.
    """
    folds = _table(
        tables,
        "series_folds",
        {
            "session_id": str,
            "folded": int,
            "waiting": int,
            "since": float,
            "series": int,
            "left_out": int,
            "dropped": int,
        },
        "session_id",
    )
    tables.execute(f"CREATE INDEX series_to_fold ON {folds.name} (since) WHERE waiting > 0")
    series = _table(
        tables,
        "series",
        {"id": int, "session_id": str, "attempt": int, "rank": int, "name": str},
        "id",
    )
    series.create_index(["session_id", "name", "attempt", "rank"], unique=True)
    _table(
        tables,
        "series_rows",
        {"series_id": int, "level": int, "number": int, "body": bytes},
        ("series_id", "level", "number"),
    )
    tables.execute("CREATE INDEX chunks_lost ON chunks (stream_id) WHERE body IS NULL")
    tables.execute(FOLD_WHAT_IS_THERE)


def _media_on_nodes(tables: Database) -> None:
    """Which media are on their nodes only, without a look at all the others."""
    tables.execute(
        "CREATE INDEX media_saved ON media (session_id, attempt, rank) WHERE state = 'SAVED'"
    )


def _archived(tables: Database) -> None:
    """`archived`: what a log has before this position is in blocks (controlplane.history.blocks), or lost."""
    tables.table("streams").add_column("archived", int, not_null_default=0)
    tables.execute(
        "CREATE INDEX logs_to_archive ON streams (session_id)"
        f" WHERE channel = {int(Channel.LOG)} AND archived < wanted"
    )


def _thinned(tables: Database) -> None:
    """What was let go of ended sessions; see history.sql.thinning.

    `thinned` and `coarsened`: the chunk up to which points, and levels finer than `finest`, are gone.
    """
    folds = tables.table("series_folds")
    folds.add_column("thinned", int, not_null_default=0)
    folds.add_column("coarsened", int, not_null_default=0)
    folds.add_column("let_go_at", float, not_null_default=0.0)
    tables.table("series").add_column("finest", int, not_null_default=1)
    tables.execute(
        f"CREATE INDEX series_to_thin ON {folds.name} (session_id)"
        " WHERE waiting = 0 AND coarsened < folded"
    )


def _sent_blobs(tables: Database) -> None:
    """Which blobs callers have sent; see history.sql.sent."""
    tables.execute(
        "CREATE TABLE sent_blobs (period INTEGER NOT NULL, caller TEXT NOT NULL,"
        " digest TEXT NOT NULL, PRIMARY KEY (period, caller, digest)) WITHOUT ROWID"
    )


def _counted_audit(tables: Database) -> None:
    """Rows of the audit trail that stand for several calls, and the oldest of which may go.

    `audit_trims` has a row only inside of a transaction that removes some; see history.sql.ledger.
    """
    tables.execute("ALTER TABLE audit ADD COLUMN calls INTEGER NOT NULL DEFAULT 1")
    tables.execute("CREATE TABLE audit_trims (one INTEGER PRIMARY KEY)")
    tables.execute("DROP TRIGGER audit_never_deletes")
    tables.execute(
        "CREATE TRIGGER audit_never_deletes BEFORE DELETE ON audit"
        " WHEN NOT EXISTS (SELECT 1 FROM audit_trims)"
        " BEGIN SELECT RAISE(ABORT, 'audit rows are only added'); END"
    )


def _listed_summaries(tables: Database) -> None:
    """`listed`: what lists carry of a long summary; see controlplane.history.summaries. Null: made of the report."""
    tables.execute("ALTER TABLE summaries ADD COLUMN listed TEXT")


def _kept_bytes(tables: Database) -> None:
    """What the object store keeps for each user, and what they do not refer to any more; see history.sql.kept.

    `numbered`: the highest number that a version of a dataset had.
    """
    tables.execute("ALTER TABLE datasets ADD COLUMN numbered INTEGER NOT NULL DEFAULT 0")
    tables.execute(
        "CREATE TABLE kept_bytes (owner TEXT PRIMARY KEY, counted TEXT NOT NULL,"
        " counted_at REAL NOT NULL, sent INTEGER NOT NULL, asked INTEGER NOT NULL) WITHOUT ROWID"
    )
    tables.execute(
        "CREATE TABLE released_roots (owner TEXT NOT NULL, session_id TEXT NOT NULL,"
        " root TEXT NOT NULL, PRIMARY KEY (owner, session_id, root)) WITHOUT ROWID"
    )


def _lost_checkpoints(tables: Database) -> None:
    """Why checkpoints are lost, and which save `digest` names; see values.Checkpoint."""
    checkpoints = tables.table("checkpoints")
    checkpoints.add_column("why_lost", str, not_null_default="")
    checkpoints.add_column("content_attempt", int, not_null_default=0)
    checkpoints.add_column("content_saved_at", float, not_null_default=0.0)
    tables.execute(
        "CREATE INDEX checkpoints_to_settle ON checkpoints (session_id, attempt, rank)"
        " WHERE state = 'SAVED'"
    )


STEPS: tuple[Callable[[Database], None], ...] = (
    _first,
    _searched,
    _marked,
    _telemetry_in_blocks,
    _media,
    _folded,
    _media_on_nodes,
    _archived,
    _thinned,
    _sent_blobs,
    _counted_audit,
    _listed_summaries,
    _kept_bytes,
    _lost_checkpoints,
)
