"""Series and logs of the demo's sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nsml.common.units import counted
from nsml.v1 import sessions_pb2 as pb
from nsml.view.metrics import lines_in_order
from nsml.view.series import Axis, gather
from tui.model import LogReceived, SeriesReceived

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.series import ChartQuery
    from nsml.view.series import Series
    from tui.demo.scripted_session import ScriptedSession

TAIL_LINES: Final = 1_000


class Reports:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, origin: float) -> None:
        self._origin = origin

    def series(
        self, parts: Sequence[ScriptedSession], query: ChartQuery, now: float
    ) -> SeriesReceived:
        """Series of these, as columns of the query."""
        low = -math.inf if query.low is None else query.low
        high = math.inf if query.high is None else query.high
        groups: dict[str, list[Series]] = {}
        owners: dict[str, list[str]] = {}
        for part in parts:
            columns = [
                (series, low, high)
                for metric in part.program.metrics
                if (series := self._columns(part, metric, query, part.reports(now))) is not None
            ]
            for name, lines in gather(columns, session=part.name).items():
                groups.setdefault(name, []).extend(lines)
                owners.setdefault(name, []).extend([part.id] * len(lines))
        ids = tuple(part.id for part in parts)
        return SeriesReceived(ids, query, lines_in_order(groups), owners)

    def _columns(
        self, part: ScriptedSession, metric: str, query: ChartQuery, count: int
    ) -> pb.Series | None:
        start, step = self._axis(part, query.axis)
        first = 0 if query.low is None else max(math.ceil((query.low - start) / step), 0)
        last = count - 1
        if query.high is not None:
            last = min(math.floor((query.high - start) / step), last)
        if last < first:
            return None
        series = pb.Series(session_id=part.id, name=metric)
        each = max(math.ceil((last - first + 1) / max(query.width, 1)), 1)
        scatter = part.program.metrics[metric][1]
        for begin in range(first, last + 1, each):
            end = min(begin + each - 1, last)
            values = [part.value(metric, begin), part.value(metric, end)]
            mean = part.mean(metric, begin, end)
            series.x_low.append(start + step * begin)
            series.x_high.append(start + step * end)
            series.time.append(self._origin + part.started + end * part.program.every_s)
            reach = scatter if end - begin > 1 else 0.0
            series.low.append(min(*values, mean - reach))
            series.high.append(max(*values, mean + reach))
            series.mean.append(mean if end > begin else values[0])
            series.last.append(values[-1])
            series.finite.append(end - begin + 1)
            series.odd.append(0)
        return series

    def _axis(self, part: ScriptedSession, axis: Axis) -> tuple[float, float]:
        """The start of its reports on an axis, and their distance."""
        if axis is Axis.STEP:
            return 0.0, float(part.program.steps)
        start = 0.0 if axis is Axis.RELATIVE else self._origin + part.started
        return start, part.program.every_s

    def log(self, part: ScriptedSession, before: float | None, now: float) -> LogReceived:
        """Its lines since `before`; None: the last ones."""
        count = part.reports(now)
        first = max(count - TAIL_LINES, 0) if before is None else part.reports(before)
        lines = [_printed(part, number) for number in range(first, count)]
        if before is None and first == 0 and count:
            lines = [*_beginning(part), *lines]
        is_at_end = part.started + part.runs_s <= now
        if is_at_end and (before is None or before < part.started + part.runs_s):
            lines += _farewell(part)
        return LogReceived(part.id, lines, is_anew=before is None)


def _printed(part: ScriptedSession, number: int) -> str:
    values = {name: part.value(name, number) for name in part.program.metrics}
    text = part.program.log.replace("{step", "{0")
    for place, name in enumerate(values, 1):
        text = text.replace(f"{{{name}", f"{{{place}")
    return text.format(number * part.program.steps, *values.values())


def _beginning(part: ScriptedSession) -> list[str]:
    return [
        f"{part.program.entry}: {part.program.dataset} is at /data/{part.program.dataset}",
        f"{counted(part.gpus * part.replicas, 'GPU')} on {counted(part.replicas, 'node')}: {part.program.args}",
    ]


def _farewell(part: ScriptedSession) -> list[str]:
    match part.outcome:
        case pb.SESSION_STATE_SUCCEEDED:
            return ["done: saved as 'best'"]
        case pb.SESSION_STATE_STOPPED:
            return ["SIGTERM: saving and leaving"]
    return [
        "Traceback (most recent call last):",
        f'  File "/app/{part.program.entry}", line 88, in <module>',
        '    raise ValueError("loss is nan")',
        "ValueError: loss is nan",
    ]
