"""The status of one session as lines, the same in every program. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.shell import shell_line
from nsml.common.units import ago, duration_text, short_moment
from nsml.spec.output_datasets import NO_VERSION, output_dataset
from nsml.spec.run_flags import FLAGS
from nsml.v1.sessions_pb2 import (
    CAUSE_PROGRAM_FAILED,
    SESSION_STATE_RUNNING,
    SESSION_STATE_SUCCEEDED,
    SESSION_STATE_UNKNOWN,
)
from nsml.view.complete_sessions import lacks_changes
from nsml.view.program_changes import MADE, OPEN
from nsml.view.program_changes import line as change_line
from nsml.view.progress import progress_text
from nsml.view.queue import waiting_lines
from nsml.view.reported_config import lines as config_lines
from nsml.view.sessions import (
    SIMULATED,
    WAITING_STATES,
    attempt_lines,
    driver_versions,
    git_text,
    images_text,
    initial_text,
    lock_text,
    log_of_first,
    lost_text,
    origin_text,
    placed_text,
    python_versions,
    ran_s,
    ran_text,
    state_text,
    stop_text,
    submission_text,
    words_of_hold,
)
from nsml.view.times import seconds_of
from nsml.view.usage import episode_lines, idle_text, taken_text, usage_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsml.v1.artifacts_pb2 import Artifact
    from nsml.v1.sessions_pb2 import Session, Waiting

MOST_CHANGES = 5
"""Most shown changes of running programs, applied or pending; `nsml set SESSION` shows more."""
_MOMENTS = (("created", "created_at"), ("started", "started_at"), ("ended", "ended_at"))


def lines(
    session: Session,
    waiting: Waiting | None,
    now: float,
    artifacts: Iterable[Artifact] | None = None,
) -> list[str]:
    """Describe its state and the reason, where it runs, its use of devices, and earlier attempts.

    `artifacts`: its artifacts; needed if it `lacks_outputs`. Without them its output datasets are left out:
    sessions of lists and watches do not have the versions that they made.
    """
    found = [f"{session.name}  {state_text(session)}"]
    if waiting is not None:
        found += waiting_lines(waiting, now)
    elif session.waiting:
        found.append(f"  why: {session.waiting}")
    if told := stop_text(session, now):
        found.append(f"  why: {told}")
    if session.state == SESSION_STATE_UNKNOWN:
        found.append("  why: no contact with its node; it may still be running, and keeps its GPUs")
    found += _end_lines(session)
    if lost := lost_text(session):
        found.append(f"  {lost}")
    if pointer := log_of_first(session) or _log_of_failed(session):
        found.append(f"  see: {pointer}")
    found += _source_lines(session)
    asked = ((flag.status_title, flag.text(session)) for flag in FLAGS if flag.status_title)
    found += [f"  {title}: {text}" for title, text in asked if text]
    for name, why in outputs_not_made(session, artifacts) if artifacts is not None else ():
        found.append(f"  not made: a version of {name}: {why}")
    if session.replicas:
        found += _place_lines(session)
    found += [f"  {line}" for line in config_lines(session)]
    found += _change_lines(session)
    if progress := progress_text(session, now):
        found.append(f"  progress: {progress}")
    return [*found, *_use_lines(session, now), *(f"  {line}" for line in attempt_lines(session))]


def lacks_outputs(session: Session) -> list[str]:
    """Return the output datasets of an ended session without a visible version made by it."""
    if not session.HasField("ended_at") or session.HasField("imported"):
        return []
    made = {one.name.rpartition("/")[2] for one in session.made_datasets}
    names = (output_dataset(text).name for text in session.spec.output_datasets)
    return [name for name in names if name not in made]


def outputs_not_made(session: Session, artifacts: Iterable[Artifact]) -> list[tuple[str, str]]:
    """Return these, each with the reason."""
    last = {one.name: one for one in artifacts if one.attempt == session.attempt}
    found = []
    for name in lacks_outputs(session):
        one = last.get(name)
        if session.state != SESSION_STATE_SUCCEEDED:
            why = "the session did not succeed"
        elif one is None:
            why = "its node has reported none"
        elif not (why := one.why_lost or one.note.removeprefix(NO_VERSION)):
            why = "the newest version had this content, or you may not see the dataset"
        found.append((name, why))
    return found


def course(session: Session, now: float) -> list[tuple[str, str]]:
    """Return start, end, run time, remaining time and devices, as titles and texts."""
    found = [(word, _moment_and_age(session, field, now)) for word, field in _MOMENTS]
    ran = ran_s(session, now)
    if ran is not None:
        is_over = session.HasField("ended_at") or session.state in WAITING_STATES
        found.insert(2, ("ran for" if is_over else "runs for", ran_text(ran)))
    found += [("time limit", _limit_text(session, now)), ("devices", devices_text(session))]
    found += [("image", images_text(session)), *_ran_with(session)]
    return [(title, text) for title, text in found if text]


def _ran_with(session: Session) -> list[tuple[str, str]]:
    drivers, pythons = driver_versions(session), python_versions(session)
    return [("driver", ", ".join(drivers)), ("python", ", ".join(pythons))]


def devices_text(session: Session) -> str:
    """Return the devices it holds or held last: `gpu-1: GPU 0, 1; gpu-2: GPU 3`."""
    nodes: dict[str, list[int]] = {}
    for replica in session.replicas:
        nodes.setdefault(replica.node, []).extend(one.index for one in replica.devices)
    return "; ".join(
        f"{node}: GPU {', '.join(map(str, sorted(set(places))))}"
        for node, places in nodes.items()
        if places
    )


def _change_lines(session: Session) -> list[str]:
    """Describe the last changes, applied or pending, after a hint to earlier ones."""
    every = [one for one in session.changes if one.phase in MADE | OPEN]
    shown = every[-MOST_CHANGES:]
    # The omitted changes of a short session may include further ones.
    has_more = len(every) > len(shown) or (len(shown) < MOST_CHANGES and lacks_changes(session))
    earlier = [f"  changed: before that, see $ {shell_line(['nsml', 'set', session.name])}"]
    return [*(earlier if has_more else []), *(f"  changed: {change_line(one)}" for one in shown)]


def _source_lines(session: Session) -> list[str]:
    """Describe its origin: another session, its checkpoint, a commit."""
    named = (
        ("origin", origin_text(session)),
        ("submission", submission_text(session)),
        ("begins with", (initial := initial_text(session)) and f"checkpoint {initial}"),
        ("git", " ".join(filter(None, (git_text(session), session.git.remote)))),
        ("made", ", ".join(f"{one.name}@{one.version}" for one in session.made_datasets)),
    )
    return [f"  {title}: {text}" for title, text in named if text]


def _end_lines(session: Session) -> list[str]:
    """Describe how its last attempt ended; if it is held also why, and possible actions."""
    end, held = session.end.message, words_of_hold(session)
    if held is None:
        return [f"  why: {end}"] if end else []
    return [
        f"  why: it is held: {held.why}",
        *([f"  end: {end}"] if end else []),
        *(f"  do:  {line.format(name=session.name)}" for line in held.advice),
    ]


def _moment_and_age(session: Session, field: str, now: float) -> str:
    if not session.HasField(field):
        return ""
    at = seconds_of(getattr(session, field))
    return f"{short_moment(at, now, has_seconds=True)}, {ago(now - at)}"


def _limit_text(session: Session, now: float) -> str:
    """Return the time limit; in a running first attempt with the time left: the start of later ones is not known."""
    if not session.spec.HasField("time_limit"):
        return ""
    limit_s = seconds_of(session.spec.time_limit)
    text = duration_text(limit_s)
    is_first = session.state == SESSION_STATE_RUNNING and session.attempt <= 1
    if not is_first or not session.HasField("started_at"):
        return text
    left_s = limit_s - (now - seconds_of(session.started_at))
    return f"{text}, {duration_text(left_s)} left" if left_s > 0 else f"{text}, which is over"


def _log_of_failed(session: Session) -> str:
    """Return the command for its last output, if its own program failed."""
    is_own = session.end.cause == CAUSE_PROGRAM_FAILED
    return f"nsml logs {session.name} --tail 20" if is_own else ""


def _place_lines(session: Session) -> list[str]:
    found = [f"  on:  {placed_text(session)} (attempt {session.attempt})"]
    if session.state == SESSION_STATE_UNKNOWN:
        found.append(f"  see: nsml node show {session.replicas[0].node}")
    if image := images_text(session):
        found.append(f"  image: {image}")
    found += [f"  {title}: {text}" for title, text in _ran_with(session) if text]
    if packages := lock_text(session):
        found.append(f"  packages: {packages}")
    return found


def _use_lines(session: Session, now: float) -> list[str]:
    found = [f"  {line}" for line in episode_lines(session.episodes, now)]
    if taken := taken_text(session.replicas):
        found = [f"  now: {taken}", *found]
    if session.HasField("usage"):
        simulated = SIMULATED if session.simulated else ""
        parts = (usage_text(session.usage), idle_text(session.usage, now), simulated)
        found = [f"  use: {', '.join(filter(None, parts))}", *found]
    return found
