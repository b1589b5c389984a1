"""usage: what the object store keeps for a user."""

from __future__ import annotations

import click

from cli.app import App
from cli.group import command, pass_app
from cli.output import write_list, write_one


@command(
    "usage",
    reads=True,
    examples=["nsml usage", "nsml usage -j", "nsml usage kim", "nsml usage --all"],
)
@click.argument("user", required=False, default="")
@click.option("-a", "--all", "is_all", is_flag=True, help="All users; administrators.")
@pass_app
def usage(app: App, *, user: str, is_all: bool) -> None:
    """Show your storage use, largest first, with the commands that free it.

    Each byte counts once, however many things share it. Administrators may name a USER.
    """
    from nsml.v1 import accounts_pb2
    from nsml.view import user_storage as view

    if is_all and user:
        raise click.UsageError("USER and --all exclude one another")
    if is_all:
        write_list(
            app,
            app.call(lambda client: client.accounts.every_usage()),
            columns=view.COLUMNS,
            record=view.record,
            none="nothing is stored for any user",
            blank=accounts_pb2.Usage(),
        )
        return
    found = app.call(lambda client: client.accounts.usage(user))
    write_one(app, view.record(found), view.lines(found, app.clock.time()), name="user")
