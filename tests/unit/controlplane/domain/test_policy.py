"""Who may do what: against a second list, written out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.policy import (
    ACT_FOR,
    ADMINISTER,
    ALLOW,
    CHANGE,
    DENY,
    HIDE,
    PLATFORM,
    SEE,
    Action,
    Personal,
    may,
    viewers_may_see,
)
from controlplane.domain.values import Project, Visibility
from controlplane.history.values import Dataset

if TYPE_CHECKING:
    from controlplane.domain.policy import Thing

CALLERS = {
    "kim": UserCaller(user=User(name="kim", team="vision")),
    "lee": UserCaller(user=User(name="lee", team="vision")),
    "park": UserCaller(user=User(name="park", team="speech")),
    "choi": UserCaller(user=User(name="choi")),
    "root": UserCaller(user=User(name="root", role=Role.ADMIN)),
}
LETTERS = {"A": ALLOW, "D": DENY, "H": HIDE}


def dataset(team: str, visibility: Visibility) -> Dataset:
    return Dataset(owner="kim", name="d", created_at=0.0, team=team, visibility=visibility)


@pytest.mark.parametrize(
    ("thing", "action", "answers"),  # to kim, lee, park, choi and root
    [
        (dataset("vision", Visibility.PRIVATE), SEE, "AHHHA"),
        (dataset("vision", Visibility.PRIVATE), CHANGE, "AHHHA"),
        (dataset("vision", Visibility.TEAM), SEE, "AAHHA"),
        (dataset("vision", Visibility.TEAM), CHANGE, "ADHHA"),
        (dataset("vision", Visibility.PUBLIC), SEE, "AAAAA"),
        (dataset("vision", Visibility.PUBLIC), CHANGE, "ADDDA"),
        (dataset("", Visibility.TEAM), SEE, "AHHHA"),  # having no team is not a team
        (Project(name="p", owner="kim", members=frozenset({"kim", "lee"})), SEE, "AAHHA"),
        (Project(name="p", owner="kim", members=frozenset({"kim", "lee"})), CHANGE, "ADHHA"),
        (Project(name="p", members=frozenset({"lee"})), CHANGE, "HDHHA"),
        (Personal("kim"), SEE, "AHHHA"),
        (Personal("kim"), CHANGE, "AHHHA"),
        (Personal("kim"), ACT_FOR, "ADDDA"),
        (Personal(""), ACT_FOR, "DDDDA"),
        (PLATFORM, ADMINISTER, "DDDDA"),
    ],
)
def test_to_whom_what_is_answered(thing: Thing, action: Action, answers: str) -> None:
    found = {name: may(caller, action, thing) for name, caller in CALLERS.items()}
    assert found == dict(zip(CALLERS, (LETTERS[one] for one in answers), strict=True))


PRIVATE, TEAM, PUBLIC = Visibility.PRIVATE, Visibility.TEAM, Visibility.PUBLIC


@pytest.mark.parametrize(
    ("thing", "other", "may_be_named"),
    [
        (dataset("vision", PRIVATE), dataset("vision", PRIVATE), True),
        (dataset("vision", PRIVATE), dataset("speech", PRIVATE), True),  # one owner, nobody else
        (dataset("vision", TEAM), dataset("vision", PRIVATE), False),
        (dataset("vision", TEAM), dataset("vision", TEAM), True),
        (dataset("vision", TEAM), dataset("speech", TEAM), False),
        (dataset("", TEAM), dataset("", PRIVATE), True),  # having no team is not a team
        (dataset("vision", PUBLIC), dataset("vision", TEAM), False),
        (dataset("vision", PUBLIC), dataset("vision", PUBLIC), True),
        (dataset("vision", TEAM), replace(dataset("vision", TEAM), owner="lee"), False),  # kim may leave
        (dataset("vision", PRIVATE), replace(dataset("", PUBLIC), owner="lee"), True),
    ],
)  # fmt: skip
def test_a_thing_is_named_to_viewers_of_another_if_all_of_them_may_see_it(
    thing: Dataset, other: Dataset, may_be_named: bool
) -> None:
    assert viewers_may_see(thing, other) == may_be_named
