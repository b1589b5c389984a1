"""What is said of content that is damaged or missing, through real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
import grpc.aio
import pytest

from controlplane.content.feature import node_repairs
from controlplane.domain.errors import NodeUnavailable
from controlplane.domain.identity import Role
from controlplane.objects.interface import VerifiedBlobs
from nsml.common.clock import SystemClock
from nsml.v1 import agents_pb2, content_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, send, tree
from tests.unit.controlplane.services.test_sessions import _all, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def verified(who: Stubs) -> list[Any]:
    answers = await _all(who.content.VerifyStorage(content_pb2.VerifyStorageRequest()))
    return [one.broken for one in answers if one.HasField("broken")]


async def lose(rig: Rig, digest: str) -> None:
    objects = rig.plane.core.objects
    await objects.put_aside([digest], lambda: True)
    await objects.delete([digest])


async def test_what_refers_to_lost_blobs_is_named_once(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    whole, its = tree(a=b"whole")
    broken, blobs = tree(a=b"one", b=b"two", c=b"three")
    await send(kim, its | blobs)
    await push(kim, "digits", whole)
    await push(kim, "mnist", broken)
    await push(kim, "copy", broken)
    assert await verified(root) == []
    for digest in sorted(set(blobs) - {broken.digest})[:2]:
        await lose(rig, digest)
    [found] = await verified(root)
    assert (found.kind, found.owner, found.lost) == ("datasets", "kim", 2)
    assert list(found.names) == ["kim/copy@1", "kim/mnist@1"]
    assert found.digest == broken.digest
    await lose(rig, whole.digest)
    by_digest = {one.digest: one for one in await verified(root)}
    assert list(by_digest[whole.digest].names) == ["kim/digits@1"]
    assert by_digest[whole.digest].lost == 1
    await send(kim, its | blobs)
    assert await verified(root) == []


async def test_what_is_aside_is_not_lost(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    manifest, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "mnist", manifest)
    await rig.plane.core.objects.put_aside(list(blobs), lambda: True)
    assert await verified(root) == []
    assert await rig.plane.core.objects.has_missing(list(blobs)) == set()


async def test_after_a_repair_it_is_told_what_is_damaged_and_belongs_to_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    manifest, blobs = tree(a=b"one", b=b"two")
    await send(kim, blobs)
    await push(kim, "mnist", manifest)
    found, lost = sorted(set(blobs) - {manifest.digest})

    async def verify() -> AsyncIterator[VerifiedBlobs]:
        yield VerifiedBlobs(count=4, stored_bytes=9, damaged=[found, "ab" * 32])

    async def recover(digests: Collection[str]) -> dict[str, str]:
        return {found: "pack p1"} if found in digests else {}

    monkeypatch.setattr(rig.plane.core.objects, "verify", verify)
    monkeypatch.setattr(rig.plane.core.objects, "recover", recover)
    request = content_pb2.RepairStorageRequest()
    answers = await _all(root.content.RepairStorage(request))
    assert [one.damaged for one in answers if not one.HasField("broken")] == [2, 1]
    await lose(rig, lost)
    answers = await _all(root.content.RepairStorage(request))
    assert [one.damaged for one in answers if not one.HasField("broken")] == [2, 0]


async def test_only_administrators_have_it_verified(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert (await refused(verified(kim)))[0] == "PERMISSION_DENIED"


async def repaired(who: Stubs, digest: str, **given: Any) -> content_pb2.RepairContentResponse:
    request = content_pb2.RepairContentRequest(digest=digest, **given)
    return await who.content.RepairContent(request)


async def an_agent(rig: Rig, node: str, holds: Any, *, sends: bool = True) -> Agent:
    """One that can repair, and sends `holds` of what it is asked for, whatever that is; `sends`: or says so."""
    agent = await rig.agent(node)
    asked: list[agents_pb2.RepairOrder] = []

    async def answer(order: agents_pb2.RepairOrder) -> agents_pb2.RepairReport:
        asked.append(order)
        words = ""
        if sends:
            blobs = {one: holds[one] for one in order.digests if one in holds}
            try:
                await put(agent.stubs, blobs)
            except grpc.aio.AioRpcError as error:
                words = error.details() or ""
        return agents_pb2.RepairReport(
            order_id=order.order_id, sent=len(order.digests), words=words
        )

    agent.about_repairs = answer
    await agent.connect()
    return agent


async def put(who: Stubs, blobs: dict[str, bytes]) -> None:
    async def requests():
        for digest, data in blobs.items():
            blob = content_pb2.Blob(digest=digest, data=data, last=True)
            yield content_pb2.PutBlobsRequest(blobs=[blob])

    await who.content.PutBlobs(requests())


async def test_nodes_put_again_what_is_lost_and_none_is_believed(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    tree_, blobs = tree(a=b"one", b=b"two", c=b"three")
    await send(kim, blobs)
    await push(kim, "mnist", tree_)
    chunks = sorted(set(blobs) - {tree_.digest})
    for digest in (tree_.digest, *chunks[:2]):
        await lose(rig, digest)
    assert (await repaired(root, tree_.digest)).lost == 1  # what it listed is not known
    old = await rig.agent("old", abilities=[])
    await old.connect()  # is not asked: it would not answer
    await an_agent(rig, "boasts", {}, sends=False)
    await an_agent(rig, "lies", dict.fromkeys(blobs, b"something else"))
    assert (await repaired(root, tree_.digest)).lost == 1
    assert await rig.plane.core.objects.has_missing(blobs) == {tree_.digest, *chunks[:2]}
    await an_agent(rig, "some", {one: blobs[one] for one in (tree_.digest, chunks[0])})
    first = await repaired(root, tree_.digest)
    assert {one.digest: one.source for one in first.repaired} == {tree_.digest: "node some"}
    assert (first.lost, set(first.lost_digests)) == (2, set(chunks[:2]))
    second = await repaired(root, tree_.digest)
    assert {one.digest for one in second.repaired} == {chunks[0]}
    assert list(second.lost_digests) == [chunks[1]]
    assert any("lies: " in one for one in second.reasons)
    await put(kim, blobs)
    assert (await repaired(root, tree_.digest)).lost == 0
    assert (await refused(repaired(kim, tree_.digest)))[0] == "PERMISSION_DENIED"
    assert (await refused(repaired(root, "../x")))[0] == "INVALID_ARGUMENT"


async def test_each_node_is_asked_once_though_none_answers_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    manifest, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "mnist", manifest)
    await lose(rig, manifest.digest)
    names = [f"slow-{number}" for number in range(5)]
    for name in names:
        await an_agent(rig, name, {})
    repairs, asked = rig.plane.core.shared(node_repairs), []
    clock, now = SystemClock(), [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(repairs, "_clock", clock)

    async def ask(_: str, node: str, *__: object, within_s: float) -> object:
        asked.append(node)
        now[0] += within_s + 16.0  # and what is lost is looked up again
        raise NodeUnavailable(f"node {node} does not answer")

    monkeypatch.setattr(repairs._questions, "ask", ask)
    while (answer := await repaired(root, manifest.digest)).is_partial:
        assert len(asked) <= len(names)
    assert asked == names
    assert len(answer.reasons) == len(names)


async def test_a_node_that_comes_back_is_asked_again_and_all_are_from_the_start(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    manifest, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "mnist", manifest)
    await lose(rig, manifest.digest)
    holds: dict[str, dict[str, bytes]] = {"returns": {}, "stays": {}}
    agents = {name: await an_agent(rig, name, holds[name]) for name in holds}
    assert (await repaired(root, manifest.digest)).nodes_in_vain == 2
    for one in holds.values():
        one.update(blobs)  # an administrator has mended both
    assert not (await repaired(root, manifest.digest)).repaired, "asked a moment ago"
    await agents["returns"].close()
    returned = await an_agent(rig, "returns", blobs)
    back = await repaired(root, manifest.digest)
    assert [one.source for one in back.repaired] == ["node returns"]
    await lose(rig, manifest.digest)
    await returned.close()

    async def is_gone() -> bool:
        return rig.plane.core.contacts.link("returns") is None

    await until(is_gone, "the one that gave it is gone")
    assert (await repaired(root, manifest.digest)).lost == 1, "asked a moment ago"
    assert (await repaired(root, manifest.digest, is_from_start=True)).lost == 0


async def test_what_a_quota_refuses_a_repair_may_put(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    tree_, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "mnist", tree_)
    rig.plane.core.kept.take("kim", 1 << 60)
    for digest in blobs:
        await lose(rig, digest)
    await an_agent(rig, "n1", blobs)
    while (answer := await repaired(root, tree_.digest)).repaired:
        pass
    assert answer.lost == 0


async def test_a_node_that_does_not_answer_keeps_no_other_from_being_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    tree_, blobs = tree(a=b"one")
    await send(kim, blobs)
    await push(kim, "mnist", tree_)
    await lose(rig, tree_.digest)
    repairs = rig.plane.core.shared(node_repairs)
    monkeypatch.setattr(repairs, "_within_s", 0.1)
    monkeypatch.setattr("controlplane.content.node_repairs.WORK_S", 0.0)
    for node in ("a", "b"):
        await (await rig.agent(node)).connect()
    await an_agent(rig, "last", blobs)
    calls, answer = 0, await repaired(root, tree_.digest)
    while answer.is_partial:
        calls, answer = calls + 1, await repaired(root, tree_.digest)
        assert calls <= 3
    assert [one.source for one in answer.repaired] == ["node last"]
    assert answer.lost == 0
