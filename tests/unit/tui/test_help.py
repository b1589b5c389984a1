"""What keys do, as `?` tells it."""

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.binding import ActiveBinding, Binding
from textual.widget import Widget

from nsml.common.text import width
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import demo
from tui.appearance import Appearance
from tui.screens.help import EVERYWHERE, HERE, MOVING, KeyEntry, key_entries, laid_out
from tui.screens.palette import Actions
from tui.screens.sessions import SessionsScreen

WORDS = st.text("abc한", min_size=1, max_size=9)
ENTRIES = st.lists(st.builds(KeyEntry, st.sampled_from([HERE, EVERYWHERE, MOVING]), WORDS, WORDS))


@given(ENTRIES, st.integers(10, 200))
def test_every_key_is_told_once_in_columns_that_fit(entries, room):
    layout = laid_out(sorted(entries), room)
    told = [line for line in layout.lines if line.startswith(" ")]
    assert sum(len(line.split()) for line in told) == 2 * len(entries)
    one_column = 2 + layout.step
    assert all(width(line) <= max(room, one_column) for line in told)


def test_what_acts_here_is_told_first_and_what_moves_last():
    app, node = App(), Widget()
    active = [
        (node, Binding("down", "move(1)", "Down", id="table.down")),
        (app, Binding("question_mark", "help", "Keys", key_display="?", id="app.help")),
        (app, Binding("f12", "hidden", "Hidden", system=True)),
        (node, Binding("x", "compare", "Compare", id="sessions.compare")),
        (node, Binding("j", "move(1)", "Down", id="table.down")),
        (node, Binding("tab", "app.focus_next", "Focus Next")),
    ]
    assert key_entries(app, [ActiveBinding(node, one, True, "") for node, one in active]) == [
        (HERE, "x", "Compare"),
        (EVERYWHERE, "?", "Keys"),
        (MOVING, "↓ j", "Down"),
        (MOVING, "tab", "Focus Next"),
    ]


def offered(app):
    return {
        one.what
        for one in key_entries(app, app.screen.active_bindings.values(), without=app.hidden_actions)
    }


PLAYING = {"Pause", "Faster", "Slower", "Back 10s", "On 10s", "Back 1m", "On 1m"}
ACTING = {"Stop", "Remove", "Memo", "New run", "Refresh", "Copy last action"}


async def test_of_a_story_no_key_is_told_that_only_a_platform_obeys():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "39 of 39")
        for key, place in (("2", "GPUs asked for"), ("1", "39 of 39"), ("enter", "again: nsml")):
            await pilot.press(key)
            await shows(pilot, place)
            assert offered(app) >= PLAYING
            assert offered(app).isdisjoint(ACTING)
            found = {hit.text async for hit in Actions(app.screen).discover()}
            assert found >= PLAYING
            assert found.isdisjoint(ACTING)
        await pilot.press("M")
        await shows(pilot, "nsml model ls")
        await pilot.press("question_mark")
        await shows(pilot, "Everywhere")
        assert not {"Download", "Refresh", "Stop"} & set(said(app).split())


async def test_of_a_platform_no_key_is_told_that_only_a_story_obeys(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "1 of 1 session")
        assert offered(dashboard) >= ACTING
        assert offered(dashboard).isdisjoint(PLAYING)
        await pilot.press("question_mark")
        await shows(pilot, ":tensorboard SESSION")
        await pilot.press("escape", "F")
        await shows(pilot, ":forward kim/mnist/1")


async def test_groups_are_folded_by_keys_that_are_told_once_there_are_any():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "39 of 39")
        assert offered(app).isdisjoint({"Fold", "Unfold", "Scroll Left", "Page Left"})
        await pilot.press("b")
        await shows(pilot, "▾ brook")
        assert offered(app) >= {"Fold", "Unfold"}


async def test_the_keys_of_the_user_are_told_and_do_nothing_behind():
    app = demo(appearance=Appearance(is_animated=False))
    app.set_keymap({"sessions.mark": "f6"})
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "39 of 39")
        await pilot.press("question_mark")
        await shows(pilot, "f6 ", "Mark all", "esc closes")
        await pilot.press("end", "ctrl+d", "f6")
        await shows(pilot, "Focus Next")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, SessionsScreen))
        assert "Focus Next" not in said(app)
        assert (app.screen.table._at, app.screen._marks, len(app._notifications)) == (0, set(), 0)


async def test_what_stands_for_columns_without_room_is_explained_where_there_are_any():
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "39 of 39", "+5")
        await pilot.press("question_mark")
        await shows(pilot, "+5", "Hidden columns", "Columns")
        await pilot.press("escape", "2")
        await shows(pilot, "GPUs asked for")
        await pilot.resize_terminal(300, 60)
        await until(pilot, lambda: not app.focused.hidden_count)
        await pilot.press("question_mark")
        await shows(pilot, "esc closes")
        assert "Hidden columns" not in said(app)
