import itertools
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from nsml.common.text import (
    LogText,
    fit,
    fit_coloured,
    fit_end,
    fit_middle,
    fit_words,
    folded,
    graphemes,
    pad,
    visible,
    width,
    wrapped,
)

SAFE = {"\n", "\t"}


def is_harmless(text, *, allowed=""):
    return all(
        letter.isprintable() or letter in SAFE or letter in allowed or not is_control(letter)
        for letter in text
    )


def is_control(letter):
    code = ord(letter)
    return (
        code < 0x20
        or 0x7F <= code < 0xA0
        or letter in "\u200e\u200f\u061c"
        or (0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069 or 0xD800 <= code <= 0xDFFF)
    )


@given(st.text(st.characters()))
@example("\x1b]52;c;aGk=\x07")
@example("\u202egnp.exe")
def test_visible_text_is_one_harmless_line(text):
    shown = visible(text)
    assert not any(is_control(letter) for letter in shown)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_stays(text):
    assert visible(text) == text


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5), st.booleans())
@example(b"\x1b[31mx\x1b[0m", [3, 5], True)
@example(b"\xe2\x82\xac", [1, 2], True)
@example(b"a\r\nb\rc", [2], True)
@example(b"\x1b[8mhidden", [], True)
@example(b"\x1b[38;5;8mgrey", [], True)
def test_pieces_do_not_matter_and_nothing_harmful_passes(data, cuts, keeps_colour):
    whole = LogText(keeps_colour=keeps_colour)
    expected = whole.feed(data) + whole.close()
    pieces = LogText(keeps_colour=keeps_colour)
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got = "".join(pieces.feed(data[a:b]) for a, b in itertools.pairwise(marks))
    assert got + pieces.close() == expected
    rest = expected
    if keeps_colour:
        for part in expected.split("\x1b")[1:]:
            body, found, _ = part.partition("m")
            assert found
            assert body[0] == "["
            assert set(body[1:]) <= set("0123456789;")
        rest = expected.replace("\x1b", "")
    assert not any(is_control(letter) and letter not in SAFE for letter in rest)


def test_concealed_text_is_shown():
    text = LogText(keeps_colour=True)
    assert text.feed(b"\x1b[8msecret\x1b[1;8;4mx") == "␛[8msecret␛[1;8;4mx"
    assert text.feed(b"\x1b[38;5;8mgrey\x1b[0m") == "\x1b[38;5;8mgrey\x1b[0m"


def test_open_colours_are_closed():
    text = LogText(keeps_colour=True)
    assert text.feed(b"\x1b[31mred") == "\x1b[31mred"
    assert text.close() == "\x1b[0m\n"


def test_an_unfinished_sequence_is_shown_at_the_end():
    text = LogText(keeps_colour=True)
    assert text.feed(b"x\x1b[3") == "x"
    assert text.close() == "␛[3\n"


def test_returns_are_line_ends_and_modes_are_left_out():
    text = LogText(keeps_colour=False)
    assert text.feed(b"10%\r20%\r\n\x1b[?25lx") == "10%\n20%\nx"


@given(st.text(max_size=30), st.integers(0, 30))
@example("둘째 시도", 5)
@example("e\u0301e\u0301", 1)
def test_what_fits_fits(text, cells):
    assert width(fit(text, cells)) <= max(cells, 0)
    if width(text) <= cells:
        assert fit(text, cells) == text
        assert width(pad(text, cells)) == cells


@given(st.text(max_size=30), st.integers(0, 30))
@example("kim/a-long-dataset/12", 11)
def test_what_is_cut_in_the_middle_fits_and_keeps_its_ends(text, cells):
    shown = fit_middle(text, cells)
    assert width(shown) <= max(cells, 0)
    if shown != text and cells > 2:
        head, tail = shown.rsplit("…", 1) if "…" in text else shown.split("…")
        assert text.startswith(head)
        assert text.endswith(tail)


def test_words_are_cut_between_them_where_little_is_lost_by_it():
    text = "needs 16 GPUs on one node"
    assert [fit_words(text, cells) for cells in (25, 24, 16, 15, 9, 8, 5)] == [
        text,
        "needs 16 GPUs on one …",
        "needs 16 GPUs …",
        "needs 16 GPUs …",
        "needs …",
        "needs …",
        "need…",
    ]


def test_hints_are_wrapped_between_words_as_far_in_as_they_begin():
    hint = "  nothing was shown yet: nsml.image(NAME, pixels)"
    assert wrapped(hint, 80) == [hint]
    assert wrapped(hint, 25) == ["  nothing was shown yet:", "  nsml.image(NAME,", "  pixels)"]
    assert wrapped("", 9) == []


@given(st.text(" xy둘", max_size=60), st.integers(4, 40))
def test_nothing_of_what_is_wrapped_is_beyond_its_edge(text, cells):
    lines = wrapped(text.strip(), cells)
    assert all(width(line) <= cells for line in lines)
    assert sum(len(line.split()) for line in lines) == len(text.split())


def test_widths():
    assert width("둘째") == width(unicodedata.normalize("NFD", "둘째")) == 4
    assert width("e\u0301") == 1
    assert fit("둘째 시도", 5) == "둘째…"
    assert fit_middle("kim/a-long-dataset/12", 11) == "kim/a…et/12"
    assert fit_end("kim/a-long-dataset/12", 11) == "…dataset/12"


def test_colours_take_no_room_and_are_closed():
    text = "ab\x1b[32mcdef\x1b[0mgh"
    assert fit_coloured(text, 8) == text
    assert fit_coloured(text, 5) == "ab\x1b[32mcd\x1b[0m…"
    assert fit_coloured("a\x1b[31m한국\x1b[0mb", 5) == "a\x1b[31m한\x1b[0m…"


def test_a_fact_is_folded_under_its_first_word():
    line = "  why: needs 4 GPUs on one node; the largest free hole is 0"
    assert folded(line, 40) == [
        "  why: needs 4 GPUs on one node; the",
        "       largest free hole is 0",
    ]
    assert folded(line, len(line)) == [line]
    assert folded(line, 12) == [line], "too narrow for anything"
    assert folded("  why: " + "x" * 50, 40) == ["  why: " + "x" * 50]


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (
            "note: packages of requirements.txt are installed first",
            ["note: packages of requirements.txt are", "      installed first"],
        ),
        (
            "       no containers: no engine answers there today",
            ["       no containers: no engine answers", "       there today"],
        ),
        (
            "  http  http://127.0.0.1:18555 nsml dashboard; more",
            ["  http  http://127.0.0.1:18555", "        nsml dashboard; more"],
        ),
        (
            "no images on nodes: none of them runs containers",
            ["no images on nodes: none of them runs", "    containers"],
        ),
        ("  try: nsml logs kim/mnist/1 --rank 3 --attempt 2 -f", None),
        ("       nsml logs kim/mnist/1 --rank 3 --attempt 2 -f", None),
        ("nsml up                 start the platform of this machine", None),
        (
            "to wait for the end: nsml logs -f kim/mnist/123456, and then more",
            ["to wait for the end:", "    nsml logs -f kim/mnist/123456, and", "    then more"],
        ),
        (
            "(how the code differs: nsml diff kim/mnist/1 kim/mnist/2 --code)",
            ["(how the code differs:", "    nsml diff kim/mnist/1 kim/mnist/2 --code)"],
        ),
        (
            "nsml is down on this machine; the platform goes on",
            ["nsml is down on this machine; the", "    platform goes on"],
        ),
    ],
)
def test_sentences_are_folded_and_commands_are_not(line, lines):
    assert folded(line, 40) == (lines or [line])


@given(st.text(alphabet="ab 가 ", max_size=80), st.integers(1, 60))
@example("a" * 17 + "가" * 4, 32)
@example(" aaaaaaaaa 가가가가가가가", 32)
def test_folding_loses_nothing(text, cells):
    line = f"  name: {text}"
    parts = folded(line, cells)
    assert "".join("".join(parts).split()) == "".join(line.split())
    # A word that is longer than a line stays whole, also behind the name.
    words = (one[len("  name: ") :].strip() for one in parts)
    fits = (width(one) <= cells or " " not in word for one, word in zip(parts, words, strict=True))
    # Lines begin under the first word: spaces before it leave less room for what is folded.
    room = cells - (len(line) - len(text.lstrip()))
    assert all(fits) or room < 24


LETTERS = st.sampled_from(
    [
        *"ab1/",
        "둘",
        "한",
        "\u1103\u116e\u11af",
        "e\u0301",
        "é",
        "😀",
        "👩‍💻",
        "👍🏽",
        "⚠️",
        "🇰🇷",
        "…",
        "●",
    ]
)


@given(st.lists(LETTERS, max_size=12).map("".join), st.integers(1, 16))
def test_what_is_cut_is_cut_between_letters_and_measured_as_a_terminal_does(text, cells):
    assert width(text) == cell_len(text)
    letters = [part for part, _ in graphemes(text)]
    assert "".join(letters) == text
    for cut in (f(text, cells) for f in (fit, fit_end, fit_middle, fit_words)):
        assert cell_len(cut) <= cells
        kept = [part for part, _ in graphemes(cut) if part != "…"]
        assert all(part in letters for part in kept)


def test_padding_behind_a_joiner_counts():
    for text in ("\u200d", "a\u200d", "\U0001f469\u200d"):
        assert width(pad(text, 4)) == 4
    assert width("\U0001f469\u200d\U0001f680") == 2
