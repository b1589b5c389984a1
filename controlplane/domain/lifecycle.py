"""The life of a session and of its replicas, as tables. docs/lifecycle.md is made from them.

Nothing else decides which state follows which: operations name the event and ask `advance`.
"""

from __future__ import annotations

import enum


class SessionState(enum.StrEnum):
    """Where a session is; see nsml.v1.SessionState."""

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
        """True for the states that nothing leaves."""
        return self in _ENDED

    @property
    def holds_devices(self) -> bool:
        """True while an attempt is placed."""
        return self in _PLACED


class SessionEvent(enum.StrEnum):
    """What can happen to a session."""

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
"""State and event -> next state. What is not listed cannot happen."""


class ReplicaPhase(enum.StrEnum):
    """How far one replica of an attempt came; see nsml.v1.ReplicaPhase."""

    PLACED = "PLACED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    EXITED = "EXITED"
    FINALIZED = "FINALIZED"

    @property
    def is_gone(self) -> bool:
        """True when none of its processes is left."""
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
"""What a node may report next of a replica in this phase; anything else is an old report.

An attempt has no state beside this: it goes as far as its replicas, and is over when all are gone.
"""


def is_news(phase: ReplicaPhase, known: ReplicaPhase) -> bool:
    """Whether a report of `phase` says something to somebody who knows `known`."""
    return phase in REPLICA_LIFE[known]


class ImpossibleTransition(Exception):
    """An event that the table does not know in this state: a defect of the caller."""


def advance(state: SessionState, event: SessionEvent) -> SessionState:
    """Next state of a session; ImpossibleTransition when the table has none."""
    try:
        return SESSION_LIFE[state, event]
    except KeyError:
        raise ImpossibleTransition(f"a {state} session cannot be {event}") from None


def can(state: SessionState, event: SessionEvent) -> bool:
    """Whether the table has a next state."""
    return (state, event) in SESSION_LIFE
