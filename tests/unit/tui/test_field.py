"""What is read as one letter is typed, passed and deleted as one."""

import pytest
from textual.app import App
from textual.events import Key, Paste

from tests.unit.tui.conftest import said, until
from tui.widgets.field import Field

FAMILY = "👩\u200d👩\u200d👧"
SYLLABLE = "\u1112\u1161\u11ab"  # one of Hangul, in pieces
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


class Alone(App):
    def compose(self):
        yield Field()


async def typed(pilot, text):
    for letter in text:
        pilot.app.post_message(Key(letter, letter))
    await pilot.pause()


@pytest.mark.parametrize(
    "text", [FAMILY, f"a{FAMILY}b", PERSIAN, SYLLABLE, "e\u0301", "👍🏽", "🇰🇷"]
)
@pytest.mark.parametrize("is_pasted", [False, True])
async def test_letters_of_several_code_points_are_taken_whole(text, is_pasted):
    async with Alone().run_test(size=(40, 5)) as pilot:
        field = pilot.app.query_one(Field)
        if is_pasted:
            field.post_message(Paste(text))
        else:
            await typed(pilot, text)
        await until(pilot, lambda: field.value == text and text in said(pilot.app))


async def test_what_hides_or_turns_the_direction_is_not_taken():
    async with Alone().run_test(size=(40, 5)) as pilot:
        await typed(pilot, "a\u202e\u200e\x07b")
        await until(pilot, lambda: pilot.app.query_one(Field).value == "ab")


async def test_the_cursor_passes_and_keys_delete_whole_letters():
    async with Alone().run_test(size=(40, 5)) as pilot:
        field = pilot.app.query_one(Field)
        await typed(pilot, f"a{FAMILY}{SYLLABLE}z")
        places = []
        for _ in range(5):
            places.append(field.cursor_position)
            await pilot.press("left")
        assert places == [10, 9, 6, 1, 0]
        await pilot.press("right", "right")
        assert field.cursor_position == 6
        await pilot.press("backspace")
        assert field.value == f"a{SYLLABLE}z"
        await pilot.press("delete")
        assert field.value == "az"
        await typed(pilot, FAMILY)
        await pilot.press("shift+left", "x")
        assert field.value == "axz"
        await pilot.press("shift+right", "backspace")
        assert field.value == "ax"
        await pilot.press("right", "left", "home", "left", "backspace")
        assert field.value == "ax"
