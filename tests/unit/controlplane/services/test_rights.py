"""What one user, or one node for its programs, must not get of another's, through real gRPC."""

from __future__ import annotations

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.v1 import checkpoints_pb2, content_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_sessions import refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def save(agent: Agent, session: str, name: str = "best") -> str:
    """Make a checkpoint of a session on the agent's node durable; its digest."""
    manifest, blobs = tree(weights=f"of {session}".encode())
    await send(agent.stubs, blobs)
    saved = checkpoints_pb2.CommitCheckpointRequest(
        session_id=session, attempt=1, name=name, digest=manifest.digest, size_bytes=1, file_count=1
    )
    saved.saved_at.GetCurrentTime()
    await agent.stubs.checkpoints.CommitCheckpoint(saved)
    return manifest.digest


async def get(who: Stubs, session: str, for_session: str = "") -> checkpoints_pb2.Checkpoint:
    request = checkpoints_pb2.GetCheckpointRequest(
        session=session, name="best", for_session=for_session
    )
    return (await who.checkpoints.GetCheckpoint(request)).checkpoint


async def test_a_program_gets_no_checkpoint_of_its_neighbour(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    own, other = await kim.submit(), await lee.submit()
    await agent.assignments(2)
    digest = await save(agent, own.id)
    assert (await get(agent.stubs, own.id)).digest == digest
    assert (await get(agent.stubs, own.name, own.id)).digest == digest
    for asked in (own.id, own.name):
        assert (await refused(get(agent.stubs, asked, other.id)))[0] == "NOT_FOUND"
        listing = checkpoints_pb2.ListCheckpointsRequest(session=asked, for_session=other.id)
        assert (await refused(agent.stubs.checkpoints.ListCheckpoints(listing)))[0] == "NOT_FOUND"
    second = await kim.submit()
    assert (await refused(get(agent.stubs, own.id, second.id)))[0] == "NOT_FOUND"


async def test_a_program_gets_what_its_owner_may_see(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    own = await kim.submit(visibility=resources_pb2.VISIBILITY_PUBLIC)
    other = await lee.submit()
    await agent.assignments(2)
    digest = await save(agent, own.id)
    assert (await get(agent.stubs, own.id, other.id)).digest == digest


async def test_a_node_asks_for_nobody_elses_programs(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    own = await kim.submit()
    await agent.assignments(1)
    await save(agent, own.id)
    stranger = await rig.agent("b")
    for_session: tuple[str, ...] = ("", own.id, "s" + "a" * 16, "kim/None/1", "\0")
    for said in for_session:
        assert (await refused(get(stranger.stubs, own.id, said)))[0] == "NOT_FOUND"
    with pytest.raises(Exception, match="no replica on node"):
        await save(stranger, own.id)


async def test_knowing_a_digest_is_no_right_to_use_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(key=b"the secret of kim")
    root = manifest.digest
    await send(kim, blobs)
    await push(kim, "secret", manifest)
    session = await kim.submit(
        datasets=[sessions_pb2.DatasetReference(name="secret")],
        visibility=resources_pb2.VISIBILITY_PUBLIC,
    )
    # A public session tells everybody the digest of the private dataset that it uses.
    assert (await lee.get(session.id)).spec.datasets[0].digest == root
    assert (await refused(read(lee, root)))[0] == "NOT_FOUND"
    assert (await refused(push(lee, "mine", manifest)))[1] == "MISSING_BLOBS"
    spec = sessions_pb2.SessionSpec(entry="main.py", bundle_digest=root)
    request = sessions_pb2.CreateSessionRequest(request_id="r", spec=spec)
    assert (await refused(lee.sessions.CreateSession(request)))[1] == "MISSING_BLOBS"
    assert (await refused(read(lee, root)))[0] == "NOT_FOUND"


async def test_the_code_of_a_private_session_is_its_owners_while_it_lives(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(main=b"print('the secret of kim')")
    await send(kim, blobs)
    session = await kim.submit(bundle_digest=manifest.digest)
    assert await read(kim, manifest.digest, *blobs) == blobs
    assert (await refused(read(lee, manifest.digest)))[0] == "NOT_FOUND"
    assert (await refused(lee.submit(bundle_digest=manifest.digest)))[1] == "MISSING_BLOBS"
    await kim.sessions.UpdateSession(
        sessions_pb2.UpdateSessionRequest(
            session=session.id, visibility=resources_pb2.VISIBILITY_PUBLIC
        )
    )
    assert await read(lee, manifest.digest, *blobs) == blobs


def listing(*digests: str) -> Manifest:
    """A manifest of files that are said to be these blobs."""
    return build(
        [
            Entry(path=f"f{number}", mode=0o644, size=1, chunks=(ChunkRef(digest, 1),))
            for number, digest in enumerate(digests)
        ]
    )


async def test_a_manifest_cannot_be_read_as_a_file_of_another(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(key=b"the secret of kim")
    await send(kim, blobs)
    await push(kim, "secret", manifest)
    crafted = listing(manifest.digest)
    await send(lee, {crafted.digest: crafted.encode()})
    assert (await refused(push(lee, "mine", crafted)))[1] == "MISSING_BLOBS"
    spec = sessions_pb2.SessionSpec(entry="main.py", bundle_digest=crafted.digest)
    request = sessions_pb2.CreateSessionRequest(request_id="r", spec=spec)
    assert (await refused(lee.sessions.CreateSession(request)))[1] == "MISSING_BLOBS"
    assert (await refused(read(lee, crafted.digest, manifest.digest)))[0] == "NOT_FOUND"
    # One's own manifest is a file like any other.
    await send(kim, {crafted.digest: crafted.encode()})
    await push(kim, "manifests", crafted)
    assert await read(kim, crafted.digest, manifest.digest) == {manifest.digest: manifest.encode()}


async def test_what_a_manifest_does_not_list_is_not_read_through_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    for user, name in ((kim, "kims"), (lee, "lees")):
        manifest, blobs = tree(key=f"of {name}".encode())
        await send(user, blobs)
        await push(user, name, manifest)
    assert await read(lee, manifest.digest, digest_of(b"of lees"))
    assert (await refused(read(lee, manifest.digest, digest_of(b"of kims"))))[0] == "NOT_FOUND"


async def test_who_has_the_same_content_may_use_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(key=b"homework")
    await send(kim, blobs)
    await push(kim, "homework", manifest)
    asked = content_pb2.FindMissingBlobsRequest(digests=list(blobs), root=manifest.digest)
    assert not (await kim.content.FindMissingBlobs(asked)).missing
    assert list((await lee.content.FindMissingBlobs(asked)).missing) == [manifest.digest]
    await send(lee, {manifest.digest: manifest.encode()})
    assert not (await lee.content.FindMissingBlobs(asked)).missing
    assert (await push(lee, "mine", manifest)).version == 1
