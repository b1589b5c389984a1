"""What the history reads in the SDK's records (docs/sdk-protocol.md). Their text is not trusted."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from controlplane.history.values import Point

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MAX_NAME_CHARS = 512


@dataclass(frozen=True, slots=True)
class Report:
    """One nsml.report."""

    time: float
    step: float | None
    values: dict[str, Any]
    is_summary: bool


class _Metric(msgspec.Struct):
    kind: str
    time: float = 0.0
    step: float | str | None = None
    values: dict[str, Any] = {}
    summary: bool = False


_DECODER = msgspec.json.Decoder(_Metric)


def report_of(record: bytes) -> Report | None:
    """The report in a record; None for other kinds. Raises ValueError for what is no record."""
    try:
        metric = _DECODER.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if metric.kind != "metric":
        return None
    step = _SPECIAL.get(metric.step) if isinstance(metric.step, str) else metric.step
    values = {name: value for name, value in metric.values.items() if len(name) <= MAX_NAME_CHARS}
    return Report(metric.time, step, values, metric.summary)


def number_or_value(value: Any) -> Any:
    """A reported value; the three numbers that JSON cannot write become floats again."""
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


class NameFilter:
    """Globs over metric names; none means all."""

    def __init__(self, globs: Collection[str]) -> None:
        pattern = "|".join(f"(?:{fnmatch.translate(glob)})" for glob in globs)
        self._match = re.compile(pattern).match if globs else None

    def takes(self, name: str) -> bool:
        """Whether a metric of this name is wanted."""
        return self._match is None or self._match(name) is not None


def points_of(report: Report, names: NameFilter, *, attempt: int, rank: int) -> Iterator[Point]:
    """The points of one report in the order reported."""
    for name, value in report.values.items():
        if names.takes(name):
            yield Point(
                time=report.time,
                step=report.step,
                name=name,
                value=number_or_value(value),
                attempt=attempt,
                rank=rank,
            )


def readable_reports(records: Iterable[bytes]) -> Iterator[Report]:
    """The reports among records; others and what is no record are passed over."""
    for record in records:
        try:
            report = report_of(record)
        except ValueError:
            continue
        if report is not None:
            yield report
