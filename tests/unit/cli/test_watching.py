"""The list that changes, as a terminal shows it."""

import pytest

from cli.app import App
from cli.watching import Watched
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import FixedClock, Stream


@pytest.fixture
def app(environ, monkeypatch):
    monkeypatch.setenv("LINES", "7")
    return App(
        environ={**environ, "NO_COLOR": "1"},
        stdout=Stream(is_terminal=True),
        stderr=Stream(is_terminal=True),
        stdin=Stream(),
        given_clock=FixedClock(),
    )


def session(number, **fields):
    made = pb.Session(id=f"s{number}", name=f"kim/None/{number}", **fields)
    made.created_at.seconds = number
    return made


def drawn(app):
    """The names on the screen after the last redraw, and how far that went up."""
    text = app.stdout.raw_bytes.decode()
    before, _, last = text.rpartition("\x1b[J")
    up = before.rpartition("\x1b[")[2].removesuffix("A") if before.endswith("A") else "0"
    return [line.split()[0] for line in last.splitlines()[2:]], int(up)


def test_the_newest_is_first_and_who_left_vanishes(app):
    watched = Watched(app)
    watched.take([session(1), session(3)], [], reset=True)
    assert drawn(app) == (["kim/None/3", "kim/None/1"], 0)
    watched.take([session(2)], ["s3"], reset=False)
    assert drawn(app) == (["kim/None/2", "kim/None/1"], 4)
    watched.take([session(9)], [], reset=True)
    assert drawn(app) == (["kim/None/9"], 4)


def test_what_the_terminal_has_no_room_for_is_counted(app):
    watched = Watched(app)
    watched.take([session(number) for number in range(1, 8)], [], reset=True)
    assert drawn(app) == (["kim/None/7", "kim/None/6", "..."], 0)
    assert app.stdout.raw_bytes.decode().endswith("... 5 more\n")
