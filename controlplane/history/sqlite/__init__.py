"""The history on SQLite; the only place of the control plane's history that knows SQL."""

from __future__ import annotations

from controlplane.history.sqlite.history import SqliteHistory, open_history

__all__ = ["SqliteHistory", "open_history"]
