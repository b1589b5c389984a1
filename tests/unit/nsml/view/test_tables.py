import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import width
from nsml.view import tables
from nsml.view.tables import WIDEST, Column, Rendered, lay_out, pick

COLUMNS = (
    Column(key="a", title="A", cell=lambda row, _: row[0]),
    Column(key="b", title="Bee", cell=lambda row, _: row[1], shrinks_to=3),
    Column(key="c", title="Sea", cell=lambda row, _: row[2], is_optional=True),
    Column(key="d", title="Dee", cell=lambda row, now: f"{now}", is_wide=True),
)


def render(*args, **options):
    return tables.render(*args, **options).lines


def test_simple_style():
    rows = [("x", "one", "z"), ("yy", "three", "")]
    assert render(pick(COLUMNS), rows, now=0) == [
        "A   Bee    Sea",
        "--  -----  ---",
        "x   one    z",
        "yy  three",
    ]


def test_a_column_that_has_room_for_nothing_is_left_out():
    dots = Column(
        key="e", title="Eh", cell=lambda row, _: row[1], within=lambda *_: "…", shrinks_to=2
    )
    rows = [("x", "123456", "long text"), ("yy", "7", "z")]
    assert render([COLUMNS[0], dots], rows, now=0, room=8)[2:] == ["x   …", "yy  7"]
    last = COLUMNS[2]._replace(is_optional=False)
    shown = tables.render([COLUMNS[0], dots, last], rows[:1], now=0, room=15)
    assert shown.lines[2:] == ["x  long text"]
    assert shown.left_out == ["Eh"]
    layout = lay_out([COLUMNS[0], dots, last], rows[:1], now=0, room=15)
    assert [column.key for column in layout.columns] == ["a", "c"]


def test_a_text_that_wraps_goes_on_in_further_lines_and_is_never_cut():
    why = COLUMNS[1]._replace(wraps=True)
    rows = [("x", "one two three four", "z"), ("yy", "-", "")]
    assert render([COLUMNS[0], why, COLUMNS[2]], rows, now=0, room=18)[2:] == [
        "x   one two    z",
        "    three",
        "    four",
        "yy  -",
    ]
    assert render([COLUMNS[0], why], rows, now=0)[2:] == ["x   one two three four", "yy  -"]


def test_picking():
    assert [column.key for column in pick(COLUMNS)] == ["a", "b", "c"]
    assert [column.key for column in pick(COLUMNS, wide=True)] == ["a", "b", "c", "d"]
    assert [column.key for column in pick(COLUMNS, ["d", "a"])] == ["d", "a"]
    with pytest.raises(KeyError, match="x"):
        pick(COLUMNS, ["a", "x"])


def test_a_title_names_its_column_unless_it_is_that_of_two():
    state, queue = COLUMNS[0]._replace(key="state", title="Ran for"), COLUMNS[1]
    assert pick([state, queue], ["ran FOR"]) == pick([state, queue], ["state"])
    with pytest.raises(KeyError, match="Ran for"):
        pick([state, queue._replace(title="Ran For")], ["Ran for"])
    other = queue._replace(key="ran for")
    assert pick([state, other], ["ran for"])[0].key == "ran for"


def test_wide_leaves_out_columns_in_which_no_row_says_anything():
    columns = (
        *COLUMNS,
        Column(key="e", title="E", cell=lambda row, _: row[1], tells=lambda row: row[1]),
    )
    assert "e" in [column.key for column in pick(columns)]
    for items, is_there in (([], True), [(("x", "", ""),), False], [(("x", "y", ""),), True]):
        shown = [column.key for column in pick(columns, wide=True, items=items)]
        assert ("e" in shown) == is_there
    assert [column.key for column in pick(columns, ["e"], items=[("x", "", "")])] == ["e"]


def test_a_wide_column_is_shown_where_a_row_is_worth_it():
    rare = Column(
        key="e", title="E", cell=lambda row, _: row[1], is_wide=True, is_worth=lambda row: row[1]
    )
    columns = (*COLUMNS, rare)
    keys = lambda *rows: [column.key for column in pick(columns, items=rows)]  # noqa: E731
    assert keys() == keys(("x", "", "")) == ["a", "b", "c"]
    assert keys(("x", "", ""), ("y", "rare", "")) == ["a", "b", "c", "e"]
    assert [column.key for column in pick(columns, ["a"], items=[("y", "rare", "")])] == ["a"]


def test_korean_lines_up():
    lines = render(pick(COLUMNS), [("x", "둘째", "1"), ("x", "abcd", "2")], now=0)
    assert [width(line) for line in lines[2:]] == [width(lines[2])] * 2


def test_colours_do_not_move_columns():
    coloured = (
        Column(key="a", title="A", cell=lambda r, _: r[0], colour=lambda _: "red"),
        COLUMNS[1],
    )
    lines = render(coloured, [("x", "y")], now=0, paint=lambda text, colour: f"<{colour}:{text}>")
    assert lines[2] == "<red:x>  y"


def test_names_are_cut_last_and_keep_their_ends():
    name = Column(key="n", title="Name", cell=lambda row, _: row[0], is_name=True)
    rows = [("kim/a-dataset-with-a-long-name/12", "b" * 9, "c" * 9)]
    assert render([name, *COLUMNS[1:3]], rows, now=0, room=40)[2] == f"{rows[0][0]}  bbbb…"
    assert render([name, *COLUMNS[1:3]], rows, now=0, room=24)[2] == "kim/a-dat…g-name/12  bb…"


def test_a_title_is_cut_like_its_column():
    column = Column(key="b", title="Description", cell=lambda row, _: row, shrinks_to=8)
    assert render([column], ["b" * 20], now=0, room=8) == ["Descrip…", "--------", "bbbbbbb…"]
    assert render([column], ["b" * 20], now=0, room=4) == ["Des…", "----", "bbb…"]


def test_rows_that_cannot_be_cut_to_fit_are_blocks_of_lines():
    name = Column(key="n", title="Name", cell=lambda row, _: row[0], is_name=True)
    state = Column(key="s", title="State", cell=lambda row, _: row[1], colour=lambda _: "red")
    more = Column(key="m", title="Memo", cell=lambda row, _: row[2], is_optional=True)
    rows = [("kim/mnist/1", "running since long", "a memo of many words"), ("-", "x", "-")]
    assert render([name, state, more], rows, now=0, room=25) == [
        "Name   kim/mnist/1",
        "State  running since long",
        "Memo   a memo of many …",
        "",
        "Name   -",
        "State  x",
    ]
    painted = render(
        [name, state], rows, now=0, room=20, paint=lambda text, colour: f"<{colour}:{text}>"
    )
    assert painted[1] == "State  <red:running …>"
    assert len(render([name, state], rows, now=0, room=60)) == 4
    assert render([name, state], [], now=0, room=5) == ["Name…", "----…"]


ROWS = st.lists(
    st.tuples(st.text("x", max_size=4), st.text("y", max_size=60), st.text("z", max_size=60))
)


SEVERAL = (
    Column(key="n", title="Name", cell=lambda row, _: row[0], is_name=True),
    Column(key="s", title="Sorted▾", cell=lambda row, _: row[1], stays=True),
    Column(key="g", title="GPUs", cell=lambda row, _: row[2]),
    Column(key="e", title="Empty", cell=lambda *_: "-", is_optional=True),
    Column(key="w", title="Why", cell=lambda row, _: row[2] * 4, shrinks_to=8),
)


def test_columns_that_a_terminal_has_no_room_for_are_named_and_others_are_not():
    rows = [("kim/mnist/1", "0.99123", "12 wide")]
    several = [one._replace(is_optional=one.key in "gew") for one in SEVERAL]

    def left_out(room, items=rows, **options):
        return tables.render(several, items, now=0, room=room, **options).left_out

    assert list(left_out(80)) == list(left_out(None)) == list(left_out(20, is_whole=True)) == []
    assert left_out(32) == ["Why"], "a column that says nothing is not missed"
    assert left_out(25) == ["GPUs", "Why"]
    assert list(left_out(25, items=())) == list(left_out(5)) == []
    assert Rendered([], ["Why"]).left_out_text(80) == "(no room for Why: -o wide shows all)"
    counted = "(no room for 2 columns: -o wide shows all)"
    assert Rendered([], ["Why", "GPUs"]).left_out_text(40) == counted
    assert Rendered([]).left_out_text(80) == ""


def test_what_has_no_room_is_left_out_whole_and_counted():
    rows = [("kim/mnist/1", "0.99123", "12 wide")]

    def shown(room):
        layout = lay_out(SEVERAL, rows, now=0, room=room)
        return "".join(column.key for column in layout.columns), layout.hidden

    assert shown(80) == ("nsgew", 0)
    assert shown(38) == ("nsgw", 0), "a column that says nothing is not missed"
    assert shown(32) == ("nsg", 1)
    assert shown(25) == ("ns", 2)
    assert shown(10) == ("ns", 2), "whose it is, and what it is sorted by"
    rule = Column(key="│", title="│", cell=lambda *_: "│", is_optional=True)
    assert lay_out([*SEVERAL, rule], rows, now=0, room=32).hidden == 1, "no line between columns"
    assert sum(lay_out(SEVERAL, rows, now=0, room=32, sign=3).widths) + 2 * 2 <= 29
    assert lay_out(SEVERAL, rows, now=0, room=25).row(rows[0], 0) == ["kim/mnist/1", "0.99123"]


@given(
    st.lists(
        st.tuples(st.text("x", max_size=40), st.text("y", max_size=9), st.text("z", max_size=60)),
        min_size=1,
    ),
    st.integers(27, 120),
)
def test_a_list_never_goes_beyond_its_edge(rows, room):
    layout = lay_out(SEVERAL, rows, now=0, room=room)
    for texts in (layout.titles(), *(layout.row(row, 0) for row in rows)):
        assert sum(layout.widths) + 2 * (len(layout.widths) - 1) <= room
        assert all(width(text) <= cells for text, cells in zip(texts, layout.widths, strict=True))


@given(ROWS, st.integers(4, 120))
def test_a_table_fits_the_terminal(rows, room):
    assert max(map(width, render(pick(COLUMNS), rows, now=0, room=room))) <= room


def test_a_whole_table_is_cut_where_that_makes_it_fit_and_else_blocks_of_lines():
    rows = [("x", "a long text", "z")]
    columns = pick(COLUMNS, wide=True)
    whole = render(columns, rows, now=0)
    assert render(columns, rows, now=0, room=len(whole[0]), is_whole=True) == whole
    narrow = render(columns, rows, now=0, room=20, is_whole=True)
    assert narrow[2] == "x  a long…  z    0"
    assert render(columns, [*rows, ("y", "", "z")], now=0, room=11, is_whole=True) == [
        "A    x",
        "Bee  a long",
        "     text",
        "Sea  z",
        "Dee  0",
        "",
        "A    y",
        "Sea  z",
        "Dee  0",
    ]


@given(ROWS, st.integers(12, 120))
def test_a_whole_table_fits_the_terminal_and_nothing_of_it_is_cut(rows, room):
    columns = [one._replace(shrinks_to=None) for one in pick(COLUMNS, wide=True)]
    table = render(columns, rows, now=0, room=room, is_whole=True)
    assert not rows or max(map(width, table)) <= room
    assert "…" not in "".join(table[2:]) or any("…" in cell for row in rows for cell in row)


def test_one_row_does_not_fill_the_lines_of_all_others():
    columns = [
        Column(key="name", title="Name", cell=lambda one, _: one, is_name=True),
        Column(key="text", title="Text", cell=lambda one, _: one * 10_000, shrinks_to=10),
        Column(key="size", title="Size", cell=lambda one, _: "1"),
    ]
    for whole in (False, True):
        lines = render(columns, ["a", "bb"], now=0, is_whole=whole)
        assert all(len(line) < WIDEST + 20 for line in lines)
        assert lines[-1].endswith("1")
        assert "…" in lines[-1]


def test_what_a_shorter_text_leaves_free_goes_to_columns_that_were_cut():
    columns = [
        Column(key="name", title="Name", cell=lambda item, _: item, is_name=True),
        Column(
            key="devices",
            title="GPUs",
            cell=lambda *_: "1 x Simulated GPU",
            shrinks_to=9,
            within=lambda *_: "1 sim",
        ),
        Column(key="state", title="Status", cell=lambda *_: "Succeeded", shrinks_to=5),
    ]
    head, _, row = render(columns, ["one"], now=0, room=22)
    assert row == "one   1 sim  Succeeded"
    assert head == "Name  GPUs   Status"
