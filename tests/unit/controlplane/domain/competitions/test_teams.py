"""Teams: who joins, and what a merger may sum up to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.values import SubmissionLimit
from controlplane.domain.competitions.teams import (
    MOST_FOUNDED,
    MOST_MERGES,
    MergeBound,
    ancestry,
    disqualify,
    invite,
    join,
    leave,
    merge,
    most_by_now,
)
from controlplane.domain.competitions.values import CompetitionState, Facts, Pick
from controlplane.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    LimitReached,
    NotFound,
    StateConflict,
)
from controlplane.domain.identity import User
from tests.unit.controlplane.domain.competitions.facts import (
    DAY_S,
    ENDS,
    STARTS,
    facts,
    joined,
    phase,
)

LEE, PARK = User(name="lee"), User(name="park")


def merged(
    known: Facts, one: str, other: str, name: str = "", bound: MergeBound | None = None
) -> Facts:
    now = STARTS + 1
    asked = merge(known, one, other, name, bound=bound, now=now)
    assert asked.team == ""
    own = known.team_of(one)
    assert own is not None
    agrees = known.members_of(other)[0]
    done = merge(asked.facts, agrees, own.name, "", bound=bound, now=now)
    assert done.team == (name or other)
    return done.facts


def test_a_user_has_one_team() -> None:
    known = joined(facts(), "lee")
    with pytest.raises(AlreadyExists):
        join(known, LEE, "second", STARTS)
    with pytest.raises(AlreadyExists, match="there is a team lee"):
        join(known, PARK, "lee", STARTS)
    with pytest.raises(InvalidRequest):
        join(known, PARK, "a\x1b[2J", STARTS)


@pytest.mark.parametrize("state", [CompetitionState.DRAFT, CompetitionState.CLOSED])
def test_only_open_ones_are_joined(state: CompetitionState) -> None:
    with pytest.raises(StateConflict):
        join(facts(state=state), LEE, "", STARTS)


def test_the_organiser_takes_no_part() -> None:
    with pytest.raises(StateConflict):
        join(facts(), User(name="kim"), "", STARTS)


def test_by_invitation() -> None:
    known = facts(by_invitation=True)
    with pytest.raises(StateConflict, match="invitation"):
        join(known, LEE, "", STARTS)
    known = joined(invite(known, ["lee"], ""), "lee")
    assert known.members_of("lee") == ("lee",)
    with pytest.raises(StateConflict, match="not invited"):
        invite(known, ["park"], "lee")


def test_invited_users_join_a_team_until_it_is_full() -> None:
    known = invite(joined(facts(team_size=2), "lee"), ["park"], "lee")
    with pytest.raises(LimitReached):
        invite(known, ["sam"], "lee")
    known = join(known, PARK, "lee", STARTS)
    assert (known.members_of("lee"), known.invitations) == (("lee", "park"), ())


def test_who_leaves_can_found_the_team_again_and_nobody_else() -> None:
    known = leave(joined(facts(), "lee"), "lee")
    with pytest.raises(AlreadyExists):
        join(known, PARK, "lee", STARTS)
    assert joined(known, "lee").members_of("lee") == ("lee",)
    with pytest.raises(StateConflict):
        leave(known, "lee")


def test_nobody_leaves_a_disqualified_team_to_take_part_again() -> None:
    known = disqualify(joined(facts(), "lee"), "lee", "two accounts")
    with pytest.raises(StateConflict, match="two accounts"):
        leave(known, "lee")
    assert leave(disqualify(known, "lee", ""), "lee").members == ()


def test_one_user_does_not_take_all_the_teams_there_can_be() -> None:
    known = facts()
    for number in range(MOST_FOUNDED):
        known = leave(join(known, LEE, f"t{number}", STARTS), "lee")
    with pytest.raises(LimitReached, match="founded"):
        join(known, LEE, "another", STARTS)
    assert join(known, LEE, "t3", STARTS).members_of("t3") == ("lee",)
    assert joined(known, "park").members_of("park") == ("park",)


def test_a_team_asks_for_some_mergers_at_a_time() -> None:
    others = [f"p{number}" for number in range(MOST_MERGES + 1)]
    known = joined(facts(), "lee", *others)

    def asked(known: Facts, other: str) -> Facts:
        return merge(known, "lee", other, "", bound=None, now=STARTS).facts

    for other in others[:-1]:
        known = asked(known, other)
    assert asked(known, others[0]).merges
    with pytest.raises(LimitReached):
        asked(known, others[-1])


def test_merged_teams_are_one_and_their_names_stay_taken() -> None:
    known = joined(facts(), "lee", "park", "sam")
    known = merged(known, "lee", "park", "both")
    assert known.members_of("both") == ("lee", "park")
    assert ancestry(known, "both") == {"both", "lee", "park"}
    known = merged(known, "sam", "both")
    assert known.members_of("both") == ("lee", "park", "sam")
    assert ancestry(known, "both") == {"both", "lee", "park", "sam"}
    with pytest.raises(AlreadyExists):
        join(leave(known, "sam"), User(name="sam"), "sam", STARTS)


def test_picks_of_a_phase_that_is_over_stay_at_a_merger() -> None:
    over = phase("old", starts_at=1.0, ends_at=STARTS)
    known = joined(facts(over, phase()), "lee", "park")
    picks = tuple(Pick(phase=name, team="lee", submission_id=f"u{name}") for name in ("old", "one"))
    known = merged(replace(known, picks=picks), "lee", "park")
    assert [one.phase for one in known.picks] == ["old"]


def test_what_cannot_merge() -> None:
    known = joined(facts(team_size=1), "lee", "park")
    with pytest.raises(StateConflict, match="members"):
        merged(known, "lee", "park")
    known = joined(facts(), "lee", "park")
    for other in ("nobody", "lee"):
        with pytest.raises((NotFound, StateConflict)):
            merge(known, "lee", other, "", bound=None, now=STARTS)
    with pytest.raises(StateConflict, match="any more"):
        merge(known, "lee", "park", "", bound=None, now=ENDS)
    with pytest.raises(StateConflict, match="disqualified"):
        merge(disqualify(known, "park", "two accounts"), "lee", "park", "", bound=None, now=STARTS)
    with pytest.raises(NotFound):
        disqualify(known, "nobody", "x")


@given(
    count=st.integers(1, 10),
    window=st.sampled_from([3600.0, DAY_S, 7 * DAY_S]),
    elapsed=st.floats(0.0, 30 * DAY_S),
    submissions=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_a_merger_sums_to_no_more_than_one_team_could_have_had(
    count: int, window: float, elapsed: float, submissions: tuple[int, int]
) -> None:
    most = most_by_now(SubmissionLimit(count=count, window_s=window), STARTS, STARTS + elapsed)
    assert most is not None
    # So many fit into windows that do not overlap, one of them begun.
    assert count <= most <= count * (elapsed / window + 1)
    known = joined(facts(), "lee", "park")
    bound = MergeBound(counted=sum(submissions), most=most)
    if sum(submissions) > most:
        with pytest.raises(StateConflict, match="together"):
            merge(known, "lee", "park", "", bound=bound, now=STARTS)
    else:
        assert merged(known, "lee", "park", bound=bound).members_of("park") == ("lee", "park")


def test_without_a_limit_any_number_merges() -> None:
    assert most_by_now(SubmissionLimit(), STARTS, STARTS) is None


def test_a_third_teams_name_is_not_taken() -> None:
    known = joined(facts(), "lee", "park", "sam")
    with pytest.raises(AlreadyExists):
        merge(known, "lee", "park", "sam", bound=None, now=STARTS)
    asked = merge(known, "lee", "park", "new", bound=None, now=STARTS).facts
    taken = join(asked, User(name="eve"), "new", STARTS)
    with pytest.raises(AlreadyExists):
        merge(taken, "park", "lee", "", bound=None, now=STARTS)
