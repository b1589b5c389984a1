"""Data of charts: downsampled columns from the control plane, for the drawn metrics."""

from __future__ import annotations

import math
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cli.app import App
from cli.arguments import sessions_of
from cli.results.charts import COLUMNS, EVERYTHING, ChartOptions, Span
from cli.results.metric_options import (
    Event,
    check_known,
    check_there,
    chosen,
    fits,
    let_go_words,
    no_numbers_words,
    nothing_by,
    nothing_in_log,
    reduced,
    tell_let_go,
    tell_missing,
)
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.client.series import Columns, Part
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view.series import Series

_PATIENCE_S = 30.0
_HINTED = 3
"""Most metrics named in a hint."""
_ARGUMENT_CELLS = 28
"""Cells for arguments in a line's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The selection for charts: None is everything."""

    globs: Sequence[str] = ()
    rank: int | None = None
    attempt: int | None = None
    how: str | None = None
    """The name of a reduction over replicas."""
    is_apart: bool = False
    """Whether each attempt is a separate line."""
    from_log: Sequence[str] = ()
    """Requests for metrics out of the log; empty: reported ones."""

    @property
    def is_part(self) -> bool:
        """Whether one replica or one attempt is selected."""
        return self.rank is not None or self.attempt is not None

    @property
    def has_all(self) -> bool:
        """Whether to include points superseded by a later attempt: for a selected attempt, all."""
        return self.is_apart or self.attempt is not None

    def takes(self, point: pb.MetricPoint) -> bool:
        """Return whether the point's replica and attempt are selected."""
        return self.rank in {None, point.rank} and self.attempt in {None, point.attempt}


@dataclass(slots=True)
class Fetched:
    """Series by metric, for display: every text made safe; `left_out` further metrics were not fetched."""

    groups: dict[str, list[Series]] = field(default_factory=dict)
    left_out: int = 0
    undrawn: Sequence[str] = ()
    """Fetched metrics that were not named and are not worth a chart."""
    none: str = ""
    """Why there are no series; "" if there are some, or all are outside the span."""
    marks: Sequence[float] = ()
    """Steps of changes in the running program, for a single session."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """What reported a metric, if not `nsml.report`."""
    is_from_log: bool = False
    """Whether they were printed, not reported."""
    is_no_number: bool = False
    """Whether the reason is that the named metrics hold no numbers."""


def fetch(
    app: App, references: Sequence[str], source: Source, options: ChartOptions, *, is_picture: bool
) -> Fetched:
    """Fetch the series of all sessions that are worth drawing.

    Raises CommandError if sessions reported something, but nothing that a glob matches.
    """
    from nsml.client.series import first_charts, origins_of, reported
    from nsml.view import figure, plot
    from nsml.view.metrics import not_worth_drawing
    from nsml.view.program_changes import marks

    width = plot.worth(options.width or app.room or COLUMNS)
    if is_picture:
        width = max(width, figure.COLUMNS)

    async def work(client: Client) -> Fetched:
        sessions = await sessions_of(client, references)
        if source.from_log:
            return await _fetch_from_log(app, client, sessions, source, options)
        metrics = await reported(client, (one.name for one in sessions))
        listed = {metric.name for own in metrics.values() for metric in own}
        names = {name for name in listed if fits(name, source.globs)}
        is_of_points = source.how is not None
        if listed and not names:
            # A session's metrics beyond the listed ones are in no series.
            names, is_of_points = await _unlisted(app, client, sessions, source), True
            if not names:
                check_known(
                    metrics, source.globs, lambda session, name: ["plot", session, "-m", name]
                )
        taken, left_out = first_charts(names)
        reading = _Reading(app, client, source, options, names=taken, width=width)
        found = await reading.run(sessions, is_of_points=is_of_points) if taken else {}
        none, is_let_go = "", False
        if not found and not await reading.has_numbers(sessions):
            none = await let_go_words(app, client, sessions)
            is_let_go = bool(none)
            none = none or why_nothing(sessions, source, names)
            if not listed and not is_let_go:
                await tell_printed(app, client, sessions)
        if found and options.span == EVERYTHING and not source.is_part:
            _tell_undrawn(app, sessions, source.globs, taken, found)
        is_no_number = bool(
            none and names and source.globs and not source.is_part and not is_let_go
        )
        undrawn = [] if source.globs else not_worth_drawing(found)
        return Fetched(
            groups={name: lines for name, lines in found.items() if name not in undrawn},
            left_out=left_out,
            undrawn=undrawn,
            none=none,
            is_no_number=is_no_number,
            marks=marks(sessions[0].changes) if len(sessions) == 1 else (),
            origins=origins_of(metrics.values()),
        )

    return app.call(work)


async def tell_printed(app: App, client: Client, sessions: Sequence[pb.Session]) -> None:
    """Report metrics that a session without reports has printed, and the command that draws them."""
    from nsml.client.errors import ClientError
    from nsml.client.log_points import printed_metrics
    from nsml.common.shell import shell_line
    from nsml.common.text import visible

    if len(sessions) != 1 or not app.is_for_people:
        return
    try:
        names = await printed_metrics(client, sessions[0], patience_s=_PATIENCE_S)
    except ClientError:
        return  # only a hint
    if names:
        shown = visible(", ".join(names[:_HINTED])) + (", ..." if len(names) > _HINTED else "")
        is_are = "is" if len(names) == 1 else "are"
        draw = shell_line(["nsml", "plot", "--from-log", "auto", sessions[0].name])
        app.say(f"{shown} {is_are} in the log: {draw}; next time: nsml run --metric auto")


async def _fetch_from_log(
    app: App,
    client: Client,
    sessions: Sequence[pb.Session],
    source: Source,
    options: ChartOptions,
) -> Fetched:
    """Fetch the series that are in the logs of sessions."""
    from nsml.client.series import first_charts, grouped
    from nsml.view.metrics import not_worth_drawing
    from nsml.view.program_changes import marks
    from nsml.view.series import collect

    found = []
    for session, label in zip(sessions, labels_of(sessions), strict=True):
        events: list[Event] = []
        async with aclosing(points_of(app, client, session, source)) as stream:
            async for some in stream:
                events += some
        events = reduced(chosen(events, source.rank, source.attempt), source.how)
        lines = collect(
            (event.point for event in events),
            session=label,
            axis=options.look.axis,
            is_apart=source.is_apart,
        )
        found.append((session.id, lines))
    taken, left_out = first_charts({name for _, lines in found for name in lines})
    groups = grouped(
        (session, {name: own for name, own in lines.items() if name in taken})
        for session, lines in found
    ).groups
    undrawn = [] if source.globs else not_worth_drawing(groups)
    if not groups:
        check_there(sessions, source.rank, source.attempt)
    return Fetched(
        groups={name: lines for name, lines in groups.items() if name not in undrawn},
        left_out=left_out,
        undrawn=undrawn,
        none="" if groups else nothing_in_log(source.from_log),
        is_from_log=True,
        marks=marks(sessions[0].changes) if len(sessions) == 1 else (),
    )


def _tell_undrawn(
    app: App,
    sessions: Sequence[pb.Session],
    globs: Sequence[str],
    taken: Iterable[str],
    found: Mapping[str, object],
) -> None:
    """Report metrics named exactly that are in no chart."""
    from nsml.common.text import visible
    from nsml.view.elements import element_in

    named = sorted(name for name in taken if name in globs)
    undrawn = [
        name for name in named if not {visible(name), visible(element_in(name)[0])} & {*found}
    ]
    if undrawn:
        whose = sessions[0].name if len(sessions) == 1 else "SESSION"
        app.say(f"({no_numbers_words(whose, undrawn)})")


def why_nothing(sessions: Sequence[pb.Session], source: Source, names: Iterable[str]) -> str:
    """Return why there are no numbers, although metrics of these names were reported.

    Raises CommandError if there is no such replica or attempt.
    """
    check_there(sessions, source.rank, source.attempt)
    if source.from_log:
        return nothing_in_log(source.from_log)
    fitting = sorted(names)
    if fitting and not source.is_part:
        return no_numbers_words(sessions[0].name if len(sessions) == 1 else "SESSION", fitting)
    what = "no numbers" if fitting else "nothing"
    return nothing_by(source.rank, source.attempt, sessions, what)


async def _unlisted(
    app: App, client: Client, sessions: Sequence[pb.Session], source: Source
) -> set[str]:
    """Return the metrics that match the globs, from the points themselves."""
    names: set[str] = set()
    for session in sessions:
        async with aclosing(points_of(app, client, session, source)) as stream:
            async for events in stream:
                names |= {event.point.name for event in events}
    return names


class _Reading:
    """The reads for charts."""

    def __init__(
        self,
        app: App,
        client: Client,
        source: Source,
        options: ChartOptions,
        *,
        names: frozenset[str],
        width: int,
    ) -> None:
        self._app = app
        self._client = client
        self._source = source
        self._options = options
        self._names = names
        self._width = width

    async def run(
        self, sessions: Sequence[pb.Session], *, is_of_points: bool
    ) -> Mapping[str, list[Series]]:
        """Return series by metric, in reading order; `is_of_points`: no columns are read."""
        from nsml.client.series import grouped
        from nsml.view.elements import may_be_list
        from nsml.view.series import collect, gather

        lists = {name for name in self._names if is_of_points or may_be_list(name)}
        parts: Mapping[str, Sequence[Part]] = {}
        if not is_of_points:
            columns = await self._columns(sessions, self._options.span)
            tell_left_out(self._app, sessions, columns.answers)
            parts = columns.parts()
        axis, is_apart = self._options.look.axis, self._source.is_apart
        groups: list[tuple[str, Mapping[str, Sequence[Series]]]] = []
        for session, label in zip(sessions, labels_of(sessions), strict=True):
            own = parts.get(session.id, ())
            found = gather(own, session=label, is_apart=is_apart)
            of_points = lists - {series.name for series, *_ in own}
            if of_points:
                events = await self._events(session, of_points)
                points = (event.point for event in events)
                more = collect(points, session=label, axis=axis, is_apart=is_apart)
                found = {name: found.get(name, []) + more.get(name, []) for name in found | more}
            groups.append((session.id, found))
        return grouped(groups).groups

    async def has_numbers(self, sessions: Sequence[pb.Session]) -> bool:
        """Return whether there are numbers outside the drawn span."""
        if self._options.span == EVERYTHING or not self._names:
            return False
        return bool((await self._columns(sessions, EVERYTHING)).parts())

    async def _columns(self, sessions: Sequence[pb.Session], span: Span) -> Columns:
        """Read the columns of a span."""
        from nsml.client.series import ChartQuery, read_columns

        source, look = self._source, self._options.look
        query = ChartQuery(
            axis=look.axis,
            low=None if span.low == -math.inf else span.low,
            high=None if span.high == math.inf else span.high,
            width=self._width,
            names=tuple(sorted(self._names)),
            rank=source.rank,
            attempt=source.attempt,
            is_apart=source.is_apart,
        )
        return await read_columns(
            self._client,
            sessions,
            query,
            with_preceding=look.smoothing > 0,
            patience_s=_PATIENCE_S,
            on_link=self._app.link_words(),
        )

    async def _events(self, session: pb.Session, names: Iterable[str]) -> list[Event]:
        """Return the points of some metrics, reduced as requested."""
        from nsml.client.series import globs_of

        globs = replace(self._source, globs=globs_of(names))
        stream = points_of(self._app, self._client, session, globs)
        found: list[Event] = []
        async with aclosing(stream):
            async for events in stream:
                found += [event for event in events if event.point.name in names]
        source = self._source
        return reduced(chosen(found, source.rank, source.attempt), source.how)


def tell_left_out(
    app: App, sessions: Sequence[pb.Session], answers: Sequence[pb.ReadSeriesResponse]
) -> None:
    """Report sessions with incomplete series."""
    names = {session.id: session.name for session in sessions}
    for answer in answers:
        whose = f"of {names[answer.session_id]}"
        tell_missing(app, answer.missing_reports, names[answer.session_id])
        tell_let_go(app, answer.let_go, names[answer.session_id])
        if answer.left_out_points:
            points = counted(answer.left_out_points, "point")
            app.say(f"({points} {whose} in no series: too many metrics, or too long names)")
        if answer.left_out_series:
            series = counted(answer.left_out_series, "series", "series")
            app.say(f"({series} {whose} left out: -m GLOB)")


async def points_of(
    app: App, client: Client, session: pb.Session, source: Source
) -> AsyncGenerator[list[Event], None]:
    """Yield a session's points in order; then report the number of permanently missing ones."""
    from nsml.client.log_points import read_points

    missing = 0
    stream = read_points(
        client,
        session,
        from_log=source.from_log,
        names=source.globs,
        all_attempts=source.has_all,
        patience_s=_PATIENCE_S,
        on_link=app.link_words(),
    )
    async with aclosing(stream):
        async for answer in stream:
            missing += answer.missing_reports
            tell_let_go(app, answer.let_go, session.name)
            yield [Event(session.name, point) for point in answer.points]
    tell_missing(app, missing, session.name)


def labels_of(sessions: Sequence[pb.Session]) -> list[str]:
    """Return the names of sessions' lines: if several, with the arguments in which they differ."""
    from nsml.common.text import visible
    from nsml.view.filter_fields import Filtered
    from nsml.view.sessions import SIMULATED, SIMULATED_SHORT
    from nsml.view.sorting import arguments_within, shared_by

    shared = shared_by(map(Filtered, sessions))
    is_alone = len(sessions) == 1
    labels = []
    for session in sessions:
        differing = "" if is_alone else arguments_within(session, _ARGUMENT_CELLS, shared)
        word = SIMULATED if is_alone else SIMULATED_SHORT
        behind = f"({word})" if session.simulated else ""
        labels.append(visible(" ".join(filter(None, (session.name, differing, behind)))))
    return labels
