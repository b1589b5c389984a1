from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bench.scheduler.reserving import Held, Outlook, reserve

WIDTH = 8
NOW = 100.0

Runs = list[tuple[float, int]]


@st.composite
def nodes(draw: st.DrawFn) -> dict[int, Outlook]:
    found = {}
    for node in range(draw(st.integers(1, 4))):
        free, ends = WIDTH, []
        for _ in range(draw(st.integers(0, 4))):
            held = draw(st.integers(1, WIDTH))
            if held > free:
                break
            free -= held
            ends.append((draw(st.integers(101, 120)) * 1.0, held))
        if draw(st.booleans()) and ends:
            ends.pop()  # somebody runs without a limit
        found[node] = Outlook(free, tuple(sorted(ends)))
    return found


gangs = st.lists(st.integers(1, WIDTH), min_size=1, max_size=3).map(
    lambda parts: sorted(parts, reverse=True)
)


@given(nodes(), st.lists(gangs, min_size=1, max_size=3), st.data())
def test_what_runs_ahead_keeps_no_reservation_waiting(
    outlooks: dict[int, Outlook], blocked: list[list[int]], data: st.DataObject
) -> None:
    held, reservations = Held(), []
    for parts in blocked:
        reservation = reserve(parts, outlooks, NOW, held)
        if reservation is not None:
            held.add(reservation)
            reservations.append(reservation)
    for _ in range(data.draw(st.integers(0, 12))):
        node = data.draw(st.sampled_from(sorted(outlooks)))
        outlook = outlooks[node]
        part = data.draw(st.integers(1, WIDTH))
        until = data.draw(st.one_of(st.integers(101, 125).map(float), st.just(math.inf)))
        if part <= outlook.free and held.leave_room(node, part, outlook, until):
            ends = outlook.ends if until == math.inf else (*outlook.ends, (until, part))
            outlooks[node] = Outlook(outlook.free - part, tuple(sorted(ends)))
    # Everybody ends at the limit, the latest there is: each reservation is met, with those before it.
    for reservation in reservations:
        for node, _ in reservation.parts:
            due = sum(
                part
                for one in reservations
                if one.at <= reservation.at
                for at, part in one.parts
                if at == node
            )
            assert outlooks[node].free_at(reservation.at) >= due


@given(nodes(), gangs)
def test_a_reservation_is_whole_and_on_different_nodes(
    outlooks: dict[int, Outlook], parts: list[int]
) -> None:
    reservation = reserve(parts, outlooks, NOW, Held())
    if reservation is None:
        return
    assert [part for _, part in reservation.parts] == parts
    assert len({node for node, _ in reservation.parts}) == len(parts)
    assert reservation.at >= NOW


def test_a_gang_is_promised_the_earliest_instant() -> None:
    outlooks = {
        0: Outlook(0, ((500.0, 8),)),
        1: Outlook(4, ((200.0, 4),)),
        2: Outlook(0, ((300.0, 4), (400.0, 4))),
    }
    reservation = reserve([8, 4], outlooks, NOW, Held())
    assert reservation is not None
    assert reservation.at == 300.0
    assert reservation.parts == ((1, 8), (2, 4))


def test_nothing_is_promised_of_what_has_no_limit() -> None:
    assert reserve([8], {0: Outlook(4)}, NOW, Held()) is None


def test_a_limit_that_has_passed_promises_now() -> None:
    reservation = reserve([8], {0: Outlook(0, ((50.0, 8),))}, NOW, Held())
    assert reservation is not None
    assert reservation.at == NOW


def test_who_ends_before_may_run_ahead_and_who_does_not_may_not() -> None:
    outlook = Outlook(4, ((200.0, 4),))
    held = Held()
    reservation = reserve([8], {0: outlook}, NOW, held)
    assert reservation is not None
    held.add(reservation)
    assert held.leave_room(0, 4, outlook, 200.0)
    assert not held.leave_room(0, 4, outlook, 201.0)
    assert not held.leave_room(0, 1, outlook, math.inf)
    assert held.leave_room(1, 8, Outlook(8), math.inf)
