"""Sessions side by side: what is one key, what differs, what is best."""

import math

import pytest

from nsml.v1 import sessions_pb2 as pb
from nsml.view import compare
from nsml.view.compare import Better, Figures, Kind, Row, aligned


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lr", "0.1", "--bs=128"], {"--lr": "0.1", "--bs": "128"}),
        (["--amp", "--lr", "-0.1", "-v"], {"--amp": True, "--lr": "-0.1", "-v": True}),
        (["--sizes", "64", "32", "--tag", "a", "--tag", "b"], {"--sizes": "64 32", "--tag": "a b"}),
        (["lr=0.1", "model.depth=3", "+x/y=z"], {"lr": "0.1", "model.depth": "3", "+x/y": "z"}),
        (["--set", "lr=0.1", "bs=2"], {"--set": "lr=0.1", "bs": "2"}),
        (["train", "data.txt", "--lr", "1"], {"1": "train", "2": "data.txt", "--lr": "1"}),
        (
            ["--url=a=b", "--empty=", "--", "-1"],
            {"--url": "a=b", "--empty": "", "1": "--", "2": "-1"},
        ),
        ([], {}),
    ],
)
def test_arguments_by_name(words, expected):
    assert compare.arguments(words) == expected


def session(name, **fields):
    return pb.Session(id=f"id-{name}", name=name, **fields)


def rows_by_key(rows):
    return {row.key: row for row in rows}


def test_what_was_asked_for_differs_or_not():
    one = session("a", spec=pb.SessionSpec(args=["--lr", "1", "--bs", "2"], bundle_digest="c" * 64))
    two = session("b", spec=pb.SessionSpec(args=["--lr", "1"], bundle_digest="d" * 64))
    two.spec.environment["SEED"] = "1"
    rows = rows_by_key(compare.asked([one, two]))
    assert {key for key, row in rows.items() if row.differs} == {"--bs", "code", "env SEED"}
    assert rows["code"].values == {"a": "c" * 12, "b": "d" * 12}
    assert [compare.cell(rows["--bs"], name) for name in "ab"] == ["2", "-"]
    assert compare.same_text(row for row in rows.values() if not row.differs).startswith(
        "lr=1 gpus=0"
    )


def test_a_command_line_of_its_own_is_taken_apart_like_arguments():
    one = session("a", spec=pb.SessionSpec(argv=["./train", "--lr", "1"]))
    assert rows_by_key(compare.asked([one]))["command"].values == {"a": "./train"}


def series(of, name, columns, **fields):
    """`columns`: (time, low, high, last, finite, odd)."""
    found = pb.Series(session_id=f"id-{of}", name=name, **fields)
    for time, low, high, last, finite, odd in columns:
        for values, value in (
            (found.time, time),
            (found.low, low),
            (found.high, high),
            (found.last, last),
            (found.finite, finite),
            (found.odd, odd),
        ):
            values.append(value)
    return found


def test_figures_are_of_all_replicas_and_the_last_is_the_latest():
    lines = [
        series("a", "loss", [(10.0, 1.0, 9.0, 2.0, 5, 0), (30.0, 0.0, 0.0, 0.0, 0, 2)], rank=0),
        series("a", "loss", [(20.0, 0.5, 3.0, 3.0, 2, 1)], rank=1, attempt=2),
        series("b", "loss", [(5.0, 0.0, 0.0, 0.0, 0, 4)]),
    ]
    [row] = compare.metrics([session("a"), session("b")], lines)
    assert row.values["a"] == Figures(last=3.0, low=0.5, high=9.0, count=10, not_finite=3)
    assert row.values["b"] == Figures(count=4, not_finite=4)
    assert compare.cell(row, "a") == "3 (0.5 .. 9), 3 not finite"
    assert compare.cell(row, "b") == "no number"
    assert compare.record(row)["values"]["b"]["last"] is None


def metric(key, **lows_and_highs):
    values = {
        name: Figures(last=low, low=low, high=high, count=1)
        for name, (low, high) in lows_and_highs.items()
    }
    return Row(kind=Kind.METRIC, key=key, values=values, sessions=len(values))


def test_the_best_is_by_the_least_or_the_greatest_and_may_be_several():
    rows = [metric("val/loss", a=(1, 5), b=(2, 3)), metric("acc", a=(1, 5), b=(2, 5), c=(0, 1))]
    better = [("val/*", Better.LOWER), ("acc", Better.LOWER), ("ac*", Better.HIGHER)]
    loss, accuracy = compare.judged(rows, better)
    assert (loss.best, accuracy.best) == (("a",), ("a", "b"))
    assert [compare.cell(loss, name) for name in "ab"] == ["1 / 1 *", "2 / 2"]
    assert [compare.cell(accuracy, name) for name in "abc"] == ["1 / 5 *", "2 / 5 *", "0 / 1"]


def test_what_is_no_number_is_never_the_best():
    values = {"a": math.nan, "b": "x", "c": True, "d": 2.0}
    row = Row(kind=Kind.SUMMARY, key="loss", values=values, sessions=4)
    [told] = compare.judged([row], [("loss", Better.LOWER)])
    assert told.best == ("d",)
    argument = Row(kind=Kind.ARGUMENT, key="loss", values={"a": "1"}, sessions=1)
    assert compare.judged([argument], [("*", Better.LOWER)]) == [argument]


def test_nan_is_no_difference_from_nan():
    values = {"a": math.nan, "b": float("nan")}
    assert not Row(kind=Kind.SUMMARY, key="loss", values=values, sessions=2).differs


def test_the_parts_of_a_column_of_metrics_are_below_one_another():
    assert aligned(["0.05 (0.05 .. 0.05)", "1 (0.9141 .. 1) *", "-", "0.5 / 0.25"]) == [
        "0.05 (0.05   .. 0.05)",
        "1    (0.9141 .. 1)    *",
        "-",
        "0.5 / 0.25",
    ]
