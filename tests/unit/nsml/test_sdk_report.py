"""`nsml.report`: what user code of every generation hands over, and what it gets back."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml import _report
from nsml._frames import parse
from nsml._report import Reporter, encode
from nsml._spool import Spool

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Recorded:
    """A reporter, and what it has recorded so far."""

    def __init__(self, folder: Path) -> None:
        self.reporter = Reporter(Spool(str(folder)))
        self.report = self.reporter.report
        self._file = folder / "1.records"

    def all(self) -> list[dict[str, Any]]:
        records, _ = parse(self._file.read_bytes() if self._file.exists() else b"")
        return [json.loads(payload) for _, payload in records]

    def last(self) -> dict[str, Any]:
        return self.all()[-1]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_a_report_is_one_record(recorded: Recorded) -> None:
    before = time.time()
    values: dict[str, Any] = {"test/accuracy": 1, "m@std": [1, 2]}
    recorded.report(summary=True, step=3, train__loss=0.5, **values)
    record = recorded.last()
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


def test_a_metric_may_be_called_self(recorded: Recorded) -> None:
    recorded.report(self=1, record=2, kind=3)
    assert recorded.last()["values"] == {"self": 1, "record": 2, "kind": 3}


def test_walltime_is_the_time_of_the_call_whatever_the_caller_says(recorded: Recorded) -> None:
    recorded.report(walltime=1, a=1)
    assert recorded.last()["values"] == {"a": 1}
    assert recorded.last()["time"] > 1e9


@pytest.mark.parametrize(
    "value", [np.float32(1), np.zeros(2), object(), {1, 2}, b"bytes", 1j, {(1, 2): 3}]
)
def test_what_json_cannot_carry_is_a_type_error_and_no_record(
    recorded: Recorded, value: Any
) -> None:
    for values in ({"loss": value}, {"loss": {"deep": [value]}}, {"loss": [math.nan, value]}):
        with pytest.raises(TypeError):
            recorded.report(**values)
    assert recorded.all() == []
    assert recorded.reporter.last() == {}


def test_values_that_never_end_are_type_errors_too(recorded: Recorded) -> None:
    circle: list[object] = []
    circle.append(circle)
    for value in (circle, 10**5000, 2**1023, -(10**400), {"a": [10**309]}):
        with pytest.raises(TypeError):
            recorded.report(loss=value)
    assert recorded.all() == []


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
        "e": [1, True, None],
    }


@pytest.mark.parametrize(
    ("step", "recorded_step"),
    [
        (7, 7),
        (1.5, 1.5),
        (np.int64(3), 3),
        (True, 1),
        ("12", 12.0),
        ("a", None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        ([1], None),
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


def test_a_step_that_json_cannot_carry_is_a_type_error(recorded: Recorded) -> None:
    with pytest.raises(TypeError):
        recorded.report(step=object())


def test_the_last_report_is_remembered_in_the_order_of_the_call(recorded: Recorded) -> None:
    recorded.report(b__x=1, step=2, a=3)
    assert list(recorded.reporter.last().items()) == [("b/x", 1), ("step", 2), ("a", 3)]


def test_the_scope_of_the_last_report_that_gave_one_is_kept(recorded: Recorded) -> None:
    scope = {"x": 1}
    recorded.report(scope=scope, a=1)
    recorded.report(a=2)
    assert recorded.reporter.scope is scope


@given(st.dictionaries(st.text(), JSON_VALUES))
def test_any_json_becomes_strict_utf8_json(values: dict[str, Any]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    decoded = json.loads(encode(values).decode("utf-8"), parse_constant=refuse)
    assert decoded.keys() == values.keys()


@given(st.text(st.characters(categories=["Cs"]), min_size=1))
def test_lone_surrogates_never_reach_a_reader(text: str) -> None:
    assert json.loads(encode({text: text}).decode("utf-8"))


@given(st.dictionaries(st.text(), JSON_VALUES))
def test_the_encoder_for_other_interpreters_writes_the_same(values: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json.encoder, "c_make_encoder", None)
        slow = _report._build_dumps()
    plain = _report._without_special_numbers(values)
    assert slow(plain) == _report._dumps(plain)
