"""Who makes the call that is being served: set by the interceptor, read by whoever serves it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.errors import Denied, NotSignedIn
from controlplane.domain.identity import (
    AnonymousCaller,
    Caller,
    JumpHostCaller,
    NodeCaller,
    PeerCaller,
    UserCaller,
)
from controlplane.domain.names import check_node
from controlplane.domain.policy import ACT_FOR, ALLOW, Personal, may

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.domain.errors import NsmlError

_NOBODY = AnonymousCaller()

current_caller: ContextVar[Caller] = ContextVar("current_caller")


def set_caller(who: Caller) -> None:
    """Say who makes the current call: for the interceptor, and for tests of single servicers."""
    current_caller.set(who)


@dataclass(slots=True)
class Call:
    """What becomes known of a call while it is served, for the audit trail.

    Attributes:
        target: the name of what it changes.
        is_elsewhere: another control plane answered it, and has its row.
    """

    target: str = ""
    is_elsewhere: bool = False


_current_call: ContextVar[Call] = ContextVar("current_call")


_check: ContextVar[Callable[[], Awaitable[NsmlError | None]]] = ContextVar("_check")


def begin_call() -> Call:
    """Note that a call begins: for the interceptor."""
    call = Call()
    _current_call.set(call)
    return call


def current_call() -> Call:
    """The call that is being served; outside of one, a call of nobody's."""
    return _current_call.get(None) or Call()


def note_target(name: str) -> None:
    """Say by its full name what the current call changes."""
    current_call().target = name


def set_check(check: Callable[[], Awaitable[NsmlError | None]]) -> None:
    """Say how to find out whether the current call's caller may go on: for the interceptor."""
    _check.set(check)


async def refused_by_now() -> NsmlError | None:
    """Why the current call's caller may not go on, as things are now; None: they may, or nobody can tell."""
    check = _check.get(None)
    return None if check is None else await check()


def caller() -> Caller:
    """Who makes the current call; nobody outside of one."""
    return current_caller.get(_NOBODY)


def by_whom() -> str:
    """Who makes the current call, for logs: a user's name, `node NAME`, or `the control plane` outside of one."""
    match caller():
        case UserCaller(user=user) | JumpHostCaller(user=user):
            return user.name
        case NodeCaller(node=node):
            return f"node {node}"
        case PeerCaller(member=member):
            return f"control plane {member}"
        case AnonymousCaller():
            return "anonymous" if current_caller.get(None) is not None else "the control plane"


def require_user() -> UserCaller:
    """Return the user who makes the current call.

    Raises:
        NotSignedIn: nobody known makes it.
        Denied: a node makes it.
    """
    match caller():
        case UserCaller() as user:
            return user
        case NodeCaller(node=node):
            raise Denied("only users may do this", why=f"the caller is node {node}")
        case PeerCaller(member=member):
            raise Denied("only users may do this", why=f"the caller is control plane {member}")
        case JumpHostCaller():
            raise Denied("only users may do this", why="the caller is a jump host")
        case AnonymousCaller():
            raise NotSignedIn("you are not signed in", attempt="nsml login HOST")


def require_owner(user: str, what: str, *, others: str) -> str:
    """The name of the user whose things are meant; Denied where they are not the caller's to touch.

    Args:
        user: as the caller named them; "": the caller.
        what: the things, in the plural.
        others: what administrators alone do with those of others, for people.
    """
    who = require_user()
    owner = user or who.user.name
    if may(who, ACT_FOR, Personal(owner)) is not ALLOW:
        raise Denied(f"{what} are their owner's", why=f"only administrators {others}")
    return owner


def require_jump_host() -> JumpHostCaller:
    """The jump host that makes the current call, for a user. Raises Denied."""
    match caller():
        case JumpHostCaller() as who:
            return who
    raise Denied("only jump hosts may do this")


def require_agent() -> NodeCaller:
    """The agent that makes the current call, itself or by way of another control plane."""
    match caller():
        case NodeCaller() as who:
            return who
        case PeerCaller(node=node) if node:
            return NodeCaller(node=check_node(node))
    raise Denied("only agents may do this")


def require_node(who: Caller, node: str) -> NodeCaller:
    """Return the caller if it is the agent of `node`: an agent speaks for its own node alone.

    Raises:
        NotSignedIn: nobody known calls.
        Denied: a user, or another node.
    """
    match who:
        case NodeCaller(node=own) if own == node:
            return who
        case NodeCaller(node=own):
            raise Denied(f"node {own} cannot act for node {node}")
        case PeerCaller(member=member):
            raise Denied("only agents may do this", why=f"the caller is control plane {member}")
        case UserCaller(user=user) | JumpHostCaller(user=user):
            raise Denied("only agents may do this", why=f"the caller is user {user.name}")
        case AnonymousCaller():
            raise NotSignedIn("a node's certificate or token is needed", attempt="nsml join HOST")
