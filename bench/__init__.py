"""Benchmarks: each prints a table, or with --json one object {figures, peers, host}."""
