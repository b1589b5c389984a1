"""Trees that are stored in pages, through real gRPC: rights, presence, collection, damage, and agents that do not know them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from controlplane.domain.identity import Role
from nsml.content.digests import digest_of
from nsml.v1 import agents_pb2, content_pb2, resources_pb2, sessions_pb2
from tests.support.trees import paged_tree
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, read, send
from tests.unit.controlplane.services.test_leader_forwarding import two
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.services.test_verification import lose, verified


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def missing(who: Stubs, digests: Collection[str], **given) -> set[str]:
    request = content_pb2.FindMissingBlobsRequest(digests=digests, **given)
    return set((await who.content.FindMissingBlobs(request)).missing)


async def test_a_paged_tree_is_made_read_and_shares_its_pages(rig: Rig) -> None:
    kim = await rig.user("kim")
    manifest, blobs = paged_tree()
    pages = [page.digest for page in manifest.root.pages]
    assert len(pages) > 2
    assert await send(kim, {digest: blobs[digest] for digest in blobs if digest != pages[0]})
    assert (await refused(push(kim, "many", manifest)))[1] == "MISSING_BLOBS"
    await send(kim, {pages[0]: blobs[pages[0]]})
    made = await push(kim, "many", manifest)
    assert (made.version, made.file_count, made.size_bytes) == (1, 12_000, manifest.size)
    assert (await push(kim, "many", manifest)).version == 1
    assert await read(kim, manifest.digest) == {manifest.digest: manifest.root.data}
    assert await read(kim, manifest.digest, *blobs) == blobs
    # Of what a version lists that one may read, pages and chunks, nothing is sent again.
    await push(kim, "many", manifest, visibility=resources_pb2.VISIBILITY_PUBLIC)
    lee = await rig.user("lee")
    other, more = paged_tree("zzz")
    lacks = await missing(lee, list(more), root=other.digest, bases=[manifest.digest])
    assert other.digest in lacks
    assert 2 <= len(lacks) <= 4
    await send(lee, {digest: more[digest] for digest in lacks})
    assert (await push(lee, "more", other)).file_count == 12_001


async def test_a_page_is_nobodys_who_has_not_sent_it_and_nobody_is_told_of_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    manifest, blobs = paged_tree()
    root, page = manifest.digest, manifest.root.pages[0].digest
    await send(kim, blobs)
    await push(kim, "many", manifest)
    assert (await refused(read(lee, root)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, root, page)))[0] == "NOT_FOUND"
    assert await missing(lee, list(blobs), root=root, bases=[root]) == set(blobs)
    # A root that lee sends, with pages of kim or of nobody: neither is read, nor told apart.
    reads: list[str] = []
    sound = rig.on.objects.get_first

    async def get_first(digests: list[str], most_bytes: int) -> list[bytes]:
        reads.extend(digests)
        return await sound(digests, most_bytes)

    rig.on.objects.get_first = get_first  # type: ignore[method-assign]
    nobodys, _ = paged_tree("of nobody", files=12_100)
    for one in (manifest, nobodys):
        await send(lee, {one.digest: one.root.data})
        assert (await refused(push(lee, "mine", one)))[:2] == (
            "FAILED_PRECONDITION",
            "MISSING_BLOBS",
        )
        assert (await refused(read(lee, one.digest)))[0] == "NOT_FOUND"
    assert not reads
    await send(lee, blobs)
    assert (await push(lee, "mine", manifest)).version == 1


async def test_hostile_roots_are_refused(rig: Rig) -> None:
    kim = await rig.user("kim")
    manifest, blobs = paged_tree()
    first = manifest.root.pages[0]
    item = b'["%b",%d]' % (first.digest.encode(), first.size)
    await send(kim, blobs)
    for data in (
        b'{"pages":[' + b",".join([item] * 700_000) + b'],"version":2}',
        manifest.root.data.replace(b",%d]" % first.size, b",9223372036854775808]", 1),
        manifest.root.data.replace(b",%d]" % first.size, b",%d]" % (first.size + 1), 1),
        b'{"pages":[' + b",".join([item] * 20) + b'],"version":2}',
    ):
        root = digest_of(data)
        await send(kim, {root: data})
        request = sessions_pb2.SessionSpec(entry="main.py", bundle_digest=root)
        made = sessions_pb2.CreateSessionRequest(request_id=root[:9], spec=request)
        assert (await refused(kim.sessions.CreateSession(made)))[0] == "INVALID_ARGUMENT"


async def test_damaged_pages_are_named_and_sent_again(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    manifest, blobs = paged_tree()
    await send(kim, blobs)
    await push(kim, "many", manifest)
    await push(kim, "copy", manifest)
    assert await verified(root) == []
    pages = [page.digest for page in manifest.root.pages]
    await lose(rig, pages[1])
    [found] = await verified(root)
    assert (found.kind, found.lost, found.digest) == ("datasets", 1, manifest.digest)
    assert list(found.names) == ["kim/copy@1", "kim/many@1"]
    # Of a chunk that a page lists which can be read it is known, too.
    await lose(rig, digest_of(b"7"))
    assert [one.lost for one in await verified(root)] == [2]
    assert await missing(kim, pages, root=manifest.digest) == {pages[1]}
    await send(kim, blobs)
    assert await verified(root) == []


async def test_an_agent_that_reads_no_pages_is_told_so(rig: Rig) -> None:
    await is_refused_pages(rig, rig)


async def test_control_planes_that_do_not_lead_tell_it_so_too() -> None:
    async with two() as (leader, standby):
        await is_refused_pages(leader, standby)


async def is_placed(rig: Rig, node: str) -> None:
    async def is_known() -> bool:
        stored = rig.plane.core.state.allocations.get(node)
        return stored is not None and bool(stored.value.replicas)

    await until(is_known, f"the control plane knows what runs on {node}")


async def is_refused_pages(rig: Rig, serving: Rig) -> None:
    """Agents of `rig`, which read of `serving`."""
    kim = await rig.user("kim")
    knows = [
        one
        for one in agents_pb2.AgentAbility.values()[1:]
        if one != agents_pb2.AGENT_ABILITY_PAGED_TREES
    ]
    old = await (await rig.agent("old", abilities=knows, agent_version="0.1.0")).connect()
    manifest, blobs = paged_tree()
    await send(kim, blobs)
    await push(kim, "many", manifest)
    await kim.submit(datasets=[sessions_pb2.DatasetReference(name="many")])
    [order] = await old.assignments(1)
    await is_placed(serving, "old")
    code, _, facts = await refused(read(await serving.also(old.stubs), manifest.digest))
    assert code == "FAILED_PRECONDITION"
    assert facts["try"] == "an administrator upgrades nsml on old"
    await old.report(order.replica, "FINALIZED", cause="DATA_FAILED")
    # The session goes to another node, which reads it.
    new = await (await rig.agent("new")).connect()
    [again] = await new.assignments(1)
    await is_placed(serving, "new")
    assert again.replica.session_id == order.replica.session_id
    assert await read(await serving.also(new.stubs), manifest.digest) == {
        manifest.digest: manifest.root.data
    }
