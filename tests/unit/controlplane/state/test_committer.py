"""One writer: fenced, all or nothing for each gang, the same effect whatever is repeated."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.domain.errors import NotLeader
from controlplane.domain.lifecycle import SessionState
from controlplane.sessions.placement import place
from controlplane.state.replica_reports import apply_report
from controlplane.store.interface import MAX_OPERATIONS, Put, Transaction
from controlplane.stored import etcd_codec
from tests.unit.controlplane.builders import held, node, session
from tests.unit.controlplane.workbench import bench, placement, report


def placing(one, *where):
    return lambda draft: place(draft, placement(one, *where), 5.0)


def reporting(one, phase, rank=0, **told):
    said = report(one, phase, rank, **told)
    return lambda draft: apply_report(draft, said, frozenset(), 9.0)


async def stored(made, one):
    item = await made.store.get(etcd_codec.session_key(one.id))
    return etcd_codec.decode_session(item.value)


async def test_what_waits_together_is_one_transaction() -> None:
    async with bench() as made:
        state = await made.member()
        many = [session(100) for _ in range(8)]
        await made.write(node("a"), *many)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        done = await asyncio.gather(*[committer.decide(placing(one, ("a", "a-0"))) for one in many])
        assert (all(done), made.store.commits) == (True, 1)
        held = etcd_codec.decode_allocation((await made.store.get("alloc/a")).value)
        assert len(held.replicas) == 8


async def test_only_the_gang_that_does_not_fit_is_dropped() -> None:
    async with bench() as made:
        state = await made.member()
        one, gang, last = session(), session(replicas=2), session()
        await made.write(node("a"), node("b", 1), one, gang, last)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        done = await asyncio.gather(
            committer.decide(placing(one, ("a", "a-0"))),
            committer.decide(placing(gang, ("b", "b-0"), ("a", "a-0"))),
            committer.decide(placing(last, ("b", "b-0"))),
        )
        assert done == [True, False, True]
        assert (await stored(made, gang)).state == "QUEUED"


async def test_many_decisions_are_split_at_the_stores_bound() -> None:
    async with bench() as made:
        state = await made.member()
        nodes = [node(f"n{i}", 1) for i in range(180)]
        gangs = [session(10, replicas=60) for _ in range(3)]
        await made.write(*nodes, *gangs)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        where = [(one.name, f"{one.name}-0") for one in nodes]
        done = await asyncio.gather(
            *[
                committer.decide(placing(gang, *where[start : start + 60]))
                for gang, start in zip(gangs, (0, 60, 120), strict=True)
            ]
        )
        assert all(done)
        assert 2 * 61 < MAX_OPERATIONS < 3 * 61
        assert made.store.commits == 2


async def test_devices_are_given_up_to_their_capacity_and_no_further() -> None:
    async with bench() as made:
        state = await made.member()
        ones = [session(10) for _ in range(150)]
        await made.write(node("a", 1, cpu=1_000_000), *ones)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        done = await asyncio.gather(*[committer.decide(placing(one, ("a", "a-0"))) for one in ones])
        assert done == [True] * 100 + [False] * 50


async def test_a_deposed_leader_changes_nothing() -> None:
    async with bench() as made:
        state = await made.member()
        one = session()
        await made.write(node("a"), one)
        await made.settled(state)
        committer = made.committer(state)
        leading = made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        await made.elect("two")
        with pytest.raises(NotLeader) as refused:
            await committer.decide(placing(one, ("a", "a-0")))
        assert refused.value.leader == "other"
        assert await leading == "deposed"
        assert (await stored(made, one)).state == "QUEUED"
        with pytest.raises(NotLeader):
            await committer.decide(placing(one, ("a", "a-0")))


async def test_two_leaders_cannot_give_a_device_twice() -> None:
    """The old one decides on what it knew; the new one has given the device already."""
    async with bench() as made:
        old_state, new_state = await made.member(), await made.member()
        first, second = session(), session()
        await made.write(node("a", 1), first, second)
        await made.settled(old_state, new_state)
        old, new = made.committer(old_state), made.committer(new_state)
        was_leading = made.lead(old, await made.elect("old"))
        await asyncio.sleep(0)
        made.lead(new, await made.elect("new"))
        await asyncio.sleep(0)
        done = await asyncio.gather(
            new.decide(placing(first, ("a", "a-0"))),
            old.decide(placing(second, ("a", "a-0"))),
            return_exceptions=True,
        )
        assert done[0] is True
        assert isinstance(done[1], NotLeader)
        assert await was_leading == "deposed"
        assert (await stored(made, second)).state == "QUEUED"


@pytest.mark.parametrize("what", ["session", "alloc"])
async def test_a_conflict_is_decided_again_on_what_is_there(what: str) -> None:
    async with bench() as made:
        state = await made.member()
        one = session()
        await made.write(node("a", 1), one)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await made.settled(state)
        # Somebody else writes it, and the watch tells us nothing any more.
        made.tasks[0].cancel()
        await asyncio.wait([made.tasks[0]])
        if what == "session":
            stopped = replace(one, state=SessionState.STOPPED)
            put = Put(key=etcd_codec.session_key(one.id), value=etcd_codec.encode_session(stopped))
        else:
            taken = held("a", ("a-0", 1000))
            put = Put(key="alloc/a", value=etcd_codec.encode_allocation(taken))
        await made.store._store.commit(Transaction(success=(put,)))
        assert await committer.decide(placing(one, ("a", "a-0"))) is False
        assert made.store.commits == 1
        assert (await made.store.get(put.key)).value == put.value


@pytest.mark.parametrize("fault", ["lost before", "lost after", "down"])
async def test_a_lost_answer_has_one_effect(fault: str) -> None:
    async with bench() as made:
        state = await made.member()
        one = session()
        await made.write(node("a"), one)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        made.store.faults = [fault, fault]
        await committer.decide(placing(one, ("a", "a-0")))
        placed = await stored(made, one)
        assert (placed.state, placed.attempt) == ("PREPARING", 1)
        made.store.faults = [fault]
        await committer.decide(reporting(one, "FINALIZED", cause="COMPLETED"))
        ended = await stored(made, one)
        assert (ended.state, len(ended.attempts)) == ("SUCCEEDED", 1)
        held = etcd_codec.decode_allocation((await made.store.get("alloc/a")).value)
        assert not held.replicas


async def test_a_crash_between_two_ends_loses_neither() -> None:
    """The leader dies after some transaction; its successor hears the reports again."""
    async with bench() as made:
        state = await made.member()
        ones = [session(500) for _ in range(4)]
        await made.write(node("a"), *ones)
        await made.settled(state)
        committer = made.committer(state)
        leading = made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        where = [("a", "a-0"), ("a", "a-0"), ("a", "a-1"), ("a", "a-1")]
        await asyncio.gather(
            *[committer.decide(placing(one, at)) for one, at in zip(ones, where, strict=True)]
        )
        reports = [reporting(one, "FINALIZED", cause="COMPLETED") for one in ones]
        await committer.decide(reports[0])
        waiting = [asyncio.ensure_future(committer.decide(one)) for one in reports[1:]]
        leading.cancel()
        await asyncio.wait(waiting)
        successor_state = await made.member()
        successor = made.committer(successor_state)
        made.lead(successor, await made.elect("two"))
        await asyncio.sleep(0)
        await asyncio.gather(*[successor.decide(one) for one in reports])
        for one in ones:
            ended = await stored(made, one)
            assert (ended.state, len(ended.attempts)) == ("SUCCEEDED", 1)
        held = etcd_codec.decode_allocation((await made.store.get("alloc/a")).value)
        assert not held.replicas


async def test_a_defect_in_one_decision_is_its_own() -> None:
    async with bench() as made:
        state = await made.member()
        one = session()
        await made.write(node("a"), one)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)

        def broken(draft):
            raise ZeroDivisionError

        done = await asyncio.gather(
            committer.decide(broken),
            committer.decide(placing(one, ("a", "a-0"))),
            return_exceptions=True,
        )
        assert isinstance(done[0], ZeroDivisionError)
        assert done[1] is True


async def test_large_decisions_together_are_written_apart() -> None:
    async with bench() as made:
        state = await made.member()
        ones = [session(10, command=("x" * 90_000,)) for _ in range(40)]
        await made.write(node("a", 1), *ones)
        await made.settled(state)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await asyncio.sleep(0)
        done = await asyncio.gather(*[committer.decide(placing(one, ("a", "a-0"))) for one in ones])
        assert all(done)
        assert made.store.commits > 1
