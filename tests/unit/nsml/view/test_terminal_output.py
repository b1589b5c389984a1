"""Progress bars and moves of the cursor: what a terminal would show, however the output comes."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsml.common.text import fit_around, width
from nsml.view.terminal_output import Overwriting, Screen, ShownLog, found_text

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
        ("title\n\x1b]0;x\x07\n", "title\n\x1b]0;x\x07\n"),
    ],
)
def test_what_is_left(text, left):
    assert shown(text) == left


def redrawn(begin, *, times=5):
    """A program that draws two lines at the same place, again and again."""
    return "".join(f"{begin}epoch {time}\x1b[K\nloss {time}\x1b[K\n" for time in range(times))


def status(time, *, place="\x1b[24;0f", save="\x1b7", restore="\x1b8"):
    """A bar in the last line of the screen, as dpkg and enlighten draw it."""
    return f"{save}{place}[{time}%]{restore}"


BARS = "".join(f"line {time}\n{status(time)}" for time in range(5))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param("ab\x1b7cd\x1b8x\n", "abxd\n", id="save and restore"),
        pytest.param("ab\x1b[scd\x1b[ux\n", "abxd\n", id="save and restore of ANSI.SYS"),
        pytest.param("\x1b7one\ntwo\n\x1b8ONE", "ONE\ntwo\n", id="restored above"),
        pytest.param("a\x1b8b\n", "ab\n", id="restored without a save"),
        pytest.param("\x1b[31m\x1b7\x1b[0ma\x1b8b\x1b[0m\n", "\x1b[31mb\x1b[0m\n", id="saved colour"),
        pytest.param(BARS, "line 0\nline 1\nline 2\nline 3\nline 4\n[4%]", id="status line"),
        pytest.param(
            f"\x1b[1;23r{BARS}\x1b[rend",
            "line 0\nline 1\nline 2\nline 3\nline 4\nend\n[4%]",
            id="status line below a scroll region",
        ),
        pytest.param(redrawn("\x1b[H"), "epoch 4\nloss 4\n", id="home"),
        pytest.param(redrawn("\x1b[1;1f"), "epoch 4\nloss 4\n", id="home, HVP"),
        pytest.param(redrawn("\x1b[H\x1b[2J"), "epoch 4\nloss 4\n", id="clear"),
        pytest.param(redrawn("\x1b[2J\x1b[H"), "epoch 4\nloss 4\n", id="clear, the other way round"),
        pytest.param(redrawn("\x1b[H\x1b[J"), "epoch 4\nloss 4\n", id="clear below"),
        pytest.param(redrawn("\x1bc"), "epoch 4\nloss 4\n", id="reset"),
        pytest.param("before\n" + redrawn("\x1b[H\x1b[3J"), "before\nepoch 4\nloss 4\n", id="lines before"),
        pytest.param("half\x1b[Hx\n", "half\nx\n", id="a line that is begun"),
        pytest.param("\x1b[3;1Hthree\x1b[1;5Hone\x1b[2dtwo", "    one\n       two\nthree", id="in any order"),
        pytest.param("\x1b[Ha\nb\n\x1b[1Jc", "\n\nc", id="erased above"),
        pytest.param("one\ntwo\x1bMx\n", "onex\ntwo\n", id="reverse index"),
        pytest.param("one\x1bDtwo\x1bEthree\n", "one\n   two\nthree\n", id="index and next line"),
        pytest.param("ab\x1b[2`x\x1b[ay\x1b[ez\n", "ax yz\n", id="other names"),
        pytest.param("a\x1b[?2004h\x1b(B\x1b[2 q\x1b[6n\x1b[>c\x1b[Sb\x1b=\n", "ab\n", id="modes"),
    ],
)  # fmt: skip
def test_moves_of_the_cursor_by_lines_of_the_screen(text, left):
    log = ShownLog(is_safe=True, keeps_colour=True)
    done = [*log.feed(text.encode()), *log.close()]
    assert "".join(one.text for one in done).removesuffix("\n") == left.removesuffix("\n")


MOVES = st.sampled_from(
    ["\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x1b[H", "\x1b[24;1H", "\x1b[2;3f", "\x1b[3d", "\x1b[2J", "\x1b[1J", "\x1b[J",
     "\x1bM", "\x1bD", "\x1bE", "\x1bc", "\x1b[A", "\x1b[B", "\x1b[K", "\r", "\n", "ab", "가", "\x1b[31m", "\x1b[0m", "\x1b[1;5r"]
)  # fmt: skip


@given(st.lists(MOVES, max_size=40).map("".join), st.integers(1, 9))
def test_no_move_fails_or_passes_in_any_pieces(text, size):
    data = text.encode()
    log = ShownLog(is_safe=True)
    done = []
    for at in range(0, len(data), size):
        done += log.feed(data[at : at + size])
        assert "\x1b" not in log.open
    assert "\x1b" not in "".join(one.text for one in done + log.close())


def test_a_status_line_costs_no_line_in_any_pieces():
    """What is written above it is complete at once, each line once and in its order."""
    for size in range(1, 12):
        assert shown(BARS, size=size).split("\n")[:6] == [
            *(f"line {time}" for time in range(5)),
            "[4%]",
        ]


def test_a_screen_that_was_cleared_once_keeps_no_line_back():
    log = Overwriting()
    for number in range(300):
        text = "\x1b[H\x1b[2J" * (not number) + f"line {number}\n"
        assert "".join(one.text for one in log.feed(text)) == f"line {number}\n"
    assert not log._places, "it is forgotten where the screen began"


def test_little_is_remembered_of_a_screen():
    log = Overwriting()
    for number in range(500):
        log.feed(f"\x1b[{number + 1};1Hline\x1b7\n")
    assert len(log._places) <= 1_000
    assert len(log._held) < 100_000


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
@example(["\b", "\n", "\x1b[31m", "\n"])
def test_moves_between_lines_are_those_of_a_terminal(codes):
    """In one piece, and as long as no more lines are remembered than there are."""
    text = "".join(codes)
    screen = Screen()
    screen.feed(text)
    expected = "\n".join(screen.texts("")[0])
    # As cells: colours that nothing is written in may stand or not.
    assert seen(shown(text).replace("\r", "")) == seen(expected.replace("\r", ""))


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


def test_a_match_beside_a_status_line_is_one_line():
    line = f"{status(1)}unpack".encode()
    match = line.index(b"unpack"), len(line)
    assert found_text(line, match, log=ShownLog(is_safe=True), cells=None) == "unpack [1%]"


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
