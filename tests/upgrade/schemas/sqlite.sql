-- step 1
CREATE TABLE "schema_versions" (
   "version" INTEGER PRIMARY KEY NOT NULL,
   "taken_at" TEXT NOT NULL
);
CREATE TABLE "streams" (
   "id" INTEGER PRIMARY KEY NOT NULL,
   "session_id" TEXT NOT NULL,
   "attempt" INTEGER NOT NULL,
   "rank" INTEGER NOT NULL,
   "channel" INTEGER NOT NULL,
   "writer" INTEGER NOT NULL,
   "wanted" INTEGER NOT NULL
);
CREATE UNIQUE INDEX "idx_streams_session_id_attempt_rank_channel_writer"
    ON "streams" ("session_id", "attempt", "rank", "channel", "writer");
CREATE TABLE "chunks" (
   "id" INTEGER PRIMARY KEY NOT NULL,
   "stream_id" INTEGER NOT NULL,
   "first" INTEGER NOT NULL,
   "last" INTEGER NOT NULL,
   "received_at" REAL NOT NULL,
   "body" BLOB
);
CREATE UNIQUE INDEX "idx_chunks_stream_id_last"
    ON "chunks" ("stream_id", "last");
CREATE INDEX "idx_chunks_in_commit_order"
    ON "chunks" ("stream_id");
CREATE TABLE "summaries" (
   "session_id" TEXT PRIMARY KEY NOT NULL,
   "attempt" INTEGER NOT NULL,
   "time" REAL NOT NULL,
   "step" REAL,
   "report" TEXT NOT NULL
);
CREATE TABLE "metric_counts" (
   "session_id" TEXT NOT NULL,
   "name" TEXT NOT NULL,
   "points" INTEGER NOT NULL,
   PRIMARY KEY ("session_id", "name")
);
CREATE TABLE "telemetry" (
   "id" INTEGER PRIMARY KEY NOT NULL,
   "node" TEXT NOT NULL,
   "at" REAL NOT NULL,
   "body" BLOB NOT NULL
);
CREATE INDEX "idx_telemetry_node_at"
    ON "telemetry" ("node", "at");
CREATE INDEX "idx_telemetry_at"
    ON "telemetry" ("at");
CREATE TABLE "sessions" (
   "id" TEXT PRIMARY KEY NOT NULL,
   "name" TEXT NOT NULL,
   "owner" TEXT NOT NULL,
   "state" TEXT NOT NULL,
   "created_at" REAL NOT NULL,
   "ended_at" REAL NOT NULL,
   "record" BLOB NOT NULL,
   "project" TEXT NOT NULL,
   "team" TEXT NOT NULL,
   "visibility" INTEGER NOT NULL,
   "dataset" TEXT NOT NULL,
   "memo" TEXT NOT NULL,
   "arguments" TEXT NOT NULL,
   "request_id" TEXT
);
CREATE UNIQUE INDEX "idx_sessions_name"
    ON "sessions" ("name");
CREATE UNIQUE INDEX "idx_sessions_owner_request_id"
    ON "sessions" ("owner", "request_id");
CREATE INDEX "idx_sessions_created_at_id"
    ON "sessions" ("created_at", "id");
CREATE TABLE "checkpoints" (
   "session_id" TEXT NOT NULL,
   "name" TEXT NOT NULL,
   "saved_at" REAL NOT NULL,
   "size_bytes" INTEGER NOT NULL,
   "file_count" INTEGER NOT NULL,
   "state" TEXT NOT NULL,
   "digest" TEXT,
   "elapsed_s" REAL NOT NULL,
   "summary" TEXT NOT NULL,
   "step" REAL,
   "attempt" INTEGER NOT NULL,
   "rank" INTEGER NOT NULL,
   "node" TEXT NOT NULL,
   "folder" TEXT NOT NULL,
   PRIMARY KEY ("session_id", "name")
);
CREATE TABLE "datasets" (
   "owner" TEXT NOT NULL,
   "name" TEXT NOT NULL,
   "created_at" REAL NOT NULL,
   "team" TEXT NOT NULL,
   "visibility" INTEGER NOT NULL,
   PRIMARY KEY ("owner", "name")
);
CREATE TABLE "dataset_versions" (
   "owner" TEXT NOT NULL,
   "name" TEXT NOT NULL,
   "number" INTEGER NOT NULL,
   "digest" TEXT NOT NULL,
   "size_bytes" INTEGER NOT NULL,
   "file_count" INTEGER NOT NULL,
   "created_at" REAL NOT NULL,
   "message" TEXT NOT NULL,
   PRIMARY KEY ("owner", "name", "number")
);
CREATE INDEX "idx_dataset_versions_digest"
    ON "dataset_versions" ("digest");
CREATE TABLE "charges" (
   "session_id" TEXT NOT NULL,
   "attempt" INTEGER NOT NULL,
   "owner" TEXT NOT NULL,
   "project" TEXT NOT NULL,
   "gpu_thousandths" INTEGER NOT NULL,
   "seconds" REAL NOT NULL,
   "ended_at" REAL NOT NULL,
   PRIMARY KEY ("session_id", "attempt")
);
CREATE INDEX "idx_charges_owner_ended_at"
    ON "charges" ("owner", "ended_at");
CREATE INDEX "idx_charges_project_ended_at"
    ON "charges" ("project", "ended_at");
CREATE TABLE "audit" (
   "id" INTEGER PRIMARY KEY NOT NULL,
   "at" REAL NOT NULL,
   "actor" TEXT NOT NULL,
   "method" TEXT NOT NULL,
   "target" TEXT NOT NULL,
   "outcome" TEXT NOT NULL,
   "request_id" TEXT NOT NULL,
   "token" TEXT NOT NULL
);
CREATE TRIGGER audit_never_updates BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are only added'); END;
CREATE TRIGGER audit_never_deletes BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are only added'); END;
CREATE TRIGGER charges_never_updates BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'charges rows are only added'); END;
CREATE TRIGGER charges_never_deletes BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'charges rows are only added'); END;
INSERT INTO schema_versions (version, taken_at) VALUES (1, 'then');
-- step 2
ALTER TABLE "sessions" ADD COLUMN "searched" TEXT NOT NULL DEFAULT '';
CREATE TABLE "sessions_new" (
   "id" TEXT PRIMARY KEY NOT NULL,
   "name" TEXT NOT NULL,
   "owner" TEXT NOT NULL,
   "state" TEXT NOT NULL,
   "created_at" REAL NOT NULL,
   "ended_at" REAL NOT NULL,
   "record" BLOB NOT NULL,
   "project" TEXT NOT NULL,
   "team" TEXT NOT NULL,
   "visibility" INTEGER NOT NULL,
   "dataset" TEXT NOT NULL,
   "request_id" TEXT,
   "searched" TEXT NOT NULL DEFAULT ''
);
INSERT INTO "sessions_new" ("rowid", "id", "name", "owner", "state", "created_at", "ended_at", "record", "project", "team", "visibility", "dataset", "request_id", "searched")
   SELECT "rowid", "id", "name", "owner", "state", "created_at", "ended_at", "record", "project", "team", "visibility", "dataset", "request_id", "searched" FROM "sessions";
DROP TABLE "sessions";
ALTER TABLE "sessions_new" RENAME TO "sessions";
CREATE INDEX "idx_sessions_created_at_id"
    ON "sessions" ("created_at", "id");
CREATE UNIQUE INDEX "idx_sessions_owner_request_id"
    ON "sessions" ("owner", "request_id");
CREATE UNIQUE INDEX "idx_sessions_name"
    ON "sessions" ("name");
INSERT INTO schema_versions (version, taken_at) VALUES (2, 'then');
-- step 3
CREATE TABLE "properties" (
   "name" TEXT PRIMARY KEY NOT NULL,
   "value" TEXT NOT NULL
);
INSERT INTO schema_versions (version, taken_at) VALUES (3, 'then');
-- step 4
CREATE TABLE "telemetry_blocks" (
   "level" INTEGER NOT NULL,
   "node" TEXT NOT NULL,
   "start" REAL NOT NULL,
   "body" BLOB NOT NULL,
   PRIMARY KEY ("level", "node", "start")
);
CREATE INDEX "idx_telemetry_blocks_level_start"
    ON "telemetry_blocks" ("level", "start");
CREATE TABLE "telemetry_folds" (
   "level" INTEGER PRIMARY KEY NOT NULL,
   "until" REAL NOT NULL,
   "node" TEXT NOT NULL
);
INSERT INTO schema_versions (version, taken_at) VALUES (4, 'then');
-- step 5
CREATE TABLE "media" (
   "session_id" TEXT NOT NULL,
   "attempt" INTEGER NOT NULL,
   "rank" INTEGER NOT NULL,
   "file" TEXT NOT NULL,
   "name" TEXT NOT NULL,
   "kind" TEXT NOT NULL,
   "time" REAL NOT NULL,
   "step" REAL,
   "content_type" TEXT NOT NULL,
   "caption" TEXT NOT NULL,
   "facts" TEXT NOT NULL,
   "size_bytes" INTEGER NOT NULL,
   "state" TEXT NOT NULL,
   "root" TEXT,
   "why_lost" TEXT NOT NULL,
   PRIMARY KEY ("session_id", "attempt", "rank", "file")
);
CREATE INDEX "idx_media_session_id_time_attempt_rank_file"
    ON "media" ("session_id", "time", "attempt", "rank", "file");
INSERT INTO schema_versions (version, taken_at) VALUES (5, 'then');
-- step 6
CREATE TABLE "series_folds" (
   "session_id" TEXT PRIMARY KEY NOT NULL,
   "folded" INTEGER NOT NULL,
   "waiting" INTEGER NOT NULL,
   "since" REAL NOT NULL,
   "series" INTEGER NOT NULL,
   "left_out" INTEGER NOT NULL,
   "dropped" INTEGER NOT NULL
);
CREATE INDEX series_to_fold ON series_folds (since) WHERE waiting > 0;
CREATE TABLE "series" (
   "id" INTEGER PRIMARY KEY NOT NULL,
   "session_id" TEXT NOT NULL,
   "attempt" INTEGER NOT NULL,
   "rank" INTEGER NOT NULL,
   "name" TEXT NOT NULL
);
CREATE UNIQUE INDEX "idx_series_session_id_name_attempt_rank"
    ON "series" ("session_id", "name", "attempt", "rank");
CREATE TABLE "series_rows" (
   "series_id" INTEGER NOT NULL,
   "level" INTEGER NOT NULL,
   "number" INTEGER NOT NULL,
   "body" BLOB NOT NULL,
   PRIMARY KEY ("series_id", "level", "number")
);
CREATE INDEX chunks_lost ON chunks (stream_id) WHERE body IS NULL;
INSERT INTO series_folds (session_id, folded, waiting, since, series, left_out, dropped) SELECT DISTINCT session_id, 0, 1, 0, 0, 0, 0 FROM streams WHERE channel = 1 AND session_id NOT IN (SELECT session_id FROM series_folds);
INSERT INTO schema_versions (version, taken_at) VALUES (6, 'then');
-- step 7
CREATE INDEX media_saved ON media (session_id, attempt, rank) WHERE state = 'SAVED';
INSERT INTO schema_versions (version, taken_at) VALUES (7, 'then');
-- step 8
ALTER TABLE "streams" ADD COLUMN "archived" INTEGER NOT NULL DEFAULT 0;
CREATE INDEX logs_to_archive ON streams (session_id) WHERE channel = 2 AND archived < wanted;
INSERT INTO schema_versions (version, taken_at) VALUES (8, 'then');
-- step 9
ALTER TABLE "series_folds" ADD COLUMN "thinned" INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "series_folds" ADD COLUMN "coarsened" INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "series_folds" ADD COLUMN "let_go_at" REAL NOT NULL DEFAULT 0.0;
ALTER TABLE "series" ADD COLUMN "finest" INTEGER NOT NULL DEFAULT 1;
CREATE INDEX series_to_thin ON series_folds (session_id) WHERE waiting = 0 AND coarsened < folded;
INSERT INTO schema_versions (version, taken_at) VALUES (9, 'then');
-- step 10
CREATE TABLE sent_blobs (period INTEGER NOT NULL, caller TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (period, caller, digest)) WITHOUT ROWID;
INSERT INTO schema_versions (version, taken_at) VALUES (10, 'then');
-- step 11
ALTER TABLE audit ADD COLUMN calls INTEGER NOT NULL DEFAULT 1;
CREATE TABLE audit_trims (one INTEGER PRIMARY KEY);
DROP TRIGGER audit_never_deletes;
CREATE TRIGGER audit_never_deletes BEFORE DELETE ON audit WHEN NOT EXISTS (SELECT 1 FROM audit_trims) BEGIN SELECT RAISE(ABORT, 'audit rows are only added'); END;
INSERT INTO schema_versions (version, taken_at) VALUES (11, 'then');
-- step 12
ALTER TABLE summaries ADD COLUMN listed TEXT;
INSERT INTO schema_versions (version, taken_at) VALUES (12, 'then');
-- step 13
ALTER TABLE datasets ADD COLUMN numbered INTEGER NOT NULL DEFAULT 0;
CREATE TABLE kept_bytes (owner TEXT PRIMARY KEY, counted TEXT NOT NULL, counted_at REAL NOT NULL, sent INTEGER NOT NULL, asked INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE released_roots (owner TEXT NOT NULL, session_id TEXT NOT NULL, root TEXT NOT NULL, PRIMARY KEY (owner, session_id, root)) WITHOUT ROWID;
INSERT INTO schema_versions (version, taken_at) VALUES (13, 'then');
-- step 14
ALTER TABLE "checkpoints" ADD COLUMN "why_lost" TEXT NOT NULL DEFAULT '';
ALTER TABLE "checkpoints" ADD COLUMN "content_attempt" INTEGER NOT NULL DEFAULT 0;
ALTER TABLE "checkpoints" ADD COLUMN "content_saved_at" REAL NOT NULL DEFAULT 0.0;
CREATE INDEX checkpoints_to_settle ON checkpoints (session_id, attempt, rank) WHERE state = 'SAVED';
INSERT INTO schema_versions (version, taken_at) VALUES (14, 'then');
