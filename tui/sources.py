"""How it stands with receiving one kind of thing from the platform, and the words for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from nsml.client.streams import Link
from nsml.common.text import fit_middle
from nsml.common.units import duration_text, short_moment

ASK_AGAIN_S: Final = 10.0
"""After a refusal: rights may change."""
STALE_S: Final = 5.0
"""What is asked again every few seconds and was not answered for so long is shown as old."""

OPEN_S: Final = 1.0
"""What was tried again and has not failed for so long is open, where other calls are answered."""
_REASON_CELLS: Final = 48


class Topic(StrEnum):
    """What is received from the platform, each on a way of its own."""

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
    PROCESSES = "processes"
    STACKS = "stacks"
    DATASETS = "datasets"
    TREE = "dataset's files"
    PROJECTS = "projects"
    PROJECT = "project"


ALWAYS_RECEIVED: Final = frozenset({Topic.CLUSTER, Topic.SESSIONS, Topic.ENDED})
"""Whatever screen is in front."""
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
        Topic.PROCESSES,
        Topic.STACKS,
    }
)
"""Of the session that is looked at closely: received only while a tab shows them."""
OF_SESSIONS: Final = OF_TABS | {Topic.SERIES, Topic.LOG, Topic.EXPLANATION, Topic.CODE}
"""Of the sessions that are looked at closely; most others are of the platform as a whole."""
OF_ONE: Final = frozenset({Topic.TREE, Topic.PROJECT})
"""Of the dataset or the project under the cursor, which has a name."""
CLOSELY: Final = OF_SESSIONS | OF_ONE
"""What is received of one thing, and not of the platform."""


class State(StrEnum):
    """Never anything between them: what is shown is new, or is said to be old."""

    LOADING = "loading"
    LIVE = "live"
    STALE = "stale"
    OFFLINE = "offline"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One topic, as far as it was received. Moments in Unix seconds, 0: never.

    Attributes:
        is_polled: whether silence means that nothing is received, and not that nothing happens.
        received_at: when something was last received.
        asked_at: since when it is listened to again, after nobody did for a while.
        broken_at: since when nothing can be; 0: it can.
        retry_at: when that is tried again, the `failures`-th time in a row.
        denial: why it is not for this user; "" where it is.
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
        """Something came."""
        return Source(is_polled=self.is_polled, received_at=now)

    def asked(self, now: float) -> Source:
        """It is listened to again: until it could have answered, what is old is not called silence."""
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
        """The platform answered another call: what was tried again since is open, or would have failed."""
        # A clock that was set back says nothing of when; who is wrong is told by the next try.
        is_open = self.broken_at and not self.broken_at <= now <= self.retry_at + OPEN_S
        return self.linked(Link(is_live=True), now) if is_open else self

    def back(self, now: float) -> str:
        """What is said once, where it is received at this moment and nothing was for longer than a moment; else ""."""
        silent_s = now - max(self.received_at, self.asked_at)
        if not self.received_at or not (self.broken_at or self.is_polled) or silent_s <= STALE_S:
            return ""
        return f"back after {duration_text(silent_s)}"

    def refused(self, why: str, now: float) -> Source:
        """The platform answered that it will not tell: what was received before is old from now on."""
        return replace(self, denial=why, broken_at=self.broken_at or now)

    def state(self, now: float) -> State:
        """How it stands at a moment."""
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
        # Also where the clock was set back since.
        is_old = self.is_polled and abs(now - self.received_at) > STALE_S
        return State.STALE if is_old else State.LIVE

    @property
    def true_at(self) -> float:
        """Until when what was received is known to be so: of a stream, until it broke."""
        return self.received_at if self.is_polled or not self.received_at else self.broken_at or inf

    def words(self, now: float, *, shown_of: float | None = None) -> str:
        """What is said of it; "" while all is well. `shown_of` is of what moment all is that is shown, if of another."""
        true_at = self.true_at if shown_of is None else shown_of
        match self.state(now):
            case State.LOADING:
                return "loading..."
            case State.DENIED:
                # Of one thing nothing was received before, whatever was received of others.
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
