"""queue: what waits, in the order in which it would be served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cli.app import App, Format
from cli.arguments import PROJECT, WholeRange
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import table_lines, write_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ListQueueResponse

LOOKS_EVERY_S: Final = 2.0
"""How often -w asks again: as often as reasons are told anew to those who watch sessions."""


@command(
    "queue",
    reads=True,
    examples=["nsml queue", "nsml queue -w", "nsml queue --mine -j", "nsml queue --project vision"],
)
@click.option("-u", "--user", "users", multiple=True, metavar="USER", help="Of these users.")
@click.option("--mine", is_flag=True, help="Your own only.")
@click.option("--project", type=PROJECT, default="", metavar="NAME", help="Of this project.")
@click.option("-n", "--first", type=WholeRange(1), metavar="N", help="The first N only.")
@click.option("-w", "--watch", is_flag=True, help="Stay, and show every change.")
@pass_app
def queue(
    app: App, *, users: tuple[str, ...], mine: bool, project: str, first: int | None, watch: bool
) -> None:
    """List what waits, first who is served first, with the reason and when enough is free at the latest.

    -o wide has the fair share of each one's account: GPUs that it holds and held lately, over its weight;
    within a priority the least is first.

    Of sessions that you may not see, only whose they are, how large and how old. All that is known of
    one of them: nsml status --explain SESSION
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
    """Show the queue once, or again whenever it has changed, until interrupted."""

    async def fetch(client: Client) -> ListQueueResponse:
        from nsml.view.queue import joined

        return joined(await client.sessions.queue(owners=owners, project=project, limit=first))

    if not watch:
        _write(app, app.call(fetch))
        return
    screen = _Screen(app)

    async def follow(client: Client) -> None:
        while True:
            screen.show(await fetch(client))
            await client.clock.sleep(LOOKS_EVERY_S)

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
    from nsml.view import queue as view
    from nsml.view.text import visible

    rows = table_lines(app, page.sessions, view.COLUMNS) if page.sessions else []
    return [visible(view.totals_text(page)), *rows]


class _Screen:
    """The queue as it was shown last: drawn over at a terminal, else written again when it changed."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._draws = app.room is not None and app.is_for_people and app.has_live_progress
        self._drawn: list[str] = []
        self._shown: ListQueueResponse | None = None

    def show(self, page: ListQueueResponse) -> None:
        """Show it, where anything differs; at a terminal also the ages."""
        if self._draws:
            self._draw(page)
        elif page != self._shown:
            self._shown = page
            _write(self._app, page)
        self._app.stdout.flush()

    def _draw(self, page: ListQueueResponse) -> None:
        import shutil

        from nsml.view.text import fit_coloured

        room, height = shutil.get_terminal_size()
        lines = _lines(self._app, page)
        if len(lines) > height - 2:
            lines = [*lines[: height - 3], f"... {len(lines) - height + 3} more"]
        # A line that wrapped would take two, and the next redrawing start too low.
        lines = [fit_coloured(line, room) for line in lines]
        if lines != self._drawn:
            up = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
            self._app.stdout.write(up + "\x1b[J" + "".join(f"{line}\n" for line in lines))
            self._drawn = lines
