"""tensorboard and visdom: the original programs, run by the platform beside sessions; dashboard: nsml-tui, the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.arguments import expand, session_argument, sessions_of
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list, write_one
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.views_pb2 import OpenViewResponse, View, ViewKind


def _ago(field: str) -> Any:
    def cell(found: View, now: float) -> str:
        from nsml.common.units import ago
        from nsml.view.times import seconds_of

        return ago(now - seconds_of(getattr(found, field)))

    return cell


_COLUMNS: tuple[Column[View], ...] = (
    Column(key="name", title="View", cell=lambda v, _: v.id),
    Column(key="owner", title="Owner", cell=lambda v, _: v.owner),
    Column(key="sessions", title="Sessions", cell=lambda v, _: ", ".join(v.sessions)),
    Column(key="opened", title="Opened", cell=_ago("opened_at")),
    Column(key="used", title="Looked at", cell=_ago("used_at")),
)


def _record(found: View) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    return {
        "name": found.id,
        "owner": found.owner,
        "sessions": list(found.sessions),
        "opened_at": moment(seconds_of(found.opened_at)),
        "used_at": moment(seconds_of(found.used_at)),
    }


def _examples(name: str) -> list[str]:
    return [f"nsml {name}{rest}" for rest in (" @last", " 'kim/mnist/*'", "", " --stop")]


_sessions = session_argument("references", nargs=-1, metavar="[SESSION...]")
_stop_option = click.option(
    "--stop", is_flag=True, help="End your views of these sessions; without SESSION all."
)


@command("tensorboard", reads=True, examples=_examples("tensorboard"))
@_sessions
@_stop_option
@pass_app
def tensorboard(app: App, /, *, references: tuple[str, ...], stop: bool) -> None:
    """Show sessions in TensorBoard, live, and print the address.

    The address works for one visit within a minute; the browser then gets a cookie. The view shows
    what you may see, and ends half an hour after its last use. Without SESSION your views are
    listed.
    """
    _views(app, "tensorboard", references, stop=stop)


@command("visdom", reads=True, examples=_examples("visdom"))
@_sessions
@_stop_option
@pass_app
def visdom(app: App, /, *, references: tuple[str, ...], stop: bool) -> None:
    """Show sessions in Visdom, live, and print the address.

    The environment `main` has a plot per metric with all sessions, and each session has an
    environment of its own. The address works for one visit within a minute; the browser then gets a
    cookie. The view shows what you may see, is read-only, and ends half an hour after its last use.
    Without SESSION your views are listed.

    It needs Visdom in an environment of its own on the control plane's machine (visdom_python in
    its settings, docs/results.md); nsml tensorboard needs nothing.
    """
    _views(app, "visdom", references, stop=stop)


@command("dashboard", reads=True, examples=["nsml dashboard", "nsml dashboard --stop"])
@click.option("--stop", is_flag=True, help="End it in every browser.")
@pass_app
def dashboard(app: App, /, *, stop: bool) -> None:
    """Show nsml-tui in a browser, served by the platform, and print the address.

    The address works for one visit within a minute; the browser then gets a cookie, and shows and
    does what you may. It ends half an hour after the last browser was closed. Served by this
    machine alone: nsml-tui --web.
    """
    from nsml.v1 import views_pb2 as pb

    if stop:
        _stop(app, "dashboard", pb.VIEW_KIND_DASHBOARD, ())
        return
    opened = app.call(lambda client: client.views.open([], pb.VIEW_KIND_DASHBOARD))
    write_one(app, {"url": opened.url, **_record(opened.view)}, [opened.url])
    if app.is_for_people:
        app.say("  open it within a minute; nsml dashboard --stop")


def _views(app: App, name: str, references: tuple[str, ...], *, stop: bool) -> None:
    from nsml.v1 import views_pb2 as pb

    kind = {"tensorboard": pb.VIEW_KIND_TENSORBOARD, "visdom": pb.VIEW_KIND_VISDOM}[name]
    if stop:
        _stop(app, name, kind, references)
    elif references:
        opened = app.call(lambda client: _open(app, client, references, kind))
        record = {"url": opened.url, **_record(opened.view)}
        write_one(app, record, [opened.url])
        if app.is_for_people:
            app.say(f"  open it within a minute; nsml {name} --stop {opened.view.sessions[0]}")
    else:
        found = [one for one in app.call(lambda client: client.views.every()) if one.kind == kind]
        none = f"no views: nsml {name} SESSION"
        write_list(app, found, columns=_COLUMNS, record=_record, none=none)


async def _open(
    app: App, client: Client, references: tuple[str, ...], kind: ViewKind
) -> OpenViewResponse:
    from cli.results.metric_options import tell_let_go

    opened = await client.views.open(await expand(client, references), kind)
    for name in opened.view.sessions:
        tell_let_go(app, await client.sessions.let_go(name), name)
    return opened


def _stop(app: App, name: str, kind: ViewKind, references: tuple[str, ...]) -> None:
    async def act(client: Client) -> list[View]:
        caller = (await client.accounts.caller()).user.name
        names = {session.name for session in await sessions_of(client, references)}
        views = await client.views.every()
        own = [one for one in views if (one.owner, one.kind) == (caller, kind)]
        ended = [one for one in own if not references or names & set(one.sessions)]
        for one in ended:
            await client.views.stop(one.id)
        return ended

    ended = app.call(act)
    if references and not ended:
        raise CommandError(
            "you have no view of that", code=ExitCode.NOT_FOUND, advice=f"nsml {name}"
        )
    for one in ended:
        of = f" of {', '.join(one.sessions)}" if one.sessions else ""
        app.write(f"view {one.id}{of} has ended")
    if not ended:
        app.say("you have no views")
