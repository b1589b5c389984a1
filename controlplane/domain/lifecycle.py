"""The life cycle of sessions and replicas, as tables. docs/lifecycle.md is generated from them.

Nothing else decides the next state: operations pass the event to `advance`.
"""

from __future__ import annotations

import enum


class SessionState(enum.StrEnum):
    """State of a session; see nsml.v1.SessionState."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    UNKNOWN = "UNKNOWN"
    STOPPING = "STOPPING"
    FINALIZING = "FINALIZING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    HELD = "HELD"

    @property
    def is_ended(self) -> bool:
        """True for final states."""
        return self in _ENDED

    @property
    def holds_devices(self) -> bool:
        """True while an attempt is placed."""
        return self in _PLACED


class SessionEvent(enum.StrEnum):
    """Events that change a session's state."""

    PLACED = "placed"
    STARTED = "started"
    PAUSED = "paused"
    FELL_SILENT = "fell silent"
    HEARD_PREPARING = "heard preparing"
    STOP_REQUESTED = "stop requested"
    GONE = "gone"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    HELD = "held"
    RELEASED = "released"


_S, _E = SessionState, SessionEvent
_ENDED = frozenset({_S.SUCCEEDED, _S.FAILED, _S.STOPPED})
_PLACED = frozenset({_S.PREPARING, _S.RUNNING, _S.PAUSED, _S.UNKNOWN, _S.STOPPING})

SESSION_LIFE: dict[tuple[SessionState, SessionEvent], SessionState] = {
    (_S.QUEUED, _E.PLACED): _S.PREPARING,
    (_S.QUEUED, _E.STOPPED): _S.STOPPED,
    (_S.QUEUED, _E.HELD): _S.HELD,
    (_S.HELD, _E.RELEASED): _S.QUEUED,
    (_S.HELD, _E.STOPPED): _S.STOPPED,
    (_S.PREPARING, _E.STARTED): _S.RUNNING,
    (_S.PREPARING, _E.PAUSED): _S.PAUSED,
    (_S.PREPARING, _E.FELL_SILENT): _S.UNKNOWN,
    (_S.PREPARING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.PREPARING, _E.GONE): _S.FINALIZING,
    (_S.PREPARING, _E.REQUEUED): _S.QUEUED,
    (_S.PREPARING, _E.HELD): _S.HELD,
    (_S.RUNNING, _E.PAUSED): _S.PAUSED,
    (_S.RUNNING, _E.FELL_SILENT): _S.UNKNOWN,
    (_S.RUNNING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.RUNNING, _E.GONE): _S.FINALIZING,
    (_S.RUNNING, _E.REQUEUED): _S.QUEUED,
    (_S.RUNNING, _E.HELD): _S.HELD,
    (_S.PAUSED, _E.STARTED): _S.RUNNING,
    (_S.PAUSED, _E.FELL_SILENT): _S.UNKNOWN,
    (_S.PAUSED, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.PAUSED, _E.GONE): _S.FINALIZING,
    (_S.PAUSED, _E.REQUEUED): _S.QUEUED,
    (_S.PAUSED, _E.HELD): _S.HELD,
    (_S.UNKNOWN, _E.HEARD_PREPARING): _S.PREPARING,
    (_S.UNKNOWN, _E.STARTED): _S.RUNNING,
    (_S.UNKNOWN, _E.PAUSED): _S.PAUSED,
    (_S.UNKNOWN, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.UNKNOWN, _E.GONE): _S.FINALIZING,
    (_S.UNKNOWN, _E.REQUEUED): _S.QUEUED,
    (_S.UNKNOWN, _E.HELD): _S.HELD,
    (_S.STOPPING, _E.GONE): _S.FINALIZING,
    (_S.STOPPING, _E.REQUEUED): _S.QUEUED,
    (_S.STOPPING, _E.HELD): _S.HELD,
    (_S.FINALIZING, _E.SUCCEEDED): _S.SUCCEEDED,
    (_S.FINALIZING, _E.FAILED): _S.FAILED,
    (_S.FINALIZING, _E.STOPPED): _S.STOPPED,
}
"""State and event -> next state. Other pairs are impossible."""


class ReplicaPhase(enum.StrEnum):
    """Phase of one replica of an attempt; see nsml.v1.ReplicaPhase."""

    PLACED = "PLACED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    EXITED = "EXITED"
    FINALIZED = "FINALIZED"

    @property
    def is_gone(self) -> bool:
        """True if none of its processes is left."""
        return self in {ReplicaPhase.EXITED, ReplicaPhase.FINALIZED}


_P = ReplicaPhase

REPLICA_LIFE: dict[ReplicaPhase, tuple[ReplicaPhase, ...]] = {
    _P.PLACED: (_P.PREPARING, _P.RUNNING, _P.PAUSED, _P.EXITED, _P.FINALIZED),
    _P.PREPARING: (_P.RUNNING, _P.PAUSED, _P.EXITED, _P.FINALIZED),
    _P.RUNNING: (_P.PAUSED, _P.EXITED, _P.FINALIZED),
    _P.PAUSED: (_P.RUNNING, _P.EXITED, _P.FINALIZED),
    _P.EXITED: (_P.FINALIZED,),
    _P.FINALIZED: (),
}
"""Phases that a node may report after this one; any other report is old.

An attempt has no state of its own: it follows its replicas, and is over when all are gone.
"""


def is_news(phase: ReplicaPhase, known: ReplicaPhase) -> bool:
    """Return whether a report of `phase` is newer than `known`."""
    return phase in REPLICA_LIFE[known]


class ImpossibleTransition(Exception):
    """The table has no such event in this state: a defect of the caller."""


def advance(state: SessionState, event: SessionEvent) -> SessionState:
    """Return the next state of a session; ImpossibleTransition if the table has none."""
    try:
        return SESSION_LIFE[state, event]
    except KeyError:
        raise ImpossibleTransition(f"a {state} session cannot be {event}") from None


def can(state: SessionState, event: SessionEvent) -> bool:
    """Return whether the table has a next state."""
    return (state, event) in SESSION_LIFE
