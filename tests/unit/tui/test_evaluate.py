"""The prompt for code that a session's program evaluates, on a platform over real gRPC."""

import pytest
from textual.events import Paste
from textual.widgets import Input

from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tui.screens.evaluate import Evaluate
from tui.screens.session import SessionScreen

SIZE = (120, 40)
EVIL = "[/b][@click=app.quit]\x1b]0;x\x07\u202e[red]\\{0}$%"


async def prompted(pilot, *keys):
    """Open the session under the cursor, press keys, and ask for the prompt."""
    await shows(pilot, "1 of 1 session")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))
    await pilot.press(*keys, "x")
    await until(pilot, lambda: isinstance(pilot.app.focused, Input))
    return pilot.app.focused


async def entered(pilot, code):
    pilot.app.focused.value = code
    await pilot.press("enter")


def told(app):
    return [one.message for one in app._notifications]


async def test_a_line_is_evaluated_and_shown_with_what_came_of_it(dashboard, server):
    server.state.add("kim/mnist/1")
    server.state.evaluated = pb.Evaluated(value="(0.5,\n 12)", output="seen\n")
    async with dashboard.run_test(size=SIZE) as pilot:
        field = await prompted(pilot)
        await shows(
            pilot, "Python in the program of kim/mnist/1 · time limit 5s", "its next report"
        )
        await pilot.press(*"loss", "comma", "space", *"step", "enter")
        await shows(pilot, ">>> loss, step", "seen", "(0.5,", " 12)", "enter evaluates")
        assert field.value == ""
        assert dashboard.last_command == "nsml exec kim/mnist/1 'loss, step'"
        server.state.evaluated = pb.Evaluated(error="Traceback\nZeroDivisionError", is_cut=True)
        await pilot.press("ctrl+t")
        await shows(pilot, "time limit 15s")
        await entered(pilot, "1/0")
        await shows(pilot, ">>> 1/0", "ZeroDivisionError", "there was more: 64 KiB")
        server.state.evaluated = pb.Evaluated(is_late=True)
        await entered(pilot, "sum(range(10**9))")
        await shows(pilot, "it was interrupted after 15 s")
        limits = [(one.expression, one.limit.seconds) for one in server.state.asked_code]
        assert limits == [("loss, step", 5), ("1/0", 15), ("sum(range(10**9))", 15)]
        # Both are there again, behind its back as well.
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("x")
        await shows(pilot, ">>> loss, step", "(0.5,", "it was interrupted after 15 s")
        await pilot.press("up", "up", "up")
        assert dashboard.focused.value == "loss, step"
        await pilot.press("down")
        assert dashboard.focused.value == "1/0"


async def test_the_replica_whose_log_is_in_front_is_asked(dashboard, server):
    spec = pb.SessionSpec(entry="main.py", replica_count=3)
    session = server.state.add("kim/mnist/1", spec=spec)
    server.state.log(session, b"this is rank 2\n", rank=2)
    server.state.not_evaluated[2] = "its program reached no safe point within 60 s"
    async with dashboard.run_test(size=SIZE) as pilot:
        await prompted(pilot, "p")
        await entered(pilot, "1")
        await shows(pilot, "of kim/mnist/1 ·", "0.1")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("l")
        dashboard.log_of(2)
        await shows(pilot, "this is rank 2")
        await pilot.press("x")
        await shows(pilot, "of kim/mnist/1:2 ·")
        await entered(pilot, "1")
        await shows(pilot, "did not evaluate it: its program reached no safe point within 60 s")
        assert dashboard.last_command == "nsml exec kim/mnist/1:2 1"


async def test_while_a_program_does_not_answer_all_goes_on_and_it_can_be_left(dashboard, server):
    session = server.state.add("kim/mnist/1")
    server.state.answers_code.clear()
    try:
        async with dashboard.run_test(size=SIZE) as pilot:
            await prompted(pilot, "l")
            await entered(pilot, "loss")
            await shows(pilot, "waiting for the program's next safe point · esc gives up")
            server.state.log(session, b"printed meanwhile\n")
            await shows(pilot, "printed meanwhile")
            await pilot.press(*"lr", "enter")
            assert dashboard.focused.value == "lr"
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
            server.state.answers_code.set()
            await pilot.press("x")
            await shows(pilot, ">>> loss", "given up: it may be evaluated still", "enter evaluates")
            await entered(pilot, "lr")
            await shows(pilot, "0.1")
        assert [one.expression for one in server.state.asked_code] == ["loss", "lr"]
    finally:
        server.state.answers_code.set()


@pytest.mark.parametrize("part", ["value", "output", "error"])
async def test_no_answer_acts_on_the_terminal(dashboard, server, part):
    server.state.add("kim/mnist/1")
    server.state.evaluated = pb.Evaluated(**{part: f"{EVIL}\nend " + "x" * 300})
    async with dashboard.run_test(size=SIZE) as pilot:
        await prompted(pilot)
        await entered(pilot, "'\u202eabc\x1b]0;y\x07'")
        await shows(pilot, r"[/b][@click=app.quit]␛]0;x␇\u202e[red]\{0}$%", "end xxx")
        assert not {"\x1b", "\x07", "\u202e"} & set(said(dashboard))
        assert said(dashboard).count("x") > 300


async def test_of_several_lines_that_are_pasted_it_is_said_that_one_was_taken(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        field = await prompted(pilot)
        field.post_message(Paste("a = 1\nb = 2\n"))
        await until(
            pilot, lambda: any("nsml exec SESSION - < FILE" in one for one in told(dashboard))
        )
        assert field.value == "a = 1"


async def test_what_has_ended_is_not_asked(dashboard, server):
    server.state.add("kim/mnist/1", state=pb.SESSION_STATE_SUCCEEDED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("enter", "x")
        await until(pilot, lambda: "nothing to ask: kim/mnist/1 has ended" in told(dashboard))
        assert not isinstance(dashboard.screen, Evaluate)
