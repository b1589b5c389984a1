"""Users, and the callers of RPCs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """A user's role."""

    MEMBER = "MEMBER"
    ADMIN = "ADMIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person or program with an account.

    Attributes:
        id: never reused, even if the name is. Users created before there were ids have their name,
            which cannot equal another id.
        kept_bytes: limit of their bytes in the object store, 0: none; None: the platform's default.
    """

    name: str
    id: str = ""
    role: Role = Role.MEMBER
    team: str = ""
    created_at: float = 0.0
    kept_bytes: int | None = None

    def __post_init__(self) -> None:
        """Give a user without an id the name as one."""
        if not self.id:
            object.__setattr__(self, "id", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCaller:
    """A signed-in user. `token` is the fingerprint of the token used, "" inside the platform."""

    user: User
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCaller:
    """An agent; it acts for its node alone.

    Attributes:
        id: of this join, never reused: a machine that joins later under the name has another one.
        joined_at: time of the join, Unix seconds; 0: unknown. Earlier replicas ran on another machine.
    """

    node: str
    id: str = ""
    joined_at: float = 0.0

    def __post_init__(self) -> None:
        """Give a node without an id the name as one."""
        if not self.id:
            object.__setattr__(self, "id", self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCaller:
    """Another control plane; `node`: it forwards a call of this node; "": it calls itself."""

    member: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHostCaller:
    """A jump host, for the user of a public key: it may only connect to ssh servers that check such keys themselves.

    Attributes:
        key: SHA-256 of the public key, in hexadecimal.
        key_name: its user's name for it.
    """

    user: User
    key: str
    key_name: str


@dataclass(frozen=True, slots=True)
class AnonymousCaller:
    """A caller without credentials."""


Caller = UserCaller | NodeCaller | PeerCaller | JumpHostCaller | AnonymousCaller


def identity_of(caller: Caller) -> str:
    """Return a key of a user or node that stays unique when its name is reused; "" for other callers."""
    match caller:
        case UserCaller(user=user) | JumpHostCaller(user=user):
            return f"user {user.id}"
        case NodeCaller(id=node_id):
            return f"node {node_id}"
    return ""
