"""`nsml down` waits for programs, and not for what they left to be sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cli.local.teardown import FINALIZED_WITHIN_S, STOPPED_WITHIN_S, _stop_and_wait
from nsml.v1 import sessions_pb2 as pb


class Clock:
    """Passes by being slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Platform:
    """Sessions with the time at which each reaches its states."""

    def __init__(self, clock: Clock, **lives: list[tuple[float, pb.SessionState]]) -> None:
        self.sessions = self
        self._clock = clock
        self._lives = lives
        self.stopped: list[str] = []

    async def stop(self, session_id: str, *, reason: str) -> None:
        self.stopped.append(session_id)

    async def every(self, _: pb.SessionFilter) -> AsyncIterator[pb.Session]:
        for session_id, life in self._lives.items():
            state = [state for at, state in life if at <= self._clock.now][-1]
            if state != pb.SESSION_STATE_SUCCEEDED:
                yield pb.Session(id=session_id, state=state)


STOPPING = (0.0, pb.SESSION_STATE_STOPPING)


@pytest.mark.parametrize(
    ("lives", "left", "least_s", "most_s"),
    [
        ({"a": [STOPPING, (3, pb.SESSION_STATE_SUCCEEDED)]}, [], 3, 4),
        (
            {"a": [STOPPING, (20, pb.SESSION_STATE_FINALIZING), (21, pb.SESSION_STATE_SUCCEEDED)]},
            [],
            21,
            22,
        ),
        (
            {
                "a": [STOPPING, (20, pb.SESSION_STATE_FINALIZING)],
                "b": [STOPPING, (25, pb.SESSION_STATE_SUCCEEDED)],
            },
            ["a"],
            30,
            31,
        ),
        ({"a": [(0.0, pb.SESSION_STATE_FINALIZING)]}, ["a"], 5, 6),
        (
            {
                "a": [(0.0, pb.SESSION_STATE_FINALIZING)],
                "b": [STOPPING, (10, pb.SESSION_STATE_SUCCEEDED)],
            },
            ["a"],
            15,
            16,
        ),
    ],
)
async def test_down_waits_for_programs_and_a_moment_for_their_last_records(
    lives: dict[str, Any], left: list[str], least_s: float, most_s: float
) -> None:
    """A backlog of any length is sent after the next start."""
    assert FINALIZED_WITHIN_S < STOPPED_WITHIN_S
    clock = Clock()
    platform = Platform(clock, **lives)
    sessions = [pb.Session(id=one) for one in lives]
    found = await _stop_and_wait(platform, sessions, clock)  # type: ignore[arg-type]
    assert [one.id for one in found] == left
    assert platform.stopped == list(lives)
    assert least_s <= clock.now <= most_s
