"""Logs of sessions that ended are in the object store, and read as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.objects.errors import ObjectsUnavailable
from controlplane.records import logs
from controlplane.records.archiving_loop import Archiving
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from tests.support.failing import Failing
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import Ingest, _all, log_chunk, refused

WHOLE = b"".join(b"line %d\n" % number for number in range(500))


@pytest.fixture
async def objects() -> Failing:
    return Failing(MemoryObjects(SystemClock()))


@pytest.fixture
async def rig(objects: Failing, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(Archiving, "look_every_s", 0.01)
    monkeypatch.setattr(Archiving, "retry_s", 0.01)
    monkeypatch.setattr(logs, "BLOCKS_HELD", 0)
    made: Any = {"objects": objects}
    async with platform(character={"archive_logs_after_s": 0.0}, **made) as rig:
        yield rig


async def ended(rig: Rig, kim: Stubs) -> str:
    """A session that printed, and has ended."""
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    for first in range(0, len(WHOLE), 100):
        data = WHOLE[first : first + 100]
        await Ingest(agent.stubs).send(log_chunk(session.id, first, data))
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(session.id, "SUCCEEDED")
    return session.id


async def archived(rig: Rig, session: str) -> None:
    async def nothing_is_left() -> bool:
        streams = rig.on.history.streams
        is_recorded = await rig.on.history.catalogue.session(session) is not None
        return is_recorded and not await streams.unarchived(ended_before=1e12)

    await until(nothing_is_left, "its logs are in the object store")


async def read(kim: Stubs, session: str, **which: Any) -> bytes:
    request = pb.ReadLogsRequest(session=session, **which)
    return b"".join(piece.data for piece in await _all(kim.sessions.ReadLogs(request)))


async def test_a_log_that_was_moved_is_read_as_before(rig: Rig) -> None:
    kim = await rig.user("kim")
    session = await ended(rig, kim)
    await archived(rig, session)
    assert len([blob async for blob in rig.on.objects.list()]) == 1
    assert await read(kim, session) == WHOLE
    assert await read(kim, session, follow=True) == WHOLE
    assert await read(kim, session, offset=1000) == WHOLE[1000:]
    assert await read(kim, session, tail_lines=2) == b"line 498\nline 499\n"
    request = pb.SearchLogsRequest(log=pb.ReadLogsRequest(session=session), pattern="99$")
    found = [one for each in await _all(kim.sessions.SearchLogs(request)) for one in each.lines]
    assert [one.text for one in found] == [b"line %d" % number for number in range(99, 500, 100)]
    assert [one.number for one in found] == list(range(100, 501, 100))
    await kim.sessions.RemoveSession(pb.RemoveSessionRequest(session=session))
    gone = kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session))
    assert (await refused(_all(gone)))[0] == "NOT_FOUND"


async def test_without_objects_logs_stay_and_those_that_were_moved_say_why(
    rig: Rig, objects: Failing
) -> None:
    kim = await rig.user("kim")
    tries: list[str] = []

    def gone(name: str) -> Exception:
        tries.append(name)
        return ObjectsUnavailable("away")

    objects.error = gone
    session = await ended(rig, kim)

    async def was_tried() -> bool:
        return tries.count("put") >= 2

    await until(was_tried, "it was tried again")
    assert await read(kim, session) == WHOLE
    objects.error = None
    await archived(rig, session)
    objects.error = gone
    call = _all(kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session)))
    code, reason, told = await refused(call)
    assert (code, reason) == ("UNAVAILABLE", "UNAVAILABLE")
    assert "nsml status" in told["try"]
    objects.error = None
    assert await read(kim, session) == WHOLE
