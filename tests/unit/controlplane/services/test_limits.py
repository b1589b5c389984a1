"""Limits of users, over gRPC: who is at one is told so, and nobody else notices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from controlplane.access.access_table import TABLE, AllowedCallers
from controlplane.content.feature import collector
from controlplane.domain.conditions import ConditionName
from controlplane.domain.identity import Role
from controlplane.domain.limits import NO_LIMITS
from controlplane.store.interface import Space
from controlplane.wire.errors import DETAILS
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import (
    accounts_pb2,
    agents_pb2,
    boards_pb2,
    checkpoints_pb2,
    content_pb2,
    nodes_pb2,
    resources_pb2,
    secrets_pb2,
    sessions_pb2,
    telemetry_pb2,
)
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def limited(**limits: float) -> dict[str, Any]:
    return {"character": {"limits": replace(NO_LIMITS, **limits)}}  # type: ignore[arg-type]


def reason_of(error: grpc.aio.AioRpcError) -> str:
    details = dict(error.trailing_metadata() or ())[DETAILS]
    info = error_details_pb2.ErrorInfo()
    packed: any_pb2.Any = status_pb2.Status.FromString(details).details[0]  # type: ignore[arg-type]
    packed.Unpack(info)
    return info.reason


async def refused(call: Any, reason: str = "LIMIT_REACHED") -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is EXHAUSTED
    assert reason_of(caught.value) == reason
    return caught.value.details() or ""


async def test_sessions_of_one_user_are_bounded_and_others_submit() -> None:
    async with platform(**limited(sessions=3)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        outcomes = await asyncio.gather(*(eve.submit() for _ in range(20)), return_exceptions=True)
        taken = [one for one in outcomes if not isinstance(one, BaseException)]
        assert len(taken) == 3, "of many at once no more than the limit"
        assert "3 sessions" in await refused(eve.submit())
        await kim.submit()
        await eve.sessions.StopSession(sessions_pb2.StopSessionRequest(session=taken[0].name))
        await until(lambda: _counts(rig, "eve", 2), "one of them has ended")
        again = await eve.submit(request_id="r-again")
        assert (await eve.submit(request_id="r-again")).id == again.id, (
            "a repeated request is answered"
        )


async def _counts(rig: Rig, user: str, count: int) -> bool:
    return rig.plane.core.state.usage.user(user).sessions == count


async def test_a_project_is_bounded_whoever_submits() -> None:
    async with platform(**limited(project_sessions=2)) as rig:
        eve = await rig.user("eve")
        await eve.submit()
        await eve.submit()
        assert "project eve" in await refused(eve.submit())


async def test_large_records_are_refused_with_what_to_do() -> None:
    async with platform(**limited(session_bytes=8_192, stored_bytes=12_000)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        await refused(eve.submit("true", "x" * 20_000))
        await refused(eve.submit("true", *[""] * 3_000))
        await eve.submit("true", "x" * 7_000)
        assert "sessions of" in await refused(eve.submit("true", "x" * 7_000))
        await kim.submit("true", "x" * 7_000)


async def test_many_changes_of_one_user_are_refused_and_a_stop_never_is() -> None:
    async with platform(**limited(write_bytes=20_000, write_bytes_per_s=1)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        session = await eve.submit()
        await refused(_rewrites(eve, session.name))
        large = secrets_pb2.SetSecretRequest(name="S", value=b"x" * 8_000)
        await refused(eve.secrets.SetSecret(large))
        await refused(eve.accounts.CreateToken(accounts_pb2.CreateTokenRequest()))
        await kim.secrets.SetSecret(large)
        await eve.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.name))


async def _rewrites(who: Stubs, session: str) -> None:
    for number in range(100):
        memo = f"{number}" + "m" * 2_000
        await who.sessions.UpdateSession(
            sessions_pb2.UpdateSessionRequest(session=session, memo=memo)
        )


async def test_open_streams_of_one_user_are_bounded() -> None:
    async with platform(**limited(streams=3)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        watches = [_watch(eve) for _ in range(3)]
        for one in watches:
            await one.read()
        await refused(_watch(eve).read())
        other = _watch(kim)
        await other.read()
        watches[0].cancel()
        await until(lambda: _watches_again(eve), "its place is free again")
        for one in (*watches, other):
            one.cancel()


def _watch(who: Stubs) -> Any:
    stub = who.sessions._stub
    return stub.WatchSessions(sessions_pb2.WatchSessionsRequest(), metadata=who.metadata)


async def _watches_again(who: Stubs) -> bool:
    call = _watch(who)
    try:
        return bool(await call.read())
    except grpc.aio.AioRpcError:
        return False
    finally:
        call.cancel()


async def test_at_the_stores_floor_users_write_nothing_and_the_platform_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs ends and is recorded; administrators see why submissions are refused."""
    async with platform() as rig:
        eve, root = await rig.user("eve"), await rig.user("root", role=Role.ADMIN)
        agent = await rig.agent()
        await agent.connect()
        session = await eve.submit()
        (assignment,) = await agent.assignments(1)

        async def almost_full() -> Space:
            return Space(used_bytes=80, quota_bytes=100)

        monkeypatch.setattr(rig.on.store, "space", almost_full)
        await rig.plane.core.space.look()
        await refused(eve.submit(), "LOW_ON_ROOM")
        await refused(
            eve.secrets.SetSecret(secrets_pb2.SetSecretRequest(name="S", value=b"x")),
            "LOW_ON_ROOM",
        )
        await root.accounts.CreateToken(accounts_pb2.CreateTokenRequest(user="eve"))
        await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
        await eve.reaches(session.name, "SUCCEEDED")
        cluster = await root.nodes.GetCluster(nodes_pb2.GetClusterRequest())
        (condition,) = cluster.conditions
        assert condition.name == nodes_pb2.CONDITION_NAME_LOW_ON_ROOM
        assert condition.subject == "store"
        assert "80 Bytes" in condition.evidence
        monkeypatch.undo()
        await rig.plane.core.space.look()
        assert not rig.plane.core.health.conditions.stands(ConditionName.LOW_ON_ROOM, "store")
        await eve.submit()


async def test_what_agents_send_counts_for_the_owner_of_the_session() -> None:
    """And not for anybody's of whom nothing runs on the node."""
    async with platform(**limited(upload_bytes=10_000)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        agent = await rig.agent()
        await agent.connect()
        session = await eve.submit()
        await agent.assignments(1)
        other = await kim.submit(resources=resources_pb2.Resources(gpu_thousandths=2_000))

        def sent(who: Stubs, text: bytes, session_id: str = "") -> Any:
            data = text * 9_000
            blob = content_pb2.Blob(digest=digest_of(data), data=data, last=True)
            return who.content.PutBlobs(
                iter([content_pb2.PutBlobsRequest(blobs=[blob], session_id=session_id)])
            )

        await sent(agent.stubs, b"a", session.id)
        await refused(sent(agent.stubs, b"b", session.id))
        await refused(sent(eve, b"c"))
        await sent(agent.stubs, b"d", other.id)
        await sent(kim, b"e")


async def test_kept_bytes_of_one_user_are_bounded_and_removals_give_room_back() -> None:
    """Also what agents send for the user's sessions, whose state says so; all others go on."""
    async with platform(**limited(kept_bytes=1 << 20)) as rig:
        eve, kim = await rig.user("eve"), await rig.user("kim")
        root = await rig.user("root", role=Role.ADMIN)
        agent = await rig.agent()
        await agent.connect()
        session = await eve.submit()
        await agent.assignments(1)
        await agent.report(await _replica(agent), "RUNNING")
        await eve.reaches(session.name, "RUNNING")
        files = [b"%d" % number * (100 << 10) for number in range(9)]
        entries, blobs = [], []
        for number, data in enumerate(files):
            chunk = ChunkRef(digest_of(data), len(data))
            entries.append(Entry(path=f"f{number}", mode=0o644, size=len(data), chunks=(chunk,)))
            blobs.append(content_pb2.Blob(digest=digest_of(data), data=data, last=True))
        manifest = build(entries)
        encoded = manifest.encode()
        blobs.append(content_pb2.Blob(digest=manifest.digest, data=encoded, last=True))

        def sent(who: Stubs, *some: content_pb2.Blob, session_id: str = "") -> Any:
            request = content_pb2.PutBlobsRequest(blobs=some, session_id=session_id)
            return who.content.PutBlobs(iter([request]))

        def saved(name: str) -> Any:
            request = checkpoints_pb2.CommitCheckpointRequest(
                session_id=session.id, attempt=1, name=name, digest=manifest.digest, size_bytes=1
            )
            request.saved_at.GetCurrentTime()
            return agent.stubs.checkpoints.CommitCheckpoint(request)

        more = content_pb2.Blob(digest=digest_of(b"x" * 300_000), data=b"x" * 300_000, last=True)
        await sent(agent.stubs, *blobs, session_id=session.id)
        await saved("best")
        assert "cannot be stored" in await refused(sent(agent.stubs, more, session_id=session.id))
        assert "cannot be stored" in await refused(sent(eve, more))
        assert "not durable" in (await eve.get(session.name)).waiting
        await sent(kim, more)
        usage = (await eve.accounts.GetUsage(accounts_pb2.GetUsageRequest())).usage
        assert usage.is_full
        assert usage.limit_bytes == 1 << 20
        assert [one.name for one in usage.largest] == [session.name]
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await eve.accounts.GetUsage(accounts_pb2.GetUsageRequest(user="kim"))
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        # An administrator gives this user more, and takes it back.
        raised = accounts_pb2.UpdateUserRequest(name="eve", kept_bytes=2 << 20)
        await root.accounts.UpdateUser(raised)
        await sent(agent.stubs, more, session_id=session.id)
        await root.accounts.UpdateUser(
            accounts_pb2.UpdateUserRequest(name="eve", default_kept=True)
        )
        other = content_pb2.Blob(digest=digest_of(b"y" * 300_000), data=b"y" * 300_000, last=True)
        await refused(sent(agent.stubs, other, session_id=session.id))
        every = (await root.accounts.ListUsage(accounts_pb2.ListUsageRequest())).usage
        assert [(one.user, one.is_full) for one in every] == [("eve", True), ("kim", False)]
        request = accounts_pb2.ListUsageRequest(page_size=1)
        for name, cursor in (("eve", "eve"), ("kim", "")):
            page = await root.accounts.ListUsage(request)
            assert ([one.user for one in page.usage], page.next_cursor) == ([name], cursor)
            request.cursor = page.next_cursor
        # The newest checkpoint of a running session stays; what is not it goes, and makes room.
        remove = checkpoints_pb2.RemoveCheckpointsRequest(session=session.name, names=["best"])
        with pytest.raises(grpc.aio.AioRpcError) as kept:
            await eve.checkpoints.RemoveCheckpoints(remove)
        assert kept.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            await kim.checkpoints.RemoveCheckpoints(remove)
        assert hidden.value.code() is grpc.StatusCode.NOT_FOUND
        await agent.report(await _replica(agent), "EXITED", cause="COMPLETED")
        await eve.reaches(session.name, "FINALIZING")
        gone = await eve.checkpoints.RemoveCheckpoints(remove)
        assert list(gone.removed) == ["best"]
        await rig.plane.core.shared(collector).count()
        await rig.plane.core.kept.look()
        assert not (await eve.get(session.name)).waiting
        await sent(agent.stubs, other, session_id=session.id)


async def _replica(agent: Agent) -> agents_pb2.ReplicaId:
    [assigned] = await agent.assignments(1)
    return assigned.replica


UNCOUNTED = {
    "DatasetService/RemoveDataset": "makes room",
    "DatasetService/UntagDatasetVersion": "makes room",
    "CheckpointService/RemoveCheckpoints": "makes room",
    "ArtifactService/RemoveArtifacts": "makes room",
    "SessionBackupService/RestoreSession": "two of a user at a time",
    "SessionService/CreateSession": "decided with what it asks for",
    "SubmissionService/CreateSubmission": "its board has limits, and its sessions count as any",
    "SessionService/StopSession": "frees what is held; repeated ones are counted by the writer",
    "SessionService/RemoveSession": "makes room",
    "SecretService/RemoveSecret": "makes room",
    "SecretService/RemoveRegistryLogin": "makes room, and locks somebody out",
    "SshKeyService/RemoveSshKey": "makes room, and locks somebody out",
    "WebhookService/RemoveWebhook": "makes room",
    "AccountService/RevokeToken": "makes room, and locks somebody out",
    "ViewService/OpenView": "three of a user",
    "CompetitionService/OpenCompetitionPage": "16 of a user, in memory",
    "ViewService/StopView": "makes room",
    "NodeService/PullImage": "written nowhere; nodes and questions to them have limits of their own",
    "EnvironmentService/RemoveEnvironment": "makes room",
    "EnvironmentService/BuildEnvironment": "written nowhere; nodes and questions to them have limits of their own",
    "AccountService/JoinNode": "needs a join token",
}
READS = ("Get", "List", "Read", "Watch", "Find", "Check", "Explain", "Export")


def test_every_method_of_users_that_writes_is_counted() -> None:
    """A new one has to be placed: a limit that somebody forgot is none."""
    streams = {
        f"/{service.full_name}/{method.name}"
        for module in (boards_pb2, content_pb2, sessions_pb2, telemetry_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.client_streaming or method.server_streaming
    }
    for method, row in TABLE.items():
        service, _, name = method.removeprefix("/").rpartition("/")
        if AllowedCallers.USER not in row.doors or not service.startswith("nsml.v1."):
            continue
        short = method.removeprefix("/nsml.v1.")
        is_placed = row.throttle or method in streams or short in UNCOUNTED
        assert is_placed or name.startswith(READS), f"{short}: counted, or why not?"


async def test_a_user_has_others_once_anybody_else_has_an_account() -> None:
    async with platform() as rig:
        has_others = rig.plane.core.identities.has_others
        assert has_others("kim"), "nobody is known yet, and somebody may be there"
        await rig.user("kim")

        async def is_alone() -> bool:
            return not has_others("kim")

        await until(is_alone, "memory knows of kim")
        await rig.user("eve")

        async def is_not_alone() -> bool:
            return has_others("kim")

        await until(is_not_alone, "memory knows of eve")
