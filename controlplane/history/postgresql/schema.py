"""Tables, and how older ones become these: forward only, all steps that lack in one transaction.

`schema_versions` has a row for each step taken. A step is never edited once released. Several
control planes may start at once: they take the steps under one lock, and whoever comes second finds
them taken. While an older control plane still runs, a newer one has migrated already: steps only
add what the version before can do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.history.errors import HistoryTooNew
from controlplane.history.sql.appending import FOLD_WHAT_IS_THERE
from controlplane.history.values import Channel

if TYPE_CHECKING:
    from controlplane.history.postgresql.connection import Line

LOCK: Final = 0x6E736D6C
"""Held while steps are taken; the letters nsml."""
MIGRATION_S: Final = 600

_TEXT: Final = 'text COLLATE "C" NOT NULL'

_FIRST: Final = f"""
CREATE TABLE properties (name {_TEXT} PRIMARY KEY, value {_TEXT});

-- `wanted` is the first position that is not stored. channel: see values.Channel.
CREATE TABLE streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id {_TEXT},
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    channel smallint NOT NULL,
    writer bigint NOT NULL,
    wanted bigint NOT NULL,
    UNIQUE (session_id, attempt, rank, channel, writer)
);

-- `body` is a frame (nsml.content.framing) of records or log bytes, compressed already; NULL for a
-- gap. Ids grow with each commit of a session: followers resume by them.
CREATE TABLE chunks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_id bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    received_at double precision NOT NULL,
    body bytea,
    UNIQUE (stream_id, last)
);
ALTER TABLE chunks ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX chunks_in_commit_order ON chunks (stream_id, id);

CREATE TABLE summaries (
    session_id {_TEXT} PRIMARY KEY,
    attempt bigint NOT NULL,
    time double precision NOT NULL,
    step double precision,
    report {_TEXT}
);
CREATE TABLE metric_counts (
    session_id {_TEXT},
    name bytea NOT NULL,
    points bigint NOT NULL,
    PRIMARY KEY (session_id, name)
);

CREATE TABLE telemetry (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node {_TEXT},
    at double precision NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX ON telemetry (node, at);
CREATE INDEX ON telemetry (at);
-- The newest reading of each node, whichever control plane it came to.
CREATE TABLE readings (
    node {_TEXT} PRIMARY KEY,
    boot_id {_TEXT},
    sequence bigint NOT NULL,
    received_at double precision NOT NULL,
    body bytea NOT NULL
);

CREATE TABLE sessions (
    id {_TEXT} PRIMARY KEY,
    name {_TEXT} UNIQUE,
    owner {_TEXT},
    state {_TEXT},
    created_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    record bytea NOT NULL,
    project {_TEXT},
    team {_TEXT},
    visibility smallint NOT NULL,
    dataset {_TEXT},
    searched {_TEXT},
    request_id text COLLATE "C",
    UNIQUE (owner, request_id)
);
CREATE INDEX ON sessions (created_at, id);

CREATE TABLE checkpoints (
    session_id {_TEXT},
    name {_TEXT},
    saved_at double precision NOT NULL,
    size_bytes bigint NOT NULL,
    file_count bigint NOT NULL,
    state {_TEXT},
    digest text COLLATE "C",
    elapsed_s double precision NOT NULL,
    summary {_TEXT},
    step double precision,
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    node {_TEXT},
    folder {_TEXT},
    PRIMARY KEY (session_id, name)
);

CREATE TABLE datasets (
    owner {_TEXT},
    name {_TEXT},
    created_at double precision NOT NULL,
    team {_TEXT},
    visibility smallint NOT NULL,
    PRIMARY KEY (owner, name)
);
CREATE TABLE dataset_versions (
    owner {_TEXT},
    name {_TEXT},
    number bigint NOT NULL,
    digest {_TEXT},
    size_bytes bigint NOT NULL,
    file_count bigint NOT NULL,
    created_at double precision NOT NULL,
    message {_TEXT},
    PRIMARY KEY (owner, name, number)
);
CREATE INDEX ON dataset_versions (digest);

CREATE TABLE charges (
    session_id {_TEXT},
    attempt bigint NOT NULL,
    owner {_TEXT},
    project {_TEXT},
    gpu_thousandths bigint NOT NULL,
    seconds double precision NOT NULL,
    ended_at double precision NOT NULL,
    PRIMARY KEY (session_id, attempt)
);
CREATE INDEX ON charges (owner, ended_at);
CREATE INDEX ON charges (project, ended_at);
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    actor {_TEXT},
    method {_TEXT},
    target {_TEXT},
    outcome {_TEXT},
    request_id {_TEXT},
    token {_TEXT}
);
CREATE FUNCTION rows_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows are only added', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added();
CREATE TRIGGER charges_are_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON charges
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added();
"""

_TELEMETRY_IN_BLOCKS: Final = f"""
-- `body`: see history.cells, compressed already.
CREATE TABLE telemetry_blocks (
    level smallint NOT NULL,
    node {_TEXT},
    start double precision NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (level, node, start)
);
ALTER TABLE telemetry_blocks ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX ON telemetry_blocks (level, start);
-- Up to where each level is made of the one below; `node`: of the span after that, the last one done.
CREATE TABLE telemetry_folds (
    level smallint PRIMARY KEY,
    until double precision NOT NULL,
    node {_TEXT}
);
"""

_MEDIA: Final = f"""
-- Files that sessions showed; `name` is '' until the record of one has come.
CREATE TABLE media (
    session_id {_TEXT},
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    file {_TEXT},
    name {_TEXT},
    kind {_TEXT},
    time double precision NOT NULL,
    step double precision,
    content_type {_TEXT},
    caption {_TEXT},
    facts {_TEXT},
    size_bytes bigint NOT NULL,
    state {_TEXT},
    root text COLLATE "C",
    why_lost {_TEXT},
    PRIMARY KEY (session_id, attempt, rank, file)
);
CREATE INDEX ON media (session_id, time, attempt, rank, file);
"""

_FOLDED: Final = f"""
-- Series of metrics and their levels; see controlplane.history.downsampling. `series_folds` says up to
-- which chunk those of a session are folded, and how many bytes of chunks wait since when.
CREATE TABLE series_folds (
    session_id {_TEXT} PRIMARY KEY,
    folded bigint NOT NULL,
    waiting bigint NOT NULL,
    since double precision NOT NULL,
    series bigint NOT NULL,
    left_out bigint NOT NULL,
    dropped bigint NOT NULL
);
CREATE INDEX series_to_fold ON series_folds (since) WHERE waiting > 0;
CREATE TABLE series (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id {_TEXT},
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    name bytea NOT NULL,
    UNIQUE (session_id, name, attempt, rank)
);
-- Rows of level 0 are the open parts.
CREATE TABLE series_rows (
    series_id bigint NOT NULL,
    level smallint NOT NULL,
    number bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (series_id, level, number)
);
ALTER TABLE series_rows ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX chunks_lost ON chunks (stream_id) WHERE body IS NULL;
{FOLD_WHAT_IS_THERE};
"""

_NEWEST_READINGS: Final = """
-- What came to each control plane last of its nodes; see history.sql.telemetry. Compressed already.
CREATE TABLE newest_readings (
    teller bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    told_at double precision NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE newest_readings ALTER COLUMN body SET STORAGE EXTERNAL;
DROP TABLE readings;
"""

_MEDIA_ON_NODES: Final = """
-- Which media are on their nodes only, without a look at all the others.
CREATE INDEX media_saved ON media (session_id, attempt, rank) WHERE state = 'SAVED';
"""

_ARCHIVED: Final = f"""
-- `archived`: what a log has before this position is in blocks (controlplane.history.blocks), or lost.
ALTER TABLE streams ADD COLUMN archived bigint NOT NULL DEFAULT 0;
CREATE INDEX logs_to_archive ON streams (session_id)
    WHERE channel = {int(Channel.LOG)} AND archived < wanted;
"""

_THINNED: Final = """
-- What was let go of ended sessions; see history.sql.thinning. `thinned` and `coarsened`: the chunk up to
-- which points, and levels finer than `finest`, are gone.
ALTER TABLE series_folds ADD COLUMN thinned bigint NOT NULL DEFAULT 0;
ALTER TABLE series_folds ADD COLUMN coarsened bigint NOT NULL DEFAULT 0;
ALTER TABLE series_folds ADD COLUMN let_go_at double precision NOT NULL DEFAULT 0;
ALTER TABLE series ADD COLUMN finest smallint NOT NULL DEFAULT 1;
CREATE INDEX series_to_thin ON series_folds (session_id) WHERE waiting = 0 AND coarsened < folded;
"""

_SENT_BLOBS: Final = f"""
-- Which blobs callers have sent; see history.sql.sent.
CREATE TABLE sent_blobs (
    period bigint NOT NULL,
    caller {_TEXT},
    digest {_TEXT},
    PRIMARY KEY (period, caller, digest)
);
"""

_COUNTED_AUDIT: Final = """
-- Rows of the audit trail that stand for several calls, and the oldest of which may go. `audit_trims` has a row
-- only inside of a transaction that removes some; see history.sql.ledger.
ALTER TABLE audit ADD COLUMN calls bigint NOT NULL DEFAULT 1;
CREATE TABLE audit_trims (one bigint PRIMARY KEY);
CREATE FUNCTION audit_rows_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM audit_trims) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% rows are only added', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
DROP TRIGGER audit_is_only_added_to ON audit;
CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_rows_are_only_added();
"""

_LISTED_SUMMARIES: Final = """
-- `listed`: what lists carry of a long summary; see controlplane.history.summaries. Null: made of the report.
ALTER TABLE summaries ADD COLUMN listed text COLLATE "C";
"""

_KEPT_BYTES: Final = f"""
-- What the object store keeps for each user, and what they do not refer to any more; see history.sql.kept.
-- `numbered`: the highest number that a version of a dataset had.
ALTER TABLE datasets ADD COLUMN numbered bigint NOT NULL DEFAULT 0;
CREATE TABLE kept_bytes (
    owner {_TEXT} PRIMARY KEY,
    counted {_TEXT},
    counted_at double precision NOT NULL,
    sent bigint NOT NULL,
    asked bigint NOT NULL
);
CREATE TABLE released_roots (
    owner {_TEXT},
    session_id {_TEXT},
    root {_TEXT},
    PRIMARY KEY (owner, session_id, root)
);
"""

_LOST_CHECKPOINTS: Final = """
-- Why checkpoints are lost, and which save `digest` names; see values.Checkpoint.
ALTER TABLE checkpoints ADD COLUMN why_lost text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE checkpoints ADD COLUMN content_attempt bigint NOT NULL DEFAULT 0;
ALTER TABLE checkpoints ADD COLUMN content_saved_at double precision NOT NULL DEFAULT 0;
CREATE INDEX checkpoints_to_settle ON checkpoints (session_id, attempt, rank) WHERE state = 'SAVED';
"""

STEPS: tuple[str, ...] = (
    _FIRST,
    _TELEMETRY_IN_BLOCKS,
    _MEDIA,
    _FOLDED,
    _NEWEST_READINGS,
    _MEDIA_ON_NODES,
    _ARCHIVED,
    _THINNED,
    _SENT_BLOBS,
    _COUNTED_AUDIT,
    _LISTED_SUMMARIES,
    _KEPT_BYTES,
    _LOST_CHECKPOINTS,
)


def migrate(line: Line, shown: str) -> None:
    """Take every step that the database lacks; HistoryTooNew when it has more than there are."""
    with line.transaction():
        line.run(f"SET LOCAL lock_timeout = '{MIGRATION_S}s'")
        line.run(f"SET LOCAL statement_timeout = '{MIGRATION_S}s'")
        line.run(f"SELECT pg_advisory_xact_lock({LOCK})")
        line.run(
            "CREATE TABLE IF NOT EXISTS schema_versions"
            " (version bigint PRIMARY KEY, taken_at timestamptz NOT NULL DEFAULT now())"
        )
        version: int = line.ask("SELECT coalesce(max(version), 0) FROM schema_versions")[0]
        if version > len(STEPS):
            raise HistoryTooNew(
                f"the history at {shown} was written by a newer version (schema {version})",
                why=f"this version knows schema {len(STEPS)}",
                attempt="start the newer version again",
            )
        for number in range(version + 1, len(STEPS) + 1):
            line.run(STEPS[number - 1])
            line.run(f"INSERT INTO schema_versions (version) VALUES ({number})")  # noqa: S608
