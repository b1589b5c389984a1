"""Every key of the dashboard, pressed: what it does is seen.

A new binding fails here until `CASES` says where it is pressed, after which other keys, and what is another then.
"""

import asyncio
import os
import re
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.binding import Binding, BindingsMap
from textual.command import CommandPalette
from textual.events import AppBlur
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, TabbedContent

from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from nsml.view.series import Axis
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import demo, parts, running
from tui.appearance import Appearance
from tui.keymap import table
from tui.listing import Listing
from tui.preferences import LogPreferences, Preferences
from tui.screens.asking import Ask, Confirm
from tui.screens.board import BoardScreen
from tui.screens.command_line import CommandLine
from tui.screens.compare import CompareScreen
from tui.screens.evaluate import Conversation, Evaluate
from tui.screens.help import Help
from tui.screens.nodes import NodesScreen
from tui.screens.output import Output
from tui.screens.picking import Choice, Picker
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.screens.standings import StandingsScreen
from tui.screens.submit import Submit
from tui.widgets.charts import Charts
from tui.widgets.diff_view import DiffView
from tui.widgets.log_view import LogView
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

SIZE = (100, 30)
DOWN, UP = "greater than before", "less than before"
OTHER = "another than before"


@dataclass
class Case:
    """Where keys of a binding are pressed, after which others, and what is then so of the app.

    `then`: the value, or how it is to the one of before.
    """

    place: str
    sees: Any
    then: Any
    before: list[str] = field(default_factory=list)


# Places


async def sessions(pilot):
    """The list, as it is at the start."""
    app = pilot.app
    app.action_go("sessions")
    await until(pilot, lambda: on(app, SessionsScreen) and app.model.shown.session_ids)
    screen = app.screen
    screen._marks, screen._range_from = frozenset(), ""
    screen._change(**msgspec.structs.asdict(Listing()))
    screen.set_focus(screen.table)
    screen.table.action_edge(-1)
    app.clear_notifications()
    app._clipboard = ""
    app.player.speed, app.player.is_paused = 1, False
    await pilot.pause()


async def session(pilot):
    """One that runs, with its charts."""
    app = pilot.app
    if not on(app, SessionScreen):
        await sessions(pilot)
        app.open_session(running(app)[0])
        await until(pilot, lambda: on(app, SessionScreen) and app.model.shown.groups)
    app.clear_notifications()
    charts(app).smoothing, charts(app).is_log, charts(app).first = 0.0, False, 0
    app.set_preferences(Preferences())
    app.request_charts(replace(query(app), axis=Axis.STEP, low=None, high=None))
    app.screen.query_one("#search").display = False
    app.screen.action_tab("plot")
    await until(pilot, lambda: app.model.shown.groups and charts(app).display)


async def log(pilot):
    await session(pilot)
    pilot.app.screen.action_tab("logs")
    view = log_of(pilot.app)
    pilot.app.set_preferences(msgspec.structs.replace(pilot.app.preferences, log=LogPreferences()))
    view.wrap(is_on=False)
    await long(pilot, view)
    view.action_follow()
    await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)


async def models(pilot):
    await session(pilot)
    pilot.app.screen.action_tab("models")
    await until(pilot, lambda: isinstance(pilot.app.focused, Table) and pilot.app.focused.items)


async def devices(pilot):
    await session(pilot)
    pilot.app.screen.action_tab("gpu")
    await until(pilot, lambda: pilot.app.screen.query_one("#tabs", TabbedContent).active == "gpu")


async def changing(pilot):
    """One with a change that waits."""
    await session(pilot)
    app = pilot.app
    app.screen.action_tab("knobs")
    await until(pilot, lambda: isinstance(app.focused, Table) and app.focused.items)
    app.screen.row.session.changes.add(phase=pb.PROGRAM_CHANGE_PHASE_PREPARE)
    app.screen.redraw()


async def stacks(pilot):
    await session(pilot)
    pilot.app.screen.action_tab("stacks")
    await until(pilot, lambda: "MainThread" in said(pilot.app))


async def datasets(pilot):
    await sessions(pilot)
    pilot.app.action_go("datasets")
    await until(pilot, lambda: pilot.app.screen.query(Table) and pilot.app.screen.table.items)


async def board(pilot):
    """That of sessions, of which all are known here."""
    await sessions(pilot)
    app = pilot.app
    app.action_go("boards")
    await until(pilot, lambda: app.screen.query(Table) and app.screen.table.items)
    app.open_board(app.screen.table.items[0])
    await until(pilot, lambda: on(app, BoardScreen) and app.screen.table.items)


async def standings(pilot):
    await sessions(pilot)
    app = pilot.app
    app.action_go("boards")
    await until(pilot, lambda: app.screen.query(Table) and app.model.competitions)
    app.open_competition(app.model.competitions[0])
    await until(pilot, lambda: on(app, StandingsScreen) and app.screen.query("#list"))
    await until(pilot, lambda: app.screen.table.items)


async def nodes(pilot):
    await sessions(pilot)
    pilot.app.action_go("nodes")
    await until(pilot, lambda: on(pilot.app, NodesScreen) and pilot.app.screen.nodes.items)


async def heat(pilot):
    await nodes(pilot)
    view = pilot.app.screen.heat
    view.styles.width = 40  # more lines than one
    while not view.display:
        pilot.app.screen.action_heat()
        await pilot.pause()
    view.focus()
    view.action_edge(-1)
    await until(pilot, lambda: view.has_focus and view.current)


async def command(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    line = CommandLine(["first", "second"], lambda _: ["ps", "plot"])
    pilot.app.push_screen(line, pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, CommandLine) and isinstance(pilot.app.focused, Input))


async def output(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    words = [sys.executable, "-c", "print(1)"]
    screen = Output("nsml ps", words, environ=os.environ, clock=SystemClock())
    pilot.app.push_screen(screen, pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Output))


async def submit(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    screen = Submit("", folder="here", nsml="true", environ={}, typed=["nsml run -e a"])
    pilot.app.push_screen(screen, pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Submit))


async def evaluate(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    screen = Evaluate(Conversation("kim/mnist/1", deque(["loss", "lr"])), never)
    pilot.app.push_screen(screen, pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Evaluate) and isinstance(pilot.app.focused, Input))


async def never(*_):
    await asyncio.Event().wait()


async def text(pilot):
    await sessions(pilot)
    if not pilot.app.screen.query(TextView):
        await pilot.app.screen.mount(TextView())
    await long(pilot, pilot.app.screen.query_one(TextView))


async def long(pilot, view):
    """More lines than there is room for, in either direction, from now on."""
    view.show([f"{number} " + "x" * 300 for number in range(200)])
    view.show = lambda *_, **__: None
    await until(pilot, lambda: view.region)
    view.focus()
    await until(pilot, lambda: view.has_focus and view.allow_vertical_scroll)
    if not view.is_following:
        view.scroll_to(0, 0, animate=False, force=True)
        await until(pilot, lambda: tuple(view.scroll_offset) == (0, 0))


async def compare(pilot):
    await sessions(pilot)
    pilot.app.compare(running(pilot.app)[:3])
    await until(pilot, lambda: on(pilot.app, CompareScreen) and pilot.app.screen.table.items)


async def diff(pilot):
    if not on(pilot.app, CompareScreen):
        await compare(pilot)
        await pilot.press("c", "j")
    await long(pilot, pilot.app.screen.query_one(DiffView))
    pilot.app.screen._files = [0, 50, 100]


async def queue(pilot):
    await sessions(pilot)
    await pilot.press("2")
    await until(pilot, lambda: pilot.app.screen.name_of == "queue" and pilot.app.screen.table.items)


async def confirm(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    pilot.app.push_screen(Confirm("Really?", "nsml stop"), pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Confirm))


async def picker(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    choices = [Choice(one, one) for one in ("first", "second")]
    pilot.app.push_screen(Picker("Which?", choices, several=True), pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Picker) and picked(pilot.app) == 0)


async def ask(pilot):
    await sessions(pilot)
    pilot.app.answers = []
    pilot.app.push_screen(Ask("A memo?", "text"), pilot.app.answers.append)
    await until(pilot, lambda: on(pilot.app, Ask))


PLACES = {
    place.__name__: place
    for place in (
        sessions,
        session,
        log,
        models,
        devices,
        changing,
        stacks,
        datasets,
        board,
        standings,
        nodes,
        heat,
        command,
        output,
        submit,
        evaluate,
        text,
        compare,
        diff,
        queue,
        confirm,
        picker,
        ask,
    )
}


# What is seen


def on(app, screen):
    return isinstance(app.screen, screen) and app.screen.is_mounted


def log_of(app):
    return app.screen.query_one(LogView)


def line(app):
    return app.screen.table._at


def told(app):
    return [one.message for one in app._notifications]


def charts(app):
    return app.screen.query_one(Charts)


def query(app):
    return app.model.shown.chart_query


def scrolled(app):
    return tuple(app.focused.scroll_offset)


def tab(app):
    return app.screen.query_one("#tabs", TabbedContent).active


def picked(app):
    return app.screen.query_one(OptionList).highlighted


def heat_at(app):
    return app.screen.heat._at


def folded(app):
    return len(app.screen._listing.folded)


CASES = {
    "app.copy-command": Case("sessions", lambda app: app.clipboard.startswith("nsml ps"), True),
    "app.copy-last": Case("sessions", lambda app: bool(told(app)), True),
    "app.mouse": Case("sessions", lambda app: bool(told(app)), True),
    "picker.down": Case("picker", picked, 1),
    "picker.up": Case("picker", picked, 0, ["down"]),
    "picker.toggle": Case("picker", lambda app: app.screen._chosen, ["first"]),
    "picker.take": Case("picker", lambda app: app.answers, [()]),
    "picker.leave": Case("picker", lambda app: app.answers, [None]),
    "sessions.mark-all": Case("sessions", lambda app: len(app.screen._marks), DOWN),
    "sessions.range": Case(
        "sessions", lambda app: len(app.screen._marks), 3, ["V", "down", "down"]
    ),
    "sessions.sort": Case("sessions", lambda app: on(app, Picker), True),
    "sessions.reverse": Case("sessions", lambda app: app.screen._listing.is_down, OTHER),
    "sessions.columns": Case("sessions", lambda app: on(app, Picker), True),
    "sessions.group": Case("sessions", lambda app: app.screen._listing.by, OTHER),
    "sessions.fold": Case("sessions", folded, 1, ["b", "down"]),
    "sessions.unfold": Case("sessions", folded, 0, ["b", "left"]),
    "sessions.copy": Case("sessions", lambda app: "/" in app.clipboard, True),
    "go.sessions": Case("queue", lambda app: app.current_mode, "sessions"),
    "go.queue": Case("sessions", lambda app: app.current_mode, "queue"),
    "go.nodes": Case("sessions", lambda app: app.current_mode, "nodes"),
    "go.datasets": Case("sessions", lambda app: app.current_mode, "datasets"),
    "go.events": Case("sessions", lambda app: app.current_mode, "events"),
    "go.projects": Case("sessions", lambda app: app.current_mode, "projects"),
    "go.boards": Case("sessions", lambda app: app.current_mode, "boards"),
    "board.back": Case("board", lambda app: app.screen.name_of, "boards"),
    "board.best": Case("board", lambda app: app.screen._best_per, OTHER),
    "board.mine": Case("board", lambda app: len(app.screen.table.items), UP),
    "standings.back": Case("standings", lambda app: app.screen.name_of, "boards"),
    "standings.phase": Case("standings", lambda app: app.screen._asked, "final"),
    "board.diff": Case("board", lambda app: on(app, CompareScreen), True, ["G"]),
    "filter.keep": Case("sessions", lambda app: isinstance(app.focused, Input), False, ["slash"]),
    "filter.drop": Case("sessions", lambda app: isinstance(app.focused, Input), False, ["slash"]),
    "list.filter": Case("datasets", lambda app: isinstance(app.focused, Input), True),
    "list.back": Case("datasets", lambda app: isinstance(app.focused, Input), False, ["slash"]),
    "session.gpu": Case("session", tab, "gpu"),
    "gpu.span": Case("devices", lambda app: str(app.model.shown.details), OTHER),
    "app.command": Case("sessions", lambda app: on(app, CommandLine), True),
    "command.complete": Case("command", lambda app: app.focused.value, "ps"),
    "command.before": Case("command", lambda app: app.focused.value, "second"),
    "command.after": Case("command", lambda app: app.focused.value, "second", ["up", "up"]),
    "command.leave": Case("command", lambda app: app.answers, [None]),
    "output.leave": Case("output", lambda app: len(app.answers), 1),
    "output.copy": Case("output", lambda app: app.clipboard, "nsml ps"),
    "nodes.heat": Case("nodes", lambda app: app.screen._measure, OTHER),
    "nodes.platform": Case("nodes", lambda app: app.screen._shows_platform, OTHER),
    "heat.left": Case("heat", heat_at, 0, ["right"]),
    "heat.right": Case("heat", heat_at, 1),
    "heat.down": Case("heat", heat_at, DOWN),
    "heat.up": Case("heat", heat_at, 0, ["down"]),
    "heat.first": Case("heat", heat_at, 0, ["end"]),
    "heat.last": Case("heat", heat_at, DOWN),
    "sessions.submit": Case("sessions", lambda app: "can be submitted" in str(told(app)), True),
    "submit.before": Case("submit", lambda app: app.focused.value, "nsml run -e a"),
    "submit.after": Case("submit", lambda app: app.focused.value, "", ["up"]),
    "submit.leave": Case("submit", lambda app: app.answers, [None]),
    "session.evaluate": Case("session", lambda app: "can be evaluated" in str(told(app)), True),
    "evaluate.before": Case("evaluate", lambda app: app.focused.value, "lr"),
    "evaluate.after": Case("evaluate", lambda app: app.focused.value, "lr", ["up", "up"]),
    "evaluate.limit": Case("evaluate", lambda app: "time limit 15s" in said(app), True),
    "evaluate.leave": Case("evaluate", lambda app: app.answers, [None]),
    "session.events": Case("session", tab, "events"),
    "session.knobs": Case("session", tab, "knobs"),
    "session.processes": Case("session", tab, "processes"),
    "session.stacks": Case("session", tab, "stacks"),
    "session.hold": Case("session", lambda app: "can be paused" in str(told(app)), True),
    "session.set": Case("session", lambda app: "can be set" in str(told(app)), True),
    "knobs.withdraw": Case("changing", lambda app: "can be withdrawn" in str(told(app)), True),
    "stacks.locals": Case("stacks", lambda app: "batch = " in said(app), True),
    "session.media": Case("session", tab, "media"),
    "session.files": Case("session", tab, "files"),
    "plot.metrics": Case("session", lambda app: on(app, Picker), True),
    "compare.filter": Case("compare", lambda app: isinstance(app.focused, Input), True),
    "compare.mean": Case("compare", lambda app: app.screen._is_mean, OTHER),
    "compare.ignore": Case("compare", lambda app: on(app, Picker), True),
    "compare.file-next": Case("diff", scrolled, DOWN),
    "compare.file-before": Case("diff", scrolled, UP, ["G"]),
    "log.rank": Case("log", lambda app: on(app, Picker) or bool(told(app)), True),
    "session.remove": Case("session", lambda app: "can be removed" in str(told(app)), True),
    "sessions.remove": Case("sessions", lambda app: "can be removed" in str(told(app)), True),
    "app.palette": Case("sessions", lambda app: on(app, CommandPalette), True),
    "app.help": Case("sessions", lambda app: on(app, Help), True),
    "help.leave": Case("sessions", lambda app: on(app, Help), False, ["question_mark"]),
    "app.refresh": Case("sessions", lambda app: id(app.model), OTHER),
    "app.quit": Case("sessions", lambda app: app._exit, True),
    "story.pause": Case("sessions", lambda app: app.player.is_paused, True),
    "story.faster": Case("sessions", lambda app: app.player.speed, 2),
    "story.slower": Case("sessions", lambda app: app.player.speed, 1, ["greater_than_sign"]),
    "story.back": Case("sessions", lambda app: app.player.time(), lambda was: was - 10),
    "story.on": Case("sessions", lambda app: app.player.time(), lambda was: was + 10),
    "story.minute-back": Case("sessions", lambda app: app.player.time(), lambda was: was - 60),
    "story.minute-on": Case("sessions", lambda app: app.player.time(), lambda was: was + 60),
    "sessions.filter": Case("sessions", lambda app: isinstance(app.focused, Input), True),
    "sessions.mark": Case("sessions", lambda app: len(app.screen._marks), 1),
    "sessions.unmark": Case("sessions", lambda app: len(app.screen._marks), 0, ["space"]),
    "sessions.whose": Case("sessions", lambda app: app.screen._listing.is_mine, True),
    "sessions.ended": Case("sessions", lambda app: app.screen._listing.with_ended, False),
    "sessions.preview": Case("sessions", lambda app: app.screen._listing.has_preview, False),
    "sessions.compare": Case("sessions", lambda app: on(app, CompareScreen), True, ["space"] * 2),
    "sessions.stop": Case("sessions", lambda app: "can be stopped" in str(told(app)), True),
    "sessions.memo": Case("sessions", lambda app: "can be given a memo" in str(told(app)), True),
    "sessions.shell": Case("sessions", lambda app: "can be entered" in str(told(app)), True),
    "sessions.forward": Case("sessions", lambda app: "can be forwarded" in str(told(app)), True),
    "sessions.back": Case("sessions", lambda app: app.screen._listing.is_mine, False, ["a"]),
    "table.down": Case("sessions", line, 1),
    "table.up": Case("sessions", line, 0, ["down"]),
    "table.page-down": Case("sessions", line, DOWN),
    "table.page-up": Case("sessions", line, UP, ["end"]),
    "table.first": Case("sessions", line, 0, ["end"]),
    "table.last": Case("sessions", lambda app: len(app.screen.table.items) - 1 - line(app), 0),
    "table.open": Case("sessions", lambda app: on(app, SessionScreen), True),
    "session.overview": Case("session", tab, "overview"),
    "session.plot": Case("session", tab, "plot", ["d"]),
    "session.logs": Case("session", tab, "logs"),
    "session.args": Case("session", tab, "args"),
    "session.models": Case("session", tab, "models"),
    "session.tab-next": Case("session", tab, "logs"),
    "session.tab-before": Case("session", tab, "overview"),
    "models.pull": Case("models", lambda app: bool(told(app)), True),
    "session.stop": Case("session", lambda app: "can be stopped" in str(told(app)), True),
    "session.memo": Case("session", lambda app: "can be given a memo" in str(told(app)), True),
    "session.shell": Case("session", lambda app: "can be entered" in str(told(app)), True),
    "session.forward": Case("session", lambda app: "can be forwarded" in str(told(app)), True),
    "charts.back": Case("session", lambda app: on(app, SessionsScreen), True),
    "plot.axis": Case("session", lambda app: query(app).axis, OTHER),
    "plot.rougher": Case("session", lambda app: charts(app).smoothing, 0.0, ["full_stop"]),
    "plot.smoother": Case("session", lambda app: charts(app).smoothing, 0.3),
    "plot.log": Case("session", lambda app: charts(app).is_log, True),
    "plot.next": Case("session", lambda app: charts(app).first, 1),
    "plot.before": Case("session", lambda app: charts(app).first, 0, ["n"]),
    "plot.in": Case("session", lambda app: query(app).low is not None, True),
    "plot.out": Case("session", lambda app: query(app).low, UP, ["plus"]),
    "plot.left": Case("session", lambda app: query(app).low, UP, ["plus"]),
    "plot.right": Case("session", lambda app: query(app).low, DOWN, ["plus"]),
    "plot.whole": Case("session", lambda app: query(app).low is None, True, ["plus"]),
    "log.follow": Case("log", lambda app: log_of(app).is_following, True, ["k"]),
    "log.wrap": Case("log", lambda app: log_of(app).is_wrapped, True),
    "log.down": Case("log", lambda app: log_of(app).scroll_offset.y, 1, ["g"]),
    "log.up": Case("log", lambda app: log_of(app).scroll_offset.y, UP),
    "log.first": Case("log", lambda app: log_of(app).scroll_offset.y, 0),
    "log.last": Case("log", lambda app: log_of(app).is_following, True, ["g"]),
    "log.search": Case("log", lambda app: isinstance(app.focused, Input), True),
    "log.next": Case(
        "log", lambda app: log_of(app).found_words, "found: 1 of 29", ["slash", "0", "enter", "g"]
    ),
    "log.before": Case(
        "log", lambda app: log_of(app).found_words, "found: 28 of 29", ["slash", "0", "enter"]
    ),
    "compare.baseline": Case("compare", lambda app: app.screen._baseline, OTHER, ["down"]),
    "compare.order": Case("compare", lambda app: app.screen._order is not None, True),
    "compare.right": Case("compare", lambda app: app.screen._aside, 1),
    "compare.left": Case("compare", lambda app: app.screen._aside, 0, ["right"]),
    "compare.plot": Case("compare", lambda app: app.screen.is_code, False, ["c"]),
    "compare.code": Case("compare", lambda app: app.screen.is_code, True),
    "diff.down": Case("diff", scrolled, (0, 1)),
    "diff.up": Case("diff", scrolled, UP, ["G"]),
    "diff.page-down": Case("diff", scrolled, DOWN),
    "diff.page-up": Case("diff", scrolled, UP, ["G"]),
    "diff.left": Case("diff", scrolled, UP, ["right"]),
    "diff.right": Case("diff", scrolled, DOWN),
    "diff.first": Case("diff", scrolled, (0, 0), ["G"]),
    "diff.last": Case("diff", scrolled, DOWN),
    "text.down": Case("text", scrolled, (0, 1)),
    "text.up": Case("text", scrolled, UP, ["G"]),
    "text.page-down": Case("text", scrolled, DOWN),
    "text.page-up": Case("text", scrolled, UP, ["G"]),
    "text.left": Case("text", scrolled, UP, ["right"]),
    "text.right": Case("text", scrolled, DOWN),
    "text.first": Case("text", scrolled, (0, 0), ["G"]),
    "text.last": Case("text", scrolled, DOWN),
    "queue.stop": Case("queue", lambda app: "can be stopped" in str(told(app)), True),
    "confirm.yes": Case("confirm", lambda app: app.answers, [True]),
    "confirm.no": Case("confirm", lambda app: app.answers, [False]),
    "ask.leave": Case("ask", lambda app: app.answers, [None]),
}


GIVES_WAY = {"story.on", "story.back"}
"""Keys of stories where a screen has them for itself: there the other keys of time lead on and back."""


def bindings():
    """Those of every part, with the part that has them."""
    return [(part, binding) for part in parts() for binding in vars(part).get("BINDINGS", ())]


BY_ID = {binding.id: binding for _, binding in bindings() if isinstance(binding, Binding)}


def test_every_binding_has_a_case_here_an_id_of_its_own_and_a_name():
    ids = [binding.id for _, binding in bindings()]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(CASES), "each binding has a case in CASES"
    assert all(binding.description for _, binding in bindings())


DOCUMENTED = {
    "Everywhere": ("app", "go"),
    "Lists": ("table",),
    "Sessions": ("sessions",),
    "A session": ("session",),
    "The tabs of a session": ("session", "models", "gpu", "knobs", "stacks", "log"),
    "Charts": ("plot",),
    "The log": ("log",),
    "Side by side": ("compare",),
    "Other screens": ("queue", "nodes", "list"),
    "A board": ("board", "list"),
    "Standings": ("standings", "list"),
    "Recordings and the demo": ("story",),
}
"""Sections of docs/tui.md whose tables have keys, with what the ids of these begin with."""
EVERYWHERE = {"enter", "escape"}
SPELLED = {"←": "left", "→": "right", "esc": "escape"}


def keys_of(groups):
    """The keys of each binding, by its id."""
    rows = {name: keys.split(",") for name, keys, _ in table({})}
    return {name: keys for name, keys in rows.items() if name.partition(".")[0] in groups}


def keys_written():
    """Keys in the columns of docs/tui.md that are headed so, by the heading that stands above the table."""
    found, heading, titles = {}, "", []
    for line in (Path(__file__).parents[3] / "docs/tui.md").read_text().splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        titles = line.split("|") if line.startswith("| key ") else titles
        if heading in DOCUMENTED and line.startswith("| `"):
            cells = zip(titles, line.split("|"), strict=True)
            said_of = " ".join(cell for title, cell in cells if title.strip().startswith("key"))
            keys = re.findall(r"`([^`]+)`", said_of)
            found.setdefault(heading, set()).update(SPELLED.get(key, key) for key in keys)
    return found


def test_the_keys_in_the_documents_are_those_of_the_program():
    written = keys_written()
    assert set(written) == set(DOCUMENTED)
    for heading, groups in DOCUMENTED.items():
        ours = {named(key) for keys in keys_of(groups).values() for key in keys}
        assert written[heading] <= ours | EVERYWHERE, heading


def test_every_key_of_a_screen_is_in_the_documents():
    for group in {group for groups in DOCUMENTED.values() for group in groups}:
        headings = [name for name, groups in DOCUMENTED.items() if group in groups]
        written = set().union(*(keys_written()[name] for name in headings)) | EVERYWHERE
        for name, keys in keys_of((group,)).items():
            assert written & {named(key) for key in keys}, name


def named(key):
    return {"plus": "+", "comma": ","}.get(key, key)


def test_what_stops_or_removes_is_on_control_keys_alone():
    for _, binding in bindings():
        if binding.action.startswith(("stop", "remove")):
            assert all(key.startswith("ctrl+") for key in binding.key.split(",")), binding


@pytest.mark.parametrize("part", [one for one in parts() if vars(one).get("BINDINGS")])
def test_no_key_has_two_meanings_in_one_place(part):
    """In a part, with those that it inherits; of a screen, with those of the app, too."""
    found = dict(part._merged_bindings.key_to_bindings)
    app = next(one for one in parts() if one.__name__ == "Dashboard")
    for key, meanings in found.items():
        actions = {one.action for one in meanings}
        if issubclass(part, Screen) and not issubclass(part, ModalScreen):
            ours = BindingsMap(app.BINDINGS).key_to_bindings.get(key, [])
            actions |= {f"app.{one.action}" for one in ours if one.id not in GIVES_WAY}
        assert len(actions) == 1, (key, actions)


def is_then(case, was, value):
    if case.then is DOWN:
        return value > was
    if case.then is UP:
        return value < was
    if case.then is OTHER:
        return value != was
    return value == (case.then(was) if callable(case.then) else case.then)


@pytest.mark.every_time
@pytest.mark.parametrize("place", PLACES)
async def test_every_key_does_what_it_says(place):
    app = demo(appearance=Appearance(is_animated=False))
    cases = {name: case for name, case in CASES.items() if case.place == place}
    async with app.run_test(size=SIZE) as pilot:
        for name, case in sorted(cases.items(), key=lambda item: item[0] == "app.quit"):
            for key in BY_ID[name].key.split(","):
                await PLACES[place](pilot)
                try:
                    await check(pilot, case, key)
                except AssertionError as error:
                    error.add_note(f"{key}: {name}")
                    raise


async def check(pilot, case, key):
    app = pilot.app
    await pilot.press(*case.before)
    await pilot.pause()
    was = case.sees(app)
    is_value = not callable(case.then) and not any(case.then is one for one in (DOWN, UP, OTHER))
    assert not is_value or was != case.then, "it was so before"
    await pilot.press(key)
    await until(pilot, lambda: is_then(case, was, case.sees(app)))


async def test_help_and_the_way_out_are_in_sight_on_every_screen_however_narrow():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(60, 24)) as pilot:
        await shows(pilot, "39 of 39")
        for key in ("1", "2", "3", "4", "5", "6", "7", "1", "enter"):
            await pilot.press(key)
            await until(pilot, lambda: foot(app).endswith("? Keys  ^q Quit"))


async def test_a_story_does_not_offer_what_is_done_on_a_platform():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(200, 40)) as pilot:
        for key in ("1", "2"):
            await pilot.press(key)
            await shows(pilot, "? Keys")
            await until(pilot, lambda: "Open" in foot(app))
            assert not {"Stop", "Memo", "New"} & set(foot(app).split())


async def test_keys_at_the_foot_are_whole_or_not_there():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(200, 24)) as pilot:
        await until(pilot, lambda: "Preview" in foot(app))
        every = offered(app)
        for width in range(89, 40, -7):
            await pilot.resize_terminal(width, 24)
            await until(
                pilot, lambda: offered(app) in [every[:count] for count in range(2, len(every))]
            )
        await pilot.press("slash")
        await until(pilot, lambda: offered(app) == ["⏎ Keep", "esc Drop"])


async def test_the_keys_are_there_in_a_window_that_was_never_given_the_focus():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(120, 40)) as pilot:
        app.post_message(AppBlur())
        await until(pilot, lambda: not app.app_focus)
        app.action_go("nodes")
        await until(pilot, lambda: "Heat map" in foot(app))


def foot(app):
    return said(app).rpartition("\n")[2].rstrip()


def offered(app):
    """The keys at the left."""
    keys = foot(app).removesuffix("^q Quit").rstrip().removesuffix("? Keys")
    return [key.strip() for key in keys.split("  ") if key.strip()]
