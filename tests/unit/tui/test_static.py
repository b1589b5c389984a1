"""A text has its own height, and no earlier one's."""

from rich.text import Text
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Static

from tests.unit.tui.conftest import until
from tui.widgets.static import set_text


class Alone(App):
    def compose(self):
        with VerticalScroll():
            yield Static(id="text")


def lines(count):
    return Text("\n".join("line" for _ in range(count)))


async def test_a_layout_between_two_changes_keeps_no_height():
    async with Alone().run_test(size=(40, 10)) as pilot:
        static = pilot.app.query_one(Static)
        set_text(static, lines(4))
        # Anything else on the screen may ask for it.
        pilot.app.screen._refresh_layout()
        assert static.size.height == 4
        set_text(static, lines(2))
        await until(pilot, lambda: static.size.height == 2)


async def test_an_equal_text_is_not_drawn_again():
    async with Alone().run_test(size=(40, 10)) as pilot:
        static = pilot.app.query_one(Static)
        set_text(static, lines(2))
        await until(pilot, lambda: static.size.height == 2)
        before = static.content
        set_text(static, lines(2))
        assert static.content is before
