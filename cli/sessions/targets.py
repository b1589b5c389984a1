"""The targets of a command: references and globs resolved once, to ids.

A glob of a changing command means the user's own sessions unless it names a user: confirmation and action
use these sessions, whatever matches the glob later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.arguments import glob_forms, is_glob
from cli.confirmation import rule_of
from cli.exits import CommandError, ExitCode
from nsml.common.shell import shell_line, shell_word
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsml.client.calls import Client
    from nsml.client.errors import AlreadyEnded, ClientError
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.confirmation import Plan

F = TypeVar("F", bound="Callable[..., Any] | click.Command")

_AT_ONCE = 16


def user_option(command: F) -> F:
    """Add the option for `users`: owners of a glob's sessions, instead of the user."""
    return click.option(
        "-u",
        "--user",
        "users",
        multiple=True,
        metavar="USER",
        help="A glob means sessions of this user, not your own; repeatable.",
    )(command)


@dataclass(frozen=True, slots=True)
class Targets:
    """Sessions named by a command line, as they were when it was read.

    Attributes:
        user: the requesting user.
        is_admin: whether they may change other users' sessions.
        sessions: each once, in the order of the command line.
        failures: references without a session, and why.
        left: sessions that match a glob, in the wrong state for the command: live, or ended.
    """

    user: str
    is_admin: bool
    sessions: list[Session]
    failures: list[tuple[str, ClientError]] = field(default_factory=list)
    left: Sequence[Session] = ()

    def may_change(self, session: Session) -> bool:
        """Return whether the platform would allow a change."""
        return self.is_admin or session.owner == self.user


async def resolve(
    client: Client,
    references: Sequence[str],
    *,
    users: Sequence[str] = (),
    include_ended: bool = True,
    include_live: bool = True,
    finds_left: bool = False,
) -> Targets:
    """Resolve all references and globs; `users` as for `user_option`.

    `finds_left`: also find sessions that match a glob but for their state, as `left`.

    Raises CommandError (NOT_FOUND) for a glob without matches, (USAGE) for an ambiguous one.
    """
    from nsml.client.errors import ClientError
    from nsml.client.streams import ENDED_STATES
    from nsml.common.concurrency import each_at_once
    from nsml.v1.accounts_pb2 import ROLE_ADMIN

    if users and not any(map(is_glob, references)):
        raise CommandError("--user goes with a glob", code=ExitCode.USAGE)
    if any(map(is_glob, users)):
        raise CommandError(
            "--user takes names, not globs",
            code=ExitCode.USAGE,
            advice="nsml ps -o name | nsml stop -    for sessions of everybody",
        )
    caller = (await client.accounts.caller()).user
    which = "" if include_ended and include_live else "live " if include_live else "ended "
    found: dict[str, Session] = {}
    left: dict[str, Session] = {}
    failures: list[tuple[str, ClientError]] = []
    named = [one for one in references if not is_glob(one)]
    looked = await each_at_once(named, lambda one: _found(client, one), most=_AT_ONCE)
    answers = dict(zip(named, looked, strict=True))
    for reference in references:
        if is_glob(reference):
            has_ended = include_ended or finds_left
            every = await _fitting(client, reference, caller.name, users, has_ended)
            fitting = [
                one
                for one in every
                if (include_ended if one.state in ENDED_STATES else include_live)
            ]
            if not fitting:
                if not has_ended:
                    every = await _fitting(client, reference, caller.name, users, True)  # noqa: FBT003
                raise _fits_nothing(reference, which, users, caller.name, every)
            found |= {one.id: one for one in fitting}
            left |= {one.id: one for one in every}
            continue
        answer = answers[reference]
        if isinstance(answer, ClientError):
            failures.append((reference, answer))
        else:
            found[answer.id] = answer
    others = [one for one in left.values() if one.id not in found]
    return Targets(
        caller.name, caller.role == ROLE_ADMIN, list(found.values()), failures, left=others
    )


def already_ended(session: Session) -> AlreadyEnded:
    """Return the error for an action that needs a live session."""
    from nsml.client.errors import AlreadyEnded

    return AlreadyEnded(
        f"session {session.name} has ended",
        reason="ALREADY_ENDED",
        advice=f"nsml logs {session.name}",
    )


async def not_ended(client: Client, reference: str) -> Session:
    """Return the session if it has not ended; raises AlreadyEnded. Use its id: @last may change later."""
    from nsml.client.streams import ENDED_STATES

    session = await client.sessions.get(reference)
    if session.state in ENDED_STATES:
        raise already_ended(session)
    return session


async def _found(client: Client, reference: str) -> Session | ClientError:
    """Return the session of a reference, or the error."""
    from nsml.client.errors import ClientError, NotSignedIn, Unavailable

    try:
        return await client.sessions.get(reference)
    except (Unavailable, NotSignedIn):
        raise
    except ClientError as error:
        return error


async def _fitting(
    client: Client, glob: str, user: str, users: Sequence[str], include_ended: bool
) -> list[Session]:
    """Return the sessions of a glob: of `users`, else of the user it names, else one's own."""
    forms = glob_forms(glob)
    if users:
        return await _listed(client, users, forms, include_ended)
    own = await _listed(client, [user], forms, include_ended)
    name = named_user(glob)
    if not name or name == user:
        return own
    others = await _listed(client, [name], [glob], include_ended)
    if own and others:
        raise CommandError(
            f"{glob!r} fits your own sessions and those of the user {name}",
            code=ExitCode.USAGE,
            reason="AMBIGUOUS_REFERENCE",
            advice=f"{shell_word(f'{user}/{glob}')}    your own\n"
            f"--user {name} {shell_word(glob.partition('/')[2])}    theirs",
        )
    return own or others


def named_user(glob: str) -> str:
    """Return the user named by a glob: the part before its first /, without a wildcard; "" for none."""
    first, slash, _ = glob.partition("/")
    return first if slash and not is_glob(first) else ""


async def _listed(
    client: Client, owners: Sequence[str], globs: Iterable[str], include_ended: bool
) -> list[Session]:
    """Return the sessions of some users whose full name matches one of the globs, newest first."""
    from nsml.v1.sessions_pb2 import SessionFilter

    found: dict[str, Session] = {}
    for glob in globs:
        chosen = SessionFilter(name_glob=glob, owners=owners, include_ended=include_ended)
        found |= {one.id: one async for one in client.sessions.every(chosen)}
    return sorted(found.values(), key=lambda one: one.created_at.ToNanoseconds(), reverse=True)


def _fits_nothing(
    glob: str, which: str, users: Sequence[str], user: str, others: Sequence[Session]
) -> CommandError:
    """Return the error for a glob without matches; `others` match but for their state."""
    name = named_user(glob)
    name = (
        "" if name in {user, "None"} else name
    )  # NSML's word for no dataset, which starts short forms
    of = f" of {', '.join(users)}" if users else f" of yours or of {name}" if name else " of yours"
    if others:
        is_live = which == "ended "
        some = counted(len(others), f"{'live' if is_live else 'ended'} session")
        why = f"{some} {'does' if len(others) == 1 else 'do'}"
        advice = f"nsml stop {shell_word(glob)}    first" if is_live else ""
    else:
        why = ""
        listed = [word for one in users for word in ("--user", one)] or ["--mine"]
        advice = shell_line(["nsml", "ps", "-a", *listed])
        advice += "" if users or name else "\nadd --user USER    for another user's"
    return CommandError(
        f"no {which}session{of} fits {glob!r}", code=ExitCode.NOT_FOUND, why=why, advice=advice
    )


def plan_for(
    command: str, targets: Targets, sessions: Sequence[Session], *, loses: Sequence[str] = ()
) -> Plan:
    """Return the plan of a command for some of the targets."""
    from nsml.view.confirmation import Plan, target_of

    shown = [target_of(one) for one in sessions]
    return Plan(rule=rule_of(command), targets=shown, user=targets.user, loses=loses)
