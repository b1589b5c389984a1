"""One session of the demo, from its submission to its end."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsml.v1 import sessions_pb2 as pb
from tui.demo.scenery import GPUS, NODES, PROJECTS, is_silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from tui.demo.programs import Program

PREPARED_S: Final = 40.0
SAVED_S: Final = 25.0
_HELD_S: Final = 4 * 3_600.0
"""How long a held session stays."""


@dataclass(slots=True, kw_only=True)
class ScriptedSession:
    """One session of the story. Times in seconds from the start of the show.

    Attributes:
        runs_s: how long its program runs.
        outcome: its final state.
        idle_from: since when its devices are idle; None: never.
        pause: start and end of its pause.
    """

    number: int
    user: str
    program: Program
    gpus: int
    created: float
    runs_s: float
    outcome: pb.SessionState
    replicas: int = 1
    priority: pb.Priority = pb.PRIORITY_NORMAL
    memo: str = ""
    prepared_s: float = PREPARED_S
    stopping_s: float = 0.0
    saved_s: float = SAVED_S
    idle_from: float | None = None
    pause: tuple[float, float] | None = None
    placed: float = math.inf
    places: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """An opaque id."""
        return f"demo{self.number:012d}"

    @property
    def name(self) -> str:
        """Its name for users."""
        return f"{self.user}/{self.program.dataset}/{self.number}"

    @property
    def started(self) -> float:
        """When its program starts."""
        return self.placed + self.prepared_s

    @property
    def stopped(self) -> float:
        """When its program has ended, and its devices are free."""
        return self.started + self.runs_s + self.stopping_s

    @property
    def ended(self) -> float:
        """When its data is saved."""
        return self.stopped + self.saved_s

    @property
    def gone(self) -> float:
        """When it is among the ended sessions."""
        is_held = self.outcome == pb.SESSION_STATE_HELD
        return self.ended + (_HELD_S if is_held else 0.0)

    def ran_s(self, at: float) -> float:
        """How long its program has run by then."""
        return min(max(at - self.started, 0.0), self.runs_s)

    def reports(self, at: float) -> int:
        """Count its reports."""
        has_run = at >= self.started and self.outcome != pb.SESSION_STATE_HELD
        return 0 if not has_run else int(self.ran_s(at) / self.program.every_s) + 1

    def value(self, metric: str, number: int) -> float:
        """The value of a metric at a report."""
        curve, scatter = self.program.metrics[metric]
        done = number * self.program.every_s / max(self.runs_s, 1.0)
        return curve(min(done, 1.0)) + scatter * self._noise(metric, number)

    def mean(self, metric: str, first: float, last: float) -> float:
        """The mean between two reports."""
        curve, _ = self.program.metrics[metric]
        return curve(min((first + last) / 2 * self.program.every_s / max(self.runs_s, 1.0), 1.0))

    def _noise(self, metric: str, number: int) -> float:
        """From -1 to 1, constant for a report."""
        mixed = zlib.crc32(f"{self.number} {metric} {number}".encode())
        return mixed / 2**31 - 1


def stamp(moment: Timestamp, seconds: float) -> None:
    """Set it to Unix seconds."""
    moment.FromNanoseconds(int(seconds * 1e9))


def in_order(waiting: Sequence[ScriptedSession]) -> list[ScriptedSession]:
    """In queue order."""
    return sorted(waiting, key=lambda part: (-part.priority, part.created))


def active(parts: Sequence[ScriptedSession], now: float) -> list[ScriptedSession]:
    """Sessions that hold devices."""
    return [part for part in parts if part.placed <= now < part.stopped]


def free_devices(parts: Sequence[ScriptedSession], now: float) -> list[set[int]]:
    """Free devices of each node."""
    free = [set(range(GPUS)) for _ in NODES]
    for part in active(parts, now):
        for node, devices in part.places:
            free[node] -= set(devices)
    return free


def state_of(part: ScriptedSession, now: float) -> pb.SessionState:  # noqa: PLR0911 - a state a line
    """Its state."""
    if now < part.placed:
        return pb.SESSION_STATE_QUEUED
    if now < part.started:
        return pb.SESSION_STATE_PREPARING
    if now >= part.gone:
        is_held = part.outcome == pb.SESSION_STATE_HELD
        return pb.SESSION_STATE_STOPPED if is_held else part.outcome
    if now >= part.ended:
        return part.outcome
    if now >= part.stopped:
        return pb.SESSION_STATE_FINALIZING
    if now >= part.started + part.runs_s:
        return pb.SESSION_STATE_STOPPING
    if any(is_silent(node, now) for node, _ in part.places):
        return pb.SESSION_STATE_UNKNOWN
    if part.pause is not None and part.pause[0] <= now < part.pause[1]:
        return pb.SESSION_STATE_PAUSED
    return pb.SESSION_STATE_RUNNING


def end_of(part: ScriptedSession, now: float) -> pb.SessionEnd:
    """How it ended, or why it is held; after a time held ones are stopped."""
    match state_of(part, now):
        case pb.SESSION_STATE_SUCCEEDED:
            return pb.SessionEnd(cause=pb.CAUSE_COMPLETED)
        case pb.SESSION_STATE_STOPPED:
            return pb.SessionEnd(cause=pb.CAUSE_STOP_REQUESTED, message=f"stopped by {part.user}")
        case pb.SESSION_STATE_HELD:
            return pb.SessionEnd(
                cause=pb.CAUSE_ENVIRONMENT_FAILED,
                exit_code=1,
                message="pip install failed three times: no version of fern==9 was found",
            )
    return pb.SessionEnd(
        cause=pb.CAUSE_PROGRAM_FAILED, exit_code=1, message="ValueError: loss is nan"
    )


def project_of(part: ScriptedSession) -> str:
    """Its project."""
    return next(name for name, (members, _, _) in PROJECTS.items() if part.user in members)
