"""Events on the platform, from its records: sessions, nodes and control planes, with their times. Pure.

Nothing is stored for them: only events with a time in a record appear.
"""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.common.units import ago, counted, short_moment, thousandths
from nsml.v1 import nodes_pb2, sessions_pb2
from nsml.view.enums import enum_word
from nsml.view.nodes import condition_name
from nsml.view.program_changes import line as change_line
from nsml.view.sessions import (
    STATE_WORDS,
    attempt_line,
    cause_word,
    earlier_attempts,
    exit_text,
    images_text,
    placed_text,
)
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsml.v1.nodes_pb2 import GetClusterResponse, Node
    from nsml.v1.sessions_pb2 import Session

MOST: Final = 2_000
"""Most shown events, the newest."""


class PlatformEvent(NamedTuple):
    """An event. `session_id`: "" if it belongs to no session."""

    at: float
    what: str
    subject: str
    words: str
    session_id: str = ""
    owner: str = ""


COLUMNS: tuple[Column[PlatformEvent], ...] = (
    Column(key="at", title="When", cell=lambda h, now: short_moment(h.at, now, has_seconds=True)),
    Column(key="ago", title="Ago", cell=lambda h, now: ago(now - h.at), is_optional=True),
    Column(key="what", title="What", cell=lambda h, _: h.what),
    Column(key="subject", title="Of", cell=lambda h, _: h.subject, is_name=True),
    Column(key="words", title="About", cell=lambda h, _: h.words, shrinks_to=20),
)


def of_session(one: Session) -> Iterator[PlatformEvent]:
    """Yield the events in its record, in no order."""

    def at(seconds: float, what: str, words: str = "") -> PlatformEvent:
        return PlatformEvent(seconds, what, one.name, words, one.id, one.owner)

    gpus = thousandths(one.spec.resources.gpu_thousandths)
    on = f" on {counted(one.spec.replica_count, 'node')}" if one.spec.replica_count > 1 else ""
    memo = f" · {one.memo}" if one.memo else ""
    yield at(
        seconds_of(one.created_at),
        "submitted",
        f"{gpus} {'GPU' if gpus == '1' else 'GPUs'}{on}{memo}",
    )
    for each in one.attempts:
        # No record has the start of later attempts' programs, nor anything of the running attempt.
        if each.number > 1 and each.HasField("placed_at"):
            nodes = ", ".join(each.nodes)
            yield at(seconds_of(each.placed_at), "placed", f"attempt {each.number}: {nodes}")
    for each in earlier_attempts(one):
        yield at(seconds_of(each.ended_at), "attempt ended", attempt_line(one, each))
    if one.HasField("started_at"):
        where = "; ".join(filter(None, [placed_text(one), images_text(one)]))
        yield at(seconds_of(one.started_at), "started", where)
    for episode in one.episodes:
        word = enum_word(sessions_pb2.EpisodeKind, episode.kind, "EPISODE_KIND_")
        yield at(seconds_of(episode.since), word, episode.reason)
        if episode.HasField("until"):
            yield at(seconds_of(episode.until), f"no more {word}")
    for change in one.changes:
        moment = change.ended_at if change.HasField("ended_at") else change.asked_at
        yield at(seconds_of(moment), "change", change_line(change))
    if one.HasField("ended_at"):
        state = STATE_WORDS.get(one.state, STATE_WORDS[0])
        is_plain = one.end.cause == sessions_pb2.CAUSE_COMPLETED
        cause = "" if is_plain else cause_word(one.end.cause).replace("_", " ")
        is_own = one.end.cause == sessions_pb2.CAUSE_PROGRAM_FAILED
        why = one.end.message or (exit_text(one.end.exit_code) if is_own else "")
        said = ": ".join(filter(None, (cause, why)))
        yield at(seconds_of(one.ended_at), state.word.lower(), said)


def of_node(node: Node) -> Iterator[PlatformEvent]:
    """Yield the events of a node: actions of administrators and the platform, and since when it is silent."""
    for word, moment, by, why in (
        ("drained", node.drain.asked_at, node.drain.asked_by, node.drain.reason),
        ("fenced", node.fence.asked_at, node.fence.asked_by, node.fence.reason),
        ("held", node.hold.found_at, "", node.hold.why),
    ):
        if moment.seconds:
            said = ": ".join(filter(None, (by and f"by {by}", why)))
            yield PlatformEvent(seconds_of(moment), word, node.name, said)
    if node.state == nodes_pb2.NODE_STATE_SILENT:
        words = "no contact since; its sessions may still be running"
        yield PlatformEvent(seconds_of(node.last_contact_at), "silent", node.name, words)


def of_cluster(cluster: GetClusterResponse) -> Iterator[PlatformEvent]:
    """Yield the events of the control planes, and current conditions."""
    for member in cluster.members:
        if member.HasField("started_at"):
            words = f"leads term {cluster.term}" if member.is_leader else "stands by"
            yield PlatformEvent(
                seconds_of(member.started_at), "control plane up", member.name, f"now {words}"
            )
    for one in cluster.conditions:
        if one.HasField("since"):
            subject = f"{condition_name(one)} {one.subject}".rstrip()
            yield PlatformEvent(seconds_of(one.since), "condition", subject, one.meaning)


def newest(some: Iterable[PlatformEvent], most: int = MOST) -> list[PlatformEvent]:
    """Return the newest events, newest first."""
    return heapq.nlargest(most, some, key=attrgetter("at", "subject", "what"))
