"""login, logout, context: which platform, and as whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, pass_app
from cli.exits import CommandError, ExitCode
from cli.group import Group, command
from cli.output import write_list
from nsml.client import contexts
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.client.contexts import Context


def _refuse_password(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError("-p is gone: a secret in the command line is seen by everybody;"
                               " use --token-stdin")  # fmt: skip


@command(
    "login",
    examples=[
        "nsml login gpu.lab:18553 --ca lab.pem",
        "nsml login gpu.lab --token-stdin < token.txt",
    ],
)
@click.argument("host")
@click.option("--token-stdin", is_flag=True, help="Read the token from stdin.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The platform's certificate authority, PEM.",
)
@click.option("--name", metavar="CONTEXT", help="Name of the context; default: the host's.")
@click.option("-p", "--password", hidden=True, expose_value=False, callback=_refuse_password)
@pass_app
def login(app: App, *, host: str, token_stdin: bool, ca: Path | None, name: str | None) -> None:
    """Use the platform at HOST[:PORT] from now on, with a token from its administrator."""
    server = contexts.parse_server(host)
    chosen = name or app.flags.context or _name_of(server)
    contexts.check_name(chosen)
    secret = _token(app, from_stdin=token_stdin)
    folder = app.config.folder
    fresh = contexts.Context(
        name=chosen,
        server=server,
        ca=_kept_authority(folder, chosen, ca),
        token_file=app.config.token_path(chosen),
    )
    who = _whoami(app, fresh, secret)
    contexts.write_private(app.config.token_path(chosen), secret + "\n")
    app.save(app.config.with_context(fresh))
    app.write(f"Welcome to NSML! You are {who} at {server} (context {chosen}).")


def _token(app: App, *, from_stdin: bool) -> str:
    if from_stdin:
        secret = app.stdin.readline().strip()
    elif app.can_ask:
        secret = click.prompt("Token", hide_input=True, err=True).strip()
    else:
        raise CommandError(
            "nobody is there to ask for the token",
            code=ExitCode.USAGE,
            advice="nsml login HOST --token-stdin < FILE",
        )
    if not secret or not secret.isascii() or not secret.isprintable():
        raise CommandError("that is not a token", code=ExitCode.USAGE)
    return str(secret)


def _kept_authority(folder: Path, name: str, given: Path | None) -> Path | None:
    """A copy of the authority's certificate beside the configuration."""
    if given is None:
        return None
    kept = folder / "authorities" / f"{name}.pem"
    contexts.write_private(kept, given.read_text(encoding="ascii"))
    return kept


def _whoami(app: App, fresh: Context, secret: str) -> str:
    """The user that the token stands for, asked of the platform before anything is kept."""
    probe = app.config.folder / "tokens" / f".{fresh.name}.probe"
    contexts.write_private(probe, secret + "\n")
    try:
        asking = App(
            environ={},
            stdout=app.stdout,
            stderr=app.stderr,
            stdin=app.stdin,
            flags=replace(app.flags, context=fresh.name),
        )
        trial = replace(fresh, token_file=probe)
        asking.use(contexts.Config(folder=app.config.folder).with_context(trial))
        answer = asking.call(lambda client: client.accounts.caller())
    finally:
        probe.unlink(missing_ok=True)
    return answer.user.name or answer.node


def _name_of(server: str) -> str:
    if server.startswith("unix:"):
        return "local"
    return server.rsplit(":", 1)[0].strip("[]").replace(":", "-")


@command("logout", examples=["nsml logout", "nsml logout --context lab"])
@pass_app
def logout(app: App) -> None:
    """Make this context's token invalid and forget it."""
    from nsml.client.errors import NotSignedIn

    context = app.context
    if context.token() is None:
        raise CommandError(f"not logged in at {context.server}", code=ExitCode.DENIED)
    try:
        app.call(lambda client: client.accounts.revoke_token())
    except NotSignedIn:
        app.say("the token was no longer valid")
    if context.token_file is not None:
        context.token_file.unlink(missing_ok=True)
    app.say(f"logged out of {context.server}")


@click.group("context", cls=Group)
def context() -> None:
    """Contexts: the platforms that you use."""


_COLUMNS: tuple[Column[tuple[Context, bool]], ...] = (
    Column(key="current", title="", cell=lambda c, _: "*" if c[1] else ""),
    Column(key="name", title="Name", cell=lambda c, _: c[0].name),
    Column(key="server", title="Server", cell=lambda c, _: c[0].server),
    Column(key="ca", title="Authority", cell=lambda c, _: str(c[0].ca or "-"), is_wide=True),
    Column(
        key="token_file",
        title="Token file",
        cell=lambda c, _: str(c[0].token_file or "-"),
        is_wide=True,
    ),
)


@command("ls", reads=True, examples=["nsml context ls", "nsml context ls -o name"])
@pass_app
def ls(app: App) -> None:
    """List the contexts; * is the current one."""
    known = [(item, name == app.config.current) for name, item in app.config.contexts.items()]
    if not known and app.is_for_people:
        app.say("no contexts yet · nsml up, or nsml login HOST")
        return
    write_list(app, sorted(known, key=lambda c: c[0].name), columns=_COLUMNS, record=_record)


def _record(item: tuple[Context, bool]) -> dict[str, Any]:
    found, is_current = item
    return {
        "name": found.name,
        "server": found.server,
        "ca": str(found.ca) if found.ca else None,
        "token_file": str(found.token_file) if found.token_file else None,
        "current": is_current,
    }


@command("use", examples=["nsml context use lab", "nsml context use default"])
@click.argument("name")
@pass_app
def use(app: App, *, name: str) -> None:
    """Make a context the current one."""
    if name not in app.config.contexts:
        raise CommandError(
            f"no such context: {name}", code=ExitCode.NOT_FOUND, advice="nsml context ls"
        )
    app.save(replace(app.config, current=name))
    app.say(f"context {name}: {app.config.contexts[name].server}")


context.add_command(ls)
context.add_command(use)
