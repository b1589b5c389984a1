"""Sessions with a launcher: who gets a secret of the attempt, and which agents take them."""

from __future__ import annotations

import itertools

import pytest

from nsml.v1 import agents_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_content import send, tree
from tests.unit.controlplane.services.test_sessions import refused

_numbers = itertools.count(1)


@pytest.fixture
async def rig():
    async with platform() as running:
        yield running


async def launched(user: Stubs, launcher: int, replicas: int = 2, **spec) -> pb.Session:
    """Submit an entry."""
    code, blobs = tree(**{"main.py": b"print()"})
    await send(user, blobs)
    request = pb.CreateSessionRequest(
        request_id=f"launch-{next(_numbers)}",
        spec=pb.SessionSpec(
            bundle_digest=code.digest,
            launcher=launcher,
            replica_count=replicas,
            resources=resources_pb2.Resources(gpu_thousandths=1000),
            **spec,
        ),
    )
    return (await user.sessions.CreateSession(request)).session


async def secrets_of(agent, count: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in await agent.assignments(count):
        of_session = found.setdefault(one.replica.session_id, [])
        of_session += [each.value for each in one.secrets if each.variable == "NSML_GANG_SECRET"]
    return found


async def test_replicas_of_an_attempt_get_one_secret_and_others_another(rig: Rig) -> None:
    kim = await rig.user("kim")
    made = [
        (await launched(kim, one, replicas)).id
        for one, replicas in (
            (pb.LAUNCHER_MPIRUN, 2),
            (pb.LAUNCHER_RAY, 2),
            (pb.LAUNCHER_MPIRUN, 1),
            (pb.LAUNCHER_TORCHRUN, 2),
        )
    ]
    agent = await (await rig.agent(gpus=8)).connect()
    given = await secrets_of(agent, 7)
    assert [len(given[one]) for one in made] == [2, 2, 0, 0], (
        "who starts nothing elsewhere needs none"
    )
    assert [len(set(given[one])) for one in made[:2]] == [1, 1]
    assert given[made[0]][0] != given[made[1]][0]
    assert len(given[made[0]][0]) == 64
    shown = str(await kim.get(made[0]))
    assert given[made[0]][0] not in shown


async def test_an_agent_that_would_start_the_entry_alone_is_told_not_to(rig: Rig) -> None:
    kim = await rig.user("kim")
    launchers = agents_pb2.AGENT_ABILITY_LAUNCHERS
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != launchers]
    old = await (await rig.agent("old", abilities=knows)).connect()
    await launched(kim, pb.LAUNCHER_TORCHRUN, 1)
    [order] = await old.assignments(1)
    assert order.stop.cause == pb.CAUSE_NODE_REFUSED
    assert "too old for --launch" in order.stop.reason


async def test_a_launcher_of_a_whole_command_and_an_unknown_one_are_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    asked = kim.submit("true", launcher=pb.LAUNCHER_RAY)
    assert (await refused(asked))[0] == "INVALID_ARGUMENT"
    assert (await refused(launched(kim, 99)))[0] == "INVALID_ARGUMENT"
