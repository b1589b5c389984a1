"""project: accounting, members, quota and budget."""

from __future__ import annotations

import re
from math import isinf
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.app import App
from cli.arguments import (
    CPU_BOUND,
    GPU_BOUND,
    KEEP,
    KEPT_BOUND,
    NUMBER,
    PRIORITY,
    PROJECT,
    SESSION_BOUND,
    SIZE_BOUND,
)
from cli.confirmation import confirm_names, confirmed, go_ahead, rule_of
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, Group, command, pass_app
from cli.output import write_list, write_one
from nsml.common.time_zone import typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.client.calls import Client
    from nsml.v1.projects_pb2 import ChangeMembersResponse, Project, ProjectSettings

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
_DAY_S = 86_400
_HOUR_S = 3600.0
_QUOTA = {
    "gpus": ("gpu_thousandths", GPU_BOUND, "N", "GPUs at once"),
    "cpus": ("cpu_thousandths", CPU_BOUND, "N", "cores at once"),
    "memory": ("memory_bytes", SIZE_BOUND, "SIZE", "memory at once"),
    "sessions": ("sessions", SESSION_BOUND, "N", "sessions that run at once"),
}
"""Flag to its field, kind and words; each exists for all members together and for one."""


class _Hours(click.ParamType[float]):
    """GPU-hours; `none` is 0."""

    name = "hours"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        if value == "none":
            return 0.0
        if not re.fullmatch(r"\d+(\.\d+)?", str(value), re.ASCII):
            self.fail(
                f"{str(value)[:20]!r} is not a number of hours such as 500 or 0.5", param, ctx
            )
        if isinf(float(value)):
            self.fail(f"{str(value)[:20]} is more hours than there can be", param, ctx)
        if not float(value):
            self.fail(f"{value} hours: a budget of zero; for no budget: none", param, ctx)
        return float(value)


class _Days(click.ParamType[int]):
    """Whole days of a duration."""

    name = "days"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        seconds = DURATION.convert(value, param, ctx)
        if not seconds or seconds % _DAY_S:
            self.fail(f"{value} is not a number of whole days such as 30d", param, ctx)
        return int(seconds // _DAY_S)


class _Date(click.ParamType[float]):
    """A date or a time, in the user's zone by default, as Unix seconds."""

    name = "date"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return typed(str(value)).timestamp()
        except ValueError:
            self.fail(f"{str(value)[:30]!r} is not a day such as 2026-12-01", param, ctx)


_HOURS, _DAYS, _DATE = _Hours(), _Days(), _Date()


def _settings_options(command: F) -> F:
    """Add the options for administrators to `create` and `set`."""
    options = [
        click.option("--owner", metavar="USER", help="Owner, who adds and removes members."),
        *(_bound_option(flag, f"--{flag}", "", "all members together") for flag in _QUOTA),
        *(_bound_option(flag, f"--member-{flag}", "member_", "each member") for flag in _QUOTA),
        click.option(
            "--gpu-hours",
            type=_HOURS,
            metavar="N",
            help="Budget: GPU-hours in each period; none: no budget.",
        ),
        click.option("--period", type=_DAYS, metavar="TIME", help="Whole days; default: 30d."),
        click.option(
            "--from",
            "anchor",
            type=_DATE,
            metavar="DATE",
            help="Start of a period, in local time; default: now.",
        ),
        click.option(
            "--weight",
            type=NUMBER,
            metavar="W",
            help="Share of the GPUs: twice the weight, twice the share; default: 1.",
        ),
        click.option(
            "--max-priority",
            type=PRIORITY,
            help="Highest priority of its sessions; default: high.",
        ),
        click.option(
            "--keep",
            type=KEEP,
            metavar="RULES",
            help="Checkpoints that its sessions keep: 'best:3:val/acc:max last:2', all; none: no rule.",
        ),
        click.option(
            "--kept",
            type=KEPT_BOUND,
            metavar="SIZE",
            help="Quota of stored data: the most that the object store keeps for it; none: no limit.",
        ),
        click.option(
            "--keep-files",
            type=click.Choice(["on", "off", "none"]),
            help="Keep files that its sessions make, unasked (nsml download); none: as the platform does.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _bound_option(flag: str, name: str, prefix: str, scope: str) -> Callable[[F], F]:
    _, kind, metavar, words = _QUOTA[flag]
    return click.option(
        name,
        f"{prefix}{flag}",
        type=kind,
        metavar=metavar,
        help=f"The most {words}, {scope}; none: no limit.",
    )


def _settings(given: dict[str, Any]) -> ProjectSettings:
    from nsml.v1.projects_pb2 import ProjectSettings
    from nsml.view.sessions import priority_named

    settings = ProjectSettings(
        owner=given["owner"],
        weight=given["weight"],
        most_priority=priority_named((given["max_priority"] or "").lower()),
        keep_checkpoints=given["keep"],
        kept_bytes=given["kept"],
        keep_files="" if given["keep_files"] == "none" else given["keep_files"],
    )
    for flag, (measure, *_) in _QUOTA.items():
        for prefix, quota in (("", settings.quota), ("member_", settings.member_quota)):
            if given[f"{prefix}{flag}"] is not None:
                setattr(quota, measure, given[f"{prefix}{flag}"])
    if given["gpu_hours"]:
        settings.budget.gpu_seconds = given["gpu_hours"] * _HOUR_S
    if given["period"] is not None:
        settings.budget.period_days = given["period"]
    if given["anchor"] is not None:
        settings.budget.anchor.FromNanoseconds(round(given["anchor"] * 1e9))
    if given["gpu_hours"] == 0 and settings.HasField("budget"):
        raise click.UsageError("--gpu-hours none goes without --period and --from")
    return settings


@click.group("project", cls=Group)
def project() -> None:
    """Projects: members, quota and budget for sessions of several users.

    `nsml run --project NAME` submits into one. Without it a session counts for your own project,
    which has no limits unless an administrator set some. A quota limits use
    at one time, a budget the GPU-hours in a period.
    """


def _write_project(app: App, found: Project) -> None:
    from nsml.common.text import visible
    from nsml.view import projects as view

    write_one(app, view.record(found), [visible(line) for line in view.lines(found)])


def _settled(app: App, found: Project) -> None:
    """Print the project's settings, and those without effect."""
    from nsml.common.text import visible
    from nsml.view import projects as view

    _write_project(app, found)
    for line in view.beyond_lines(found):
        app.say(visible(line))


def _changed(app: App, answer: ChangeMembersResponse, unchanged: str) -> None:
    """Print the project, and the users without a change: repeating is no error."""
    from nsml.common.text import visible

    _write_project(app, answer.project)
    for user in answer.unchanged:
        app.say(visible(f"{user} {unchanged}"))


@command("ls", reads=True, examples=["nsml project ls", "nsml project ls -o wide"])
@pass_app
def ls(app: App) -> None:
    """List your projects; administrators: all."""
    from nsml.v1.projects_pb2 import Project
    from nsml.view import projects as view

    found = app.call(lambda client: client.projects.every())
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no projects but your own, which has no bounds",
        blank=Project(),
    )


def _name() -> Callable[[F], F]:
    return click.argument("name", type=PROJECT, metavar="PROJECT")


def _users() -> Callable[[F], F]:
    return click.argument("users", metavar="USER...", nargs=-1, required=True)


@command("show", reads=True, examples=["nsml project show vision", "nsml project show vision -j"])
@_name()
@pass_app
def show(app: App, *, name: str) -> None:
    """Show one project: members, quota, budget, share and usage."""
    from nsml.common.text import visible
    from nsml.view import projects as view

    answer = app.call(lambda client: client.projects.get(name))
    lines = [visible(line) for line in view.shown_lines(answer)]
    write_one(app, view.shown_record(answer), lines)


@command(
    "create",
    reads=True,
    examples=[
        "nsml project create vision --owner kim --member lee --gpus 16",
        "nsml project create speech --gpu-hours 500 --period 30d --from 2026-12-01",
        "nsml project create kim --owner kim --gpus 4",
    ],
)
@click.argument("name")
@click.option(
    "--member", "members", metavar="USER", multiple=True, help="A member; may be repeated."
)
@_settings_options
@pass_app
def create(app: App, /, *, name: str, members: tuple[str, ...], **given: Any) -> None:
    """Create a project; administrators.

    A project with a user's name is that user's own: its limits hold for their sessions without
    --project.
    """
    settings = _settings(given)
    _settled(app, app.call(lambda client: client.projects.create(name, settings, members)))


@command(
    "set",
    reads=True,
    examples=[
        "nsml project set vision --gpus 32 --member-gpus 8",
        "nsml project set vision --gpu-hours 500 --period 30d --weight 2",
        "nsml project set vision --gpus none --max-priority normal",
        "nsml project set vision --kept 2T",
    ],
)
@_name()
@_settings_options
@pass_app
def change(app: App, /, *, name: str, **given: Any) -> None:
    """Change the limits of a project; administrators. Options that are not given stay.

    Also of a user's own project, which needs no nsml project create. It takes effect at once. Running sessions continue, even above a new quota.
    """
    if all(value is None for value in given.values()):
        raise CommandError(
            "nothing to set",
            code=ExitCode.USAGE,
            advice=f"nsml project set {name} --gpus 16\nnsml project set -h",
        )
    settings, without = _settings(given), given["gpu_hours"] == 0
    _settled(
        app,
        app.call(lambda client: client.projects.update(name, settings, without_budget=without)),
    )


@command("rm", examples=["nsml project rm vision", "nsml project rm vision -y"])
@_name()
@confirmed
@pass_app
def rm(app: App, *, name: str) -> None:
    """Remove a project; administrators. Asks first.

    Ended sessions stay; none of its sessions may be queued or running.
    """

    async def act(client: Client) -> None:
        await client.projects.remove(name)

    app.call(lambda client: client.projects.get(name))
    lost = ["its members, quota and budget"]
    if confirm_names(app, "project rm", [name], noun="project", loses=lost):
        app.call(act)
        app.say(f"removed project {name}")


@command(
    "add", reads=True, examples=["nsml project add vision lee", "nsml project add vision lee eve"]
)
@_name()
@_users()
@pass_app
def add(app: App, *, name: str, users: tuple[str, ...]) -> None:
    """Add members; owner of the project, administrators."""
    answer = app.call(lambda client: client.projects.change_members(name, add=users))
    _changed(app, answer, f"is a member of project {name} already")


@command(
    "remove",
    reads=True,
    examples=["nsml project remove vision lee", "nsml project remove vision lee eve"],
)
@_name()
@_users()
@confirmed
@pass_app
def remove(app: App, *, name: str, users: tuple[str, ...]) -> None:
    """Remove members. Their running sessions continue, queued ones do not start.

    Asks first, unless you remove only yourself.
    """
    from nsml.view.confirmation import Plan, Target

    each = list(dict.fromkeys(users))

    async def look(client: Client) -> tuple[Sequence[str], str]:
        found = await client.projects.get(name)
        return found.project.members, (await client.accounts.caller()).user.name

    members, user = app.call(look)
    plan = Plan(
        rule=rule_of("project remove"),
        targets=[Target(one, one) for one in each if one in members],
        user=user,
        noun="member",
        last=f"from project {name}",
    )
    aside = "their queued sessions of the project will not start"
    # Users who are not members lose nothing: the platform reports that they are none.
    if plan.targets and not go_ahead(app, plan, aside=aside):
        return
    answer = app.call(lambda client: client.projects.change_members(name, remove=users))
    _changed(app, answer, f"is no member of project {name}")


for _command in (ls, show, create, change, rm, add, remove):
    project.add_command(_command)
