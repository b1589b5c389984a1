"""secret: values that programs get as variables and nobody can read back."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list, write_one
from nsml.common.shell import shell_word
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.secrets_pb2 import Secret

_MOST_READ = (32 << 10) + 3
"""Most bytes of stdin: a little more than the platform's limit, so that it can report the excess."""


@click.group("secret", cls=Group)
def secret() -> None:
    """Secrets: tokens and keys that your programs get as environment variables.

    They are stored encrypted and never shown again, not to you either. `nsml run --secret NAME`
    passes one to a program.
    """


def _size(found: Secret, _now: float) -> str:
    from nsml.common.units import size_text

    return size_text(found.size_bytes)


def _ago(field: str) -> Any:
    def cell(found: Secret, now: float) -> str:
        from nsml.common.units import ago
        from nsml.view.times import seconds_of

        return ago(now - seconds_of(getattr(found, field)))

    return cell


_COLUMNS: tuple[Column[Secret], ...] = (
    Column(key="name", title="Name", cell=lambda s, _: s.name),
    Column(key="size", title="Size", cell=_size),
    Column(key="updated", title="Set", cell=_ago("updated_at")),
    Column(key="created", title="Created", cell=_ago("created_at")),
)


def _record(found: Secret) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    return {
        "name": found.name,
        "size_bytes": found.size_bytes,
        "created_at": moment(seconds_of(found.created_at)),
        "updated_at": moment(seconds_of(found.updated_at)),
    }


@command(
    "set",
    reads=True,
    examples=[
        "nsml secret set WANDB_API_KEY",
        "nsml secret set HF_TOKEN < token.txt",
        "nsml secret set AWS_SECRET_ACCESS_KEY --from-env AWS_SECRET_ACCESS_KEY",
    ],
)
@click.argument("name")
@click.argument("refused", nargs=-1, metavar="")
@click.option(
    "--from-env", "variable", metavar="VARIABLE", help="Take the value of this local variable."
)
@pass_app
def put(app: App, *, name: str, refused: tuple[str, ...], variable: str | None) -> None:
    """Create or replace a secret: from stdin, or typed without echo.

    One trailing line break is dropped. Sessions that start from now on get the new value.
    """
    if refused:
        raise CommandError(
            "a value on a command line is visible to all users of this machine, and in your shell's history",
            code=ExitCode.USAGE,
            advice=f"nsml secret set {shell_word(name)} < FILE\nnsml secret set {shell_word(name)}    and type it unseen",
        )
    value = _value(app, name, variable)
    made = app.call(lambda client: client.secrets.put(name, value))
    write_one(app, _record(made), [f"secret {made.name} set ({_size(made, 0)})"])
    if app.is_for_people:
        app.say(f"  use: nsml run --secret {made.name}")


def _value(app: App, name: str, variable: str | None) -> bytes:
    """Read the value, not empty, from a variable, a hidden prompt or stdin."""
    value = _read(app, name) if variable is None else value_of_variable(app, variable)
    if not value:
        raise CommandError(
            "the value is empty: nothing is set",
            code=ExitCode.USAGE,
            advice=f"nsml secret set {shell_word(name)} < FILE\nnsml secret rm {shell_word(name)}",
        )
    return value


def value_of_variable(app: App, variable: str) -> bytes:
    """Return the value of a local variable, which may be empty. Raises CommandError."""
    if variable not in app.environ:
        raise CommandError(f"{variable} is not set here", code=ExitCode.USAGE)
    return app.environ[variable].encode(errors="surrogateescape")


def _read(app: App, name: str) -> bytes:
    if app.can_ask:
        typed: str = click.prompt(
            f"Value of {name}", hide_input=True, err=True, default="", show_default=False
        )
        return typed.encode(errors="surrogateescape")
    stdin: Any = app.stdin
    if stdin.isatty():
        raise CommandError(
            "there is no terminal to ask for the value",
            code=ExitCode.USAGE,
            advice=f"nsml secret set {shell_word(name)} < FILE",
        )
    return _one_line_break_less(stdin.buffer.read(_MOST_READ).removeprefix(BOM_UTF8))


def _one_line_break_less(value: bytes) -> bytes:
    return value.removesuffix(b"\n").removesuffix(b"\r") if value.endswith(b"\n") else value


@command(
    "ls",
    reads=True,
    examples=["nsml secret ls", "nsml secret ls -o name", "nsml secret ls --user kim"],
)
@click.option("--user", default="", metavar="USER", help="Secrets of this user; administrators.")
@pass_app
def ls(app: App, *, user: str) -> None:
    """List your secrets: names, sizes and times, never values."""
    found = app.call(lambda client: client.secrets.every(user))
    write_list(
        app, found, columns=_COLUMNS, record=_record, none="no secrets: nsml secret set NAME"
    )


@command(
    "rm",
    examples=["nsml secret rm HF_TOKEN", "nsml secret rm HF_TOKEN --user kim -y"],
)
@click.argument("name")
@click.option("--user", default="", metavar="USER", help="Secrets of this user; administrators.")
@confirmed
@pass_app
def rm(app: App, *, name: str, user: str) -> None:
    """Remove a secret, for good. Asks first.

    Running sessions keep its value; queued sessions that use it will fail.
    """
    from nsml.common.text import visible

    async def act(client: Client) -> None:
        await client.secrets.remove(name, user)

    known = [one.name for one in app.call(lambda client: client.secrets.every(user))]
    shown = f"{name} of {user}" if user else name
    # Missing secrets are refused by the platform, without a question.
    if confirm_names(
        app,
        "secret rm",
        [shown] if name in known else [],
        noun="secret",
        aside="its value cannot be shown or restored; queued sessions that use it will fail",
    ):
        app.call(act)
        app.say(f"secret {visible(name)} removed")


secret.add_command(put)
secret.add_command(ls)
secret.add_command(rm)
