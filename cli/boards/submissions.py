"""submission: lists and shows submissions."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import BOARD, SUBMISSION, WholeRange
from cli.exits import ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list, write_one
from cli.watched_table import WatchedTable, check_line_format
from nsml.common.text import visible

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.boards_pb2 import Submission

_LOOKS_EVERY_S = 2.0
_USUAL = 50


@click.group("submission", cls=Group)
def submission() -> None:
    """Submissions: list them, follow one, see why it failed."""


@command(
    "ls",
    reads=True,
    examples=[
        "nsml submission ls",
        "nsml submission ls -w",
        "nsml submission ls --board digits -n 200",
    ],
)
@click.option(
    "--board",
    type=BOARD,
    metavar="NAME",
    default="",
    help="All submissions to this dataset of yours, also those of others.",
)
@click.option(
    "-n",
    "--last",
    type=WholeRange(1),
    metavar="N",
    default=_USUAL,
    help=f"Only the last N; default: {_USUAL}.",
)
@click.option("-w", "--watch", is_flag=True, help="Keep running and show every change.")
@pass_app
def ls(app: App, *, board: str, last: int, watch: bool) -> None:
    """List your submissions, newest first."""
    from nsml.v1.boards_pb2 import Submission
    from nsml.view import boards as view

    async def fetch(client: Client) -> list[Submission]:
        return [one async for one in client.submissions.every(board, limit=last)]

    if watch:
        _watch(app, fetch=fetch)
        return
    found = app.call(fetch)
    write_list(
        app,
        found,
        columns=view.submission_columns(found),
        record=view.submission_record,
        name="id",
        none="no submissions yet: nsml submit SESSION",
        blank=Submission(),
    )


def _watch(app: App, *, fetch: Fetch) -> None:
    """Show the list and its changes until interrupted."""
    from nsml.client.streams import look_again
    from nsml.common.concurrency import beside_each_other
    from nsml.view import boards as view

    check_line_format(app, "nsml submission ls -w -o jsonl")
    watched = WatchedTable(
        app,
        key=lambda one: one.id,
        record=view.submission_record,
        none="no submissions yet: nsml submit SESSION",
    )

    async def watch(client: Client) -> None:
        looking = look_again(
            client, partial(fetch, client), every_s=_LOOKS_EVERY_S, on_link=watched.link
        )
        async with beside_each_other() as group, aclosing(looking):
            group.create_task(watched.keep_true(client.clock))
            async for found in looking:
                watched.take(found, view.submission_columns(found))

    app.call(watch)


@command(
    "info",
    reads=True,
    examples=[
        "nsml submission info u2gqyd6ltw5mjka7v",
        "nsml submission info -w u2gqyd6ltw5mjka7v",
    ],
)
@click.argument("submission_id", metavar="ID", type=SUBMISSION)
@click.option(
    "-w", "--watch", is_flag=True, help="Follow it to its end, and end with its score, as submit."
)
@pass_app
def info(app: App, *, submission_id: str, watch: bool) -> int:
    """Show one submission: its steps, score, or failure.

    Steps that wait say for what; a failure names its cause, and what to do. The beginning of ID is enough, if no other one
    begins so.
    """
    from cli.boards.following import follow
    from nsml.view import boards as view

    found = app.call(lambda client: client.submissions.get(submission_id))
    if watch:
        return follow(app, found, shows_output=found.is_test)
    lines = [visible(line) for line in view.submission_lines(found, app.clock.time())]
    write_one(app, view.submission_record(found), lines, name="id")
    return ExitCode.OK


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Fetch = Callable[[Client], Awaitable[list[Submission]]]

for _command in (ls, info):
    submission.add_command(_command)
