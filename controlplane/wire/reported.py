"""Messages of values that programs reported: any JSON values."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.struct_pb2 import Struct

from controlplane.domain.errors import InvalidRequest
from controlplane.history.values import SeriesAxis, SeriesColumn, SeriesQuery
from controlplane.wire.times import timestamp
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.history.values import Point, ReportedConfig, SeriesView


def struct(values: Mapping[str, Any]) -> Struct:
    """Return JSON values as a message; its JSON has no NaN: such floats become text."""
    message = Struct()
    message.update(_plain(dict(values)))
    return message


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case int() if not isinstance(value, bool):
            # A Struct has floats only; an integer beyond them stays exact as text.
            return value if abs(value) <= 1 << 53 else str(value)
        case _:
            return value


_AXES: Final = {
    sessions_pb2.SERIES_AXIS_UNSPECIFIED: SeriesAxis.STEP,
    sessions_pb2.SERIES_AXIS_STEP: SeriesAxis.STEP,
    sessions_pb2.SERIES_AXIS_RELATIVE: SeriesAxis.RELATIVE,
    sessions_pb2.SERIES_AXIS_WALL: SeriesAxis.WALL,
}


def to_series_query(request: sessions_pb2.ReadSeriesRequest) -> SeriesQuery:
    """Return the query for each session."""
    axis = _AXES.get(request.axis)
    if axis is None:
        raise InvalidRequest(f"{request.axis} is no axis", attempt="step, relative or wall")
    return SeriesQuery(
        width=request.width,
        names=tuple(request.names),
        ranks=frozenset(request.ranks),
        attempts=frozenset(request.attempts),
        axis=axis,
        low=request.low if request.HasField("low") else -math.inf,
        high=request.high if request.HasField("high") else math.inf,
        all_attempts=request.all_attempts,
    )


def series_message(view: SeriesView, session_id: str) -> sessions_pb2.Series:
    """Return a range of a series, by columns."""
    columns = view.columns
    return sessions_pb2.Series(
        session_id=session_id,
        name=view.name,
        attempt=view.attempt,
        rank=view.rank,
        start=view.start,
        grain=view.grain,
        **{field: getattr(columns, field) for field in SeriesColumn._fields},
    )


def point_message(point: Point) -> sessions_pb2.MetricPoint:
    """Return a reported value: numbers as such, others as JSON."""
    message = sessions_pb2.MetricPoint(
        name=point.name,
        time=timestamp(point.time),
        step=point.step,
        attempt=point.attempt,
        rank=point.rank,
        origin=point.origin,
    )
    value = point.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            message.number = float(value)
        except OverflowError:
            message.json = json.dumps(value)
    else:
        message.json = json.dumps(value, ensure_ascii=False)
    return message


def config_message(config: ReportedConfig, message: sessions_pb2.ReportedConfig) -> None:
    """Fill a message with a reported configuration: an object of each origin and run."""
    runs: dict[tuple[str, str], list[str]] = {}
    for one in config.values:
        key = json.dumps(one.name, ensure_ascii=False)
        runs.setdefault((one.origin, one.run), []).append(f"{key}: {one.value}")
    for (origin, run), fields in runs.items():
        message.runs.add(origin=origin, run=run, json=f"{{{', '.join(fields)}}}")
    message.is_cut = config.is_cut
