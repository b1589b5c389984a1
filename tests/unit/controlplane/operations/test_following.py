"""Watchers that do not read: what happens meanwhile costs no memory that grows."""

from __future__ import annotations

import contextlib
import gc

from controlplane.domain.identity import User, UserCaller
from controlplane.domain.snapshot import SessionRemoved
from controlplane.operations import records
from controlplane.operations.following import SessionWatch
from controlplane.operations.listing import Filter
from controlplane.operations.state import LiveState
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))


def waiting_removals() -> int:
    gc.collect()
    return sum(isinstance(one, SessionRemoved) for one in gc.get_objects())


async def test_what_came_and_went_unseen_does_not_wait_for_a_watcher() -> None:
    before = waiting_removals()
    clock = HandClock()
    state = LiveState(None, clock)  # type: ignore[arg-type]
    state.reach(1)
    stays, goes = session(), session()
    for one in (stays, goes):
        state.put_session(one, 2)
    watch = SessionWatch(state=state, clock=clock, caller=KIM, wanted=Filter())
    async with contextlib.aclosing(watch.steps(0)) as steps:
        assert len((await anext(steps)).changed) == 2
        state.delete(records.session_key(goes.id), 3)
        for number in range(1_000):
            passing = session()
            state.put_session(passing, 4 + 2 * number)
            state.delete(records.session_key(passing.id), 5 + 2 * number)
        new = session()
        state.put_session(new, 5_000)
        assert waiting_removals() == before + 1
        step = await anext(steps)
        assert [one.id for one in step.changed] == [new.id]
        assert step.removed == (goes.id,)
