"""Who sees what."""

import pytest

from controlplane.domain.identity import Role, User, UserCaller, may_change, may_see
from controlplane.domain.values import Visibility
from controlplane.history.values import Dataset

OWNER = UserCaller(user=User(name="kim", team="vision"))
MATE = UserCaller(user=User(name="lee", team="vision"))
OTHER = UserCaller(user=User(name="park", team="speech"))
TEAMLESS = UserCaller(user=User(name="choi"))
ADMIN = UserCaller(user=User(name="root", role=Role.ADMIN))


def dataset(team: str, visibility: Visibility) -> Dataset:
    return Dataset(owner="kim", name="d", created_at=0.0, team=team, visibility=visibility)


@pytest.mark.parametrize(
    ("visibility", "viewers"),
    [
        (Visibility.PRIVATE, {"kim", "root"}),
        (Visibility.TEAM, {"kim", "lee", "root"}),
        (Visibility.PUBLIC, {"kim", "lee", "park", "choi", "root"}),
    ],
)
def test_visibility_opens_to_these_and_no_others(visibility, viewers):
    seen = {
        caller.user.name
        for caller in (OWNER, MATE, OTHER, TEAMLESS, ADMIN)
        if may_see(caller, dataset("vision", visibility))
    }
    assert seen == viewers


def test_having_no_team_is_not_a_team():
    assert not may_see(TEAMLESS, dataset("", Visibility.TEAM))


def test_only_owner_and_administrators_change():
    callers = (OWNER, MATE, OTHER, TEAMLESS, ADMIN)
    assert {c.user.name for c in callers if may_change(c, owner="kim")} == {"kim", "root"}
