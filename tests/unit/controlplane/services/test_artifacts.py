"""Artifacts through real gRPC: told by records, sent by nodes, in versions, read and removed by who may."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsml.v1 import artifacts_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_content import read, send, tree
from tests.unit.controlplane.services.test_media import chunk
from tests.unit.controlplane.services.test_sessions import Ingest, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def told(number: int, **given: Any) -> bytes:
    record = {
        "kind": "artifact",
        "time": 100.0 + number,
        "name": "report",
        "folder": f"{number}-%artifact/model",
        "files": [["a", 7]],
        "seal": "",
        "size": 7,
        "step": float(number),
    }
    return json.dumps({**record, **given}).encode()


def commit(session: str, number: int, **given: Any) -> pb.CommitArtifactRequest:
    request = pb.CommitArtifactRequest(
        session_id=session,
        attempt=1,
        folder=f"{number}-%artifact/model",
        name="report",
        size_bytes=7,
        file_count=1,
    )
    request.saved_at.FromSeconds(100 + number)
    request.MergeFrom(pb.CommitArtifactRequest(**given))
    return request


async def listed(who: Stubs, session: str, **given: Any) -> list[pb.Artifact]:
    request = pb.ListArtifactsRequest(session=session, **given)
    found: list[pb.Artifact] = []
    while True:
        page = await who.artifacts.ListArtifacts(request)
        found += page.artifacts
        request.cursor = page.next_cursor
        if not request.cursor:
            return found


async def test_they_are_told_sent_and_read_in_versions(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, stranger = await (await rig.agent("a")).connect(), await rig.agent("b")
    session = await kim.submit()
    await agent.assignments(1)
    lost = told(9, name="gone", folder="lost-1", lost="no such file")
    records = [told(1), told(2), told(3), lost, told(4, folder="\x1b"), told(5, name="x" * 600)]
    await Ingest(agent.stubs).send(chunk(session.id, 1, *records))
    found = await listed(kim, session.name)
    assert [(one.state, one.version) for one in found] == [(1, 0), (1, 0), (1, 0), (3, 0)]
    assert found[-1].why_lost == "no such file"

    first, blobs = tree(a=b"content")
    whole = commit(session.id, 1, digest=first.digest)
    assert (await refused(agent.stubs.artifacts.CommitArtifact(whole)))[1] == "MISSING_BLOBS"
    await send(agent.stubs, blobs)
    for _ in range(2):
        assert (await agent.stubs.artifacts.CommitArtifact(whole)).version == 1
    assert (await refused(stranger.stubs.artifacts.CommitArtifact(whole)))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.CommitArtifact(whole)))[0] == "PERMISSION_DENIED"
    # Equal files make no version, and neither does a record that comes again.
    same = commit(session.id, 2, digest=first.digest)
    assert (await agent.stubs.artifacts.CommitArtifact(same)).version == 0
    await Ingest(agent.stubs).send(chunk(session.id, 1, *records))
    second, more = tree(a=b"another")
    await send(agent.stubs, more)
    another = commit(session.id, 3, digest=second.digest, why_lost="changed")
    assert (await agent.stubs.artifacts.CommitArtifact(another)).version == 0
    another.why_lost = ""
    assert (await agent.stubs.artifacts.CommitArtifact(another)).version == 2

    assert (await refused(read(kim, first.digest)))[0] == "NOT_FOUND"
    found = await listed(kim, session.name, name="report", page_size=1)
    assert [(one.version, one.digest, one.step) for one in found] == [
        (1, first.digest, 1.0),
        (2, second.digest, 3.0),
    ]
    assert found[0].node == "a"
    assert await read(kim, first.digest, *blobs) == blobs
    assert (await refused(listed(lee, session.name)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, first.digest)))[0] == "NOT_FOUND"


async def test_a_version_that_is_removed_is_not_given_again(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    manifest, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    whole = commit(session.id, 1, digest=manifest.digest)
    await agent.stubs.artifacts.CommitArtifact(whole)

    def remove(*versions: int) -> pb.RemoveArtifactsRequest:
        named = [pb.ArtifactVersion(name="report", version=one) for one in versions]
        return pb.RemoveArtifactsRequest(session=session.name, versions=named)

    assert (await refused(lee.artifacts.RemoveArtifacts(remove(1))))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.RemoveArtifacts(remove(1, 2))))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.RemoveArtifacts(remove())))[0] == "INVALID_ARGUMENT"
    assert len(await listed(kim, session.name)) == 1
    await kim.artifacts.RemoveArtifacts(remove(1))
    assert await listed(kim, session.name) == []
    await agent.stubs.artifacts.CommitArtifact(whole)  # its answer was lost, say
    assert await listed(kim, session.name) == []
    again = commit(session.id, 2, digest=manifest.digest)
    assert (await agent.stubs.artifacts.CommitArtifact(again)).version == 2


@pytest.mark.parametrize(
    "given",
    [{"name": "x" * 513}, {"digest": "xyz"}, {"digest": "../" * 20}, {"folder": "a b" * 99}],
)
async def test_a_node_cannot_commit_anything(rig: Rig, given: dict[str, Any]) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    manifest, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    bad = commit(session.id, 1, **{"digest": manifest.digest, **given})
    assert (await refused(agent.stubs.artifacts.CommitArtifact(bad)))[0] == "INVALID_ARGUMENT"
