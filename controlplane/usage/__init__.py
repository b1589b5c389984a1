"""Use of devices by sessions: telemetry, charges, and idle sessions."""
