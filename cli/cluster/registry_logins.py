"""image login, logout, logins: a user's own logins at image registries."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

import click

from cli.accounts.secret import value_of_variable
from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list, write_one
from nsml.common.shell import shell_line, shell_word
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.v1.secrets_pb2 import RegistryAccess

_MOST_READ = (8 << 10) + 5
"""Most bytes of stdin: a little more than the platform's limit, so that it can report the excess."""


def _ago(found: RegistryAccess, now: float) -> str:
    from nsml.common.units import ago
    from nsml.view.times import seconds_of

    return ago(now - seconds_of(found.updated_at))


_COLUMNS: tuple[Column[RegistryAccess], ...] = (
    Column(key="registry", title="Registry", cell=lambda one, _: one.registry),
    Column(key="user", title="User there", cell=lambda one, _: one.registry_user),
    Column(key="updated", title="Set", cell=_ago),
)


def _record(found: RegistryAccess) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    return {
        "name": found.registry,
        "registry": found.registry,
        "registry_user": found.registry_user,
        "updated_at": moment(seconds_of(found.updated_at)),
    }


@command(
    "login",
    reads=True,
    examples=[
        "nsml image login ghcr.io -u kim",
        "nsml image login registry.lab:5000 -u kim --password-stdin < token.txt",
    ],
)
@click.argument("registry", metavar="REGISTRY")
@click.option("-u", "--username", metavar="USER", help="Your name at the registry.")
@click.option("--password-stdin", is_flag=True, help="Read the password or token from stdin.")
@click.option(
    "--from-env", "variable", metavar="VARIABLE", help="Take it from this local variable."
)
@pass_app
def login(
    app: App, *, registry: str, username: str | None, password_stdin: bool, variable: str | None
) -> None:
    """Set your login at a registry of images, in place of the one before.

    REGISTRY is HOST[:PORT]; docker.io for Docker Hub. Your sessions with an image of that registry, and
    your image pulls, use it. It is stored encrypted and never shown again. An image that was pulled with
    it is used for nobody else, unless the registry gives it to them, too. The registry is not asked.
    """
    again = shell_line(["nsml", "image", "login", registry, "-u", username or "USER"])
    if not username:
        if not app.can_ask:
            raise CommandError("no user: -u USER", code=ExitCode.USAGE, advice=again)
        username = click.prompt(f"User at {registry}", err=True)
    password = (
        _password(app, registry, again, is_stdin=password_stdin)
        if variable is None
        else value_of_variable(app, variable)
    )
    if not password:
        raise CommandError("the password is empty: nothing is set", code=ExitCode.USAGE)
    made = app.call(lambda client: client.secrets.put_login(registry, username, password))
    write_one(app, _record(made), [f"login at {made.registry} set (user {made.registry_user})"])


def _password(app: App, registry: str, again: str, *, is_stdin: bool) -> bytes:
    """Read the password from stdin or a hidden prompt."""
    stdin: Any = app.stdin
    if is_stdin:
        value: bytes = stdin.buffer.read(_MOST_READ).removeprefix(BOM_UTF8)
        value = value.removesuffix(b"\n").removesuffix(b"\r")
    elif app.can_ask:
        typed: str = click.prompt(
            f"Password or token at {registry}",
            hide_input=True,
            err=True,
            default="",
            show_default=False,
        )
        value = typed.encode(errors="surrogateescape")
    else:
        raise CommandError(
            "there is no terminal to ask for the password",
            code=ExitCode.USAGE,
            advice=f"{again} --password-stdin < FILE",
        )
    return value


@command("logins", reads=True, examples=["nsml image logins", "nsml image logins --user kim"])
@click.option("--user", default="", metavar="USER", help="Logins of this user; administrators.")
@pass_app
def logins(app: App, *, user: str) -> None:
    """List your logins at registries of images, without passwords."""
    write_list(
        app,
        app.call(lambda client: client.secrets.logins(user)),
        columns=_COLUMNS,
        record=_record,
        none="no logins at registries: nsml image login REGISTRY -u USER",
    )


@command("logout", examples=["nsml image logout ghcr.io", "nsml image logout docker.io --user kim"])
@click.argument("registry", metavar="REGISTRY")
@click.option("--user", default="", metavar="USER", help="Login of this user; administrators.")
@pass_app
def logout(app: App, *, registry: str, user: str) -> None:
    """Remove your login at a registry.

    Running sessions go on. Images that were pulled with it start no more sessions of yours, unless the
    registry gives them without.
    """
    from nsml.common.text import visible

    app.call(lambda client: client.secrets.remove_login(registry, user))
    app.say(f"login at {visible(shell_word(registry))} removed")
