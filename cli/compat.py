"""Commands of NAVER's NSML that have another name or form here: credit, info, inspect, automl; and limits of run.

They are not in `nsml --help`, which has our names; `nsml help nsml` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list, write_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.nodes_pb2 import Node
    from nsml.v1.projects_pb2 import Project
    from nsml.v1.sessions_pb2 import Session

_UNPARSED: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


@command("credit", reads=True, examples=["nsml credit", "nsml credit -j"])
@pass_app
def credit(app: App) -> None:
    """Show the credit that is left in the budgets of your projects: 1 credit is a minute of one GPU.

    Budgets are of projects here: nsml project show PROJECT.
    """
    from nsml.view import nsml_style as view

    async def look(client: Client) -> tuple[str, list[Project]]:
        caller = await client.accounts.caller()
        return caller.user.name, await client.projects.every()

    user, projects = app.call(look)
    records = [
        {"user": user, "project": one.name, "credit": view.credit_of(one)}
        for one in projects
        if one.settings.HasField("budget")
    ]
    if not app.is_for_people:
        write_list(app, records, columns=(), record=lambda one: one, name="credit")
        return
    for one in records:
        app.write_text(view.credit_text(one))
    if not records:
        app.say(f"{user} has no project with a budget: GPUs are not limited by credit")


@command("info", reads=True, examples=["nsml info", "nsml info -j"])
@pass_app
def info(app: App) -> None:
    """Count your own sessions by state, and their GPUs."""
    from nsml.v1.sessions_pb2 import SessionFilter
    from nsml.view import nsml_style as view

    async def look(client: Client) -> list[Session]:
        wanted = SessionFilter(owners=["@me"], include_ended=True)
        return [one async for one in client.sessions.every(wanted, short=True)]

    write_list(
        app,
        view.counts(app.call(look)),
        columns=view.COUNTS,
        record=view.count_record,
        name="state",
        none="you have no sessions",
    )


@command("inspect", reads=True, examples=["nsml inspect @last", "nsml inspect kim/mnist/3 -j"])
@session_argument()
@pass_app
def inspect(app: App, *, session: str) -> None:
    """Show the state of a session's program in the words of docker: OOMKilled, ExitCode, StartedAt.

    Pid is the one inside the session, 0 if it does not run. nsml status --explain SESSION says more.
    """
    from nsml.client.errors import ClientError
    from nsml.v1 import sessions_pb2 as pb
    from nsml.view import nsml_style as view

    async def look(client: Client) -> tuple[Session, int]:
        found = await client.sessions.get(session)
        if found.state not in {pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_PAUSED}:
            return found, 0
        try:
            processes = (await client.sessions.processes(found.id)).processes
        except ClientError as error:
            app.say(f"note: Pid is unknown: {error.message}")
            return found, 0
        return found, min((one.pid for one in processes), default=0)

    rows = view.inspected(*app.call(look))
    cells = max(map(len, rows))
    lines = [f"{name:<{cells}}  {view.docker_text(value)}".rstrip() for name, value in rows.items()]
    write_one(app, rows, lines, name="Status")


@command(
    "automl",
    context_settings={**_UNPARSED, "help_option_names": ["-h", "--help"]},
    examples=["nsml automl", "nsml run --sweep lr=0.1,0.01 --sweep bs=32,64"],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def automl(words: tuple[str, ...]) -> None:
    """Explain what to use for now: the search for hyperparameters comes later."""
    del words
    raise CommandError(
        "the search for hyperparameters is not there yet",
        code=ExitCode.USAGE,
        why="until then try all combinations of values, and rank the sessions by what they report",
        advice="nsml run --sweep lr=0.1,0.01 --sweep bs=32,64\n"
        "nsml ps -a --sort -val/accuracy --fields name,arg.lr,summary.val/accuracy",
    )


def show_limits(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Print how much a session may ask for, and end: the callback of `run --show-limits`."""
    if not value or context.resilient_parsing:
        return
    from cli.group import the_app
    from nsml.content.listing import CODE_LIMIT_BYTES
    from nsml.view import nsml_style as view

    app = the_app(context)

    async def look(client: Client) -> tuple[Sequence[Node], Sequence[Project]]:
        return await client.nodes.every(), await client.projects.every()

    nodes, projects = app.call(look)
    limits: dict[str, Any] = view.limits_of(nodes, projects, CODE_LIMIT_BYTES)
    write_one(app, limits, view.limit_lines(limits), name="gpus")
    context.exit()
