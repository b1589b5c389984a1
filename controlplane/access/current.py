"""The caller of the current call: set by the interceptor, read by servicers."""

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
    """Set the caller of the current call: for the interceptor, and for tests of single servicers."""
    current_caller.set(who)


@dataclass(slots=True)
class Call:
    """Facts on a call for the audit trail, collected while it is served.

    Attributes:
        target: the name of the changed thing.
        is_elsewhere: another control plane answered it, and has its row.
    """

    target: str = ""
    is_elsewhere: bool = False


_current_call: ContextVar[Call] = ContextVar("current_call")


_check: ContextVar[Callable[[], Awaitable[NsmlError | None]]] = ContextVar("_check")


def begin_call() -> Call:
    """Begin a call: for the interceptor."""
    call = Call()
    _current_call.set(call)
    return call


def current_call() -> Call:
    """Return the current call; outside of one, an unused one."""
    return _current_call.get(None) or Call()


def note_target(name: str) -> None:
    """Set the full name of the thing changed by the current call."""
    current_call().target = name


def set_check(check: Callable[[], Awaitable[NsmlError | None]]) -> None:
    """Set the check whether the current call may continue: for the interceptor."""
    _check.set(check)


async def refused_by_now() -> NsmlError | None:
    """Return why the current call may not continue; None: it may, or that is unknown."""
    check = _check.get(None)
    return None if check is None else await check()


def caller() -> Caller:
    """Return the caller of the current call; anonymous outside of one."""
    return current_caller.get(_NOBODY)


def by_whom() -> str:
    """Name the caller of the current call for logs: a user's name, `node NAME`, or `the control plane` outside of one."""
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
    """Return the user of the current call.

    Raises:
        NotSignedIn: the caller is anonymous.
        Denied: the caller is not a user.
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
    """Return the owner of the requested things; Denied if the caller has no right to them.

    Args:
        user: from the request; "": the caller.
        what: the things, in the plural.
        others: what only administrators do with others' things, for people.
    """
    who = require_user()
    owner = user or who.user.name
    if may(who, ACT_FOR, Personal(owner)) is not ALLOW:
        raise Denied(f"{what} are their owner's", why=f"only administrators {others}")
    return owner


def require_jump_host() -> JumpHostCaller:
    """Return the jump host of the current call, which acts for a user. Raises Denied."""
    match caller():
        case JumpHostCaller() as who:
            return who
    raise Denied("only jump hosts may do this")


def require_agent() -> NodeCaller:
    """Return the agent of the current call, direct or forwarded by another control plane. Raises Denied."""
    match caller():
        case NodeCaller() as who:
            return who
        case PeerCaller(node=node) if node:
            return NodeCaller(node=check_node(node))
    raise Denied("only agents may do this")


def require_node(who: Caller, node: str) -> NodeCaller:
    """Return the caller if it is the agent of `node`: an agent acts for its own node alone.

    Raises:
        NotSignedIn: the caller is anonymous.
        Denied: it is any other caller.
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
