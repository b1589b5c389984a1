"""Draw docs/lifecycle.md from the tables in controlplane/domain/lifecycle.py.

python -m tools.lifecycle_docs            write it
python -m tools.lifecycle_docs --check    fail when it is out of step
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from controlplane.domain.lifecycle import (
    REPLICA_LIFE,
    SESSION_LIFE,
    ReplicaPhase,
    SessionEvent,
    SessionState,
)

StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)

TARGET = Path(__file__).resolve().parent.parent / "docs" / "lifecycle.md"

MEANINGS: Mapping[SessionState, str] = {
    SessionState.QUEUED: "waits for capacity; `nsml ps` says what is short",
    SessionState.PREPARING: "placed; its nodes fetch data and build the environment",
    SessionState.RUNNING: "its program runs",
    SessionState.PAUSED: "its program waits in `nsml.paused`",
    SessionState.UNKNOWN: "its node is silent; it keeps its devices until there is proof of its end",
    SessionState.STOPPING: "told to stop, not yet gone",
    SessionState.FINALIZING: "gone; what it left is being made durable; holds no device",
    SessionState.SUCCEEDED: "ended with exit code 0",
    SessionState.FAILED: "ended badly; its end has exactly one cause",
    SessionState.STOPPED: "ended because somebody asked",
    SessionState.HELD: "waits for a person, or for other sessions to end; its cause (HeldCause) says why",
}

EVENTS: Mapping[SessionEvent, str] = {
    SessionEvent.PLACED: "the committer wrote its allocation",
    SessionEvent.STARTED: "every replica runs",
    SessionEvent.PAUSED: "a replica waits in `nsml.paused`",
    SessionEvent.FELL_SILENT: "a node that runs one of its replicas was not heard for too long",
    SessionEvent.HEARD_PREPARING: "the node is heard again, and a replica is not started yet",
    SessionEvent.STOP_REQUESTED: "a user wants it to end, or a replica of its gang ended badly",
    SessionEvent.GONE: "no process of any replica is left",
    SessionEvent.REQUEUED: "the attempt ended through no fault of its own and is repeated",
    SessionEvent.SUCCEEDED: "everything is durable, the cause is COMPLETED",
    SessionEvent.FAILED: "everything is durable, the cause is a bad one",
    SessionEvent.STOPPED: "everything is durable, the cause is STOP_REQUESTED; or it never ran",
    SessionEvent.HELD: "the third bad attempt in a row; or it was submitted to start after others",
    SessionEvent.RELEASED: "a person lets it try again; or the others have ended",
}


def diagram(life: Mapping[tuple[StateT, EventT], StateT], first: StateT) -> list[str]:
    """A mermaid diagram; events between the same two states share an arrow."""
    arrows: dict[tuple[StateT, StateT], list[str]] = {}
    for (state, event), following in life.items():
        arrows.setdefault((state, following), []).append(event.value)
    left = {state for state, _ in life}
    ends = sorted(set(life.values()) - left)
    return [
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {first.value}",
        *(f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in arrows.items()),
        *(f"    {end.value} --> [*]" for end in ends),
        "```",
    ]


def table(head: tuple[str, str], rows: Iterable[tuple[StrEnum, str]]) -> list[str]:
    """A table of words and what they mean."""
    return [
        f"| {head[0]} | {head[1]} |",
        "|---|---|",
        *(f"| {word.value} | {meaning} |" for word, meaning in rows),
    ]


def document() -> str:
    """The whole page."""
    lines = [
        "# The life of a session",
        "",
        (
            "Made by `make generate` from the tables in `controlplane/domain/lifecycle.py`; what is "
            "not drawn cannot happen."
        ),
        "",
        "## A session",
        "",
        *diagram(SESSION_LIFE, SessionState.QUEUED),
        "",
        *table(("state", "meaning"), [(state, MEANINGS[state]) for state in SessionState]),
        "",
        *table(("event", "when"), [(event, EVENTS[event]) for event in SessionEvent]),
        "",
        "## A replica",
        "",
        (
            "What a node may report next. An attempt has no state beside this: it goes as far as its "
            "replicas, and is over when all are gone."
        ),
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {ReplicaPhase.PLACED.value}",
        *(
            f"    {before.value} --> {after.value}"
            for before, following in REPLICA_LIFE.items()
            for after in following
        ),
        f"    {ReplicaPhase.FINALIZED.value} --> [*]",
        "```",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check; returns the exit code."""
    text = document()
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is out of step with the tables (make generate)", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
