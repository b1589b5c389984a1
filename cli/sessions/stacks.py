"""stacks: what the Python threads of a running session do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import WholeRange, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from nsml.common.text import visible
from nsml.view import stacks as view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client


@command(
    "stacks",
    reads=True,
    examples=[
        "nsml stacks @last",
        "nsml stacks kim/mnist/3 --locals",
        "nsml stacks 12 --rank 0 --rank 3 -j",
    ],
)
@session_argument()
@click.option(
    "--rank",
    "ranks",
    type=WholeRange(0),
    multiple=True,
    metavar="R",
    help="Only of this replica; can be repeated.",
)
@click.option(
    "--locals", "with_locals", is_flag=True, help="Show the local variables of each call."
)
@pass_app
def stacks(app: App, *, session: str, ranks: tuple[int, ...], with_locals: bool) -> None:
    """Show the Python stacks of a running session.

    For programs that hang: nothing is asked of the program, whose node reads where it is. The
    outermost call is first, as in a traceback.

    The replicas (ranks) are compared: what most of them do is shown whole, then the calls of the
    others from where they differ, each marked ">". At most 32 Python processes of a replica are
    shown; -j has whole paths. Own sessions; administrators all.
    """

    async def fetch(client: Client) -> Sequence[view.SeenReplica]:
        from nsml.client.stacks import read_stacks

        chosen = await client.sessions.get(session)
        return await read_stacks(client, chosen, ranks, with_locals=with_locals)

    found = app.call(fetch)
    if not any(map(view.has_any, found)):
        raise CommandError(
            "no Python stack of this session can be seen",
            code=ExitCode.CONFLICT,
            why=visible(view.why_unseen(found[0])),
        )
    if app.is_for_people:
        for line in view.lines(found):
            app.write(line)
        return
    write_list(app, found, columns=(), record=view.record, name="rank")
