"""Locks of environments: recorded by nodes, read by who sees the session, handed on to sessions from its record."""

from __future__ import annotations

import pytest

from nsml.content.digests import digest_of
from nsml.v1 import environments_pb2 as pb
from nsml.v1 import resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform
from tests.unit.controlplane.services.test_sessions import refused

LOCK = f"numpy==2.1.0 --hash=sha256:{'a' * 64}\nsix==1.16.0 --hash=sha256:{'b' * 64}\n"
SMALL = resources_pb2.Resources(cpu_thousandths=100, memory_bytes=1 << 30)
OTHER = LOCK.replace("2.1.0", "2.2.0")


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def record(agent: Agent, session: str, content: str, attempt: int = 1) -> None:
    request = pb.RecordEnvironmentLockRequest(session_id=session, attempt=attempt, content=content)
    await agent.stubs.environments.RecordEnvironmentLock(request)


async def propose(agent: Agent, session: str, content: str) -> sessions_pb2.EnvironmentLock:
    request = pb.ProposeEnvironmentLockRequest(session_id=session, attempt=1, content=content)
    return (await agent.stubs.environments.ProposeEnvironmentLock(request)).lock


async def read(who: Stubs, session: str) -> sessions_pb2.EnvironmentLock:
    request = pb.GetEnvironmentLockRequest(session=session)
    return (await who.environments.GetEnvironmentLock(request)).lock


async def fork(who: Stubs, of: str, lock: str, request_id: str) -> sessions_pb2.Session:
    request = sessions_pb2.CreateSessionRequest(
        request_id=request_id,
        spec=sessions_pb2.SessionSpec(argv=["true"], environment_lock=lock, resources=SMALL),
        origin=sessions_pb2.Origin(kind=sessions_pb2.ORIGIN_KIND_FORK, session=of) if of else None,
    )
    return (await who.sessions.CreateSession(request)).session


async def running(rig: Rig, kim: Stubs, **fields: int) -> tuple[Agent, sessions_pb2.Session]:
    agent = await (await rig.agent()).connect()
    session = await kim.submit(**fields)
    await agent.assignments(1)
    return agent, session


async def test_what_a_node_records_is_kept_with_the_session_and_gone_with_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, session = await running(rig, kim)
    assert (await refused(read(kim, session.id)))[0] == "NOT_FOUND"
    await record(agent, session.id, OTHER)
    await record(agent, session.id, LOCK)
    lock = await read(kim, session.name)
    assert (lock.content, lock.package_count, lock.digest) == (LOCK, 2, digest_of(LOCK.encode()))
    shown = (await kim.get(session.id)).environment_lock
    assert (shown.digest, shown.package_count, shown.content) == (lock.digest, 2, "")
    assert (await refused(read(lee, session.id)))[0] == "NOT_FOUND"
    [assigned] = await agent.assignments(1)
    await agent.report(assigned.replica, "EXITED", cause="COMPLETED")
    await agent.report(assigned.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(session.id, "SUCCEEDED")
    assert (await read(kim, session.id)).content == LOCK
    made = await fork(kim, session.id, lock.digest, "fork-1")
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=session.id))
    # It stays for the session that was made from its record, whose node gets it.
    assert (await read(kim, made.id)).content == LOCK
    await agent.assignments(1)
    assert (await read(agent.stubs, made.id)).content == LOCK


async def test_the_first_lock_that_is_proposed_is_that_of_the_session(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    first = await propose(agent, session.id, LOCK)
    assert (first.digest, first.content) == (digest_of(LOCK.encode()), "")
    second = await propose(agent, session.id, OTHER)
    assert (second.digest, second.content) == (first.digest, LOCK)
    assert (await read(kim, session.id)).content == LOCK
    other = await (await rig.agent("other")).connect()
    assert (await refused(propose(other, session.id, OTHER)))[0] == "NOT_FOUND"
    assert (await refused(propose(agent, session.id, "numpy\n")))[0] == "INVALID_ARGUMENT"


async def test_a_node_speaks_only_for_its_own_attempts_and_only_of_packages(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    other = await (await rig.agent("other")).connect()
    assert (await refused(record(other, session.id, LOCK)))[0] == "NOT_FOUND"
    assert (await refused(record(agent, session.id, LOCK, attempt=2)))[0] == "NOT_FOUND"
    assert (await refused(read(other.stubs, session.id)))[0] == "NOT_FOUND"
    for bad in (
        "",
        "numpy==2.1.0\n",
        f"--index-url https://evil/\n{LOCK}",
        LOCK + LOCK,
        LOCK.replace("six==1.16.0", "six @ http://evil/six.whl"),
        LOCK.replace("six==1.16.0", "six @ git+https://evil/six"),
        LOCK.replace("six", "-e six"),
        LOCK.replace("\n", "\r\n"),
    ):
        assert (await refused(record(agent, session.id, bad)))[0] == "INVALID_ARGUMENT", bad
    assert (await refused(record(agent, session.id, "a" * (1 << 21))))[0] == "RESOURCE_EXHAUSTED"
    assert (await refused(read(kim, session.id)))[0] == "NOT_FOUND"


async def test_only_the_lock_of_a_visible_origin_is_handed_on_and_no_node_changes_it(
    rig: Rig,
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, session = await running(rig, kim, visibility=resources_pb2.VISIBILITY_PUBLIC)
    await record(agent, session.id, LOCK)
    digest = digest_of(LOCK.encode())
    assert (await refused(fork(lee, "", digest, "f1")))[0] == "NOT_FOUND"
    mine = await lee.submit(resources=SMALL)
    assert (await refused(fork(lee, mine.id, digest, "f2")))[0] == "NOT_FOUND"
    assert (await refused(fork(lee, session.id, "x", "f3")))[0] == "INVALID_ARGUMENT"
    made = await fork(lee, session.id, digest, "f4")
    assert (made.spec.environment_lock, (await read(lee, made.id)).content) == (digest, LOCK)
    again = await fork(lee, made.id, digest, "f5")
    assert (await lee.get(again.id)).environment_lock.digest == digest
    await agent.assignments(4)
    assert (await refused(record(agent, made.id, OTHER)))[0] == "INVALID_ARGUMENT"
    assert (await read(lee, made.id)).content == LOCK
