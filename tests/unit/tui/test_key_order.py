"""Bursts of keys, as a slow line delivers them."""

import pytest
from textual.events import Key
from textual.widgets import Input

from tests.unit.tui.conftest import shows, until
from tests.unit.tui.story import demo
from tui.appearance import Appearance
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.widgets.table import Table

SIZE = (120, 40)
NAMED = {"\r": "enter", "\x1b": "escape", "\x7f": "backspace", "/": "slash", ":": "colon"}


def burst(app, text, apart_s=0.0):
    """All of them at once, none waiting for what another does; `apart_s`: of keys typed while the app was held up."""
    for place, one in enumerate(text):
        key = Key(NAMED.get(one, one), one)
        key.time += place * apart_s
        app.post_message(key)


@pytest.fixture
def app():
    return demo(appearance=Appearance(is_animated=False))


@pytest.mark.parametrize("apart_s", [0.0, 5.0])
async def test_letters_and_bound_keys_of_a_line_stay_in_order(app, apart_s):
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
        burst(app, "/abc\x7f\x7fd", apart_s)
        await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value == "ad")


async def test_what_is_typed_behind_a_key_that_asks_is_no_command(app):
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
        burst(app, "/mnist\rj")
        await shows(pilot, "mnist", " of 39 sessions")
        assert isinstance(app.screen, SessionsScreen)
        await until(pilot, lambda: isinstance(app.focused, Table))
        assert app.screen.query_one(Input).value == "mnist"


async def test_keys_that_are_left_when_the_dashboard_closes_do_nothing(app):
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
    assert app.screen_stack == []
    key = Key("slash", "/")
    key._set_forwarded()
    await app.on_event(key)


async def test_keys_go_on_to_what_they_opened(app):
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
        burst(app, "\r")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        burst(app, "\x1b/lr\x1b2:theme\x1b1")
        await until(pilot, lambda: isinstance(app.screen, SessionsScreen))
