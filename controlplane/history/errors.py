"""The errors of the history; subclasses of those in domain.errors.

NsmlError
  Unavailable > HistoryUnavailable: input/output error, no answer, locked by another process
    HistoryFull: its disk is full
    HistoryDenied: access denied by its server
  AlreadyExists > HistoryConflict: another row has this name, request id, or charge
  LogElsewhere: reading a part of a log needs a missing block
  HistoryFenced: a later leader has written already
  HistoryCorrupt: the database is damaged; none of it is served
  HistoryTooNew: the database was written by a newer version
  HistoryRefused: the database, or the connection to it, is unsafe
"""

from __future__ import annotations

from controlplane.domain.errors import AlreadyExists, NsmlError, Unavailable


class HistoryUnavailable(Unavailable):
    """The database cannot be read or written now."""

    reason = "HISTORY_UNAVAILABLE"


class HistoryFull(HistoryUnavailable):
    """The database's disk is full; stored data can be read."""

    reason = "HISTORY_FULL"


class HistoryDenied(HistoryUnavailable):
    """The database's server denies access, or its identity is wrong."""


class HistoryConflict(AlreadyExists):
    """Another row has the same name, request id, or another value under the same key."""

    reason = "HISTORY_CONFLICT"


class HistoryCorrupt(NsmlError):
    """The database is damaged. It stays unchanged: move it away, and restore a copy."""

    reason = "HISTORY_CORRUPT"


class HistoryTooNew(NsmlError):
    """The database has a newer schema than this version."""

    reason = "HISTORY_TOO_NEW"


class HistoryRefused(NsmlError):
    """The database would not store writes safely, or the connection to it is unsafe."""

    reason = "HISTORY_REFUSED"


class HistoryFenced(NsmlError):
    """A leader of a later term has written: writes of earlier leaders are refused."""

    reason = "HISTORY_FENCED"


class LogElsewhere(NsmlError):
    """A part of a log to be read is in the block with this digest, which was not passed."""

    reason = "LOG_ELSEWHERE"

    def __init__(self, digest: str) -> None:
        super().__init__("a part of the log is in the object store", why=digest)
        self.digest = digest
