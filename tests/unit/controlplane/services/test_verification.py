"""What is said of content that is damaged or missing, through real gRPC."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain.identity import Role
from nsml.v1 import content_pb2
from tests.unit.controlplane.rig import Rig, Stubs, platform
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
    assert list(found.names) == ["kim/copy", "kim/mnist"]
    assert found.digest == broken.digest
    await lose(rig, whole.digest)
    by_digest = {one.digest: one for one in await verified(root)}
    assert list(by_digest[whole.digest].names) == ["kim/digits"]
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


async def test_only_administrators_have_it_verified(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert (await refused(verified(kim)))[0] == "PERMISSION_DENIED"
