"""plot: charts of reported values."""

from __future__ import annotations

import math
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, Format
from cli.arguments import WholeRange, given_references, one_of, sessions_argument, sessions_of
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from cli.results.charts import (
    EVERYTHING,
    ChartOptions,
    PictureFile,
    Span,
    chart_lines,
    flattened,
    is_in_words,
    narrowed,
    parse_span,
    write_pictures,
)
from cli.results.metric_options import (
    EVENT_COLUMNS,
    Event,
    ask_known,
    attempts_option,
    check_attempts,
    chosen,
    event_record,
    from_log_option,
    let_go_words,
    metric_option,
    rank_options,
    reduce_option,
    reduced,
)
from cli.results.series import Source, fetch, labels_of, points_of, why_nothing
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.results.series import Fetched
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.series import Series

_ROWS = 12
_TAKEN: Mapping[str, frozenset[str]] = {
    "chart": frozenset({"-x", "--smooth", "--log-y", "--width", "--height"}),
    "picture": frozenset({"-x", "--smooth", "--log-y"}),
    "table": frozenset({"-x", "--smooth"}),
    "csv": frozenset(),
}
"""Drawing options that have an effect, by kind of output."""


class _Share(click.FloatRange):
    name = "number"


@command(
    "plot",
    examples=[
        "nsml plot @last",
        "nsml plot @last -m 'val/*' --smooth 0.6",
        "nsml plot mnist/3 mnist/4 -m train/loss -x relative",
        "nsml plot @last -m '*loss' --log-y --range 100:",
        "nsml plot 'kim/mnist/*' --svg runs.svg --png runs.png",
        "nsml plot @last -m 'val/*' -w",
        "nsml plot 'kim/mnist/*' --tensorboard runs",
        "nsml plot @last --csv",
        "nsml plot @last --from-log auto",
        r"nsml plot @last --from-log 'loss=loss is ([\d.]+)'",
    ],
)
@sessions_argument()
@metric_option()
@from_log_option
@click.option(
    "-x",
    "axis",
    type=click.Choice(["step", "relative", "wall"]),
    show_default="step",
    help="Horizontal axis.",
)
@click.option(
    "--smooth",
    type=_Share(0, 0.999),
    default=0.0,
    metavar="0-0.999",
    help="Smoothing factor of the moving average.",
)
@click.option(
    "--width", type=WholeRange(30), metavar="CELLS", help="Width; default: the terminal's."
)
@click.option("--height", type=WholeRange(3), metavar="LINES", help="Height of each chart.")
@one_of(
    "form",
    chart="Draw, also when piped.",
    csv="The points, one a line.",
    table="Each series in words.",
)
@click.option(
    "--log-y", "is_log", is_flag=True, help="Logarithmic axis; values not above 0 are counted."
)
@click.option(
    "--range",
    "given_span",
    metavar="A:B",
    help="Only this part of the axis: steps; 10m:1h with relative; moments, in local time, with wall.",
)
@click.option("--svg", type=PictureFile(".svg"), metavar="FILE", help="Draw an SVG file.")
@click.option(
    "--png", type=PictureFile(".png"), metavar="FILE", help="Draw a PNG file; needs nsml[png]."
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=True, path_type=Path),
    metavar="DIR",
    help="Write event files that TensorBoard reads.",
)
@click.option("-w", "--watch", is_flag=True, help="Redraw on new values; Ctrl-C leaves.")
@rank_options
@attempts_option
@reduce_option
@pass_app
def plot(
    app: App,
    *,
    references: tuple[str, ...],
    metrics: tuple[str, ...],
    from_log: tuple[str, ...],
    axis: str | None,
    smooth: float,
    width: int | None,
    height: int | None,
    form: str | None,
    is_log: bool,
    given_span: str | None,
    svg: str | None,
    png: str | None,
    tensorboard: Path | None,
    watch: bool,
    rank: int | None,
    attempt: int | None,
    is_apart: bool,
    how: str | None,
) -> None:
    """Draw metrics of sessions; piped, print the points as CSV.

    If an attempt repeats steps of an earlier one, its values replace those. Lines of several
    sessions are named by the arguments that differ. Downsampling keeps every spike. Losses and
    scores come first, validation before training. --from-log reads the log and stores nothing. Counters (epoch, step) and constants are drawn
    only if -m names them. At most 48 metrics are drawn; the others are named.

    In pictures, a line has the same colour and dashes in all charts, and a metric `NAME@std` is a
    band around NAME. A list reported as `NAME@vector` or `NAME@stack`, and `NAME@vector:A` with
    `NAME@vector:B`, is one chart.
    """
    from nsml.view.figure import Look
    from nsml.view.series import Axis

    look = Look(axis=Axis(axis or "step"), smoothing=smooth, is_log=is_log)
    span = parse_span(app, given_span, look.axis)
    check_attempts(attempt, is_apart=is_apart)
    source = Source(
        globs=metrics,
        rank=rank,
        attempt=attempt,
        how=how,
        is_apart=is_apart,
        from_log=from_log,
    )
    drawing = {
        "-x": axis is not None,
        "--smooth": smooth > 0,
        "--log-y": is_log,
        "--width": width is not None,
        "--height": height is not None,
    }
    if tensorboard is not None:
        if watch or svg or png or form or given_span or how or any(drawing.values()):
            raise click.UsageError(
                "--tensorboard writes what was reported as it is: -m, --rank, --attempt and --attempts"
                " alone go with it"
            )
        from cli.results.event_files import write_event_files

        write_event_files(app, given_references(app, references), source, tensorboard)
        return
    options = ChartOptions(
        look=look, span=span, in_words=form == "table", width=width, height=height or _ROWS
    )
    if watch:
        if svg or png or how or form not in {None, "chart"}:
            raise click.UsageError(
                "-w draws on the terminal alone, as it comes: no file, no --csv, no --table, no --reduce"
            )
        _watch(
            app,
            references,
            source,
            options,
            has_height=height is not None,
        )
        return
    is_drawn = bool(svg or png)
    if is_drawn and form == "csv":
        raise click.UsageError(
            "--csv writes points alone: --svg and --png draw in a call of their own"
        )
    shown = form or ("" if is_drawn else "chart" if app.room else "csv")
    _tell_idle(
        app, drawing, shown, is_drawn=is_drawn, is_asked=bool(form), has_span=bool(given_span)
    )
    if png:
        from cli.results.png import check_library

        check_library()
    if shown == "csv":
        if not form and app.stderr.isatty():
            app.say("(piped: the points as CSV; --chart draws them, --csv says nothing)")
        _write_points(app, references, source, options)
        return
    fetched = fetch(app, given_references(app, references), source, options, is_picture=is_drawn)
    _show(app, fetched, options, svg=svg, png=png, form=form, span=given_span)


def _tell_idle(
    app: App,
    drawing: Mapping[str, bool],
    shown: str,
    *,
    is_drawn: bool,
    is_asked: bool,
    has_span: bool,
) -> None:
    """Refuse drawing options without effect, or report them if the output was not requested.

    `drawing`: whether each was given. `shown`: `chart`, `table`, `csv`, or "" for a picture alone.
    """
    is_told = shown == "chart" and is_in_words(app)
    made = [*(["picture"] if is_drawn else []), *([shown] if shown else [])]
    taken = set[str]().union(
        *(_TAKEN["table" if is_told and one == "chart" else one] for one in made)
    )
    # A span is a part of the -x axis, for points as well.
    taken |= {"-x"} if has_span else set()
    idle = " and ".join(
        option for option, is_given in drawing.items() if is_given and option not in taken
    )
    if not idle:
        return
    if is_told:
        app.say(f"in words, without {idle}")
    elif not is_asked and not is_drawn:
        app.say(
            f"piped, and so the points as they were reported, without {idle}: --chart draws them"
        )
    else:
        flag = f"--{shown}" if shown else "a picture"
        raise click.UsageError(f"{idle} would change nothing: {flag} goes without")


def _show(
    app: App,
    fetched: Fetched,
    options: ChartOptions,
    *,
    svg: str | None,
    png: str | None,
    form: str | None,
    span: str | None,
) -> None:
    """Write to files, the terminal, or both; `span`: as typed."""
    from nsml.view.metrics import not_drawn_text

    groups = fetched.groups
    none = fetched.none
    if fetched.is_from_log and groups:
        app.say("from the log, and not stored: nsml run --metric records them")
    if not none and not narrowed(groups, options.span):
        none = f"nothing was reported within {span}"
    if none and (svg or png or fetched.is_no_number):
        empty = "no picture was written: it would be empty" if svg or png else ""
        raise CommandError(none, code=ExitCode.NOT_FOUND, why=empty)
    if none:
        app.say(none)
    if svg or png:
        write_pictures(app, groups, options, svg=svg, png=png, left_out=fetched.left_out)
    if form or not (svg or png):
        for line in chart_lines(app, groups, options, fetched.marks, fetched.origins):
            app.write(line)
        _tell_flattened(app, groups, options)
    if fetched.left_out:
        app.say(f"{counted(fetched.left_out, 'metric')} left out: -m GLOB says which are drawn")
    if fetched.undrawn:
        app.say(not_drawn_text(fetched.undrawn))


def _tell_flattened(
    app: App, groups: Mapping[str, Sequence[Series]], options: ChartOptions
) -> None:
    if options.look.is_log or options.in_words or is_in_words(app):
        return
    for name in flattened(narrowed(groups, options.span)):
        app.say(
            f"note: the highest line of {name} flattens the others: try --log-y, or without its session"
        )


def _watch(
    app: App,
    references: Sequence[str],
    source: Source,
    options: ChartOptions,
    *,
    has_height: bool,
) -> None:
    from cli.results.live_plot import LivePlot, check_terminal

    check_terminal(app)
    given = given_references(app, references)
    live = LivePlot(app, source, options, has_height=has_height)

    async def follow(client: Client) -> None:
        sessions = await sessions_of(client, given)
        await live.follow(client, sessions, labels_of(sessions))

    app.call(follow)


def _write_points(
    app: App, references: Sequence[str], source: Source, options: ChartOptions
) -> None:
    """Write the points of all sessions, in the order of the references, as CSV."""
    sessions, events = _read(app, references, source)
    if source.globs and not events and not source.from_log:
        ask_known(
            app,
            [session.name for session in sessions],
            source.globs,
            lambda session, name: ["plot", session, "-m", name],
        )
    of_those = chosen(events, source.rank, source.attempt)
    events = reduced(of_those, source.how)
    if not events:
        none = (
            "" if source.from_log else app.call(lambda client: let_go_words(app, client, sessions))
        )
        if not none:
            none = why_nothing(sessions, source, {event.point.name for event in of_those})
            if source.globs and of_those:
                raise CommandError(none, code=ExitCode.NOT_FOUND)
        app.say(none)
    app.flags.output = Format.CSV
    kept = _within(events, options.span, options.look.axis)
    write_list(app, kept, columns=EVENT_COLUMNS, record=event_record, name="metric")


def _within(events: Sequence[Event], span: Span, axis: Any) -> Sequence[Event]:
    """Return the events in a part of the axis; see Span. Unreported steps are in none."""
    from nsml.view.series import Axis
    from nsml.view.times import seconds_of

    if span == EVERYTHING:
        return events
    starts: dict[tuple[str, str, int], float] = {}

    def place(event: Event) -> float:
        point = event.point
        if axis is Axis.STEP:
            return point.step if point.HasField("step") else math.nan
        time = seconds_of(point.time)
        key = event.session, point.name, point.rank
        return time - (starts.setdefault(key, time) if axis is Axis.RELATIVE else 0.0)

    return [event for event in events if span.low <= place(event) <= span.high]


def _read(app: App, references: Sequence[str], source: Source) -> tuple[list[Session], list[Event]]:
    """Return sessions and their points, in the order of the references."""
    given = given_references(app, references)

    async def work(client: Client) -> tuple[list[Session], list[Event]]:
        sessions = await sessions_of(client, given)
        found: list[Event] = []
        for session in sessions:
            stream = points_of(app, client, session, source)
            async with aclosing(stream):
                async for events in stream:
                    found += events
        return sessions, found

    return app.call(work)
