"""Every screen in ASCII: nothing is drawn with other letters."""

import asyncio
import unicodedata
from functools import partial

import pytest

from nsml.view.plot import worth
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import demo, running
from tui.appearance import Appearance
from tui.screens.compare import CompareScreen
from tui.screens.frame import NAMES, Frame
from tui.screens.help import Help
from tui.screens.session import SessionScreen
from tui.widgets.charts import Charts

SIZES = [
    (120, 40),
    pytest.param((80, 24), marks=pytest.mark.variant),
    pytest.param((60, 15), marks=pytest.mark.variant),
    (20, 5),
]


def drawn(text):
    """Letters that are neither ASCII nor somebody's words."""
    return {one for one in text if not one.isascii() and unicodedata.category(one)[0] not in "LMN"}


def is_whole(app):
    """Whether what is in front shows all that was received, and waits for nothing."""
    is_drawn = app.screen.is_mounted and app._drawn == app.model.version
    return is_drawn and "loading" not in said(app)


@pytest.mark.parametrize("size", SIZES)
async def test_in_ascii_nothing_is_drawn_with_other_letters(size):
    app = demo(appearance=Appearance(is_ascii=True, is_animated=False))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.model.shown.session_ids)
        for mode in NAMES:
            app.action_go(mode)
            await until(pilot, lambda m=mode: app.current_mode == m and is_whole(app))
            assert drawn(said(app)) == set(), mode
        app.action_go("sessions")
        app.open_session(running(app)[0])
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and app.screen.is_mounted)
        for _ in range(8):
            await pilot.press("t")
            await until(pilot, lambda: is_whole(app))
            assert drawn(said(app)) == set()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help) and app.screen.is_mounted)
        await pilot.pause()
        assert drawn(said(app)) == set()
        app.action_go("sessions")
        app.compare(running(app)[:2])
        await until(pilot, lambda: isinstance(app.screen, CompareScreen) and is_whole(app))
        assert drawn(said(app)) == set()


async def test_a_click_on_the_name_of_a_screen_leads_there_and_what_was_done_is_told_no_more():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "39 of 39")
        app.say("something was done")
        app.say("something went wrong", is_bad=True)
        await until(pilot, lambda: len(app._notifications) == 2)
        line = said(app).splitlines()[1]
        await pilot.click("#screens", offset=(line.index("3 Nodes") + 4, 0))
        await until(pilot, lambda: app.current_mode == "nodes")
        await until(
            pilot, lambda: [one.message for one in app._notifications] == ["something went wrong"]
        )


async def test_series_are_as_wide_as_the_charts_of_the_screen_in_front():
    app = demo(appearance=Appearance(is_animated=False))

    def fits():
        charts = app.screen.query(Charts)
        return charts and app.model.shown.chart_query.width == worth(charts.first().size.width)

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.model.shown.session_ids and fits())
        app.open_session(running(app)[0], tab="plot")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen) and fits())
        await pilot.resize_terminal(90, 30)
        await until(pilot, lambda: app.screen.size.width == 90 and fits())
        behind = app.screen_stack[0].query_one(Charts)
        behind.post_message(Charts.Resized())  # what the list behind it has to say changes nothing
        await until(pilot, lambda: behind.message_queue_size == 0)
        await pilot.pause()
        assert fits()
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, SessionScreen) and fits())


async def test_no_key_of_a_screen_that_has_no_widgets_yet_ends_the_dashboard(monkeypatch):
    compose = Frame._compose
    composes = asyncio.Event()

    async def slow_compose(screen):
        await composes.wait()
        await compose(screen)

    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.model.shown.session_ids)
        monkeypatch.setattr(Frame, "_compose", slow_compose)
        sessions = running(app)[:2]
        openings = [
            *(partial(app.action_go, name) for name in NAMES if name != app.current_mode),
            partial(app.open_session, sessions[0]),
            partial(app.compare, sessions),
        ]
        for open_it in openings:
            composes.clear()
            before = app.screen
            open_it()
            await until(pilot, lambda before=before: app.screen is not before)
            screen = app.screen
            assert not screen.is_mounted
            actions = {one.action for _, one in screen._bindings}
            assert actions
            for action in sorted(actions):
                await app.run_action(action, screen)
            assert app.screen is screen
            composes.set()
            await until(pilot, lambda: is_whole(app))
