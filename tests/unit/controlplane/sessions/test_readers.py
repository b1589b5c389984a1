"""Watchers that do not read: what happens meanwhile costs no memory that grows, and no end is lost."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import SessionRemoved
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.sessions.readers import SessionWatch
from controlplane.sessions.session_listing import Filter
from controlplane.state import state_cache as known
from controlplane.state.live_state import LiveState
from controlplane.state.state_cache import StateCache
from controlplane.store.interface import Delete, Transaction
from controlplane.stored import etcd_codec
from tests.support.examples import examples
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock, bench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from contextlib import AbstractAsyncContextManager

    from controlplane.domain.values import Session
    from controlplane.sessions.readers import Step

KIM = UserCaller(user=User(name="kim"))


def waiting_removals() -> int:
    gc.collect()
    return sum(isinstance(one, SessionRemoved) for one in gc.get_objects())


def live(*sessions: Session) -> LiveState:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    state.reach(1)
    for one in sessions:
        state.put_session(one, 2)
    return state


def watching(
    state: LiveState, wanted: Filter | None = None, *, after: int = 0
) -> AbstractAsyncContextManager[AsyncGenerator[Step, None]]:
    watch = SessionWatch(state=state, clock=HandClock(), caller=KIM, wanted=wanted or Filter())
    return contextlib.aclosing(watch.steps(after))


def ended(one: Session) -> Session:
    return replace(one, state=SessionState.SUCCEEDED)


def end(state: StateCache, one: Session, revision: int) -> None:
    """It ends, and is exported before anybody looks."""
    state.put_session(ended(one), revision)
    state.delete(etcd_codec.session_key(one.id), revision + 1)
    state.reach(revision + 1)


def ids(sessions: Iterable[Session]) -> list[str]:
    return [one.id for one in sessions]


async def test_what_came_and_went_unseen_costs_little_and_is_sent() -> None:
    before = waiting_removals()
    stays, goes = session(), session()
    state = live(stays, goes)
    async with watching(state) as steps:
        assert len((await anext(steps)).changed) == 2
        end(state, goes, 3)
        passing = [session() for _ in range(1_000)]
        for number, one in enumerate(passing):
            state.put_session(one, 5 + 3 * number)
            end(state, one, 6 + 3 * number)
        new = session()
        state.put_session(new, 5_000)
        assert waiting_removals() == before + 1
        step = await anext(steps)
        assert step.changed == (ended(goes), *map(ended, passing), new)
        assert step.removed == (goes.id, *ids(passing))


async def test_an_end_is_sent_also_when_the_session_left_in_the_same_step() -> None:
    one = session()
    state = live(one)
    async with watching(state) as steps:
        await anext(steps)
        end(state, one, 3)
        step = await anext(steps)
        assert (step.changed, step.removed, step.is_reset) == ((ended(one),), (one.id,), False)


async def test_an_end_is_sent_once() -> None:
    one, other = session(), session()
    state = live(one, other)
    async with watching(state) as steps:
        await anext(steps)
        state.put_session(ended(one), 3)
        assert (await anext(steps)).changed == (ended(one),)
        state.delete(etcd_codec.session_key(one.id), 4)
        step = await anext(steps)
        assert (step.changed, step.removed) == ((), (one.id,))
        end(state, other, 5)  # nothing that left before comes again
        step = await anext(steps)
        assert (step.changed, step.removed) == ((ended(other),), (other.id,))


async def test_of_what_does_not_fit_nothing_is_sent() -> None:
    mine = session(state=SessionState.RUNNING)
    state = live(mine)
    async with watching(state, Filter(states=(SessionState.RUNNING,))) as steps:
        await anext(steps)
        end(state, session(), 3)
        end(state, session(owner="lee", state=SessionState.RUNNING), 5)
        end(state, mine, 7)
        step = await anext(steps)
        assert (step.changed, step.removed) == ((), (mine.id,))


async def test_who_is_too_slow_is_sent_all_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "REMEMBERED_REMOVALS", 3)
    stays, *goes = (session() for _ in range(5))
    state = live(stays, *goes)
    async with watching(state) as steps:
        await anext(steps)
        for number, one in enumerate(goes):
            end(state, one, 3 + 2 * number)
        step = await anext(steps)
        assert (step.is_reset, step.changed, step.removed) == (True, (stays,), ())
        state.put_session(ended(stays), 20)
        step = await anext(steps)
        assert (step.is_reset, step.changed) == (False, (ended(stays),))


async def test_after_a_gap_in_what_the_control_plane_knows_all_is_sent_anew() -> None:
    """The end fell into history that was compacted before this control plane had seen it."""
    async with bench() as made:
        state = await made.member()
        one, stays = session(), session()
        await made.write(one, stays)
        await made.settled(state)
        async with watching(state) as steps:
            revision = (await anext(steps)).revision
            # Not a turn of the loop between: the watch falls behind what is kept.
            await made.write(ended(one))
            await made.store.commit(
                Transaction(success=(Delete(key=etcd_codec.session_key(one.id)),))
            )
            await made.store.compact((await made.store.list("leader")).revision)
            step = await anext(steps)
            assert (step.is_reset, step.changed) == (True, (stays,))
        async with watching(state, after=revision) as steps:
            step = await anext(steps)
            assert (step.is_reset, step.changed) == (True, (stays,))


async def test_after_an_end_that_its_watch_lost_all_is_sent_anew() -> None:
    one, stays = session(), session()
    state = live(one, stays)
    async with watching(state) as steps:
        told = (await anext(steps)).revision
        state.delete(etcd_codec.session_key(one.id), 4)
        state.reach(4)
        step = await anext(steps)
        assert (step.is_reset, step.changed, step.removed) == (True, (stays,), ())
    async with watching(state, after=told) as steps:
        assert (await anext(steps)).is_reset


class Lives:
    """Four sessions, each of which comes, changes, ends and leaves, step by step."""

    def __init__(self, state: LiveState) -> None:
        self._state = state
        self._left = {one.id: [one, replace(one, memo="changed"), ended(one), None] for one in FOUR}

    def go(self, session_id: str, revision: int) -> None:
        if not self._left[session_id]:
            return
        now = self._left[session_id].pop(0)
        if now is None:
            self._state.delete(etcd_codec.session_key(session_id), revision)
        else:
            self._state.put_session(now, revision)


FOUR = [session() for _ in range(4)]
GOES = st.tuples(st.sampled_from([one.id for one in FOUR]), st.integers(1, 4))
ORDERS = st.lists(GOES | st.sampled_from(["read", "resume"]), max_size=20)


@settings(max_examples=examples(200), deadline=None)
@given(ORDERS)
async def test_a_watcher_has_every_session_with_its_end_whenever_it_reads(orders) -> None:
    state, revision = live(), 1
    lives, seen, gone = Lives(state), {}, set()
    async with contextlib.AsyncExitStack() as stack:
        watch = await stack.enter_async_context(watching(state, after=1))
        told = (await anext(watch)).revision
        for order in [*orders, "resume"]:
            match order:
                case (session_id, steps):
                    for _ in range(steps):
                        revision += 1
                        lives.go(session_id, revision)
                    state.reach(revision)
                    continue
                case "resume":
                    watch = await stack.enter_async_context(watching(state, after=told))
                case "read":
                    revision += 1
                    state.put_session(session(), revision)  # there is something to read
                    state.reach(revision)
            step = await anext(watch)
            seen |= {one.id: one for one in step.changed}
            gone |= set(step.removed)
            told = step.revision
    left = {one.session.id: one.session for one in state.removals}
    assert gone == left.keys()
    assert seen == left | {key: stored.value for key, stored in state.sessions.items()}
