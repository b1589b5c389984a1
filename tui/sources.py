"""State of receiving one topic from the platform, and its description. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from nsml.client.streams import Link
from nsml.common.text import fit_middle
from nsml.common.units import duration_text, short_moment

ASK_AGAIN_S: Final = 10.0
"""After refusals: rights may change."""
STALE_S: Final = 5.0
"""A polled topic without an answer for longer is stale."""

OPEN_S: Final = 1.0
"""A retried connection without a failure for so long is open, if other calls are answered."""
_REASON_CELLS: Final = 48


class Topic(StrEnum):
    """Topics of the platform, each received on its own."""

    SESSIONS = "sessions"
    ENDED = "ended sessions"
    CLUSTER = "cluster"
    QUEUE = "queue"
    NODES = "nodes"
    SERIES = "metrics"
    LOG = "log"
    EXPLANATION = "explanation"
    CODE = "code"
    CHECKPOINTS = "checkpoints"
    ARTIFACTS = "artifacts"
    TELEMETRY = "telemetry"
    FILES = "files"
    FILE = "file"
    MEDIA = "media"
    CONTENT = "content"
    KNOBS = "knobs"
    CONFIG = "reported config"
    PROCESSES = "processes"
    STACKS = "stacks"
    DATASETS = "datasets"
    TREE = "dataset's files"
    PROJECTS = "projects"
    PROJECT = "project"
    BOARDS = "boards"
    BOARD = "board"
    COMPETITIONS = "competitions"
    STANDINGS = "standings"


ALWAYS_RECEIVED: Final = frozenset({Topic.CLUSTER, Topic.SESSIONS, Topic.ENDED})
"""On every screen."""
OF_TABS: Final = frozenset(
    {
        Topic.CHECKPOINTS,
        Topic.ARTIFACTS,
        Topic.TELEMETRY,
        Topic.FILES,
        Topic.FILE,
        Topic.MEDIA,
        Topic.CONTENT,
        Topic.KNOBS,
        Topic.CONFIG,
        Topic.PROCESSES,
        Topic.STACKS,
    }
)
"""Of the shown session: received only while a tab shows them. The configuration is also received of compared sessions."""
OF_SESSIONS: Final = OF_TABS | {Topic.SERIES, Topic.LOG, Topic.EXPLANATION, Topic.CODE}
"""Of the shown sessions; most others are platform-wide."""
OF_ONE: Final = frozenset({Topic.TREE, Topic.PROJECT, Topic.BOARD, Topic.STANDINGS})
"""Of one dataset, project, board or phase of a competition, by name."""
CLOSELY: Final = OF_SESSIONS | OF_ONE
"""Topics of one object, not of the platform."""


class State(StrEnum):
    """There are none in between: shown data is new, or is marked as old."""

    LOADING = "loading"
    LIVE = "live"
    STALE = "stale"
    OFFLINE = "offline"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """State of one topic. Times in Unix seconds, 0: never.

    Attributes:
        is_polled: whether silence means a failure, and not that nothing happens.
        received_at: when something was last received.
        asked_at: since when it is received again, after a pause.
        broken_at: since when it is unreachable; 0: it is reachable.
        retry_at: time of the next try, the `failures`-th in a row.
        denial: why the user may not receive it; "" if allowed.
    """

    is_polled: bool = False
    received_at: float = 0.0
    asked_at: float = 0.0
    broken_at: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    reason: str = ""
    denial: str = ""

    def received(self, now: float) -> Source:
        """It was received."""
        return Source(is_polled=self.is_polled, received_at=now)

    def asked(self, now: float) -> Source:
        """It is requested again: until an answer is due, old data is not called stale."""
        return Source(is_polled=self.is_polled, received_at=self.received_at, asked_at=now)

    def linked(self, link: Link, now: float) -> Source:
        """Its connection broke, could not be made again, or is back."""
        if link.is_live:
            return replace(self, broken_at=0.0, retry_at=0.0, failures=0, reason="")
        return replace(
            self,
            broken_at=self.broken_at or now,
            retry_at=now + link.retry_in_s,
            failures=link.failures,
            reason=link.reason,
        )

    def answered(self, now: float) -> Source:
        """The platform answered another call: a retried connection is open, or would have failed."""
        # After a clock was set back, the time is unknown; the next try shows any mistake.
        if self.denial or not self.broken_at:
            return self
        is_open = not self.broken_at <= now <= self.retry_at + OPEN_S
        return self.linked(Link(is_live=True), now) if is_open else self

    def back(self, now: float) -> str:
        """Return a note if it is received again after a longer silence; else ""."""
        silent_s = now - max(self.received_at, self.asked_at)
        if not self.received_at or not (self.broken_at or self.is_polled) or silent_s <= STALE_S:
            return ""
        return f"back after {duration_text(silent_s)}"

    def refused(self, why: str, now: float) -> Source:
        """The platform refuses it: earlier data is old from now on."""
        return replace(self, denial=why, broken_at=self.broken_at or now)

    def state(self, now: float) -> State:
        """Return the state at a time."""
        if self.denial:
            return State.DENIED
        if self.broken_at:
            return State.OFFLINE
        if self.received_at < self.asked_at and not (
            self.is_polled and now > self.asked_at + OPEN_S
        ):
            return State.LOADING
        if not self.received_at:
            return State.LOADING
        # Also if the clock was set back since.
        is_old = self.is_polled and abs(now - self.received_at) > STALE_S
        return State.STALE if is_old else State.LIVE

    @property
    def true_at(self) -> float:
        """Until when received data is known to be true: of a stream, until it broke."""
        return self.received_at if self.is_polled or not self.received_at else self.broken_at or inf

    def words(self, now: float, *, shown_of: float | None = None) -> str:
        """Describe the state; "" if it is live. `shown_of`: the time of the shown data, if of another topic."""
        true_at = self.true_at if shown_of is None else shown_of
        match self.state(now):
            case State.LOADING:
                return "loading..."
            case State.DENIED:
                # One object had no data before, whatever was received of others.
                is_shown = shown_of is not None and 0 < true_at < inf
                shown = f" · data from {_clock(true_at, now)}" if is_shown else ""
                return f"{self.denial}{shown}"
            case State.STALE:
                return f"as of {_clock(true_at, now)}, no update since"
            case State.OFFLINE:
                since = duration_text(max(now - self.broken_at, 0.0))
                shown = f"data from {_clock(true_at, now)} · " if 0 < true_at < inf else ""
                left = max(round(self.retry_at - now), 0)
                when = f"in {left}s" if left else "now"
                why = fit_middle(" ".join(self.reason.split()), _REASON_CELLS)
                return f"unreachable for {since} · {shown}try {self.failures} {when} · {why}"
        return ""


def _clock(seconds: float, now: float) -> str:
    return short_moment(seconds, now, has_seconds=True)
