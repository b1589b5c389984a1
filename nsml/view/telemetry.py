"""Use of devices and processes over time: lines of small bars, and cells as rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from nsml.common.units import duration_text, memory_text, moment, short_moment, thousandths
from nsml.view.sessions import SIMULATED
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.v1.telemetry_pb2 import Figure, ReadTelemetryResponse, TelemetrySeries

BARS: Final = "▁▂▃▄▅▆▇█"
"""Characters that a terminal needs to show bars."""
_LABEL: Final = 8
_TAIL: Final = 30
_LAST: Final = 15
_NEW_S: Final = 30.0
_LEAST_BARS: Final = 4
_THREE_DIGITS: Final = 100
_ONE_DIGIT: Final = 0.1
_MINUTE_S: Final = 60.0
_LEAST_SPAN_S: Final = 1e-6
"""Below it positions are indistinguishable, and dividing by it may overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A time interval of a device, of the processes of a replica, or of the platform: mean and max of each figure."""

    series: TelemetrySeries
    at: float
    means: dict[str, float]
    peaks: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A line of bars: `top` is the full bar, None the max of all; `one` formats a value, `words` all of them."""

    name: str
    label: str
    top: float | None
    one: Callable[[float], str]
    words: Callable[[float, float], str]


def _count(value: float) -> str:
    """Format a mean count: three digits, or all before the point; one for tiny values."""
    if value >= _THREE_DIGITS:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= _ONE_DIGIT else f"{value:.1g}"


def _percent(value: float) -> str:
    return f"{value:.0f}%"


def _memory(value: float) -> str:
    return memory_text(round(value))


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _celsius(value: float) -> str:
    return f"{value:.0f}°C"


_LOAD: Final = _Row(
    name="utilization_percent",
    label="load",
    top=100.0,
    one=_percent,
    words=lambda mean, peak: f"mean {_percent(mean)}, peak {_percent(peak)}",
)
_MEMORY: Final = _Row(
    name="memory_used_bytes",
    label="memory",
    top=None,
    one=_memory,
    words=lambda _, peak: f"peak {_memory(peak)}",
)
_DEVICE_ROWS: Final = (
    _LOAD,
    _MEMORY,
    _Row(
        name="power_watts",
        label="power",
        top=None,
        one=_watts,
        words=lambda mean, peak: f"mean {_watts(mean)}, peak {_watts(peak)}",
    ),
    _Row(
        name="temperature_celsius",
        label="temp",
        top=100.0,
        one=_celsius,
        words=lambda _, peak: f"peak {_celsius(peak)}",
    ),
)


_REPLICA_ROWS: Final = (
    _Row(
        name="cpu_cores",
        label="cpu",
        top=None,
        one=_count,
        words=lambda mean, peak: f"mean {_count(mean)}, peak {_count(peak)} cores",
    ),
    _MEMORY,
    _Row(
        name="process_count",
        label="count",
        top=None,
        one=_count,
        words=lambda mean, peak: f"mean {_count(mean)}, peak {_count(peak)}",
    ),
)


def cells(answer: ReadTelemetryResponse) -> list[Cell]:
    """Return the intervals of all series, each in order of time."""
    found = []
    for series in answer.series:
        for number, at in enumerate(series.at):
            found.append(
                Cell(
                    series=series,
                    at=at,
                    means={one.name: one.mean[number] for one in series.figures},
                    peaks={one.name: one.most[number] for one in series.figures},
                )
            )
    return found


def bars(
    values: Sequence[tuple[float, float]], span: tuple[float, float], width: int, top: float
) -> str:
    """Draw values over a span of time as bars: the max at each position; blank without any.

    A value is drawn as wide as the usual distance to the next one.
    """
    since, until = span
    a_second = width / (until - since) if until - since >= _LEAST_SPAN_S else 0.0
    apart = sorted(later[0] - at for (at, _), later in pairwise(values))
    wide = apart[len(apart) // 2] * a_second if apart else 1.0
    places = [-math.inf] * width
    for at, value in values:
        middle = (at - since) * a_second
        first, last = math.floor(middle - wide / 2 + 1e-6), math.ceil(middle + wide / 2 - 1e-6)
        for place in range(max(min(first, math.floor(middle)), 0), min(last, width)):
            places[place] = max(places[place], value)
    return "".join(
        " " if value < 0 else BARS[round(min(value / top, 1.0) * 7) if top > 0 else 0]
        for value in places
    )


def session_lines(
    answer: ReadTelemetryResponse, *, room: int, now: float, has_last: bool = False
) -> list[str]:
    """Return a title for each device, and for the processes of each replica, with a line of bars per figure.

    `has_last`: add the last measurement, if recent.
    """
    span = seconds_of(answer.since), seconds_of(answer.until)
    lines = [_span_text(span, now)]
    for series in answer.series:
        lines.append(series_title(series))
        if not series.at:
            lines.append("  nothing was measured")
            continue
        figures = {one.name: one for one in series.figures}
        lines += [
            _line(row, series, figures[row.name], span, room, has_last=has_last)
            for row in (_REPLICA_ROWS if series.HasField("rank") else _DEVICE_ROWS)
            if row.name in figures and any(figures[row.name].most)
        ]
        throttled = figures.get("throttled")
        if throttled is not None and any(throttled.most):
            share = 100 * sum(throttled.mean) / len(throttled.mean)
            lines.append(f"  its clocks were held down {share:.0f}% of the time")
    if answer.left_out:
        lines.append(f"... {answer.left_out} more")
    if answer.left_out_replicas:
        lines.append(f"... {answer.left_out_replicas} more replicas")
    return lines


def _span_text(span: tuple[float, float], now: float) -> str:
    """Describe the span of the bars: `10m, from 11-23 05:20Z on`."""
    return f"{duration_text(span[1] - span[0])}, from {short_moment(span[0], now)} on"


def series_title(series: TelemetrySeries) -> str:
    """`gpu-7 GPU 3 (0.5 of it, attempt 2, simulated)`, `gpu-7 processes (rank 1, attempt 2)`."""
    if series.HasField("rank"):
        parts = [f"rank {series.rank}"] if series.rank else []
        parts += [f"attempt {series.attempt}"] if series.attempt > 1 else []
        return f"{series.node} processes" + (f" ({', '.join(parts)})" if parts else "")
    which = f"GPU {series.device_index}" if series.HasField("device_index") else series.device_uuid
    parts = [f"{thousandths(series.thousandths)} of it"] if series.thousandths % 1000 else []
    parts += [f"attempt {series.attempt}"] if series.attempt > 1 else []
    parts += [SIMULATED] if series.simulated else []
    return f"{series.node} {which}" + (f" ({', '.join(parts)})" if parts else "")


def _line(
    row: _Row,
    series: TelemetrySeries,
    figure: Figure,
    span: tuple[float, float],
    room: int,
    *,
    indent: int = 2,
    has_last: bool = False,
) -> str:
    """Return label, bars and text; bars are aligned, whatever the indent."""
    tail = _TAIL + (_LAST if has_last else 0)
    width = max(room - _LABEL - tail - 2, _LEAST_BARS)
    peak = max(figure.most)
    mean = math.fsum(figure.mean) / len(figure.mean)
    shown = bars(list(zip(series.at, figure.mean, strict=True)), span, width, row.top or peak)
    label = f"{' ' * indent}{row.label}"
    is_new = has_last and span[1] - series.at[-1] <= max(_NEW_S, (span[1] - span[0]) / 20)
    last = f"last {row.one(figure.mean[-1])}, " if is_new else ""
    return f"{label:<{_LABEL + 2}}{shown} {last}{row.words(mean, peak)}".rstrip()


_SHARES: Final = (
    ("held", "GPUs held"),
    ("running", "load >0%"),
    ("busy", "load >80%"),
)
_LEGEND: Final = "GPUs held: by sessions; load >0%, >80%: GPUs at such a load; load: of all GPUs"


def cluster_history_lines(answer: ReadTelemetryResponse, *, room: int, now: float) -> list[str]:
    """Return the shares of devices held, running and busy, and the mean load and power."""
    span = seconds_of(answer.since), seconds_of(answer.until)
    title = _span_text(span, now)
    told = [one for one in answer.series if one.at]
    if not told:
        return [title, "nothing was measured"]
    [series] = told[:1]
    lines = [title + (f" ({SIMULATED})" if series.simulated else "")]
    figures = {one.name: one for one in series.figures}
    devices = figures["devices"]
    width = max(room - _LABEL - _TAIL - 2, _LEAST_BARS)
    for name, label in _SHARES:
        shares = [
            100 * mean / of if of else 0.0
            for mean, of in zip(figures[name].mean, devices.mean, strict=True)
        ]
        shown = bars(list(zip(series.at, shares, strict=True)), span, width, 100.0)
        mean = math.fsum(shares) / len(shares)
        lines.append(f"{label:<{_LABEL + 2}}{shown} mean {mean:.0f}% of GPUs")
    lines += [_line(row, series, figures[row.name], span, room, indent=0) for row in _CLUSTER_ROWS]
    return [*lines, _LEGEND]


_CLUSTER_ROWS: Final = (
    _LOAD,
    _Row(
        name="power_watts",
        label="power",
        top=None,
        one=lambda value: f"{value / 1000:.1f} kW",
        words=lambda mean, peak: f"mean {mean / 1000:.1f} kW, peak {peak / 1000:.1f} kW",
    ),
)


def _value(name: str, words: Callable[[float], str]) -> Callable[[Cell, float], str]:
    return lambda cell, _: words(cell.means[name]) if name in cell.means else "-"


_TIME_COLUMN: Final[Column[Cell]] = Column(
    key="time", title="Time", cell=lambda c, now: short_moment(c.at, now)
)
_SECONDS_COLUMN: Final[Column[Cell]] = Column(
    key="time", title="Time", cell=lambda c, now: short_moment(c.at, now, has_seconds=True)
)
_LOAD_COLUMN: Final[Column[Cell]] = Column(
    key="utilization_percent", title="Load", cell=_value("utilization_percent", _percent)
)
_POWER_COLUMN: Final[Column[Cell]] = Column(
    key="power_watts", title="Power", cell=_value("power_watts", lambda v: f"{v:.0f} W")
)
COLUMNS: Final[tuple[Column[Cell], ...]] = (
    _TIME_COLUMN,
    Column(key="device", title="Where", cell=lambda c, _: series_title(c.series), is_name=True),
    Column(
        key="cpu_cores",
        title="Cores",
        cell=_value("cpu_cores", _count),
        is_wide=True,
        is_worth=lambda c: "cpu_cores" in c.means,
    ),
    _LOAD_COLUMN,
    Column(
        key="memory_used_bytes",
        title="Memory",
        cell=_value("memory_used_bytes", lambda value: memory_text(round(value))),
    ),
    Column(
        key="process_count",
        title="Processes",
        cell=_value("process_count", _count),
        is_wide=True,
        is_worth=lambda c: "process_count" in c.means,
    ),
    _POWER_COLUMN,
    Column(
        key="temperature_celsius",
        title="Temp",
        cell=_value("temperature_celsius", lambda v: f"{v:.0f}°C"),
    ),
)
CLUSTER_COLUMNS: Final[tuple[Column[Cell], ...]] = (
    _TIME_COLUMN,
    *(
        Column(key=name, title=title, cell=_value(name, _count))
        for name, title in (
            ("devices", "GPUs"),
            ("held", "GPUs held"),
            ("running", "GPUs >0% load"),
            ("busy", "GPUs >80% load"),
        )
    ),
    _LOAD_COLUMN,
    _POWER_COLUMN,
)


def timed(columns: Sequence[Column[Cell]], shown: Sequence[Cell]) -> list[Column[Cell]]:
    """Return the columns, with seconds in times if two rows of a series are less than a minute apart."""
    is_close = any(
        first.series is second.series and second.at - first.at < _MINUTE_S
        for first, second in pairwise(shown)
    )
    time = _SECONDS_COLUMN if is_close else _TIME_COLUMN
    return [time if column is _TIME_COLUMN else column for column in columns]


_FIGURES: Final = (
    *(row.name for row in _DEVICE_ROWS),
    "throttled",
    *(row.name for row in _REPLICA_ROWS if row.name != "memory_used_bytes"),
)


def cell_record(cell: Cell) -> dict[str, Any]:
    """Return an interval in raw values: mean and max of each figure."""
    series = cell.series
    record: dict[str, Any] = {"time": moment(cell.at)}
    if series.node:
        record |= {
            "node": series.node,
            "uuid": series.device_uuid or None,
            "index": series.device_index if series.HasField("device_index") else None,
            "attempt": series.attempt or None,
            "rank": series.rank if series.HasField("rank") else None,
        }
        # In CSV all lines have the same columns.
        for name in _FIGURES:
            record |= {name: None, f"{name}_peak": None}
    for name, value in cell.means.items():
        record[name] = round(value, 3)
        record[f"{name}_peak"] = round(cell.peaks[name], 3)
    record["simulated"] = series.simulated
    return record
