"""Data of charts: columns of reported metrics, read and grouped in the same way for all front ends."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from nsml.common.text import visible
from nsml.view.elements import element_in, may_be_list
from nsml.view.metrics import in_order, lines_in_order, not_worth_drawing
from nsml.view.series import Axis, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import OnLink
    from nsml.v1 import sessions_pb2 as pb

MOST_SESSIONS: Final = 1_000
"""Most sessions in one request."""
_AT_ONCE: Final = 8
"""Sessions listed concurrently."""

Part: TypeAlias = "tuple[pb.Series, float, float]"
"""Columns, with the requested range of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartQuery:
    """Range and resolution of the series to draw; None: unbounded, or all."""

    axis: Axis = Axis.STEP
    low: float | None = None
    high: float | None = None
    width: int = 400
    names: tuple[str, ...] = ()
    """Only these metrics; empty: all that are worth a chart."""
    rank: int | None = None
    attempt: int | None = None
    is_apart: bool = False
    """Whether attempts are separate lines, including points that later ones superseded."""

    def of(self, groups: Mapping[str, Sequence[Series]]) -> Mapping[str, Sequence[Series]]:
        """Select the lines to draw, by metric."""
        if not self.names:
            undrawn = not_worth_drawing(groups)
            return {name: lines for name, lines in groups.items() if name not in undrawn}
        names = {visible(element_in(name)[0]) for name in self.names}
        return {name: lines for name, lines in groups.items() if name in names}

    @property
    def span(self) -> tuple[float, float]:
        """The range of the axis."""
        low = -math.inf if self.low is None else self.low
        return low, math.inf if self.high is None else self.high

    def request(self, ids: Sequence[str]) -> pb.ReadSeriesRequest:
        """Build the request for sessions with these ids."""
        from nsml.v1 import sessions_pb2 as pb

        axes: dict[Axis, pb.SeriesAxis] = {
            Axis.STEP: pb.SERIES_AXIS_STEP,
            Axis.RELATIVE: pb.SERIES_AXIS_RELATIVE,
            Axis.WALL: pb.SERIES_AXIS_WALL,
        }
        return pb.ReadSeriesRequest(
            sessions=ids,
            names=globs_of(self.names),
            ranks=[] if self.rank is None else [self.rank],
            attempts=[] if self.attempt is None else [self.attempt],
            axis=axes[self.axis],
            low=self.low,
            high=self.high,
            width=self.width,
            all_attempts=self.is_apart,
        )


def globs_of(names: Iterable[str]) -> list[str]:
    """Return globs that match these metrics and the elements of lists; others may match too.

    They are few, however long a list is, and no longer than the names: the size of a request is limited.
    """
    globs = set()
    for name in names:
        metric, element = element_in(name)
        plain = re.sub(r"[*?\[]", "?", metric)
        if not element:
            globs.add(plain)
        if element or may_be_list(name):
            globs.add(f"{plain}:*")
    return sorted(globs)


def first_charts(names: Iterable[str]) -> tuple[frozenset[str], int]:
    """Return the metrics of the first MOST_CHARTS charts, and the number of omitted metrics."""
    from nsml.view.figure import MOST_CHARTS, STD

    charts: dict[str, list[str]] = {}
    for name in names:
        charts.setdefault(element_in(name)[0], []).append(name)
    # A deviation is drawn with its metric.
    alone = in_order(one for one in charts if one.removesuffix(STD) not in charts.keys() - {one})
    drawn = {*alone[:MOST_CHARTS], *(one + STD for one in alone[:MOST_CHARTS])}
    left_out = sum(len(metrics) for chart, metrics in charts.items() if chart not in drawn)
    return frozenset(name for chart in drawn for name in charts.get(chart, ())), left_out


async def reported(client: Client, references: Iterable[str]) -> dict[str, list[pb.Metric]]:
    """Return the reported metrics of each session."""
    from nsml.common.concurrency import each_at_once

    asked = list(references)
    found = await each_at_once(asked, client.sessions.metrics, most=_AT_ONCE)
    return dict(zip(asked, found, strict=True))


def origins_of(reported: Iterable[Sequence[pb.Metric]]) -> dict[str, str]:
    """Return what reported the metrics of some sessions, by the safe name of their chart.

    Metrics that `nsml.report` reported in one of them are left out; several origins are joined: `wandb, log`.
    """
    from nsml.view.elements import element_in

    found: dict[str, set[str]] = {}
    for own in reported:
        for metric in own:
            found.setdefault(visible(element_in(metric.name)[0]), set()).add(metric.origin)
    return {
        name: visible(", ".join(sorted(origins)))
        for name, origins in found.items()
        if "" not in origins
    }


@dataclass(frozen=True, slots=True)
class Columns:
    """Responses to a query, and to queries of the preceding ranges."""

    asked: Sequence[tuple[ChartQuery, Sequence[pb.ReadSeriesResponse]]]

    @property
    def answers(self) -> Sequence[pb.ReadSeriesResponse]:
        """Responses to the query itself."""
        return self.asked[0][1]

    def parts(self) -> Mapping[str, Sequence[Part]]:
        """Return non-empty columns by session id."""
        parts: dict[str, list[Part]] = {}
        for query, answers in self.asked:
            for answer in answers:
                found = [(one, *query.span) for one in answer.series if one.x_low]
                if found:
                    parts.setdefault(answer.session_id, []).extend(found)
        return parts


async def read_columns(
    client: Client,
    sessions: Sequence[pb.Session],
    query: ChartQuery,
    *,
    with_preceding: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> Columns:
    """Read columns of sessions; `with_preceding`: with the points before the range, from which averages start."""

    async def read(query: ChartQuery) -> Sequence[pb.ReadSeriesResponse]:
        return await _read(client, sessions, query, patience_s=patience_s, on_link=on_link)

    answers = await read(query)
    asked = [(query, answers)]
    ends = [one.x_high[-1] for answer in answers for one in answer.series if one.x_high]
    if with_preceding and query.low is not None and ends:
        # Near the range, use the resolution of the range.
        near = 2 * query.low - max(ends)
        for low, high in ((near, query.low), (None, near)):
            before = replace(query, low=low, high=math.nextafter(high, -math.inf))
            asked.append((before, await read(before)))
    return Columns(asked)


async def _read(
    client: Client,
    sessions: Sequence[pb.Session],
    query: ChartQuery,
    *,
    patience_s: float | None,
    on_link: OnLink | None,
) -> Sequence[pb.ReadSeriesResponse]:
    from nsml.client.streams import read_series

    answers: list[pb.ReadSeriesResponse] = []
    for at in range(0, len(sessions), MOST_SESSIONS):
        request = query.request([one.id for one in sessions[at : at + MOST_SESSIONS]])
        answers += await read_series(client, request, patience_s=patience_s, on_link=on_link)
    names = frozenset(query.names)
    for answer in answers if names else ():
        kept = [
            one for one in answer.series if one.name in names or element_in(one.name)[0] in names
        ]
        if len(kept) < len(answer.series):
            del answer.series[:]
            answer.series.extend(kept)
    return answers


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines by metric, in display order, and the session id of each line.

    Names of metrics are safe to display.
    """

    groups: Mapping[str, list[Series]]
    owners: Mapping[str, list[str]]


def grouped(found: Iterable[tuple[str, Mapping[str, Sequence[Series]]]]) -> Lines:
    """Merge the lines of sessions, given as pairs of id and lines by metric."""
    groups: dict[str, list[Series]] = {}
    owners: dict[str, list[str]] = {}
    for session_id, own in found:
        for name, lines in own.items():
            shown = visible(name)
            groups.setdefault(shown, []).extend(lines)
            owners.setdefault(shown, []).extend([session_id] * len(lines))
    return Lines(lines_in_order(groups), owners)
