"""plot, events, eventlen: what sessions reported."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, Format
from cli.arguments import (
    NUMBER,
    WholeRange,
    expand,
    given_references,
    one_of,
    session_argument,
    sessions_argument,
)
from cli.exits import CommandError, ExitCode
from cli.group import command, near, not_there_yet, pass_app
from cli.output import COLOURS, write_list
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Metric, MetricPoint, Session
    from nsml.view.plot import Piece
    from nsml.view.series import Series

_PATIENCE_S = 30.0
_ROWS = 12
_COLUMNS = 80
_SHOWN = 10
"""Metrics that an error names at most."""


class _Share(click.FloatRange):
    name = "number"


@dataclass(frozen=True, slots=True)
class Event:
    """One reported value with the session that reported it."""

    session: str
    point: MetricPoint


@command(
    "plot",
    examples=[
        "nsml plot @last",
        "nsml plot @last -m 'val/*' --smooth 0.6",
        "nsml plot mnist/3 mnist/4 -m train/loss -x relative",
        "nsml plot @last --csv",
    ],
)
@sessions_argument()
@click.option("-m", "--metric", "metrics", multiple=True, metavar="GLOB", help="Only these.")
@click.option(
    "-x",
    "axis",
    type=click.Choice(["step", "relative", "wall"]),
    default="step",
    show_default=True,
    help="The horizontal axis.",
)
@click.option(
    "--smooth",
    type=_Share(0, 0.999),
    default=0.0,
    metavar="0-0.999",
    help="Share of the past in a moving average.",
)
@click.option("--width", type=WholeRange(30), metavar="CELLS", help="Default: the terminal's.")
@click.option("--height", type=WholeRange(3), default=_ROWS, metavar="LINES", help="Of each chart.")
@one_of(
    "form",
    chart="Draw, also when piped.",
    csv="The points, one a line.",
    table="Each series in words.",
)
@not_there_yet("--log-y", is_flag=True)
@not_there_yet("--range")
@not_there_yet("--svg")
@not_there_yet("-w", "--watch", is_flag=True)
@pass_app
def plot(
    app: App,
    *,
    references: tuple[str, ...],
    metrics: tuple[str, ...],
    axis: str,
    smooth: float,
    width: int | None,
    height: int,
    form: str | None,
) -> None:
    """Draw what sessions reported; when piped, the points as CSV."""
    sessions, events = _read(app, references, metrics)
    if metrics and not events:
        _check_known(app, [session.name for session in sessions], metrics, "plot {} -m {}")
    if (form or ("chart" if app.room else "csv")) == "csv":
        app.flags.output = Format.CSV
        write_list(app, events, columns=_EVENT_COLUMNS, record=_event_record, name="metric")
        return
    from nsml.view.series import Axis
    from nsml.view.series import smooth as smoothed

    groups = _grouped(sessions, events, Axis(axis))
    if not groups:
        app.say("nothing reported yet")
    for title, lines in groups.items():
        drawn = [smoothed(line, smooth) for line in lines]
        _draw(app, title, drawn, axis=Axis(axis), form=form, width=width, height=height)


def _draw(
    app: App,
    title: str,
    lines: Sequence[Series],
    *,
    axis: Any,
    form: str | None,
    width: int | None,
    height: int,
) -> None:
    from nsml.view import plot as view

    if form == "table" or app.is_read_aloud or not app.can_show(view.LETTERS):
        for line in lines:
            app.write(view.words(title, line, axis=axis))
        return
    columns = width or app.room or _COLUMNS
    for row in view.chart(title, lines, axis=axis, columns=columns, rows=height):
        app.write("".join(_coloured(app, piece) for piece in row))
    app.write("")


def _coloured(app: App, piece: Piece) -> str:
    if piece.series is None or app.painter is None:
        return piece.text
    return app.painter(piece.text, COLOURS[piece.series % len(COLOURS)])


def _grouped(
    sessions: Sequence[Session], events: Sequence[Event], axis: Any
) -> dict[str, list[Series]]:
    """The series of all sessions by metric, for reading: every text made safe."""
    from nsml.view.series import collect
    from nsml.view.sessions import SIMULATED
    from nsml.view.text import visible

    groups: dict[str, list[Series]] = {}
    for session in sessions:
        label = f"{session.name} ({SIMULATED})" if session.simulated else session.name
        points = [event.point for event in events if event.session == session.name]
        for metric, lines in collect(points, session=visible(label), axis=axis).items():
            groups.setdefault(visible(metric), []).extend(lines)
    return dict(sorted(groups.items()))


def _read(
    app: App, references: Sequence[str], names: Sequence[str]
) -> tuple[list[Session], list[Event]]:
    """Sessions and their points, in the order of the references."""
    from nsml.client.streams import read_metrics

    given = given_references(app, references)

    async def fetch(client: Client) -> tuple[list[Session], list[Event]]:
        sessions = [await client.sessions.get(name) for name in await expand(client, given)]
        events: list[Event] = []
        for session in sessions:
            stream = read_metrics(
                client, session.id, names=names, patience_s=_PATIENCE_S, on_link=app.link_words()
            )
            async with aclosing(stream):
                async for answer in stream:
                    if answer.missing_reports:
                        app.say(f"({answer.missing_reports:,} reports of {session.name} are lost)")
                    events += [Event(session.name, point) for point in answer.points]
        return sessions, events

    return app.call(fetch)


def _value(point: MetricPoint) -> Any:
    if point.HasField("number"):
        return point.number
    import json

    try:
        return json.loads(point.json)
    except ValueError:
        return point.json


def _event_record(event: Event) -> dict[str, Any]:
    from nsml.view.sessions import seconds_of
    from nsml.view.units import moment

    point = event.point
    return {
        "session": event.session,
        "metric": point.name,
        "step": point.step if point.HasField("step") else None,
        "value": _value(point),
        "time": moment(seconds_of(point.time)),
        "attempt": point.attempt,
        "rank": point.rank,
    }


def _step(event: Event, _now: float) -> str:
    return f"{event.point.step:g}" if event.point.HasField("step") else "-"


def _moment(event: Event, _now: float) -> str:
    from nsml.view.sessions import seconds_of
    from nsml.view.units import moment

    return moment(seconds_of(event.point.time))


_EVENT_COLUMNS: tuple[Column[Event], ...] = (
    Column(key="metric", title="Metric", cell=lambda e, _: e.point.name, is_name=True),
    Column(key="step", title="Step", cell=_step),
    Column(key="value", title="Value", cell=lambda e, _: str(_value(e.point)), shrinks_to=10),
    Column(key="time", title="Time", cell=_moment),
    Column(
        key="attempt",
        title="Attempt",
        cell=lambda e, _: str(e.point.attempt),
        is_wide=True,
        is_worth=lambda e: e.point.attempt > 1,
    ),
    Column(key="rank", title="Rank", cell=lambda e, _: str(e.point.rank), is_wide=True),
    Column(key="session", title="Session", cell=lambda e, _: e.session, is_wide=True),
)


@command(
    "events",
    reads=True,
    examples=[
        "nsml events @last",
        "nsml events @last train/loss -o csv",
        "nsml events @last 'val/*' --limit 10 -o jsonl",
    ],
)
@session_argument()
@click.argument("metric", required=False)
@click.option("--limit", type=WholeRange(1), metavar="N", help="Only the last N.")
@click.option("--since-step", type=NUMBER, metavar="STEP", help="From this step on.")
@not_there_yet("-f", "--follow", is_flag=True)
@not_there_yet("--downsample")
@pass_app
def events(
    app: App, *, session: str, metric: str | None, limit: int | None, since_step: float | None
) -> None:
    """Show the reported values themselves, in their order. METRIC may be a glob in quotes."""
    sessions, found = _read(app, [session], [metric] if metric else [])
    if since_step is not None:
        found = [e for e in found if e.point.HasField("step") and e.point.step >= since_step]
    if not found and metric:
        _check_known(app, [session], [metric], "events {} {}")
    _tell_attempts(app, sessions)
    write_list(
        app,
        found[-limit:] if limit else found,
        columns=_EVENT_COLUMNS,
        record=_event_record,
        name="metric",
        none="nothing reported yet"
        if since_step is None
        else f"nothing from step {since_step:g} on",
    )


def _tell_attempts(app: App, sessions: Sequence[Session]) -> None:
    """Say beside the values how earlier attempts ended: why steps are missing, or come again."""
    if not app.is_for_people:
        return
    from nsml.view.sessions import attempt_lines
    from nsml.view.text import visible

    for line in (line for session in sessions for line in attempt_lines(session)):
        app.say(visible(line))


def _check_known(app: App, sessions: Sequence[str], globs: Sequence[str], corrected: str) -> None:
    """Raise when sessions reported something, but nothing that a glob fits.

    `corrected`: the command with places for a session and a metric.
    """
    from fnmatch import fnmatchcase

    async def reported(client: Client) -> dict[str, str]:
        return {
            metric.name: session
            for session in sessions
            for metric in await client.sessions.metrics(session)
        }

    by_name = app.call(reported)
    names = list(by_name)
    if not names or any(fnmatchcase(name, glob) for name in names for glob in globs):
        return
    raise CommandError(
        f"no metric {' or '.join(map(repr, globs))} was reported",
        code=ExitCode.NOT_FOUND,
        why=f"there are {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}",
        advice="\n".join(
            f"nsml {corrected.format(by_name[name], name)}"
            for glob in globs
            for name in near(glob, names)
        ),
    )


_METRIC_COLUMNS: tuple[Column[Metric], ...] = (
    Column(key="name", title="Metric", cell=lambda m, _: m.name, is_name=True),
    Column(key="count", title="Count", cell=lambda m, _: f"{m.count:,}"),
)


@command(
    "eventlen", reads=True, examples=["nsml eventlen @last", "nsml eventlen kim/mnist/3 -o json"]
)
@session_argument()
@pass_app
def eventlen(app: App, *, session: str) -> None:
    """Count the reported values, by metric."""
    found = app.call(lambda client: client.sessions.metrics(session))
    write_list(
        app,
        found,
        columns=_METRIC_COLUMNS,
        record=lambda metric: {"name": metric.name, "count": metric.count},
        none="nothing reported yet",
    )
