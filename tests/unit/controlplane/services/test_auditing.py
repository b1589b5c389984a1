"""Who changed what of projects, nodes and others' sessions is in the audit trail, once and for good."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from controlplane.domain.errors import NotLeader, StateConflict, Unavailable
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import AuditRow
from controlplane.operations.auditing import Audit
from nsml.v1 import nodes_pb2, projects_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.workbench import HandClock

WHO = UserCaller(user=User(name="root"), token="ab12")


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def trail(rig: Rig) -> list[AuditRow]:
    return [row for _, row in await rig.on.history.ledger.audited()]


async def test_what_administrators_change_is_in_the_trail(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    settings = projects_pb2.ProjectSettings(owner="kim")
    make = projects_pb2.CreateProjectRequest(name="vision", settings=settings)
    await root.projects.CreateProject(make)
    assert (await refused(root.projects.CreateProject(make)))[0] == "ALREADY_EXISTS"
    await root.projects.UpdateProject(
        projects_pb2.UpdateProjectRequest(
            name="vision", settings=projects_pb2.ProjectSettings(weight=2.0)
        )
    )
    await kim.projects.ChangeMembers(projects_pb2.ChangeMembersRequest(name="vision", add=["root"]))
    await root.projects.DeleteProject(projects_pb2.DeleteProjectRequest(name="vision"))
    await root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
    drain = kim.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
    assert (await refused(drain))[0] == "PERMISSION_DENIED"
    await root.nodes.ResumeNode(nodes_pb2.ResumeNodeRequest(name="a"))
    await root.nodes.FenceNode(nodes_pb2.FenceNodeRequest(name="a", force=True))
    await root.nodes.RemoveNode(nodes_pb2.RemoveNodeRequest(name="a"))
    rows = await trail(rig)
    assert [(row.actor, row.method, row.target) for row in rows] == [
        ("root", "ProjectService/CreateProject", "vision"),
        ("root", "ProjectService/UpdateProject", "vision"),
        ("kim", "ProjectService/ChangeMembers", "vision"),
        ("root", "ProjectService/DeleteProject", "vision"),
        ("root", "NodeService/DrainNode", "a"),
        ("root", "NodeService/ResumeNode", "a"),
        ("root", "NodeService/FenceNode", "a"),
        ("root", "NodeService/RemoveNode", "a"),
    ]
    assert {row.outcome for row in rows} == {"OK"}
    assert all(row.token and abs(row.at - time.time()) < 300 for row in rows)


async def test_what_is_done_with_a_session_of_another_is_in_the_trail(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    await kim.sessions.UpdateSession(pb.UpdateSessionRequest(session=session.id, memo="mine"))
    await root.sessions.UpdateSession(pb.UpdateSessionRequest(session=session.id, memo="ours"))
    await root.sessions.RequeueSession(pb.RequeueSessionRequest(session=session.id, force=True))
    await agent.report(assignment.replica, "FINALIZED", cause="PREEMPTED")
    await kim.reaches(session.id, "QUEUED", "PREPARING")
    await root.sessions.StopSession(pb.StopSessionRequest(session=session.id))
    assert [(row.actor, row.method, row.target) for row in await trail(rig)] == [
        ("root", "SessionService/UpdateSession", session.name),
        ("root", "SessionService/RequeueSession", session.name),
        ("root", "SessionService/StopSession", session.name),
    ]


class Ledger:
    """Rows, while it answers."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.rows: list[AuditRow] = []
        self.is_away = is_away
        self.gate = asyncio.Event()
        self.gate.set()

    async def audit(self, rows: list[AuditRow]) -> None:
        await self.gate.wait()
        if self.is_away:
            raise HistoryUnavailable("scripted")
        self.rows += rows


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        (StateConflict("no"), []),
        (NotLeader(""), []),
        (Unavailable("who knows"), ["UNKNOWN"]),
        (ValueError("a mistake"), ["UNKNOWN"]),
        (asyncio.CancelledError(), ["UNKNOWN"]),
    ],
)
async def test_what_was_refused_has_no_row_and_what_may_have_happened_has(
    error: BaseException, outcomes: list[str]
) -> None:
    ledger = Ledger()
    audit = Audit(ledger=ledger, clock=HandClock())  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        async with audit.change(WHO, "NodeService/DrainNode", "a"):
            raise error
    assert [row.outcome for row in ledger.rows] == outcomes


async def test_a_caller_who_goes_leaves_a_row_and_no_history_is_no_refusal() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    audit = Audit(ledger=ledger, clock=HandClock())  # type: ignore[arg-type]
    is_done = asyncio.Event()

    async def drain() -> None:
        async with audit.change(WHO, "NodeService/DrainNode", "a"):
            is_done.set()

    call = asyncio.ensure_future(drain())
    await is_done.wait()
    call.cancel()
    ledger.gate.set()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert [(row.at, row.outcome) for row in ledger.rows] == [(HandClock.now, "OK")]
    ledger.is_away = True
    async with audit.change(WHO, "NodeService/DrainNode", "a"):
        pass
    assert len(ledger.rows) == 1
