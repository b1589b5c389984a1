"""The contract of SessionService, through real gRPC: references, visibility, streams, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from controlplane.domain.identity import Role
from controlplane.history.values import Channel, StreamKey
from controlplane.sessions import log_search as searching
from controlplane.sessions.convert import shorten
from nsml.v1 import agents_pb2, datasets_pb2, nodes_pb2, resources_pb2, sessions_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def refusal(error: grpc.aio.AioRpcError) -> tuple[str, str, dict[str, str]]:
    """Code, reason and metadata of an error."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            status.details[0].Unpack(info)
            assert info.domain == "nsml"
            return error.code().name, info.reason, dict(info.metadata)
    return error.code().name, "", {}


async def refused(call) -> tuple[str, str, dict[str, str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return refusal(caught.value)


async def ended(rig: Rig, user: Stubs, session: str) -> pb.Session:
    return await user.reaches(session, "SUCCEEDED", "FAILED", "STOPPED")


async def test_a_session_waits_for_a_node_that_allows_the_host_network(rig: Rig) -> None:
    kim = await rig.user("kim")
    host, own = resources_pb2.NETWORK_HOST, resources_pb2.NETWORK_OWN
    older = await rig.agent("old")
    await older.connect()
    refusal = await refused(kim.submit(network=host))
    assert refusal[:2] == ("FAILED_PRECONDITION", "CANNOT_EVER_FIT")
    assert refusal[2]["why"] == "node old: the agent is of an older version"
    other = await rig.agent("shut", networks=[own, 99])  # of a newer agent
    await other.connect()
    allows = await rig.agent("open", gpus=1, networks=[own, host])
    await allows.connect()
    asked = await kim.submit(network=host)
    await kim.reaches(asked.id, "PREPARING", "RUNNING")
    [replica] = (await kim.get(asked.id)).replicas
    assert replica.node == "open"

    async def ordered() -> bool:
        return allows.orders is not None and bool(allows.orders.assignments)

    await until(ordered, "the agent has its orders")
    assert allows.orders is not None
    assert [one.spec.network for one in allows.orders.assignments] == [host]
    waits = await kim.submit(network=host)

    async def reason() -> str:
        request = pb.ExplainSessionRequest(session=waits.id)
        return (await kim.sessions.ExplainSession(request)).waiting.reason

    assert "with the host network" in await until(reason, "it waits")
    shown = (await kim.nodes.GetNode(nodes_pb2.GetNodeRequest(name="shut"))).node
    assert list(shown.networks) == [own]


async def test_priority_model_and_pod_come_back_as_they_were_asked(rig: Rig) -> None:
    kim = await rig.user("kim")
    asked = {"gpu_model": "A100  80gb ", "pod": "p1", "priority": pb.PRIORITY_HIGH}
    asked["network"] = resources_pb2.NETWORK_HOST
    spec = (await kim.submit(**asked, request_id="r1")).spec
    assert (spec.priority, spec.preemptible) == (pb.PRIORITY_HIGH, False)
    assert (spec.gpu_model, spec.pod) == ("A100 80gb", "p1")
    assert spec.network == resources_pb2.NETWORK_HOST
    assert (await refused(kim.submit(network=9)))[0] == "INVALID_ARGUMENT"
    assert (await kim.submit(**asked, request_id="r1")).name == "kim/None/1"
    for other in (
        {"network": 0},
        {"pod": "p2"},
        {"gpu_model": ""},
        {"priority": 0},
        {"preemptible": True},
    ):
        again = kim.submit(**{**asked, **other}, request_id="r1")
        assert (await refused(again))[0] == "ALREADY_EXISTS"

    plain = (await kim.submit()).spec
    assert (plain.priority, plain.preemptible) == (pb.PRIORITY_NORMAL, False)
    idle = (await kim.submit(priority=pb.PRIORITY_IDLE)).spec
    assert (idle.priority, idle.preemptible) == (pb.PRIORITY_IDLE, True)
    low = (await kim.submit(priority=pb.PRIORITY_LOW, preemptible=True)).spec
    assert (low.priority, low.preemptible) == (pb.PRIORITY_LOW, True)


async def test_a_priority_that_this_version_does_not_know_is_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert (await refused(kim.submit(priority=5)))[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_metrics_of_the_log_and_the_choice_of_loggers_are_checked(rig: Rig) -> None:
    kim = await rig.user("kim")
    asked: list[dict[str, Any]] = [
        {"log_metrics": ["loss"]},
        {"log_metrics": ["loss=((.{30}){30})"]},
        {"log_metrics": ["a=(x)", "a=(y)"]},
        {"log_metrics": [f"a{n}=(x)" for n in range(33)]},
        {"environment": {"NSML_ECHO": "wandbb"}},
        {"environment": {"NSML_ANOTHER": "1"}},
        {"secrets": [pb.SecretUse(name="TOKEN", variable="NSML_ECHO")]},
    ]
    for wrong in asked:
        assert (await refused(kim.submit(**wrong)))[0] == "INVALID_ARGUMENT", wrong
    made = await kim.submit(
        log_metrics=["auto", r"q=q is (\d+)"], environment={"NSML_ECHO": "wandb,mlflow"}
    )
    assert list(made.spec.log_metrics) == ["auto", r"q=q is (\d+)"]
    assert made.spec.environment["NSML_ECHO"] == "wandb,mlflow"


async def test_a_time_of_none_at_all_is_refused_where_none_is_left_out(rig: Rig) -> None:
    kim = await rig.user("kim")
    for field, text in (
        ("time_limit", "a time limit of 0 s"),
        ("lost_after", "a lost_after of 0 s"),
    ):
        for retries in (0, 1):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kim.submit(**{field: Duration(), "retry_count": retries})
            assert refusal(caught.value)[0] == "INVALID_ARGUMENT"
            assert text in str(caught.value.details())
    spec = (await kim.submit(grace=Duration())).spec
    assert spec.HasField("grace")
    assert spec.grace.ToSeconds() == 0
    assert not spec.HasField("time_limit")
    assert not spec.HasField("lost_after")
    assert (await kim.submit()).spec.grace.ToSeconds() == 10


async def test_labels_come_back_live_and_ended_to_all_who_see_the_session(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    labels = {"team/stage": "dev", "try": "둘째 시도"}
    asked = pb.CreateSessionRequest(
        request_id="labelled",
        spec=pb.SessionSpec(argv=["true"], labels=labels),
        visibility=resources_pb2.VISIBILITY_PUBLIC,
    )
    made = (await kim.sessions.CreateSession(asked)).session
    assert dict(made.spec.labels) == labels
    assert dict((await lee.get(made.id)).spec.labels) == labels
    await kim.sessions.StopSession(pb.StopSessionRequest(session=made.id))
    await ended(rig, kim, made.id)

    async def is_archived() -> bool:
        return made.id not in rig.plane.core.state.sessions

    await until(is_archived, "it is in the catalogue")
    assert dict((await lee.get(made.id)).spec.labels) == labels
    request = pb.ListSessionsRequest(filter=pb.SessionFilter(include_ended=True))
    [listed] = (await kim.sessions.ListSessions(request)).sessions
    assert dict(listed.spec.labels) == labels


@pytest.mark.parametrize(
    ("labels", "code", "words"),
    [
        ({str(i): "x" for i in range(33)}, "RESOURCE_EXHAUSTED", "33 labels: at most 32"),
        ({"": "x"}, "INVALID_ARGUMENT", "'' is not the key of a label"),
        ({"a b": "x"}, "INVALID_ARGUMENT", "'a b' is not the key of a label"),
        ({"k" * 64: "x"}, "INVALID_ARGUMENT", "is not the key of a label"),
        ({"a": ""}, "INVALID_ARGUMENT", "'' is not the value of a label"),
        ({"a": "x" * 64}, "INVALID_ARGUMENT", "is not the value of a label"),
        ({"a": "\x1b[2J"}, "INVALID_ARGUMENT", "is not the value of a label"),
        ({"a": "\u202ex"}, "INVALID_ARGUMENT", "is not the value of a label"),
        ({"a": "x\n"}, "INVALID_ARGUMENT", "is not the value of a label"),
    ],
)
async def test_labels_that_are_none_are_refused(
    rig: Rig, labels: dict[str, str], code: str, words: str
) -> None:
    kim = await rig.user("kim")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await kim.submit(labels=labels)
    assert refusal(caught.value)[0] == code
    assert words in str(caught.value.details())
    most = {f"{i:063}": "둘" * 63 for i in range(32)}
    assert dict((await kim.submit(labels=most)).spec.labels) == most


async def test_references(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    one, two = await kim.submit(), await kim.submit()
    for text in (two.id, "kim/None/2", "None/2", "2", "@last", "@1"):
        assert (await kim.get(text)).id == two.id
    assert (await kim.get("@2")).id == one.id
    assert (await refused(kim.get("@3")))[:2] == ("NOT_FOUND", "NOT_FOUND")
    assert (await refused(kim.get("kim/None/9")))[0] == "NOT_FOUND"
    assert (await refused(kim.get("a b")))[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    for text in (one.id, "kim/None/1"):
        assert (await refused(lee.get(text)))[0] == "NOT_FOUND"


async def test_only_checking_refuses_alike_and_makes_nothing(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    await agent.assignments(0)
    spec = pb.SessionSpec(argv=["true"], resources=resources_pb2.Resources(gpu_thousandths=99_000))
    request = pb.CreateSessionRequest(request_id="r", spec=spec, validate_only=True)
    assert (await refused(kim.sessions.CreateSession(request)))[1] == "CANNOT_EVER_FIT"
    request.spec.resources.gpu_thousandths = 1000
    assert await kim.sessions.CreateSession(request) == pb.CreateSessionResponse()
    assert not (await kim.sessions.ListSessions(pb.ListSessionsRequest())).sessions
    request.validate_only = False
    assert (await kim.sessions.CreateSession(request)).session.name == "kim/None/1"


async def test_ended_ones_are_found_alike(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await rig.agent()
    agent.runs_at_once = True
    await agent.connect()
    one, two = await kim.submit(), await kim.submit()
    for session in (one, two):
        await ended(rig, kim, session.id)
    for text in (two.id, "kim/None/2", "None/2", "2", "@last"):
        assert (await kim.get(text)).id == two.id


async def test_somebody_elses_private_session_is_not_there(rig: Rig) -> None:
    kim = await rig.user("kim", team="vision")
    lee = await rig.user("lee", team="vision")
    root = await rig.user("root", role=Role.ADMIN)
    private = await kim.submit()
    shared = await kim.submit(visibility=resources_pb2.VISIBILITY_TEAM)
    public = await kim.submit(visibility=resources_pb2.VISIBILITY_PUBLIC)
    assert (await lee.get(shared.name)).id == shared.id
    assert (await lee.get(public.name)).id == public.id
    assert (await root.get(private.name)).id == private.id
    for session, code in (
        (private, "NOT_FOUND"),
        (shared, "PERMISSION_DENIED"),
        (public, "PERMISSION_DENIED"),
    ):
        stop = pb.StopSessionRequest(session=session.name)
        assert (await refused(lee.sessions.StopSession(stop)))[0] == code
        remove = pb.RemoveSessionRequest(session=session.name)
        assert (await refused(lee.sessions.RemoveSession(remove)))[0] == code
        update = pb.UpdateSessionRequest(session=session.name, memo="mine")
        assert (await refused(lee.sessions.UpdateSession(update)))[0] == code
    for name in (private.name, private.id):
        log = pb.ReadLogsRequest(session=name)
        for read in (
            _all(lee.sessions.ReadLogs(log)),
            _all(lee.sessions.SearchLogs(pb.SearchLogsRequest(log=log, pattern="x"))),
            _all(lee.sessions.ReadMetrics(pb.ReadMetricsRequest(session=name))),
            _all(
                lee.sessions.ReadSeries(pb.ReadSeriesRequest(sessions=[public.id, name], width=5))
            ),
            lee.sessions.ListMetrics(pb.ListMetricsRequest(session=name)),
        ):
            assert (await refused(read))[0] == "NOT_FOUND"
    listed = await lee.sessions.ListSessions(pb.ListSessionsRequest())
    assert {one.id for one in listed.sessions} == {shared.id, public.id}
    stopped = await root.sessions.StopSession(pb.StopSessionRequest(session=private.name))
    assert stopped.session.state == pb.SESSION_STATE_STOPPED


async def test_nothing_is_shared_with_a_team_that_is_not_there(rig: Rig) -> None:
    kim = await rig.user("kim")
    session = await kim.submit()
    team = resources_pb2.VISIBILITY_TEAM
    update = pb.UpdateSessionRequest(session=session.name, visibility=team)
    push = datasets_pb2.CreateDatasetVersionRequest(name="x", digest="0" * 64, visibility=team)
    for answer in (
        await refused(kim.submit(visibility=team)),
        await refused(kim.sessions.UpdateSession(update)),
        await refused(kim.datasets.CreateDatasetVersion(push)),
    ):
        assert answer[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_stop_of_a_queued_session_is_at_once(rig: Rig) -> None:
    kim = await rig.user("kim")
    session = await kim.submit()
    request = pb.StopSessionRequest(session=session.id, reason="wrong flag")
    stopped = (await kim.sessions.StopSession(request)).session
    assert stopped.state == pb.SESSION_STATE_STOPPED
    told = (stopped.end.cause, stopped.end.message)
    assert told == (pb.CAUSE_STOP_REQUESTED, "stopped by kim before it ran: wrong flag")
    code, reason, _ = await refused(kim.sessions.StopSession(request))
    assert (code, reason) == ("FAILED_PRECONDITION", "ALREADY_ENDED")


async def test_stop_of_a_running_session_goes_to_its_node(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    before = agent.orders.revision
    request = pb.StopSessionRequest(session=session.id)
    request.grace.seconds = 3
    assert (await kim.sessions.StopSession(request)).session.state == pb.SESSION_STATE_STOPPING

    async def ordered() -> bool:
        return any(one.HasField("stop") for one in agent.orders.assignments)

    await until(ordered, "the stop is ordered")
    assert agent.orders.revision > before
    assert agent.orders.assignments[0].stop.grace.seconds == 3
    assert agent.orders.assignments[0].stop.cause == pb.CAUSE_STOP_REQUESTED
    await agent.report(assignment.replica, "FINALIZED", cause="STOP_REQUESTED", code=143)
    stopped = await kim.reaches(session.id, "STOPPED")
    assert stopped.end.exit_code == 143


async def test_remove(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    request = pb.RemoveSessionRequest(session=session.id)
    code, reason, details = await refused(kim.sessions.RemoveSession(request))
    assert (code, reason) == ("FAILED_PRECONDITION", "STILL_LIVE")
    assert details["try"] == f"nsml stop {session.name}"
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    await ended(rig, kim, session.id)
    assert (await kim.sessions.RemoveSession(request)).name == session.name
    assert (await refused(kim.get(session.id)))[0] == "NOT_FOUND"


async def test_memo_and_visibility_change_live_and_ended(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    session = await kim.submit(memo="old")
    update = pb.UpdateSessionRequest(session=session.id, memo="new")
    assert (await kim.sessions.UpdateSession(update)).session.memo == "new"
    await kim.sessions.StopSession(pb.StopSessionRequest(session=session.id))

    async def exported() -> bool:
        return rig.plane.core.state.session(session.id) is None

    await until(exported, "it is exported")
    update = pb.UpdateSessionRequest(
        session=session.id, memo="", visibility=resources_pb2.VISIBILITY_PUBLIC
    )
    assert (await kim.sessions.UpdateSession(update)).session.memo == ""
    assert (await lee.get(session.name)).visibility == resources_pb2.VISIBILITY_PUBLIC


async def test_why_it_waits_is_shown(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=2)).connect()
    two = resources_pb2.Resources(gpu_thousandths=2000)
    await kim.submit()
    waiting = await kim.submit(resources=two)

    async def explained() -> str:
        return (await kim.get(waiting.id)).waiting

    reason = await until(explained, "the reason")
    assert reason == "needs 2 GPUs on one node; most free on one node: 1 (node a)"
    code, reason, _ = await refused(
        kim.submit(resources=resources_pb2.Resources(gpu_thousandths=9000))
    )
    assert (code, reason) == ("FAILED_PRECONDITION", "CANNOT_EVER_FIT")


async def test_watchers_are_told_why_it_waits(rig: Rig) -> None:
    kim = await rig.user("kim")
    await (await rig.agent(gpus=1)).connect()
    await kim.submit()
    watch = kim.sessions.WatchSessions(pb.WatchSessionsRequest())
    await watch.read()
    waiting = await kim.submit()

    async def told() -> bool:
        step = await watch.read()
        return any(one.id == waiting.id and one.waiting for one in step.changed)

    await until(told, "the reason comes by itself")


async def test_pages(rig: Rig) -> None:
    kim = await rig.user("kim")
    sessions = [await kim.submit(f"p{i}") for i in range(7)]
    request, seen = pb.ListSessionsRequest(page_size=3), []
    while True:
        page = await kim.sessions.ListSessions(request)
        seen += [one.id for one in page.sessions]
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert seen == [one.id for one in reversed(sessions)]
    request.cursor = "nonsense"
    assert (await refused(kim.sessions.ListSessions(request)))[0] == "INVALID_ARGUMENT"


async def test_a_page_of_large_sessions_is_cut_below_the_message_limit(rig: Rig) -> None:
    kim = await rig.user("kim")
    large = "x" * 32_000
    sessions = [await kim.submit(large, environment={"A": large}) for _ in range(70)]
    request, seen, pages = pb.ListSessionsRequest(page_size=1000), [], 0
    while True:
        page = await kim.sessions.ListSessions(request)
        pages += 1
        seen += [one.id for one in page.sessions]
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert seen == [one.id for one in reversed(sessions)]
    assert pages > 1
    steps = kim.sessions.WatchSessions(pb.WatchSessionsRequest())
    got: list[str] = []
    async for step in steps:
        assert step.reset == (not got)
        got += [one.id for one in step.changed]
        if step.revision:
            break
    assert sorted(got) == sorted(seen)


async def test_watching(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    first = await kim.submit()
    watch = kim.sessions.WatchSessions(pb.WatchSessionsRequest())
    step = await watch.read()
    assert (step.reset, [one.id for one in step.changed]) == (True, [first.id])
    secret = await lee.submit()
    states, removed, seen, revision = [], False, set(), step.revision
    for assignment in await agent.assignments(2):
        await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    while not removed:
        step = await watch.read()
        assert step.revision >= revision
        revision = step.revision
        seen |= {one.id for one in step.changed} | set(step.removed)
        states += [one.state for one in step.changed]
        removed = first.id in step.removed
    assert states[-1] == pb.SESSION_STATE_SUCCEEDED
    assert seen == {first.id}
    assert secret.id not in seen
    second = await kim.submit()
    resumed = kim.sessions.WatchSessions(pb.WatchSessionsRequest(from_revision=revision))
    step = await resumed.read()
    assert (step.reset, [one.id for one in step.changed]) == (False, [second.id])


async def test_a_resumed_watch_tells_ends_that_it_missed(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    watch = kim.sessions.WatchSessions(pb.WatchSessionsRequest())
    revision = (await watch.read()).revision
    watch.cancel()
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")

    async def exported() -> bool:
        return rig.plane.core.state.session(session.id) is None

    await until(exported, "it is exported")
    resumed = kim.sessions.WatchSessions(pb.WatchSessionsRequest(from_revision=revision))
    step = await resumed.read()
    assert not step.reset
    assert [one.state for one in step.changed] == [pb.SESSION_STATE_SUCCEEDED]
    assert list(step.removed) == [session.id]


async def test_a_resumed_watch_tells_what_left_its_filter_meanwhile(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    stays, ends = await kim.submit(), await kim.submit()
    secret = await lee.submit()
    wanted = pb.SessionFilter(states=[pb.SESSION_STATE_PREPARING])
    assignments = {one.replica.session_id: one for one in await agent.assignments(2)}
    watch = kim.sessions.WatchSessions(pb.WatchSessionsRequest(filter=wanted))
    step = await watch.read()
    assert {one.id for one in step.changed} == {stays.id, ends.id}
    watch.cancel()
    await agent.report(assignments[stays.id].replica, "RUNNING")
    await kim.reaches(stays.id, "RUNNING")
    await agent.report(assignments[ends.id].replica, "FINALIZED", cause="COMPLETED")
    await lee.sessions.UpdateSession(pb.UpdateSessionRequest(session=secret.id, memo="mine"))

    async def exported() -> bool:
        return rig.plane.core.state.session(ends.id) is None

    await until(exported, "it is exported")
    request = pb.WatchSessionsRequest(filter=wanted, from_revision=step.revision)
    step = await kim.sessions.WatchSessions(request).read()
    assert not step.reset
    assert set(step.removed) == {stays.id, ends.id}


def log_chunk(session: str, first: int, data: bytes, *, attempt: int = 1) -> agents_pb2.Chunk:
    chunk = agents_pb2.Chunk(first=first, last=first + len(data) - 1, data=data)
    chunk.stream.replica.session_id = session
    chunk.stream.replica.attempt = attempt
    chunk.stream.channel = agents_pb2.CHANNEL_LOG
    return chunk


class Ingest:
    """An agent's second stream."""

    def __init__(self, stubs: Stubs) -> None:
        self.call = stubs.agents._stub.Ingest(metadata=stubs.metadata)

    async def send(self, *chunks: agents_pb2.Chunk) -> list[int]:
        await self.call.write(agents_pb2.IngestRequest(chunks=chunks))
        response = await self.call.read()
        return [cursor.next for cursor in response.acknowledged]


async def test_logs_are_followed_to_the_end(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    ingest = Ingest(agent.stubs)
    reading = kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session.id, follow=True))
    got = asyncio.ensure_future(_all(reading))
    whole = bytes(range(256)) * 1200
    assert await ingest.send(log_chunk(session.id, 0, whole[:1000])) == [1000]
    await agent.report(assignment.replica, "RUNNING")
    assert await ingest.send(log_chunk(session.id, 500, whole[500:])) == [len(whole)]
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    pieces = await asyncio.wait_for(got, 60)
    assert b"".join(piece.data for piece in pieces) == whole
    assert max(len(piece.data) for piece in pieces) <= 64 << 10
    later = kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session.id, offset=len(whole) - 7))
    assert b"".join(piece.data for piece in await _all(later)) == whole[-7:]


@pytest.mark.parametrize("which", [{"attempt": 2}, {"rank": 1}])
async def test_a_log_that_cannot_be_is_not_there(rig: Rig, which: dict[str, int]) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    request = pb.ReadLogsRequest(session=session.id, follow=True, **which)
    code, _, _ = await refused(_all(kim.sessions.ReadLogs(request)))
    assert code == "NOT_FOUND"


async def test_the_log_of_the_next_attempt_follows(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(retry_count=1)
    [assignment] = await agent.assignments(1)
    ingest = Ingest(agent.stubs)
    reading = kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session.id, follow=True))
    got = asyncio.ensure_future(_all(reading))
    await ingest.send(log_chunk(session.id, 0, b"one\n"))
    await agent.report(assignment.replica, "RUNNING")
    report = agents_pb2.ReplicaReport(replica=assignment.replica, phase="REPLICA_PHASE_FINALIZED")
    report.exit.cause = pb.CAUSE_LOST_AFTER
    report.exit.ran_for.seconds = 100
    await agent._call.write(agents_pb2.ControlRequest(report=report))

    async def second() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(second, "the second attempt is ordered")
    # What the first attempt left is still taken, and from nobody else.
    await ingest.send(log_chunk(session.id, 4, b"late\n"))
    await ingest.send(log_chunk(session.id, 0, b"two\n", attempt=2))
    replica = agent.orders.assignments[0].replica
    await agent.report(replica, "FINALIZED", cause="COMPLETED")
    pieces = await asyncio.wait_for(got, 60)
    assert [(p.attempt, p.data) for p in pieces if p.attempt == 2] == [(2, b"two\n")]
    first = b"".join(piece.data for piece in pieces if piece.attempt == 1)
    assert first in (b"one\n", b"one\nlate\n")


async def test_a_log_resumes_within_an_attempt_and_goes_on_if_asked_to(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(retry_count=1)
    [assignment] = await agent.assignments(1)
    ingest = Ingest(agent.stubs)
    await ingest.send(log_chunk(session.id, 0, b"one\n"))
    place = {"session": session.id, "attempt": 1, "offset": 2, "follow": True}
    alone = asyncio.ensure_future(_all(kim.sessions.ReadLogs(pb.ReadLogsRequest(**place))))
    request = pb.ReadLogsRequest(**place, later_attempts=True)
    following = aiter(kim.sessions.ReadLogs(request))
    assert (await anext(following)).data == b"e\n"
    await agent.report(assignment.replica, "FINALIZED", cause="LOST_AFTER")

    async def second() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(second, "the second attempt is ordered")
    await ingest.send(log_chunk(session.id, 0, b"two\n", attempt=2))
    live = await anext(following)
    assert (live.attempt, live.offset, live.data) == (2, 0, b"two\n")
    await agent.report(agent.orders.assignments[0].replica, "FINALIZED", cause="COMPLETED")
    assert not [piece async for piece in following]
    assert [(piece.attempt, piece.data) for piece in await alone] == [(1, b"e\n")]


async def test_a_log_by_time(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    ingest = Ingest(agent.stubs)
    await ingest.send(log_chunk(session.id, 0, b"x" * 100_000 + b"\n"))
    await ingest.send(log_chunk(session.id, 100_001, b"two\n"))
    await agent.report(assignment.replica, "RUNNING")

    async def read(**which: Any) -> list[pb.ReadLogsResponse]:
        return await _all(kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session.id, **which)))

    pieces = await read(times=True)
    assert [len(piece.data) for piece in pieces] == [65536, 34469]
    assert [[one.offset for one in piece.times] for piece in pieces] == [[0], [65536, 100_001]]
    came = pieces[1].times[1].time
    assert b"".join(piece.data for piece in await read(since=came)) == b"two\n"
    assert sum(len(piece.data) for piece in await read(until=came)) == 100_001
    assert not await read(since=came, until=came)
    assert len(await read(since_age=Duration(seconds=3600))) == 2
    assert not await read(until_age=Duration(seconds=3600))
    for wrong in (
        {"since": came, "offset": 1},
        {"until": came, "follow": True},
        {"since": Timestamp(seconds=-1)},
        {"until": Timestamp(seconds=1 << 60)},
        {"since_age": Duration(seconds=-5)},
    ):
        code, _, _ = await refused(read(**wrong))
        assert code == "INVALID_ARGUMENT"


async def test_a_log_is_searched_where_it_lies(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(retry_count=1)
    [assignment] = await agent.assignments(1)
    ingest = Ingest(agent.stubs)
    noise = b"".join(b"line %d %s\n" % (number, b"-" * 300) for number in range(2, 2_001))
    await ingest.send(log_chunk(session.id, 0, b"start: NaN\n"))
    for at in range(0, len(noise), 1 << 20):
        await ingest.send(log_chunk(session.id, 11 + at, noise[at : at + (1 << 20)]))
    await ingest.send(log_chunk(session.id, 11 + len(noise), b"then nan\nand"))
    log = pb.ReadLogsRequest(session=session.id, later_attempts=True)

    async def search(pattern: str, **more: Any) -> list[pb.SearchLogsResponse]:
        request = pb.SearchLogsRequest(log=log, pattern=pattern, **more)
        return await _all(kim.sessions.SearchLogs(request))

    answers = await search("nan", ignore_case=True)
    found = [line for answer in answers for line in answer.lines]
    assert [(line.number, line.text) for line in found] == [
        (1, b"start: NaN"),
        (2_001, b"then nan"),
    ]
    assert found[1].offset == 11 + len(noise)
    assert (answers[-1].next, answers[-1].next_line) == (len(noise) + 23, 2_002)
    around = [line.text for one in await search("nan", context_lines=1) for line in one.lines]
    assert around == [b"line 2000 " + b"-" * 300, b"then nan", b"and"]
    log.offset, log.attempt = 11 + len(noise), 1
    resumed = await search("nan", line=2_001)
    assert [line.number for line in resumed[0].lines] == [2_001]
    log.offset = 0
    every = [line for answer in await search("line") for line in answer.lines]
    assert [line.number for line in every] == list(range(2, 2_001))
    for pattern, more in (("(", {}), ("", {}), ("x", {"context_lines": 101})):
        code, _, _ = await refused(search(pattern, **more))
        assert code == "INVALID_ARGUMENT"
    log.follow = True
    following = aiter(
        kim.sessions.SearchLogs(pb.SearchLogsRequest(log=log, pattern="^and|^two|^more"))
    )
    await ingest.send(log_chunk(session.id, 20 + len(noise) + 3, b" more\n"))
    texts = [line.text for line in (await _next_found(following)).lines]
    assert texts == [b"and more"]
    await agent.report(assignment.replica, "FINALIZED", cause="LOST_AFTER")

    async def second() -> bool:
        return [one.replica.attempt for one in agent.orders.assignments] == [2]

    await until(second, "the second attempt is ordered")
    await ingest.send(log_chunk(session.id, 0, b"one\ntwo\n", attempt=2))
    answer = await _next_found(following)
    assert (answer.attempt, [line.number for line in answer.lines]) == (2, [2])
    await agent.report(agent.orders.assignments[0].replica, "FINALIZED", cause="COMPLETED")
    assert not [line for answer in [one async for one in following] for line in answer.lines]


async def _next_found(following: Any) -> pb.SearchLogsResponse:
    while True:
        answer = await asyncio.wait_for(anext(following), 60)
        if answer.lines:
            return answer


async def test_a_pattern_that_takes_long_ends_soon_and_its_turn_is_given_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    await Ingest(agent.stubs).send(log_chunk(session.id, 0, b"x" * 100))
    monkeypatch.setattr(searching, "LONGEST_STEP_S", 0.0)
    request = pb.SearchLogsRequest(log=pb.ReadLogsRequest(session=session.id), pattern="y")
    for _ in range(2 * searching.MOST_AT_ONCE):
        code, _, _ = await refused(_all(kim.sessions.SearchLogs(request)))
        assert code == "INVALID_ARGUMENT"


async def test_a_node_cannot_write_for_another_node(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    session = await kim.submit()
    await agent.assignments(1)
    stranger = await rig.agent("b")
    await Ingest(stranger.stubs).send(log_chunk(session.id, 0, b"forged"))
    assert not await _all(kim.sessions.ReadLogs(pb.ReadLogsRequest(session=session.id)))


async def _all(call) -> list:
    return [piece async for piece in call]


async def test_several_chunks_of_a_stream_in_one_message_stay_in_order(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    chunks = []
    for step in range(1, 6):
        record = b'{"kind":"metric","time":5.5,"step":%d,"values":{"loss":0.5}}' % step
        chunk = agents_pb2.Chunk(first=step, last=step, records=[record])
        chunk.stream.replica.session_id = session.id
        chunk.stream.replica.attempt = 1
        chunk.stream.channel = agents_pb2.CHANNEL_METRIC
        chunks.append(chunk)
    assert await Ingest(agent.stubs).send(*chunks) == [6]
    pages = await _all(kim.sessions.ReadMetrics(pb.ReadMetricsRequest(session=session.id)))
    assert [point.step for page in pages for point in page.points] == [1, 2, 3, 4, 5]
    assert not any(page.missing_reports for page in pages)
    chunks[-1].first = chunks[-1].last = 6
    chunks[-1].records[0] = b'{"kind":"metric","time":"late","values":{"loss":0.5}}'
    assert await Ingest(agent.stubs).send(chunks[-1]) == [7]
    pages = await _all(kim.sessions.ReadMetrics(pb.ReadMetricsRequest(session=session.id)))
    assert sum(page.missing_reports for page in pages) == 1


async def test_metrics(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    records = (
        b'{"kind":"metric","time":5.5,"step":1,"values":{"loss":0.5,"note":"x"},"summary":true}',
        b'{"kind":"metric","time":6.5,"step":2,"values":{"loss":"NaN"},"summary":false}',
        (
            b'{"kind":"checkpoint","time":7.0,"name":"best","folder":"1-best","files":[["m",3]],'
            b'"size":3,"elapsed":1.5,"summary":{"loss":0.5},"step":2}'
        ),
    )
    key = StreamKey(session.id, 1, 0, Channel.METRIC, 0)
    chunk = agents_pb2.Chunk(first=1, last=3, records=records)
    chunk.stream.replica.session_id = key.session_id
    chunk.stream.replica.attempt = 1
    chunk.stream.channel = agents_pb2.CHANNEL_METRIC
    assert await Ingest(agent.stubs).send(chunk) == [4]
    reading = kim.sessions.ReadMetrics(pb.ReadMetricsRequest(session=session.id))
    points = [point for page in await _all(reading) for point in page.points]
    assert [(p.name, p.step) for p in points] == [("loss", 1), ("note", 1), ("loss", 2)]
    assert (points[0].number, points[1].json) == (0.5, '"x"')
    assert points[2].number != points[2].number
    counts = await kim.sessions.ListMetrics(pb.ListMetricsRequest(session=session.id))
    assert [(one.name, one.count) for one in counts.metrics] == [("loss", 2), ("note", 1)]
    asked = pb.ReadSeriesRequest(sessions=[session.id, session.name], names=["lo*"], width=50)
    answers = await _all(kim.sessions.ReadSeries(asked))
    assert [answer.session_id for answer in answers] == [session.id, session.id]
    [series] = answers[0].series
    assert (series.session_id, series.name, series.attempt, series.rank) == (
        session.id,
        "loss",
        1,
        0,
    )
    assert (series.start, series.grain, list(series.time)) == (5.5, 1, [5.5, 6.5])
    assert (list(series.x_low), list(series.x_high)) == ([1, 2], [1, 2])
    assert (list(series.last), list(series.finite), list(series.odd)) == ([0.5, 0], [1, 0], [0, 1])
    asked = pb.ReadSeriesRequest(
        sessions=[session.id], width=1, low=2, high=2, axis="SERIES_AXIS_STEP"
    )
    [answer] = await _all(kim.sessions.ReadSeries(asked))
    assert list(answer.series[0].x_low) == [2]
    for bad in (
        {"width": 0},
        {"width": 10_001},
        {"low": 2.0, "high": 1.0},
        {"low": float("nan")},
        {"axis": 9},
        {"sessions": []},
    ):
        asked = pb.ReadSeriesRequest(**{"sessions": [session.id], "width": 5} | bad)
        assert (await refused(_all(kim.sessions.ReadSeries(asked))))[0] == "INVALID_ARGUMENT"
    many = pb.ReadSeriesRequest(sessions=[session.id] * 1_001, width=5)
    assert (await refused(_all(kim.sessions.ReadSeries(many))))[0] == "RESOURCE_EXHAUSTED"
    lee = await rig.user("lee")
    assert (await refused(_all(lee.sessions.ReadSeries(asked))))[0] == "INVALID_ARGUMENT"
    asked = pb.ReadSeriesRequest(sessions=[session.id], width=5)
    assert (await refused(_all(lee.sessions.ReadSeries(asked))))[0] == "NOT_FOUND"
    seen = await kim.get(session.id)
    assert (dict(seen.summary)["loss"], seen.checkpoint_count) == (0.5, 1)
    assert list(seen.summary_names) == ["step", "loss", "note"]
    follow = kim.sessions.ReadMetrics(
        pb.ReadMetricsRequest(session=session.id, names=["loss"], follow=True)
    )
    got = asyncio.ensure_future(_all(follow))
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    pages = await asyncio.wait_for(got, 60)
    assert pages[0].points[0].number == 0.5


async def test_who_watches_with_reports_is_told_them_and_others_are_not(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    watch = kim.sessions.WatchSessions(pb.WatchSessionsRequest(with_reports=True))
    plain = kim.sessions.WatchSessions(pb.WatchSessionsRequest())
    first = await watch.read()
    await plain.read()
    assert first.reset
    revision, told = first.revision, []
    for step in (1, 2):
        await _ingest(agent, assignment.replica, step)
        while not told or told[-1].summary["step"] < step:
            answer = await watch.read()
            assert answer.revision >= revision
            revision = answer.revision
            told += answer.reports
    assert list(told[-1].summary_names) == ["step", "loss"]
    assert {one.session_id for one in told} == {session.id}
    # Whoever comes back is told it without a change, and goes on from where they were.
    again = kim.sessions.WatchSessions(
        pb.WatchSessionsRequest(from_revision=revision, with_reports=True)
    )
    answer = await again.read()
    assert not answer.reset
    while not answer.reports:
        answer = await again.read()
    assert (answer.revision, list(answer.reports)) == (revision, [told[-1]])
    await kim.sessions.UpdateSession(pb.UpdateSessionRequest(session=session.id, memo="x"))
    answer = pb.WatchSessionsResponse()
    while [one.memo for one in answer.changed] != ["x"]:
        answer = await plain.read()
        assert not answer.reports


async def test_lists_and_watches_carry_the_first_values_of_a_summary(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent(gpus=1)).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    values = {f"loss/{number}": number / 3 for number in range(200)}
    await _ingest(agent, assignment.replica, 1, values)
    first, last = ["step", *list(values)[:30]], "loss/199"

    async def listed(*names: str) -> pb.Session:
        request = pb.ListSessionsRequest(summary_names=names)
        [found] = (await kim.sessions.ListSessions(request)).sessions
        return found

    found = await listed()
    assert (list(found.summary_names), found.summary_left_out) == (first, 170)
    assert found.summary.fields.keys() == set(first)
    found = await listed(last, "loss/3", "nothing")
    assert (list(found.summary_names), found.summary_left_out) == ([*first, last], 169)
    whole = await kim.get(session.id)
    assert (list(whole.summary_names), whole.summary_left_out) == (["step", *values], 0)
    code, *_ = await refused(listed(*map(str, range(65))))
    assert code == "RESOURCE_EXHAUSTED"
    for names in ([], [last]):
        request = pb.WatchSessionsRequest(with_reports=True, summary_names=names)
        watch = kim.sessions.WatchSessions(request)
        answer = await watch.read()
        assert list(answer.changed[0].summary_names) == [*first, *names]
        told: list[pb.SessionReport] = []
        step = int(answer.changed[0].summary["step"]) + 1
        await _ingest(agent, assignment.replica, step, values)
        while not told or told[-1].summary["step"] < step:
            told += (await watch.read()).reports
        assert list(told[-1].summary_names) == [*first, *names]
        assert told[-1].summary_left_out == 170 - len(names)
        watch.cancel()


async def _ingest(
    agent: Any, replica: Any, step: int, values: Mapping[str, float] | None = None
) -> None:
    values = values or {"loss": 1 / step}
    told = {"kind": "metric", "time": 5.0 + step, "step": step, "values": values}
    record = json.dumps({**told, "summary": True}).encode()
    chunk = agents_pb2.Chunk(first=step, last=step, records=[record])
    chunk.stream.replica.CopyFrom(replica)
    chunk.stream.channel = agents_pb2.CHANNEL_METRIC
    assert await Ingest(agent.stubs).send(chunk) == [step + 1]


async def test_metadata_names_the_request_errors(rig: Rig) -> None:
    kim = await rig.user("kim")
    await kim.submit("a", request_id="same")
    code, reason, details = await refused(kim.submit("b", request_id="same"))
    assert (code, reason) == ("ALREADY_EXISTS", "ALREADY_EXISTS")
    assert details["try"] == "a fresh request id"
    code, reason, _ = await refused(kim.submit("x" * 40_000))
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "TOO_LARGE")
    bad = sessions_pb2.ReadMetricsRequest(session="@last", **{"from": "x"})
    assert (await refused(_all(kim.sessions.ReadMetrics(bad))))[0] == "INVALID_ARGUMENT"


async def test_values_of_the_environment_are_hidden_in_every_answer(rig: Rig) -> None:
    """Every rpc that answers with a session, for everybody who sees it: one of a team, then public."""
    kim, lee = await rig.user("kim", team="vision"), await rig.user("lee", team="vision")
    park, admin = await rig.user("park"), await rig.user("root", role=Role.ADMIN)
    spec = pb.SessionSpec(argv=["true"], environment={"LR": "s3cret"})
    request = pb.CreateSessionRequest(
        request_id="r1",
        spec=spec,
        visibility=resources_pb2.VISIBILITY_TEAM,
        command=["nsml", "run", "--env", "LR=s3cret"],
    )
    made = (await kim.sessions.CreateSession(request)).session
    assert made.spec.environment["LR"] == "s3cret"
    assert made.command[-1] == "LR=s3cret"

    async def told(user: Stubs) -> list[bytes]:
        watch = user.sessions.WatchSessions(pb.WatchSessionsRequest())
        first = await anext(aiter(watch))
        watch.cancel()
        answers = [
            await user.sessions.GetSession(pb.GetSessionRequest(session=made.id)),
            await user.sessions.ListSessions(pb.ListSessionsRequest()),
            first,
        ]
        return [answer.SerializeToString() for answer in answers]

    assert all(b"s3cret" in answer for answer in [*await told(kim), *await told(admin)])
    for answer in await told(lee):
        assert b"LR" in answer
        assert b"s3cret" not in answer
    changed = await kim.sessions.UpdateSession(
        pb.UpdateSessionRequest(session=made.id, visibility=resources_pb2.VISIBILITY_PUBLIC)
    )
    assert changed.session.spec.environment["LR"] == "s3cret"
    assert all(b"s3cret" not in answer for answer in await told(park))
    for text in ("s3cret", "LR=s"):
        found = await park.sessions.ListSessions(
            pb.ListSessionsRequest(filter=pb.SessionFilter(text=text, include_ended=True))
        )
        assert not found.sessions
    await kim.sessions.StopSession(pb.StopSessionRequest(session=made.id))
    await ended(rig, kim, made.id)
    await until(lambda: _left(rig, made.id), "it is in the catalogue")
    assert all(b"s3cret" not in answer for answer in (await told(park))[:1])
    assert (await kim.get(made.id)).spec.environment["LR"] == "s3cret"


async def _left(rig: Rig, session_id: str) -> bool:
    return rig.plane.core.state.session(session_id) is None


LONG = "é" * 3_000
WORDS = ("python", "--seed", "1", LONG, "--after", "2")


def size_of(session: pb.Session) -> int:
    spec = session.spec
    return sum(len(word.encode()) for word in (*spec.argv, *chain(*spec.environment.items())))


async def test_lists_carry_the_beginning_of_long_commands_to_callers_that_know(rig: Rig) -> None:
    """Nobody else's list grows by what one user writes; callers of the version before get all, as they expect."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    shown = resources_pb2.VISIBILITY_PUBLIC
    environment = {f"V{number:03}_{'X' * 90}": "1" for number in range(100)}
    made = await kim.submit(*WORDS, visibility=shown, environment=environment)
    plain = await kim.submit("python", "--seed", "1", visibility=shown)

    async def watched(*, short: bool) -> dict[str, pb.Session]:
        stream = lee.sessions.WatchSessions(pb.WatchSessionsRequest(short=short))
        async for answer in stream:
            stream.cancel()
            return {one.id: one for one in answer.changed}
        raise AssertionError

    async def listed(*, short: bool) -> dict[str, pb.Session]:
        answer = await lee.sessions.ListSessions(pb.ListSessionsRequest(short=short))
        return {one.id: one for one in answer.sessions}

    whole = await lee.get(made.id)
    whole_size = size_of(whole)
    for found in (await listed(short=True), await watched(short=True)):
        one = found[made.id]
        assert one.spec.argv[:3] == ["python", "--seed", "1"]
        assert LONG.startswith(one.spec.argv[3]), "no letter is cut"
        assert sum(len(word.encode()) for word in one.spec.argv) in {4_095, 4_096}
        assert 0 < len(one.spec.environment) < 100
        assert one.ByteSize() < 10_000
        lacking = whole_size - size_of(one)
        assert one.left_out_bytes == lacking > 2_000
        assert found[plain.id].left_out_bytes == 0
    assert list(whole.spec.argv) == list(WORDS)
    for found in (await listed(short=False), await watched(short=False)):
        assert found[made.id].spec == whole.spec
        assert found[made.id].left_out_bytes == whole.left_out_bytes == 0


def test_what_is_short_is_listed_as_it_is() -> None:
    for whole in (pb.Session(name="kim/a/1"), pb.Session(spec=pb.SessionSpec(entry="main.py"))):
        listed = pb.Session()
        listed.CopyFrom(whole)
        shorten(listed)
        assert listed == whole
