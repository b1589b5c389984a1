"""SQL: streams of records, telemetry, and the catalogue of ended sessions."""
