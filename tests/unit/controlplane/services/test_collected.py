"""What nothing refers to leaves the object store of a whole control plane, and no more."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.content import object_gc_loop as collecting
from controlplane.content import observed_clock
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.rig import Rig, platform, until
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_forks import begins_with, fork
from tests.unit.controlplane.services.test_rights import save

GRACE_S = 3600.0


class Later(SystemClock):
    """The clock of the object store: tests move it."""

    by = 0.0

    def time(self) -> float:
        return super().time() + self.by


@pytest.fixture
async def clock() -> Later:
    return Later()


@pytest.fixture
async def rig(clock: Later, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(collecting, "FIRST_AFTER_S", 0.01)
    monkeypatch.setattr(collecting, "LOOK_EVERY_S", 0.01)
    # Tests move the clock of the objects alone.
    monkeypatch.setattr(observed_clock, "TOLERANCE_S", math.inf)
    monkeypatch.setattr(observed_clock, "MOST_APART_S", math.inf)
    made: Any = {"objects": MemoryObjects(clock)}
    async with platform(character={"collect_after_s": GRACE_S}, **made) as rig:
        yield rig


async def kept(rig: Rig) -> set[str]:
    objects = rig.on.objects
    named = {blob.digest async for blob in objects.list()}
    return named | {blob.digest async for blob in objects.list_aside()}


async def test_the_code_of_a_removed_session_goes_and_that_of_others_stays(
    rig: Rig, clock: Later
) -> None:
    kim = await rig.user("kim")
    data, first, second = (tree(shared=b"same", own=one) for one in (b"data", b"first", b"second"))
    for _, blobs in (data, first, second):
        await send(kim, blobs)
    await push(kim, "digits", data[0])
    gone = await kim.submit(bundle_digest=first[0].digest)
    await kim.submit(bundle_digest=second[0].digest)
    everything = await kept(rig)
    clock.by += GRACE_S + 1
    await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=gone.id))
    await kim.reaches(gone.id, "STOPPED")
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=gone.id))

    async def is_aside() -> bool:
        return bool([blob async for blob in rig.on.objects.list_aside()])

    await until(is_aside, "its code is put aside")
    assert await kept(rig) == everything
    clock.by += GRACE_S + 1

    async def is_gone() -> bool:
        return await kept(rig) == set(data[1]) | set(second[1])

    await until(is_gone, "its code is removed")
    again = await rig.also(kim)
    assert await read(again, second[0].digest) == {second[0].digest: second[1][second[0].digest]}
    # And it may be sent again, and used.
    await send(kim, first[1])
    assert (await kim.submit(bundle_digest=first[0].digest)).name


async def test_what_a_session_begins_with_stays_when_the_session_that_saved_it_is_removed(
    rig: Rig, clock: Later
) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=3)).connect()
    saving = [await kim.submit() for _ in range(2)]
    orders = {one.replica.session_id: one for one in await agent.assignments(2)}
    digests = [await save(agent, one.id) for one in saving]
    made = await fork(kim, saving[0].id, "fork-1")
    for one in saving:
        await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=one.id))
        await agent.report(orders[one.id].replica, "FINALIZED", cause="STOP_REQUESTED")
        await kim.reaches(one.id, "STOPPED")
        await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=one.id))
    clock.by += GRACE_S + 1

    async def is_aside() -> bool:
        return digests[1] in {blob.digest async for blob in rig.on.objects.list_aside()}

    await until(is_aside, "the checkpoint of the other one is put aside")
    clock.by += GRACE_S + 1
    _, blobs = tree(weights=f"of {saving[0].id}".encode())

    async def is_gone() -> bool:
        return await kept(rig) == set(blobs)

    await until(is_gone, "it is removed, and what the fork begins with is not")
    assert (await begins_with(agent, made.id)).digest == digests[0]
