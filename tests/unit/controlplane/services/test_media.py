"""Media through real gRPC: told by records, sent by nodes, read by who may."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsml.v1 import agents_pb2
from nsml.v1 import media_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_content import read, send, tree
from tests.unit.controlplane.services.test_sessions import Ingest, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def file_of(number: int) -> str:
    return f"{number:064x}-1"


def told(number: int, **given: Any) -> bytes:
    record = {
        "kind": "media",
        "time": 100.0 + number,
        "step": number,
        "name": f"val/{number}",
        "type": "image",
        "content_type": "image/png",
        "size": 7,
        "caption": "c",
        "facts": {"width": 3},
        "file": file_of(number),
    }
    return json.dumps({**record, **given}).encode()


def chunk(session: str, first: int, *records: bytes) -> agents_pb2.Chunk:
    made = agents_pb2.Chunk(first=first, last=first + len(records) - 1, records=records)
    made.stream.replica.session_id = session
    made.stream.replica.attempt = 1
    made.stream.channel = agents_pb2.CHANNEL_METRIC
    made.stream.writer = 1
    return made


def commit(session: str, root: str, *files: pb.MediaContent) -> pb.CommitMediaRequest:
    return pb.CommitMediaRequest(session_id=session, attempt=1, root=root, files=files)


async def listed(who: Stubs, session: str, **given: Any) -> list[pb.Media]:
    request = pb.ListMediaRequest(session=session, **given)
    found: list[pb.Media] = []
    while True:
        page = await who.media.ListMedia(request)
        found += page.media
        request.cursor = page.next_cursor
        if not request.cursor:
            return found


async def test_they_are_told_sent_and_read_by_who_may(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, stranger = await (await rig.agent("a")).connect(), await rig.agent("b")
    session = await kim.submit()
    await agent.assignments(1)
    assert await Ingest(agent.stubs).send(chunk(session.id, 1, told(1), told(2))) == [3]
    assert [one.state for one in await listed(kim, session.name)] == [pb.MEDIA_STATE_SAVED] * 2

    manifest, blobs = tree(**{file_of(1): b"picture", file_of(3): b"not told of"})
    whole = commit(
        session.id,
        manifest.digest,
        pb.MediaContent(file=file_of(1)),
        pb.MediaContent(file=file_of(2), why_lost="the file is missing"),
        pb.MediaContent(file=file_of(3)),
    )
    code, reason, _ = await refused(agent.stubs.media.CommitMedia(whole))
    assert (code, reason) == ("FAILED_PRECONDITION", "MISSING_BLOBS")
    await send(agent.stubs, blobs)
    for _ in range(2):
        await agent.stubs.media.CommitMedia(whole)
    assert (await refused(stranger.stubs.media.CommitMedia(whole)))[0] == "NOT_FOUND"
    assert (await refused(kim.media.CommitMedia(whole)))[0] == "PERMISSION_DENIED"

    assert (await refused(read(kim, manifest.digest)))[0] == "NOT_FOUND"
    first, second = await listed(kim, session.name, page_size=1)
    assert (first.name, first.step, first.root, first.size_bytes) == (
        "val/1",
        1.0,
        manifest.digest,
        7,
    )
    assert dict(first.facts) == {"width": 3}
    assert (second.state, second.why_lost) == (pb.MEDIA_STATE_LOST, "the file is missing")
    assert await read(kim, manifest.digest, *blobs) == blobs
    assert (await refused(listed(lee, session.name)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, manifest.digest)))[0] == "NOT_FOUND"


async def test_only_what_was_sent_becomes_durable(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    manifest, blobs = tree(**{file_of(1): b"x"})
    await send(agent.stubs, blobs)
    for bad in (
        commit(session.id, manifest.digest, pb.MediaContent(file=file_of(2))),
        commit(session.id, "", pb.MediaContent(file=file_of(1))),
        commit(session.id, manifest.digest, pb.MediaContent(file="../" + file_of(1))),
        commit(session.id, "xyz", pb.MediaContent(file=file_of(1))),
    ):
        assert (await refused(agent.stubs.media.CommitMedia(bad)))[0] == "INVALID_ARGUMENT"
    many = [pb.MediaContent(file=file_of(n), why_lost="x") for n in range(513)]
    refusal = await refused(agent.stubs.media.CommitMedia(commit(session.id, "", *many)))
    assert refusal[0] == "RESOURCE_EXHAUSTED"


async def test_a_page_of_the_longest_fits_into_a_message(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    longest = {
        "name": "\U0001f600" * 512,
        "caption": "\U0001f600" * 2_000,
        "content_type": "\U0001f600" * 100,
        "facts": {"x": [1] * 1_360},
    }
    records = [told(number, **longest) for number in range(200)]
    ingest = Ingest(agent.stubs)
    for first in range(0, 200, 50):
        await ingest.send(chunk(session.id, first + 1, *records[first : first + 50]))
    found = await listed(kim, session.name)
    assert [len(one.facts["x"]) for one in found] == [1_360] * 200


async def test_what_programs_say_is_taken_or_left(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    odd = [
        told(1, name="\0\ud7ff" + "n" * 500, caption="\0", step="NaN"),
        told(2, facts={"x": deep}),
        told(3, facts={"x": "y" * 10_000}),
        told(4, step=None, size=0),
    ]
    left = [
        told(5, file="../../etc"),
        told(5, name=""),
        told(5, name="n" * 513),
        told(5, type="Image!"),
        told(5, time=-1),
        told(5, size=-1),
        told(5, caption="c" * 2001),
        told(5)[:-1],
        b'{"kind":"media"}',
        told(1, name="again"),
    ]
    records = [*odd, *left]
    sent = await Ingest(agent.stubs).send(chunk(session.id, 1, *records))
    assert sent == [len(records) + 1]
    found = await listed(kim, session.name)
    assert [one.file for one in found] == [file_of(n) for n in (1, 2, 3, 4)]
    assert (found[0].name[:5], found[0].caption) == ("\\x00\ud7ff", "\ufffd")
    assert [dict(one.facts) for one in found[1:3]] == [{}, {}]
    assert not found[0].HasField("step")


async def test_questions_that_mean_nothing_are_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    session = await kim.submit()
    for cursor in ("x", "[]", '[1,2,3,"a\\u0000"]', '[1e999,1,1,"a"]', '[1,-1,0,"a"]'):
        code = (await refused(listed(kim, session.name, cursor=cursor)))[0]
        assert code == "INVALID_ARGUMENT", cursor
    assert (await refused(listed(kim, session.name, names=["a"] * 33)))[0] == "RESOURCE_EXHAUSTED"
    assert await listed(kim, session.name, names=["[", "\0"], first_step=float("nan")) == []
