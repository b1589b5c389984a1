"""The HTTP interface: health, readiness, metrics for Prometheus."""
