"""Control planes know one another: over deaths, outages of the store and clashes of names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.conditions import ConditionName
from controlplane.domain.errors import AlreadyExists, StateConflict
from controlplane.state.conditions import Conditions, found_elsewhere, own_findings
from controlplane.state.members import MEMBERS, Member, Members
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import KeyValue, Lease, StoreUnavailable, Transaction
from nsml.common.clock import SystemClock, inline
from tests.unit.controlplane.rig import until

CLOCK = SystemClock()
TTL_S = 0.3


def a_member(name: str, *, instance: str = "") -> Member:
    return Member(
        name=name,
        version="1",
        user_address=f"{name}:1",
        agent_address=f"{name}:2",
        local_address="127.0.0.1:3",
        started_at=5.0,
        instance=instance or name,
    )


@asynccontextmanager
async def running(members: Members) -> AsyncIterator[asyncio.Task[None]]:
    work = asyncio.create_task(members.run())
    try:
        yield work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError, BaseExceptionGroup):
            await work


@asynccontextmanager
async def a_store() -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(":memory:", clock=CLOCK, run=inline) as store:
        yield store


async def knows(members: Members, *names: str) -> None:
    async def known() -> bool:
        return tuple(one.name for one in members.everyone()) == names

    await until(known, f"{members.own.name} knows {names}")


def of(store: EmbeddedStore, name: str, *, instance: str = "", ttl_s: float = TTL_S) -> Members:
    return Members(store, a_member(name, instance=instance), clock=CLOCK, ttl_s=ttl_s)


async def test_all_know_all_and_where_each_is_reached() -> None:
    async with a_store() as store:
        one, two = of(store, "one"), of(store, "two")
        async with running(one), running(two):
            await knows(one, "one", "two")
            await knows(two, "one", "two")
            assert one.everyone() == (a_member("one"), a_member("two"))
            # What is of its machine alone is where it is reached only if there is nothing else.
            assert [other.address for other in one.everyone()] == ["one:2", "two:2"]


async def test_who_is_killed_vanishes_with_its_lease_and_who_leaves_at_once() -> None:
    async with a_store() as store:
        stays, killed, leaves = of(store, "a"), of(store, "b"), of(store, "c", ttl_s=60)
        async with running(stays):
            async with running(killed), running(leaves):
                await knows(stays, "a", "b", "c")
            await leaves.leave()
            await knows(stays, "a")


async def test_a_record_that_was_lost_is_written_again() -> None:
    async with a_store() as store:
        one = of(store, "one")
        async with running(one):
            await knows(one, "one")
            before = await MEMBERS.get(store, "one")
            item = await store.get(MEMBERS.path("one"))
            assert before is not None
            assert item is not None
            assert item.lease is not None
            # What an outage does that is longer than the lease.
            await store.revoke(await _lease(store, item.lease))

            async def is_another() -> bool:
                now = await MEMBERS.get(store, "one")
                return now is not None and now.create_revision > before.create_revision

            await until(is_another, "the record is back")


async def _lease(store: EmbeddedStore, number: int) -> Lease:
    return await store.keep_alive(Lease(id=number, ttl_s=TTL_S, valid_until=0.0))


async def test_a_process_started_again_takes_its_place_over_at_once() -> None:
    async with a_store() as store:
        killed, again = of(store, "one", instance="x", ttl_s=60), of(store, "one", instance="x")
        async with running(killed):
            await knows(killed, "one")
        async with running(again), asyncio.timeout(60):
            await until(lambda: _holds(store, again), "it has taken over")


async def test_a_process_started_again_under_another_name_takes_its_dead_one_away() -> None:
    """Names have the process id by default; what its folder's lock says is gone is not shown as alive."""
    async with a_store() as store:
        killed, again = of(store, "h-1", instance="x", ttl_s=60), of(store, "h-2", instance="x")
        other = of(store, "other")
        async with running(other):
            async with running(killed):
                await knows(other, "h-1", "other")
            async with running(again):
                await knows(other, "h-2", "other")


async def test_those_of_a_folder_that_was_copied_do_not_remove_each_other_for_ever() -> None:
    async with a_store() as store:
        first, second = of(store, "one", instance="x"), of(store, "two", instance="x")
        async with running(first):
            await knows(first, "one")
            async with running(second):
                await knows(second, "one", "two")
                assert await second._former() == ()


async def _holds(store: EmbeddedStore, members: Members) -> bool:
    item = await store.get(MEMBERS.path(members.own.name))
    return item is not None and members._lease is not None and item.lease == members._lease.id


async def test_another_process_of_the_same_name_is_refused() -> None:
    async with a_store() as store:
        first, second = of(store, "one", instance="x"), of(store, "one", instance="y")
        async with running(first):
            await knows(first, "one")
            with pytest.RaisesGroup(pytest.RaisesExc(AlreadyExists, match="called one")):
                await second.run()
            await knows(first, "one")
            assert first.everyone()[0].instance == "x"


async def test_one_that_was_away_while_another_version_started_does_not_come_back() -> None:
    """Its lease had ended, as after a long pause: the other one found nobody, and was right to start."""
    async with a_store() as store:
        old = of(store, "old")
        async with running(old) as work:
            await knows(old, "old")
            item = await store.get(MEMBERS.path("old"))
            assert item is not None
            assert item.lease is not None
            new = replace(a_member("new"), version="2")
            drop = MEMBERS.delete("old")
            await store.commit(Transaction(success=(drop, MEMBERS.put("new", new))))
            with pytest.RaisesGroup(pytest.RaisesExc(StateConflict, match="new runs nsml 2")):
                await work
        assert [one.key for one in (await MEMBERS.list(store)).items] == ["new"]


class Slow:
    """A store whose lists are old when they arrive."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, *arguments: Any, **more: Any) -> Any:
        found = await self._store.list(*arguments, **more)
        await asyncio.sleep(0)
        return found


async def test_of_two_versions_that_start_together_one_stays() -> None:
    async with a_store() as store:
        for names in (("a", "b"), ("b", "a")):
            both = [
                Members(Slow(store), replace(a_member(name), version=name), clock=CLOCK, ttl_s=60)  # type: ignore[arg-type]
                for name in names
            ]
            entered = await asyncio.gather(*(one._enter() for one in both), return_exceptions=True)
            left = [one.key for one in (await MEMBERS.list(store)).items]
            refused = [one for one in entered if isinstance(one, StateConflict)]
            assert (len(left), len(refused)) == (1, 1), entered
            for one in both:
                await one.leave()


class GoneAtTimes:
    """A store that can be gone, and a clock that can be moved on."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.is_gone = False
        self.asked = 0
        self.later_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> KeyValue | None:
        self.asked += 1
        if self.is_gone:
            raise StoreUnavailable("gone")
        return await self._store.get(key)

    def time(self) -> float:
        return CLOCK.time()

    def monotonic(self) -> float:
        return CLOCK.monotonic() + self.later_s

    async def sleep(self, seconds: float) -> None:
        await CLOCK.sleep(min(seconds, 0.01))


async def test_an_outage_is_not_held_against_one_that_died() -> None:
    """Its lease does not end while the store is gone, and lives anew after that."""
    async with a_store() as store:
        gone = GoneAtTimes(store)
        heir = Members(gone, a_member("one", instance="y"), clock=gone, ttl_s=60)  # type: ignore[arg-type]
        dead = MEMBERS.put("one", a_member("one", instance="x"))
        await store.commit(Transaction(success=(dead,)))

        async def asked_on() -> None:
            before = gone.asked

            async def has_asked() -> bool:
                return gone.asked >= before + 2 or work.done()

            await until(has_asked, "it has asked again")

        async with running(heir) as work:
            await asked_on()
            gone.is_gone = True
            await asked_on()
            gone.later_s = 6_000.0
            gone.is_gone = False
            await asked_on()
            assert not work.done(), work.exception()
            await store.commit(Transaction(success=(MEMBERS.delete("one"),)))
            await until(lambda: _holds(store, heir), "the heir has the name")


async def test_the_name_of_one_that_died_is_free_after_its_lease() -> None:
    async with a_store() as store:
        dead, heir = of(store, "one", instance="x"), of(store, "one", instance="y")
        async with running(dead):
            await knows(dead, "one")
        async with running(heir):
            await until(lambda: _holds(store, heir), "the heir has the name")


async def test_what_one_alone_has_found_the_others_show() -> None:
    async with a_store() as store:
        conditions = Conditions(CLOCK)
        one = Members(
            store,
            a_member("one"),
            clock=CLOCK,
            ttl_s=TTL_S,
            findings=lambda: own_findings(conditions.standing()),
        )
        two = of(store, "two")

        def shown() -> list[tuple[str, str]]:
            found = found_elsewhere((), (each for each in two.everyone() if each != two.own))
            return [(each.name, each.evidence) for each in found]

        async with running(one), running(two):
            await knows(two, "one", "two")
            conditions.set(ConditionName.HISTORY_GONE, stands=True)
            conditions.set(ConditionName.JOIN_REFUSED, stands=True, evidence="node x")

            async def is_told() -> bool:
                return shown() == [("JOIN_REFUSED", "one: node x")]

            await until(is_told, "what the other found")
            assert found_elsewhere(conditions.standing(), two.everyone()) == ()
            conditions.set(ConditionName.JOIN_REFUSED, stands=False)

            async def is_over() -> bool:
                return not shown()

            await until(is_over, "its end")
