"""What goes on inside a running session, and what changes it: tabs and keys, on a platform over real gRPC."""

import json

import pytest
from textual.widgets import TabbedContent, TabPane

from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tui.screens.asking import Confirm
from tui.screens.session import SessionScreen
from tui.screens.tabs.knobs import KnobsTab
from tui.widgets.field import Field
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

SIZE = (120, 40)
LR = {"value": 0.1, "default": 0.1, "min": 0.0, "max": 1.0, "choices": None, "step": None}
WITHDRAWN = pb.PROGRAM_CHANGE_PHASE_WITHDRAWN


def knobs(state, **found):
    """What the program says of its knobs from now on."""
    state.evaluated = pb.Evaluated(value=repr(json.dumps(found)))


async def opened(pilot, *keys):
    """The screen of the session under the cursor, after keys."""
    await shows(pilot, "1 of 1 session")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))
    await pilot.press(*keys)


def told(app):
    return "\n".join(one.message for one in app._notifications)


def asked_for(server):
    """The changes that were asked for."""
    [session] = server.state.sessions.values()
    return session.changes


async def test_a_knob_is_set_from_its_line_and_asked_for_again(dashboard, server):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "0.0 to 1.0", "S sets a knob", "1 knob", "$ nsml set kim/mnist/1")
        assert len(server.state.asked_code) == 1
        knobs(server.state, lr={**LR, "value": 0.5})
        # What is typed right behind the key goes into the line.
        await pilot.press("S", *"0.5", "enter")
        await until(pilot, lambda: "lr: 0.1 -> 0.5" in told(dashboard))
        assert dashboard.last_command == "nsml set kim/mnist/1 lr=0.5"
        [change] = asked_for(server)
        assert dict(change.values) == {"lr": "0.5"}
        await shows(pilot, "#1  lr=0.5  applied", "lr: 0.1 -> 0.5")
        await until(pilot, lambda: len(server.state.asked_code) == 2)
        assert not dashboard.screen.query_one(KnobsTab).is_asking


async def test_what_sets_nothing_stays_in_its_line_and_nothing_is_asked(dashboard, server):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        await pilot.press("p", "S")
        await shows(pilot, "lr = 0.1  (min 0.0, max 1.0, default 0.1)", "esc leaves")
        assert isinstance(dashboard.focused, Field)
        for line, why in (
            ("lr", "knob lr has no value"),
            ("lr=0.2@7", "the step is named by --at"),
            ("lr=0.2 --at soon", "'soon' is no step"),
            ("--at 7", "no knob is named"),
            ("lr='0.2", "a quote that nothing closes"),
        ):
            dashboard.focused.value = line
            await pilot.press("enter")
            await shows(pilot, f"not set: {why}")
            assert dashboard.focused.value == line
        assert not asked_for(server)
        assert not told(dashboard)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(dashboard.focused, Field))
        assert isinstance(dashboard.screen, SessionScreen)


async def test_a_value_that_the_program_refuses_stays_in_its_line_with_the_reason_below(
    dashboard, server
):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    server.state.change_phase = WITHDRAWN
    server.state.change_reason = "lr: 7.0 is more than its max 1.0"
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        await pilot.press("S", *"7 --at 500", "enter")
        await shows(pilot, "not set: lr: 7.0 is more than its max 1.0 · esc leaves")
        await shows(pilot, "#1  lr=7  not made: lr: 7.0 is more than its max 1.0  by kim")
        assert dashboard.focused.value == "lr=7 --at 500"
        assert not told(dashboard), "nothing covers the table"
        server.state.change_phase = pb.PROGRAM_CHANGE_PHASE_APPLIED
        # The same line again is asked for again.
        await pilot.press("enter")
        await until(pilot, lambda: not dashboard.screen.query_one(KnobsTab).is_asking)
        assert len(asked_for(server)) == 2
        assert isinstance(dashboard.focused, Table)


async def test_what_is_typed_whole_behind_the_name_of_its_knob_means_its_value(dashboard, server):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        await pilot.press("S", *"lr=0.5", "enter")
        await until(pilot, lambda: dashboard.last_command == "nsml set kim/mnist/1 lr=0.5")


async def test_a_line_that_was_left_before_its_answer_has_the_refusal_in_a_note(dashboard, server):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    server.state.change_phase = pb.PROGRAM_CHANGE_PHASE_PREPARE
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        await pilot.press("S", *"7", "enter")
        await until(pilot, lambda: asked_for(server))
        await pilot.press("escape")
        fresh = pb.Session()
        fresh.CopyFrom(next(iter(server.state.sessions.values())))
        fresh.changes[0].phase, fresh.changes[0].reason = WITHDRAWN, "lr: too much"
        server.state.put(fresh)
        refused = "not done: $ nsml set kim/mnist/1 lr=7\nlr: too much"
        await until(pilot, lambda: refused in told(dashboard))
        assert isinstance(dashboard.screen, SessionScreen)


async def test_a_pause_is_confirmed_and_the_same_key_has_it_go_on(dashboard, server):
    session = server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "d")
        await shows(pilot, "z Pause")
        await pilot.press("z")
        await shows(pilot, "Pause kim/mnist/1?", "for 1h at most", "$ nsml pause kim/mnist/1")
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(dashboard.screen, Confirm))
        assert not asked_for(server)
        await pilot.press("z", "y")
        await until(pilot, lambda: "pause, 1h at most  applied" in told(dashboard))
        server.state.change(session, state=pb.SESSION_STATE_PAUSED)
        await shows(pilot, "z Continue")
        await pilot.press("z")
        await shows(pilot, "Let kim/mnist/1 go on?", "$ nsml continue kim/mnist/1")
        await pilot.press("y")
        await until(pilot, lambda: len(asked_for(server)) == 2)
        assert asked_for(server)[1].kind == pb.PROGRAM_CHANGE_KIND_CONTINUE


async def test_an_answer_that_comes_while_its_line_goes_ends_nothing(dashboard, server):
    server.state.add("kim/mnist/1")
    knobs(server.state, lr=LR)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        await pilot.press("S")
        [tab] = dashboard.screen.query(KnobsTab)
        assert tab.is_asking
        await tab.query(Field).remove()
        assert not tab._awaits("lr=0.5")
        assert not tab.is_asking
        await tab.query(".line").remove()
        assert not tab.is_asking


async def test_a_change_that_waits_is_said_and_withdrawn(dashboard, server):
    server.state.add("kim/mnist/1")
    server.state.change_phase = pb.PROGRAM_CHANGE_PHASE_PREPARE
    knobs(server.state, lr=LR)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "1 knob")
        assert "Withdraw" not in said(dashboard)
        await pilot.press("S", *"0.5 --at 9000", "enter")
        await shows(pilot, "lr=0.5 waits for step 9,000: w withdraws", "w Withdraw")
        await pilot.press("w")
        await shows(pilot, "Withdraw lr=0.5?", "$ nsml set kim/mnist/1 --withdraw")
        await pilot.press("y")
        await shows(pilot, "#1  lr=0.5  withdrawn by kim  asked by kim")
        await until(pilot, lambda: "Withdraw" not in said(dashboard))


@pytest.mark.parametrize("key", ["z", "S"])
async def test_what_does_not_run_is_not_changed(dashboard, server, key):
    server.state.add("kim/mnist/1", state=pb.SESSION_STATE_SUCCEEDED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "K")
        await shows(pilot, "no knob was set", "as they were set last")
        assert not {"z Pause", "S Set"} & set(said(dashboard).split("  "))
        await pilot.press(key)
        await pilot.pause()
        assert isinstance(dashboard.screen, SessionScreen)
        assert not isinstance(dashboard.focused, Field)
    assert not server.state.asked_code


async def test_who_is_inside_is_listed_above_the_processes_of_a_rank(dashboard, server):
    spec = pb.SessionSpec(entry="main.py", replica_count=2)
    server.state.add("kim/mnist/1", spec=spec)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "W")
        await shows(pilot, "nobody is connected", "python main.py", "1 process", "of rank 0")
        visitors = server.state.processes.visitors
        for number in range(7):
            visitors.add(user=f"lee{number}\x1b", service="agent.ssh", age={"seconds": 60})
        await pilot.press("r", "down", "enter")
        await shows(pilot, "connected: lee0␛, ssh, for 1m", "and 2 more connections")
        await shows(pilot, "of rank 1", "$ nsml top kim/mnist/1 --rank 1")
        assert "\x1b" not in said(dashboard)


async def test_stacks_are_read_once_and_with_locals_when_that_is_asked(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "b")
        await shows(pilot, "MainThread", "main.py:40", "$ nsml stacks kim/mnist/1")
        await pilot.press("v")
        await shows(pilot, "step = 12", "$ nsml stacks kim/mnist/1 --locals")
        assert server.state.calls.count("OpenTunnel") == 2
        assert dashboard.screen.query_one("StacksTab TextView", TextView).has_focus


async def test_a_focus_that_comes_late_brings_no_tab_back(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "e", "W")
        await shows(pilot, "python main.py")
        tabs = dashboard.screen.query_one("#tabs", TabbedContent)
        tabs.post_message(TabPane.Focused(tabs.get_pane("events")))
        await pilot.press("v")
        assert tabs.active == "processes"


@pytest.mark.parametrize(("key", "tab"), [("K", "knobs"), ("W", "processes"), ("b", "stacks")])
async def test_why_nothing_can_be_seen_is_told_in_place_of_it(dashboard, server, key, tab):
    server.state.add("kim/mnist/1")
    server.state.no_processes = "its agent is too old\x1b"
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, key)
        await shows(pilot, "no answer: its agent is too old␛")
        assert dashboard.screen.query_one("#tabs", TabbedContent).active == tab


async def test_what_repeats_a_session_has_all_that_was_set_and_nothing_that_was_refused(
    dashboard, server
):
    session = server.state.add("kim/mnist/1", command=["nsml", "run", "-e", "train.py"])
    for number in range(1, 41):
        session.changes.add(
            number=number,
            kind=pb.PROGRAM_CHANGE_KIND_SET,
            phase=pb.PROGRAM_CHANGE_PHASE_APPLIED if number <= 20 else WITHDRAWN,
            values={"dropout" if number == 1 else "lr": f"0.{number}1"},
            reason="" if number <= 20 else "too much",
        )
    server.state.put(session)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "again: nsml run --set dropout=0.11 --set lr=0.21", "--set lr=0.201")
        await shows(pilot, "changed: lr=0.161  applied", "changed: lr=0.201  applied")
        words = str(dashboard.screen.query_one("#words").visual)
        assert words.count("--set ") == 20
        assert "too much" not in words
