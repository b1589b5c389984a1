"""Where an agent goes to find the leader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.link.routes import MOST_LEARNED, Route, Routes

A, B, C = "a:1", "b:1", "c:1"


def routes(*addresses: str, at: str = "") -> Routes:
    found = Routes("n1", addresses)
    while at and found.now.address != at:
        found.lost()
    return found


def test_the_leader_is_dialled() -> None:
    found = routes(A, B, C, at=B)
    found.led_by(C, 0.0, is_dialled=True)
    assert found.now == Route(C)


def test_a_leader_that_cannot_be_reached_is_reached_through_who_told_of_it() -> None:
    found = routes(A, B, C, at=A)
    found.avoid(A, 100.0)
    found.lost()
    teller = found.now.address
    found.led_by(A, 100.1, is_dialled=True)
    assert found.now == Route(teller, is_relayed=True)
    found.led_by(A, 100.2, is_dialled=True)
    assert found.now not in {Route(teller), Route(teller, is_relayed=True)}
    found.led_by(A, 200.0, is_dialled=True)  # much later it may be there again
    assert found.now == Route(A)


def test_a_leader_that_may_not_be_dialled_is_reached_through_the_only_one_there_is() -> None:
    found = routes(A)
    found.led_by("far:1", 0.0, is_dialled=False)
    assert found.now == Route(A, is_relayed=True)
    found.led_by("far:1", 0.0, is_dialled=False)
    assert found.now == Route(A)


def test_who_knows_no_leader_is_left() -> None:
    for said in ("", A):
        found = routes(A, B, at=A)
        found.led_by(said, 0.0, is_dialled=True)
        assert found.now == Route(B)


def test_one_that_relayed_and_leads_by_now_is_dialled() -> None:
    found = routes(A, B, at=A)
    found.led_by("far:1", 0.0, is_dialled=False)
    found.led_by(A, 0.0, is_dialled=True)
    assert found.now == Route(A)


def test_a_leader_whose_address_nobody_told_is_left_for_one_that_is_known() -> None:
    found = routes(A, B, at=A)
    found.led_by("new:1", 0.0, is_dialled=True)
    found.lost()
    assert found.now.address in {A, B}


def test_nodes_do_not_all_go_to_the_same() -> None:
    firsts = {Routes(f"n{number}", [A, B, C]).now.address for number in range(50)}
    assert firsts == {A, B, C}


def test_what_the_settings_say_stays_whatever_is_told() -> None:
    found = Routes("n1", [A])
    found.learn([B])
    assert set(found.addresses) == {A, B}
    assert found.learn([C])
    assert set(found.addresses) == {A, B, C}
    assert not found.learn([C])
    for number in range(100):
        found.learn([f"x{number}:1"])
    assert A in found.addresses
    assert "x99:1" in found.addresses
    assert len(found.addresses) == MOST_LEARNED + 1


outcome = st.one_of(
    st.tuples(st.just("lost")),
    st.tuples(st.just("avoid")),
    st.tuples(st.just("led"), st.sampled_from([A, B, C, "", "z:1"]), st.booleans()),
)


@given(st.lists(outcome, max_size=30), st.floats(0, 100))
def test_whatever_happened_every_control_plane_is_asked_when_all_are_lost(
    outcomes: list[tuple[object, ...]], step: float
) -> None:
    found, now = routes(A, B, C), 0.0
    for what, *rest in outcomes:
        now += step
        match what:
            case "lost":
                found.lost()
            case "avoid":
                found.avoid(found.now.address, now)
            case _:
                leader, is_dialled = rest
                found.led_by(str(leader), now, is_dialled=bool(is_dialled))
    asked = set()
    for _ in range(4):
        found.lost()
        asked.add(found.now.address)
    assert asked == {A, B, C}
