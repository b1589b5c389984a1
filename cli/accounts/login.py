"""login, logout, context: the platform and its user."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import Group, Refused, command, needless, pass_app
from cli.output import write_list
from nsml.client import contexts
from nsml.common.text import visible
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.client.contexts import Context


_FIRST_PERSON: Final = 1_000
"""Accounts below this are system accounts: only the administrator starts programs as them."""


def _refuse_password(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError("-p was removed: everybody can see a secret on a command line;"
                               " use --token-stdin")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The proof of a server's identity.

    Attributes:
        pem: the authority; empty: the public ones, or none on this machine.
        server_name: required in its certificate; empty: the host.
    """

    pem: str = ""
    server_name: str = ""


@command(
    "login",
    examples=[
        "nsml login gpu.lab:18553#4f0c...",
        "nsml login gpu.lab --token-stdin < token.txt",
        "nsml login gpu.lab:18553 --ca lab.pem",
    ],
)
@click.argument("host", metavar="HOST[:PORT][#DIGEST]")
@click.option("--token-stdin", is_flag=True, help="Read the token from stdin.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The platform's certificate authority, PEM.",
)
@click.option("--name", metavar="CONTEXT", help="Name of the context; default: the host's.")
@click.option("-p", "--password", cls=Refused, callback=_refuse_password)
@needless("-e", "--encoding", is_flag=False, why="terminals and files are UTF-8")
@pass_app
def login(app: App, *, host: str, token_stdin: bool, ca: Path | None, name: str | None) -> None:
    """Use the platform at HOST[:PORT] from now on, with a token from its administrator.

    DIGEST, from the same administrator, proves the identity of the platform. Without it, the first
    time, the digest is shown and you are asked.
    """
    from nsml.client.errors import Unavailable
    from nsml.client.trust import parse_pinned_server, wrong_port

    address, digest = parse_pinned_server(host)
    server = contexts.parse_server(address)
    chosen = name or app.flags.context or _name_of(server)
    contexts.check_name(chosen)
    if ca is not None and digest:
        raise click.UsageError("--ca and #DIGEST exclude one another")
    trust = (
        Trust(pem=_authority_in(ca))
        if ca is not None
        else _trust_in(app, server, digest, app.config.contexts.get(chosen))
    )
    secret = _token(app, from_stdin=token_stdin)
    fresh = contexts.Context(name=chosen, server=server, server_name=trust.server_name)
    fresh = fresh._replace(server_uid=_server_uid(app, fresh._replace(ca=trust.pem)))
    with tempfile.TemporaryDirectory() as passing:  # like what is kept, only its owner reads it
        try:
            who = _whoami(app, _keep(Path(passing), fresh, trust, secret))
        except Unavailable as error:
            if trust.server_name and error.retry_after_s is None:  # it has just shown its authority
                raise wrong_port(server) from error
            raise
    context = _keep(Path(app.config.folder), fresh, trust, secret)
    app.save(app.config.with_context(context))
    app.flags = app.flags.with_context(chosen)
    _learn(app)
    place = visible(app.context.places)
    app.write(f"Welcome to NSML! You are {who} at {place} (context {chosen}).")


def _learn(app: App) -> None:
    """Store the addresses of the other control planes, used when this one is down."""
    from nsml.client.errors import ClientError

    # A node's token has no right to this, and nothing depends on the answer now.
    with suppress(ClientError, CommandError):
        app.cluster()


def _trust_in(app: App, server: str, digest: str, known: Context | None) -> Trust:
    """Return the proof of the server's identity: a digest, the stored authority, or the user's confirmation.

    Raises:
        TrustError: it is another server.
        CommandError: the user does not trust it, or cannot be asked.
    """
    from nsml.client import trust

    if server.startswith("unix:"):
        return Trust()
    host, port = contexts.split_server(server)
    if not digest and known is not None and known.server == server and known.ca:
        pem = _authority_in(Path(known.ca))
        if known.server_name != trust.SERVER_NAME:
            return Trust(pem=pem, server_name=known.server_name)
        digest = trust.digest_of(pem)
    if digest:
        fetched = trust.fetch_trusted_authority(host, port, digest)
        return Trust(pem=fetched.pem.decode(), server_name=trust.SERVER_NAME)
    try:
        if not contexts.is_local(server) and trust.is_publicly_trusted(host, port):
            return Trust()
        fetched = trust.fetch_authority(host, port)
    except trust.TrustError:
        if contexts.is_local(server):  # plaintext, which does not leave this machine
            return Trust()
        raise
    _ask_trust(app, server, fetched.digest)
    return Trust(pem=fetched.pem.decode(), server_name=trust.SERVER_NAME)


def _authority_in(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not a certificate in PEM", code=ExitCode.USAGE) from error


def _ask_trust(app: App, server: str, digest: str) -> None:
    app.say(f"{server} is not known here yet. The digest of its authority is")
    app.say(f"  {digest}")
    app.say("Its administrator sees the right one with nsml admin user token.")
    if not app.agrees("trust it from now on?", flag="-y, or #DIGEST behind the address"):
        raise CommandError(f"{server} is not trusted; nothing was saved")


def _server_uid(app: App, context: Context) -> int | None:
    """Return the account of a server without TLS on this machine, if the user trusts it; None: root or the user.

    Raises:
        CommandError: it is the account of a session, or not trusted.
    """
    from nsml.client.connect import account, is_plaintext, listening_uids
    from nsml.common.local_peers import SESSION_UIDS

    server = context.server
    if not is_plaintext(context, server):
        return None
    found = listening_uids(server)
    others = found - {0, os.getuid(), os.geteuid()} if found else found
    if not others:
        return None
    uid, *more = sorted(others)
    if more or uid in SESSION_UIDS or uid < 0:
        raise CommandError(
            f"{server} is not served by one account of its own",
            why=", ".join(map(account, sorted(others))),
            advice="ss -ltnp    shows the program that listens there",
        )
    known = app.config.contexts.get(context.name)
    if known is not None and known.server == server and known.server_uid == uid:
        return uid
    app.say(f"{server} is served by another account of this machine: {account(uid)}.")
    if uid >= _FIRST_PERSON and not app.agrees("send it your token, now and later?", flag="-y"):
        raise CommandError(f"{server} is not trusted; nothing was saved")
    return uid


def _token(app: App, *, from_stdin: bool) -> str:
    if app.can_ask:
        secret = click.prompt("Token", hide_input=True, err=True).strip()
    elif from_stdin:
        secret = app.read_line()
    else:
        raise CommandError(
            "there is no terminal to ask for the token",
            code=ExitCode.USAGE,
            advice="nsml login HOST --token-stdin < FILE",
        )
    if not contexts.is_token(secret):
        raise CommandError("that is not a token", code=ExitCode.USAGE)
    return str(secret)


def _keep(folder: Path, fresh: Context, trust: Trust, secret: str) -> Context:
    """Write token and authority into files named after the context; return the context with them."""
    token_file = _token_file(folder, fresh.name)
    contexts.write_private(token_file, secret + "\n")
    if not trust.pem:
        return fresh._replace(token_file=str(token_file))
    ca = folder / "authorities" / f"{fresh.name}.pem"
    contexts.write_private(ca, trust.pem)
    return fresh._replace(token_file=str(token_file), ca=str(ca))


def _token_file(folder: Path, name: str) -> Path:
    return folder / "tokens" / name


def _whoami(app: App, trial: Context) -> str:
    """Return the token's user, from the platform, before anything is stored."""
    asking = App(
        environ={},
        stdout=app.stdout,
        stderr=app.stderr,
        stdin=app.stdin,
        flags=app.flags.with_context(trial.name),
    )
    asking.use(contexts.Config(folder=app.config.folder).with_context(trial))
    answer = asking.call(lambda client: client.accounts.caller())
    return answer.user.name or answer.node


def _name_of(server: str) -> str:
    if server.startswith("unix:"):
        return "local"
    return server.rsplit(":", 1)[0].strip("[]").replace(":", "-")


@command(
    "logout",
    examples=["nsml logout", "nsml logout --context lab", "nsml logout --revoke"],
)
@click.option("--revoke", is_flag=True, help="Also revoke the token everywhere.")
@pass_app
def logout(app: App, *, revoke: bool) -> None:
    """Remove this context's token from this machine.

    The token stays valid elsewhere, unless --revoke is given. On the machine where you run the
    platform, `nsml up` logs in again.
    """
    from nsml.client.errors import NotSignedIn

    try:
        context = app.context
    except contexts.NoContext:
        raise CommandError(
            "not logged in: no platform is known on this machine", code=ExitCode.DENIED
        ) from None
    if context.token() is None:
        raise CommandError(f"not logged in at {context.places}", code=ExitCode.DENIED)
    if revoke:
        try:
            app.call(lambda client: client.accounts.revoke_token())
        except NotSignedIn:
            app.say("the token was not valid any more")
    _forget(app, context)
    app.say(f"logged out of {context.places}" + ("; the token is revoked" if revoke else ""))
    if context.server.startswith("unix:"):
        app.say("to log in again: nsml up")


def _forget(app: App, context: Context) -> None:
    """Remove the token from the stored context, and its file if login created it.

    Raises CommandError if the environment names the file: later commands would still use it.
    """
    known = app.config.contexts.get(context.name)
    if known is None or known.token_file != context.token_file:
        raise CommandError(
            "the token is still used here: NSML_TOKEN_FILE names it",
            code=ExitCode.CONFLICT,
            advice=f"unset NSML_TOKEN_FILE    {context.token_file} stays as it is",
        )
    token_file = Path(known.token_file)
    if token_file == _token_file(Path(app.config.folder), known.name):
        token_file.unlink(missing_ok=True)
    is_current = app.config.current == known.name
    app.save(app.config.with_context(known._replace(token_file=""), current=is_current))


@click.group("context", cls=Group)
def context() -> None:
    """Contexts: the platforms that you use."""


_COLUMNS: tuple[Column[tuple[Context, bool]], ...] = (
    Column(key="current", title="Current", cell=lambda c, _: "*" if c[1] else ""),
    Column(key="name", title="Name", cell=lambda c, _: c[0].name),
    Column(key="server", title="Server", cell=lambda c, _: c[0].places),
    Column(key="ca", title="Authority", cell=lambda c, _: c[0].ca or "-", is_wide=True),
    Column(
        key="token_file",
        title="Token file",
        cell=lambda c, _: c[0].token_file or "-",
        is_wide=True,
    ),
)


@command("ls", reads=True, examples=["nsml context ls", "nsml context ls -o name"])
@pass_app
def ls(app: App) -> None:
    """List the contexts; * marks the current one.

    It is that of --context, else of NSML_CONTEXT, else of `nsml context use`.
    """
    current = contexts.chosen_name(app.config, app.environ, app.flags.context)
    known = [(item, name == current) for name, item in app.config.contexts.items()]
    write_list(
        app,
        sorted(known, key=lambda c: c[0].name),
        columns=_COLUMNS,
        record=_record,
        none="no contexts yet · nsml up, or nsml login HOST",
    )
    if app.is_for_people and (server := app.environ.get("NSML_SERVER")):
        app.say(f"NSML_SERVER is set: commands go to {server}")
    elif app.is_for_people and known and current not in app.config.contexts:
        app.say("none of them is current: nsml context use NAME")


def _record(item: tuple[Context, bool]) -> dict[str, Any]:
    found, is_current = item
    return {
        "name": found.name,
        "server": found.server,
        "servers": list(found.servers),
        "ca": found.ca or None,
        "token_file": found.token_file or None,
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
    app.save(app.config._replace(current=name))
    app.say(f"context {name}: {visible(app.config.contexts[name].places)}")


context.add_command(ls)
context.add_command(use)
