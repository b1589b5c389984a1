"""Parses the SDK's records for the history (docs/sdk-protocol.md). Their text is not trusted."""

from __future__ import annotations

import fnmatch
import math
import re
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from controlplane.domain.errors import TooLarge
from controlplane.history.values import Channel, Point
from nsml._frames import REPORT
from nsml.spec import progress
from nsml.spec.progress import Reported, is_valid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from controlplane.history.values import Chunk

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MAX_NAME_CHARS = 512
MAX_GLOBS = 256
MAX_WILDCARDS = 1_000
"""`*`, `?` and `[` of all globs of one request: fifty thousand took half a second to compile."""
_WILDCARDS = re.compile(r"[*?\[]")
ORIGIN_PATTERN = r"^[a-z_]{1,32}\Z"
"""Of `origin` in records: whose call it was."""
_ORIGIN = re.compile(ORIGIN_PATTERN)
_KNOWN_ORIGINS: set[str] = set()
"""Valid ones, found faster than by the pattern."""
_MOST_KNOWN_ORIGINS = 256
LATEST_TIME = progress.LATEST_TIME
"""Unix seconds: later times, and negative ones, are invalid."""
MAX_DEPTH = 16
"""Most levels of nested values: deeper ones could be stored, but not sent on."""
MOST_NESTED = 10_000
"""Most values in the dicts of one record: further ones are skipped."""
_LARGEST_INTEGER = int(sys.float_info.max)
_MOST_REASON_CHARS = 200

T = TypeVar("T")

_log = structlog.get_logger()

ReportedNumber: TypeAlias = tuple[float | None, float, float]
"""A number of a report: its step (None if missing or not finite), time, value."""


def has_other_kinds(chunk: Chunk) -> bool:
    """Whether a chunk may have records that are no reports: hardly any chunk has."""
    if chunk.stream.channel is not Channel.METRIC:
        return False
    return not all(record.startswith(REPORT) for record in chunk.records)


def records_of_kind(chunk: Chunk, kind: str, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """Yield a chunk's records of one kind, decoded. They are user data: a broken one stays stored and is skipped here."""
    for _, decoded in placed_records_of_kind(chunk, kind, decoder):
        yield decoded


def placed_records_of_kind(
    chunk: Chunk, kind: str, decoder: msgspec.json.Decoder[T]
) -> Iterator[tuple[int, T]]:
    """Like records_of_kind, each with its position in the stream."""
    if chunk.stream.channel is not Channel.METRIC:
        return
    mark = f'"{kind}"'.encode()
    for position, record in enumerate(chunk.records, chunk.first):
        if record.startswith(REPORT) or mark not in record:
            continue
        try:
            decoded = decoder.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error)[:_MOST_REASON_CHARS]
            _log.debug("record.unreadable", session=chunk.stream.session_id, reason=reason)
        else:
            yield position, decoded


def finite(number: float | str | None) -> float | None:
    """Return a finite number; None for None, and for numbers that JSON writes as text."""
    return number if isinstance(number, float) and math.isfinite(number) else None


class Report(msgspec.Struct, frozen=True, gc=False):
    """One nsml.report. Created 100,000 times per second; a dataclass takes four times as long."""

    time: float
    step: float | None
    values: dict[str, Any]
    is_summary: bool
    origin: str = ""
    """Whose call it was, such as "wandb"; "" for the SDK's own."""


_Entry: TypeAlias = float | int | str | None


class _Metric(msgspec.Struct):
    kind: str
    time: float = 0.0
    step: float | int | str | None = None
    values: dict[str, _Entry | list[_Entry]] = {}
    summary: bool = False


class _MetricWithOrigin(_Metric):
    origin: Any = ""


class _NestedMetric(msgspec.Struct):
    kind: str
    time: float = 0.0
    step: float | int | str | None = None
    values: dict[str, Any] = {}
    summary: bool = False
    origin: Any = ""


class _Dropped(msgspec.Struct, tag_field="kind", tag="dropped"):
    count: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Progress(msgspec.Struct, tag_field="kind", tag="progress"):
    time: float
    done: float
    of: float
    unit: str
    origin: str = ""
    ends_at: float | None = None


class _State(msgspec.Struct, tag_field="kind", tag="state"):
    time: float
    state: Literal["PAUSED", "RUNNING"]


class _Kind(msgspec.Struct):
    kind: str


_DECODER = msgspec.json.Decoder(_Metric)
_DECODER_WITH_ORIGIN = msgspec.json.Decoder(_MetricWithOrigin)
_NESTED_DECODER = msgspec.json.Decoder(_NestedMetric)
_KIND_DECODER = msgspec.json.Decoder(_Kind)
_DROPPED_DECODER = msgspec.json.Decoder(_Dropped)
_COURSE_DECODER = msgspec.json.Decoder(_Progress | _State)
MOST_IN_COURSE = 1_000
_PROGRESS, _STATE = b'"progress"', b'"state"'


def report_of(record: bytes) -> Report | None:
    """Parse a report; None for records of other kinds. Raises ValueError for an invalid record or report."""
    metric: _MetricWithOrigin | _NestedMetric
    try:
        metric = _DECODER_WITH_ORIGIN.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        nested = _nested(record)
        if nested is None:
            if _is_of_another_kind(record):
                return None
            raise ValueError(str(error)) from error
        metric = nested
    if metric.kind != "metric":
        return None
    if not 0 <= metric.time < LATEST_TIME:
        raise ValueError(f"{metric.time} is not a time")
    values, step = metric.values, metric.step
    for name, value in values.items():
        if not (type(value) is float or _is_common(value)) or len(name) > MAX_NAME_CHARS:
            values = _passable(values)
            break
    step = step if type(step) is float else _step(step)
    origin = metric.origin
    if type(origin) is not str or (origin and origin not in _KNOWN_ORIGINS):
        origin = origin_of(origin)
    return Report(metric.time, step, values, metric.summary, origin)


def origin_of(told: Any) -> str:
    """Return the origin that a record names; "" for what is none."""
    if type(told) is not str or _ORIGIN.match(told) is None:
        return ""
    if len(_KNOWN_ORIGINS) < _MOST_KNOWN_ORIGINS:
        _KNOWN_ORIGINS.add(told)
    return told


def _nested(record: bytes) -> _NestedMetric | None:
    """Parse a report with unusual values, named as `nsml.report` does; None if invalid."""
    try:
        metric = _NESTED_DECODER.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    metric.values = _flattened(metric.values)
    return metric


def _flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten dicts to NAME/KEY, and convert booleans to 0 and 1.

    Programs that write their own records, and older SDKs, leave them as in JSON.
    """
    found: dict[str, Any] = {}
    waiting = [(name, value, 1) for name, value in reversed(values.items())]
    room = MOST_NESTED
    while waiting:
        name, value, depth = waiting.pop()
        if type(value) is not dict:
            if depth == 1 or room:
                found[name] = _without_booleans(value) if type(value) is list else _number_of(value)
                room -= depth > 1
        elif depth < MAX_DEPTH and len(name) <= MAX_NAME_CHARS:
            entries = list(islice(value.items(), room))
            waiting += [(f"{name}/{key}", one, depth + 1) for key, one in reversed(entries)]
    return found


def _number_of(value: Any) -> Any:
    return int(value) if type(value) is bool else value


def _without_booleans(values: list[Any]) -> list[Any]:
    return [_number_of(value) for value in values] if bool in map(type, values) else values


def _is_of_another_kind(record: bytes) -> bool:
    """Whether it is a record of another kind: its fields need not be those of a report."""
    try:
        return _KIND_DECODER.decode(record).kind != "metric"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _passable(values: dict[str, Any]) -> dict[str, Any]:
    """Drop only the values that cannot be passed on."""
    return {
        name: value
        for name, value in values.items()
        if len(name) <= MAX_NAME_CHARS and not is_deep(value, MAX_DEPTH - 1)
    }


def _is_common(value: Any) -> bool:
    kind = type(value)
    return kind is str or (kind is int and -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER)


class Numbers(NamedTuple):
    """The numbers of some records for series, by metric name.

    `dropped`: number of reports lost by their programs, or invalid; `left_out`: number of numbers with a too long
    name.
    """

    by_name: dict[str, list[ReportedNumber]]
    dropped: int
    left_out: int


def numbers_in(  # noqa: C901 - a call for each part would cost a tenth of the whole
    records: Iterable[bytes], names: Collection[str] | None = None
) -> Numbers:
    """Return the reported numbers, each metric's in their order.

    `names`: only these. Other values and records are skipped.
    """
    found: dict[str, list[ReportedNumber]] = {}
    dropped = left_out = 0
    for record in records:
        metric: _Metric | _NestedMetric | None
        try:
            metric = _DECODER.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            metric = _nested(record)
            if metric is None:
                dropped += dropped_in(record) if _is_of_another_kind(record) else 1
                continue
        if metric.kind != "metric":
            dropped += dropped_in(record) if metric.kind == "dropped" else 0
            continue
        time = metric.time
        if not 0 <= time < LATEST_TIME:
            dropped += 1
            continue
        step = metric.step if type(metric.step) is float else _step(metric.step)
        if step is not None and not math.isfinite(step):
            step = None
        for name, value in metric.values.items():
            if names is not None and name not in names:
                continue
            number = value if type(value) is float else _number(value)
            if number is None:
                continue
            points = found.get(name)
            if points is None:
                if len(name) > MAX_NAME_CHARS:
                    left_out += 1
                    continue
                points = found[name] = []
            points.append((step, time, number))
    return Numbers(found, dropped, left_out)


def _number(value: Any) -> float | None:
    match value:
        case int() | float():
            try:
                return float(value)
            except OverflowError:
                return None
        case str():
            return _SPECIAL.get(value)
        case _:
            return None


def dropped_in(record: bytes) -> int:
    """Number of records lost by a program before they reached its file, as reported by this record."""
    try:
        return _DROPPED_DECODER.decode(record).count
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


class StateChange(NamedTuple):
    """A record that its program waits, or continues."""

    time: float
    is_paused: bool


def course_of(records: Sequence[bytes]) -> Iterator[Reported | StateChange]:
    """Yield the valid progress records among records, and those of pauses, in their order.

    Of very many it yields some, evenly, and the last: they are read within a transaction.
    """
    states, advances = list[int](), list[int]()
    for place, record in enumerate(records):
        if record.startswith(REPORT):
            continue
        if _STATE in record:
            states.append(place)
        elif _PROGRESS in record:
            advances.append(place)
    for place in sorted(_some(states) + _some(advances)):
        try:
            found = _COURSE_DECODER.decode(records[place])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, _State):
            if 0 <= found.time < LATEST_TIME:
                yield StateChange(found.time, found.state == "PAUSED")
            continue
        made = Reported(found.time, found.done, found.of, found.unit, found.origin, found.ends_at)
        if is_valid(made):
            yield made


def _some(places: list[int]) -> list[int]:
    """Return at most MOST_IN_COURSE of them, evenly spaced, with the last."""
    return places[:: -(len(places) // MOST_IN_COURSE + 1)]


def _step(step: float | str | None) -> float | None:
    """Convert a record's step; None if missing, or out of a float's range."""
    if step is None or isinstance(step, str):
        return _SPECIAL.get(step or "")
    try:
        return float(step)
    except OverflowError:
        return None


def is_deep(value: Any, room: int = MAX_DEPTH) -> bool:
    """Whether a value has too many levels, or a too large integer, to be passed on everywhere."""
    match value:
        case dict():
            return room == 0 or any(is_deep(one, room - 1) for one in value.values())
        case list():
            return room == 0 or any(is_deep(one, room - 1) for one in value)
        case int():
            return abs(value) > _LARGEST_INTEGER
        case _:
            return False


def number_or_value(value: Any) -> Any:
    """Convert NaN and the infinities, which JSON cannot write, back to floats."""
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


class NameFilter:
    """Globs over metric names; no globs match all."""

    def __init__(self, globs: Collection[str]) -> None:
        if len(globs) > MAX_GLOBS or any(len(glob) > MAX_NAME_CHARS for glob in globs):
            raise TooLarge(f"at most {MAX_GLOBS} names of {MAX_NAME_CHARS} characters at a time")
        patterns = [glob for glob in globs if _WILDCARDS.search(glob)]
        if sum(len(_WILDCARDS.findall(glob)) for glob in patterns) > MAX_WILDCARDS:
            raise TooLarge(f"at most {MAX_WILDCARDS:,} wildcards in names at a time")
        self._takes_all = not globs
        self._names = frozenset(globs) - frozenset(patterns)
        joined = "|".join(f"(?:{fnmatch.translate(glob)})" for glob in patterns)
        self._match = re.compile(joined).match if patterns else None

    def takes(self, name: str) -> bool:
        """Whether this name matches."""
        if self._takes_all or name in self._names:
            return True
        return self._match is not None and self._match(name) is not None


def points_of(report: Report, names: NameFilter, *, attempt: int, rank: int) -> Iterator[Point]:
    """Yield the points of one report in the order reported."""
    for name, value in report.values.items():
        if names.takes(name):
            yield Point(
                time=report.time,
                step=report.step,
                name=name,
                value=number_or_value(value),
                attempt=attempt,
                rank=rank,
                origin=report.origin,
            )


def readable_reports(records: Iterable[bytes]) -> Iterator[Report]:
    """Yield the reports among records, skipping all else."""
    for record in records:
        try:
            report = report_of(record)
        except ValueError:
            continue
        if report is not None:
            yield report
