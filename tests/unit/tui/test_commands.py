"""What is typed behind `:`."""

import asyncio
import contextlib
import os
import signal
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.system_commands import SystemCommandsProvider

from cli.root import COMMANDS, root
from nsml.v1 import sessions_pb2 as pb
from nsml.view.confirmation import COMMANDS as COMMANDS_THAT_ASK
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import demo
from tui import prompt
from tui.commands import (
    OWN,
    WAYS,
    CommandError,
    Nsml,
    Own,
    Way,
    lacks_session,
    offered,
    run_of,
    understood,
)
from tui.running import run
from tui.screens.command_line import CommandLine
from tui.screens.output import Output, OutputView, end_text
from tui.screens.palette import Actions, Sessions
from tui.screens.picking import Picker
from tui.screens.session import SessionScreen

SIZE = (120, 40)
PROGRAM = """
import sys
print(*sys.argv[1:], "columns", __import__("shutil").get_terminal_size().columns)
print("\\x1b[31mred\\x1b[0m \\x1b]0;owned\\x07 terminal", sys.stdout.isatty())
sys.exit(3)
"""


def way(text):
    return understood(text).way


def test_there_is_a_way_for_every_command_of_nsml_and_for_no_other():
    context = click.Context(root)
    named = [name for section in COMMANDS.values() for name in section]
    assert sorted(WAYS) == sorted(named)
    for name in named:
        found = root.get_command(context, name)
        below = found.list_commands(context) if isinstance(found, click.Group) else []
        assert sorted(word for word in WAYS[name] if word) == sorted(below), name


def test_the_dashboards_own_words_are_its_own_and_nsml_before_them_is_not():
    assert understood("  ps state:run  lr<1 ") == Own("ps", "state:run  lr<1")
    assert understood("q") == Own("q", "")
    assert understood("nsml ps -a") == Nsml(("ps", "-a"), Way.SHOWN)
    assert understood("plot --help").way is Way.SHOWN
    assert understood("ps -a --filter 'lr>=0.05'") == understood("nsml ps -a --filter 'lr>=0.05'")
    assert understood("ps -state:run") == Own("ps", "-state:run")
    assert understood("   ") is None
    assert understood("diff 'a b' c").text == "nsml diff 'a b' c"


def test_what_changes_is_asked_and_what_stays_asks_or_writes_gets_the_terminal():
    assert way("status x") is way("model ls x") is way("logs x --tail 3") is Way.SHOWN
    assert way("logout") is way("context use x") is way("project set p") is Way.ASKED
    assert way("run -e main.py") is way("model pull x 1") is way("doctor chaos") is Way.HANDED
    assert way("logs -f x") is way("logs --fol x") is way("status -w") is Way.HANDED
    assert way("nsml plot x --svg f.svg") is way("media x --export=d") is Way.HANDED
    assert way("stop -h") is Way.SHOWN
    assert way("sh x") is way("sh x -- df -h") is Way.HANDED
    assert way("cp x:a b") is Way.HANDED
    assert way("sh -h") is way("sh --help -- df") is Way.SHOWN


def test_what_asks_by_itself_gets_the_terminal_and_a_dry_run_is_shown():
    names = {name for name in COMMANDS_THAT_ASK if not name.startswith("admin")}
    assert {name: way(f"{name} x") for name in names} == dict.fromkeys(names, Way.HANDED)
    assert way("rm x --dry-run") is way("node drain n --dry-run") is Way.SHOWN
    assert way("run --dry-run") is Way.HANDED


@pytest.mark.parametrize("text", ["stopp x", "nsml", "nsml -y rm x", "diff 'a", "!x", "run a\0b"])
def test_what_means_nothing_is_said(text):
    with pytest.raises(CommandError):
        understood(text)


def test_a_new_run_is_understood_with_its_name_and_by_its_flags():
    for text in ("nsml run -e main.py", "run -e main.py", " -e main.py"):
        assert run_of(text).words == ("run", "-e", "main.py")
    for text in ("", "nsml ps", "stop x"):
        with pytest.raises(CommandError):
            run_of(text)


@given(st.text(max_size=40))
def test_any_line_means_something_or_is_refused(text):
    try:
        found = understood(text)
    except CommandError:
        return
    assert found is None or isinstance(found, (Own, Nsml))
    offered(text, sessions=lambda: ["kim/mnist/1"], contexts=lambda: ["lab"])


def test_a_line_is_completed_by_what_may_stand_there():
    def offers(text):
        return offered(
            text,
            sessions=lambda: ["kim/mnist/1842", "kim/1/3", "lee/kin 7/1"],
            contexts=lambda: ["lab", "home"],
        )

    assert offers("")[: len(OWN)] == list(OWN)
    assert offers("st") == ["stacks", "status", "storage", "stop"]
    assert offers("status 18") == ["status kim/mnist/1842"]
    assert offers("diff kim/1/3 kin") == ["diff kim/1/3 'lee/kin 7/1'"]
    assert offers("diff kim/1/3 ") == ["diff kim/1/3 kim/mnist/1842", "diff kim/1/3 'lee/kin 7/1'"]
    assert offers("plot kim/1/3 ") == offers("forward kim/1/3 ") == offers("sh kim/1/3 ") == []
    assert offers("cp 18") == ["cp kim/mnist/1842"]
    assert offers("sh 18") == ["sh kim/mnist/1842"]
    assert offers("theme high") == ["theme high-contrast"]
    assert offers("ctx ") == ["ctx lab", "ctx home"]
    assert offers("ps state:run us") == ["ps state:run user:"]
    assert offers("node d") == ["node drain"]
    assert offers("model ls 1842") == ["model ls kim/mnist/1842"]
    assert offers("nsml eventl") == ["nsml eventlen"]
    assert offers("version ") == []


async def test_what_a_program_writes_comes_with_colours_and_nothing_else_to_obey():
    taken = []
    words = [sys.executable, "-c", PROGRAM, "x"]
    assert await run(words, environ={}, width=61, take=lambda done, _: taken.append(done)) == 3
    lines = "".join(taken).splitlines()
    assert lines[0] == "x columns 61"
    assert lines[1] == "\x1b[31mred\x1b[0m ␛]0;owned␇ terminal True"


async def test_a_program_whose_output_cannot_be_shown_ends_and_says_so():
    def take(done, _):
        raise LookupError(done)

    words = [sys.executable, "-c", "print('x', flush=True); __import__('time').sleep(600)"]
    async with asyncio.timeout(60):
        with pytest.raises(LookupError, match="x"):
            await run(words, environ={}, width=61, take=take)


async def test_a_program_ends_with_whoever_waits_for_it(tmp_path):
    received = asyncio.Event()
    file = tmp_path / "ended"
    os.mkfifo(file)
    program = (
        "import signal, sys, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(file)!r}).write_text('ended'), sys.exit()))\n"
        "print('begun', flush=True)\n"
        "signal.pause()"
    )
    words = [sys.executable, "-c", program]
    task = asyncio.create_task(run(words, environ={}, width=80, take=lambda *_: received.set()))
    await received.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(asyncio.to_thread(file.read_text), 60) == "ended"


async def typed(pilot, text):
    """Type a line behind `:`."""
    await pilot.press("colon")
    await until(
        pilot,
        lambda: isinstance(pilot.app.screen, CommandLine) and pilot.app.screen.query("Input"),
    )
    pilot.app.screen.query_one("Input").value = text
    await pilot.press("enter")
    await until(pilot, lambda: not isinstance(pilot.app.screen, CommandLine))


async def test_a_line_filters_opens_charts_chooses_colours_and_leaves(make_dashboard, server):
    server.state.add("kim/mnist/1")
    server.state.add("lee/kin/77", pb.SESSION_STATE_QUEUED)
    dashboard = make_dashboard()
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        await typed(pilot, "ps state:run")
        await shows(pilot, "1 of 2 sessions · filter: state:run")
        await typed(pilot, "theme light")
        assert dashboard.theme == "light"
        await typed(pilot, "plot 77")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        assert dashboard.screen.query_one("#tabs").active == "plot"
        await typed(pilot, "plot gone")
        assert "no session here is called 'gone'" in said_to(dashboard)
        await typed(pilot, "nonsense")
        assert any("no command 'nonsense'" in one for one in said_to(dashboard))
        await typed(pilot, "ctx lab")
        assert "no other platform can be shown from here" in said_to(dashboard)
        await typed(pilot, "q")
    assert dashboard.return_code == 0
    assert not dashboard.goes_to


def said_to(dashboard):
    return [one.message for one in dashboard._notifications]


async def test_a_line_is_recalled_and_completed(make_dashboard, server, tmp_path):
    server.state.add("kim/mnist/1")
    file = tmp_path / "kept.json"
    dashboard = make_dashboard(preferences_file=file)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await typed(pilot, "ps state:run")
        await typed(pilot, "ps user:kim")
    again = make_dashboard(preferences_file=file)
    async with again.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("colon", *"the")
        await shows(pilot, " theme")
        await pilot.press("up", "up")
        line = again.screen.query_one("Input")
        assert line.value == "ps state:run"
        await pilot.press("down", "down")
        assert line.value == "the"
        await pilot.press("tab", *"dark")
        await until(pilot, lambda: line.value == "theme dark")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(again.screen, CommandLine))
        await typed(pilot, "history")
        await until(pilot, lambda: isinstance(again.screen, Picker))
        assert [one.key for one in again.screen._found] == ["ps user:kim", "ps state:run"]
        await pilot.press(*"run", "enter")
        await until(pilot, lambda: isinstance(again.screen, CommandLine))
        await until(pilot, lambda: again.screen.query_one("Input").value == "ps state:run")


@pytest.fixture
def nsml(tmp_path, monkeypatch):
    """A program in the place of `nsml`."""
    program = tmp_path / "nsml"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o700)
    monkeypatch.setattr("tui.running.program", lambda: str(program))


def test_how_long_a_command_took_is_told_where_it_was_noticed():
    assert end_text(0, 0.4) == "done"
    assert end_text(0, 12.0) == "done after 12s"
    assert end_text(3, 0.0) == "exit code 3"


async def test_what_nsml_writes_is_shown_and_changes_are_asked(make_dashboard, server, nsml):
    server.state.add("kim/mnist/1")
    dashboard = make_dashboard(cli_environ={})
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await typed(pilot, "status kim/mnist/1")
        await shows(pilot, "$ nsml status kim/mnist/1", "status kim/mnist/1 columns 118")
        await shows(pilot, "red ␛]0;owned␇ terminal True", "exit code 3")
        assert "\x1b" not in said(dashboard)
        red = [
            one for one in dashboard.screen.query_one(OutputView).make_line(1) if one.text == "red"
        ]
        assert red[0].style.color.number == 1
        await pilot.press("Y", "escape")
        assert dashboard.clipboard == "nsml status kim/mnist/1"
        await typed(pilot, "project add vision lee")
        await shows(pilot, "Do this?", "$ nsml project add vision lee")
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(dashboard.screen, Output))
        await typed(pilot, "project add vision lee")
        await shows(pilot, "Do this?")
        await pilot.press("y")
        await shows(pilot, "project add vision lee -y columns")


async def test_a_command_without_a_session_means_the_one_under_the_cursor(
    make_dashboard, server, nsml
):
    server.state.add("kim/mnist/1")
    dashboard = make_dashboard(cli_environ={})
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await typed(pilot, "logs --raw")
        await shows(pilot, "$ nsml logs --raw kim/mnist/1")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(dashboard.screen, Output))
        await pilot.press("colon", *"requeue", "enter")
        # It is not begun before the name was seen.
        await until(
            pilot,
            lambda: (
                isinstance(dashboard.screen, CommandLine)
                and dashboard.screen.query("Input")
                and dashboard.screen.query_one("Input").value == "requeue kim/mnist/1"
            ),
        )
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(dashboard.screen, CommandLine))
        await typed(pilot, "plot")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))


async def test_a_command_without_any_session_to_mean_says_so(make_dashboard, server, nsml):
    dashboard = make_dashboard(cli_environ={})
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "● live")
        for text in ("requeue", "logs -f"):
            await typed(pilot, text)
            assert f"nsml {text}: of which session?" in said_to(dashboard)


def test_commands_that_need_a_session_and_name_none_are_known():
    def lacks(text):
        return lacks_session(understood(text))

    assert all(map(lacks, ["logs -f", "stop", "rm"]))
    for text in ("nsml logs x", "nsml logs -h", "nsml status", "nsml model ls", "nsml queue"):
        assert not lacks(text), text


async def test_a_demo_and_a_page_run_nothing_and_tell_no_contexts(
    make_dashboard, server, nsml, tmp_path, monkeypatch
):
    (tmp_path / "config.toml").write_text('[contexts.hidden]\nserver = "127.0.0.1:1"\n')
    monkeypatch.setenv("NSML_CONFIG_DIR", str(tmp_path))
    dashboard = make_dashboard()
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "● live")
        await pilot.press("colon", *"ctx ")
        await until(pilot, lambda: dashboard.screen.query_one("Input").value == "ctx ")
        await pilot.press("tab")
        assert "hidden" not in said(dashboard)
        await pilot.press("escape")
        await typed(pilot, "status")
        assert any("nsml is not run from here" in one for one in said_to(dashboard))


async def test_the_palette_finds_sessions_by_letters_and_actions_by_name(dashboard, server):
    for number in range(1, 4):
        server.state.add(f"kim/mnist/{number}")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("ctrl+p", *"reverse")
        await shows(pilot, "Reverse")
        await pilot.press("enter")
        await shows(pilot, "Created▴")
        await pilot.press("ctrl+p", *"kmn2")
        await shows(pilot, "$ nsml status kim/mnist/2")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        assert dashboard.screen.row.session.name == "kim/mnist/2"


async def test_the_palette_begins_with_screens_actions_and_sessions_and_moves_nothing(
    dashboard, server
):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        offered = sorted(
            [
                hit
                for provider in (Actions, Sessions, SystemCommandsProvider)
                async for hit in provider(dashboard.screen).discover()
            ],
            key=lambda hit: -hit.score,
        )
        names = [hit.text for hit in offered]
        assert names[:6] == ["Sessions", "Queue", "Nodes", "Datasets", "Events", "Projects"]
        assert names.index("Compare") < names.index("kim/mnist/1") < names.index("Theme")
        assert len(names) == len(set(names))
        assert not {"Up", "Down", "First", "Page up"} & set(names)


async def test_brackets_in_a_name_are_no_colours_in_the_palette(dashboard, server):
    server.state.add("kim/[red]x[/blue]/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("ctrl+p", *"kimx1")
        await shows(pilot, "$ nsml status 'kim/[red]x[/blue]/1'")


async def test_a_command_that_cannot_be_handed_the_terminal_is_told(make_dashboard, monkeypatch):
    monkeypatch.setattr("tui.running.program", lambda: "/there/is/no/nsml")
    dashboard = make_dashboard(cli_environ={})
    monkeypatch.setattr(type(dashboard), "suspend", contextlib.nullcontext)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 Sessions")
        await pilot.press("colon")
        await pilot.press(*"run", "enter")
        await until(
            pilot, lambda: any("not started" in x.message for x in dashboard._notifications)
        )


def test_ctrl_c_leads_back_as_enter_does(monkeypatch):
    class Terminal:
        def readline(self):
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it still waits")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("sys.stdin", Terminal())
    prompt._until_read()
    assert signal.getsignal(signal.SIGINT) is before


async def test_themes_are_listed_where_none_is_named():
    app = demo()
    async with app.run_test() as pilot:
        await pilot.press("colon", *"theme", "enter")
        await until(pilot, lambda: app._notifications)
        (told,) = [one.message for one in app._notifications]
        assert told.startswith(f"this is {app.theme} · themes: dark, light")


async def test_a_key_gives_the_terminal_to_a_shell(make_dashboard, server, tmp_path, monkeypatch):
    """In the session under the cursor; where the log of a replica is in front, in that one."""
    started = tmp_path / "started"
    program = tmp_path / "nsml"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {started}\n')
    program.chmod(0o755)
    monkeypatch.setattr("tui.running.program", lambda: str(program))
    monkeypatch.setattr(prompt, "_until_read", lambda: None)
    server.state.add("kim/old/1", state=pb.SESSION_STATE_SUCCEEDED)
    spec = pb.SessionSpec(entry="main.py", replica_count=2)
    server.state.add("kim/mnist/2", spec=spec)
    dashboard = make_dashboard(cli_environ={"PATH": os.environ["PATH"]})
    monkeypatch.setattr(type(dashboard), "suspend", contextlib.nullcontext)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        await pilot.press("s")
        assert started.read_text() == "sh kim/mnist/2\n"
        await pilot.press("enter", "l")
        await shows(pilot, "of rank 0")
        await pilot.press("r")
        await until(pilot, lambda: isinstance(dashboard.screen, Picker))
        await pilot.press("1", "enter")
        await until(pilot, lambda: dashboard.model.shown.rank == 1)
        await pilot.press("s")
        assert started.read_text().splitlines()[1:] == ["sh kim/mnist/2:1"]
        await pilot.press("escape", "down", "s")
        await until(pilot, lambda: dashboard._notifications)
        assert "kim/old/1 has ended" in [one.message for one in dashboard._notifications][-1]
        assert len(started.read_text().splitlines()) == 2
