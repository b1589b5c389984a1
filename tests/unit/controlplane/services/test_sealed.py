"""Steps of submissions through real gRPC: nobody enters them, and what a sealed one writes is read by nobody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import descriptor_pool

from controlplane.access.access_table import TABLE, AllowedCallers
from controlplane.content.feature import content
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.domain.identity import Role
from controlplane.domain.notices import WebhookEvent
from controlplane.domain.sealing import ONLY_REMOVED
from controlplane.domain.values import Session, SessionStage
from controlplane.history.values import MediaQuery
from controlplane.notices.notices import notice_of_end
from controlplane.submissions.pipeline import Result
from controlplane.submissions.results import Results
from controlplane.tunnels.tunnels import AGENT_SERVICES
from nsml.spec.submission_exits import PREDICTION
from nsml.v1 import (
    accounts_pb2,
    agents_pb2,
    artifacts_pb2,
    checkpoints_pb2,
    resources_pb2,
)
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, report_of, say_first, until
from tests.unit.controlplane.services.test_artifacts import commit
from tests.unit.controlplane.services.test_artifacts import told as artifact
from tests.unit.controlplane.services.test_content import read, send, tree
from tests.unit.controlplane.services.test_invisible import asking, outcome
from tests.unit.controlplane.services.test_media import chunk
from tests.unit.controlplane.services.test_media import told as media
from tests.unit.controlplane.services.test_rights import save
from tests.unit.controlplane.services.test_sessions import Ingest, log_chunk, refused

CANARY = "canary-of-the-program"
REFUSED = {
    "ArtifactService/ListArtifacts": "session",
    "ArtifactService/RemoveArtifacts": "session",
    "CheckpointService/GetCheckpoint": "session",
    "CheckpointService/ListCheckpoints": "session",
    "CheckpointService/RemoveCheckpoints": "session",
    "CheckpointService/TagCheckpoint": "session",
    "CheckpointService/UntagCheckpoint": "session",
    "MediaService/ListMedia": "session",
    "SessionBackupService/ReadSessionStreams": "session",
    "SessionService/ChangeProgram": "session",
    "SessionService/ListMetrics": "session",
    "SessionService/OpenTunnel": "target",
    "SessionService/ReadLogs": "session",
    "SessionService/ReadMetrics": "session",
    "SessionService/ReadSeries": "sessions",
    "SessionService/SearchLogs": "log",
    "TelemetryService/ReadTelemetry": "session",
    "ViewService/OpenView": "sessions",
}
"""What reads, changes or removes what a session wrote, or enters it, and the field that names it."""
SHOWN = {
    "EnvironmentService/GetEnvironmentLock": "its packages, from before its program",
    "SessionService/CreateSession": "nothing of another session: origin and checkpoint have tests of their own",
    "SessionService/ExplainSession": "its record",
    "SessionService/GetSession": "its record",
    "SessionService/RemoveSession": "removes it",
    "SessionService/RequeueSession": "its record",
    "SessionService/StopSession": "its record",
    "SessionService/UpdateSession": "its record",
    "ContentService/FindMissingBlobs": "for agents: what is there of what they send",
    "ContentService/PutBlobs": "for agents: what they send",
    "SessionBackupService/RestoreSession": "makes a session from a backup",
    "SubmissionService/CreateSubmission": "makes a submission",
}
"""What names a session and answers with nothing that its program wrote, and with what instead."""
_LINEAGE = "names of sessions that made versions: a sealed one makes none"
_COUNTS = "numbers of sessions"
_EVALUATION = "for who manages the board: the name of an evaluation, and why it waits"
ANSWERED = {
    "BoardService/CreateBoard": _EVALUATION,
    "BoardService/GetBoard": _EVALUATION,
    "BoardService/ListBoards": _EVALUATION,
    "BoardService/ListEntries": "what is stored of sessions: no value of a sealed one is",
    "BoardService/ReevaluateBoard": _EVALUATION,
    "BoardService/UpdateBoard": _EVALUATION,
    "BoardService/WatchBoard": "as ListEntries",
    "DatasetService/CreateDatasetVersion": _LINEAGE,
    "DatasetService/GetDataset": _LINEAGE,
    "DatasetService/ListDatasetVersions": _LINEAGE,
    "DatasetService/ListDatasets": _LINEAGE,
    "DatasetService/RestoreDataset": _LINEAGE,
    "DatasetService/TagDatasetVersion": _LINEAGE,
    "DatasetService/UpdateDataset": _LINEAGE,
    "EnvironmentService/ListEnvironments": _COUNTS,
    "NodeService/GetNode": "names and records",
    "NodeService/ListNodes": "names",
    "ProjectService/ChangeMembers": _COUNTS,
    "ProjectService/GetProject": _COUNTS,
    "ProjectService/ListProjects": _COUNTS,
    "SessionService/ListQueue": "records of those that wait",
    "SessionService/ListSessions": "records",
    "SessionService/WatchSessions": "records and reports",
    "SubmissionService/GetSubmission": "states, causes and scores of submissions",
    "SubmissionService/ListSubmissions": "as GetSubmission",
    "SubmissionService/WatchSubmission": "as GetSubmission",
    "ViewService/ListViews": "names",
}
"""What answers with sessions that it was not asked for, and with what of them."""


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


def naming_a_session() -> tuple[set[str], set[str]]:
    """Every rpc for users whose request names a session, as the contract has it; others whose answer does."""
    pool = descriptor_pool.Default()
    asked, answered = set(), set()
    for method, row in TABLE.items():
        service, _, name = method.removeprefix("/").partition("/")
        if not service.startswith("nsml.") or not row.doors & AllowedCallers.USER:
            continue
        shape = pool.FindServiceByName(service).methods_by_name[name]
        word = f"{service.removeprefix('nsml.v1.')}/{name}"
        if _names_one(shape.input_type, depth=0):
            asked.add(word)
        elif _names_one(shape.output_type, depth=0):
            answered.add(word)
    return asked, answered


def _names_one(message: Any, *, depth: int) -> bool:
    for field in message.fields:
        if field.name in {"session", "sessions", "session_id"}:
            return True
        inner = field.message_type
        is_ours = inner is not None and inner.full_name.startswith("nsml.") and depth < 3
        if is_ours and _names_one(inner, depth=depth + 1):
            return True
    return False


def test_every_rpc_about_sessions_is_looked_at_here() -> None:
    asked, answered = naming_a_session()
    assert asked == REFUSED.keys() | SHOWN.keys()
    assert answered == ANSWERED.keys()


async def staged(rig: Rig, session: str, stage: SessionStage) -> None:
    """Make a session what the platform makes of the step of a submission."""
    core = rig.plane.core
    writer = SessionWriter(store=core.store, state=core.state)

    def made(found: Session) -> Session:
        return replace(found, spec=replace(found.spec, stage=stage, submission_id="b1"))

    assert await writer.change(session, made) is not None


async def running(
    rig: Rig, user: Stubs, stage: SessionStage, *, is_staged_later: bool = False
) -> tuple[Agent, pb.Session, agents_pb2.ReplicaId]:
    """A session of a stage that has written all that one can.

    `is_staged_later`: what it reported is stored, which nothing of a sealed session is.
    """
    agent = await (await rig.agent("a")).connect()
    session = await user.submit()
    [assignment] = await agent.assignments(1)
    if not is_staged_later:
        await staged(rig, session.id, stage)
    ingest = Ingest(agent.stubs)
    values = json.dumps(
        {"kind": "metric", "time": 5.5, "step": 1, "values": {CANARY: 0.5}, "summary": True}
    ).encode()
    await ingest.send(log_chunk(session.id, 0, CANARY.encode()))
    records = [values, media(2, name=CANARY), artifact(3, name=CANARY)]
    assert await ingest.send(chunk(session.id, 1, *records)) == [4]
    if is_staged_later:
        await staged(rig, session.id, stage)
    await agent.report(assignment.replica, "RUNNING")
    await user.reaches(session.id, "RUNNING")
    return agent, session, assignment.replica


async def ended(agent: Agent, replica: agents_pb2.ReplicaId) -> None:
    """Its program fails with words of its own, and a code."""
    report = report_of(replica, "FINALIZED", cause="PROGRAM_FAILED", code=77)
    report.exit.message = CANARY
    await agent.say(agents_pb2.ControlRequest(report=report))


async def test_nobody_reads_what_a_sealed_session_wrote(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    agent, session, replica = await running(rig, kim, SessionStage.PREDICT)
    channel = await rig.channel()
    for is_over in (False, True):
        if is_over:
            await ended(agent, replica)
            await kim.reaches(session.id, "FAILED")
            await until(lambda: _is_recorded(rig, session.id), "it left the store")
        for who in (kim, root):
            for method, field in REFUSED.items():
                request = asking(f"/nsml.v1.{method}", field, session.name)
                if method.endswith("ChangeProgram"):
                    request.kind = pb.PROGRAM_CHANGE_KIND_PAUSE
                answer = await outcome(channel, f"/nsml.v1.{method}", request, who, session.name)
                assert answer[0] == "FAILED_PRECONDITION", (method, answer)
                assert b"SEALED" in answer[2], (method, answer)
                assert ONLY_REMOVED.encode() in answer[2], (method, answer)
                assert CANARY.encode() not in answer[2], (method, answer)


async def _is_recorded(rig: Rig, session: str) -> bool:
    return rig.plane.core.state.session(session) is None


async def test_no_message_of_a_sealed_session_has_what_its_program_wrote(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session, replica = await running(rig, kim, SessionStage.PREDICT, is_staged_later=True)
    watching = kim.sessions.WatchSessions(pb.WatchSessionsRequest(with_reports=True))
    await until(lambda: _has_reports(rig, session.id), "its values are known")
    first = await watching.read()
    assert [one.id for one in first.changed] == [session.id]
    await ended(agent, replica)
    seen = [first, await kim.get(session.id)]
    found = await kim.reaches(session.id, "FAILED")
    assert (found.end.message, found.end.exit_code) == ("", 1)
    seen += [found, await kim.sessions.ListSessions(pb.ListSessionsRequest())]
    while not any(one.end.cause for one in first.changed):
        first = await watching.read()
        seen.append(first)
    watching.cancel()
    assert [one for one in seen if CANARY in str(one)] == []


@pytest.mark.parametrize("cause", ["OUT_OF_MEMORY", "LIMIT_EXCEEDED"])
@pytest.mark.parametrize("stage", [SessionStage.PREDICT, SessionStage.EVALUATE])
async def test_how_much_a_sealed_session_took_is_not_said(
    rig: Rig, stage: SessionStage, cause: str
) -> None:
    """Its program chooses how many files it writes over its limit, say."""
    kim = await rig.user("kim")
    agent, session, replica = await running(rig, kim, stage)
    report = report_of(replica, "FINALIZED", cause=cause, code=137)
    report.exit.message = f"wrote too much: 1.2 GiB on disk ({CANARY} files)"
    await agent.say(agents_pb2.ControlRequest(report=report))
    found = await kim.reaches(session.id, "FAILED")
    is_sealed = stage is SessionStage.PREDICT
    assert (CANARY in found.end.message) is not is_sealed
    assert found.end.exit_code == (1 if is_sealed else 137)


@pytest.mark.parametrize("stage", [SessionStage.PREDICT, SessionStage.EVALUATE])
async def test_which_checkpoints_a_sealed_session_loads_is_not_shown(
    rig: Rig, stage: SessionStage
) -> None:
    """Of a thousand that its user has saved before, each could say a bit."""
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, stage)
    other = await kim.submit(resources=resources_pb2.Resources())
    await agent.assignments(2)
    await save(agent, other.id)
    asked = checkpoints_pb2.GetCheckpointRequest(session=other.id, name="best")
    loading = checkpoints_pb2.GetCheckpointRequest(for_session=session.id)
    loading.MergeFrom(asked)
    assert (await agent.stubs.checkpoints.GetCheckpoint(loading)).checkpoint.digest
    shown = (await kim.checkpoints.GetCheckpoint(asked)).checkpoint
    is_noted = stage is not SessionStage.PREDICT
    assert [one.session for one in shown.users] == [session.name] * is_noted
    assert shown.hidden_users == 0


@pytest.mark.parametrize("stage", [SessionStage.PREDICT, SessionStage.EVALUATE])
async def test_nothing_of_a_sealed_session_counts_in_its_users_storage(
    rig: Rig, stage: SessionStage
) -> None:
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, stage)

    async def used() -> int:
        await rig.plane.core.kept.look()
        answer = await kim.accounts.GetUsage(accounts_pb2.GetUsageRequest())
        return answer.usage.kept_bytes

    before = await used()
    made, blobs = tree(prediction=b"content" * 1000)
    await send(agent.stubs, blobs, session_id=session.id)
    given = commit(session.id, 3, digest=made.digest, name=PREDICTION)
    await agent.stubs.artifacts.CommitArtifact(given)
    sent = await used()
    is_counted = stage is not SessionStage.PREDICT
    assert (sent > before) is is_counted


@pytest.mark.parametrize("stage", SessionStage)
async def test_of_what_a_sealed_session_reports_its_artifacts_alone_are_stored(
    rig: Rig, stage: SessionStage
) -> None:
    kim = await rig.user("kim")
    _, session, _ = await running(rig, kim, stage)
    history = rig.plane.core.history
    is_stored = stage is not SessionStage.PREDICT
    assert bool((await history.streams.read_log(session.id)).data) == is_stored
    assert bool(await history.streams.metric_counts(session.id)) == is_stored
    assert bool(await history.streams.listed_summaries([session.id], ())) == is_stored
    shown = await history.media.list(MediaQuery(session_id=session.id), after=None, limit=10)
    assert bool(shown.media) == is_stored
    assert await history.artifacts.list(session.id, limit=10)


async def _has_reports(rig: Rig, session: str) -> bool:
    found = await rig.plane.core.history.streams.listed_summaries([session], ())
    return bool(found)


async def test_an_ordinary_session_shows_all_of_it(rig: Rig) -> None:
    """What the tests above look for is there to be found."""
    kim = await rig.user("kim")
    agent, session, replica = await running(rig, kim, SessionStage.INFER)
    await ended(agent, replica)
    found = await kim.reaches(session.id, "FAILED")
    assert (found.end.message, found.end.exit_code) == (CANARY, 77)
    assert CANARY in found.summary_names
    channel = await rig.channel()
    for method in ("ReadLogs", "ReadMetrics", "ListMetrics"):
        path = f"/nsml.v1.SessionService/{method}"
        answer = await outcome(channel, path, asking(path, "session", session.id), kim, session.id)
        assert answer[0] == "OK", answer


@pytest.mark.parametrize("stage", SessionStage)
async def test_artifacts_of_a_sealed_session_are_read_by_the_platform_alone(
    rig: Rig, stage: SessionStage
) -> None:
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, stage)
    made, blobs = tree(prediction=b"content")
    await send(agent.stubs, blobs)
    given = commit(session.id, 3, digest=made.digest, name=CANARY)
    assert (await agent.stubs.artifacts.CommitArtifact(given)).version == 1
    assert (await refused(read(kim, made.digest)))[0] == "NOT_FOUND"
    path = "/nsml.v1.ArtifactService/ListArtifacts"
    request = asking(path, "session", session.name)
    answer = await outcome(await rig.channel(), path, request, kim, session.name)
    assert answer[0] == ("FAILED_PRECONDITION" if stage is SessionStage.PREDICT else "OK")
    if stage is SessionStage.PREDICT:
        assert (await refused(read(kim, made.digest)))[0] == "NOT_FOUND"
    else:
        assert await read(kim, made.digest)


@pytest.mark.parametrize("stage", SessionStage)
async def test_no_later_session_finds_what_a_sealed_one_saved(
    rig: Rig, stage: SessionStage
) -> None:
    """As `nsml.cache` finds it, by its name."""
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, stage)
    made, blobs = tree(file=b"content")
    await send(agent.stubs, blobs)
    given = commit(session.id, 3, digest=made.digest, name="nsml.cache/1")
    await agent.stubs.artifacts.CommitArtifact(given)
    other = await kim.submit(resources=resources_pb2.Resources())
    await agent.assignments(2)
    asked = artifacts_pb2.FindArtifactRequest(session_id=other.id, name="nsml.cache/1")
    if stage is SessionStage.PREDICT:
        assert (await refused(agent.stubs.artifacts.FindArtifact(asked)))[0] == "NOT_FOUND"
    else:
        assert (await agent.stubs.artifacts.FindArtifact(asked)).artifact.session == session.name


@pytest.mark.parametrize("stage", [SessionStage.PREDICT, SessionStage.INFER])
async def test_no_figure_of_a_sealed_session_is_shown(rig: Rig, stage: SessionStage) -> None:
    """Its program could write bits into the memory that it takes."""
    kim = await rig.user("kim")
    agent, session, replica = await running(rig, kim, stage)
    for number in (1, 2):
        sample = agents_pb2.NodeSample(sequence=number, boot_id="b")
        sample.at.FromMicroseconds(round(rig.plane.core.clock.time() * 1e6))
        sample.replicas.add(replica=replica, memory_used_bytes=0xCA4A27)
        sending = agent.stubs.agents.Ingest(iter([agents_pb2.IngestRequest(sample=sample)]))
        assert [one async for one in sending] == []
    [known] = rig.plane.core.history.telemetry.known().values()
    assert [one.memory_used_bytes for one in known.replicas] == [0xCA4A27]
    seen = [await kim.get(session.id), await kim.sessions.ListSessions(pb.ListSessionsRequest())]
    is_shown = [str(0xCA4A27) in str(one) for one in seen]
    assert is_shown == [stage is SessionStage.INFER] * 2


@pytest.mark.parametrize("stage", SessionStage)
async def test_nobody_enters_a_step_of_a_submission(rig: Rig, stage: SessionStage) -> None:
    root = await rig.user("root", role=Role.ADMIN)
    agent, session, _ = await running(rig, root, stage)
    for service in ("web", "8080", *sorted(AGENT_SERVICES)):
        for only_checks in (False, True):
            target = pb.TunnelTarget(session=session.id, service=service, only_checks=only_checks)
            call = root.sessions._stub.OpenTunnel(metadata=root.metadata, timeout=60)
            await say_first(call, pb.OpenTunnelRequest(target=target))
            if stage is SessionStage.INFER:
                await until(lambda: _is_asked(agent), "its agent is asked")
                call.cancel()
                agent.tunnels.clear()
                continue
            code, reason, _ = await refused(call.read())
            assert (code, reason) == ("FAILED_PRECONDITION", "SEALED"), service
            assert not agent.tunnels


async def _is_asked(agent: Agent) -> bool:
    return bool(agent.tunnels)


@pytest.mark.parametrize("stage", SessionStage)
async def test_no_session_of_a_user_is_made_of_a_step_of_a_submission(
    rig: Rig, stage: SessionStage
) -> None:
    """It would have the hidden inputs of the step, or what that saved."""
    kim = await rig.user("kim")
    _, session, _ = await running(rig, kim, stage)
    fork = pb.CreateSessionRequest(request_id="fork")
    fork.spec.argv.append("true")
    fork.origin.kind = pb.ORIGIN_KIND_FORK
    fork.origin.session = session.name
    if stage is SessionStage.INFER:
        await kim.sessions.CreateSession(fork)
        return
    code, reason, said = await refused(kim.sessions.CreateSession(fork))
    assert (code, reason, said["why"]) == ("FAILED_PRECONDITION", "SEALED", ONLY_REMOVED)
    loads = pb.CreateSessionRequest(request_id="loads")
    loads.spec.argv.append("true")
    loads.spec.initial_checkpoint.session = session.name
    wanted = {"SEALED"} if stage is SessionStage.PREDICT else {"NOT_FOUND"}
    assert {(await refused(kim.sessions.CreateSession(loads)))[1]} == wanted


async def test_another_session_of_its_user_loads_nothing_of_a_sealed_one(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, SessionStage.PREDICT)
    other = await kim.submit(resources=resources_pb2.Resources())
    await agent.assignments(2)
    asked = checkpoints_pb2.GetCheckpointRequest(session=session.id, name="m")
    asked.for_session = other.id
    assert (await refused(agent.stubs.checkpoints.GetCheckpoint(asked)))[1] == "SEALED"
    asked.for_session = session.id
    assert (await refused(agent.stubs.checkpoints.GetCheckpoint(asked)))[1] == "NOT_FOUND"
    made, blobs = tree(prediction=b"hidden inputs")
    await send(agent.stubs, blobs)
    for name in (PREDICTION, "nsml.cache/1"):
        given = commit(session.id, 3, folder=f"03-{name[:4]}", digest=made.digest, name=name)
        await agent.stubs.artifacts.CommitArtifact(given)
        find = artifacts_pb2.FindArtifactRequest(name=name, session_id=other.id)
        assert (await refused(agent.stubs.artifacts.FindArtifact(find)))[0] == "NOT_FOUND", name
        find.session_id = session.id
        found = await agent.stubs.artifacts.FindArtifact(find)
        assert found.artifact.digest == made.digest


@pytest.mark.parametrize("stage", SessionStage)
async def test_an_attempt_of_a_sealed_session_has_one_result(rig: Rig, stage: SessionStage) -> None:
    """Whatever its agent sends, and whatever its program records after it."""
    kim = await rig.user("kim")
    agent, session, _ = await running(rig, kim, stage)
    digests = []
    for number in (4, 5):
        made, blobs = tree(prediction=str(number).encode())
        await send(agent.stubs, blobs, session_id=session.id)
        digests.append(made.digest)
    first, second = [
        commit(session.id, number, digest=digest, name=PREDICTION)
        for number, digest in zip((4, 5), digests, strict=True)
    ]
    for _ in range(2):
        assert (await agent.stubs.artifacts.CommitArtifact(first)).version == 1
    if stage is not SessionStage.PREDICT:
        assert (await agent.stubs.artifacts.CommitArtifact(second)).version == 2
        return
    assert (await refused(agent.stubs.artifacts.CommitArtifact(second)))[0] == "FAILED_PRECONDITION"
    records = Ingest(agent.stubs)
    await records.send(chunk(session.id, 2, artifact(5, name=PREDICTION)))
    kept = await rig.plane.core.history.artifacts.list(session.id, name=PREDICTION, limit=9)
    assert [one.digest for one in kept if one.digest] == digests[:1]
    results = Results(history=rig.plane.core.history, content=rig.plane.core.shared(content))
    assert await results.prediction(session.id, most_bytes=1) == digests[0]
    assert await results.state(session.id, PREDICTION) is Result.DURABLE


async def test_a_webhook_is_told_nothing_of_a_sealed_program(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session, replica = await running(rig, kim, SessionStage.PREDICT)
    await ended(agent, replica)
    await kim.reaches(session.id, "FAILED")
    found = await rig.plane.core.references.by_id(session.id)
    assert found is not None
    assert found.end is not None
    assert found.end.exit_code == 77, "the platform itself goes by it"
    body = json.loads(notice_of_end(found, WebhookEvent.FAILED, 1.0).body)
    assert (body["exit_code"], body["message"]) == (1, "")
