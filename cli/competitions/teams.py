"""competition teams: lists teams, disqualifies and readmits one."""

from __future__ import annotations

import click

from cli.app import App
from cli.competitions.options import name_argument, write_team
from cli.confirmation import confirm_names, confirmed
from cli.group import command, pass_app
from cli.output import write_list
from nsml.common.text import visible


@command(
    "teams",
    reads=True,
    examples=[
        "nsml competition teams digits-cup",
        "nsml competition teams digits-cup --disqualify lions --reason 'two accounts of one person'",
        "nsml competition teams digits-cup --readmit lions",
    ],
)
@name_argument()
@click.option(
    "--disqualify",
    metavar="TEAM",
    help="As its organiser: give it no rank, and take no submissions of it. Asks first.",
)
@click.option("--reason", metavar="TEXT", help="Why, for everybody: with --disqualify.")
@click.option("--readmit", metavar="TEAM", help="Take a disqualification back.")
@confirmed
@pass_app
def teams(
    app: App, *, name: str, disqualify: str | None, reason: str | None, readmit: str | None
) -> None:
    """List teams, or disqualify one.

    All for the organiser, your own for participants; nsml competition standings has the teams with their ranks.
    """
    if disqualify is not None and readmit is not None:
        raise click.UsageError("--disqualify and --readmit exclude one another")
    if (disqualify is None) != (not reason):
        raise click.UsageError("--disqualify TEAM --reason TEXT: participants see the reason")
    if disqualify is not None:
        _disqualify(app, name, disqualify, reason or "")
    elif readmit is not None:
        team = readmit
        write_team(app, app.call(lambda client: client.competitions.disqualify(name, team, "")))
        app.say(visible(f"team {team} takes part again"))
    else:
        _list(app, name)


def _disqualify(app: App, name: str, team: str, reason: str) -> None:
    from nsml.view.competitions import full_name

    full = full_name(app.call(lambda client: client.competitions.get(name)).competition)
    if confirm_names(app, "competition teams", [team], noun="team", last=f"of {full}: {reason}"):
        write_team(app, app.call(lambda client: client.competitions.disqualify(full, team, reason)))
        app.say(visible(f"team {team} is disqualified"))


def _list(app: App, name: str) -> None:
    from nsml.v1.competitions_pb2 import Team
    from nsml.view import competitions as view

    answer = app.call(lambda client: client.competitions.get(name))
    own = [answer.team] if answer.HasField("team") else []
    found = [*answer.teams]
    # Invitations and requests are in the caller's own team alone.
    found = [answer.team if own and one.name == answer.team.name else one for one in found] or own
    write_list(
        app,
        found,
        columns=view.TEAM_COLUMNS,
        record=view.team_record,
        none="no teams yet" if answer.may_change else "you have no team: nsml competition join",
        blank=Team(),
    )
