"""storage: usage of the object store by a user or a project."""

from __future__ import annotations

import click

from cli.app import App
from cli.arguments import PROJECT
from cli.group import command, pass_app
from cli.output import write_list, write_one


@command(
    "storage",
    reads=True,
    examples=[
        "nsml storage",
        "nsml storage -j",
        "nsml storage --project vision",
        "nsml storage --projects",
        "nsml storage kim",
        "nsml storage --all",
    ],
)
@click.argument("user", required=False, default="")
@click.option("-a", "--all", "is_all", is_flag=True, help="All users; administrators.")
@click.option("--project", type=PROJECT, metavar="NAME", help="One project instead of a user.")
@click.option("--projects", "is_projects", is_flag=True, help="Your projects; administrators: all.")
@pass_app
def storage(app: App, *, user: str, is_all: bool, project: str | None, is_projects: bool) -> None:
    """Show what is stored for you, largest first, with the commands that free it.

    Each byte counts once for a user and once for a project, however many things share it.
    Administrators may name a USER.
    """
    from nsml.v1 import accounts_pb2, projects_pb2
    from nsml.view import user_storage as view

    if sum(map(bool, (user, is_all, project, is_projects))) > 1:
        raise click.UsageError("USER, --all, --project and --projects exclude one another")
    if is_all:
        write_list(
            app,
            app.call(lambda client: client.accounts.every_usage()),
            columns=view.COLUMNS,
            record=view.record,
            none="nothing is stored for any user",
            blank=accounts_pb2.Usage(),
        )
    elif is_projects:
        write_list(
            app,
            app.call(lambda client: client.projects.every_storage()),
            columns=view.PROJECT_COLUMNS,
            record=view.project_record,
            none="no projects but your own, of which nothing is counted apart from you",
            blank=projects_pb2.ProjectStorage(),
        )
    elif project:
        stored = app.call(lambda client: client.projects.storage(project))
        write_one(
            app,
            view.project_record(stored),
            view.project_lines(stored, app.clock.time()),
            name="project",
        )
    else:
        found = app.call(lambda client: client.accounts.usage(user))
        write_one(app, view.record(found), view.lines(found, app.clock.time()), name="user")
