"""Progress bars and moves of the cursor: what a terminal would show, however the output comes."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsml.view.overwriting import Overwriting, Screen, ShownLog, found_text
from nsml.view.text import fit_around, width

BAR = "".join(
    f"\rEpoch 1: {done / 5:3.0f}%|{'█' * (done // 20)}| {done}/500" for done in range(500)
)


def shown(text, *, size=None):
    log = Overwriting()
    size = size or max(len(text), 1)
    done = [one for at in range(0, len(text), size) for one in log.feed(text[at : at + size])]
    return "".join(one.text for one in [*done, *log.close()])


def seen(text):
    """The letters of each line with their colours."""
    screen = Screen()
    screen.feed(text)
    for number, _ in enumerate(screen.rows):
        screen.row = number
        screen._cells()
    return [row.cells for row in screen.rows]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("10%\r20%\r\n", "20%\n"),
        ("100%\rdone\n", "done\n"),
        ("a long state\rshort\n", "short" + "g state\n"),
        ("a long state\r\x1b[Kshort\n", "short\n"),
        ("a long state\x1b[2K\rshort\n", "short\n"),
        ("12%\b\b\b13%\n", "13%\n"),
        ("loading |\b/\b-\b\\\bok\n", "loading ok\n"),
        ("abcdef\x1b[3Dx\x1b[Cy\x1b[1Gz\n", "zbcxey\n"),
        ("abc\x1b[10Gx\n", "abc      x\n"),
        ("abcdef\r\x1b[2P\x1b[2@\n", "  cdef\n"),
        ("abcdef\r\x1b[2X\n", "  cdef\n"),
        ("abc\x1b[1K\n", "\n"),
        ("한국어\rab\n", "ab국어\n"),
        ("한국어\ra\n", "a 국어\n"),
        ("e\u0301x\r\u0065\u0301y\n", "e\u0301y\n"),
        ("a\tb\rx\n", "x       b\n"),
        ("\x1b[32m50%\x1b[0m\r\x1b[31m60%\x1b[0m\n", "\x1b[31m60%\x1b[0m\n"),
        ("\x1b[32mgreen\rGR\nstill\x1b[0m\n", "\x1b[32mGReen\x1b[0m\n\x1b[32mstill\x1b[0m\n"),
        ("a\r\nb\r\n", "a\r\nb\r\n"),
        ("outer 1\n\rinner 1\x1b[A\router 2\n\rinner 2\nend\n", "outer 2\ninner 2\nend\n"),
        ("one\ntwo\nthree\x1b[2F\x1b[Jnew\n", "new\n"),
        ("one\ntwo\x1b[FONE\x1b[E2\n", "ONE\n2wo\n"),
        ("one\n\x1b[99A\x1b[99Btwo\n", "one\ntwo\n"),
        ("title \x1b[2J\x1b]0;x\x07\n", "title \x1b[2J\x1b]0;x\x07\n"),
    ],
)
def test_what_is_left(text, left):
    assert shown(text) == left


@given(st.text(st.characters(exclude_characters="\r\x08\x1b")), st.integers(1, 9))
@example("a\r\nb\n", 1)
@example("no end", 3)
@example("\x1b[31mred\x1b[0m\n\udcff", 2)
def test_what_overwrites_nothing_passes_unchanged(text, size):
    assert shown(text, size=size) == text


CODES = st.sampled_from(
    ["\r", "\b", "\n", "\r\n", "\x1b[K", "\x1b[2K", "\x1b[1K", "\x1b[3G", "\x1b[2C", "\x1b[D", "\x1b[31m",
     "\x1b[0m", "ab", "c", "가", "e\u0301", "\u0301", "👩‍💻", "\t", "\x1b[?25l", "\x1b[P", "\x1b[X", "\x1b[@"]
)  # fmt: skip


@given(st.lists(CODES, max_size=30).map("".join), st.integers(1, 7))
@example("ab\r\u0301", 1)
@example("ab\r👩‍💻c", 1)
def test_pieces_do_not_matter(text, size):
    assert seen(shown(text, size=size)) == seen(shown(text))


@given(
    st.lists(st.one_of(CODES, st.sampled_from(["\x1b[A", "\x1b[2A", "\x1b[B", "\x1b[F", "\x1b[J"])))
)
def test_moves_between_lines_are_those_of_a_terminal(codes):
    """In one piece, and as long as no more lines are remembered than there are."""
    text = "".join(codes)
    screen = Screen()
    screen.feed(text)
    left = shown(text)
    assert left.replace("\r", "").split("\n") == [
        one.replace("\r", "") for one in screen.texts("")[0]
    ]


def test_a_progress_bar_is_one_line_and_little_is_remembered():
    assert shown(BAR + "\ndone\n", size=50) == BAR.rpartition("\r")[2] + "\ndone\n"
    log = Overwriting(longest=1_000)
    for _ in range(20):
        assert not log.feed(BAR)
    assert len(log._held) < 500
    assert log.open == BAR.rpartition("\r")[2]
    parts = [one.text for one in log.feed("x" * 1_000)]
    assert len(parts) == 1
    assert parts[0].endswith("x" * 1_000)
    log = Overwriting(longest=10)
    assert [one.text for one in log.feed("x" * 25)] == ["x" * 10, "x" * 10]
    assert log.open == "x" * 5


def test_several_bars_are_a_line_each_once_it_is_seen_that_they_go_up():
    frames = "".join(f"\rone {n}\n\rtwo {n}\n\rthree {n}\x1b[2A" for n in range(50))
    lines = shown(frames + "\n\n\nend\n" + "more\n" * 99, size=7).split("\n")
    assert lines[-103:] == ["one 49", "two 49", "three 49", "end", *["more"] * 99, ""][-103:]
    assert len(lines) < 103 + 6


def test_lines_have_the_moment_of_their_first_character():
    log = Overwriting()
    texts = ["a", "b\nc\n", "d\r", "e", "\n", "f"]
    found = [one for at, text in enumerate(texts) for one in log.feed(text, float(at))]
    assert [*found, *log.close()] == [(0.0, "ab\n"), (1.0, "c\n"), (2.0, "e\n"), (5.0, "f")]


def test_bytes_that_are_no_text_stay_for_programs_and_are_marked_for_people():
    for is_safe, left in ((False, b"\xff2\n\xe2"), (True, "\ufffd2\n\ufffd\n".encode())):
        log = ShownLog(is_safe=is_safe)
        done = [*log.feed(b"\xff1\b2\n\xe2"), *log.close()]
        assert "".join(one.text for one in done).encode(errors="surrogateescape") == left


@given(st.binary(max_size=300))
def test_nothing_that_a_terminal_obeys_passes(data):
    log = ShownLog(is_safe=True)
    done = log.feed(data)
    text = log.open + "".join(one.text for one in [*done, *log.close()])
    assert not {letter for letter in text if letter < " "} - {"\n", "\t"}


def test_colours_of_what_may_still_change_are_closed():
    log = ShownLog(is_safe=True, keeps_colour=True)
    assert "".join(one.text for one in log.feed(b"\x1b[31mred\n10%\r20%")) == "\x1b[31mred\n"
    assert log.open == "\x1b[31m20%\x1b[0m"
    assert log.style == "\x1b[31m"
    log.feed(b"\x1b[32m!")
    assert log.open == "\x1b[31m20%\x1b[0m\x1b[31m\x1b[32m!\x1b[0m"


@given(
    st.text(alphabet="ab가 ", max_size=60),
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(1, 40),
)
def test_a_match_is_in_what_is_shown_around_it(text, begin, length, cells):
    begin = min(begin, len(text))
    found = text[begin : begin + length]
    part = fit_around(text, begin, len(found), cells)
    assert width(part) <= cells
    if width(found) + 4 <= cells:
        assert found in part
    if width(text) <= cells:
        assert part == text


def test_the_state_that_has_the_match():
    line = b"\rloss 1\rloss nan\rloss 3.5\r"
    for match, left in (((7, 15), "loss nan"), ((17, 21), "loss 3.5"), (None, "loss 3.5")):
        assert found_text(line, match, log=ShownLog(is_safe=True), cells=80) == left
    for text, found, left in (
        ("step 1: nan\x1b[2K\rstep 2: 0.5", "nan", "step 1: nan"),
        ("save |\b/\b-\bdone", "/", "save /"),
        ("save |\b/\b-\bdone", "save", "save done"),
        ("loss 0.5\x1b[8Dloss 0.4\x1b[2K", "0.5", "loss 0.5"),
        ("\x1b[31mred\x1b[0m\x1b[2K\rnew", "red", "red"),
    ):
        begin = text.index(found)
        match = (begin, begin + len(found))
        assert found_text(text.encode(), match, log=ShownLog(is_safe=True), cells=80) == left
    for begin, end in itertools.pairwise((10, 500, 900)):
        text = f"{'y' * begin}match{'y' * end}".encode()
        part = found_text(text, (begin, begin + 5), log=ShownLog(is_safe=True), cells=80)
        assert "match" in part
        assert width(part) <= 80
