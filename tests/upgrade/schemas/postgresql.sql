-- step 1
CREATE TABLE properties (name text COLLATE "C" NOT NULL PRIMARY KEY, value text COLLATE "C" NOT NULL);

-- `wanted` is the first position that is not stored. channel: see values.Channel.
CREATE TABLE streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
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
    session_id text COLLATE "C" NOT NULL PRIMARY KEY,
    attempt bigint NOT NULL,
    time double precision NOT NULL,
    step double precision,
    report text COLLATE "C" NOT NULL
);
CREATE TABLE metric_counts (
    session_id text COLLATE "C" NOT NULL,
    name bytea NOT NULL,
    points bigint NOT NULL,
    PRIMARY KEY (session_id, name)
);

CREATE TABLE telemetry (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX ON telemetry (node, at);
CREATE INDEX ON telemetry (at);
-- The newest reading of each node, whichever control plane it came to.
CREATE TABLE readings (
    node text COLLATE "C" NOT NULL PRIMARY KEY,
    boot_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    received_at double precision NOT NULL,
    body bytea NOT NULL
);

CREATE TABLE sessions (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    owner text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    record bytea NOT NULL,
    project text COLLATE "C" NOT NULL,
    team text COLLATE "C" NOT NULL,
    visibility smallint NOT NULL,
    dataset text COLLATE "C" NOT NULL,
    searched text COLLATE "C" NOT NULL,
    request_id text COLLATE "C",
    UNIQUE (owner, request_id)
);
CREATE INDEX ON sessions (created_at, id);

CREATE TABLE checkpoints (
    session_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    saved_at double precision NOT NULL,
    size_bytes bigint NOT NULL,
    file_count bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    digest text COLLATE "C",
    elapsed_s double precision NOT NULL,
    summary text COLLATE "C" NOT NULL,
    step double precision,
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    node text COLLATE "C" NOT NULL,
    folder text COLLATE "C" NOT NULL,
    PRIMARY KEY (session_id, name)
);

CREATE TABLE datasets (
    owner text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    team text COLLATE "C" NOT NULL,
    visibility smallint NOT NULL,
    PRIMARY KEY (owner, name)
);
CREATE TABLE dataset_versions (
    owner text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    digest text COLLATE "C" NOT NULL,
    size_bytes bigint NOT NULL,
    file_count bigint NOT NULL,
    created_at double precision NOT NULL,
    message text COLLATE "C" NOT NULL,
    PRIMARY KEY (owner, name, number)
);
CREATE INDEX ON dataset_versions (digest);

CREATE TABLE charges (
    session_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    project text COLLATE "C" NOT NULL,
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
    actor text COLLATE "C" NOT NULL,
    method text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL
);
CREATE FUNCTION rows_are_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows are only added', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added();
CREATE TRIGGER charges_are_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON charges
    FOR EACH STATEMENT EXECUTE FUNCTION rows_are_only_added();
INSERT INTO schema_versions (version) VALUES (1);
-- step 2
-- `body`: see history.cells, compressed already.
CREATE TABLE telemetry_blocks (
    level smallint NOT NULL,
    node text COLLATE "C" NOT NULL,
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
    node text COLLATE "C" NOT NULL
);
INSERT INTO schema_versions (version) VALUES (2);
-- step 3
-- Files that sessions showed; `name` is '' until the record of one has come.
CREATE TABLE media (
    session_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    file text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    time double precision NOT NULL,
    step double precision,
    content_type text COLLATE "C" NOT NULL,
    caption text COLLATE "C" NOT NULL,
    facts text COLLATE "C" NOT NULL,
    size_bytes bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    root text COLLATE "C",
    why_lost text COLLATE "C" NOT NULL,
    PRIMARY KEY (session_id, attempt, rank, file)
);
CREATE INDEX ON media (session_id, time, attempt, rank, file);
INSERT INTO schema_versions (version) VALUES (3);
-- step 4
-- Series of metrics and their levels; see controlplane.history.downsampling. `series_folds` says up to
-- which chunk those of a session are folded, and how many bytes of chunks wait since when.
CREATE TABLE series_folds (
    session_id text COLLATE "C" NOT NULL PRIMARY KEY,
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
    session_id text COLLATE "C" NOT NULL,
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
INSERT INTO series_folds (session_id, folded, waiting, since, series, left_out, dropped) SELECT DISTINCT session_id, 0, 1, 0, 0, 0, 0 FROM streams WHERE channel = 1 AND session_id NOT IN (SELECT session_id FROM series_folds);
INSERT INTO schema_versions (version) VALUES (4);
-- step 5
-- What came to each control plane last of its nodes; see history.sql.telemetry. Compressed already.
CREATE TABLE newest_readings (
    teller bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    told_at double precision NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE newest_readings ALTER COLUMN body SET STORAGE EXTERNAL;
DROP TABLE readings;
INSERT INTO schema_versions (version) VALUES (5);
-- step 6
-- Which media are on their nodes only, without a look at all the others.
CREATE INDEX media_saved ON media (session_id, attempt, rank) WHERE state = 'SAVED';
INSERT INTO schema_versions (version) VALUES (6);
-- step 7
-- `archived`: what a log has before this position is in blocks (controlplane.history.blocks), or lost.
ALTER TABLE streams ADD COLUMN archived bigint NOT NULL DEFAULT 0;
CREATE INDEX logs_to_archive ON streams (session_id)
    WHERE channel = 2 AND archived < wanted;
INSERT INTO schema_versions (version) VALUES (7);
-- step 8
-- What was let go of ended sessions; see history.sql.thinning. `thinned` and `coarsened`: the chunk up to
-- which points, and levels finer than `finest`, are gone.
ALTER TABLE series_folds ADD COLUMN thinned bigint NOT NULL DEFAULT 0;
ALTER TABLE series_folds ADD COLUMN coarsened bigint NOT NULL DEFAULT 0;
ALTER TABLE series_folds ADD COLUMN let_go_at double precision NOT NULL DEFAULT 0;
ALTER TABLE series ADD COLUMN finest smallint NOT NULL DEFAULT 1;
CREATE INDEX series_to_thin ON series_folds (session_id) WHERE waiting = 0 AND coarsened < folded;
INSERT INTO schema_versions (version) VALUES (8);
-- step 9
-- Which blobs callers have sent; see history.sql.sent.
CREATE TABLE sent_blobs (
    period bigint NOT NULL,
    caller text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    PRIMARY KEY (period, caller, digest)
);
INSERT INTO schema_versions (version) VALUES (9);
-- step 10
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
INSERT INTO schema_versions (version) VALUES (10);
-- step 11
-- `listed`: what lists carry of a long summary; see controlplane.history.summaries. Null: made of the report.
ALTER TABLE summaries ADD COLUMN listed text COLLATE "C";
INSERT INTO schema_versions (version) VALUES (11);
-- step 12
-- What the object store keeps for each user, and what they do not refer to any more; see history.sql.kept.
-- `numbered`: the highest number that a version of a dataset had.
ALTER TABLE datasets ADD COLUMN numbered bigint NOT NULL DEFAULT 0;
CREATE TABLE kept_bytes (
    owner text COLLATE "C" NOT NULL PRIMARY KEY,
    counted text COLLATE "C" NOT NULL,
    counted_at double precision NOT NULL,
    sent bigint NOT NULL,
    asked bigint NOT NULL
);
CREATE TABLE released_roots (
    owner text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    root text COLLATE "C" NOT NULL,
    PRIMARY KEY (owner, session_id, root)
);
INSERT INTO schema_versions (version) VALUES (12);
-- step 13
-- Why checkpoints are lost, and which save `digest` names; see values.Checkpoint.
ALTER TABLE checkpoints ADD COLUMN why_lost text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE checkpoints ADD COLUMN content_attempt bigint NOT NULL DEFAULT 0;
ALTER TABLE checkpoints ADD COLUMN content_saved_at double precision NOT NULL DEFAULT 0;
CREATE INDEX checkpoints_to_settle ON checkpoints (session_id, attempt, rank) WHERE state = 'SAVED';
INSERT INTO schema_versions (version) VALUES (13);
