from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2 as pb
from nsml.view.compare import Kind, Row
from nsml.view.matrix import columns, compared, is_key, ordered, text
from nsml.view.tables import lay_out


def session(number, args="", **summary):
    found = pb.Session(id=f"s{number}", name=f"kim/mnist/{number}")
    found.spec.args.extend(args.split())
    found.spec.environment["SEED"] = str(number)
    for key, value in summary.items():
        found.summary.fields[key].number_value = value
    return found


def row(**values):
    named = {f"kim/mnist/{name[1:]}": value for name, value in values.items()}
    return Row(kind=Kind.SUMMARY, key="loss", values=named, sessions=3)


def test_kinds_stand_apart_and_keys_are_left_out_from_the_right():
    some = [session(1, "--lr 0.1 --bs 2", loss=1.0), session(2, "--lr 0.2 --bs 4", loss=2.0)]
    differing, same = compared(some)
    assert [one.key for one in differing] == ["--lr", "--bs", "env SEED", "loss"]
    assert "nodes" in [one.key for one in same]
    every = columns(some, differing, some[0])
    assert [one.title for one in every[3:]] == ["lr", "bs", "│", "env SEED", "│", "loss"]
    laid = lay_out(every, some, now=0, room=50)
    assert laid.row(some[1], 0)[:5] == ["B", "kim/mnist/2", "? ???", "0.2", "4"]
    assert sum(map(is_key, lay_out(every, some, now=0, room=40).columns)) == 2


def test_a_cell_says_how_it_differs_from_the_baseline():
    first, second, third = (session(number) for number in (1, 2, 3))
    losses = row(s1=2.0, s2=2.0)
    assert [text(losses, one, first) for one in (first, second, third)] == ["2", "=", "-"]
    assert text(losses, first, third) == "2"
    assert text(row(s1=2.0, s2=1.0), second, first) == "1 -50%"
    assert text(row(s1=-2.0, s2=1.0), second, first) == "1 +150%"
    assert text(row(s1=0.1, s2=1.0), second, first) == "1 +900%"
    assert text(row(s1=0.1, s2=1.2), second, first) == "1.2 12x"
    assert text(row(s1=0.01, s2=-1.18), second, first) == "-1.18 -11,900%"
    assert text(row(s1=0.0, s2=1.0), second, first) == "1"
    assert text(row(s1=1e-300, s2=1e300), second, first) == "1e+300"
    assert text(row(s1=float("nan"), s2=float("nan")), second, first) == "="
    assert text(row(s1=float("nan"), s2=1.0), second, first) == "1"
    assert text(row(s1=3.0, s2=1.23456), second, first, 6) == "1.235"
    assert text(row(s1="a", s2=True), second, first) == "set"


VALUES = st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.integers().map(str)


@given(st.lists(VALUES, min_size=1, max_size=6), st.booleans())
def test_any_values_have_an_order_with_what_is_absent_last(values, is_down):
    some = [session(number) for number in range(len(values))]
    held = {f"s{number}": value for number, value in enumerate(values) if value is not None}
    found = [one.name for one in ordered(some, row(**held), is_down=is_down)]
    assert sorted(found) == sorted(one.name for one in some)
    absent = [one.name for one, value in zip(some, values, strict=True) if value is None]
    assert found[len(held) :] == absent


def test_arguments_are_sorted_as_numbers():
    some = [session(number) for number in (1, 2, 3)]
    rows = row(s1="1e-3", s2="0.0002", s3="auto")
    assert [one.id for one in ordered(some, rows)] == ["s2", "s1", "s3"]
    assert [one.id for one in ordered(some, rows, is_down=True)] == ["s3", "s1", "s2"]
