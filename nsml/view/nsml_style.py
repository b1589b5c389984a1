"""NSML's own tables, words and messages, for `nsml config set style nsml`.

Everything that the setting changes is here: commands hand over what they found. What a table of NSML showed and where
its forms come from is in docs/nsml.md; the facts and their tests are in `nsml.spec.nsml_compat`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.common.shell import shell_line
from nsml.common.units import memory_text, size_text, thousandths
from nsml.v1 import sessions_pb2
from nsml.view.sessions import command_words, end_text, summary_of, word_of
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.v1.boards_pb2 import BoardEntry
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.datasets_pb2 import Dataset
    from nsml.v1.nodes_pb2 import Node
    from nsml.v1.projects_pb2 import Project
    from nsml.v1.sessions_pb2 import Session

ZOMBIE_S: Final = 3_600.0
"""A session whose GPUs did nothing for this long is a Zombie, in seconds."""

_MINUTE, _HOUR, _DAY, _MONTH, _YEAR = 60, 3_600, 86_400, 2_592_000, 31_536_000
_AGES: Final = (
    # An age below the first number is the text, or the count of the second number with the text.
    (10, 0, "just now"),
    (45, 0, "seconds ago"),
    (90, 0, "a minute ago"),
    (45 * _MINUTE, _MINUTE, "minutes ago"),
    (90 * _MINUTE, 0, "an hour ago"),
    (22 * _HOUR, _HOUR, "hours ago"),
    (36 * _HOUR, 0, "a day ago"),
    (25 * _DAY, _DAY, "days ago"),
    (45 * _DAY, 0, "a month ago"),
    (345 * _DAY, _MONTH, "months ago"),
    (548 * _DAY, 0, "a year ago"),
)
_NOT_CREATED: Final = "Not created yet"
_QUEUED: Final = frozenset({sessions_pb2.SESSION_STATE_QUEUED, sessions_pb2.SESSION_STATE_HELD})
_ENDED: Final = frozenset(
    {
        sessions_pb2.SESSION_STATE_SUCCEEDED,
        sessions_pb2.SESSION_STATE_FAILED,
        sessions_pb2.SESSION_STATE_STOPPED,
    }
)
_LIVE: Final = frozenset(
    {
        sessions_pb2.SESSION_STATE_RUNNING,
        sessions_pb2.SESSION_STATE_PAUSED,
        sessions_pb2.SESSION_STATE_UNKNOWN,
        sessions_pb2.SESSION_STATE_STOPPING,
        sessions_pb2.SESSION_STATE_FINALIZING,
    }
)
_NEVER: Final = "0001-01-01T00:00:00Z"
"""Docker's time of what has not happened."""
_STATUS: Final = {
    sessions_pb2.SESSION_STATE_QUEUED: "Queued",
    sessions_pb2.SESSION_STATE_HELD: "Held",
    sessions_pb2.SESSION_STATE_PREPARING: "Allocated",
    **dict.fromkeys(_ENDED, "Exited"),
}
"""Other states are Running. NSML's public clusters had no queue: Queued and Held are ours."""
_TYPES: Final = {
    sessions_pb2.SESSION_STAGE_PREDICT: "submit",
    sessions_pb2.SESSION_STAGE_PREDICT_TEST: "submit(test)",
    sessions_pb2.SESSION_STAGE_EVALUATE: "evaluate",
    sessions_pb2.SESSION_STAGE_INFER: "infer",
}


def age_text(seconds: float) -> str:
    """Format an age in NSML's words: `just now`, `seconds ago`, `2 minutes ago`, `an hour ago`."""
    for below, unit, text in _AGES:
        if seconds < below:
            return f"{max(round(seconds / unit), 2)} {text}" if unit else text
    return f"{max(int(seconds // _YEAR), 2)} years ago"


def status_word(session: Session, now: float) -> str:
    """Return Allocated, Running, Zombie or Exited; Queued or Held if it waits."""
    word = _STATUS.get(session.state, "Running")
    return "Zombie" if word == "Running" and _is_zombie(session, now) else word


def _is_zombie(session: Session, now: float) -> bool:
    """Return whether its GPUs have done nothing for an hour, or a process was left on them."""
    if not session.episodes or session.episodes[-1].HasField("until"):
        return False
    last = session.episodes[-1]
    is_left = last.kind == sessions_pb2.EPISODE_KIND_ZOMBIE
    return is_left or now - seconds_of(last.since) >= ZOMBIE_S


def created_text(session: Session, now: float) -> str:
    """Return the age of a session; `Not created yet` before its first attempt."""
    if session.state in _QUEUED and not session.attempt:
        return _NOT_CREATED
    return age_text(now - seconds_of(session.created_at))


def summary_text(session: Session) -> str:
    """Return the last summary: keys in alphabetical order without `step`, numbers to 3 decimals."""
    values = summary_of(session)
    shown = {key: values[key] for key in sorted(values) if key != "step"}
    return ", ".join(
        f"{key}={_exact(round(value, 3) if isinstance(value, float) else value)}"
        for key, value in shown.items()
    )


def description_text(session: Session) -> str:
    """Return its memo; without one the session that it was made from: `submit of kim/mnist/3`."""
    if session.memo or not session.HasField("origin"):
        return session.memo
    origin = session.origin
    name = origin.name or origin.session
    is_submit = origin.kind == sessions_pb2.ORIGIN_KIND_SUBMISSION
    return f"submit of {name}" if is_submit else name


def sessions(sizes: Mapping[str, int]) -> tuple[Column[Session], ...]:
    """Return the columns of `ps`; `sizes`: bytes of all checkpoints by the session's id, where known."""

    def size(session: Session, _now: float) -> str:
        known = sizes.get(session.id, None if session.checkpoint_count else 0)
        return "-" if known is None else size_text(known)

    return (
        Column(key="name", title="Name", cell=lambda s, _: s.name),
        Column(key="created", title="Created", cell=created_text),
        Column(key="args", title="Args", cell=lambda s, _: shell_line(command_words(s))),
        Column(key="status", title="Status", cell=status_word),
        Column(key="summary", title="Summary", cell=lambda s, _: summary_text(s)),
        Column(key="description", title="Description", cell=lambda s, _: description_text(s)),
        Column(key="models", title="# of Models", cell=lambda s, _: str(s.checkpoint_count)),
        Column(key="size", title="Size", cell=size),
        Column(key="type", title="Type", cell=lambda s, _: _TYPES.get(s.spec.stage) or "normal"),
    )


def _last_report(checkpoint: Checkpoint) -> str:
    """Return all values of the last report before it, in their order and not rounded."""
    values = summary_of(checkpoint)
    if values and "step" not in values and checkpoint.HasField("step"):
        values = {**values, "step": checkpoint.step}
    return ", ".join(f"{key}={_exact(value)}" for key, value in values.items())


def _exact(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


CHECKPOINTS: tuple[Column[Checkpoint], ...] = (
    Column(key="name", title="Checkpoint", cell=lambda c, _: c.name),
    Column(
        key="modified",
        title="Last Modified",
        cell=lambda c, now: age_text(now - seconds_of(c.saved_at)),
    ),
    Column(
        key="elapsed",
        title="Elapsed",
        cell=lambda c, _: f"{c.elapsed_s if c.summary.fields else 0.0:.3f}",
    ),
    Column(key="summary", title="Summary", cell=lambda c, _: _last_report(c)),
    Column(key="size", title="Size", cell=lambda c, _: size_text(c.size_bytes)),
)
"""`model ls`: a checkpoint that was saved without a report has no summary, and 0.000."""

DATASETS: tuple[Column[Dataset], ...] = (
    Column(key="name", title="Name", cell=lambda d, _: d.name),
    Column(key="size", title="Size", cell=lambda d, _: size_text(d.size_bytes)),
    Column(
        key="modified",
        title="Last Modified",
        cell=lambda d, now: age_text(now - seconds_of(d.updated_at)),
    ),
    Column(key="author", title="Author", cell=lambda d, _: d.owner),
    Column(key="description", title="Description", cell=lambda d, _: d.description or d.message),
    Column(key="tag", title="Tag", cell=lambda d, _: " ".join(f"#{one}" for one in d.tags)),
)
"""`dataset ls`."""

BOARD: tuple[Column[BoardEntry], ...] = (
    Column(key="owner", title="Owner", cell=lambda e, _: e.owner),
    Column(key="score", title="Score", cell=lambda e, _: _score(e)),
    Column(
        key="submitted",
        title="Submitted",
        cell=lambda e, now: age_text(now - seconds_of(e.submitted_at)),
    ),
    Column(key="session", title="Session", cell=lambda e, _: e.session),
    Column(key="model", title="Model", cell=lambda e, _: e.checkpoint),
    Column(key="args", title="Args", cell=lambda e, _: e.args),
)
"""`dataset board`: submissions with a score, best first."""


def _score(entry: BoardEntry) -> str:
    return _exact(entry.score) if entry.HasField("score") else ""


def started_text(name: str) -> str:
    """Return the message of run, fork and resume about a session that was placed."""
    return f"Session {name} is started"


_MACHINE = (
    "Since cluster does not have enough computing resources, job has been aborted."
    " Please retry later"
)
_MESSAGES: Final[Mapping[str, Sequence[str]]] = {
    "NO_CAPACITY": ("Rejected: not enough resources for your request", _MACHINE),
    "CANNOT_EVER_FIT": (
        "Rejected: exceeded the maximum capacity of the cluster",
        "Error: No machine available that meets ALL your request such as CPU, RAM, Disk, GPU or its driver version",
    ),
    "NO_CREDIT": ("Rejected: not enough credit (balance: 0)", _MACHINE),
    "OVER_QUOTA": ("Error: Fail to run nsml session due to lack of available GPU for you",),
    **dict.fromkeys(("DENIED", "PERMISSION_DENIED"), ("Error: Invalid request",)),
}
"""NSML's messages by the reasons of errors."""


_SEALED = "Only nsml rm is valid for submit sessions"


def error_lines(reason: str, message: str, why: str = "") -> list[str]:
    """Return NSML's lines for an error, to be followed by its cause in our words: at least one line."""
    if why == _SEALED:
        return [f'Error: Invalid value for "SESSION": {_SEALED}']
    if reason == "NOT_FOUND" and "session" in message:
        return ['Error: Invalid value for "SESSION": No valid sessions']
    return [*_MESSAGES.get(reason, (f"Error: {message}",))]


CREDIT_S: Final = 60.0
"""GPU-seconds of one credit."""


def credit_of(project: Project) -> int | None:
    """Return the credit left in a project's budget in this period; None if its use is not known now."""
    usage = project.usage
    if not usage.HasField("gpu_seconds"):
        return None
    left = project.settings.budget.gpu_seconds - usage.gpu_seconds
    return max(int(left // CREDIT_S), 0)


def credit_text(record: Mapping[str, Any]) -> str:
    """`User : kim credit 29250 (project vision)`."""
    credit = "unknown" if record["credit"] is None else record["credit"]
    return f"User : {record['user']} credit {credit} (project {record['project']})"


class Count(NamedTuple):
    """Sessions in one state, and their GPUs."""

    state: str
    sessions: int
    gpu_thousandths: int


def counts(found: Sequence[Session]) -> list[Count]:
    """Count sessions by state, most first."""
    made: dict[str, Count] = {}
    for one in found:
        state = word_of(one).word
        gpus = one.spec.resources.gpu_thousandths * max(one.spec.replica_count, 1)
        before = made.get(state, Count(state, 0, 0))
        made[state] = Count(state, before.sessions + 1, before.gpu_thousandths + gpus)
    return sorted(made.values(), key=lambda one: (-one.sessions, one.state))


COUNTS: tuple[Column[Count], ...] = (
    Column(key="state", title="State", cell=lambda c, _: c.state, is_name=True),
    Column(key="sessions", title="Sessions", cell=lambda c, _: f"{c.sessions:,}"),
    Column(key="gpus", title="GPUs", cell=lambda c, _: thousandths(c.gpu_thousandths)),
)
"""`info`."""


def count_record(count: Count) -> dict[str, Any]:
    """Return a count in raw values."""
    return {
        "state": count.state.upper(),
        "sessions": count.sessions,
        "gpus": count.gpu_thousandths / 1000,
    }


def inspected(session: Session, pid: int) -> dict[str, Any]:
    """Return the state of a session's program in docker's words; `pid`: 0 if it does not run."""
    state, end = session.state, session.end
    is_requeued = bool(session.attempt) and state in {
        sessions_pb2.SESSION_STATE_QUEUED,
        sessions_pb2.SESSION_STATE_PREPARING,
    }
    is_running = state in _LIVE
    status = "running" if is_running else "exited" if state in _ENDED else "created"
    if state == sessions_pb2.SESSION_STATE_PAUSED:
        status = "paused"
    return {
        "Status": "restarting" if is_requeued else status,
        "Running": is_running,
        "Paused": state == sessions_pb2.SESSION_STATE_PAUSED,
        "Restarting": is_requeued,
        "OOMKilled": end.cause == sessions_pb2.CAUSE_OUT_OF_MEMORY,
        "Dead": state == sessions_pb2.SESSION_STATE_UNKNOWN,
        "Pid": pid,
        "ExitCode": end.exit_code,
        "Error": end_text(session),
        "StartedAt": moment_of(session, "started_at") or _NEVER,
        "FinishedAt": moment_of(session, "ended_at") or _NEVER,
    }


def docker_text(value: Any) -> str:
    """Format a value of `inspect`: `true`, `137`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def limits_of(
    nodes: Sequence[Node], projects: Sequence[Project], code_bytes: int
) -> dict[str, Any]:
    """Return the most that a replica may ask for, what all nodes have, the quotas of projects, and the largest code."""
    sizes = [one.capacity for one in nodes]
    return {
        "nodes": len(nodes),
        "gpus": max((one.gpu_thousandths for one in sizes), default=0) / 1000,
        "cpus": max((one.cpu_thousandths for one in sizes), default=0) / 1000,
        "memory_bytes": max((one.memory_bytes for one in sizes), default=0),
        "gpus_of_all_nodes": sum(one.gpu_thousandths for one in sizes) / 1000,
        "code_bytes": code_bytes,
        "project_gpus": {
            one.name: one.settings.quota.gpu_thousandths / 1000
            for one in projects
            if one.settings.quota.HasField("gpu_thousandths")
        },
    }


def limit_lines(limits: Mapping[str, Any]) -> list[str]:
    """Return the lines on limits for people (`run --show-limits`)."""
    rows = [
        ("-g, --gpus", f"{limits['gpus']:g} on one node, {limits['gpus_of_all_nodes']:g} in all"),
        ("-c, --cpus", f"{limits['cpus']:g}"),
        ("--memory", memory_text(limits["memory_bytes"])),
        ("code", f"{size_text(limits['code_bytes'])} (--max-size)"),
        *(
            (f"project {name}", f"{gpus:g} GPUs at once")
            for name, gpus in limits["project_gpus"].items()
        ),
    ]
    cells = max(len(title) for title, _ in rows)
    return [f"{title:<{cells}}  {text}" for title, text in rows]
