"""A real etcd that is full, under control planes that make room in it by themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from controlplane.core.dependencies import Backends
from controlplane.domain.conditions import ConditionName
from controlplane.domain.identity import Role
from controlplane.store.etcd import EtcdStore
from controlplane.store.interface import Delete, KeyValueStore, NoSpace, Put, Transaction
from nsml.common.clock import SystemClock
from nsml.v1 import nodes_pb2 as pb
from tests.support.etcd import etcd_in
from tests.unit.controlplane.rig import Stubs, one_leads, serving, surroundings, until

CLOCK = SystemClock()
QUOTA = 2 << 20
JUNK = b"x" * 50_000
FULL = ConditionName.COORDINATION_FULL
AWAY = "http://127.0.0.1:1"
"""A member that is away does not keep the others from making room."""
HEALS_WITHIN_S = 60


@asynccontextmanager
async def small(folder: Path) -> AsyncIterator[Backends]:
    """What a control plane stands on, with an etcd that is soon full."""
    process = etcd_in(folder / "etcd", quota_bytes=QUOTA)
    process.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.stop)
        await process.ready()
        endpoints = [process.endpoint, AWAY]
        store = await stack.enter_async_context(EtcdStore(endpoints, clock=CLOCK))
        yield await stack.enter_async_context(surroundings(store=store))


async def put(store: KeyValueStore, key: str) -> None:
    await store.commit(Transaction(success=(Put(key=key, value=JUNK),)))


async def fill_with_past(store: KeyValueStore) -> None:
    """One key, written anew until nothing more fits."""
    for _ in range(1000):
        try:
            await put(store, "junk")
        except NoSpace:
            return
    raise AssertionError("etcd takes everything")


async def shows_it_away_alone(user: Stubs) -> bool:
    cluster = await user.nodes.GetCluster(pb.GetClusterRequest())
    shown = [(pb.ConditionName.Name(one.name), one.subject) for one in cluster.conditions]
    return shown == [("CONDITION_NAME_STORE_MEMBER_AWAY", AWAY)]


async def submits(user: Stubs) -> bool:
    with suppress(Exception):
        await user.submit()
        return True
    return False


async def test_a_store_full_of_its_past_is_made_room_in_alone(tmp_path: Path) -> None:
    async with small(tmp_path) as on, serving(on, coordination="etcd") as rig:
        await until(lambda: one_leads(rig), "it leads")
        user = await rig.user("kim", role=Role.ADMIN)
        filling = asyncio.create_task(fill_with_past(rig.plane.core.health.store))
        await until(_is(lambda: rig.plane.core.health.conditions.stands(FULL)), "it is full", 60)
        await filling
        await until(lambda: submits(user), "submissions are taken", HEALS_WITHIN_S)
        await until(lambda: shows_it_away_alone(user), "nothing else is wrong", HEALS_WITHIN_S)
        assert await one_leads(rig)


async def test_a_leader_that_dies_while_the_store_is_full_has_a_successor(tmp_path: Path) -> None:
    async with small(tmp_path) as on:
        async with serving(on, coordination="etcd") as first:
            await until(lambda: one_leads(first), "the first leads")
            user = await first.user("kim")
            token = user.metadata
        await fill_with_past(on.store)
        with pytest.raises(NoSpace):
            await on.store.grant(5)
        async with serving(on, coordination="etcd") as second:
            await until(lambda: one_leads(second), "the second leads", HEALS_WITHIN_S)
            stubs = Stubs(await second.channel(), dict(token)["authorization"].split()[1])
            await until(lambda: submits(stubs), "submissions are taken", HEALS_WITHIN_S)


async def test_a_store_full_of_what_lives_says_so_and_takes_writes_once_less_lives(
    tmp_path: Path,
) -> None:
    async with small(tmp_path) as on, serving(on, coordination="etcd") as rig:
        await until(lambda: one_leads(rig), "it leads")
        user = await rig.user("kim", role=Role.ADMIN)
        keys: list[str] = []
        # What was refused may be in all the same: room is made meanwhile, until none is left to make.
        while not any(one.remark for one in rig.plane.core.health.conditions.standing()):
            keys.append(f"junk/{len(keys):04}")
            with suppress(NoSpace):
                await put(rig.plane.core.health.store, keys[-1])
        cluster = await user.nodes.GetCluster(pb.GetClusterRequest())
        [condition] = [
            one for one in cluster.conditions if "FULL" in pb.ConditionName.Name(one.name)
        ]
        assert "quota-backend-bytes" in condition.evidence
        for start in range(0, len(keys), 100):
            deletes = tuple(Delete(key=key) for key in keys[start : start + 100])
            await on.store.commit(Transaction(success=deletes))
        await until(lambda: submits(user), "submissions are taken", HEALS_WITHIN_S)
        await until(lambda: shows_it_away_alone(user), "nothing else is wrong", HEALS_WITHIN_S)


def _is(fact):
    async def ask() -> bool:
        return bool(fact())

    return ask
