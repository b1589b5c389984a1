"""What is looked for in lines is found where it stands, in whole letters."""

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nsml.view.sought import TAB_CELLS, Sought, untabbed
from nsml.view.text import graphemes, width

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
