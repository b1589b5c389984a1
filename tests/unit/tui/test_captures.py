"""What every screen looks like, in its sizes, looks and states, held against files in `captures/`.

`make captures` draws them anew. A screen, a tab or a state without its file fails, and a file that nothing draws.
One dashboard is led through all that it can show, and its terminal made larger and smaller: opening it costs the most.
"""

import asyncio
import difflib
import os
import sys
import time
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, TabbedContent, TabPane

from nsml.client.streams import Link
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.boards_pb2 import BEST_PER_NONE
from tests.unit.tui.conftest import said, until
from tests.unit.tui.story import AT, Stopped, demo, parts, running
from tui.app import Dashboard
from tui.appearance import Appearance
from tui.demo.story import Demo
from tui.model import (
    BoardsReceived,
    ClusterReceived,
    CompetitionsReceived,
    DatasetsReceived,
    EndedReceived,
    Linked,
    NodesReceived,
    ProjectsReceived,
    QueueReceived,
    Refused,
    SessionsReceived,
)
from tui.screens.asking import Ask, Confirm
from tui.screens.board import BoardScreen
from tui.screens.command_line import CommandLine
from tui.screens.compare import CompareScreen
from tui.screens.evaluate import Conversation, Evaluate
from tui.screens.frame import Frame
from tui.screens.help import Help
from tui.screens.modes import SCREENS
from tui.screens.nodes import NodesScreen
from tui.screens.opening import Opening
from tui.screens.output import Output
from tui.screens.picking import Choice, Picker
from tui.screens.session import TABS, SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.screens.standings import StandingsScreen
from tui.screens.submit import Submit
from tui.sources import Topic

FOLDER = Path(__file__).with_name("captures")
DRAWS = "NSML_DRAW_CAPTURES" in os.environ
"""Whether the files are written, and not held against what is drawn."""
STEADY = 40
"""Drawings one after the other that are the same: nothing is on its way any more."""
PAUSE_S = 0.03
WITHIN_S = 30.0
"""What is drawn may take so long to become what the file has. Only the first difference is waited for."""

HOW_TO_ACCEPT = """
- is what the file has, + what is drawn now. If it shall look like that, `make captures` draws the files anew,
`git diff tests/unit/tui/captures` shows them: they belong to the change."""

SIZES = ((80, 24), (120, 40))
MORE_SIZES = {
    "sessions": ((60, 15), (200, 60), (300, 100)),
    "session-plot": ((60, 15), (200, 60)),
    "nodes": ((200, 60),),
    "nodes-map": ((200, 60), (300, 100)),
    "board": ((60, 15), (200, 60)),
    "standings": ((200, 60),),
}
"""Smaller and larger than most terminals."""
LOOKS = {
    "light": Appearance(theme="light", is_animated=False),
    "no-color": Appearance(theme="terminal", is_colourless=True, is_animated=False),
    "ascii": Appearance(is_ascii=True, is_animated=False),
}
OF_LOOKS = ("sessions", "nodes", "session-plot", "board-submissions")
STORIES = (("loading", "live", "offline", "back"), ("stale",), ("empty",), ("denied",))
"""States in which each of `SCREENS` is captured: one dashboard goes through those of a story, opening it costs most."""
STATES = tuple(state for story in STORIES for state in story)
SESSION_TABS = ("overview", "plot", "logs", *(tab.key_of for tab in TABS))


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch):
    """Whoever runs it, wherever: nothing of that is shown."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# Where one gets to


async def calm(pilot):
    """What was begun by what was done so far is done."""
    for _ in range(4):
        pilot.app.play()
        pilot.app._draw()
        await pilot.pause()


async def sessions(pilot):
    """The list, with the cursor on one that runs."""
    app = pilot.app
    app.action_go("sessions")
    await until(pilot, lambda: isinstance(app.screen, SessionsScreen) and app.screen.table.items)
    app.screen.set_focus(app.screen.table)
    while app.screen.table.current != (chosen := running(app)[-1]):
        before = app.screen.table.current
        await pilot.press("down")
        await until(pilot, lambda: app.screen.table.current != before)  # noqa: B023 - at once
    await calm(pilot)
    app.look_at(chosen)
    await until(pilot, lambda: app.model.shown.groups and app.model.shown.lines)


def a_mode(name):
    async def go(pilot):
        pilot.app.action_go(name)

    return go


def a_tab(name):
    async def go(pilot):
        app = pilot.app
        if not isinstance(app.screen, SessionScreen):
            await sessions(pilot)
            chosen = running(app)[0]
            app.open_session(chosen)
            await until(pilot, lambda: app.screen.query(TabPane) and app.model.shown.groups)
            await calm(pilot)
            assert app.model.shown.session_ids == (chosen.id,)
            assert tuple(pane.id for pane in app.screen.query(TabPane)) == SESSION_TABS
        tabs = app.screen.query_one("#tabs", TabbedContent)
        while tabs.active != name:  # what the tab before has to say yet may bring that back
            app.screen.action_tab(name)
            await calm(pilot)

    return go


def a_board(place):
    async def go(pilot):
        app = pilot.app
        app.action_go("boards")
        await until(pilot, lambda: app.screen.query("Table") and app.screen.table.items)
        app.screen.set_focus(app.screen.table)
        app.screen.table.action_edge(-1)
        await pilot.press(*["down"] * place, "enter")
        await until(pilot, lambda: isinstance(app.screen, BoardScreen) and app.screen.table.items)

    return go


async def standings(pilot):
    """The standings of the competition, with the cursor on a team."""
    app = pilot.app
    app.action_go("boards")
    await until(pilot, lambda: app.screen.query("Table") and app.screen.table.items)
    app.open_competition(app.model.competitions[0])
    await until(
        pilot, lambda: isinstance(app.screen, StandingsScreen) and app.screen.query("#list")
    )
    await until(pilot, lambda: app.screen.table.items)


async def without_score(pilot):
    """The board of submissions, every one of them, with the cursor on one that failed."""
    await a_board(1)(pilot)
    screen = pilot.app.screen
    while screen._best_per != BEST_PER_NONE:
        await pilot.press("b")
    await until(pilot, lambda: screen.unscored.items)
    screen.set_focus(screen.unscored)
    await pilot.press("down")


async def heat_map(pilot):
    await sessions(pilot)
    pilot.app.action_go("nodes")
    await until(pilot, lambda: pilot.app.screen.query("HeatMap"))
    while not pilot.app.screen.heat.display:
        await pilot.press("h")
        await calm(pilot)


async def compare(pilot):
    await sessions(pilot)
    pilot.app.compare(running(pilot.app)[:3])


async def code(pilot):
    await compare(pilot)
    await until(pilot, lambda: pilot.app.screen.query("Table") and pilot.app.screen.table.items)
    await pilot.press("c", "j")


async def behind(pilot):
    """The list as its own file has it: a list behind a dialog may be drawn no more."""
    await sessions(pilot)
    width, height = SIZES[0]
    # what differs is reported for the list itself
    await held(pilot, f"sessions-{width}x{height}", within_s=WITHIN_S)


async def keys(pilot):
    """Before the list, with their meanings."""
    await behind(pilot)
    pilot.app.action_help()


async def palette(pilot):
    await behind(pilot)
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
    await pilot.press(*"screenshot")
    await until(pilot, lambda: "SVG" in said(pilot.app))


async def command(pilot):
    await behind(pilot)
    await pilot.press("colon")
    await until(pilot, lambda: isinstance(pilot.app.focused, Input))
    await pilot.press(*"the")


FLAGS = 'print("Usage: nsml run [OPTIONS] [-- ARGS]...\\n\\n  -e, --entry FILE  what runs\\n  -g, --gpus N      how many")'


async def submit(pilot):
    await behind(pilot)
    program = Path(pilot.app.folder) / "nsml"
    program.write_text(f"#!{sys.executable}\n{FLAGS}\n")
    program.chmod(0o700)
    line, told = "nsml run -e train.py -d leaves", "sends leaves (train.py, model.py)"
    pilot.app.push_screen(Submit(line, folder=told, nsml=str(program), environ={}, typed=()))
    await until(pilot, lambda: "how many" in said(pilot.app))


async def evaluate(pilot):
    await a_tab("plot")(pilot)

    answers = {
        "loss": pb.Evaluated(value="tensor(0.4372, device='cuda:0')", output="seen\n"),
        "1/0": pb.Evaluated(
            error='Traceback (most recent call last):\n  File "<nsml exec>", line 1\n'
            "ZeroDivisionError: division by zero"
        ),
    }

    async def ask(code, _limit_s, told):
        told(pb.EvaluateResponse(waits=True))
        while code not in answers:
            await asyncio.Event().wait()
        return answers[code]

    pilot.app.push_screen(Evaluate(Conversation("ada/leaves/50:1", deque()), ask))
    await until(pilot, lambda: isinstance(pilot.app.focused, Input))
    for code, answer in (("loss", "tensor"), ("1/0", "Zero"), ("model.grads()", "safe point")):
        pilot.app.focused.value = code
        await pilot.press("enter")
        await until(pilot, lambda: answer in said(pilot.app))  # noqa: B023 - at once


async def output(pilot):
    await behind(pilot)
    words = [sys.executable, "-c", "print('NAME  STATE'); print('ada/leaves/50  running')"]
    pilot.app.push_screen(Output("nsml ps", words, environ={}, clock=pilot.app.clock))
    await until(pilot, lambda: "done" in said(pilot.app))


def asked(screen):
    async def go(pilot):
        await behind(pilot)
        pilot.app.push_screen(screen())

    return go


def one_of():
    return Picker("Log of", [Choice("0", "rank 0  alder"), Choice("1", "rank 1  birch")])


def several_of():
    choices = [Choice(name, name) for name in ("loss", "lr", "val/acc")]
    return Picker("Metrics", choices, chosen=["loss"], several=True)


PLACES = {
    **{name: (screen, a_mode(name)) for name, screen in SCREENS.items()},
    "sessions": (SessionsScreen, sessions),
    **{f"session-{name}": (SessionScreen, a_tab(name)) for name in SESSION_TABS},
    "nodes-map": (NodesScreen, heat_map),
    "board": (BoardScreen, a_board(0)),
    "board-submissions": (BoardScreen, without_score),
    "standings": (StandingsScreen, standings),
    "compare": (CompareScreen, compare),
    "compare-code": (CompareScreen, code),
    "help": (Help, keys),
    "palette": (CommandPalette, palette),
    "command": (CommandLine, command),
    "submit": (Submit, submit),
    "output": (Output, output),
    "evaluate": (Evaluate, evaluate),
    "confirm": (Confirm, asked(lambda: Confirm("Stop ada/leaves/50?", "nsml stop ada/leaves/50"))),
    "ask": (Ask, asked(lambda: Ask("Note of ada/leaves/50", "baseline"))),
    "picker": (Picker, asked(one_of)),
    "picker-several": (Picker, asked(several_of)),
}
"""By the name of its file: the screen, and the way there."""


# Captures


def text_of(app):
    """What is on the screen, a line each."""
    return "\n".join(line.rstrip() for line in said(app).split("\n")) + "\n"


def styles_of(app):
    """A letter for each style of a cell, in the order in which they are met, and what they mean."""
    letters, lines = {}, []
    for strip in app.screen._compositor.render_strips():
        line = ""
        for segment in strip:
            style = segment.style
            name = str(style.without_color + style.from_color(style.color, style.bgcolor)) or "none"
            letter = letters.setdefault(name, chr(ord("a") + len(letters)))
            line += letter * segment.cell_length
        lines.append(line)
    legend = [f"{letter} {name}" for name, letter in letters.items()]
    return "\n".join(["", *lines, "", *legend, ""])


def full_text_of(app):
    return text_of(app) + styles_of(app)


async def held(pilot, name, drawn=text_of, *, within_s=0.0):
    """Hold what is on the screen against its file; what differs once nothing has changed for a while.

    A busy machine may pause any work for that long: `within_s` at least is given to what does not agree.
    """
    app, file = pilot.app, FOLDER / f"{name}.txt"
    expected = file.read_text() if file.exists() and not DRAWS else None
    ends_at = time.monotonic() + (within_s if expected is not None else 0.0)
    seen, same = "", 0
    while same < STEADY or time.monotonic() < ends_at:
        app.play()
        app._draw()
        await pilot.pause(PAUSE_S if same else 0.0)
        found = drawn(app)
        if found == expected:
            return []
        seen, same = found, same + 1 if found == seen else 0
    if DRAWS:
        file.write_text(seen)
        return []
    if expected is None:
        return [f"no {file.name}: make captures draws it"]
    both = (each.splitlines() for each in (expected, seen))
    return [*difflib.unified_diff(*both, file.name, "what is drawn", n=0, lineterm="")]


async def differing(app, names, sizes_of, *, suffix="", drawn=text_of):
    """Of each of these places what differs from its files."""
    found = []
    async with app.run_test(size=SIZES[0]) as pilot:
        await until(pilot, lambda: app.model.shown.session_ids)
        for name in names:
            screen, go = PLACES[name]
            await sized(pilot, SIZES[0])
            await go(pilot)
            await calm(pilot)
            await until(pilot, lambda: isinstance(app.screen, screen) and app.screen.is_mounted)  # noqa: B023 - at once
            if isinstance(app.screen, Frame):
                await until(pilot, lambda: app.screen._is_ready)
            for width, height in sizes_of(name):
                await sized(pilot, (width, height))
                file = f"{name}-{width}x{height}{suffix}"
                found += await held(pilot, file, drawn, within_s=0.0 if found else WITHIN_S)
    return found


async def sized(pilot, size):
    if pilot.app.size != size:
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: pilot.app.screen.size == size)


def sizes_of(name):
    """Of dialogs one: what is behind them is drawn again when they are gone."""
    is_dialog = issubclass(PLACES[name][0], ModalScreen)
    return SIZES[:1] if is_dialog else (*SIZES, *MORE_SIZES.get(name, ()))


def agree(found):
    assert not found, "\n".join([*found, HOW_TO_ACCEPT])


def story(tmp_path, appearance=None):
    app = demo(appearance=appearance or Appearance(is_animated=False))
    app.folder = tmp_path
    return app


@pytest.mark.every_time
async def test_every_screen_looks_as_it_did(tmp_path):
    agree(await differing(story(tmp_path), PLACES, sizes_of))


@pytest.mark.parametrize("look", LOOKS)
async def test_in_other_looks_it_looks_as_it_did(look, tmp_path, monkeypatch):
    if LOOKS[look].is_colourless:
        monkeypatch.setenv("NO_COLOR", "1")
    app = story(tmp_path, LOOKS[look])
    agree(
        await differing(app, OF_LOOKS, lambda _: SIZES[:1], suffix=f"-{look}", drawn=full_text_of)
    )


# States


class At(Stopped):
    """A clock that is set; what is worked out once a second is worked out whenever it is asked for."""

    def __init__(self):
        self.at = AT
        self.asked = 0

    def time(self):
        return self.at

    def monotonic(self):
        self.asked += 1
        return float(self.asked)


@asynccontextmanager
async def silent():
    """A platform that does not answer."""
    await asyncio.Event().wait()
    yield


def known():
    return [event for _, event in Demo(AT).received(None, AT)]


def nothing():
    cluster = next(one for one in known() if isinstance(one, ClusterReceived))
    return [
        cluster,
        SessionsReceived((), (), reset=True),
        EndedReceived(()),
        QueueReceived(pb.ListQueueResponse()),
        NodesReceived(()),
        DatasetsReceived(()),
        ProjectsReceived(()),
        BoardsReceived(()),
        CompetitionsReceived(()),
    ]


def bring(app, state):
    """Have it receive what leads to a state from the one before it in its story."""
    clock = app.clock
    shown = dict.fromkeys(topic for screen in SCREENS.values() for topic in screen.topics)
    topics = (Topic.CLUSTER, *shown)
    if state == "offline":
        clock.at += 1
        for one in topics:
            link = Link(is_live=False, failures=3, retry_in_s=8.0, reason="connection refused")
            app._take(Linked(one, link))
        clock.at += 45
    elif state == "back":
        for one in topics:
            app._take(Linked(one, Link(is_live=True)))
    if state in {"live", "stale", "back"}:
        for event in known():
            app._take(event)
    if state == "stale":
        clock.at += 60
    elif state == "empty":
        for event in nothing():
            app._take(event)
    elif state == "denied":
        app._take(next(one for one in known() if isinstance(one, ClusterReceived)))
        for one in shown:
            app._take(Refused(one, "this is not for you: ask an administrator"))


@pytest.mark.parametrize("states", STORIES, ids="-".join)
async def test_in_each_state_it_looks_as_it_did(states):
    found = []
    app = Dashboard(silent, clock=At(), platform="garden", appearance=Appearance(is_animated=False))
    app.NOTIFICATION_TIMEOUT = 3_600  # it is there until it is seen
    app.user = "ada"
    async with app.run_test(size=SIZES[0]) as pilot:
        await until(pilot, lambda: app.current_mode == "sessions" and app.screen._is_ready)
        for state in states:
            bring(app, state)
            for name in SCREENS:
                app.action_go(name)
                await until(pilot, lambda: app.screen.name_of == name and app.screen._is_ready)  # noqa: B023 - at once
                file = f"{name}-80x24-{state}"
                found += await held(pilot, file, within_s=0.0 if found else WITHIN_S)
    agree(found)


# All of them


def expected_files():
    return {
        *(f"{name}-{width}x{height}.txt" for name in PLACES for width, height in sizes_of(name)),
        *(f"{name}-80x24-{look}.txt" for name in OF_LOOKS for look in LOOKS),
        *(f"{name}-80x24-{state}.txt" for name in SCREENS for state in STATES),
    }


def test_every_screen_has_captures():
    captured = {screen for screen, _ in PLACES.values()}
    ours = {one for one in parts() if issubclass(one, Screen) and not one.__subclasses__()}
    # Painted before anything is known, and gone at once.
    assert ours - captured == {Opening}, "each screen has a way there in PLACES"


@pytest.mark.skipif(DRAWS, reason="they are being drawn")
def test_there_are_these_files_and_no_others():
    assert {file.name for file in FOLDER.iterdir()} == expected_files()
