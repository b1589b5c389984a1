"""Who calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """What a user may do."""

    MEMBER = "MEMBER"
    ADMIN = "ADMIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person or program with an account.

    Attributes:
        id: never given to another user, whatever becomes of the name. Users made before there were
            ids have their name, which no other id can be.
        kept_bytes: what the object store may keep for them, 0: no limit; None: what it may of anybody.
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
    """An agent; it speaks for its node alone.

    Attributes:
        id: of its joining, as of a user: a machine that joins later under the name has another one.
        joined_at: when that was, Unix seconds; 0: not known. What ran before was another machine's.
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
    """Another control plane; `node` is the one whose call it passes on, "" for none."""

    member: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHostCaller:
    """A jump host, for the user of a public key: it may only lead to ssh servers that ask for such a key themselves.

    Attributes:
        key: SHA-256 of the public key, in hexadecimal.
        key_name: as its user calls it.
    """

    user: User
    key: str
    key_name: str


@dataclass(frozen=True, slots=True)
class AnonymousCaller:
    """Nobody."""


Caller = UserCaller | NodeCaller | PeerCaller | JumpHostCaller | AnonymousCaller


def identity_of(caller: Caller) -> str:
    """Who calls, as a key: of nobody else, even after the name went to another user or node."""
    match caller:
        case UserCaller(user=user) | JumpHostCaller(user=user):
            return f"user {user.id}"
        case NodeCaller(id=node_id):
            return f"node {node_id}"
    return ""
