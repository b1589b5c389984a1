"""Archives of sessions, out of a real control plane and into it again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from controlplane.content import content
from nsml.client.calls import Client
from nsml.client.session_backups import Backed, SessionBackup
from nsml.client.session_restores import Restored, read_contents, restore
from nsml.content.session_archives import ArchiveWriter, Header
from nsml.v1 import artifacts_pb2, datasets_pb2, media_pb2
from nsml.v1 import session_backups_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services import test_session_backups as backups
from tests.unit.controlplane.services.test_content import push, send, tree

ABOUT = Header("c0", "0.2", "2026-11-28T20:00:00Z", "kim", ())


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def client_of(rig: Rig, who: Stubs) -> Client:
    token = who.metadata[0][1].removeprefix("Bearer ")
    return Client(await rig.channel(), token=token)


async def back_up(client: Client, file: Path, *names: str) -> list[Backed]:
    with file.open("wb") as opened, ArchiveWriter(opened, ABOUT, now=1.0) as archive:
        taking = SessionBackup(client, archive, with_checkpoints=True, with_datasets=True)
        sessions = [await client.sessions.get(name) for name in names]
        await taking.add_datasets(sessions)
        backed = [await taking.add(one) for one in sessions]
        archive.finish()
    return backed


async def restored(client: Client, file: Path) -> list[Restored]:
    found: list[Restored] = []
    await restore(client, file, read_contents(file), restored=found.append)
    return found


def media(rank: int, number: int, root: str) -> pb.RestoreSessionRequest:
    made = media_pb2.Media(
        name="a", kind="text", file=file_name(rank, number), root=root, attempt=1, rank=rank
    )
    made.time.FromSeconds(1_000_000_000 + number)
    return pb.RestoreSessionRequest(media=made)


def file_name(rank: int, number: int) -> str:
    digest = hashlib.sha256(f"{rank} {number}".encode()).hexdigest()
    return f"{digest}-{rank}-{number}"


async def shown(client: Client, name: str) -> dict[str, int]:
    """The files that are durable, and of which rank each is."""
    answer = await client.media.page(media_pb2.ListMediaRequest(session=name))
    return {one.file: one.rank for one in answer.media if one.root}


async def test_media_of_two_ranks_are_restored(rig: Rig, tmp_path: Path) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    requests = []
    await send(kim, backups.CODE_BLOBS)
    # They show files in turn, and each file is sent by itself.
    for number in range(6):
        rank = number % 2
        root, blobs = tree(**{file_name(rank, number): b"%d" % number})
        await send(kim, blobs)
        requests.append(media(rank, number, root.digest))
    made = (await backups.restore(kim, backups.first(backups.session()), *requests)).session
    client = await client_of(rig, kim)
    assert list((await shown(client, made.name)).values()) == [0, 1, 0, 1, 0, 1]
    file = tmp_path / "a.tar.zst"
    assert (await back_up(client, file, made.name))[0].left_out == []
    other = await client_of(rig, lee)
    [again] = await restored(other, file)
    assert await shown(other, again.session.name) == await shown(client, made.name)


async def test_what_expires_meanwhile_is_left_out(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    await send(kim, backups.CODE_BLOBS | backups.MODEL_BLOBS)
    sent = [media(rank, 0, "") for rank in range(2)]
    for rank, one in enumerate(sent):
        root, blobs = tree(**{file_name(rank, 0): b"%d" % rank})
        await send(kim, blobs)
        one.media.root = root.digest
    artifact = artifacts_pb2.Artifact(name="report", version=1, digest=backups.MODEL.digest)
    requests = (backups.checkpoint(), pb.RestoreSessionRequest(artifact=artifact), *sent)
    made = (await backups.restore(kim, backups.first(backups.session()), *requests)).session
    client = await client_of(rig, kim)
    gone = {backups.MODEL.digest, sent[0].media.root}
    may_read = content.Content._may_read

    async def has_expired(self: content.Content, caller: object, root: str) -> bool:
        return root not in gone and await may_read(self, caller, root)  # type: ignore[arg-type]

    monkeypatch.setattr(content.Content, "_may_read", has_expired)
    file = tmp_path / "a.tar.zst"
    [backed] = await back_up(client, file, made.name)
    assert [one.partition(":")[0] for one in backed.left_out] == [
        "checkpoint best",
        "artifact report",
        "media a",
    ]
    [inside] = read_contents(file).sessions.values()
    assert {one.rpartition("/")[2] for one in inside.trees} == {"code", "1-1"}


async def test_a_dataset_with_the_files_of_an_artifact_is_restored(
    rig: Rig, tmp_path: Path
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await send(kim, backups.CODE_BLOBS | backups.MODEL_BLOBS)
    artifact = artifacts_pb2.Artifact(name="report", version=1, digest=backups.MODEL.digest)
    made = pb.RestoreSessionRequest(artifact=artifact)
    one = (await backups.restore(kim, backups.first(backups.session()), made)).session
    dataset = await push(kim, "labels", backups.MODEL)
    uses = backups.session(id="sother")
    uses.spec.datasets.add(name="kim/labels", version=dataset.version, digest=backups.MODEL.digest)
    other = (await backups.restore(kim, backups.first(uses))).session
    file = tmp_path / "a.tar.zst"
    await back_up(await client_of(rig, kim), file, one.name, other.name)
    found = await restored(await client_of(rig, lee), file)
    [used] = found[1].session.spec.datasets
    assert (used.name, used.digest) == ("labels", backups.MODEL.digest)
    request = datasets_pb2.GetDatasetRequest(name="labels")
    assert (await lee.datasets.GetDataset(request)).dataset.owner == "lee"


async def versions(who: Stubs, name: str) -> list[str]:
    request = datasets_pb2.ListDatasetVersionsRequest(name=name)
    return [one.digest for one in (await who.datasets.ListDatasetVersions(request)).versions]


@pytest.mark.parametrize("theirs", [["OTHER"], ["MODEL"], ["MODEL", "OTHER"]])
async def test_a_strangers_archive_adds_no_version_to_a_dataset_that_was_there(
    rig: Rig, tmp_path: Path, theirs: list[str]
) -> None:
    """Also where it has all versions of that dataset and one more, and is restored twice."""
    other, blobs = tree(data=b"other")
    third, more = tree(data=b"third")
    trees = {"OTHER": other, "MODEL": backups.MODEL}
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await send(kim, backups.CODE_BLOBS | backups.MODEL_BLOBS | blobs | more)
    await send(lee, backups.MODEL_BLOBS | blobs)
    names = []
    for number, one in enumerate((backups.MODEL, other, third), start=1):
        dataset = await push(kim, "labels", one)
        uses = backups.session(id=f"s{number}", name=f"kim/labels/{number}")
        uses.spec.datasets.add(name="kim/labels", version=dataset.version, digest=one.digest)
        names.append((await backups.restore(kim, backups.first(uses))).session.name)
    for one in theirs:
        await push(lee, "labels", trees[one])
    before = await versions(lee, "labels")
    await back_up(await client_of(rig, kim), tmp_path / "a.tar.zst", *names)
    for _ in range(2):
        found = await restored(await client_of(rig, lee), tmp_path / "a.tar.zst")
        assert await versions(lee, "labels") == before
    used = {one.digest: one.name for made in found for one in made.session.spec.datasets}
    expected = {one.digest: "labels.restored" for one in (backups.MODEL, other, third)}
    assert used == expected | dict.fromkeys(before, "labels")
    made = await versions(lee, "labels.restored")
    assert sorted(made) == sorted(expected.keys() - set(before))


async def test_what_the_platform_has_removed_meanwhile_is_sent_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "FOUND_FOR_S", 0.0)
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await send(kim, backups.CODE_BLOBS | backups.MODEL_BLOBS)
    asked = (backups.first(backups.session()), backups.checkpoint())
    made = (await backups.restore(kim, *asked)).session
    file = tmp_path / "a.tar.zst"
    await back_up(await client_of(rig, kim), file, made.name)
    client = await client_of(rig, lee)
    objects, calls = rig.on.objects, 0
    begin = backups.Restorer.begin

    async def collected_first(self: object, *given: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            some = list(backups.CODE_BLOBS | backups.MODEL_BLOBS)
            await objects.delete(await objects.put_aside(some, lambda: True))
        return await begin(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(backups.Restorer, "begin", collected_first)
    [again] = await restored(client, file)
    assert (calls, again.was_there) == (2, False)
    assert not await objects.has_missing(list(backups.CODE_BLOBS | backups.MODEL_BLOBS))
