"""The list that changes, as a terminal shows it."""

import asyncio
import json

import pytest

from cli.app import App, Format
from cli.live_table import Redrawn
from cli.main import run
from cli.sessions.list_options import Choosing
from cli.sessions.live_list import Watched
from nsml.client.streams import Link
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import FixedClock, Stream
from tests.unit.nsml.client.contract_server import EPOCH


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
    watched = Watched(app, Choosing([], ""))
    watched.take([session(1), session(3)], [], reset=True)
    assert drawn(app) == (["kim/None/3", "kim/None/1"], 0)
    watched.take([session(2)], ["s3"], reset=False)
    watched.draw()
    assert drawn(app) == (["kim/None/2", "kim/None/1"], 4)
    watched.take([session(9)], [], reset=True)
    assert drawn(app) == (["kim/None/9"], 4)


def test_steps_of_submissions_are_left_out_unless_a_filter_asks_for_them(app):
    step = session(2, spec=pb.SessionSpec(stage=pb.SESSION_STAGE_EVALUATE, submission_id="sub1"))
    watched = Watched(app, Choosing([], "", has_steps=False))
    watched.take([session(1), step], [], reset=True)
    assert drawn(app)[0] == ["kim/None/1"]
    watched = Watched(app, Choosing(["submission:sub1"], "", has_steps=False))
    watched.take([session(1), step], [], reset=True)
    names = drawn(app)[0]
    assert "kim/None/2" in names
    assert "kim/None/1" not in names


def test_what_a_session_reports_is_a_line_where_it_differs(app):
    app.flags.output = Format.JSONL
    watched = Watched(app, Choosing([], ""))
    watched.take([session(1, revision=7)], [], reset=True)
    reported = session(1, revision=7)
    reported.summary.update({"loss": 0.5})
    busier = session(1, revision=7)
    busier.CopyFrom(reported)
    busier.usage.device_seconds = 2.0
    for found in (reported, reported, busier):
        watched.take([found], [], reset=False)
    losses = [line["summary"].get("loss") for line in map(json.loads, lines_of(app))]
    assert losses == [None, 0.5]


def lines_of(app):
    return app.stdout.raw_bytes.decode().splitlines()


def test_what_the_terminal_has_no_room_for_is_counted(app):
    watched = Watched(app, Choosing([], ""))
    watched.take([session(number) for number in range(1, 8)], [], reset=True)
    assert drawn(app) == (["kim/None/7", "kim/None/6", "..."], 0)
    assert app.stdout.raw_bytes.decode().endswith("... 5 more\n")


def lost(reason):
    return Link(is_live=False, failures=1, reason=reason)


def test_a_lost_connection_is_told_under_the_list_and_taken_away(app):
    watched = Watched(app, Choosing([], ""))
    watched.take([session(1)], [], reset=True)
    watched.link(lost("reset"))
    assert app.stdout.raw_bytes.endswith(b"connection lost, reconnecting (reset)\n")
    assert app.stderr.raw_bytes == b""
    watched.link(Link(is_live=True))
    watched.take([session(2)], [], reset=True)
    assert drawn(app) == (["kim/None/2"], 3)
    assert app.stdout.raw_bytes.count(b"\x1b[4A") == 1


def test_no_line_is_wider_than_the_terminal(app, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    app.flags.output = Format.WIDE
    watched = Watched(app, Choosing([], ""))
    watched.take([session(1, memo="m" * 200)], [], reset=True)
    watched.link(lost("reset " * 20))
    shown = app.stdout.raw_bytes.decode().rpartition("\x1b[J")[2].splitlines()
    assert {len(line) for line in shown} == {60}
    assert shown[-1].endswith("…")


def test_where_nothing_is_drawn_lines_are_written_when_they_change(environ):
    app = App(environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream())
    screen = Redrawn(app)
    for lines in (["a", "b"], ["a", "b"], ["c"]):
        screen.show(lines)
    screen.link(lost("reset"))
    assert app.stdout.raw_bytes == b"a\nb\nc\n"
    assert app.stderr.raw_bytes == b"connection lost, reconnecting (reset)\n"


async def test_ages_grow_while_nothing_changes(app):
    clock = SteppedClock(EPOCH + 1)
    app.given_clock = clock
    watched = Watched(app, Choosing([], ""))
    made = session(1)
    made.created_at.seconds = int(EPOCH)
    async with watched.kept_true(clock):
        watched.take([made], [], reset=True)
        before = app.stdout.raw_bytes
        await clock.has_slept.wait()
    assert b"just now" in before
    assert b"m ago" in app.stdout.raw_bytes[len(before) :]


async def test_changes_are_drawn_together(app):
    watched = Watched(app, Choosing([], ""))
    clock = SteppedClock(EPOCH)
    async with watched.kept_true(clock):
        watched.take([session(1)], [], reset=True)
        for number in (2, 3, 4):
            watched.take([session(number)], [], reset=False)
        await clock.has_slept.wait()
    assert drawn(app) == (["kim/None/4", "kim/None/3", "..."], 3)


class SteppedClock:
    """Every sleep takes ten minutes, at once."""

    def __init__(self, now):
        self.now = now
        self.has_slept = asyncio.Event()

    def time(self):
        return self.now

    async def sleep(self, seconds):
        if self.now > EPOCH + 600 * 5:
            self.has_slept.set()
        self.now += 600.0
        await asyncio.sleep(0)


def test_processes_are_watched_until_their_session_ends(app, state, everything, monkeypatch):
    def changed():
        state.processes.processes[0].command = "python\x1b[2J later.py"

    def gone_on_its_node():
        state.no_processes = "its program does not run here"

    def ended():
        state.change(everything, state=pb.SESSION_STATE_SUCCEEDED)

    steps = iter([changed, gone_on_its_node, ended])

    async def sleep(_self, _seconds):
        next(steps)()

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert run(["top", "@last", "-w"], app) == 0, app.stderr.raw_bytes
    screens = app.stdout.raw_bytes.decode().split("\x1b[J")
    assert ["main.py --lr 0.1" in screen for screen in screens] == [False, True, False, False]
    assert "python\u241b[2J later.py" in screens[2]
    assert "cannot be seen: its program does not run here" in screens[-1]
    assert app.stderr.raw_bytes.decode().endswith("session kim/mnist/1 has ended\n")


@pytest.mark.parametrize("why", ["ended", "no processes"])
def test_what_cannot_be_watched_from_the_first_is_an_error(app, state, everything, why):
    if why == "ended":
        state.change(everything, state=pb.SESSION_STATE_SUCCEEDED)
    else:
        state.no_processes = "its program does not run here"
    assert run(["top", "@last", "-w"], app) == 6
    assert app.stdout.raw_bytes == b""
