"""Reports on a replica, as messages of the contract."""

from __future__ import annotations

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.link.outbox import replica_message
from nodeagent.replica.progress import Progress
from nodeagent.runtimes.interface import ExitRecord, ExitWhy
from nsml.packages.distributions import missing_line
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

_SIGNALLED = 128
_LONGEST_MESSAGE = 4000
_LONGEST_SOURCE = 1_000
_PLACES = {
    "": "requirements.txt (or pyproject.toml)",
    "uv.lock": "pyproject.toml and uv.lock (uv add)",
}
"""Where to add a package, by the file that lists the present ones; for other files, there."""

_CAUSES: dict[ExitWhy, sessions.Cause] = {
    ExitWhy.STOPPED: sessions.CAUSE_STOP_REQUESTED,
    ExitWhy.TIME_LIMIT: sessions.CAUSE_TIME_LIMIT,
    ExitWhy.LOST_AFTER: sessions.CAUSE_LOST_AFTER,
    ExitWhy.START_FAILED: sessions.CAUSE_START_FAILED,
    ExitWhy.OUT_OF_MEMORY: sessions.CAUSE_OUT_OF_MEMORY,
    ExitWhy.LIMIT_EXCEEDED: sessions.CAUSE_LIMIT_EXCEEDED,
    ExitWhy.ENGINE_AWAY: sessions.CAUSE_NODE_REFUSED,
    ExitWhy.ENGINE_LOST: sessions.CAUSE_NODE_LOST,
    # Nobody saw the program end; the platform is at fault, as with a lost node.
    ExitWhy.SHIM_LOST: sessions.CAUSE_NODE_LOST,
}

_NEVER_RAN = frozenset({ExitWhy.START_FAILED, ExitWhy.ENGINE_AWAY})


def report_of(
    replica_id: ReplicaId,
    phase: pb.ReplicaPhase,
    *,
    at: float,
    end: pb.ReplicaExit | None = None,
    waiting: str = "",
    image: str = "",
    python_version: str = "",
) -> pb.ReplicaReport:
    """Return a report of a phase, entered at the Unix time `at`; `waiting` is a reason for people.

    `image` is that of its container, with digest; `python_version` that of its environment's Python.
    """
    report = pb.ReplicaReport(
        replica=replica_message(replica_id),
        phase=phase,
        exit=end,
        waiting=waiting,
        image=image,
        python_version=python_version,
    )
    report.at.FromMicroseconds(round(at * 1e6))
    return report


def placed_as(assignment: pb.Assignment, *, started_at: float) -> pb.PlacedAs:
    """Return a replica's placement in the orders, with its program's start (Unix seconds; 0: not started)."""
    placed = pb.PlacedAs(session_name=assignment.session_name, device_uuids=assignment.device_uuids)
    if started_at:
        placed.started_at.FromMicroseconds(round(started_at * 1e6))
    return placed


def progress_report(replica_id: ReplicaId, progress: Progress, *, now: float) -> pb.ProgressReport:
    """Return what a session would lose by being moved; `now`: of the monotonic clock of `progress`."""
    report = pb.ProgressReport(replica=replica_message(replica_id), resumable=progress.is_resumable)
    if progress.saved_at:
        report.since_saved.FromMicroseconds(round(max(now - progress.saved_since, 0.0) * 1e6))
    return report


def exit_of(record: ExitRecord, stop: pb.StopOrder | None, folder: ReplicaFolder) -> pb.ReplicaExit:
    """Return how a program ended; a stopped one has the cause of its order. `folder`: of its replica."""
    cause = _cause(record)
    message = _with_advice(record.message, folder)
    if record.why is ExitWhy.STOPPED and stop is not None and stop.cause:
        cause, message = stop.cause, stop.reason or message
    if record.signal is not None:
        code = _SIGNALLED + record.signal
        message = message or f"ended by signal {record.signal}"
    else:
        code = record.exit_code if record.exit_code is not None else -1
    end = _exit(cause, code, message)
    end.memory_peak_bytes = record.memory_peak_bytes
    if record.why not in _NEVER_RAN:
        end.started_at.FromMicroseconds(round(record.started_at * 1e6))
    end.ended_at.FromMicroseconds(round(record.ended_at * 1e6))
    end.ran_for.FromMicroseconds(round(record.duration_s * 1e6))
    return end


def exit_without_start(
    cause: sessions.Cause, message: str, *, at: float, exit_code: int = 1
) -> pb.ReplicaExit:
    """Return the end of a replica whose program never ran."""
    end = _exit(cause, exit_code, message)
    end.ended_at.FromMicroseconds(round(at * 1e6))
    return end


def _exit(cause: sessions.Cause, exit_code: int, message: str) -> pb.ReplicaExit:
    # Earlier control planes reject all of a node's reports for an unknown cause.
    is_refused = cause == sessions.CAUSE_NODE_REFUSED
    return pb.ReplicaExit(
        cause=sessions.CAUSE_START_FAILED if is_refused else cause,
        exit_code=exit_code,
        message=message[:_LONGEST_MESSAGE],
        node_refused=is_refused,
    )


def _with_advice(message: str, folder: ReplicaFolder) -> str:
    """Return the final exception of a program, with a missing package and the file to add it to."""
    line = missing_line(message)
    if not line:
        return message
    try:
        with folder.requirements.open(encoding="utf-8") as file:
            source = file.read(_LONGEST_SOURCE)
    except (OSError, ValueError):
        source = ""
    place = _PLACES.get(source, source.replace(" and ", " or "))
    return f"{message}; add to {place}: {line}"


def _cause(record: ExitRecord) -> sessions.Cause:
    if record.why is ExitWhy.EXITED:
        return sessions.CAUSE_COMPLETED if record.exit_code == 0 else sessions.CAUSE_PROGRAM_FAILED
    return _CAUSES[record.why]
