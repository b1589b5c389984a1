"""What the history can refuse, by name; all of them are refusals of domain.errors.

NsmlError
  Unavailable > HistoryUnavailable: disk full, input/output error, locked by another process
  AlreadyExists > HistoryConflict: another row has this name, request id, or charge
  HistoryCorrupt: the database is damaged; nothing of it is served
  HistoryTooNew: the database was written by a newer version
"""

from __future__ import annotations

from controlplane.domain.errors import AlreadyExists, NsmlError, Unavailable


class HistoryUnavailable(Unavailable):
    """The database cannot be read or written now."""

    reason = "HISTORY_UNAVAILABLE"


class HistoryConflict(AlreadyExists):
    """Another row has the same name, request id, or another value under the same key."""

    reason = "HISTORY_CONFLICT"


class HistoryCorrupt(NsmlError):
    """The database is damaged. It is left as it is: move it away, and restore a copy."""

    reason = "HISTORY_CORRUPT"


class HistoryTooNew(NsmlError):
    """The database has a schema that this version does not know."""

    reason = "HISTORY_TOO_NEW"
