"""The terminal of the benchmark of the dashboard, and the series that its platform makes up."""

import os
import sys

import pytest

from bench.many_sessions import POINTS, SESSIONS, State
from bench.terminal import Terminal
from nsml.v1 import sessions_pb2 as pb

ECHO = """
import sys, tty
tty.setcbreak(0)
print("\\x1b[2;3H둘째\\x1b[41mx\\x1b[0m", end="", flush=True)
sys.stdout.write("\\x1b[1;1Hgot " + sys.stdin.read(1))
sys.stdout.flush()
"""


def test_it_shows_what_a_program_draws_and_tells_when_a_key_is_answered():
    with Terminal([sys.executable, "-c", ECHO], os.environ, columns=20, lines=4) as terminal:
        terminal.until(lambda: terminal.background(1, 6) == "red")
        assert terminal.line(1).rstrip() == "  둘째x"
        assert terminal.answer_ms("k", lambda: terminal.line(0).startswith("got k")) > 0
        assert terminal.received > len("got k")
        with pytest.raises(AssertionError, match="it ended"):
            terminal.until(lambda: False)


def test_columns_hold_every_point_of_their_range_once():
    state = State()
    assert len(state.sessions) == SESSIONS
    for low, high, count in ((None, None, POINTS), (10.5, 99.0, 89), (POINTS, None, 0)):
        asked = pb.ReadSeriesRequest(low=low, high=high, width=50, axis=pb.SERIES_AXIS_STEP)
        series = state.columns(asked)
        assert sum(series.finite) == count
        assert len(series.x_low) <= 50
        assert all(a < b for a, b in zip(series.x_high, series.x_low[1:], strict=False))
        assert all(
            a <= b <= c for a, b, c in zip(series.low, series.mean, series.high, strict=True)
        )
