"""Records of sessions: ingest, downsampling, archiving, retention and summaries of logs and metrics."""
