"""The tables as values, and in which steps they came to be what they are.

A table, column or index that a feature needs is one more step at the end of `LATER`. A step is never edited once
released: databases that took it would not take it again. On PostgreSQL a newer control plane takes steps while an
older one still runs, so a step only adds what the version before can do without.

How each database words them is in its `migration.py`.
"""

# ruff: noqa: S608 - statements are put together from constants here

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from controlplane.history.errors import HistoryTooNew
from controlplane.history.values import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Column(NamedTuple):
    """A column."""

    name: str
    kind: str
    """`serial`: a number that the database gives; `int`, `small` (16 bits), `real`, `bytes`, `packed` (bytes that are
    compressed already), `text`, `any_text` (a text with any character: see Dialect.any_text)."""
    is_optional: bool
    default: str
    """As SQL; "": none."""


@dataclass(frozen=True)
class Table:
    """A table.

    `columns` is a list of `NAME KIND`, where `KIND?` may be null and `KIND=VALUE` has a default. `key`, `unique` and
    `indexes` are lists of names of columns.
    """

    name: str
    columns: str
    key: str
    unique: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    is_clustered: bool = False
    """Its rows are small and found by their key: SQLite then has no second index for that."""
    in_backups: bool = True
    """Whether a backup has it; False: it can be made again, or belongs to this database alone."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Its columns in their order."""
        return tuple(column.name for column in columns_of(self.columns))


@dataclass(frozen=True)
class AddColumns:
    """Further columns of a table, as in Table: each may be null or has a default."""

    table: str
    columns: str


@dataclass(frozen=True)
class Index:
    """An index over some rows of a table."""

    name: str
    table: str
    columns: str
    where: str


@dataclass(frozen=True)
class Statement:
    """Something that only one database needs, or that each says in its own words."""

    sqlite: str = ""
    postgresql: str = ""


Change: TypeAlias = Table | AddColumns | Index | Statement
Step: TypeAlias = tuple[Change, ...]


class Printer(ABC):
    """Steps in the words of a database: what both say alike."""

    kinds: ClassVar[Mapping[str, str]]

    def statements(self, step: Step) -> Iterator[str]:
        """What takes a step."""
        for change in step:
            match change:
                case Table():
                    yield from self.table(change)
                case AddColumns(table, columns):
                    for column in columns_of(columns):
                        yield f"ALTER TABLE {table} ADD COLUMN {self.column(column)}"
                case Index(name, table, columns, where):
                    yield f"CREATE INDEX {name} ON {table} ({columns}) WHERE {where}"
                case Statement():
                    yield from filter(None, [self.own(change)])

    @abstractmethod
    def table(self, table: Table) -> Iterator[str]:
        """What makes a table with its indexes."""

    @abstractmethod
    def own(self, statement: Statement) -> str:
        """What this database is told; "": nothing."""

    def column(self, column: Column) -> str:
        """A column as a table has it."""
        default = f" DEFAULT {column.default}" if column.default else ""
        null = "" if column.is_optional else " NOT NULL"
        return f"{column.name} {self.kinds[column.kind]}{null}{default}"


@cache
def columns_of(columns: str) -> tuple[Column, ...]:
    """The columns of a table's text."""
    return tuple(map(_column, names_of(columns)))


def names_of(columns: str) -> tuple[str, ...]:
    """The names of a text such as a table's key."""
    return tuple(name.strip() for name in columns.split(","))


def _column(text: str) -> Column:
    name, kind = text.split(maxsplit=1)
    kind, _, default = kind.partition("=")
    return Column(name, kind.removesuffix("?"), kind.endswith("?"), default)


def refuse_newer(version: int, steps: Sequence[Step], shown: str) -> None:
    """Raise HistoryTooNew for a database that has more steps than there are."""
    if version > len(steps):
        raise HistoryTooNew(
            f"the history at {shown} was written by a newer version (schema {version})",
            why=f"this version knows schema {len(steps)}",
            attempt="start the newer version again",
        )


FOLD_WHAT_IS_THERE: Final = (
    "INSERT INTO series_folds (session_id, folded, waiting, since, series, left_out, dropped)"
    " SELECT DISTINCT session_id, 0, 1, 0, 0, 0, 0 FROM streams"
    f" WHERE channel = {int(Channel.METRIC)}"
    " AND session_id NOT IN (SELECT session_id FROM series_folds)"
)

PROPERTIES: Final = Table("properties", "name text, value text", key="name", in_backups=False)
"""What is said of the database as a whole."""

SESSION_FACTS: Final = (
    "id text, name text, owner text, state text, created_at real, ended_at real, record bytes,"
    " project text, team text, visibility small, dataset text"
)
SESSIONS: Final = Table(
    "sessions",
    f"{SESSION_FACTS}, searched text, request_id text?",
    key="id",
    unique=("name", "owner, request_id"),
    indexes=("created_at, id",),
)

FIRST: Final[Step] = (
    # `wanted` is the first position that is not stored. channel: see values.Channel.
    Table(
        "streams",
        "id serial, session_id text, attempt int, rank int, channel small, writer int, wanted int",
        key="id",
        unique=("session_id, attempt, rank, channel, writer",),
    ),
    # `body` is a frame (nsml.content.framing) of records or log bytes; null for a gap. Ids grow
    # with each commit of a session: followers resume by them.
    Table(
        "chunks",
        "id serial, stream_id int, first int, last int, received_at real, body packed?",
        key="id",
        unique=("stream_id, last",),
    ),
    Statement(
        sqlite="CREATE INDEX idx_chunks_in_commit_order ON chunks (stream_id)",
        postgresql="CREATE INDEX chunks_in_commit_order ON chunks (stream_id, id)",
    ),
    Table(
        "summaries",
        "session_id text, attempt int, time real, step real?, report text",
        key="session_id",
    ),
    Table("metric_counts", "session_id text, name any_text, points int", key="session_id, name"),
    # What older versions wrote of nodes, until that is too old.
    Table(
        "telemetry",
        "id serial, node text, at real, body bytes",
        key="id",
        indexes=("node, at", "at"),
    ),
    Table(
        "checkpoints",
        "session_id text, name text, saved_at real, size_bytes int, file_count int, state text,"
        " digest text?, elapsed_s real, summary text, step real?, attempt int, rank int, node text,"
        " folder text",
        key="session_id, name",
    ),
    Table(
        "datasets",
        "owner text, name text, created_at real, team text, visibility small",
        key="owner, name",
    ),
    Table(
        "dataset_versions",
        "owner text, name text, number int, digest text, size_bytes int, file_count int,"
        " created_at real, message text",
        key="owner, name, number",
        indexes=("digest",),
    ),
    Table(
        "charges",
        "session_id text, attempt int, owner text, project text, gpu_thousandths int, seconds real,"
        " ended_at real",
        key="session_id, attempt",
        indexes=("owner, ended_at", "project, ended_at"),
    ),
    Table(
        "audit",
        "id serial, at real, actor text, method text, target text, outcome text, request_id text,"
        " token text",
        key="id",
    ),
)
"""With SESSIONS and PROPERTIES, which came to SQLite in steps of their own, and triggers that keep the ledger."""

LATER: Final[tuple[Step, ...]] = (
    (
        # `body`: see history.rollup.
        Table(
            "telemetry_blocks",
            "level small, node text, start real, body packed",
            key="level, node, start",
            indexes=("level, start",),
        ),
        # Up to where each level is made of the one below; `node`: of the span after that, the last one done.
        Table("telemetry_folds", "level small, until real, node text", key="level"),
    ),
    (
        # Files that sessions showed; `name` is "" until the record of one has come.
        Table(
            "media",
            "session_id text, attempt int, rank int, file text, name text, kind text, time real,"
            " step real?, content_type text, caption text, facts text, size_bytes int, state text,"
            " root text?, why_lost text",
            key="session_id, attempt, rank, file",
            indexes=("session_id, time, attempt, rank, file",),
        ),
    ),
    (
        # Series of metrics and their levels; see history.downsampling. `series_folds` says up to which chunk those
        # of a session are folded, and how many bytes of chunks wait since when.
        Table(
            "series_folds",
            "session_id text, folded int, waiting int, since real, series int, left_out int, dropped int",
            key="session_id",
        ),
        Index("series_to_fold", "series_folds", "since", where="waiting > 0"),
        Table(
            "series",
            "id serial, session_id text, attempt int, rank int, name any_text",
            key="id",
            unique=("session_id, name, attempt, rank",),
        ),
        # Rows of level 0 are the open parts.
        Table(
            "series_rows",
            "series_id int, level small, number int, body packed",
            key="series_id, level, number",
        ),
        Index("chunks_lost", "chunks", "stream_id", where="body IS NULL"),
        Statement(sqlite=FOLD_WHAT_IS_THERE, postgresql=FOLD_WHAT_IS_THERE),
    ),
    # Which media are on their nodes only, without a look at all the others.
    (Index("media_saved", "media", "session_id, attempt, rank", where="state = 'SAVED'"),),
    # `archived`: what a log has before this position is in blocks (history.blocks), or lost.
    (
        AddColumns("streams", "archived int=0"),
        Index(
            "logs_to_archive",
            "streams",
            "session_id",
            where=f"channel = {int(Channel.LOG)} AND archived < wanted",
        ),
    ),
    # What was let go of ended sessions; see history.sql.retention. `thinned` and `coarsened`: the chunk up to which
    # points, and levels finer than `finest`, are gone.
    (
        AddColumns("series_folds", "thinned int=0, coarsened int=0, let_go_at real=0"),
        AddColumns("series", "finest small=1"),
        Index(
            "series_to_thin",
            "series_folds",
            "session_id",
            where="waiting = 0 AND coarsened < folded",
        ),
    ),
    # Which blobs callers have sent; see history.sql.uploads.
    (
        Table(
            "sent_blobs",
            "period int, caller text, digest text",
            key="period, caller, digest",
            is_clustered=True,
            in_backups=False,
        ),
    ),
    # Rows of the audit trail that stand for several calls, and the oldest of which may go. `audit_trims` has a row
    # only inside of a transaction that removes some; see history.sql.ledger.
    (
        AddColumns("audit", "calls int=1"),
        Table("audit_trims", "one int?", key="one", in_backups=False),
        Statement(
            sqlite="DROP TRIGGER audit_never_deletes",
            postgresql="""
CREATE FUNCTION audit_rows_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM audit_trims) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% rows are only added', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$""",
        ),
        Statement(postgresql="DROP TRIGGER audit_is_only_added_to ON audit"),
        Statement(
            sqlite="CREATE TRIGGER audit_never_deletes BEFORE DELETE ON audit"
            " WHEN NOT EXISTS (SELECT 1 FROM audit_trims)"
            " BEGIN SELECT RAISE(ABORT, 'audit rows are only added'); END",
            postgresql="CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit"
            " FOR EACH STATEMENT EXECUTE FUNCTION audit_rows_are_only_added()",
        ),
    ),
    # `listed`: what lists carry of a long summary; see history.summaries. Null: made of the report.
    (AddColumns("summaries", "listed text?"),),
    # What the object store keeps for each user, and what they do not refer to any more; see history.sql.user_storage.
    # `numbered`: the highest number that a version of a dataset had.
    (
        AddColumns("datasets", "numbered int=0"),
        Table(
            "kept_bytes",
            "owner text, counted text, counted_at real, sent int, asked int",
            key="owner",
            is_clustered=True,
            in_backups=False,
        ),
        Table(
            "released_roots",
            "owner text, session_id text, root text",
            key="owner, session_id, root",
            is_clustered=True,
            in_backups=False,
        ),
    ),
    # Why checkpoints are lost, and which save `digest` names; see values.Checkpoint.
    (
        AddColumns(
            "checkpoints", "why_lost text='', content_attempt int=0, content_saved_at real=0"
        ),
        Index(
            "checkpoints_to_settle",
            "checkpoints",
            "session_id, attempt, rank",
            where="state = 'SAVED'",
        ),
    ),
    # By what an attempt can be priced later; see values.AttemptCharge.
    (
        AddColumns(
            "charges",
            "gpu_models text='', priority int=0, cause text='', durable_until real=0",
        ),
    ),
    # Where the object store has which blob; see history.sql.packs. `emptied_at`: since when nothing is read from it.
    (
        Table(
            "packs",
            "id serial, name text, stored int, put_at real, emptied_at real?",
            key="id",
            unique=("name",),
            in_backups=False,
        ),
        Table(
            "packed_blobs",
            "digest text, pack int, start int, stored int, size int, put_at real, aside_at real?,"
            " is_damaged small=0",
            key="digest",
            indexes=("pack",),
            is_clustered=True,
            in_backups=False,
        ),
        Index("packed_blobs_aside", "packed_blobs", "digest", where="aside_at IS NOT NULL"),
    ),
    # Removed versions of datasets stay until they are purged, descriptions, tags, and which ended sessions used which
    # version; see history.sql.datasets.
    (
        AddColumns("datasets", "description text=''"),
        AddColumns("dataset_versions", "removed_at real=0, removed_visibility small=1"),
        Index("dataset_versions_removed", "dataset_versions", "removed_at", where="removed_at > 0"),
        Table(
            "dataset_tags",
            "owner text, name text, tag text, number int",
            key="owner, name, tag",
            is_clustered=True,
        ),
        Table(
            "dataset_uses",
            "session_id text, owner text, name text, number int, used_at real",
            key="session_id, owner, name",
            indexes=("owner, name, used_at",),
        ),
    ),
    # What is said of checkpoints beside what their sessions reported; see history.sql.checkpoint_marks.
    (
        Table(
            "checkpoint_tags",
            "session_id text, tag text, name text",
            key="session_id, tag",
            is_clustered=True,
        ),
        Table(
            "checkpoint_uses",
            "session_id text, name text, used_by text, used_at real",
            key="session_id, name, used_by",
            indexes=("used_by",),
            is_clustered=True,
        ),
        Table(
            "retired_checkpoints",
            "session_id text, name text, attempt int, saved_at real, times int, size_bytes int,"
            " retired_at real",
            key="session_id, name",
            is_clustered=True,
        ),
    ),
    # Which packages sessions ran with; see history.sql.environment_locks.
    (
        Table(
            "environment_locks",
            "digest text, package_count int, content packed, uses int",
            key="digest",
        ),
        Table("session_locks", "session_id text, digest text", key="session_id", is_clustered=True),
    ),
    # What sessions saved in versions; see history.sql.artifacts. `numbered`: the highest version of a name so far.
    (
        Table(
            "artifacts",
            "session_id text, attempt int, rank int, folder text, name text, saved_at real, version int,"
            " size_bytes int, file_count int, step real?, node text, state text, digest text?,"
            " why_lost text",
            key="session_id, attempt, rank, folder",
            indexes=("session_id, name, version",),
        ),
        Index("artifacts_saved", "artifacts", "session_id, attempt, rank", where="state = 'SAVED'"),
        Table(
            "artifact_names",
            "session_id text, name text, numbered int",
            key="session_id, name",
            is_clustered=True,
        ),
    ),
    # Parts of datasets: who reads each, and the further manifests of versions; see history.sql.dataset_parts.
    (
        Table(
            "dataset_parts",
            "owner text, name text, path text, access small",
            key="owner, name, path",
            is_clustered=True,
        ),
        Table(
            "dataset_roots",
            "owner text, name text, number int, kind small, path text, digest text, size_bytes int,"
            " file_count int",
            key="owner, name, number, kind, path",
            indexes=("digest",),
            is_clustered=True,
        ),
    ),
    # Datasets in place; see nsml.content.in_place.
    (AddColumns("dataset_versions", "in_place text=''"),),
    # What is not in an artifact, or did not become of it.
    (AddColumns("artifacts", "note text=''"),),
    # Which sessions made versions of datasets; see history.sql.dataset_lineage. `command` and `datasets` are JSON.
    (
        Table(
            "dataset_lineage",
            "owner text, name text, number int, session_id text, session text, attempt int, code text,"
            " environment_lock text, command text, datasets text",
            key="owner, name, number",
            indexes=("session_id",),
        ),
    ),
    # As kept_bytes, of projects; `owner`: the project.
    (
        Table(
            "project_kept_bytes",
            "owner text, counted text, counted_at real, sent int, asked int",
            key="owner",
            is_clustered=True,
            in_backups=False,
        ),
    ),
    # Sessions that are being restored from backups; see history.sql.restores.
    (
        Table(
            "session_restores",
            "session_id text, begun_at real",
            key="session_id",
            is_clustered=True,
        ),
    ),
)
"""What follows. The version of a database counts its own steps before these: see each `migration.py`."""


def _backed_up() -> Iterator[Table]:
    steps = ((*FIRST, SESSIONS), *LATER)
    changes = [change for step in steps for change in step]
    for table in changes:
        if isinstance(table, Table) and table.in_backups:
            added = [
                change.columns
                for change in changes
                if isinstance(change, AddColumns) and change.table == table.name
            ]
            yield replace(table, columns=", ".join((table.columns, *added)))


BACKED_UP: Final[Mapping[str, Table]] = MappingProxyType(
    {table.name: table for table in _backed_up()}
)
"""The tables that backups have, as the last step leaves them."""
