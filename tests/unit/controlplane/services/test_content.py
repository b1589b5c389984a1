"""Content, datasets and checkpoints through real gRPC: what is sent, what is read, by whom."""

from __future__ import annotations

import os

import grpc
import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.v1 import (
    checkpoints_pb2,
    content_pb2,
    datasets_pb2,
    resources_pb2,
    sessions_pb2,
)
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import _all, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def tree(**files: bytes) -> tuple[Manifest, dict[str, bytes]]:
    """A manifest of small files, and all its blobs."""
    entries = [
        Entry(path=path, mode=0o644, size=len(data), chunks=(ChunkRef(digest_of(data), len(data)),))
        for path, data in files.items()
    ]
    manifest = build(entries)
    blobs = {digest_of(data): data for data in files.values()}
    return manifest, {manifest.digest: manifest.encode(), **blobs}


async def send(
    user: Stubs, blobs: dict[str, bytes], *, part: int = 1 << 19, session_id: str = ""
) -> int:
    async def requests():
        for digest, data in blobs.items():
            for start in range(0, max(len(data), 1), part):
                blob = content_pb2.Blob(
                    digest=digest,
                    data=data[start : start + part],
                    last=start + part >= len(data),
                )
                yield content_pb2.PutBlobsRequest(blobs=[blob], session_id=session_id)

    response = await user.content.PutBlobs(requests())
    return response.stored


async def read(user: Stubs, root: str, *digests: str) -> dict[str, bytes]:
    got: dict[str, bytes] = {}
    request = content_pb2.GetBlobsRequest(root=root, digests=digests)
    for message in await _all(user.content.GetBlobs(request)):
        for blob in message.blobs:
            got[blob.digest] = got.get(blob.digest, b"") + blob.data
    return got


async def push(user: Stubs, name: str, manifest: Manifest, **facts) -> datasets_pb2.Dataset:
    request = datasets_pb2.CreateDatasetVersionRequest(name=name, digest=manifest.digest, **facts)
    return (await user.datasets.CreateDatasetVersion(request)).dataset


async def test_a_dataset_goes_up_and_comes_down(rig: Rig) -> None:
    kim = await rig.user("kim")
    manifest, blobs = tree(a=b"small", b=os.urandom(3 << 20))
    asked = content_pb2.FindMissingBlobsRequest(digests=list(blobs))
    assert set((await kim.content.FindMissingBlobs(asked)).missing) == set(blobs)
    code, reason, _ = await refused(push(kim, "digits", manifest))
    assert (code, reason) == ("FAILED_PRECONDITION", "MISSING_BLOBS")
    assert await send(kim, blobs) == 3
    assert await send(kim, blobs) == 0
    assert not (await kim.content.FindMissingBlobs(asked)).missing
    dataset = await push(kim, "digits", manifest, message="first")
    assert (dataset.version, dataset.file_count) == (1, 2)
    assert dataset.size_bytes == 5 + (3 << 20)
    assert (await push(kim, "digits", manifest)).version == 1
    other, more = tree(a=b"changed")
    await send(kim, more)
    assert (await push(kim, "digits", other)).version == 2
    assert await read(kim, manifest.digest, *blobs) == blobs
    assert await read(kim, manifest.digest) == {manifest.digest: manifest.encode()}


async def test_only_checking_refuses_alike_and_makes_nothing(rig: Rig) -> None:
    kim = await rig.user("kim")
    request = datasets_pb2.CreateDatasetVersionRequest(name="a b", validate_only=True)
    assert (await refused(kim.datasets.CreateDatasetVersion(request)))[0] == "INVALID_ARGUMENT"
    request.name = "digits"
    request.message = "x" * 100_000
    assert (await refused(kim.datasets.CreateDatasetVersion(request)))[0] == "RESOURCE_EXHAUSTED"
    request.message = ""
    answer = await kim.datasets.CreateDatasetVersion(request)
    assert answer == datasets_pb2.CreateDatasetVersionResponse()
    assert not (await kim.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest())).datasets


async def test_content_is_read_through_what_one_may_see(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(a=b"secret")
    secret = digest_of(b"secret")
    await send(kim, blobs)
    assert (await refused(read(kim, manifest.digest)))[0] == "NOT_FOUND"
    await push(kim, "digits", manifest)
    assert await read(kim, manifest.digest, secret)
    assert (await refused(read(lee, manifest.digest, secret)))[0] == "NOT_FOUND"
    # Knowing the digest of a chunk opens nothing by itself.
    assert (await refused(read(lee, secret)))[0] == "NOT_FOUND"
    await push(kim, "digits", manifest, visibility=resources_pb2.VISIBILITY_PUBLIC)
    assert await read(lee, manifest.digest, secret) == {secret: b"secret"}
    assert (await refused(read(lee, manifest.digest, "0" * 64)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, "../../etc/passwd")))[0] == "INVALID_ARGUMENT"


async def test_wrong_bytes_are_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    code, reason, _ = await refused(send(kim, {"0" * 64: b"x"}))
    assert (code, reason) == ("INVALID_ARGUMENT", "WRONG_DIGEST")
    assert (await refused(send(kim, {"../x": b"x"})))[0] == "INVALID_ARGUMENT"

    async def torn():
        half = content_pb2.Blob(digest=digest_of(b"ab"), data=b"a")
        yield content_pb2.PutBlobsRequest(blobs=[half])

    assert (await refused(kim.content.PutBlobs(torn())))[0] == "INVALID_ARGUMENT"


async def test_a_message_over_the_limit_is_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    blobs = {digest_of(b"x" * (5 << 20)): b"x" * (5 << 20)}
    code, _, _ = await refused(send(kim, blobs, part=5 << 20))
    assert code == "RESOURCE_EXHAUSTED"


async def test_a_node_reads_what_it_is_to_run_and_nothing_else(rig: Rig) -> None:
    kim = await rig.user("kim")
    code, blobs = tree(**{"main.py": b"print()"})
    data, more = tree(a=b"numbers")
    await send(kim, blobs | more)
    await push(kim, "digits", data)
    agent = await (await rig.agent("a")).connect()
    assert (await refused(read(agent.stubs, code.digest)))[0] == "NOT_FOUND"
    request = sessions_pb2.CreateSessionRequest(
        request_id="r",
        spec=sessions_pb2.SessionSpec(
            bundle_digest=code.digest,
            datasets=[sessions_pb2.DatasetReference(name="digits")],
            resources=resources_pb2.Resources(gpu_thousandths=1000),
        ),
    )
    session = (await kim.sessions.CreateSession(request)).session
    assert session.name == "kim/digits/1"
    [assignment] = await agent.assignments(1)
    assert assignment.spec.entry == "main.py"
    assert assignment.spec.datasets[0].digest == data.digest
    assert await read(agent.stubs, code.digest, *blobs) == blobs
    assert await read(agent.stubs, data.digest, *more) == more
    stranger = await rig.agent("b")
    assert (await refused(read(stranger.stubs, code.digest)))[0] == "NOT_FOUND"
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    await agent.assignments(0)
    assert (await refused(read(agent.stubs, code.digest)))[0] == "NOT_FOUND"


async def test_the_code_of_an_ended_session_is_read_by_who_may_see_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    code, blobs = tree(**{"main.py": b"print()"})
    await send(kim, blobs)
    made = await kim.submit(bundle_digest=code.digest)
    await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=made.id))

    async def exported() -> bool:
        return rig.plane.core.state.session(made.id) is None

    await until(exported, "it is exported")
    assert (await refused(read(kim, code.digest)))[0] == "NOT_FOUND"
    assert (await kim.get(made.id)).spec.bundle_digest == code.digest
    assert await read(kim, code.digest, *blobs) == blobs
    assert (await refused(lee.get(made.id)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, code.digest)))[0] == "NOT_FOUND"
    await kim.sessions.UpdateSession(
        sessions_pb2.UpdateSessionRequest(
            session=made.id, visibility=resources_pb2.VISIBILITY_PUBLIC
        )
    )
    await lee.get(made.id)
    assert await read(lee, code.digest, *blobs) == blobs


async def test_datasets_of_others(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(a=b"x")
    await send(kim, blobs)
    await push(kim, "digits", manifest)
    get = datasets_pb2.GetDatasetRequest
    assert (await kim.datasets.GetDataset(get(name="digits"))).dataset.owner == "kim"
    for name in ("digits", "kim/digits"):
        assert (await refused(lee.datasets.GetDataset(get(name=name))))[0] == "NOT_FOUND"
    await push(kim, "digits", manifest, visibility=resources_pb2.VISIBILITY_PUBLIC)
    for name in ("digits", "kim/digits"):
        assert (await lee.datasets.GetDataset(get(name=name))).dataset.owner == "kim"
    listed = await lee.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest(name_glob="dig*"))
    assert [one.name for one in listed.datasets] == ["digits"]
    missing = get(name="digits", version=9)
    assert (await refused(kim.datasets.GetDataset(missing)))[0] == "NOT_FOUND"
    for bad in ("../x", "a/b/c", "None", ""):
        assert (await refused(kim.datasets.GetDataset(get(name=bad))))[0] == "INVALID_ARGUMENT"


async def test_checkpoints_become_durable_and_are_pulled(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, stranger = await (await rig.agent("a")).connect(), await rig.agent("b")
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    manifest, blobs = tree(model=b"weights")
    commit = checkpoints_pb2.CommitCheckpointRequest(
        session_id=session.id,
        attempt=1,
        name="best",
        digest=manifest.digest,
        size_bytes=7,
        file_count=1,
    )
    commit.saved_at.GetCurrentTime()
    code, reason, _ = await refused(agent.stubs.checkpoints.CommitCheckpoint(commit))
    assert (code, reason) == ("FAILED_PRECONDITION", "MISSING_BLOBS")
    await send(agent.stubs, blobs)
    await agent.stubs.checkpoints.CommitCheckpoint(commit)
    await agent.stubs.checkpoints.CommitCheckpoint(commit)
    code, _, _ = await refused(stranger.stubs.checkpoints.CommitCheckpoint(commit))
    assert code == "NOT_FOUND"
    assert (await refused(kim.checkpoints.CommitCheckpoint(commit)))[0] == "PERMISSION_DENIED"
    listed = await kim.checkpoints.ListCheckpoints(
        checkpoints_pb2.ListCheckpointsRequest(session=session.name)
    )
    assert [(c.name, c.session, c.digest) for c in listed.checkpoints] == [
        ("best", session.name, manifest.digest)
    ]
    assert listed.checkpoints[0].state == checkpoints_pb2.CHECKPOINT_STATE_DURABLE
    get = checkpoints_pb2.GetCheckpointRequest(session=session.name, name="best")
    assert (await refused(read(kim, manifest.digest)))[0] == "NOT_FOUND"
    await kim.checkpoints.GetCheckpoint(get)
    assert await read(kim, manifest.digest, *blobs) == blobs
    assert (await refused(lee.checkpoints.GetCheckpoint(get)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, manifest.digest)))[0] == "NOT_FOUND"
    missing = checkpoints_pb2.GetCheckpointRequest(session=session.name, name="worst")
    code, _, details = await refused(kim.checkpoints.GetCheckpoint(missing))
    assert (code, details["why"]) == ("NOT_FOUND", "the newest are best")
    # A later one of the name that is lost takes it from nobody.
    loss = checkpoints_pb2.CommitCheckpointRequest(
        session_id=session.id, attempt=1, name="best", why_lost="weights was\0 removed"
    )
    loss.saved_at.FromSeconds(commit.saved_at.seconds + 5)
    assert (await refused(stranger.stubs.checkpoints.CommitCheckpoint(loss)))[0] == "NOT_FOUND"
    for _ in range(2):
        await agent.stubs.checkpoints.CommitCheckpoint(loss)
    lost = (await kim.checkpoints.GetCheckpoint(get)).checkpoint
    assert lost.state == checkpoints_pb2.CHECKPOINT_STATE_LOST
    assert (lost.why_lost, lost.attempt) == ("weights was\ufffd removed", 1)
    assert lost.digest == manifest.digest
    assert lost.content_saved_at.seconds == commit.saved_at.seconds
    newest = checkpoints_pb2.GetCheckpointRequest(session=session.name)
    assert (await kim.checkpoints.GetCheckpoint(newest)).checkpoint == lost
    seen = await kim.get(session.id)
    assert (seen.checkpoint_count, seen.lost_checkpoint_count) == (0, 1)
    # From inside a session: its own, and what its user may see.
    await agent.stubs.checkpoints.GetCheckpoint(get)
    assert await read(agent.stubs, manifest.digest, *blobs) == blobs
    assert (await refused(stranger.stubs.checkpoints.GetCheckpoint(get)))[0] == "NOT_FOUND"
    await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")


async def test_a_user_without_a_token_reads_nothing(rig: Rig) -> None:
    nobody = Stubs(await rig.channel(), "")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(nobody, "0" * 64)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
