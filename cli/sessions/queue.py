"""queue: queued sessions in scheduling order."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cli.app import App, Format
from cli.arguments import PROJECT, WholeRange
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.live_table import Redrawn
from cli.output import table_lines, write_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ListQueueResponse

LOOKS_EVERY_S: Final = 2.0
"""Refresh interval of -w in seconds: the interval at which reasons are updated for watchers of sessions."""


@command(
    "queue",
    reads=True,
    examples=["nsml queue", "nsml queue -w", "nsml queue --mine -j", "nsml queue --project vision"],
)
@click.option("-u", "--user", "users", multiple=True, metavar="USER", help="Only of these users.")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--project", type=PROJECT, default="", metavar="NAME", help="Only of this project.")
@click.option("-n", "--first", type=WholeRange(1), metavar="N", help="Only the first N.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show every change.")
@pass_app
def queue(
    app: App, *, users: tuple[str, ...], mine: bool, project: str, first: int | None, watch: bool
) -> None:
    """List queued sessions in order, with the reason and the latest start.

    -o wide adds the fair share of each account: GPUs held now and recently, divided by its weight.
    Within a priority the lowest goes first.

    Sessions that you may not see show only owner, size and age. For details of one session: nsml
    status --explain SESSION
    """
    owners = [*users, *(["@me"] if mine else [])]
    if watch and app.format not in {Format.TABLE, Format.WIDE, Format.JSON}:
        raise CommandError(
            f"-w shows the queue as a whole, not as {app.format.value}",
            code=ExitCode.USAGE,
            advice="nsml queue -w -j",
        )
    show_queue(app, owners=owners, project=project, first=first, watch=watch)


def show_queue(
    app: App,
    *,
    owners: Sequence[str] = (),
    project: str = "",
    first: int | None = None,
    watch: bool = False,
) -> None:
    """Show the queue once, or on each change until interrupted."""

    async def fetch(client: Client) -> ListQueueResponse:
        from nsml.view.queue import joined

        return joined(await client.sessions.queue(owners=owners, project=project, limit=first))

    if not watch:
        _write(app, app.call(fetch))
        return
    screen = Redrawn(app)

    async def follow(client: Client) -> None:
        from nsml.client.streams import look_again

        shown: ListQueueResponse | None = None
        looking = look_again(
            client, partial(fetch, client), every_s=LOOKS_EVERY_S, on_link=screen.link
        )
        async with aclosing(looking):
            async for page in looking:
                if screen.draws:  # also the ages
                    screen.show(_lines(app, page))
                elif page != shown:
                    shown = page
                    _write(app, page)
                    app.stdout.flush()

    app.call(follow)


def _write(app: App, page: ListQueueResponse) -> None:
    from nsml.v1.sessions_pb2 import QueuedSession
    from nsml.view import queue as view

    if app.is_for_people:
        for line in _lines(app, page):
            app.write(line)
        return
    write_list(
        app,
        page.sessions,
        columns=view.COLUMNS,
        record=view.record,
        blank=QueuedSession(),
        beside=view.totals_record(page),
    )


def _lines(app: App, page: ListQueueResponse) -> list[str]:
    from nsml.common.text import folded, visible
    from nsml.view import queue as view

    rows = table_lines(app, page.sessions, view.COLUMNS) if page.sessions else []
    totals = visible(view.totals_text(page))
    return [*([totals] if app.room is None else folded(totals, app.room)), *rows]
