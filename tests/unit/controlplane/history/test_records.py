"""What the history reads in records: all that the SDK lets through, and sense in what others write."""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.history.records import MAX_DEPTH, MOST_NESTED, numbers_in, report_of
from nsml._report import Reporter, encode


class Kept:
    """Takes records as a spool does."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes) -> None:
        self.records.append(record)


def told(**fields: Any) -> bytes:
    return json.dumps({"kind": "metric", "time": 1.0, "values": {"loss": 0.5}, **fields}).encode()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NUMBERS = st.floats() | st.integers() | st.sampled_from([10**307, 10**308, 10**309, -(10**400)])


@given(step=st.none() | NUMBERS | st.text(), value=NUMBERS | st.text() | st.lists(NUMBERS))
def test_a_report_that_returned_is_read(step: Any, value: Any) -> None:
    kept = Kept()
    Reporter(kept).report(step=step, loss=0.5, value=value)  # type: ignore[arg-type]
    report = report_of(kept.records[0])
    assert report is not None
    entries = value if isinstance(value, list) and value else [value]
    is_refused = all(isinstance(one, int) and abs(one) >= 1 << 1023 for one in entries)
    assert set(report.values) == ({"loss"} if is_refused else {"loss", "value"})
    assert report.step is None or math.isfinite(report.step)


@pytest.mark.parametrize(
    ("step", "read"),
    [(3, 3.0), (2.5, 2.5), (None, None), (10**400, None), ("12", None), ("", None)],
)
def test_the_step_of_a_foreign_record(step: Any, read: float | None) -> None:
    report = report_of(told(step=step))
    assert report is not None
    assert (report.step, report.values) == (read, {"loss": 0.5})


def test_a_value_that_cannot_be_passed_on_costs_no_other() -> None:
    values = {"huge": 10**400, "huge, too": 1 << 1024, "deep": nested(MAX_DEPTH), "n" * 600: 1}
    fine = {"loss": 0.5, "nested": nested(MAX_DEPTH - 1), "large": int(sys.float_info.max)}
    report = report_of(told(values={**values, **fine}))
    assert report is not None
    assert report.values == fine


def test_dicts_and_booleans_of_foreign_records_are_what_the_sdk_makes_of_them() -> None:
    values = {
        "val": {"loss": 0.5, "top": {"1": True}},
        "is_best": False,
        "val/loss": 2,
        "m": [True],
    }
    records = [told(values=values), told(values={"loss": 1.0})]
    flat = {"val/loss": 2, "val/top/1": 1, "is_best": 0, "m": [1]}
    report = report_of(records[0])
    assert report is not None
    assert report.values == flat
    assert type(report.values["is_best"]) is type(report.values["val/top/1"]) is int
    numbers = {
        name: [value for _, _, value in points]
        for name, points in numbers_in(records).by_name.items()
    }
    assert numbers == {"val/loss": [2.0], "val/top/1": [1.0], "is_best": [0.0], "loss": [1.0]}
    assert numbers_in(records, ["val/top/1"]).by_name.keys() == {"val/top/1"}


def test_hostile_dicts_cost_no_other_value_and_no_room() -> None:
    many = {str(key): 1 for key in range(20_000)}
    deep: Any = 1
    for _ in range(40):
        deep = {"x": deep}
    long_names: Any = many
    for _ in range(10):
        long_names = {"n" * 2_000: long_names}
    report = report_of(told(values={"deep": deep, "long": long_names, "many": many, "loss": 0.5}))
    assert report is not None
    assert report.values["loss"] == 0.5
    assert sum(name.startswith("many/") for name in report.values) == MOST_NESTED
    assert max(map(len, report.values)) <= 512
    assert "long" not in report.values


@pytest.mark.parametrize(
    "record", [b"", b"{}", b"[1]", b"\xff", told(time=-1), told(time=1 << 40), told(values=[1])]
)
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError):
        report_of(record)


def test_other_kinds_are_no_reports() -> None:
    assert report_of(encode({"kind": "checkpoint", "time": 1.0})) is None
    assert report_of(encode({"kind": "checkpoint", "time": "x", "summary": {"a": 1}})) is None


@pytest.mark.parametrize("values", [{"loss": 0.5}, {"val": {"loss": 0.5}}])
def test_a_report_names_its_origin(values: dict[str, Any]) -> None:
    record = encode({"kind": "metric", "time": 1.0, "values": values, "origin": "wandb"})
    for _ in range(2):
        report = report_of(record)
        assert report is not None
        assert report.origin == "wandb"
    assert len(numbers_in([record]).by_name) == 1


@pytest.mark.parametrize(
    "origin", [None, 0, False, [], {"a": 1}, 7, "", "Wandb", "w" * 33, "w" * 1_000_000, "a\n", "\0"]
)
def test_an_origin_that_is_none_costs_no_value(origin: Any) -> None:
    report = report_of(told(origin=origin))
    assert report is not None
    assert (report.values, report.origin) == ({"loss": 0.5}, "")
    assert numbers_in([told(origin=origin)]).by_name.keys() == {"loss"}
