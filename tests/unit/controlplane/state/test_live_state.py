"""What lives, kept by changes: never older than what is known, always what a listing says."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.changes import TeamQuotaChanged, TeamQuotaRemoved
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Allocation, Replica, TeamQuota
from controlplane.state.live_state import RELIST_EVERY_S, LiveState
from controlplane.store.interface import Delete, Put, StoreUnavailable, Transaction
from controlplane.stored import etcd_codec
from tests.support.examples import examples
from tests.unit.controlplane.builders import held, node, session
from tests.unit.controlplane.snapshot import ClusterSnapshot
from tests.unit.controlplane.workbench import HandClock, bench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from controlplane.store.interface import Listing, WatchBatch
    from tests.unit.controlplane.workbench import Flaky

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["session", "end", "forget", "node", "drop", "alloc", "silent", "heard"]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, st.lists(st.integers(0, 40), max_size=4))
def test_a_snapshot_kept_by_changes_is_a_fresh_one(steps, flushes: list[int]) -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    sessions = [session(created_at=float(i % 3)) for i in range(5)]
    with state.subscribed() as changes:
        snapshot = ClusterSnapshot()
        for position, (step, which) in enumerate(steps):
            revision = position + 2
            match step:
                case "session":
                    state.put_session(sessions[which], revision)
                case "end":
                    ended = replace(sessions[which], state=SessionState.RUNNING)
                    state.put_session(ended, revision)
                case "forget":
                    state.delete(etcd_codec.session_key(sessions[which].id), revision)
                case "node":
                    state.put_node(node(f"n{which}", which), revision)
                case "drop":
                    state.delete(etcd_codec.node_key(f"n{which}"), revision)
                case "alloc":
                    shares = [(f"n{which}-0", 500)] if position % 2 else []
                    allocation = held(f"n{which}", *shares)
                    if position % 3 == 0:
                        allocation = Allocation(node=f"n{which}")
                    state.put_allocation(allocation, revision)
                case "silent" | "heard":
                    state.set_contact(f"n{which}", is_silent=step == "silent")
            if position in flushes:
                snapshot = snapshot.apply(changes.drain())
        snapshot = snapshot.apply(changes.drain())
    fresh = ClusterSnapshot().apply(state.everything())
    assert dict(snapshot.nodes) == dict(fresh.nodes)
    assert list(snapshot.queued.items()) == list(fresh.queued.items())
    assert dict(snapshot.allocations) == dict(fresh.allocations)
    assert snapshot.silent == fresh.silent


def known(state: LiveState) -> dict[str, object]:
    return {
        "sessions": dict(state.sessions),
        "nodes": dict(state.nodes),
        "allocations": dict(state.allocations),
        "counters": dict(state.counters),
    }


PLACES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3), st.booleans()),
    max_size=30,
)


@settings(max_examples=examples(200), deadline=None)
@given(PLACES)
def test_the_sessions_of_a_node_are_those_with_a_replica_there(places) -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    sessions = [session() for _ in range(4)]
    for revision, (which, nodes, leaves) in enumerate(places, start=2):
        one = sessions[which]
        if leaves:
            state.delete(etcd_codec.session_key(one.id), revision)
        else:
            replicas = tuple(Replica(rank=rank, node=f"n{at}") for rank, at in enumerate(nodes))
            state.put_session(replace(one, replicas=replicas), revision)
        live = [stored.value for stored in state.sessions.values()]
        for name in ("n0", "n1", "n2", "n3"):
            there = [one for one in live if any(part.node == name for part in one.replicas)]
            assert state.sessions_on(name) == sorted(there, key=lambda one: one.id)


async def test_every_member_sees_the_same() -> None:
    async with bench() as made:
        first, second = await made.member(), await made.member()
        one, other = session(), session()
        await made.write(node("a"), one, other, node("b"))
        delete = Delete(key=etcd_codec.session_key(other.id))
        await made.store.commit(Transaction(success=(delete,)))
        await made.settled(first, second)
        fresh = await made.member()
        assert known(first) == known(second) == known(fresh)
        assert first.by_name(one.name) == one
        assert first.by_request("kim", one.request_id) == one
        assert first.session(other.id) is None
        assert first.by_name(other.name) is None
        assert [removal.session for removal in first.removals] == [other]


async def test_own_writes_are_ahead_of_the_watch_and_never_undone() -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    old, new = session(), None
    new = replace(old, memo="new")
    assert state.put_session(new, 9)
    assert not state.put("session/" + old.id, etcd_codec.encode_session(old), 7)
    assert state.session(old.id) == new
    state.delete(etcd_codec.session_key(old.id), 12)
    assert not state.put("session/" + old.id, etcd_codec.encode_session(old), 11)
    assert state.session(old.id) is None
    assert state.put("session/" + old.id, etcd_codec.encode_session(old), 13)


async def test_a_late_answer_does_not_bring_back_what_has_left() -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    one = session()
    state.put("session/" + one.id, etcd_codec.encode_session(one), 5)
    state.delete("session/" + one.id, 6)
    state.reach(6)
    assert not state.put_session(one, 5)
    assert state.session(one.id) is None
    assert state.by_name(one.name) is None


async def test_quotas_of_teams_come_change_and_leave() -> None:
    async with bench() as made:
        state = await made.member()
        one = TeamQuota(competition_id="c1", competition="cup", gpu_thousandths=1000)
        key = etcd_codec.team_quota_key("c1")
        with state.subscribed(key) as changes:
            for quota in (one, replace(one, gpu_thousandths=500, merged={"lee": "both"})):
                put = Put(key=key, value=etcd_codec.encode_team_quota(quota))
                await made.store.commit(Transaction(success=(put,)))
                await made.settled(state)
                assert state.team_quotas["c1"].value == quota
                assert changes.drain() == [TeamQuotaChanged(quota=quota)]
                assert TeamQuotaChanged(quota=quota) in list(state.everything())
                assert key in dict(state.keys())
            await made.store.commit(Transaction(success=(Delete(key=key),)))
            await made.settled(state)
            assert changes.drain() == [TeamQuotaRemoved(competition_id="c1")]
        assert not state.team_quotas


async def test_compaction_is_answered_by_a_listing() -> None:
    async with bench() as made:
        state = await made.member()
        one = session()
        await made.write(one)
        await made.write(session(project="vision"))
        await made.settled(state)
        for account in state.accounts.names():
            with state.accounts.reading(account, 0.0, 0.0) as reading:
                reading.finish()
        assert state.accounts.unread(0.0, 0.0) is None
        # Not a turn of the loop between: the watch falls behind what is kept.
        for number in range(5):
            put = Put(key=etcd_codec.node_key("a"), value=etcd_codec.encode_node(node("a", number)))
            await made.store.commit(Transaction(success=(put,)))
        await made.store.commit(Transaction(success=(Delete(key=etcd_codec.session_key(one.id)),)))
        listing = await made.store.list("")
        await made.store.compact(listing.revision)
        await made.settled(state)
        assert len(state.nodes["a"].value.devices) == 4
        assert state.session(one.id) is None
        with state.accounts.reading(one.owner, 0.0, 0.0) as reading:
            reading.finish()
        assert state.accounts.unread(0.0, 0.0) == "vision"


class Interrupted:
    """A store whose watch ends once `breaks` is set, cut or not; more happens until it is listed again."""

    def __init__(self, store: Flaky, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self.breaks = asyncio.Event()
        self.happened = asyncio.Event()
        self.is_cut = False

    async def list(self, prefix: str, *, revision: int = 0) -> Listing:
        if self.breaks.is_set():
            await self._meanwhile()
        return await self._store.list(prefix, revision=revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(self._store.watch(prefix, from_revision)) as batches:
            async for batch in batches:
                yield batch
                if self.breaks.is_set() and self.is_cut:
                    self.is_cut = False
                    raise StoreUnavailable("scripted")


@pytest.mark.parametrize("why", ["the store was away", "it was time to list"])
async def test_between_a_watch_and_the_next_nothing_is_skipped(why: str) -> None:
    one = session()
    ended = replace(one, state=SessionState.SUCCEEDED)

    async def meanwhile() -> None:
        store.breaks.clear()
        await made.write(ended)
        await made.store.commit(Transaction(success=(Delete(key=etcd_codec.session_key(one.id)),)))
        store.happened.set()

    async with bench() as made:
        store = Interrupted(made.store, meanwhile)
        state = LiveState(store, made.clock)  # type: ignore[arg-type]
        made.tasks.append(made.group.create_task(state.follow()))
        await made.write(one)
        await made.settled(state)
        began = state.first_revision
        store.breaks.set()
        store.is_cut = why == "the store was away"
        made.clock.now += 0 if store.is_cut else RELIST_EVERY_S + 1
        await made.write(node("a"))
        await made.settled(state)
        await store.happened.wait()
        await made.settled(state)
        assert [removal.session for removal in state.removals] == [ended]
        assert (state.repaired, state.first_revision) == (0, began)


class AmongOthers:
    """A store of which others have a part: it counts their revisions, and a watch is told none of them."""

    def __init__(self, store: Flaky) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(self._store.watch(prefix, from_revision)) as batches:
            told = from_revision - 1
            async for batch in batches:
                if not any(event.key.startswith("elsewhere/") for event in batch.events):
                    told = batch.revision if batch.events else told
                    yield replace(batch, revision=told)


async def test_what_others_write_to_the_same_etcd_keeps_nobody_waiting() -> None:
    async with bench() as made:
        state = LiveState(AmongOthers(made.store), made.clock)  # type: ignore[arg-type]
        made.tasks.append(made.group.create_task(state.follow()))
        await state.reached(1)
        put = Put(key="elsewhere/lease", value=b"")
        theirs = (await made.store.commit(Transaction(success=(put,)))).revision
        async with asyncio.timeout(60):
            assert await state.catch_up(theirs)
        assert not await state.catch_up(theirs + 100), "it never happened"


async def test_a_subscription_keeps_the_newest_of_each_key() -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    one = session()
    with (
        state.subscribed() as everything,
        state.subscribed(etcd_codec.session_key(one.id)) as its,
        state.subscribed("session/other") as others,
    ):
        for revision in range(2, 50):
            state.put_session(replace(one, memo=str(revision)), revision)
        [change] = await everything.take()
        assert change.session.memo == "49"
        assert len(its.drain()) == 1
        assert not others.drain()
        waiting = asyncio.ensure_future(everything.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        everything.poke()
        assert await waiting == []


async def test_what_was_deleted_is_brought_back_by_nothing_older() -> None:
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    key, value = etcd_codec.counter_key("kim", "None"), etcd_codec.encode_counter(3)
    state.put(key, value, 5)
    state.delete(key, 9)
    assert not state.put(key, value, 8)
    assert not state.counters
    assert state.put(key, value, 10)
