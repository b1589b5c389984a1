"""Access policy: one table of rules for `may` and for the catalogue's conditions.

The contract decides which methods users, agents and administrators may call at all
(controlplane/access/access_table.py); `may` decides on an action of a user on one thing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import attrgetter, contains, eq
from typing import TYPE_CHECKING, Any, Final, Protocol

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.values import Project, Visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Action(enum.IntEnum):
    """An action on a thing."""

    SEE = enum.auto()
    CHANGE = enum.auto()
    ACT_FOR = enum.auto()
    """Use a user's things, by a name from the caller. Without permission nothing is looked up, so the refusal does not
    reveal whether the user exists."""
    ADMINISTER = enum.auto()
    """Administer the platform."""


class Answer(enum.Enum):
    """Result of `may`."""

    ALLOW = enum.auto()
    DENY = enum.auto()
    HIDE = enum.auto()
    """Answer as for a nonexistent thing: NotFound, with the same text, after the same time."""


class Shared(Protocol):
    """A thing with an owner that can be visible to others: a session, a dataset."""

    @property
    def owner(self) -> str:
        """A user's name."""
        ...

    @property
    def team(self) -> str:
        """The owner's team at its creation; "" is none."""
        ...

    @property
    def visibility(self) -> Visibility:
        """Who may see it."""
        ...


@dataclass(frozen=True, slots=True)
class Personal:
    """A user's private thing, never visible to others: secrets, tokens, a view, an own node."""

    owner: str


@dataclass(frozen=True, slots=True)
class Platform:
    """The whole platform, without an owner."""


PLATFORM: Final = Platform()

Thing = Shared | Project | Personal | Platform


class Kind(enum.Enum):
    """Kind of thing that a rule covers."""

    SHARED = enum.auto()
    PROJECT = enum.auto()
    PERSONAL = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A relation of a user to a thing, and the actions that it allows.

    Attributes:
        of: the kinds of things that it covers.
        allows: the actions.
        field, own: the thing's field must equal the user's field `own`, or contain it if `is_member`. It never holds
            if the user's field is empty, such as without a team. "": it holds for every user.
        visibility: required of the thing; None: any.
    """

    of: frozenset[Kind]
    allows: frozenset[Action]
    field: str = ""
    own: str = ""
    is_member: bool = False
    visibility: Visibility | None = None


# Bound to names: listings call `may` for each session, and an enum's attribute lookup takes as long as the answer.
SEE, CHANGE, ACT_FOR, ADMINISTER = Action
ALLOW, DENY, HIDE = Answer

ADMINISTRATOR: Final = frozenset(Action)
"""Actions of administrators, on everything."""

RULES: Final = (
    Rule(
        of=frozenset({Kind.SHARED, Kind.PROJECT}),
        allows=frozenset({SEE, CHANGE}),
        field="owner",
        own="name",
    ),
    Rule(
        of=frozenset({Kind.PERSONAL}),
        allows=frozenset({SEE, CHANGE, ACT_FOR}),
        field="owner",
        own="name",
    ),
    Rule(
        of=frozenset({Kind.PROJECT}),
        allows=frozenset({SEE}),
        field="members",
        own="name",
        is_member=True,
    ),
    Rule(
        of=frozenset({Kind.SHARED}),
        allows=frozenset({SEE}),
        field="team",
        own="team",
        visibility=Visibility.TEAM,
    ),
    Rule(of=frozenset({Kind.SHARED}), allows=frozenset({SEE}), visibility=Visibility.PUBLIC),
)
"""Permissions of all other users."""


def may(caller: UserCaller, action: Action, thing: Thing) -> Answer:
    """Decide on the caller's action on a thing."""
    user = caller.user
    if user.role is _ADMIN:
        return ALLOW if action in ADMINISTRATOR else DENY
    kind = type(thing)
    tests = _TESTS[kind][action] if kind in _TESTS else _SHARED_TESTS[action][thing.visibility]  # type: ignore[union-attr]
    if tests is None:
        return ALLOW
    for own, field, holds in tests:
        mine = own(user)
        if mine and holds(field(thing), mine):
            return ALLOW
    if action is SEE:
        return HIDE
    if action is CHANGE and may(caller, SEE, thing) is not ALLOW:
        return HIDE
    return DENY


def shared_rules(viewer: User, action: Action) -> tuple[Rule, ...] | None:
    """Return rules, one of which must hold for a session or a dataset; None: the viewer may do it with all."""
    if viewer.role is _ADMIN and action in ADMINISTRATOR:
        return None
    return tuple(
        rule
        for rule in RULES
        if Kind.SHARED in rule.of
        and action in rule.allows
        and (not rule.own or getattr(viewer, rule.own))
    )


def viewers_may_see(thing: Shared, other: Shared) -> bool:
    """Return whether all viewers of `thing` may see `other`, too: a text for them may name it."""
    return all(may(viewer, SEE, other) is ALLOW for viewer in _viewers(thing))


def _viewers(thing: Shared) -> Iterator[UserCaller]:
    """Yield, for each rule that makes a thing visible, a user with just the required field."""
    for rule in RULES:
        if Kind.SHARED not in rule.of or SEE not in rule.allows:
            continue
        if rule.visibility in {None, thing.visibility}:
            known = {rule.own: getattr(thing, rule.field)} if rule.field else {}
            if all(known.values()):
                yield UserCaller(user=User(**{"name": "", **known}))


# The table by kind, compiled for `may`.
def check_visibility(visibility: Visibility, team: str) -> Visibility:
    """Return it; refuse TEAM without a team, which nobody else would see. `team` is the owner's, "" for none."""
    if visibility is Visibility.TEAM and not team:
        raise InvalidRequest(
            "you are in no team", why="nobody else would see it", attempt="private, or public"
        )
    return visibility


_ADMIN: Final = Role.ADMIN

if TYPE_CHECKING:
    _Get = Callable[[Any], Any]
    _Tests = tuple[tuple[_Get, _Get, Callable[[Any, Any], bool]], ...] | None
    """A field of the user, a field of the thing, and their comparison; None: it holds for every user."""


def _tests(kind: Kind, action: Action, visibility: Visibility | None = None) -> _Tests:
    rules = [
        rule
        for rule in RULES
        if kind in rule.of and action in rule.allows and rule.visibility in {None, visibility}
    ]
    if any(not rule.field for rule in rules):
        return None
    return tuple(
        (attrgetter(rule.own), attrgetter(rule.field), contains if rule.is_member else eq)
        for rule in rules
    )


_TESTS: Final[dict[type, dict[Action, _Tests]]] = {
    Project: {action: _tests(Kind.PROJECT, action) for action in Action},
    Personal: {action: _tests(Kind.PERSONAL, action) for action in Action},
    Platform: dict.fromkeys(Action, ()),
}
_SHARED_TESTS: Final = {
    action: {one: _tests(Kind.SHARED, action, one) for one in Visibility} for action in Action
}
