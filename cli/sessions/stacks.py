"""stacks: what the Python threads of a running session do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

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
    from nsml.v1.sessions_pb2 import Session

_AT_ONCE: Final = 16
"""Replicas that are asked at the same time."""


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
        chosen = await client.sessions.get(session)
        turns = asyncio.Semaphore(_AT_ONCE)
        return await asyncio.gather(
            *(
                _seen(client, chosen, rank, turns, with_locals=with_locals)
                for rank in _ranks(chosen, ranks)
            )
        )

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


def _ranks(session: Session, wanted: Sequence[int]) -> Sequence[int]:
    """Which replicas are asked; the platform refuses one that is not there."""
    return sorted(set(wanted)) or [one.rank for one in session.replicas] or [0]


async def _seen(
    client: Client, session: Session, rank: int, turns: asyncio.Semaphore, *, with_locals: bool
) -> view.SeenReplica:
    """What one replica does. Of several, one whose node is away must not hide the others."""
    from nsml.client.errors import NoSuchService, Unavailable
    from nsml.v1.sessions_pb2 import ReplicaStacks

    async with turns:
        try:
            found = await client.sessions.stacks(session.id, rank=rank, with_locals=with_locals)
        except (NoSuchService, Unavailable) as error:
            if len(session.replicas) == 1:
                raise
            found = ReplicaStacks(unseen=f"{error.message}: {error.why}".removesuffix(": "))
    return view.SeenReplica(rank=rank, found=found, unseen=found.unseen)
