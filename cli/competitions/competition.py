"""competition: phases of datasets' boards, with participants in teams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.competitions.options import (
    SETTINGS,
    name_argument,
    phase_option,
    write_competition,
)
from cli.competitions.signed_files import export, verify
from cli.competitions.standings import standings
from cli.competitions.taking_part import invite, join, leave, merge, pick
from cli.competitions.teams import teams
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import table_lines, write_list, write_one
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted

if TYPE_CHECKING:
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.v1.competitions_pb2 import Competition, GetCompetitionResponse, Standing

_LOOKED_AT: Final = 100
"""Newest submissions to a dataset that are searched for a scored one."""


@click.group("competition", cls=Group)
def competition() -> None:
    """Competitions: phases of datasets' boards, with teams.

    To organise one: nsml competition template > FILE.toml. To take part: nsml competition ls, join.
    """


def _next(app: App, *words: str, what: str) -> None:
    app.say(f"{shell_line(['nsml', 'competition', *words])}    {what}")


@command(
    "create",
    reads=True,
    examples=[
        "nsml competition create digits-cup digits.toml",
        "nsml competition create digits-cup digits.toml -j",
    ],
)
@click.argument("name")
@click.argument("file", type=SETTINGS, metavar="FILE.toml")
@pass_app
def create(app: App, *, name: str, file: Path) -> None:
    """Create a competition from a file.

    Participants see it once it is open. Its phases use datasets of yours with a hidden test set and an evaluation.
    """
    from cli.competitions.settings_file import read

    settings = read(file)
    made = app.call(lambda client: client.competitions.create(name, settings))
    write_competition(app, made)
    _next(app, "open", made.name, what="lets participants join")


@command(
    "update",
    reads=True,
    examples=[
        "nsml competition update digits-cup digits.toml",
        "nsml competition update lee/digits-cup digits.toml -j",
    ],
)
@name_argument()
@click.argument("file", type=SETTINGS, metavar="FILE.toml")
@pass_app
def update(app: App, *, name: str, file: Path) -> None:
    """Replace the settings of your competition.

    The file has all of them. While it is open, a change of phases is announced to participants. A phase that is over stays as it is.
    """
    from cli.competitions.settings_file import read

    settings = read(file)
    write_competition(app, app.call(lambda client: client.competitions.update(name, settings)))


@command(
    "template",
    examples=[
        "nsml competition template > digits.toml",
        "nsml competition template | less",
    ],
)
@pass_app
def template(app: App) -> None:
    """Print a file of settings to begin with.

    All keys with comments. Its first phase begins tomorrow. Put in your dataset, then: nsml competition create NAME FILE.toml.
    """
    from cli.competitions.settings_file import template as text
    from cli.competitions.settings_file import zone_here
    from nsml.common.time_zone import local

    today = local(app.clock.time()).date()
    app.stdout.write(text(today, zone_here(app.environ)))
    app.stdout.flush()


@command(
    "open",
    reads=True,
    examples=["nsml competition open digits-cup", "nsml competition open digits-cup -j"],
)
@name_argument()
@pass_app
def open_(app: App, *, name: str) -> None:
    """Let participants join, and submit.

    They submit in the times of its phases.
    """

    async def opened(client: Client) -> tuple[Competition, list[str]]:
        found = await client.competitions.open(name)
        return found, await _unscored(client, found)

    found, unscored = app.call(opened)
    write_competition(app, found)
    for one in unscored:
        app.say(visible(f"note: no submission to {one} was scored yet: its evaluation is untested"))
        app.say(
            visible(f"  try: {shell_line(['nsml', 'run', '-d', one])} ... && nsml submit @last")
        )
    _next(app, "announce", found.name, "TEXT", what="informs all participants")
    if found.settings.by_invitation:
        _next(app, "invite", found.name, "USER", "--into-competition", what="lets a user join")


async def _unscored(client: Client, found: Competition) -> list[str]:
    """Return the datasets of phases to which no submission was scored; a dry run reads neither its labels nor its rows."""
    from nsml.v1.boards_pb2 import SUBMISSION_STATE_SCORED

    async def is_scored(dataset: str) -> bool:
        return any(
            [
                one.dataset == dataset and one.state == SUBMISSION_STATE_SCORED and not one.is_test
                async for one in client.submissions.every(dataset, limit=_LOOKED_AT)
            ]
        )

    datasets = dict.fromkeys(one.dataset for one in found.settings.phases)
    return [one for one in datasets if not await is_scored(one)]


@command(
    "close",
    examples=[
        "nsml competition close digits-cup --phase qualifying",
        "nsml competition close digits-cup -y",
    ],
)
@name_argument()
@phase_option("End this phase, which runs; default: the whole competition.")
@confirmed
@pass_app
def close(app: App, *, name: str, phase: str) -> None:
    """End your competition, or a phase. Asks first.

    No more submissions. Once those before are evaluated, standings are final, by private scores.
    Phases that have not begun do not take place. It cannot be opened again.
    """
    from nsml.view.competitions import full_name, has_begun

    found = app.call(lambda client: client.competitions.get(name)).competition
    full = full_name(found)
    what = f"phase {phase} of {full}" if phase else full
    if confirm_names(
        app,
        "competition close",
        [what],
        noun="" if phase else "competition",
        last=_loss(found, phase, app.clock.time()),
    ):
        closed = app.call(lambda client: client.competitions.close(full, phase))
        app.say(visible(f"closed {what}"))
        if has_begun(closed, app.clock.time()):
            _next(app, "standings", full, what="final once all submissions are evaluated")


def _loss(found: Competition, phase: str, now: float) -> str:
    """Return what closing a competition or a phase of it means."""
    from nsml.view.competitions import begun_phases

    begun = {one.name for one in begun_phases(found, now)}
    ahead = [one.name for one in found.settings.phases if one.name not in begun and not phase]
    not_held = f"; not held: {', '.join(ahead)}" if ahead else ""
    teams = counted(found.team_count, "team")
    return f"({teams}): it takes no more submissions, for good{not_held}"


@command(
    "rm", examples=["nsml competition rm digits-cup", "nsml competition rm digits-cup --dry-run"]
)
@name_argument()
@confirmed
@pass_app
def rm(app: App, *, name: str) -> None:
    """Remove a competition. Asks first.

    One that is not open. Its teams, standings and announcements go; submissions and sessions stay. nsml competition export keeps all.
    """
    from nsml.view.competitions import full_name

    found = app.call(lambda client: client.competitions.get(name)).competition
    full = full_name(found)
    loses = [counted(found.team_count, "team"), "standings and announcements"]
    if confirm_names(app, "competition rm", [full], noun="competition", loses=loses):
        app.call(lambda client: client.competitions.remove(full))
        app.say(visible(f"removed competition {full}"))


@command("ls", reads=True, examples=["nsml competition ls", "nsml competition ls -o wide"])
@pass_app
def ls(app: App) -> None:
    """List the competitions that you may see."""
    from nsml.v1.competitions_pb2 import Competition
    from nsml.view import competitions as view

    write_list(
        app,
        app.call(lambda client: client.competitions.every()),
        columns=view.COMPETITION_COLUMNS,
        record=view.competition_record,
        none="no competitions yet: nsml competition template > FILE.toml",
        blank=Competition(),
    )


@command(
    "show",
    reads=True,
    examples=[
        "nsml competition show digits-cup",
        "nsml competition show lee/digits-cup -j",
        "nsml competition show digits-cup --statistics",
    ],
)
@name_argument()
@click.option(
    "--statistics",
    "has_statistics",
    is_flag=True,
    help="Users, models and submissions of each phase; for its organiser.",
)
@pass_app
def show(app: App, *, name: str, has_statistics: bool) -> None:
    """Show a competition, and what to type next.

    Phases, rules, announcements, your team, limit and rank.
    """
    from nsml.view import competitions as view

    async def fetch(client: Client) -> tuple[GetCompetitionResponse, Standing | None]:
        answer = await client.competitions.get(name)
        return answer, await _own_standing(client, answer, app.clock.time())

    answer, own = app.call(fetch)
    if has_statistics:
        _write_statistics(app, answer)
        return
    now = app.clock.time()
    lines = [visible(line) for line in view.competition_lines(answer, now, own)]
    if answer.statistics and view.has_begun(answer.competition, now) and app.is_for_people:
        lines += ["", *_statistics_lines(app, answer)]
    write_one(app, view.show_record(answer, now, own), lines)


async def _own_standing(
    client: Client, answer: GetCompetitionResponse, now: float
) -> Standing | None:
    """Return the caller's row of the standings; None: no team, or no standings yet."""
    from nsml.client.competitions import own_standing
    from nsml.view import competitions as view

    found = answer.competition
    if not answer.HasField("team") or not view.has_begun(found, now):
        return None
    own = await own_standing(client, view.full_name(found))
    return own[1] if own is not None else None


def _write_statistics(app: App, answer: GetCompetitionResponse) -> None:
    from nsml.v1.competitions_pb2 import PhaseStatistics
    from nsml.view import competitions as view

    if not answer.may_change:
        raise CommandError(
            f"the statistics of {view.full_name(answer.competition)} are its organiser's",
            code=ExitCode.DENIED,
            advice=shell_line(
                ["nsml", "competition", "standings", view.full_name(answer.competition)]
            ),
        )
    if app.is_for_people and not app.flags.fields and answer.statistics:
        for line in _statistics_lines(app, answer):
            app.write(line)
        return
    write_list(
        app,
        answer.statistics,
        columns=view.STATISTICS_COLUMNS,
        record=view.statistics_record,
        name="phase",
        none="no phase has begun yet",
        blank=PhaseStatistics(),
    )


def _statistics_lines(app: App, answer: GetCompetitionResponse) -> list[str]:
    """Return the two tables: models, and submissions."""
    from nsml.view import competitions as view

    fields, app.flags.fields = app.flags.fields, ()
    try:
        return [
            "Models",
            *table_lines(app, answer.statistics, view.MODEL_COLUMNS),
            "",
            "Submissions",
            *table_lines(app, answer.statistics, view.SUBMISSION_COLUMNS),
        ]
    finally:
        app.flags.fields = fields


@command(
    "page",
    reads=True,
    examples=["nsml competition page digits-cup", "nsml competition page lee/digits-cup -j"],
)
@name_argument()
@pass_app
def page(app: App, *, name: str) -> None:
    """Print an address of its page in a browser.

    The address works for one visit within a minute and signs you in: the browser then gets a cookie for that page, for an hour.
    Public competitions need none: nsml competition show NAME prints their address.
    """
    url = app.call(lambda client: client.competitions.open_page(name))
    write_one(app, {"url": url}, [url], name="url")
    app.say("  open it within a minute")


@command(
    "phases",
    reads=True,
    examples=["nsml competition phases digits-cup", "nsml competition phases digits-cup -j"],
)
@name_argument()
@pass_app
def phases(app: App, *, name: str) -> None:
    """List the phases of a competition.

    Times, datasets, limits, and how many teams go on.
    """
    from nsml.v1.competitions_pb2 import Phase
    from nsml.view import competitions as view

    found = app.call(lambda client: client.competitions.get(name)).competition
    write_list(
        app,
        found.settings.phases,
        columns=view.phase_columns(found),
        record=lambda phase: view.phase_record(found, phase),
        none="it has no phases yet",
        blank=Phase(),
    )


@command(
    "baseline",
    examples=[
        "nsml competition baseline digits-cup u2gqyd6ltw5mjka7v --label 'Linear model'",
        "nsml competition baseline digits-cup u2gqyd6ltw5mjka7v --remove",
    ],
)
@name_argument()
@click.argument("submission", metavar="SUBMISSION")
@click.option("--label", metavar="TEXT", help="What it is called in the standings.")
@click.option("--remove", is_flag=True, help="Show it as a baseline no more.")
@pass_app
def baseline(app: App, *, name: str, submission: str, label: str | None, remove: bool) -> None:
    """Show a submission of yours as a baseline.

    It is in the standings, without a rank. For the organiser.
    """
    if remove == bool(label):
        raise click.UsageError("either --label TEXT, or --remove")
    app.call(lambda client: client.competitions.set_baseline(name, submission, label or ""))
    app.say(visible(f"{submission} is {'no baseline any more' if remove else 'a baseline'}"))


@command(
    "announce",
    examples=[
        "nsml competition announce digits-cup 'The final starts at 9:00 on Monday'",
        "nsml competition announce digits-cup - < news.md",
    ],
)
@name_argument()
@click.argument("text", metavar="TEXT")
@pass_app
def announce(app: App, *, name: str, text: str) -> None:
    """Say something to all participants.

    They see it in nsml competition show. TEXT - reads stdin.
    """
    message = app.stdin.read() if text == "-" else text
    if not message.strip():
        raise CommandError("there is no text to announce", code=ExitCode.USAGE)
    app.call(lambda client: client.competitions.announce(name, message.strip()))
    app.say("announced")


@command(
    "rerun",
    examples=[
        "nsml competition rerun digits-cup",
        "nsml competition rerun digits-cup --phase final --teams 5",
    ],
)
@name_argument()
@phase_option("Winners of this phase; default: the last one with final standings.")
@click.option(
    "--teams",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=3,
    help="The first N teams; default: 3.",
)
@pass_app
def rerun(app: App, *, name: str, phase: str, teams: int) -> None:
    """Run what the winners picked again.

    Predicts and evaluates the picks of the first teams again, without a network, and compares the scores. The results are in the column Re-run of nsml competition standings: same, differs, failed or running.
    """
    from nsml.view import competitions as view

    async def start(client: Client) -> tuple[int, str, str]:
        found = (await client.competitions.get(name)).competition
        full = view.full_name(found)
        chosen = phase or view.last_final(found)
        return await client.competitions.rerun(full, chosen, teams), full, chosen

    started, full, chosen = app.call(start)
    if started:
        app.say(visible(f"started {counted(started, 're-run')} of {chosen}"))
    else:
        app.say(visible(f"nothing to run again in {chosen}: no scores, or all were run again"))
    _next(app, "standings", full, "--phase", chosen, what="shows the results")


for _command in (
    *(ls, show, page, phases, standings, join, leave, teams, invite, merge, pick),
    *(template, create, update, open_, announce, baseline, close, rerun, export, verify, rm),
):
    competition.add_command(_command)
