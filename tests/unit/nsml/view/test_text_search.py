"""What is looked for in lines is found where it stands, in whole letters."""

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nsml.common.text import graphemes, width
from nsml.view.text_search import PIECE, TAB_CELLS, Sought, TextMatch, untabbed

LINES = (
    st.text(st.sampled_from("aAß İée\u0301한\u1112\u1161\u11ab👨\u200d👩\U0001f3fd\t1")) | st.text()
)


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("loss", "Loss: 1, LOSS: 2", ["Loss", "LOSS"]),
        ("손실", "학습 손실: 0.3", ["손실"]),
        (normalize("NFD", "손실"), "학습 손실", ["손실"]),
        ("손실", normalize("NFD", "학습 손실!"), [normalize("NFD", "손실")]),
        ("ss", "Straße ß", ["ß", "ß"]),
        ("x", "İİ x", ["x"]),
        ("b", "👨\u200d👩 b", ["b"]),
        ("", "all", []),
    ],
)
def test_it_is_marked_where_it_stands(text, line, found):
    sought = Sought(text)
    assert [line[begin:end] for begin, end in sought.spans(line)] == found


@given(LINES, LINES)
def test_marks_are_of_whole_letters_in_order_and_there_where_it_is_in(text, line):
    spans = list(Sought(text).spans(line))
    ends = [place for span in spans for place in span]
    assert not spans or Sought(text).is_in(line)
    assert ends == sorted(ends)
    starts = {0}
    for letter, _ in graphemes(line):
        starts.add(max(starts) + len(letter))
    assert starts.issuperset(ends)


@given(LINES)
def test_tabs_go_to_the_next_stop_in_cells(line):
    whole = untabbed(line + "\tend")
    assert "\t" not in whole
    assert width(whole.removesuffix("end")) % TAB_CELLS == 0
    assert untabbed("한\tx") == "한      x"
    assert cell_len(untabbed("한\tx")) == TAB_CELLS + 1


def looked_through(found, lines, first=0):
    while not found.is_done(first + len(lines)):
        found.look(lines, first)


@given(st.data())
def test_of_a_log_that_grows_and_loses_its_beginning_all_lines_that_have_it_are_counted(data):
    words = st.lists(st.sampled_from(["loss", "Loss 2", "acc"]), max_size=5)
    found, first, lines = TextMatch("loss"), 0, []
    for _ in range(data.draw(st.integers(1, 5))):
        gone = data.draw(st.integers(0, len(lines)))
        same = data.draw(st.integers(0, len(lines) - gone))
        first += gone
        lines = [*lines[gone:][:same], *data.draw(words)]
        found.forget(first, first + same)
        if data.draw(st.booleans()):
            looked_through(found, lines, first)
    looked_through(found, lines, first)
    places = [first + at for at, line in enumerate(lines) if "loss" in line.casefold()]
    end = first + len(lines)
    assert len(found) == len(places)
    for number, place in enumerate(places, 1):
        assert found.words(place, end) == f"found: {number} of {len(places)}"


def test_a_long_log_is_looked_through_in_pieces_and_what_is_found_is_told_meanwhile():
    found, lines = TextMatch("9"), [str(number) for number in range(2 * PIECE)]
    assert found.words(None, len(lines)) == "found: 0 lines so far"
    found.look(lines, 0)
    assert found.words(None, len(lines)) == "found: 271 lines so far"
    found.look(lines, 0)
    assert found.is_done(len(lines))
    assert found.words(None, len(lines)) == "found: 542 lines"
    assert found.words(9, len(lines)) == "found: 1 of 542"


def test_what_is_nowhere_and_what_is_not_sought_are_said_so():
    assert TextMatch("x").words(None, 0) == "found: none"
    assert TextMatch().words(None, 5) == ""
    one = TextMatch("a")
    one.look(["a", "b"], 0)
    assert one.words(None, 2) == "found: 1 line"
