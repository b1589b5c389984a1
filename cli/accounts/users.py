"""admin: users, tokens, joining nodes; backups are in `backup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.confirmation import confirm_names, confirmed
from cli.group import LIFETIME, Group, LazyGroup, command, pass_app
from cli.output import write_list, write_one
from nsml.common.units import counted
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.accounts_pb2 import CreateJoinTokenResponse, CreateTokenResponse, User


_COMMANDS = {
    "Commands": {
        "audit": ("cli.cluster.audit:audit", "Show who changed what, and what was refused."),
        "backup": (
            "cli.cluster.backup:backup",
            "Write the whole platform into FOLDER, while it runs.",
        ),
        "join-token": (
            "cli.accounts.users:join_token",
            "Make a secret with which machines become nodes.",
        ),
        "restore": ("cli.cluster.backup:restore", "Put a platform back from a backup."),
        "user": ("cli.accounts.users:user", "Users."),
    }
}


@click.group("admin", cls=LazyGroup, sections=_COMMANDS)
def admin() -> None:
    """For administrators: users, their tokens, machines that may join, backups."""


@click.group("user", cls=Group)
def user() -> None:
    """Users and their tokens."""


def _role(found: User) -> str:
    from nsml.v1.accounts_pb2 import Role
    from nsml.view.enums import enum_word

    return enum_word(Role, found.role, "ROLE_")


def _since(found: User, now: float) -> str:
    from nsml.common.units import ago
    from nsml.view.times import seconds_of

    return ago(now - seconds_of(found.created_at))


_COLUMNS: tuple[Column[User], ...] = (
    Column(key="name", title="Name", cell=lambda u, _: u.name),
    Column(key="role", title="Role", cell=lambda u, _: _role(u)),
    Column(key="team", title="Team", cell=lambda u, _: u.team or "-"),
    Column(key="created", title="Created", cell=_since),
)


def _record(found: User) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    return {
        "name": found.name,
        "role": _role(found).upper(),
        "team": found.team or None,
        "created_at": moment(seconds_of(found.created_at)),
    }


@command(
    "add",
    reads=True,
    examples=[
        "nsml admin user add kim",
        "nsml admin user add lee --team vision --admin",
        "nsml admin user add kim --restore",
    ],
)
@click.argument("name")
@click.option("--admin", "is_admin", is_flag=True, help="Make the user an administrator.")
@click.option(
    "--team",
    default="",
    metavar="TEAM",
    help="Team of the user, for --team of run and dataset push.",
)
@click.option("--restore", is_flag=True, help="Restore a removed user with everything they own.")
@pass_app
def add(app: App, *, name: str, is_admin: bool, team: str, restore: bool) -> None:
    """Create a user.

    `nsml admin user token NAME` then creates a token. The name of a removed user is reserved for an
    hour, and while they own sessions, datasets or nodes.
    """
    made = app.call(
        lambda client: client.accounts.create_user(
            name, is_admin=is_admin, team=team, restore=restore
        )
    )
    write_one(app, _record(made), [f"user {made.name} ({_role(made)})"])
    if app.is_for_people:
        app.say(f"  next: nsml admin user token {made.name}")


@command("ls", reads=True, examples=["nsml admin user ls", "nsml admin user ls -o name"])
@pass_app
def ls(app: App) -> None:
    """List all users."""
    found = app.call(lambda client: client.accounts.users())
    write_list(app, found, columns=_COLUMNS, record=_record)


@command("rm", examples=["nsml admin user rm kim", "nsml admin user rm kim -y"])
@click.argument("name")
@confirmed
@pass_app
def rm(app: App, *, name: str) -> None:
    """Remove a user with all tokens, secrets and ssh keys. Asks first. Sessions and datasets stay.

    While they do, the name is reserved; `nsml admin user add NAME --restore` restores the user.
    """
    known = [one.name for one in app.call(lambda client: client.accounts.users())]
    # Missing users are refused by the platform, without a question.
    targets, lost = [name] if name in known else [], ["all their tokens, secrets and ssh keys"]
    if confirm_names(app, "admin user rm", targets, noun="user", loses=lost):
        app.call(lambda client: client.accounts.delete_user(name))
        app.say(f"user {name} removed; to end what still runs: nsml stop --user {name} '*'")


@command(
    "token",
    reads=True,
    examples=[
        "nsml admin user token kim",
        "nsml admin user token kim --valid-for 90d",
        "nsml admin user token kim --revoke -y",
    ],
)
@click.argument("name")
@click.option(
    "--valid-for", type=LIFETIME, metavar="TIME", help="Lifetime; default 30d, at most a year."
)
@click.option("--revoke", is_flag=True, help="Revoke all tokens of the user instead.")
@confirmed
@pass_app
def token(app: App, *, name: str, valid_for: float | None, revoke: bool) -> None:
    """Create a token for a user. It is printed once, alone on stdout.

    --revoke asks first.
    """
    if app.flags.is_dry_run and not revoke:
        raise click.UsageError("--dry-run goes with --revoke: making a token destroys nothing")
    if revoke:
        targets = [f"all tokens of {name}"]
        if not confirm_names(app, "admin user token", targets, noun=""):
            return
        count = app.call(lambda client: client.accounts.revoke_token(name))
        app.say(f"{counted(count, 'token')} of {name} invalid now")
        return
    made = app.call(lambda client: client.accounts.create_token(name, valid_for_s=valid_for))
    line = f"nsml login {made.address or app.context.server}"
    where = "on their machine" if made.address else "on this machine, the only one that is served"
    _show_secret(app, made, f"for {name}", [f"{where}; asks for the token:  {line}"])


@command(
    "join-token",
    reads=True,
    examples=["nsml admin join-token", "nsml admin join-token --valid-for 1d"],
)
@click.option(
    "--valid-for", type=LIFETIME, metavar="TIME", help="Lifetime; default 1h, at most a week."
)
@pass_app
def join_token(app: App, *, valid_for: float | None) -> None:
    """Create a token with which machines become nodes. It is printed once, alone on stdout."""

    async def make(client: Client) -> Any:
        return await client.accounts.create_join_token(valid_for_s=valid_for)

    made = app.call(make)
    if made.address:
        lines = [f"on each machine; asks for the token:  nsml join {made.address}"]
    else:
        lines = [
            "no machine can join yet: this platform listens to this machine alone",
            "next:  nsml down --keep-sessions",
            "       nsml up --listen 0.0.0.0:18553",
            "       (of a unit: listen and listen_agents in its settings, then restart it)",
        ]
    _show_secret(app, made, "to join nodes", lines)


def _show_secret(
    app: App,
    made: CreateTokenResponse | CreateJoinTokenResponse,
    purpose: str,
    use: Sequence[str],
) -> None:
    """Write the secret to stdout; its purpose and its `use` to stderr."""
    from nsml.common.units import local_moment, moment
    from nsml.view.times import seconds_of

    expires_at = seconds_of(made.expires_at)
    app.say(f"a token {purpose}, valid until {local_moment(expires_at)}; it is not shown again")
    for line in use:
        app.say(line)
    record = {
        "token": made.token,
        "expires_at": moment(expires_at),
        "address": made.address or None,
    }
    write_one(app, record, [made.token], name="token")


def _kept_limit(value: str) -> int | None:
    """Parse bytes; 0 for `none`, None for `default`."""
    from cli.arguments import SIZE

    if value in {"none", "default"}:
        return 0 if value == "none" else None
    return SIZE.convert(value, None, None)


@command(
    "set",
    examples=[
        "nsml admin user set kim --kept 2T",
        "nsml admin user set kim --kept none",
        "nsml admin user set kim --kept default",
    ],
)
@click.argument("name")
@click.option(
    "--kept",
    required=True,
    metavar="SIZE",
    help="What the object store may keep for the user; none: no limit; default: the common limit.",
)
@pass_app
def set_limits(app: App, *, name: str, kept: str) -> None:
    """Set limits of a user. `nsml storage --all` shows what all users have."""
    limit = _kept_limit(kept)
    app.call(lambda client: client.accounts.limit_kept(name, limit))
    most = "as much as for all others" if kept == "default" else kept
    app.say(f"user {name}: the object store may keep {'any amount' if kept == 'none' else most}")


user.add_command(add)
user.add_command(set_limits)
user.add_command(ls)
user.add_command(rm)
user.add_command(token)
