"""gpumonitor, and the platform's history: device and process usage over time."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from cli.app import App, Format
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, command, pass_app
from cli.output import write_list

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session
    from nsml.v1.telemetry_pb2 import ReadTelemetryResponse

LOOKS_EVERY_S: Final = 2.0
_COLUMNS: Final = 100
_HISTORY_S: Final = 86_400.0
_LEAST_WINDOW_S: Final = 1.0


class _Seen(NamedTuple):
    """A session, and the usage of its devices and processes."""

    session: Session
    answer: ReadTelemetryResponse


@command(
    "gpumonitor",
    reads=True,
    examples=[
        "nsml gpumonitor @last",
        "nsml gpumonitor @last -w --window 10m",
        "nsml gpumonitor mnist/3 --csv > gpus.csv",
    ],
)
@session_argument()
@click.option(
    "--window", type=DURATION, metavar="TIME", help="Only this period until now or the end."
)
@click.option("--csv", is_flag=True, help="Print CSV: a line per interval and GPU or replica.")
@click.option("-w", "--watch", is_flag=True, help="Redraw until the session ends.")
@pass_app
def gpumonitor(app: App, *, session: str, window: float | None, csv: bool, watch: bool) -> None:
    """Show GPU and process resource usage of a session over time.

    GPUs: load, memory, power, temperature. Processes of each replica, also without a GPU: cores,
    memory, number. Each bar is a mean over its interval. Seconds are kept for an hour, 10 s for a
    day, minutes for 30 days and 10 minutes for a year. A shared GPU is shown as a whole. Piped, it
    is a table.
    """
    from nsml.common.text import visible
    from nsml.view import telemetry as view
    from nsml.view.times import seconds_of

    if csv and app.flags.output not in {None, Format.CSV}:
        raise click.UsageError("--csv is an output format, too: give one")
    check_window(window)
    if csv:
        app.flags.output = Format.CSV

    async def fetch(client: Client, reference: str = session) -> _Seen:
        found = await client.sessions.get(reference)
        answer = await client.telemetry.read(
            session=found.id,
            window_s=window,
            until=seconds_of(found.ended_at) if found.HasField("ended_at") else None,
            width=app.room or _COLUMNS,
        )
        return _Seen(found, answer)

    if watch:
        _watch(app, fetch)
        return
    answer = app.call(fetch).answer
    if not answer.series:
        when = "yet" if window is None else "in that time"
        app.say(f"it ran nowhere {when}, or its nodes are not known any more")
    if _draws(app):
        room, now = app.room or _COLUMNS, app.clock.time()
        for line in view.session_lines(answer, room=room, now=now) if answer.series else ():
            app.write(visible(line))
        return
    shown = view.cells(answer)
    if answer.series and not shown:
        app.say("nothing was measured: it was there for less than a second, or not in that time")
    columns = view.timed(view.COLUMNS, shown)
    write_list(app, shown, columns=columns, record=view.cell_record, name="uuid")


def _watch(app: App, fetch: Callable[..., Awaitable[_Seen]]) -> None:
    """Redraw the result of `fetch` until the session has ended."""
    from cli.live_table import Redrawn
    from nsml.common.text import visible
    from nsml.view import telemetry as view

    check_drawing(app, "nsml gpumonitor SESSION -o jsonl")
    screen = Redrawn(app)

    async def follow(client: Client) -> None:
        from nsml.client.streams import ENDED_STATES, look_again

        # `@last` may be another one at the next read.
        chosen = (await fetch(client)).session.id
        looking = look_again(
            client, partial(fetch, client, chosen), every_s=LOOKS_EVERY_S, on_link=screen.link
        )
        async with aclosing(looking):
            async for seen in looking:
                room, now = app.room or _COLUMNS, app.clock.time()
                lines = view.session_lines(seen.answer, room=room, now=now)
                screen.show([visible(line) for line in lines])
                if seen.session.state in ENDED_STATES:
                    return

    app.call(follow)


def check_drawing(app: App, advice: str) -> None:
    """Raise CommandError if redrawing is impossible: -w would print the same for ever."""
    if not app.is_for_people:
        said = f"-w draws, and does not write {app.format.value}"
    elif app.room is None:
        said = "-w draws on a terminal, in place: the output is not a terminal"
    else:
        return
    raise CommandError(said, code=ExitCode.USAGE, advice=advice)


def check_window(window_s: float | None) -> None:
    """Raise UsageError for a span too short for any measurement."""
    if window_s is not None and window_s < _LEAST_WINDOW_S:
        raise click.UsageError("--window is 1s at least: GPUs are measured once a second")


def show_history(app: App, window_s: float | None) -> None:
    """Show the platform's usage over time."""
    from nsml.view import telemetry as view

    check_window(window_s)

    async def fetch(client: Client) -> ReadTelemetryResponse:
        return await client.telemetry.read(
            window_s=window_s or _HISTORY_S, width=app.room or _COLUMNS
        )

    answer = app.call(fetch)
    if _draws(app):
        room, now = app.room or _COLUMNS, app.clock.time()
        for line in view.cluster_history_lines(answer, room=room, now=now):
            app.write(line)
        return
    shown = view.cells(answer)
    write_list(
        app,
        shown,
        columns=view.timed(view.CLUSTER_COLUMNS, shown),
        record=view.cell_record,
        name="time",
        none="nothing was measured",
    )
    if app.is_for_people and any(one.simulated for one in answer.series):
        app.say("the GPUs are simulated")


def _draws(app: App) -> bool:
    from nsml.view.telemetry import BARS

    is_seen = app.room is not None and app.is_for_people and not app.is_read_aloud
    return is_seen and app.can_show(BARS)
