"""competition join, leave, invite, merge, pick: what participants do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import SUBMISSION
from cli.competitions.options import name_argument, phase_option, write_team
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.competitions_pb2 import GetCompetitionResponse


@command(
    "join",
    reads=True,
    examples=["nsml competition join digits-cup", "nsml competition join digits-cup --team lions"],
)
@name_argument()
@click.option(
    "--team",
    metavar="TEAM",
    default="",
    help="A new team's name (a-z 0-9 _ - .), or that of one that invited you; default: a new team of your name.",
)
@pass_app
def join(app: App, *, name: str, team: str) -> None:
    """Take part, with a new team or one that invited you."""
    joined = app.call(lambda client: client.competitions.join(name, team))
    write_team(app, joined)
    app.say(f"{shell_line(['nsml', 'competition', 'show', name])}    what to do next")


@command(
    "leave",
    examples=["nsml competition leave digits-cup", "nsml competition leave digits-cup -y"],
)
@name_argument()
@confirmed
@pass_app
def leave(app: App, *, name: str) -> None:
    """Leave your team. Asks first.

    Your submissions stay yours, and count for a team that you found later.
    """
    answer = app.call(lambda client: client.competitions.get(name))
    full, team = _own_team(answer)
    members = len(answer.team.members)
    last = f"of {full}"
    last += "" if members > 1 else ": nobody else is in it"
    if confirm_names(app, "competition leave", [team], noun="team", last=last):
        app.call(lambda client: client.competitions.leave(full))
        app.say(visible(f"you left team {team} of {full}"))


@command(
    "invite",
    examples=[
        "nsml competition invite digits-cup lee park",
        "nsml competition invite digits-cup lee --into-competition",
    ],
)
@name_argument()
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@click.option(
    "--into-competition",
    is_flag=True,
    help="As its organiser: let them join, where it is by invitation.",
)
@pass_app
def invite(app: App, *, name: str, users: tuple[str, ...], into_competition: bool) -> None:
    """Invite users into your team, or into your competition.

    They join a team with nsml competition join NAME --team TEAM, and a competition by invitation with nsml competition join NAME.
    """
    from nsml.view.competitions import full_name

    async def invited(client: Client) -> GetCompetitionResponse:
        await client.competitions.invite(name, users, into_competition=into_competition)
        return await client.competitions.get(name)

    answer = app.call(invited)
    team = [] if into_competition else ["--team", answer.team.name]
    joining = shell_line(["nsml", "competition", "join", full_name(answer.competition), *team])
    app.say(visible(f"invited {', '.join(users)}"))
    app.say(visible(f"  they join with: {joining}"))


@command(
    "merge",
    reads=True,
    examples=[
        "nsml competition merge digits-cup tigers",
        "nsml competition merge digits-cup tigers --name cats",
    ],
)
@name_argument()
@click.argument("team", metavar="TEAM")
@click.option(
    "--name",
    "new_name",
    metavar="NAME",
    default="",
    help="Name of the merged team; default: that of the one that was asked.",
)
@confirmed
@pass_app
def merge(app: App, *, name: str, team: str, new_name: str) -> None:
    """Merge with another team. Asks first.

    Asks the other team, or agrees to its request. The merged team has the members and submissions of both, for good. They may not be more than one team
    may have.
    """
    answer = app.call(lambda client: client.competitions.get(name))
    full, own = _own_team(answer)
    agrees = team in answer.team.merge_requests
    last = f"with your team {own}: for good"
    last += "" if agrees else " once it agrees"
    if not confirm_names(app, "competition merge", [team], noun="team", last=last):
        return
    done = app.call(lambda client: client.competitions.merge(full, team, new_name))
    write_team(app, done.team)
    if done.is_merged:
        app.say(visible(f"merged into team {done.team.name}"))
    else:
        act = shell_line(["nsml", "competition", "merge", full, own])
        app.say(visible(f"asked team {team}; one of its members agrees with: {act}"))


@command(
    "pick",
    reads=True,
    examples=[
        "nsml competition pick digits-cup u2gqyd6ltw5mjka7v uxr4c7whfn3tzob5k",
        "nsml competition pick digits-cup --none --phase final",
    ],
)
@name_argument()
@click.argument("submissions", nargs=-1, type=SUBMISSION, metavar="SUBMISSION...")
@phase_option("Of this phase; default: the one that runs.")
@click.option(
    "--none", "is_none", is_flag=True, help="Choose none: the best by public score count."
)
@pass_app
def pick(app: App, *, name: str, submissions: tuple[str, ...], phase: str, is_none: bool) -> None:
    """Choose which submissions count in the end.

    Those of your team, instead of earlier choices. As many as the phase takes: nsml competition phases NAME. Without a choice the best by public score count.
    """
    if is_none == bool(submissions):
        raise CommandError(
            "--none chooses no submission" if is_none else "which submissions?",
            code=ExitCode.USAGE,
            advice="nsml submission ls    has their ids",
        )
    _picked(app, name, submissions, phase)
    picked = (
        f"{counted(len(submissions), 'submission')} picked"
        if submissions
        else "none picked: the best by public score count"
    )
    app.say(visible(picked))


def _picked(app: App, name: str, submissions: Sequence[str], phase: str) -> None:
    team = app.call(lambda client: client.competitions.pick(name, submissions, phase))
    write_team(app, team)


def _own_team(answer: GetCompetitionResponse) -> tuple[str, str]:
    """Return the full name of a competition and the caller's team; CommandError: they have none."""
    from nsml.view.competitions import full_name

    full = full_name(answer.competition)
    if not answer.HasField("team"):
        raise CommandError(
            f"you are in no team of {full}",
            code=ExitCode.CONFLICT,
            advice=shell_line(["nsml", "competition", "join", full]),
        )
    return full, answer.team.name
