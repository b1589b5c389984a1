"""What is reached over HTTP: health, readiness, metrics for Prometheus."""
