"""Every call that changes something is in the audit trail, refusals included, once and for good."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory

from controlplane.access import auditing
from controlplane.access.access_table import TABLE, AllowedCallers
from controlplane.access.auditing import (
    LEFT_OUT,
    MOST_REFUSALS,
    REFUSALS_BACK_S,
    ROWS_AT_ONCE,
    Audit,
)
from controlplane.audit import service as audits
from controlplane.domain.identity import Role
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import AuditQuery, AuditRow
from nsml.v1 import accounts_pb2, audit_pb2, nodes_pb2, projects_pb2, secrets_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.workbench import HandClock

READS = (
    "Get",
    "List",
    "Read",
    "Watch",
    "Find",
    "Search",
    "Verify",
    "Explain",
    "Check",
    "Server",
    "Locate",
    "Export",
)


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def trail(rig: Rig, count: int = 0, *, of_users: bool = True) -> list[AuditRow]:
    """What is written; a refusal is answered before its row is."""

    async def found() -> list[AuditRow] | None:
        await rig.plane.core.audit.flush()
        found = await rig.on.history.ledger.newest_audited(AuditQuery(), limit=1000)
        rows = [row for _, row in reversed(found)]
        shown = [row for row in rows if not of_users or not row.actor.startswith("node ")]
        return shown if len(shown) >= count else None

    if not count:
        return await found() or []
    rows: list[AuditRow] = await until(found, f"{count} rows")
    return rows


def test_every_method_that_changes_something_says_what() -> None:
    for method, row in TABLE.items():
        name = method.rpartition("/")[2]
        assert (row.change is None) == name.startswith(READS), method
        if row.change is not None:
            request, answer = messages_of(method)
            for message, path in ((request, row.change.target), (answer, row.change.answer)):
                assert not path or field_at(message, path) is not None, (method, path)
            assert not row.change.dry_run or row.change.dry_run in request.DESCRIPTOR.fields_by_name


def messages_of(method: str) -> tuple[Any, Any]:
    """The kinds of request and answer."""
    service, _, name = method.removeprefix("/").partition("/")
    one = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    kinds = one.input_type, one.output_type
    return tuple(message_factory.GetMessageClass(kind)() for kind in kinds)  # type: ignore[return-value]


def field_at(message: Any, path: str) -> Any:
    kind = message.DESCRIPTOR
    for part in path.split("."):
        field = kind.fields_by_name.get(part)
        if field is None:
            return None
        kind = field.message_type
    return field


def naming(method: str, path: str) -> Any:
    """A request in which the field that names what is changed says "what"."""
    request, _ = messages_of(method)
    if not path:
        return request
    message, (*above, last) = request, path.split(".")
    for part in above:
        inner = getattr(message, part)
        message = inner.add() if hasattr(inner, "add") else inner
    field = message.DESCRIPTOR.fields_by_name[last]
    if field.is_repeated:
        getattr(message, last).append("what")
    else:
        setattr(message, last, "what")
    return request


async def code_of_call(channel: Any, method: str, request: Any, stubs: Stubs) -> str:
    service, _, name = method.removeprefix("/").partition("/")
    shape = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    kinds = {True: "stream", False: "unary"}
    kind = f"{kinds[shape.client_streaming]}_{kinds[shape.server_streaming]}"
    call = getattr(channel, kind)(method, request_serializer=lambda one: one.SerializeToString())
    asked = iter([request]) if shape.client_streaming else request
    try:
        made = call(asked, metadata=stubs.metadata, timeout=30)
        if shape.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


CHANGING = {method: row for method, row in TABLE.items() if row.change is not None}


async def test_each_changing_method_leaves_one_row_whoever_calls_it(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    node_token = await rig.plane.core.accounts.create_node_token("n")
    node = Stubs(await rig.channel(), node_token.secret.text)
    callers = {"root": root, "kim": kim, "node n": node}
    channel = await rig.channel()
    seen = len(await trail(rig, of_users=False))
    for method, row in CHANGING.items():
        assert row.change is not None
        for actor, stubs in callers.items():
            request = naming(method, row.change.target)
            code = await code_of_call(channel, method, request, stubs)
            rows = await trail(rig, seen + 1, of_users=False)
            rig.plane.core.audit._refused.set(actor, 0.0)  # else most of them are counted together
            assert len(rows) == seen + 1, (method, actor, code, rows[seen:])
            seen += 1
            found = rows[-1]
            service, _, name = method.rpartition("/")
            assert (found.actor, found.method) == (
                actor,
                f"{service.rpartition('.')[2]}/{name}",
            )
            assert found.outcome in {code, "UNKNOWN"}, (method, actor, code)
            may = row.doors & (
                AllowedCallers.NODE
                if actor.startswith("node")
                else AllowedCallers.USER | AllowedCallers.ADMIN
            )
            if not may or (actor == "kim" and not row.doors & AllowedCallers.USER):
                assert found.outcome == "PERMISSION_DENIED", (method, actor)
            if row.change.target:
                assert "what" in found.target, (method, actor, found)


async def test_strangers_leave_rows_too_but_no_flood_of_them(rig: Rig) -> None:
    root = await rig.user("root", role=Role.ADMIN)
    nobody = Stubs(await rig.channel(), "")
    for _ in range(MOST_REFUSALS + 20):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await nobody.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
    rows = await trail(rig, MOST_REFUSALS)
    assert {(row.actor, row.outcome) for row in rows} == {("", "UNAUTHENTICATED")}
    # Some come back while the test runs.
    assert MOST_REFUSALS <= len(rows) < MOST_REFUSALS + 10
    for number in range(MOST_REFUSALS + 20):
        stop = root.sessions.StopSession(pb.StopSessionRequest(session=f"kim/None/{number + 1}"))
        assert (await refused(stop))[0] == "NOT_FOUND"
    assert len(await trail(rig, 2 * MOST_REFUSALS)) < 2 * MOST_REFUSALS + 20


async def test_no_secret_is_in_the_trail(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await rig.user("root", role=Role.ADMIN)
    await kim.secrets.SetSecret(secrets_pb2.SetSecretRequest(name="KEY", value=b"hush-hush"))
    made = await root.accounts.CreateToken(accounts_pb2.CreateTokenRequest(user="kim"))
    join = await root.accounts.CreateJoinToken(accounts_pb2.CreateJoinTokenRequest())
    nobody = Stubs(await rig.channel(), "")
    asked = accounts_pb2.JoinNodeRequest(secret="hush-join", node="n")
    await refused(nobody.accounts.JoinNode(asked))
    rows = await trail(rig, 4)
    assert [(row.actor, row.method, row.target) for row in rows] == [
        ("kim", "SecretService/SetSecret", "KEY"),
        ("root", "AccountService/CreateToken", "kim"),
        ("root", "AccountService/CreateJoinToken", ""),
        ("", "AccountService/JoinNode", "n"),
    ]
    for secret in ("hush", made.token, join.token, kim.metadata[0][1].split()[1]):
        assert secret not in repr(rows)


async def test_what_is_only_checked_changes_nothing_and_leaves_no_row(rig: Rig) -> None:
    kim = await rig.user("kim")
    spec = pb.SessionSpec(argv=["true"])
    await kim.sessions.CreateSession(
        pb.CreateSessionRequest(request_id="r", spec=spec, validate_only=True)
    )
    assert await trail(rig) == []
    session = await kim.submit()
    (row,) = await trail(rig)
    assert (row.actor, row.target, row.outcome) == ("kim", session.name, "OK")
    assert row.request_id


async def test_administrators_read_the_trail_newest_first(rig: Rig) -> None:
    root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
    for name in ("a", "b", "c"):
        await root.accounts.CreateUser(accounts_pb2.CreateUserRequest(name=name))
    drain = kim.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
    assert (await refused(drain))[0] == "PERMISSION_DENIED"
    page = await root.audit.ListAuditRows(audit_pb2.ListAuditRowsRequest(page_size=2))
    assert [(row.actor, row.target, row.outcome) for row in page.rows] == [
        ("kim", "a", "PERMISSION_DENIED"),
        ("root", "c", "OK"),
    ]
    rest = await root.audit.ListAuditRows(
        audit_pb2.ListAuditRowsRequest(cursor=page.next_cursor, actor="root")
    )
    assert [row.target for row in rest.rows] == ["b", "a"]
    assert rest.next_cursor == ""
    of_method = audit_pb2.ListAuditRowsRequest(method="NodeService/DrainNode")
    assert len((await root.audit.ListAuditRows(of_method)).rows) == 1
    for who, request, code in (
        (kim, audit_pb2.ListAuditRowsRequest(), "PERMISSION_DENIED"),
        (root, audit_pb2.ListAuditRowsRequest(cursor="x"), "INVALID_ARGUMENT"),
    ):
        assert (await refused(who.audit.ListAuditRows(request)))[0] == code


async def test_pages_end_at_a_size_and_successful_calls_of_some_methods_are_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await rig.user("root", role=Role.ADMIN)
    ledger = rig.on.history.ledger
    # As an older version wrote them: its texts had no bound.
    row = AuditRow(at=time.time(), actor="kim", method="A/Put", request_id="x" * 3_000_000)
    await ledger.audit([row] * 3)
    await ledger.audit([replace(row, outcome="DENIED", request_id=""), replace(row, method="A/B")])
    monkeypatch.setattr(audits, "PAGE_BYTES", 5_000)
    found, request = [], audit_pb2.ListAuditRowsRequest()
    while True:
        page = await root.audit.ListAuditRows(request)
        assert page.rows
        assert page.ByteSize() < 10_000
        found += page.rows
        request.cursor = page.next_cursor
        if not request.cursor:
            break
    assert [one.method for one in found] == ["A/B", *["A/Put"] * 4]
    request = audit_pb2.ListAuditRowsRequest(without=["A/Put"])
    shown = (await root.audit.ListAuditRows(request)).rows
    assert [(one.method, one.outcome) for one in shown] == [("A/B", "OK"), ("A/Put", "DENIED")]
    many = audit_pb2.ListAuditRowsRequest(without=["A/Put"] * 17)
    assert (await refused(root.audit.ListAuditRows(many)))[0] == "INVALID_ARGUMENT"


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
        ("root", "ProjectService/CreateProject", "vision"),
        ("root", "ProjectService/UpdateProject", "vision"),
        ("kim", "ProjectService/ChangeMembers", "vision"),
        ("root", "ProjectService/DeleteProject", "vision"),
        ("root", "NodeService/DrainNode", "a"),
        ("kim", "NodeService/DrainNode", "a"),
        ("root", "NodeService/ResumeNode", "a"),
        ("root", "NodeService/FenceNode", "a"),
        ("root", "NodeService/RemoveNode", "a"),
    ]
    outcomes = [row.outcome for row in rows if row.outcome != "OK"]
    assert outcomes == ["ALREADY_EXISTS", "PERMISSION_DENIED"]
    assert all(row.token and abs(row.at - time.time()) < 300 for row in rows)


async def test_what_is_done_with_a_session_is_in_the_trail_by_its_full_name(rig: Rig) -> None:
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
    assert [(row.actor, row.method, row.target) for row in await trail(rig, 5)] == [
        ("kim", "SessionService/CreateSession", session.name),
        ("kim", "SessionService/UpdateSession", session.name),
        ("root", "SessionService/UpdateSession", session.name),
        ("root", "SessionService/RequeueSession", session.name),
        ("root", "SessionService/StopSession", session.name),
    ]


class Ledger:
    """Rows, while it answers."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def audit(self, rows: list[AuditRow]) -> None:
        await self.gate.wait()
        if self.is_away:
            raise HistoryUnavailable("scripted")
        self.rows += rows


ROW = AuditRow(at=0.0, actor="root", method="NodeService/DrainNode", target="a")


async def test_a_caller_who_goes_leaves_a_row_and_no_history_is_no_refusal() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    audit = Audit(ledger=ledger, clock=HandClock())  # type: ignore[arg-type]
    call = asyncio.ensure_future(audit.record(ROW, at_once=True))
    await asyncio.sleep(0)
    call.cancel()
    ledger.gate.set()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert [(row.at, row.outcome) for row in ledger.rows] == [(HandClock.now, "OK")]
    ledger.is_away = True
    await audit.record(ROW, at_once=True)
    assert len(ledger.rows) == 1


async def test_rows_of_frequent_calls_go_together_and_none_is_lost_at_the_end() -> None:
    ledger = Ledger()
    audit = Audit(ledger=ledger, clock=HandClock())  # type: ignore[arg-type]
    running = asyncio.ensure_future(audit.run())
    await audit.record(ROW, at_once=False)

    async def has_one() -> bool:
        return len(ledger.rows) == 1

    await until(has_one, "the first row is written")
    for _ in range(3):
        await audit.record(ROW, at_once=False)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert len(ledger.rows) == 4


async def test_calls_beyond_an_actors_allowance_are_counted_in_one_row_each() -> None:
    """Also those that went well, and those that nobody waits for; the last of them says of what."""
    ledger, clock = Ledger(), HandClock()
    audit = Audit(ledger=ledger, clock=clock)  # type: ignore[arg-type]
    no = AuditRow(at=0.0, actor="kim", method="m", outcome="DENIED")
    for number in range(MOST_REFUSALS + 7):
        await audit.record(replace(no, target=f"{number}"), at_once=True)
    for number in range(ROWS_AT_ONCE + 3):
        await audit.record(replace(no, target=f"{number}", outcome="OK"), at_once=True)
    await audit.record(replace(no, method="other", outcome="UNKNOWN"), at_once=True)
    await audit.record(replace(no, actor="lee"), at_once=True)
    assert len(ledger.rows) == MOST_REFUSALS + ROWS_AT_ONCE + 1, "nobody else is counted with kim"
    audit._end_counting()
    await audit.flush()
    told = [(row.method, row.outcome, row.target, row.calls) for row in ledger.rows[-3:]]
    assert told == [
        ("m", "DENIED", f"{MOST_REFUSALS + 6}", 7),
        ("m", "OK", f"{ROWS_AT_ONCE + 2}", 3),
        ("other", "UNKNOWN", "", 1),
    ]
    clock.now += REFUSALS_BACK_S
    await audit.record(no, at_once=True)
    assert ledger.rows[-1].calls == 1, "it has rows again"


async def test_what_is_counted_is_written_each_minute_and_at_the_end() -> None:
    ledger, clock = Ledger(), HandClock()
    audit = Audit(ledger=ledger, clock=clock)  # type: ignore[arg-type]
    for _ in range(ROWS_AT_ONCE + 1):
        await audit.record(ROW, at_once=False)
    running = asyncio.ensure_future(audit.run())

    async def has_all() -> bool:
        return sum(row.calls for row in ledger.rows) == ROWS_AT_ONCE + 1

    await until(has_all, "a minute of a clock by hand is over at once")
    await audit.record(ROW, at_once=False)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert sum(row.calls for row in ledger.rows) == ROWS_AT_ONCE + 2


async def test_at_the_floor_of_the_history_only_administrators_leave_rows_at_once() -> None:
    ledger, low = Ledger(), [True]
    audit = Audit(ledger=ledger, clock=HandClock(), is_low=lambda: low[0])  # type: ignore[arg-type]
    for number in range(50):
        await audit.record(replace(ROW, actor="kim", target=f"{number}"), at_once=True)
    await audit.record(ROW, at_once=True, is_admin=True)
    await audit.flush()
    assert [(row.actor, row.calls) for row in ledger.rows] == [("root", 1)]
    low[0] = False
    audit._end_counting()
    await audit.flush()
    assert [(row.actor, row.calls) for row in ledger.rows[1:]] == [("kim", 50)]


async def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "MOST_COUNTED", 5)
    ledger = Ledger()
    audit = Audit(ledger=ledger, clock=HandClock(), is_low=lambda: True)  # type: ignore[arg-type]
    for number in range(20):
        await audit.record(replace(ROW, actor=f"u{number}"), at_once=True)
    audit._end_counting()
    await audit.flush()
    assert [row.calls for row in ledger.rows] == [1] * 5 + [15]
    assert ledger.rows[-1].outcome == LEFT_OUT


async def test_targets_and_request_ids_are_plain_and_short() -> None:
    ledger = Ledger()
    audit = Audit(ledger=ledger, clock=HandClock())  # type: ignore[arg-type]
    target = "a\0\x1b[2J" + "x" * 9999
    await audit.record(replace(ROW, target=target, request_id="x" * 4_000_000), at_once=True)
    (row,) = ledger.rows
    assert row.target.isprintable()
    assert len(row.target) < 300
    assert len(row.request_id) < 100


async def test_no_changing_method_writes_more_rows_than_an_actor_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever calls whichever, as often as they like: each call is in a row, and rows are few."""
    monkeypatch.setattr(auditing, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(auditing, "MOST_REFUSALS", 3)
    async with platform() as rig:
        root, kim = await rig.user("root", role=Role.ADMIN), await rig.user("kim")
        node_token = await rig.plane.core.accounts.create_node_token("n")
        node = Stubs(await rig.channel(), node_token.secret.text)
        callers = {"root": root, "kim": kim, "node n": node, "": Stubs(await rig.channel(), "")}
        channel = await rig.channel()
        made = Counter[tuple[str, str]]()
        for method, row in CHANGING.items():
            assert row.change is not None
            service, _, name = method.rpartition("/")
            for actor, stubs in callers.items():
                for _ in range(3):
                    request = naming(method, row.change.target)
                    await code_of_call(channel, method, request, stubs)
                made[actor, f"{service.rpartition('.')[2]}/{name}"] += 3

        async def told() -> list[AuditRow] | None:
            rows = await trail(rig, of_users=False)
            counted = rig.plane.core.audit._counted.values()
            calls = sum(row.calls for row in (*rows, *counted))
            return rows if calls == made.total() else None

        rows = await until(told, "each call is in a row, or counted")
        assert max(Counter(row.actor for row in rows).values()) <= 2 * 3
        rig.plane.core.audit._end_counting()
        seen = Counter[tuple[str, str]]()
        rows = await trail(rig, of_users=False)
        for one in rows:
            seen[one.actor, one.method] += one.calls
        assert seen == made
        keys = {(one.actor, one.method, one.outcome) for one in rows}
        assert len(rows) <= len(keys) + len(callers) * 2 * 3
