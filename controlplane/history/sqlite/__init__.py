"""The history on SQLite, for one control plane."""

from __future__ import annotations

from controlplane.history.sqlite.history import SqliteHistory, open_history

__all__ = ["SqliteHistory", "open_history"]
