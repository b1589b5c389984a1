"""Questions before a screen are answered once."""

import pytest
from textual.app import App
from textual.widgets import Input

from tui.screens.asking import Ask, Confirm
from tui.screens.command_line import CommandLine


@pytest.mark.parametrize("before", [0, 1])
async def test_an_enter_that_is_received_behind_an_escape_answers_nothing_else(before):
    app, answers = App(), []
    async with app.run_test() as pilot:
        for _ in range(before):
            app.push_screen(Confirm("Really?", "nsml stop"), answers.append)
        for screen in (Ask("A note?", ""), CommandLine((), lambda _: ())):
            app.push_screen(screen, lambda answer, of=screen: answers.append((of, answer)))
            await pilot.pause()
            screen.action_leave()
            screen.on_input_submitted(Input.Submitted(screen.query_one(Input), "text"))
            await pilot.pause()
            assert answers.pop() == (screen, None)
        assert len(app.screen_stack) == 1 + before
    assert answers == []
