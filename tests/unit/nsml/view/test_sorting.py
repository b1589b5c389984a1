"""The order of sessions by any column, and columns of single values."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2 as pb
from nsml.view.filter_fields import Filtered
from nsml.view.sorting import (
    arguments_text,
    arguments_within,
    column,
    keys_of,
    order,
    shared_by,
    value_of,
    words_of,
)

VALUES = st.lists(
    st.one_of(st.floats(allow_nan=False), st.text(max_size=3), st.none()), max_size=60
)


def session(name="kim/mnist/1", *, args=(), summary=None, **fields):
    found = pb.Session(id=name, name=name, **fields)
    found.spec.args.extend(args)
    found.summary.update(summary or {})
    return Filtered(found)


def kind(value):
    return 2 if value is None else int(isinstance(value, str))


@given(VALUES, st.booleans())
def test_numbers_come_before_texts_and_nothing_comes_last_in_both_directions(values, is_down):
    places = order(values, is_down=is_down)
    assert sorted(places) == list(range(len(values)))
    found = [values[place] for place in places]
    assert [kind(value) for value in found] == sorted(map(kind, values))
    for some in (float, str):
        of_kind = [value for value in found if isinstance(value, some)]
        assert of_kind == sorted(of_kind, reverse=is_down)


@given(st.lists(st.sampled_from([1.0, 2.0, "a", None]), max_size=40), st.booleans())
def test_what_is_equal_stays_as_it_was(values, is_down):
    places = order(values, is_down=is_down)
    for one, other in pairwise(places):
        assert values[one] != values[other] or one < other


def test_a_tenth_session_comes_behind_the_ninth():
    some = [session(f"kim/mnist/{number}") for number in (10, 9, 1)]
    values = [value_of(one, "name", 0) for one in some]
    assert [some[place].session.name for place in order(values, is_down=False)] == [
        "kim/mnist/1",
        "kim/mnist/9",
        "kim/mnist/10",
    ]


def test_arguments_and_summaries_are_compared_as_numbers_where_they_are():
    one = session(args=["--lr", "1e-3", "--model", "Small"], summary={"loss": 0.5, "odd": "nan"})
    assert value_of(one, "arg.lr", 0) == 0.001
    assert value_of(one, "arg.model", 0) == "small"
    assert value_of(one, "arg.absent", 0) is None
    assert value_of(one, "summary.loss", 0) == 0.5
    assert value_of(one, "summary.odd", 0) is None  # NaN has no order
    assert value_of(one, "no such column", 0) is None


def test_how_long_one_runs_grows_until_it_has_ended():
    running, ended = session(), session()
    for one in (running, ended):
        one.session.started_at.seconds = 100
    ended.session.ended_at.seconds = 150
    assert [value_of(one, "running", 200) for one in (running, ended)] == [100.0, 50.0]


def test_every_column_sorts_a_session_without_anything():
    blank = Filtered(pb.Session())
    for key in keys_of([]).columns:
        value_of(blank, key, 0.0)


def test_columns_of_single_values_show_them_and_a_dash_for_none():
    one = session(args=["--lr", "0.1", "--amp"], summary={"val/acc": 0.98765, "note": "x\x1b"})
    keys = keys_of([one])
    assert keys.summary == ["note", "val/acc"]
    assert keys.arguments == ["amp", "lr"]
    cells = {key: column(key).cell(one.session, 0) for key in keys.columns if "." in key}
    assert cells == {
        "summary.note": "x\x1b",
        "summary.val/acc": "0.9877",
        "arg.amp": "set",
        "arg.lr": "0.1",
    }
    assert column("arg.absent").cell(one.session, 0) == "-"
    assert column("no such column") is None


def test_only_arguments_that_differ_tell_sessions_apart():
    some = [session(args=["--lr", lr, "--bs", "64", "--amp"]) for lr in ("0.1", "0.2")]
    shared = shared_by(some)
    assert shared.same == {"bs": "64", "amp": True}
    assert words_of(shared.same) == "bs=64 amp"
    assert [arguments_text(one.session, shared) for one in some] == ["lr=0.1", "lr=0.2"]
    assert arguments_text(some[0].session, shared_by(some[:1])) == "lr=0.1 bs=64 amp"


def test_what_tells_most_apart_is_first_whatever_one_of_them_has_beside_it():
    sweep = [["--bs", "64", "--lr", f"0.{number}"] for number in range(1, 5)]
    odd = [["--bs", "64", "--lr", "0.1", "--amp"], ["other"]]
    some = [session(args=args) for args in (*sweep, *odd)]
    shared = shared_by(some)
    assert not shared.same
    told = [arguments_within(one.session, 8, shared) for one in some]
    assert told == ["lr=0.1 …", "lr=0.2 …", "lr=0.3 …", "lr=0.4 …", "lr=0.1 …", "other"]


@pytest.mark.parametrize(
    ("args", "cells", "said"),
    [
        ("--lr 0.1 --bs 64 --amp", 17, "lr=0.1 bs=64 amp"),
        ("--lr 0.1 --bs 64 --amp", 15, "lr=0.1 bs=64 …"),
        ("--lr 0.1 --bs 64 --amp", 10, "lr=0.1 …"),
        ("--layers 24 --lr 3e-4", 10, "lr=3e-4 …"),
        ("--layers 24", 8, "…"),
        ("--a-long-name 24", 8, "…"),
        ("train.py data.txt --lr=1", 12, "train.py …"),
        ("--config /a/long/path.yaml", 14, "config=/a/lon…"),
        ("", 8, ""),
    ],
)
def test_arguments_are_whole_without_dashes_and_no_number_is_cut(args, cells, said):
    assert arguments_within(session(args=args.split()).session, cells) == said


def test_a_label_is_a_column_that_sessions_are_sorted_by():
    some = [session(f"kim/mnist/{number}") for number in range(4)]
    for one, seed in zip(some, ("10", "9", "x"), strict=False):
        one.session.spec.labels["seed"] = seed
    assert keys_of(some).labels == ["seed"]
    assert "label.seed" in keys_of(some).columns
    values = [value_of(one, "label.seed", 0) for one in some]
    assert order(values, is_down=True) == [0, 1, 2, 3]
    of_label = column("label.seed")
    assert of_label is not None
    assert of_label.title == "seed"
    assert [of_label.cell(one.session, 0) for one in some] == ["10", "9", "x", "-"]
    assert some[3].session.spec.labels == {}, "who looks changes nothing"
