"""Descriptions of changes to running programs: values, step, and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.common.shell import option_words
from nsml.common.text import visible
from nsml.common.units import duration_text
from nsml.spec.knobs import setting_word, value_of, word_of
from nsml.v1 import sessions_pb2 as pb
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPEN: Final = frozenset(
    {
        pb.PROGRAM_CHANGE_PHASE_ASK,
        pb.PROGRAM_CHANGE_PHASE_PREPARE,
        pb.PROGRAM_CHANGE_PHASE_COMMIT,
    }
)
MADE: Final = frozenset({pb.PROGRAM_CHANGE_PHASE_APPLIED, pb.PROGRAM_CHANGE_PHASE_DIVIDED})

RUNS: Final = frozenset({pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_PAUSED})
"""States in which a session's program can be changed and inspected."""

_PHASES: Final = {
    pb.PROGRAM_CHANGE_PHASE_ASK: "asked for",
    pb.PROGRAM_CHANGE_PHASE_PREPARE: "pending",
    pb.PROGRAM_CHANGE_PHASE_COMMIT: "decided",
    pb.PROGRAM_CHANGE_PHASE_APPLIED: "applied",
    pb.PROGRAM_CHANGE_PHASE_DIVIDED: "DIVIDED",
    pb.PROGRAM_CHANGE_PHASE_WITHDRAWN: "withdrawn",
}
_STATES: Final = {
    pb.MEMBER_STATE_APPLIED: "applied",
    pb.MEMBER_STATE_DONE: "applied",
    pb.MEMBER_STATE_MISSED: "missed it",
    pb.MEMBER_STATE_FAILED: "failed",
    pb.MEMBER_STATE_REFUSED: "refused",
}


def phase_word(change: pb.ProgramChange) -> str:
    """Return the word for its phase."""
    is_withdrawn = change.phase == pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
    if is_withdrawn and change.reason and not was_withdrawn_by_user(change):
        return "not made"  # it was refused, or no process reached it
    return _PHASES.get(change.phase, "unknown")


def was_withdrawn_by_user(change: pb.ProgramChange) -> bool:
    """Return whether a user withdrew it; else it was refused, or its processes did not reach it."""
    return change.reason.startswith("withdrawn by ")


def what(change: pb.ProgramChange) -> str:
    """Describe the request: `lr=0.003`, `pause`."""
    match change.kind:
        case pb.PROGRAM_CHANGE_KIND_SET:
            given = sorted(change.values.items())
            return " ".join(f"{name}={value_word(value)}" for name, value in given)
        case pb.PROGRAM_CHANGE_KIND_PAUSE:
            return f"pause, {duration_text(seconds_of(change.limit))} at most"
        case pb.PROGRAM_CHANGE_KIND_CONTINUE:
            return "continue"
        case pb.PROGRAM_CHANGE_KIND_LOAD:
            of = f" of {change.checkpoint_session}" if change.checkpoint_session else ""
            return visible(f"load {change.checkpoint}{of}")
    return "something that this version does not know"


def step_text(change: pb.ProgramChange) -> str:
    """Return its step: `step 5,000`; "" if unknown."""
    if not change.HasField("at"):
        return ""
    unit = {"optimizer": "optimizer step", "report": "reported step"}.get(change.counter, "step")
    return f"{unit} {change.at:,}"


def results(change: pb.ProgramChange) -> Iterator[str]:
    """Yield its results, a line each: one for all processes with equal ones."""
    members = change.members
    if change.phase != pb.PROGRAM_CHANGE_PHASE_DIVIDED and len(members) == 1:
        yield from _knob_lines(members[0].knobs)
        return
    for one in members:
        local = f", local rank {one.local_rank}" if one.local_rank else ""
        done = _STATES.get(one.state, "not known")
        where = f" at step {one.position:,}" if one.HasField("position") else ""
        knobs = "; ".join(_knob_lines(one.knobs))
        why = f": {visible(one.reason)}" if one.reason else ""
        yield f"rank {one.rank}{local}: {done}{where}{why}" + (f"  {knobs}" if knobs else "")


def _knob_lines(knobs: Sequence[pb.KnobChange]) -> Iterator[str]:
    for one in knobs:
        after = value_word(one.after)
        in_force = value_word(one.in_force)
        odd = f"  (one step later: {in_force})" if one.in_force and in_force != after else ""
        yield f"{visible(one.name)}: {value_word(one.before)} -> {after}{odd}"


def value_word(value: str) -> str:
    """Format a JSON value for people; `?` if it is missing. It comes from user code."""
    try:
        return visible(word_of(value)) if value else "?"
    except (ValueError, RecursionError):
        return visible(value)


def set_words(changes: Sequence[pb.ProgramChange]) -> list[str]:
    """Return the flags of `nsml run` that repeat the changes made in a running session, in order."""
    words: list[str] = []
    for change in changes:
        if change.kind != pb.PROGRAM_CHANGE_KIND_SET or change.phase not in MADE:
            continue
        lasts = change.HasField("at") and change.counter != "optimizer"
        for name, value in sorted(change.values.items()):
            given = setting_word(name, value, change.at if lasts else None)
            words += option_words("--set", given)
    return words


def settings(changes: Sequence[pb.ProgramChange]) -> dict[str, str]:
    """Return the changes of knobs in a running session: `0.003 at step 5,000, 0.001 at step 9,000`."""
    found: dict[str, list[str]] = {}
    for change in changes:
        if change.kind == pb.PROGRAM_CHANGE_KIND_SET and change.phase in MADE:
            where = step_text(change)
            for name, value in sorted(change.values.items()):
                text = f"{value_word(value)} at {where}" if where else value_word(value)
                found.setdefault(name, []).append(text)
    return {name: ", ".join(texts) for name, texts in found.items()}


def is_held(session: pb.Session) -> bool:
    """Return whether its program is paused, or a pause is pending."""
    change = open_change(session)
    awaits = change is not None and change.kind == pb.PROGRAM_CHANGE_KIND_PAUSE
    return awaits or session.state == pb.SESSION_STATE_PAUSED


def open_change(session: pb.Session) -> pb.ProgramChange | None:
    """Return the unfinished change; None if there is none."""
    last = session.changes[-1] if session.changes else None
    return last if last is not None and last.phase in OPEN else None


def marks(changes: Sequence[pb.ProgramChange]) -> tuple[float, ...]:
    """Return the steps of changes, for counters used as chart axes."""
    return tuple(
        float(change.at)
        for change in changes
        if change.phase in MADE and change.HasField("at") and change.counter != "optimizer"
    )


def line(change: pb.ProgramChange) -> str:
    """Describe a change in one line, without its time: `lr=0.003  applied at step 5,000  by kim`."""
    is_withdrawn = change.phase == pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
    where = "" if is_withdrawn else step_text(change)
    at = f" at {where}" if where else ""
    phase, why, by = phase_word(change), visible(change.reason), visible(change.asked_by)
    if why.startswith(phase):  # `withdrawn by lee`
        return f"{what(change)}  {why}  asked by {by}"
    return f"{what(change)}  {phase}{at}{f': {why}' if why else ''}  by {by}"


def record(change: pb.ProgramChange) -> dict[str, Any]:
    """Return a change in raw values."""
    return {
        "number": change.number,
        "kind": pb.ProgramChangeKind.Name(change.kind).rpartition("_")[2].lower(),
        "phase": pb.ProgramChangePhase.Name(change.phase).rpartition("_")[2].lower(),
        "attempt": change.attempt,
        "asked_by": change.asked_by,
        "asked_at": change.asked_at.ToJsonString(),
        "ended_at": change.ended_at.ToJsonString() if change.HasField("ended_at") else None,
        "values": {name: value_of(value) for name, value in sorted(change.values.items())},
        "checkpoint": change.checkpoint or None,
        "counter": change.counter or None,
        "step": change.at if change.HasField("at") else None,
        "reason": change.reason or None,
        "members": [
            {
                "rank": one.rank,
                "local_rank": one.local_rank,
                "state": pb.MemberState.Name(one.state).removeprefix("MEMBER_STATE_").lower(),
                "step": one.position if one.HasField("position") else None,
                "reason": one.reason or None,
                "knobs": {
                    knob.name: {
                        "before": _value(knob.before),
                        "after": _value(knob.after),
                        "in_force": _value(knob.in_force),
                    }
                    for knob in one.knobs
                },
            }
            for one in change.members
        ],
    }


def _value(text: str) -> Any:
    try:
        return value_of(text) if text else None
    except (ValueError, RecursionError):
        return text
