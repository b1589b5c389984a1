"""The tables are whole: every state can be reached, every life can end, nothing leaves an end."""

import pytest

from controlplane.domain.lifecycle import (
    REPLICA_LIFE,
    SESSION_LIFE,
    ImpossibleTransition,
    ReplicaPhase,
    SessionEvent,
    SessionState,
    advance,
    can,
    is_news,
)


def reachable(table, start):
    seen, edge = {start}, [start]
    while edge:
        state = edge.pop()
        following = {after for (before, _), after in table.items() if before is state}
        edge.extend(following - seen)
        seen |= following
    return seen


def test_every_state_is_reached_from_the_first():
    assert reachable(SESSION_LIFE, SessionState.QUEUED) == set(SessionState)


@pytest.mark.parametrize("state", SessionState)
def test_every_life_can_end_and_nothing_leaves_an_end(state):
    after = reachable(SESSION_LIFE, state)
    assert any(following.is_ended for following in after)
    if state.is_ended:
        assert after == {state}


def test_every_event_is_used():
    assert {event for _, event in SESSION_LIFE} == set(SessionEvent)


def test_devices_are_held_until_gone_only():
    for (before, event), after in SESSION_LIFE.items():
        if before.holds_devices and not after.holds_devices:
            assert event in {SessionEvent.GONE, SessionEvent.REQUEUED, SessionEvent.HELD}


def test_what_is_not_in_the_table_cannot_happen():
    assert not can(SessionState.SUCCEEDED, SessionEvent.STARTED)
    with pytest.raises(ImpossibleTransition):
        advance(SessionState.SUCCEEDED, SessionEvent.STARTED)


def test_a_replica_never_comes_back_and_is_told_once():
    assert set(REPLICA_LIFE) == set(ReplicaPhase)
    for known in ReplicaPhase:
        assert not is_news(known, known)
        for phase in ReplicaPhase:
            if is_news(phase, known):
                assert phase.is_gone or not known.is_gone
    assert is_news(ReplicaPhase.RUNNING, ReplicaPhase.PAUSED)
    assert not is_news(ReplicaPhase.PREPARING, ReplicaPhase.RUNNING)
