"""key: public keys for ssh from machines without nsml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list, write_one
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.ssh_keys_pb2 import SshKey

_MOST_READ: Final = 16 << 10
"""Most bytes read: more than any public key has."""
_STDIN: Final = "-"


@click.group("key", cls=Group)
def key() -> None:
    """Public keys: how ssh knows you on machines without nsml.

    The holder of the private half reaches your running sessions through the platform's jump host:
    see nsml ssh-config --jump.
    """


def _used(found: SshKey, now: float) -> str:
    return _ago(found, "used_at", now) if found.HasField("used_at") else "never"


def _ago(found: SshKey, field: str, now: float) -> str:
    from nsml.common.units import ago
    from nsml.view.times import seconds_of

    return ago(now - seconds_of(getattr(found, field)))


def _kind(found: SshKey) -> str:
    return found.public_key.partition(" ")[0]


_COLUMNS: tuple[Column[SshKey], ...] = (
    Column(key="name", title="Name", cell=lambda k, _: k.name),
    Column(key="kind", title="Type", cell=lambda k, _: _kind(k)),
    Column(key="fingerprint", title="Fingerprint", cell=lambda k, _: k.fingerprint),
    Column(key="added", title="Added", cell=lambda k, now: _ago(k, "added_at", now)),
    Column(key="used", title="Last used", cell=_used),
)


def _record(found: SshKey) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    used_at = moment(seconds_of(found.used_at)) if found.HasField("used_at") else None
    return {
        "name": found.name,
        "fingerprint": found.fingerprint,
        "public_key": found.public_key,
        "added_at": moment(seconds_of(found.added_at)),
        "used_at": used_at,
    }


@command(
    "add",
    reads=True,
    examples=[
        "nsml key add ~/.ssh/id_ed25519.pub",
        "nsml key add - --name laptop < id_ed25519.pub",
    ],
)
@click.argument("file", metavar="FILE")
@click.option("--name", default="", metavar="NAME", help="Its name; default: its comment.")
@pass_app
def add(app: App, *, file: str, name: str) -> None:
    """Add a public key to your account: a .pub file, or - for stdin.

    Accepted are Ed25519, ECDSA, keys of security tokens (sk-), and RSA from 3072 bits on. A key
    belongs to one user.
    """
    from nsml.spec.ssh_keys import NotAPublicKey, parse_public_key

    line = _read(app, file)
    try:
        parse_public_key(line)
    except NotAPublicKey as error:
        raise CommandError(
            str(error), code=ExitCode.USAGE, why=error.why, advice=error.advice
        ) from error
    made = app.call(lambda client: client.ssh_keys.add(line, name))
    write_one(app, _record(made), [f"key {made.name} added ({made.fingerprint})"])
    if app.is_for_people:
        app.say("  use: nsml ssh-config --jump    prints what ssh needs on a machine without nsml")


def _read(app: App, file: str) -> str:
    if file == _STDIN:
        stdin: Any = app.stdin
        return _text(stdin.buffer.read(_MOST_READ))
    path = Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            return _text(opened.read(_MOST_READ))
    except OSError as error:
        raise CommandError(
            f"cannot read {file}: {error.strerror}",
            code=ExitCode.USAGE,
            advice="ls ~/.ssh/*.pub    lists yours\nssh-keygen -t ed25519    makes one",
        ) from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@command(
    "ls",
    reads=True,
    examples=["nsml key ls", "nsml key ls -o name", "nsml key ls --user kim"],
)
@click.option("--user", default="", metavar="USER", help="Keys of this user; administrators.")
@pass_app
def ls(app: App, *, user: str) -> None:
    """List your public keys, and when each was last used."""
    found = app.call(lambda client: client.ssh_keys.every(user))
    write_list(
        app,
        found,
        columns=_COLUMNS,
        record=_record,
        none="no keys: nsml key add ~/.ssh/id_ed25519.pub",
    )


@command(
    "rm",
    examples=["nsml key rm laptop", "nsml key rm laptop --user kim -y"],
)
@click.argument("name")
@click.option("--user", default="", metavar="USER", help="Keys of this user; administrators.")
@confirmed
@pass_app
def rm(app: App, *, name: str, user: str) -> None:
    """Remove a public key, by its name or fingerprint. Asks first.

    Connections that were made with it end within seconds.
    """
    from nsml.common.text import visible

    async def act(client: Client) -> None:
        await client.ssh_keys.remove(name, user)

    every = app.call(lambda client: client.ssh_keys.every(user))
    known = {word for one in every for word in (one.name, one.fingerprint)}
    shown = f"{name} of {user}" if user else name
    # Missing keys are refused by the platform, without a question.
    if confirm_names(
        app,
        "key rm",
        [shown] if name in known else [],
        noun="key",
        aside="connections that were made with it end",
    ):
        app.call(act)
        app.say(f"key {visible(name)} removed")


key.add_command(add)
key.add_command(ls)
key.add_command(rm)
