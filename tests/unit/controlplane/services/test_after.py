"""Sessions that start after others, through real gRPC."""

from __future__ import annotations

import pytest

from controlplane.sessions import after as after_module
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_sessions import refused


@pytest.fixture(autouse=True)
def _looks_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_module, "LOOK_EVERY_S", 0.05)


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def after(who: Stubs, *sessions: pb.Session, any_end: bool = False) -> pb.Session:
    waited = [pb.After(session=one.name, any_end=any_end) for one in sessions]
    return await who.submit(after=waited)


async def finish(rig: Rig, session: pb.Session, cause: str, code: int = 0) -> None:
    """Have a session's only replica end."""
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert assignment.replica.session_id == session.id
    await agent.report(assignment.replica, "FINALIZED", cause=cause, code=code)
    await agent.close()


async def test_it_is_held_until_the_other_has_succeeded(rig: Rig) -> None:
    kim = await rig.user("kim")
    first = await kim.submit()
    second = await after(kim, first)
    third = await after(kim, first, second)
    for one in (second, third):
        assert one.state == pb.SESSION_STATE_HELD
        assert one.held_cause == pb.HELD_CAUSE_AFTER
    assert [(one.session, one.name) for one in third.spec.after] == [
        (first.id, first.name),
        (second.id, second.name),
    ]
    await finish(rig, first, "COMPLETED")
    await kim.reaches(second.id, "QUEUED", "PREPARING")
    assert await kim.state(third.id) == "HELD"
    assert (await kim.get(second.id)).held_cause == pb.HELD_CAUSE_UNSPECIFIED


async def test_where_the_other_fails_it_never_starts_and_says_why(rig: Rig) -> None:
    kim = await rig.user("kim")
    first = await kim.submit()
    second = await after(kim, first)
    third = await after(kim, second)
    whatever = await after(kim, first, any_end=True)
    await finish(rig, first, "PROGRAM_FAILED", 3)
    stopped = await kim.reaches(second.id, "STOPPED")
    why = f"it starts after the success of {first.name}, which failed"
    assert stopped.end.message == f"stopped by nsml before it ran: {why}"
    assert "which was stopped" in (await kim.reaches(third.id, "STOPPED")).end.message
    await kim.reaches(whatever.id, "QUEUED", "PREPARING")


async def test_what_has_ended_is_not_waited_for_or_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    good, bad = await kim.submit(), await kim.submit()
    await kim.sessions.StopSession(pb.StopSessionRequest(session=bad.id))
    await kim.reaches(bad.id, "STOPPED")
    await finish(rig, good, "COMPLETED")
    await kim.reaches(good.id, "SUCCEEDED")
    begun = await after(kim, good)
    assert begun.state == pb.SESSION_STATE_QUEUED
    assert not begun.spec.after
    code, _, _ = await refused(after(kim, bad))
    assert code == "FAILED_PRECONDITION"
    assert (await after(kim, bad, any_end=True)).state == pb.SESSION_STATE_QUEUED


async def test_a_person_may_queue_it_or_stop_it(rig: Rig) -> None:
    kim = await rig.user("kim")
    first = await kim.submit()
    one, other = await after(kim, first), await after(kim, first)
    await kim.sessions.RequeueSession(pb.RequeueSessionRequest(session=one.id))
    assert await kim.state(one.id) == "QUEUED"
    await kim.sessions.StopSession(pb.StopSessionRequest(session=other.id))
    assert await kim.state(other.id) == "STOPPED"


async def test_others_sessions_that_one_does_not_see_are_not_there(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    hidden = await kim.submit()
    assert (await refused(after(lee, hidden)))[0] == "NOT_FOUND"
    assert (await refused(lee.submit(after=[pb.After(session="")])))[0] == "INVALID_ARGUMENT"
    many = [pb.After(session="x")] * 33
    assert (await refused(lee.submit(after=many)))[0] in {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}
