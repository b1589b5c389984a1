"""Who may do what with which thing: one table, of which `may` and the catalogue's conditions are made.

Which methods users, agents and administrators may call at all is in the contract
(controlplane/access/access_table.py); `may` says what a user does with one thing.
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


# Named on their own: listings ask for each session there is, and to get a member of an enum takes as long as the answer.
SEE, CHANGE, ACT_FOR, ADMINISTER = Action
ALLOW, DENY, HIDE = Answer

ADMINISTRATOR: Final = frozenset(Action)
"""What administrators may do with everything."""

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
"""What everybody else may do."""


def may(caller: UserCaller, action: Action, thing: Thing) -> Answer:
    """What the caller is answered who wants to do this with the thing."""
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


def viewers_may_see(thing: Shared, other: Shared) -> bool:
    """Whether everybody who may see `thing` may see `other`, too: a text that they all read may name it."""
    return all(may(viewer, SEE, other) is ALLOW for viewer in _viewers(thing))


def _viewers(thing: Shared) -> Iterator[UserCaller]:
    """For each rule that lets somebody see a thing, a user of whom nothing else is known."""
    for rule in RULES:
        if Kind.SHARED not in rule.of or SEE not in rule.allows:
            continue
        if rule.visibility in {None, thing.visibility}:
            known = {rule.own: getattr(thing, rule.field)} if rule.field else {}
            if all(known.values()):
                yield UserCaller(user=User(**{"name": "", **known}))


# What the table says of each kind, made ready for `may`.
def check_visibility(visibility: Visibility, team: str) -> Visibility:
    """The visibility, if there is somebody whom it lets see: `team` is the owner's, "" for none."""
    if visibility is Visibility.TEAM and not team:
        raise InvalidRequest(
            "you are in no team", why="nobody else would see it", attempt="private, or public"
        )
    return visibility


_ADMIN: Final = Role.ADMIN

if TYPE_CHECKING:
    _Get = Callable[[Any], Any]
    _Tests = tuple[tuple[_Get, _Get, Callable[[Any, Any], bool]], ...] | None
    """A field of the user, a field of the thing, and how they are compared; None: it holds for everybody."""


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
