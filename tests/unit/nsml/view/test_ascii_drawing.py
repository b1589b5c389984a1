"""Drawn letters in ASCII."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import width
from nsml.view.ascii_drawing import dots, plain
from nsml.view.media import _BARS as MEDIA_BARS
from nsml.view.plot import LETTERS, MARK
from nsml.view.sessions import STATE_WORDS
from nsml.view.telemetry import BARS


@given(st.text(max_size=20), st.booleans())
def test_it_takes_the_same_cells_and_only_words_of_other_scripts_stay(text, has_letters):
    shown = plain(text, has_letters=has_letters)
    assert width(shown) == width(text)
    rest = [letter for letter in shown if not letter.isascii()]
    assert all(has_letters and unicodedata.category(letter)[0] in "LMN" + "C" for letter in rest)


@pytest.mark.parametrize(
    "drawn",
    [*LETTERS, MARK, *BARS, *MEDIA_BARS, *(word.glyph for word in STATE_WORDS.values()), "…", "·"],
)
def test_what_we_draw_has_a_likeness(drawn):
    assert plain(drawn).isascii()
    assert plain(drawn) != "?" or drawn == "?"


def test_states_differ():
    drawn = [plain(word.glyph) for word in STATE_WORDS.values()]
    assert sorted(set(drawn)) == sorted(drawn)


def test_dots_lie_where_they_lay():
    assert dots(0) == " "
    assert {dots(mask) for mask in (0x40, 0x80, 0xC0)} == {"_", "."}
    assert dots(0x47) == dots(0xB8) == "|"
    assert dots(0x81) == "\\"
    assert dots(0x48) == "/"
    assert all(dots(mask).isascii() and len(dots(mask)) == 1 for mask in range(256))


def test_words_stay_where_the_terminal_has_them():
    assert plain("memo: 둘째 시도 ✔ 😀") == "memo: 둘째 시도 + ??"
    assert plain("둘째 é", has_letters=False) == "???? ?"
