"""webhook: URLs called on events of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_one
from nsml.common.text_files import decoded

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.webhooks_pb2 import Webhook

_MOST_READ = 4_096
_EVENTS = ("ended", "failed", "idle")


@click.group("webhook", cls=Group)
def webhook() -> None:
    """Your webhook: a URL that is called when a session of yours ends, fails or idles.

    A JSON object is sent by POST: `text` for chat programs, and `event`, `session` and more, such as `state`, `cause`
    and `ran_s` of an end. The URL is stored encrypted; only its host is shown again.
    """


def _record(found: Webhook | None) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    if found is None:
        return {"origin": "", "set_at": None, "on": []}
    return {"origin": found.origin, "set_at": moment(seconds_of(found.set_at)), "on": _on(found)}


def _on(found: Webhook) -> list[str]:
    from nsml.v1.webhooks_pb2 import WebhookEvent
    from nsml.view.enums import enum_word

    return [enum_word(WebhookEvent, event, "WEBHOOK_EVENT_") for event in found.events]


@command(
    "set",
    reads=True,
    examples=[
        "nsml webhook set",
        "nsml webhook set < url.txt",
        "nsml webhook set --on failed --on idle < url.txt",
        "nsml webhook set --from-env SLACK_URL",
    ],
)
@click.argument("refused", nargs=-1, metavar="")
@click.option(
    "--from-env", "variable", metavar="VARIABLE", help="Take the value of this local variable."
)
@click.option(
    "--on",
    multiple=True,
    type=click.Choice(_EVENTS),
    help="Call it only for this: every end, ends without success, or idle devices; repeatable.  "
    "[default: ended, idle]",
)
@pass_app
def put(app: App, *, refused: tuple[str, ...], variable: str | None, on: tuple[str, ...]) -> None:
    """Set or replace the URL: from stdin, or typed without echo. It is not called for what you stop yourself."""
    if refused:
        raise CommandError(
            "a URL in the command line is seen by all on this machine, and often bears a token",
            code=ExitCode.USAGE,
            advice="nsml webhook set < FILE\nnsml webhook set    and type it unseen",
        )
    url = _read(app) if variable is None else _of_variable(app, variable)
    if not url:
        raise CommandError(
            "the URL is empty: nothing is set",
            code=ExitCode.USAGE,
            advice="nsml webhook set < FILE\nnsml webhook rm",
        )
    events = [f"WEBHOOK_EVENT_{one.upper()}" for one in on]
    made = app.call(lambda client: client.webhooks.put(url, events))
    write_one(app, _record(made), [f"webhook set: {_text(made)}"], name="origin")
    if app.is_for_people:
        app.say("  try it: nsml webhook test")


def _of_variable(app: App, variable: str) -> str:
    if variable not in app.environ:
        raise CommandError(f"{variable} is not set here", code=ExitCode.USAGE)
    return app.environ[variable].strip()


def _read(app: App) -> str:
    if app.can_ask:
        typed: str = click.prompt("URL", hide_input=True, err=True, default="", show_default=False)
        return typed.strip()
    stdin: Any = app.stdin
    if stdin.isatty():
        raise CommandError(
            "there is no terminal to ask for the URL",
            code=ExitCode.USAGE,
            advice="nsml webhook set < FILE",
        )
    return decoded(stdin.buffer.read(_MOST_READ), "replace").strip()


@command("show", reads=True, examples=["nsml webhook show", "nsml webhook show -j"])
@pass_app
def show(app: App) -> None:
    """Show the host of the URL, never the whole URL, and what it is called for."""
    found = app.call(lambda client: client.webhooks.get())
    text = _text(found) if found else "no webhook: nsml webhook set"
    write_one(app, _record(found), [text], name="origin")


def _text(found: Webhook) -> str:
    on = f"  (on {', '.join(_on(found))})" if found.events else ""
    return f"{found.origin}{on}"


@command("rm", examples=["nsml webhook rm", "nsml webhook rm -y"])
@confirmed
@pass_app
def rm(app: App) -> None:
    """Remove the URL. Asks first, since it cannot be shown again."""

    async def act(client: Client) -> None:
        await client.webhooks.remove()

    found = app.call(lambda client: client.webhooks.get())
    if found is None:
        app.say("no webhook was set")
    elif confirm_names(app, "webhook rm", [found.origin], noun="webhook"):
        app.call(act)
        app.say("webhook removed")


@command("test", reads=True, examples=["nsml webhook test", "nsml webhook test -j"])
@pass_app
def test(app: App) -> None:
    """Send a message now, and print the response."""
    status = app.call(lambda client: client.webhooks.test())
    write_one(app, {"status": status}, [f"it answered {status}"], name="status")


webhook.add_command(put)
webhook.add_command(show)
webhook.add_command(rm)
webhook.add_command(test)
