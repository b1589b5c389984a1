"""What one user, or one node for its programs, must not get of another's, through real gRPC."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.v1 import (
    backups_pb2,
    checkpoints_pb2,
    content_pb2,
    datasets_pb2,
    media_pb2,
    resources_pb2,
    sessions_pb2,
)
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, serving, surroundings, until
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_media import commit, file_of
from tests.unit.controlplane.services.test_sessions import _all, refused


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


def rerun(of: str, request_id: str, **spec: Any) -> sessions_pb2.CreateSessionRequest:
    origin = sessions_pb2.Origin(kind=sessions_pb2.ORIGIN_KIND_RERUN, session=of)
    return sessions_pb2.CreateSessionRequest(
        request_id=request_id, spec=sessions_pb2.SessionSpec(entry="main.py", **spec), origin=origin
    )


async def test_who_sees_a_session_may_run_its_code_again_and_nobody_else(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(**{"main.py": b"print('of kim')"})
    await send(kim, blobs)
    session = await kim.submit(bundle_digest=manifest.digest)
    asked = rerun(session.id, "r1", bundle_digest=manifest.digest)
    code, reason, _ = await refused(lee.sessions.CreateSession(asked))
    assert (code, reason) == ("NOT_FOUND", "NOT_FOUND")
    assert (await refused(read(lee, manifest.digest)))[0] == "NOT_FOUND"
    await kim.sessions.UpdateSession(
        sessions_pb2.UpdateSessionRequest(
            session=session.id, visibility=resources_pb2.VISIBILITY_PUBLIC
        )
    )
    check = sessions_pb2.CreateSessionRequest.FromString(asked.SerializeToString())
    check.validate_only = True
    await lee.sessions.CreateSession(check)
    made = (await lee.sessions.CreateSession(asked)).session
    assert made.spec.bundle_digest == manifest.digest
    expected = sessions_pb2.Origin(
        kind=sessions_pb2.ORIGIN_KIND_RERUN, session=session.id, name="kim/None/1"
    )
    assert made.origin == expected
    assert (await lee.get(made.id)).origin == expected
    assert not session.HasField("origin")


async def test_an_origin_gives_no_right_but_to_the_session_that_is_made(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = tree(**{"main.py": b"print('of kim')"})
    await send(kim, blobs)
    session = await kim.submit(
        bundle_digest=manifest.digest, visibility=resources_pb2.VISIBILITY_PUBLIC
    )
    check = rerun(session.id, "r1", bundle_digest=manifest.digest)
    check.validate_only = True
    await lee.sessions.CreateSession(check)
    lacking = rerun(
        session.id,
        "r2",
        bundle_digest=manifest.digest,
        datasets=[sessions_pb2.DatasetReference(name="nosuch")],
    )
    assert (await refused(lee.sessions.CreateSession(lacking)))[0] == "NOT_FOUND"
    # Its own bundle, and none that some other session has.
    other, others = tree(**{"main.py": b"print('kims other one')"})
    await send(kim, others)
    await kim.submit(bundle_digest=other.digest)
    borrowed = rerun(session.id, "r3", bundle_digest=other.digest)
    assert (await refused(lee.sessions.CreateSession(borrowed)))[1] == "MISSING_BLOBS"
    await kim.sessions.UpdateSession(
        sessions_pb2.UpdateSessionRequest(
            session=session.id, visibility=resources_pb2.VISIBILITY_PRIVATE
        )
    )
    assert (await refused(read(lee, manifest.digest)))[0] == "NOT_FOUND"
    spec = sessions_pb2.SessionSpec(entry="main.py", bundle_digest=manifest.digest)
    request = sessions_pb2.CreateSessionRequest(request_id="r4", spec=spec)
    assert (await refused(lee.sessions.CreateSession(request)))[1] == "MISSING_BLOBS"


async def test_a_dataset_that_was_pushed_anew_is_not_taken_for_the_one_before(rig: Rig) -> None:
    """Its versions have other numbers: NAME@N is the same content for good."""
    kim = await rig.user("kim")
    manifest, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "digits", manifest)
    asked = sessions_pb2.DatasetReference(name="kim/digits", version=1, digest=manifest.digest)
    session = await kim.submit(datasets=[asked])
    assert session.spec.datasets[0].digest == manifest.digest
    await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.id))
    await kim.reaches(session.id, "STOPPED")
    await kim.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="digits"))
    anew, blobs = tree(a=b"two")
    await send(kim, blobs)
    assert (await push(kim, "digits", anew)).version == 2
    code, _, told = await refused(kim.submit(datasets=[asked]))
    assert code == "NOT_FOUND"
    assert told["why"] == "it was removed just now"
    assert told["try"] == "nsml dataset restore kim/digits@1"
    # As it was with versions before, which gave numbers again.
    other = sessions_pb2.DatasetReference(name="digits", version=2, digest=manifest.digest)
    _, _, told = await refused(kim.submit(datasets=[other]))
    assert told["why"] == "the dataset was removed and pushed again under its name"


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_rerun_outlives_what_it_came_from_and_is_made_once(
    rig: Rig, has_ended: bool
) -> None:
    kim = await rig.user("kim")
    manifest, blobs = tree(**{"main.py": b"print('of kim')"})
    await send(kim, blobs)
    session = await kim.submit(bundle_digest=manifest.digest)
    asked = rerun(session.name, "r1", bundle_digest=manifest.digest)
    made = None if has_ended else (await kim.sessions.CreateSession(asked)).session
    await kim.sessions.StopSession(sessions_pb2.StopSessionRequest(session=session.id))
    await kim.reaches(session.id, "STOPPED")
    made = made or (await kim.sessions.CreateSession(asked)).session
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=session.id))
    assert (await refused(kim.get(session.id)))[0] == "NOT_FOUND"
    again = (await kim.sessions.CreateSession(asked)).session
    assert (again.id, again.origin.name) == (made.id, session.name)
    assert await read(kim, manifest.digest, *blobs) == blobs


async def test_an_origin_of_no_known_kind_is_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    session = await kim.submit()
    for kind in (sessions_pb2.ORIGIN_KIND_UNSPECIFIED, 77):
        asked = rerun(session.id, f"r{kind}")
        asked.origin.kind = kind
        code, _, _ = await refused(kim.sessions.CreateSession(asked))
        assert code == "INVALID_ARGUMENT"
    asked = rerun("", "r")
    assert (await refused(kim.sessions.CreateSession(asked)))[0] in (
        "INVALID_ARGUMENT",
        "NOT_FOUND",
    )


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
    assert await missing(kim, *blobs, root=manifest.digest) == set()
    assert await missing(lee, *blobs, root=manifest.digest) == set(blobs)
    await send(lee, {manifest.digest: manifest.encode()})
    assert (await refused(push(lee, "mine", manifest)))[1] == "MISSING_BLOBS"
    assert await missing(lee, *blobs, root=manifest.digest) == {digest_of(b"homework")}
    await send(lee, blobs)
    assert await missing(lee, *blobs, root=manifest.digest) == set()
    assert (await push(lee, "mine", manifest)).version == 1


SECRET = b"the PIN of kim is 4711"
KINDS = ("dataset", "code", "code of an ended session", "checkpoint", "media", "log", "upload")


async def missing(who: Stubs, *digests: str, **given: Any) -> set[str]:
    request = content_pb2.FindMissingBlobsRequest(digests=digests, **given)
    return set((await who.content.FindMissingBlobs(request)).missing)


async def made_by_kim(rig: Rig, kim: Stubs, kind: str, agent: Agent) -> list[str]:
    """Something private with `SECRET` in it; the digests of its blobs, the manifest first."""
    name = file_of(1) if kind == "media" else "key"
    manifest, blobs = tree(**{name: SECRET})
    if kind == "log":  # what the platform itself archives is of no manifest
        await rig.on.objects.put(digest_of(SECRET), SECRET)
        return [digest_of(SECRET)]
    if kind in {"checkpoint", "media"}:
        session = await kim.submit()
        await agent.assignments(1)
        await send(agent.stubs, blobs, session_id=session.id)
        if kind == "media":
            made = media_pb2.MediaContent(file=name)
            await agent.stubs.media.CommitMedia(commit(session.id, manifest.digest, made))
        else:
            await agent.stubs.checkpoints.CommitCheckpoint(saved(session.id, manifest.digest))
        return list(blobs)
    await send(kim, blobs)
    if kind == "dataset":
        await push(kim, "secret", manifest)
    elif kind.startswith("code"):
        session = await kim.submit(bundle_digest=manifest.digest)
        [assignment] = await agent.assignments(1)
        if kind != "code":
            await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
            await agent.assignments(0)
            await until(lambda: _has_left(rig, session.id), "it is exported")
    return list(blobs)


async def _has_left(rig: Rig, session: str) -> bool:
    return rig.plane.core.state.session(session) is None


def saved(session: str, digest: str) -> checkpoints_pb2.CommitCheckpointRequest:
    made = checkpoints_pb2.CommitCheckpointRequest(
        session_id=session, attempt=1, name="best", digest=digest, size_bytes=1, file_count=1
    )
    made.saved_at.GetCurrentTime()
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["another node", "the same node"])
async def test_nobody_gets_bytes_for_a_digest(rig: Rig, kind: str, where: str) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    is_same = where == "the same node"
    agent = await (await rig.agent("a", gpus=2 if is_same else 1)).connect()
    theirs = await made_by_kim(rig, kim, kind, agent)
    if agent.orders is None or not agent.orders.assignments:
        await kim.submit()
        await agent.assignments(1)
    # A session of lee runs on the node: of it the node may read and send, in its name alone.
    others = agent if is_same else await (await rig.agent("b")).connect()
    own = await lee.submit()
    await others.assignments(1 + is_same)
    for digest in theirs:
        # Listed as a file in each kind of manifest, and read as a root and as a part of what was sent.
        crafted = listing(digest)
        files = build([Entry(path=file_of(2), mode=0o644, size=1, chunks=(ChunkRef(digest, 1),))])
        for who in (lee, others.stubs):
            for one in (crafted, files):
                await send(who, {one.digest: one.encode()}, session_id=own.id)
        assert (await refused(push(lee, "mine", crafted)))[1] == "MISSING_BLOBS"
        assert (await refused(lee.submit(bundle_digest=crafted.digest)))[1] == "MISSING_BLOBS"
        shown = commit(own.id, files.digest, media_pb2.MediaContent(file=file_of(2)))
        assert (await refused(others.stubs.media.CommitMedia(shown)))[1] == "MISSING_BLOBS"
        save = saved(own.id, crafted.digest)
        assert (await refused(others.stubs.checkpoints.CommitCheckpoint(save)))[
            1
        ] == "MISSING_BLOBS"
        assert await missing(others.stubs, digest, session_id=own.id) == {digest}
        readers = [lee] if is_same and kind == "code" else [lee, others.stubs]
        for who in readers:
            for root in (digest, crafted.digest, files.digest):
                assert (await refused(read(who, root, digest)))[0] == "NOT_FOUND"
        backup = backups_pb2.GetBackupBlobsRequest(digests=[digest])
        for who in (lee, others.stubs):
            answers = who.backups.GetBackupBlobs(backup)
            assert (await refused(_all(answers)))[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_learns_what_others_have_stored(rig: Rig, kind: str) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent("a")).connect()
    theirs = await made_by_kim(rig, kim, kind, agent)
    own = await lee.submit()
    stranger = (await rig.agent("b")).stubs
    nobodys = digest_of(b"nobody's")
    asked: list[set[str]] = []
    sound = rig.on.objects.has_missing

    async def has_missing(digests: Collection[str]) -> set[str]:
        asked.append(set(digests))
        return await sound(digests)

    rig.on.objects.has_missing = has_missing  # type: ignore[method-assign]
    for who, given in (
        (lee, {}),
        (lee, {"root": theirs[0]}),
        (lee, {"bases": [theirs[0]]}),
        (stranger, {}),
        (stranger, {"session_id": own.id}),
        (agent.stubs, {"session_id": own.id}),
    ):
        assert await missing(who, *theirs, nobodys, **given) == {*theirs, nobodys}
    # The object store is not asked, so that the time tells nothing either.
    assert not any(asked)
    for who in (lee, stranger):
        assert await send(who, {digest_of(SECRET): SECRET}) == 1
        assert await send(who, {nobodys: b"nobody's"}) == 1
        assert await send(who, {nobodys: b"nobody's"}) == 0
    assert not any(asked)
    assert await missing(lee, digest_of(SECRET), nobodys) == set()


async def test_what_a_node_was_shown_it_reads_while_the_session_is_there(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    own, _ = await kim.submit(), await kim.submit()
    await agent.assignments(2)
    digest = await save(agent, own.id)
    await get(agent.stubs, own.id, own.id)
    assert await read(agent.stubs, digest)
    for assignment in await agent.assignments(2):
        if assignment.replica.session_id == own.id:
            await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")
    await agent.assignments(1)
    assert (await refused(read(agent.stubs, digest)))[0] == "NOT_FOUND"


async def test_what_one_control_plane_was_sent_counts_at_another() -> None:
    async with surroundings() as on, serving(on) as one, serving(on) as other:
        kim = await one.user("kim")
        there = await other.also(kim)
        manifest, blobs = tree(key=b"x")
        await send(kim, blobs)
        assert await missing(there, *blobs, root=manifest.digest) == set()
        assert (await push(there, "mine", manifest)).version == 1
