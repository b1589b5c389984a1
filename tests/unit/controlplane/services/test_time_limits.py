"""The time limits of classes: given to those that ask for none, and the most that one may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain.values import Priority
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_queue import explained, gpus, told
from tests.unit.controlplane.services.test_sessions import refused

HIGH, NORMAL = pb.PRIORITY_HIGH, pb.PRIORITY_NORMAL


@pytest.fixture
async def rig():
    async with platform(character={"time_limits": {Priority.HIGH: 3600.0}}) as rig:
        yield rig


async def limit(user: Stubs, **facts: Any) -> float:
    session = await user.submit(**facts)
    return (await user.get(session.id)).spec.time_limit.ToSeconds()


async def test_one_that_asks_for_no_limit_has_that_of_its_class(rig: Rig) -> None:
    kim = await rig.user("kim")
    await rig.agent(gpus=1)
    assert await limit(kim, priority=HIGH) == 3600
    assert await limit(kim, priority=HIGH, time_limit={"seconds": 60}) == 60
    assert await limit(kim, priority=HIGH, time_limit={"seconds": 3600}) == 3600
    assert await limit(kim, priority=NORMAL) == 0
    assert await limit(kim, priority=NORMAL, time_limit={"seconds": 7200}) == 7200


async def test_more_is_refused_with_the_most_that_there_is(rig: Rig) -> None:
    kim = await rig.user("kim")
    await rig.agent(gpus=1)
    code, reason, words = await refused(kim.submit(priority=HIGH, time_limit={"seconds": 3601}))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert words["why"] == "a session of the class high runs for 1h at most"
    assert words["try"] == "nsml run --time-limit 1h ..."


async def test_what_if_knows_it_too(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    await kim.submit(resources=gpus(1))
    short = await kim.submit(resources=gpus(1))
    long = await kim.submit(resources=gpus(1), time_limit={"seconds": 7200})
    await told(kim, long.id)
    assert (await explained(kim, short.id, priority=HIGH)).HasField("what_if")
    code, _, _ = await refused(explained(kim, long.id, priority=HIGH))
    assert code == "INVALID_ARGUMENT"
    assert (await explained(kim, long.id, priority=HIGH, time_limit={})).HasField("what_if")
    assert (await explained(kim, long.id, time_limit={})).HasField("what_if")
