"""What becomes of sessions that start after others."""

from __future__ import annotations

import pytest

from controlplane.domain.after import Verdict, together, verdict
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import After

ENDED = [state for state in SessionState if state.is_ended]
LIVE = [state for state in SessionState if not state.is_ended]


@pytest.mark.parametrize("is_any", [False, True])
@pytest.mark.parametrize("state", LIVE)
def test_what_has_not_ended_is_waited_for(state: SessionState, is_any: bool) -> None:
    assert verdict(After(session_id="s1", is_any=is_any), state) is Verdict.WAITS


@pytest.mark.parametrize("state", [*ENDED, None])
def test_a_success_is_what_is_waited_for_unless_any_end_will_do(state: SessionState | None) -> None:
    is_success = state is SessionState.SUCCEEDED
    wanted = Verdict.MET if is_success else Verdict.NEVER
    assert verdict(After(session_id="s1"), state) is wanted
    assert verdict(After(session_id="s1", is_any=True), state) is Verdict.MET


def test_of_several_one_that_can_never_be_met_decides_at_once() -> None:
    assert together([]) is Verdict.MET
    assert together([Verdict.MET, Verdict.MET]) is Verdict.MET
    assert together([Verdict.MET, Verdict.WAITS]) is Verdict.WAITS
    assert together([Verdict.WAITS, Verdict.NEVER, Verdict.MET]) is Verdict.NEVER
