"""`nsml.report`: what user code of every generation hands over, and what it gets back."""

from __future__ import annotations

import array
import datetime as dt
import enum
import json
import math
import re
import threading
import time
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsml
from controlplane.history.records import readable_reports
from nsml import _report
from nsml._frames import REPORT, parse
from nsml._report import Reporter, encode
from nsml._spool import Spool
from nsml._strict import Strictness
from tests.support.examples import examples

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = 1


class Recorded:
    """A reporter, and what it has recorded so far."""

    def __init__(self, folder: Path) -> None:
        self.strictness = Strictness(is_on=False)
        self.reporter = Reporter(Spool(str(folder)), self.strictness)
        self.report = self.reporter.report
        self._file = folder / "1.records"

    def all(self) -> list[dict[str, Any]]:
        records, _ = parse(self._file.read_bytes() if self._file.exists() else b"")
        return [json.loads(payload) for _, payload in records]

    def last(self) -> dict[str, Any]:
        return self.all()[-1]

    def bytes(self) -> bytes:
        return self._file.read_bytes()


class Tensor:
    """As torch's: an index only if it is one, and a graph behind it that must not be kept."""

    def __init__(self, *values: float, shape: tuple[int, ...] | None = None) -> None:
        self.values = list(values)
        self.shape = (len(values),) if shape is None else shape

    def __index__(self) -> int:
        if self.shape or not isinstance(self.values[0], int):
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return self.values[0]

    def item(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]

    def tolist(self) -> Any:
        return self.values if self.shape else self.values[0]


class Eager:
    """As tensorflow's: a shape that is no tuple, and numpy behind it."""

    class Shape:
        def __iter__(self) -> Any:
            return iter(())

    shape = Shape()

    def numpy(self) -> Any:
        return np.float32(0.5)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture
def strict(recorded: Recorded) -> Recorded:
    recorded.strictness.strict()
    return recorded


def test_a_report_is_one_record(recorded: Recorded) -> None:
    before = time.time()
    values: dict[str, Any] = {"test/accuracy": 1, "m@std": [1, 2]}
    recorded.report(summary=True, step=3, train__loss=0.5, **values)
    record = recorded.last()
    assert REPORT in recorded.bytes()
    assert before <= record.pop("time") <= time.time()
    assert record == {
        "kind": "metric",
        "step": 3,
        "values": {"train/loss": 0.5, "test/accuracy": 1, "m@std": [1, 2]},
        "summary": True,
    }


def test_a_positional_false_is_no_summary(recorded: Recorded) -> None:
    recorded.report(False, step=1, a=1)
    assert recorded.last()["summary"] is False


@pytest.mark.parametrize("summary", [0, 1, None, np.True_])
def test_what_counts_as_a_boolean_may_stand_for_summary(recorded: Recorded, summary: Any) -> None:
    recorded.report(summary, step=1, a=1)
    assert recorded.last()["summary"] is bool(summary)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((1,), {}),
        ((0.25,), {"step": 4}),
        (("loss", 0.25), {}),
        (("loss", 0.25, 3), {"accuracy": 1}),
        ((np.zeros(2),), {"accuracy": 1}),
    ],
)
def test_values_without_names_are_named_in_the_log_and_the_others_recorded(
    recorded: Recorded,
    capsys: pytest.CaptureFixture[str],
    values: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    recorded.report(*values, **named)
    assert "give values by name: report(loss=...)" in capsys.readouterr().err
    assert [one["values"] for one in recorded.all()] == [{"accuracy": 1}] * ("accuracy" in named)
    recorded.strictness.strict()
    with pytest.raises(TypeError, match=r"give values by name: report\(loss=\.\.\.\)"):
        recorded.report(*values, **named)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"loss": 0.25, "step": 4, "summary": True}, {}),
        ({"loss": 0.25}, {"step": 4, "summary": True}),
        ({"loss": 1, "step": 4}, {"loss": 0.25, "summary": True}),
        (MappingProxyType({"loss": 0.25}), {"step": np.int64(4), "summary": True}),
    ],
)
def test_a_dict_without_a_name_is_its_values(
    strict: Recorded, values: Any, named: dict[str, Any]
) -> None:
    strict.report(values, **named)
    record = strict.last()
    assert (record["step"], record["values"], record["summary"]) == (4, {"loss": 0.25}, True)
    strict.report({3: {"a": 1}})
    assert strict.last()["values"] == {"3/a": 1}


def test_a_call_without_values_records_nothing_and_says_so_once(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.report(summary=True, step=1, a=1)
    scope = {"x": 1}
    recorded.report(summary=True, scope=scope)
    assert not capsys.readouterr().err
    recorded.report(summary=True, step=3)
    recorded.report(step=4)
    assert [one["values"] for one in recorded.all()] == [{"a": 1}]
    assert recorded.reporter.last() == {"step": 1, "a": 1}
    assert recorded.reporter.scope is scope
    (said,) = capsys.readouterr().err.splitlines()
    assert "no value is recorded: give values by name" in said


def test_a_metric_may_be_called_self(recorded: Recorded) -> None:
    recorded.report(self=1, record=2, kind=3)
    assert recorded.last()["values"] == {"self": 1, "record": 2, "kind": 3}


def test_walltime_is_the_time_of_the_call_whatever_the_caller_says(recorded: Recorded) -> None:
    recorded.report(walltime=1, a=1)
    assert recorded.last()["values"] == {"a": 1}
    assert recorded.last()["time"] > 1e9


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 2)),
        np.complex64(1),
        np.datetime64("2026-01-01"),
        np.bytes_(b"x"),
        np.float32,
        object(),
        {1, 2},
        b"bytes",
        1j,
        np.array([1j]),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.timedelta(1),
        np.timedelta64(1, "ns"),
        Decimal("sNaN"),
        Fraction(10**400),
        10**4000,
        (number for number in range(3)),
        Colour.RED,
        np.float64(1).item,
        threading.Lock(),
    ],
)
def test_what_is_no_number_is_named_once_and_costs_no_other_value(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    for step in range(3):
        recorded.report(step=step, loss=0.5, bad=value, many=[math.nan, value], deep={"x": value})
    assert [one["values"] for one in recorded.all()] == [{"loss": 0.5, "many": ["NaN", None]}] * 3
    assert recorded.reporter.last() == {"step": 2, "loss": 0.5, "many": [math.nan, None]}
    said = capsys.readouterr().err.splitlines()
    assert [line.split("'")[1] for line in said] == ["bad", "deep/x"]
    assert re.match(r"nsml: nsml\.report: 'bad' is not recorded: (a|an) .+", said[0])
    recorded.strictness.strict()
    for values in ({"loss": value}, {"loss": {"deep": [value]}}, {"loss": [value]}):
        with pytest.raises(TypeError, match=r"nsml\.report: 'loss"):
            recorded.report(accuracy=1, **values)
        assert recorded.last()["values"] == {"accuracy": 1}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.float16(math.nan), "NaN"),
        (np.longdouble(0.25), 0.25),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), 1),
        (True, 1),
        (np.str_("a"), "a"),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (np.array([[[7]]]), 7),
        (np.array([1, 2], dtype=np.int8), [1, 2]),
        (np.array([0.5, math.inf]), [0.5, "Infinity"]),
        (np.zeros(0), []),
        (Tensor(0.5, shape=()), 0.5),
        (Tensor(0.5), 0.5),
        (Tensor(0.5, 1.5), [0.5, 1.5]),
        (Eager(), 0.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (array.array("f", [1, 2]), [1, 2]),
        ([np.float32(1), {"a": Tensor(2, 3)}, True], [1, {"a": [2, 3]}, 1]),
        (np.array([True, False]), [1, 0]),
    ],
)
def test_values_of_other_libraries_are_the_numbers_that_they_hold(
    recorded: Recorded, value: Any, number: Any
) -> None:
    recorded.report(step=1, loss=value, other=1)
    assert recorded.last()["values"] == {"loss": number, "other": 1}
    assert json.loads(encode(recorded.reporter.last()))["loss"] == number
    assert recorded.reporter.last()["loss"] is not value or isinstance(value, str)


class Raises:
    """Nothing of it can be read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} today")

    def __float__(self) -> float:
        raise RuntimeError("no number today")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    __repr__ = __str__ = __len__ = __bool__ = __iter__ = __float__  # type: ignore[assignment]


class Itself:
    def item(self) -> Any:
        return self

    def __float__(self) -> float:
        return 2.5


class Number(float):
    __float__ = __repr__ = __eq__ = __hash__ = Raises.__float__  # type: ignore[assignment]


class Entries(dict[Any, Any]):
    items = keys = values = __iter__ = __getitem__ = Raises.__float__  # type: ignore[assignment]


class Pair(NamedTuple):
    a: int
    b: bool


class Keys:
    """A mapping of which one entry cannot be read."""

    def __init__(self, *keys: Any) -> None:
        self._keys = iter(keys) if keys else count()

    def keys(self) -> Any:
        return self._keys

    def __getitem__(self, key: Any) -> Any:
        return {"a": 1}[key] if key in {"a", "b"} else 0


@pytest.mark.parametrize(
    ("value", "kept", "refused"),
    [
        (Raises, {}, ["bad"]),
        (Itself, {"bad": 2.5}, []),
        (lambda: Number(1.5), {"bad": 1.5}, []),
        (lambda: Entries(a=Number(2), b=Raises()), {"bad/a": 2}, ["bad/b"]),
        (lambda: Keys("a", "b", (1, 2)), {"bad/a": 1}, ["bad/b", "bad"]),
        (
            lambda: MappingProxyType({3: True, 0.5: None, None: "x"}),
            {"bad/3": 1, "bad/0.5": None, "bad/None": "x"},
            [],
        ),
        (Mock, {}, ["bad"]),
        (lambda: Mock(spec=dict), {}, ["bad"]),
        (lambda: Pair(1, True), {"bad": [1, 1]}, []),
        (lambda: np.ma.masked_array([1, 2], [False, True]), {"bad": [1, None]}, []),
    ],
)
def test_hostile_objects_cost_no_other_value(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], value: Any, kept: Any, refused: Any
) -> None:
    for _ in range(2):
        recorded.report(step=1, loss=0.5, bad=value())
    assert recorded.all()[0]["values"] == {"loss": 0.5, **kept}
    said = capsys.readouterr().err.splitlines()
    assert [line.split("'")[1] for line in said] == refused


def test_keys_without_end_come_to_one(recorded: Recorded) -> None:
    recorded.report(loss=0.5, bad=Keys())
    assert sum(len(one["values"]) for one in recorded.all()) == 10_001


def test_a_value_that_takes_its_time_holds_up_no_other_report(recorded: Recorded) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    class Slow:
        def item(self) -> float:
            recorded.report(within=1)
            asked.set()
            may_answer.wait(60)
            return 1.0

    slow = threading.Thread(target=recorded.report, kwargs={"slow": Slow()})
    slow.start()
    assert asked.wait(60)
    recorded.report(other=1)
    may_answer.set()
    slow.join()
    assert [one["values"] for one in recorded.all()] == [{"within": 1}, {"other": 1}, {"slow": 1.0}]


def test_many_values_that_are_not_recorded_do_not_fill_the_log(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        recorded.report(**{f"{number}/{key}": b"" for key in range(100)}, loss=0.5)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 201
    assert "not recorded either: '0/20', '0/21', " in said[20]
    assert said[20].endswith(" and 30 more")
    assert "nsml.strict() raises instead" in said[-1]


def test_strict_is_a_switch_and_a_block() -> None:
    strictness = Strictness(is_on=False)
    with strictness.strict():
        with strictness.strict(False):
            assert not strictness.is_on
        assert strictness.is_on
    assert not strictness.is_on
    strictness.strict()
    assert strictness.is_on


def test_a_value_that_cannot_be_had_is_refused_with_why(strict: Recorded) -> None:
    class OnTheDevice:
        shape = ()

        def tolist(self) -> float:
            raise RuntimeError("CUDA error: device-side assert triggered" + "\na page of it" * 50)

    with pytest.raises(TypeError, match=r"'train/loss' .* an OnTheDevice .*assert triggered\Z"):
        strict.report(train__loss=OnTheDevice())


def test_what_goes_too_deep_is_refused(strict: Recorded) -> None:
    deep: list[Any] = []
    for _ in range(14):
        deep = [deep]
    strict.report(loss=deep)
    assert readable_reports([encode(strict.last())]).__next__().values == {"loss": deep}
    with pytest.raises(TypeError, match=r"'loss'.* 15 levels deep"):
        strict.report(a=1, loss=[deep])
    assert strict.last()["values"] == {"a": 1}
    strict.report(**{"[" * 20: [[0]] * 20})


def test_a_long_name_is_left_out_and_the_log_says_so_once(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("\x1b[31m" + "n" * 10_000, "\x1b[31m" + "n" * 10_001, "", "n" * 512):
        for _ in range(2):
            recorded.report(**{name: 1}, loss=2)
    assert [list(one["values"]) for one in recorded.all()] == [["loss"]] * 6 + [
        ["n" * 512, "loss"]
    ] * 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "is not recorded: a metric's name has 512 characters at most" in said[0]
    assert "10,008" in said[0], "with what the terminal would obey escaped"
    assert said[0].isprintable()
    assert "has no name" in said[1]


def test_a_million_names_are_records_of_bounded_size(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 100_000  # a tenth of it, as often
    recorded.report(step=3, summary=True, **{f"metric/{number}": number for number in range(count)})
    records = recorded.all()
    assert 3 < len(records) < 20
    assert {(one["step"], one["summary"], one["time"]) for one in records} == {
        (3, True, records[0]["time"])
    }
    found = [name for one in records for name in one["values"]]
    assert found == [f"metric/{number}" for number in range(count)]
    assert "more than 10,000 metrics" in capsys.readouterr().err
    assert len(recorded.reporter._names) < 10_010


def test_a_million_points_of_one_metric_are_refused_and_the_rest_is_recorded(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.report(step=1, weights=[0.125] * 1_000_000, a=1)
    recorded.report(step=2, weights=[0.125] * 1_000_000, a=2)
    recorded.report(step=3, weights=[0.125] * 100_000, a=3)
    kinds = [(one["kind"], list(one.get("values", ()))) for one in recorded.all()]
    assert kinds == [
        ("dropped", []),
        ("metric", ["a"]),
        ("dropped", []),
        ("metric", ["a"]),
        ("metric", ["weights", "a"]),
    ]
    (said,) = capsys.readouterr().err.splitlines()
    assert "'weights' is not recorded: one value has 1,044,480 bytes at most" in said


def test_values_that_never_end_are_refused(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    circle: list[object] = []
    circle.append(circle)
    ring: dict[str, Any] = {"loss": 0.5}
    ring["me"] = {"again": ring}
    many: Any = [1]
    tree: Any = 1
    for _ in range(14):
        many, tree = [many] * 10, {str(key): tree for key in range(10)}
    recorded.report(ok=1, circle=circle, ring=ring, many=many, huge=10**5000, less=-(10**400))
    assert recorded.last()["values"] == {"ok": 1, "ring/loss": 0.5}
    said = capsys.readouterr().err
    assert "'circle' is not recorded: it holds itself" in said
    assert "'ring/me/again' is not recorded: it holds itself" in said
    assert "'many' is not recorded: it has more than" in said
    assert "beyond all floats; report its logarithm" in said
    recorded.report(tree=tree)
    assert sum(len(one["values"]) for one in recorded.all()[1:]) == 10_000


def test_what_only_looks_like_a_huge_number_is_recorded(recorded: Recorded) -> None:
    values = {"a": "9" * 5000, "b": 10**307, "9" * 400: 1, "c": [0] * 400}
    recorded.report(**values)
    assert recorded.last()["values"] == values


def test_numpy_doubles_and_numbers_that_json_lacks_are_fine(recorded: Recorded) -> None:
    recorded.report(
        a=np.float64(0.1), b=math.nan, c=[math.inf, {"d": -math.inf}], e=(1, True, None)
    )
    assert recorded.last()["values"] == {
        "a": 0.1,
        "b": "NaN",
        "c": ["Infinity", {"d": "-Infinity"}],
        "e": [1, 1, None],
    }


@pytest.mark.parametrize(
    ("step", "recorded_step"),
    [
        (7, 7),
        (1.5, 1.5),
        (np.int64(3), 3),
        (np.float32(1.5), 1.5),
        (np.array(4), 4),
        (Tensor(5, shape=()), 5),
        (Tensor(1.5, shape=()), 1.5),
        (True, 1),
        ("12", 12.0),
        ("a", None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        ([1], None),
        (object(), None),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None),
        (10**300, 10**300),
        (10**400, None),
        (-(10**400), None),
        ("9" * 400, None),
    ],
)
def test_a_step_is_a_number_or_nothing(recorded: Recorded, step: Any, recorded_step: Any) -> None:
    recorded.report(step=step, a=1)
    assert recorded.last()["step"] == recorded_step
    assert recorded.last()["values"] == {"a": 1}
    assert recorded.reporter.last() == {"step": recorded_step, "a": 1}


def test_a_step_that_is_none_is_told_once(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.report(step=None, a=1)
    recorded.report(step="12", a=1)
    assert not capsys.readouterr().err
    for step in ("one", math.nan, 10**5000, [1]):
        recorded.report(step=step, a=1)
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        "nsml: nsml.report: 'one' is no step, which is a finite number: "
        "it is recorded without a step"
    )
    assert len(recorded.all()) == 6


def test_a_step_that_is_none_is_a_type_error_where_that_is_asked_for(strict: Recorded) -> None:
    for step in (object(), "one", math.nan):
        with pytest.raises(TypeError, match="is no step"):
            strict.report(step=step, a=1)
        assert (strict.last()["step"], strict.last()["values"]) == (None, {"a": 1})


def test_the_last_report_is_remembered_in_the_order_of_the_call(recorded: Recorded) -> None:
    recorded.report(b__x=1, step=2, a=3)
    assert list(recorded.reporter.last().items()) == [("b/x", 1), ("step", 2), ("a", 3)]


def test_the_scope_of_the_last_report_that_gave_one_is_kept(recorded: Recorded) -> None:
    scope = {"x": 1}
    recorded.report(scope=scope, a=1)
    recorded.report(a=2)
    assert recorded.reporter.scope is scope


@given(st.dictionaries(st.text(), JSON_VALUES))
@settings(max_examples=examples(100))
def test_any_json_becomes_strict_utf8_json(values: dict[str, Any]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    decoded = json.loads(encode(values).decode("utf-8"), parse_constant=refuse)
    assert decoded.keys() == values.keys()


@given(st.text(st.characters(categories=["Cs"]), min_size=1))
def test_lone_surrogates_never_reach_a_reader(text: str) -> None:
    assert json.loads(encode({text: text}).decode("utf-8"))


@given(st.dictionaries(st.text(), JSON_VALUES))
@settings(max_examples=examples(100))
def test_the_encoder_for_other_interpreters_writes_the_same(values: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json.encoder, "c_make_encoder", None)
        slow = _report._build_dumps()
    plain = _report._without_special_numbers(values)
    assert slow(plain) == _report._dumps(plain)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("log", "nsml.report"),
        ("add_scalar", "nsml.report"),
        ("init", "leave it out"),
        ("save_checkpoint", "nsml.save"),
        ("log_image", "nsml.image"),
        ("config", "nsml run ... -- "),
    ],
)
def test_names_of_other_libraries_lead_to_ours(name, instead):
    with pytest.raises(AttributeError, match=instead):
        getattr(nsml, name)
    assert not hasattr(nsml, name)


def test_a_picture_without_a_name_is_refused_in_words_of_the_call():
    with pytest.raises(TypeError, match=r"nsml\.image\(\) missing") as refused:
        nsml.image(1)
    assert "Media" not in str(refused.value)
