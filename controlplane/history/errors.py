"""What the history can refuse, by name; all of them are refusals of domain.errors.

NsmlError
  Unavailable > HistoryUnavailable: input/output error, no answer, locked by another process
    HistoryFull: its disk has no room
    HistoryDenied: it is there, and does not let us in
  AlreadyExists > HistoryConflict: another row has this name, request id, or charge
  LogElsewhere: a part of a log is in a block, without which it cannot be read
  HistoryFenced: a later leader has written already
  HistoryCorrupt: the database is damaged; nothing of it is served
  HistoryTooNew: the database was written by a newer version
  HistoryRefused: the database must not be used as it is, or not by this way
"""

from __future__ import annotations

from controlplane.domain.errors import AlreadyExists, NsmlError, Unavailable


class HistoryUnavailable(Unavailable):
    """The database cannot be read or written now."""

    reason = "HISTORY_UNAVAILABLE"


class HistoryFull(HistoryUnavailable):
    """The database's disk has no room; what is there can be read."""

    reason = "HISTORY_FULL"


class HistoryDenied(HistoryUnavailable):
    """The database's server is there: it does not let us in, or is not who it should be."""


class HistoryConflict(AlreadyExists):
    """Another row has the same name, request id, or another value under the same key."""

    reason = "HISTORY_CONFLICT"


class HistoryCorrupt(NsmlError):
    """The database is damaged. It is left as it is: move it away, and restore a copy."""

    reason = "HISTORY_CORRUPT"


class HistoryTooNew(NsmlError):
    """The database has a schema that this version does not know."""

    reason = "HISTORY_TOO_NEW"


class HistoryRefused(NsmlError):
    """The database would not keep what is written to it safe, or the way to it is not."""

    reason = "HISTORY_REFUSED"


class HistoryFenced(NsmlError):
    """A leader of a later term has written: what an earlier one still has to say is not taken."""

    reason = "HISTORY_FENCED"


class LogElsewhere(NsmlError):
    """A part of a log that is to be read is in a block that was not given: that with this digest."""

    reason = "LOG_ELSEWHERE"

    def __init__(self, digest: str) -> None:
        super().__init__("a part of the log is in the object store", why=digest)
        self.digest = digest
