"""top: the processes of a running session."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.arguments import WholeRange, session_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.live_table import Redrawn
from cli.output import table_lines, write_list
from cli.results.telemetry import check_drawing
from nsml.common.text import visible
from nsml.common.units import counted
from nsml.view import processes as view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ReplicaProcesses

LOOKS_EVERY_S: Final = 2.0


@command(
    "top",
    reads=True,
    examples=["nsml top @last", "nsml top @last -w", "nsml top kim/mnist/3 --rank 1 -j"],
)
@session_argument()
@click.option("--rank", type=WholeRange(0), default=0, metavar="R", help="Of this replica.")
@click.option("-w", "--watch", is_flag=True, help="Redraw until the session ends.")
@pass_app
def top(app: App, *, session: str, rank: int, watch: bool) -> None:
    """Show the processes of a running session, most active first.

    CPU is the share of a core that a process used during the last half second. Memory is resident;
    what processes share counts for each. GPU memory is shown of processes that compute on one, with
    the number of the GPU on its node. PIDs are those inside the session; -o wide adds those of the
    node. The 500 most active are shown, 4 KiB of each command. Users that are connected to the
    replica (nsml sh, ssh, cp, exec, forward) are listed below. Own sessions; administrators all.
    """
    if watch:
        _watch(app, session, rank)
        return

    async def fetch(client: Client) -> ReplicaProcesses:
        return _seen(await client.sessions.processes(session, rank=rank))

    found = app.call(fetch)
    write_list(
        app,
        found.processes,
        columns=view.COLUMNS,
        record=view.record,
        name="pid",
        none="no processes",
        beside={
            "left_out": found.left_out,
            "visitors": [view.visitor_record(one) for one in found.visitors],
        },
    )
    for line in _below(found):
        app.say(line)


def _watch(app: App, reference: str, rank: int) -> None:
    """Redraw the processes until the session has ended."""
    check_drawing(app, "nsml top SESSION -j")
    screen = Redrawn(app)

    async def follow(client: Client) -> None:
        from nsml.client.errors import AlreadyEnded, NoSuchService, NotFound
        from nsml.client.streams import look_again
        from nsml.v1 import sessions_pb2 as pb

        chosen = await client.sessions.get(reference)  # `@last` may be another one at the next read

        drawn = False

        async def look() -> ReplicaProcesses:
            try:
                return await client.sessions.processes(chosen.id, rank=rank)
            except NoSuchService as error:
                if not drawn:
                    raise
                # It may have just ended on its node: the next read shows it.
                return pb.ReplicaProcesses(unseen=error.why)

        looking = look_again(client, look, every_s=LOOKS_EVERY_S, on_link=screen.link)
        try:
            async with aclosing(looking):
                async for found in looking:
                    screen.show(_lines(app, found))
                    drawn = True
        except (AlreadyEnded, NotFound):
            if not drawn:
                raise
            app.say(visible(f"session {chosen.name} has ended"))

    app.call(follow)


def _lines(app: App, found: ReplicaProcesses) -> list[str]:
    if found.unseen:
        return [visible(f"its processes cannot be seen: {found.unseen}")]
    return [*table_lines(app, found.processes, view.COLUMNS), *map(visible, _below(found))]


def _below(found: ReplicaProcesses) -> Iterator[str]:
    """Return the lines below the processes: how many more there are, and the connected users."""
    if found.left_out:
        yield f"and {counted(found.left_out, 'more process', 'more processes')}"
    yield from view.visitor_lines(found.visitors)


def _seen(found: ReplicaProcesses) -> ReplicaProcesses:
    if found.unseen:
        raise CommandError(
            "the processes of this session cannot be seen",
            code=ExitCode.CONFLICT,
            why=visible(found.unseen),
        )
    return found
