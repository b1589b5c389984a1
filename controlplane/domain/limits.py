"""Limits of one user, project or session in the platform's shared stores."""

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

    Limits per day refill evenly: a tenth in 2.4 hours, all in a day.

    Attributes:
        sessions, project_sessions: queued and running at one time, of a user and of a project.
        session_bytes: record of one session: arguments, variables, memo and the like.
        stored_bytes, project_stored_bytes: records of all sessions in the coordination store.
        write_bytes, write_bytes_per_s: burst and refill rate of a user's writes to the coordination store.
            etcd keeps every revision of a record until it compacts.
        upload_bytes: content sent by a user per day; each blob counts for 4 KiB at least.
        reported_bytes: records and log text reported by a user's sessions per day.
        session_log_bytes, session_metric_bytes: the same of one session, by kind.
        session_checkpoints: reported by a session per day.
        streams: open calls of one user on one control plane: watches, followed logs, transfers.
        request_bytes: memory for incomplete requests of all users, on one control plane.
        kept_bytes: distinct bytes of a user in the object store. None: `kept_share` decides.
        kept_share: one user's part of the disk space for users in the object store, if others have accounts.
        store_share: part of a store's free disk space that one user may fill per day.
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
"""Maximum and default time limit of a session by class, in seconds; absent: none."""
NO_TIME_LIMITS: Final[TimeLimits] = MappingProxyType({})
