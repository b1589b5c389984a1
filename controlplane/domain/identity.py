"""Who calls, and what visibility lets them see."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from controlplane.domain.values import Visibility


class Role(enum.StrEnum):
    """What a user may do."""

    MEMBER = "MEMBER"
    ADMIN = "ADMIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person or program with an account."""

    name: str
    role: Role = Role.MEMBER
    team: str = ""
    created_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCaller:
    """A signed-in user. `token` is the fingerprint of the token used, "" inside the platform."""

    user: User
    token: str = ""

    @property
    def is_admin(self) -> bool:
        """Whether every door is open."""
        return self.user.role is Role.ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCaller:
    """An agent; it speaks for its node alone."""

    node: str


@dataclass(frozen=True, slots=True)
class AnonymousCaller:
    """Nobody."""


Caller = UserCaller | NodeCaller | AnonymousCaller


def may_see(caller: UserCaller, *, owner: str, team: str, visibility: Visibility) -> bool:
    """Whether a thing of `owner` is visible to the caller; if not it is answered NotFound."""
    if caller.is_admin or caller.user.name == owner:
        return True
    if visibility is Visibility.PUBLIC:
        return True
    return visibility is Visibility.TEAM and team != "" and team == caller.user.team


def may_change(caller: UserCaller, *, owner: str) -> bool:
    """Whether the caller may change a thing of `owner`."""
    return caller.is_admin or caller.user.name == owner
