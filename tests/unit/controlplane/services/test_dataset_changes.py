"""Versions, tags, descriptions, visibility, removal and what undoes it: who may, and what becomes of it, through real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from controlplane.domain.identity import Role
from nsml.v1 import datasets_pb2 as pb
from nsml.v1 import resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_sessions import refused

PUBLIC, PRIVATE = resources_pb2.VISIBILITY_PUBLIC, resources_pb2.VISIBILITY_PRIVATE
TEAM = resources_pb2.VISIBILITY_TEAM


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


async def pushed(user: Stubs, name: str, *texts: bytes, **facts: Any) -> str:
    """Push a version of each text; the digest of the last."""
    for text in texts:
        manifest, blobs = tree(a=text)
        await send(user, blobs)
        await push(user, name, manifest, **facts)
    return manifest.digest


async def versions(user: Stubs, name: str, **asked: Any) -> list[pb.Dataset]:
    request = pb.ListDatasetVersionsRequest(name=name, **asked)
    return list((await user.datasets.ListDatasetVersions(request)).versions)


def call(user: Stubs, method: str, **fields: Any) -> Any:
    requests: dict[str, Callable[..., Any]] = {
        "GetDataset": pb.GetDatasetRequest,
        "ListDatasetVersions": pb.ListDatasetVersionsRequest,
        "RemoveDataset": pb.RemoveDatasetRequest,
        "RestoreDataset": pb.RestoreDatasetRequest,
        "TagDatasetVersion": pb.TagDatasetVersionRequest,
        "UntagDatasetVersion": pb.UntagDatasetVersionRequest,
        "UpdateDataset": pb.UpdateDatasetRequest,
    }
    return getattr(user.datasets, method)(requests[method](**fields))


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("UpdateDataset", {"description": "of lee"}),
    ("TagDatasetVersion", {"new_tag": "best"}),
    ("UntagDatasetVersion", {"tag": "gold"}),
    ("RemoveDataset", {"version": 1}),
    ("RestoreDataset", {"version": 3}),
    ("UpdateDataset", {"visibility": PUBLIC}),
]


@pytest.mark.parametrize("seen", ["private", "team", "public"])
async def test_only_the_owner_and_administrators_change_a_dataset(rig: Rig, seen: str) -> None:
    kim, lee = await rig.user("kim", team="lab"), await rig.user("lee", team="lab")
    eve = await rig.user("eve")
    visibility = {"private": PRIVATE, "team": TEAM, "public": PUBLIC}[seen]
    await pushed(kim, "mnist", b"1", b"2", b"3", visibility=visibility)
    await call(kim, "TagDatasetVersion", name="mnist", version=2, new_tag="gold")
    await call(kim, "RemoveDataset", name="mnist", version=3)
    readers = {"private": [], "team": [lee], "public": [lee, eve]}[seen]
    for other in (lee, eve):
        for method, fields in CHANGES:
            denied = "PERMISSION_DENIED" if other in readers else "NOT_FOUND"
            wanted = "NOT_FOUND" if method == "RestoreDataset" else denied
            code, _, _ = await refused(call(other, method, name="kim/mnist", **fields))
            assert (method, code) == (method, wanted)
        if other not in readers:
            code, _, _ = await refused(call(other, "ListDatasetVersions", name="kim/mnist"))
            assert code == "NOT_FOUND"
            continue
        # Removed versions, and who uses it, are the owner's to know.
        listed = await versions(other, "kim/mnist", with_removed=True)
        assert [one.version for one in listed] == [2, 1]
        assert not (await call(other, "GetDataset", name="kim/mnist")).HasField("use")
    root = await rig.user("boss", role=Role.ADMIN)
    for method, fields in CHANGES:
        await call(root, method, name="kim/mnist", **fields)
    found = (await call(kim, "GetDataset", name="mnist")).dataset
    assert (found.description, found.visibility, found.version) == ("of lee", PUBLIC, 3)


async def test_a_tag_is_resolved_when_a_session_is_submitted(rig: Rig) -> None:
    kim = await rig.user("kim")
    await pushed(kim, "mnist", b"1", b"2", b"3")
    await call(kim, "TagDatasetVersion", name="mnist", version=2, new_tag="gold")
    asked = sessions_pb2.DatasetReference(name="mnist", tag="gold")
    session = await kim.submit(datasets=[asked])
    assert [(one.version, one.tag) for one in session.spec.datasets] == [(2, "")]
    moved = await call(kim, "TagDatasetVersion", name="mnist", new_tag="gold")
    assert (moved.dataset.version, moved.version_before) == (3, 2)
    assert (await kim.submit(datasets=[asked])).spec.datasets[0].version == 3
    assert (await kim.get(session.id)).spec.datasets[0].version == 2
    code, _, told = await refused(
        kim.submit(datasets=[sessions_pb2.DatasetReference(name="mnist", tag="none")])
    )
    assert (code, told["try"]) == ("NOT_FOUND", "nsml dataset versions kim/mnist")
    both = sessions_pb2.DatasetReference(name="mnist", tag="gold", version=1)
    assert (await refused(kim.submit(datasets=[both])))[0] == "INVALID_ARGUMENT"
    for bad in ("", "3", "v3", "latest", "a/b", "a@b", "\x1b[31m", "x" * 65, "-x"):
        code, _, _ = await refused(call(kim, "TagDatasetVersion", name="mnist", new_tag=bad))
        assert code == "INVALID_ARGUMENT", bad
    await call(kim, "RemoveDataset", name="mnist", version=3)
    code, _, told = await refused(kim.submit(datasets=[asked]))
    assert (code, told["try"]) == ("NOT_FOUND", "nsml dataset restore kim/mnist@3")


async def test_what_is_removed_comes_back_whole(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    root = await pushed(kim, "mnist", b"1", b"2", visibility=PUBLIC)
    used = [sessions_pb2.DatasetReference(name="mnist")]
    mine = await kim.submit(datasets=used, visibility=PUBLIC)
    await lee.submit(datasets=[sessions_pb2.DatasetReference(name="kim/mnist", version=1)])
    use = (await call(kim, "GetDataset", name="mnist")).use
    assert (use.live_sessions, use.queued_sessions, list(use.names)) == (2, 2, [mine.name])
    use = (await call(kim, "GetDataset", name="mnist", version=1)).use
    assert (use.live_sessions, list(use.names)) == (1, []), "lee's session is private"
    gone = await call(kim, "RemoveDataset", name="mnist")
    assert (gone.removed, gone.live_sessions) == (2, 2)
    assert gone.HasField("restorable_until")
    code, _, told = await refused(call(kim, "GetDataset", name="mnist"))
    assert (code, told["try"]) == ("NOT_FOUND", "nsml dataset restore mnist")
    code, _, told = await refused(call(lee, "GetDataset", name="kim/mnist"))
    assert "restore" not in told["try"]
    listed = await versions(kim, "mnist", with_removed=True)
    assert [one.version for one in listed] == [2, 1]
    assert all(one.HasField("restorable_until") for one in listed)
    assert (await refused(call(kim, "ListDatasetVersions", name="mnist")))[0] == "NOT_FOUND"
    back = await call(kim, "RestoreDataset", name="mnist")
    assert (list(back.versions), back.dataset.version) == ([1, 2], 2)
    assert back.dataset.visibility == PUBLIC
    eve = await rig.user("eve")
    assert set(await read(eve, root)) == {root}
    code, _, told = await refused(call(kim, "RestoreDataset", name="mnist"))
    assert (code, told["try"].splitlines()[0]) == (
        "FAILED_PRECONDITION",
        "nsml dataset info kim/mnist",
    )
    assert (await refused(call(eve, "RestoreDataset", name="kim/mnist")))[0] == "NOT_FOUND"


async def test_a_name_that_was_given_anew_is_not_confused(rig: Rig) -> None:
    kim = await rig.user("kim")
    await pushed(kim, "mnist", b"secret")
    await call(kim, "UpdateDataset", name="mnist", description="not for others")
    await call(kim, "TagDatasetVersion", name="mnist", new_tag="gold")
    await call(kim, "RemoveDataset", name="mnist")
    await pushed(kim, "mnist", b"for all", visibility=PUBLIC)
    found = (await call(kim, "GetDataset", name="mnist")).dataset
    assert (found.version, found.description, list(found.tags)) == (2, "", [])
    code, _, told = await refused(call(kim, "RestoreDataset", name="mnist"))
    assert code == "FAILED_PRECONDITION"
    assert "--private" in told["try"]
    await call(kim, "UpdateDataset", name="mnist", visibility=PRIVATE)
    back = await call(kim, "RestoreDataset", name="mnist")
    assert (list(back.versions), back.dataset.version) == ([1], 2)
    first = (await call(kim, "GetDataset", name="mnist", tag="gold")).dataset
    assert (first.version, first.visibility) == (1, PRIVATE)


async def test_anothers_dataset_does_not_take_the_place_of_a_removed_one(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(lee, "mnist", b"of lee", visibility=PUBLIC)
    assert (await call(kim, "GetDataset", name="mnist")).dataset.owner == "lee"
    await pushed(kim, "mnist", b"of kim")
    await call(kim, "RemoveDataset", name="mnist")
    used = [sessions_pb2.DatasetReference(name="mnist")]
    code, _, told = await refused(kim.submit(datasets=used))
    assert (code, told["try"].splitlines()[0]) == ("INVALID_ARGUMENT", "nsml dataset restore mnist")
    assert (await call(kim, "GetDataset", name="lee/mnist")).dataset.owner == "lee"
    assert [one.owner for one in await versions(kim, "mnist", with_removed=True)] == ["kim"]
    await call(kim, "RestoreDataset", name="mnist")
    assert (await call(kim, "GetDataset", name="mnist")).dataset.owner == "kim"


async def test_unchanged_data_makes_no_version(rig: Rig) -> None:
    kim = await rig.user("kim")
    manifest, blobs = tree(a=b"1")
    await send(kim, blobs)
    ask = partial(pb.CreateDatasetVersionRequest, name="mnist", digest=manifest.digest)
    created = [
        (await kim.datasets.CreateDatasetVersion(ask(message=text))).created
        for text in ("first", "again")
    ]
    assert created == [True, False]
    assert [one.message for one in await versions(kim, "mnist")] == ["first"]


async def test_versions_are_told_in_pages(rig: Rig) -> None:
    kim = await rig.user("kim")
    await pushed(kim, "mnist", *(str(number).encode() for number in range(5)))
    request = pb.ListDatasetVersionsRequest(name="mnist", page_size=2)
    told, pages = [], 0
    while True:
        page = await kim.datasets.ListDatasetVersions(request)
        told += [one.version for one in page.versions]
        pages += 1
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    assert (told, pages) == ([5, 4, 3, 2, 1], 3)
    for bad in ("0", "x", "-1", "²", "9" * 30):
        asked = call(kim, "ListDatasetVersions", name="mnist", cursor=bad)
        assert (await refused(asked))[0] == "INVALID_ARGUMENT"


async def test_limits_of_what_is_said_and_asked(rig: Rig) -> None:
    kim = await rig.user("kim")
    await pushed(kim, "mnist", b"1")
    await call(kim, "UpdateDataset", name="mnist", description="ö" * 2048)
    too_long = call(kim, "UpdateDataset", name="mnist", description="ö" * 2048 + "x")
    assert (await refused(too_long))[0] == "RESOURCE_EXHAUSTED"
    in_no_team = call(kim, "UpdateDataset", name="mnist", visibility=TEAM)
    assert (await refused(in_no_team))[0] == "INVALID_ARGUMENT"
    for words in (["x"] * 17, ["x" * 257]):
        asked = kim.datasets.ListDatasets(pb.ListDatasetsRequest(words=words))
        assert (await refused(asked))[0] == "RESOURCE_EXHAUSTED"
    found = await kim.datasets.ListDatasets(pb.ListDatasetsRequest(words=["MNI", "ööö"]))
    assert [one.name for one in found.datasets] == ["mnist"]
