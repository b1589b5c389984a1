"""How much of the platform's shared stores one user, project or session may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from controlplane.domain.values import Priority

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits that the operator sets; 0 is no limit.

    Limits per day are allowances that refill evenly: whoever has used one up gets all of it back in
    a day, a tenth of it in 2.4 hours.

    Attributes:
        sessions, project_sessions: queued and running at one time, of a user and of a project.
        session_bytes: record of one session: arguments, variables, memo and the like.
        stored_bytes, project_stored_bytes: records of all sessions that are in the coordination store.
        write_bytes, write_bytes_per_s: what a user may have written to the coordination store at once, and how
            fast that refills. etcd keeps every revision of a record until it compacts.
        upload_bytes: content that a user may send in a day; each blob counts for 4 KiB at least.
        reported_bytes: records and log text that a user's sessions may report in a day.
        session_log_bytes, session_metric_bytes: the same of one session, by kind.
        session_checkpoints: that a session may report in a day.
        streams: calls of one user that stay open, on one control plane: watches, followed logs, transfers.
        request_bytes: memory for requests of all users that have not arrived whole, on one control plane.
        kept_bytes: distinct bytes that the object store keeps for a user. None: `kept_share` decides.
        kept_share: part of what users may fill of the store's disk that is kept for one user where others have accounts.
        store_share: part of the room that a store's disk has left which one user may fill in a day.
    """

    sessions: int = 10_000
    project_sessions: int = 50_000
    session_bytes: int = 64 << 10
    stored_bytes: int = 64 << 20
    project_stored_bytes: int = 256 << 20
    write_bytes: int = 64 << 20
    write_bytes_per_s: int = 256 << 10
    upload_bytes: int = 1 << 40
    reported_bytes: int = 64 << 30
    session_log_bytes: int = 4 << 30
    session_metric_bytes: int = 16 << 30
    session_checkpoints: int = 20_000
    streams: int = 256
    request_bytes: int = 512 << 20
    store_share: float = 0.5
    kept_bytes: int | None = None
    kept_share: float = 0.5


NO_LIMITS: Final = UserLimits(
    sessions=0,
    project_sessions=0,
    session_bytes=0,
    stored_bytes=0,
    project_stored_bytes=0,
    write_bytes=0,
    write_bytes_per_s=0,
    upload_bytes=0,
    reported_bytes=0,
    session_log_bytes=0,
    session_metric_bytes=0,
    session_checkpoints=0,
    streams=0,
    request_bytes=0,
    store_share=0.0,
    kept_bytes=0,
    kept_share=0.0,
)

TimeLimits: TypeAlias = Mapping[Priority, float]
"""The most seconds that a session of a class may run, and what it gets that asks for no limit; absent: none."""
NO_TIME_LIMITS: Final[TimeLimits] = MappingProxyType({})
