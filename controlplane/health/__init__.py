"""Slow or hidden failures: probes and warnings, and the health that callers request."""
