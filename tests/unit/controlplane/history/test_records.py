"""What the history reads in records: all that the SDK lets through, and sense in what others write."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.history.records import MAX_DEPTH, report_of
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
    try:
        Reporter(kept).report(step=step, loss=0.5, value=value)  # type: ignore[arg-type]
    except TypeError:
        assert kept.records == []
        return
    report = report_of(kept.records[0])
    assert report is not None
    assert set(report.values) == {"loss", "value"}
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
    values = {"huge": 10**400, "deep": nested(MAX_DEPTH), "n" * 600: 1}
    fine = {"loss": 0.5, "nested": nested(MAX_DEPTH - 1)}
    report = report_of(told(values={**values, **fine}))
    assert report is not None
    assert report.values == fine


@pytest.mark.parametrize(
    "record", [b"", b"{}", b"[1]", b"\xff", told(time=-1), told(time=1 << 40), told(values=[1])]
)
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError):
        report_of(record)


def test_other_kinds_are_no_reports() -> None:
    assert report_of(encode({"kind": "checkpoint", "time": 1.0})) is None
    assert report_of(encode({"kind": "checkpoint", "time": "x", "summary": {"a": 1}})) is None
