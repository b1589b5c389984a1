"""Who may do what with which thing: one table, of which `may` and the catalogue's conditions are made.

Which methods users, agents and administrators may call at all is in the contract
(controlplane/access/access_table.py); `may` says what a user does with one thing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import attrgetter, contains, eq
from typing import TYPE_CHECKING, Any, Final, Protocol

from controlplane.domain.identity import Role
from controlplane.domain.values import Project, Visibility

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.identity import User, UserCaller


class Action(enum.IntEnum):
    """What somebody does with a thing."""

    SEE = enum.auto()
    CHANGE = enum.auto()
    ACT_FOR = enum.auto()
    """To use what a user has: the caller gave the name. Nothing is looked up for those who may not, so the refusal does
    not tell whether there is such a user."""
    ADMINISTER = enum.auto()
    """To run the platform."""


class Answer(enum.Enum):
    """What `may` says."""

    ALLOW = enum.auto()
    DENY = enum.auto()
    HIDE = enum.auto()
    """To be answered as for a thing that is not there: NotFound, in the same words, after the same time."""


class Shared(Protocol):
    """What has an owner and opens to others: a session, a dataset."""

    @property
    def owner(self) -> str:
        """A user's name."""
        ...

    @property
    def team(self) -> str:
        """The owner's when it was made; "" is none."""
        ...

    @property
    def visibility(self) -> Visibility:
        """To whom it opens."""
        ...


@dataclass(frozen=True, slots=True)
class Personal:
    """A user's own, which opens to nobody: secrets, tokens, a view, a node of theirs."""

    owner: str


@dataclass(frozen=True, slots=True)
class Platform:
    """All of it; nobody owns it."""


PLATFORM: Final = Platform()

Thing = Shared | Project | Personal | Platform


class Kind(enum.Enum):
    """What a rule is about."""

    SHARED = enum.auto()
    PROJECT = enum.auto()
    PERSONAL = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a user has to stand to a thing, and what that allows.

    Attributes:
        of: the kinds of things that it is about.
        allows: what such a user may do.
        field, own: the thing's field is the user's own field, or has it among others where `is_member`. It holds for no
            user who has nothing there, such as no team. "": it holds for every user.
        visibility: the thing has to have it; None: any will do.
    """

    of: frozenset[Kind]
    allows: frozenset[Action]
    field: str = ""
    own: str = ""
    is_member: bool = False
    visibility: Visibility | None = None


_SEE: Final = frozenset({Action.SEE})

ADMINISTRATOR: Final = frozenset(Action)
"""What administrators may do with everything."""

RULES: Final = (
    Rule(
        of=frozenset({Kind.SHARED, Kind.PROJECT}),
        allows=frozenset({Action.SEE, Action.CHANGE}),
        field="owner",
        own="name",
    ),
    Rule(
        of=frozenset({Kind.PERSONAL}),
        allows=frozenset({Action.SEE, Action.CHANGE, Action.ACT_FOR}),
        field="owner",
        own="name",
    ),
    Rule(of=frozenset({Kind.PROJECT}), allows=_SEE, field="members", own="name", is_member=True),
    Rule(
        of=frozenset({Kind.SHARED}),
        allows=_SEE,
        field="team",
        own="team",
        visibility=Visibility.TEAM,
    ),
    Rule(of=frozenset({Kind.SHARED}), allows=_SEE, visibility=Visibility.PUBLIC),
)
"""What everybody else may do."""


def may(caller: UserCaller, action: Action, thing: Thing) -> Answer:
    """What the caller is answered who wants to do this with the thing."""
    user = caller.user
    if user.role is _ADMIN:
        return _TO_ADMINISTRATORS[action]
    tests = _TESTS.get(type(thing))
    if tests is None:
        tests = _SHARED_TESTS[thing.visibility]  # type: ignore[union-attr]
    for own, field, holds in tests[action]:
        mine = own(user)
        if mine and holds(field(thing), mine):
            return _ALLOW
    if action is _SEEING:
        return _HIDE
    if action is Action.CHANGE:
        return _DENY if may(caller, _SEEING, thing) is _ALLOW else _HIDE
    return _DENY


def shared_rules(viewer: User, action: Action) -> tuple[Rule, ...] | None:
    """The rules of which one has to hold of a session or a dataset; None: the viewer may do it with all."""
    if viewer.role is _ADMIN and action in ADMINISTRATOR:
        return None
    return tuple(
        rule
        for rule in RULES
        if Kind.SHARED in rule.of
        and action in rule.allows
        and (not rule.own or getattr(viewer, rule.own))
    )


# Listings ask once for each session that there is: what the table says is made ready for them.
_ADMIN: Final = Role.ADMIN
_SEEING: Final = Action.SEE
_ALLOW, _DENY, _HIDE = Answer.ALLOW, Answer.DENY, Answer.HIDE
_TO_ADMINISTRATORS: Final = {one: _ALLOW if one in ADMINISTRATOR else _DENY for one in Action}

_Test = tuple["Callable[[Any], Any]", "Callable[[Any], Any]", "Callable[[Any, Any], bool]"]
_Tests = dict[Action, tuple[_Test, ...]]


def _test(rule: Rule) -> _Test:
    """Of whom, of what, and how both are compared."""
    if not rule.field:
        return attrgetter("name"), attrgetter("owner"), lambda _, __: True
    return attrgetter(rule.own), attrgetter(rule.field), contains if rule.is_member else eq


def _tests(kind: Kind, visibility: Visibility | None = None) -> _Tests:
    fitting = [rule for rule in RULES if kind in rule.of and rule.visibility in {None, visibility}]
    return {
        action: tuple(_test(rule) for rule in fitting if action in rule.allows) for action in Action
    }


_TESTS: Final[dict[type, _Tests]] = {
    Project: _tests(Kind.PROJECT),
    Personal: _tests(Kind.PERSONAL),
    Platform: dict.fromkeys(Action, ()),
}
_SHARED_TESTS: Final = {one: _tests(Kind.SHARED, one) for one in Visibility}
