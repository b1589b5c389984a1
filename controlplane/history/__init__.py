"""SQL: streams of records, telemetry, and the catalogue of what has ended."""
