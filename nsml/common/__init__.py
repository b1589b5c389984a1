"""Shared by all programs of the platform: clocks, tasks, settings, servers, logs, private files."""
