"""A restore lays down what the platform needs, and takes nothing of its owner's."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from controlplane.access.platform_keys import KEY_FILE
from controlplane.backups.backups import Backups, Taken
from controlplane.core.dependencies import Backends
from controlplane.domain.errors import NsmlError
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from controlplane.startup import ownership as claims
from controlplane.startup.config import Settings
from controlplane.startup.ownership import BackendSettings, Coordination, StartRefused
from controlplane.startup.restore import restore
from nsml._version import VERSION
from nsml.common.clock import inline
from nsml.content.backups import Backup, BackupError, Manifest, drafting
from tests.unit.controlplane.rig import surroundings

SHARED = BackendSettings(
    coordination=Coordination("https://a:2379"),
    history="postgresql://nsml@db/nsml",
    objects="s3://bucket/nsml",
)


async def backup_of(on: Backends, folder: Path, keys: dict[str, bytes]) -> Backup:
    parts: dict[str, bytes] = defaultdict(bytes, history=b"", objects=b"")
    async for one in Backups(
        store=on.store, history=on.history, objects=on.objects, clock=on.clock
    ).create(without_objects=False):
        if isinstance(one, Taken):
            taken = one
        else:
            parts[one.part] += one.data
    with drafting(folder, "20260101T000000Z") as draft:
        for part, data in parts.items():
            with draft.writing(part) as writing:
                writing.write(data)
        for name, content in keys.items():
            draft.add_key(name, content)
        return draft.finish(
            Manifest(
                cluster_id=taken.cluster_id,
                version=VERSION,
                data_version=taken.data_version,
                revision=taken.revision,
                taken_at=taken.taken_at,
                blob_count=0,
            )
        )


@pytest.mark.parametrize("has_keys", [False, True], ids=["key in its place", "key in the backup"])
async def test_a_shared_platform_becomes_one_of_a_folder(tmp_path: Path, has_keys: bool) -> None:
    elsewhere = tmp_path / "keys" / KEY_FILE
    async with surroundings() as on:
        claimed = await claims.claim(on, tmp_path, SHARED, elsewhere)
        key = elsewhere.read_bytes()
        if has_keys:
            elsewhere.unlink()
        backup = await backup_of(on, tmp_path / "b", {KEY_FILE: key} if has_keys else {})
    settings = Settings(data=tmp_path / "data", coordination="embedded", platform_key=elsewhere)
    done = await restore(settings, backup.path, None)
    assert done.cluster_id == claimed.cluster.id
    assert claimed.keys is not None
    assert (settings.data / "ca.key").read_bytes() == claimed.keys.authority[1]
    assert not (settings.data / KEY_FILE).exists()
    # It is needed no more; but who laid it there may have no other to open older backups with.
    left = [one.read_bytes() for one in elsewhere.parent.iterdir()]
    assert left == ([] if has_keys else [key])


async def test_what_is_refused_before_it_began_can_be_tried_again(tmp_path: Path) -> None:
    """The database is away; then the store is not empty; then all is as it should be."""
    async with surroundings() as on:
        await claims.claim(on, tmp_path, SHARED, tmp_path / KEY_FILE)
        backup = await backup_of(on, tmp_path / "b", {KEY_FILE: (tmp_path / KEY_FILE).read_bytes()})
    settings = Settings(data=tmp_path / "data", coordination="embedded")
    away = msgspec.structs.replace(settings, history="postgresql://nsml@127.0.0.1:1/nsml")
    with pytest.raises(NsmlError, match="the history at"):
        await restore(away, backup.path, None)
    full = tmp_path / "full"
    full.mkdir()
    objects = open_shared(f"file://{full}", inline, service=BucketService(), environment={})
    await objects.mark("another/x")
    taken = msgspec.structs.replace(settings, objects=f"file://{full}")
    with pytest.raises(StartRefused, match="belongs to another"):
        await restore(taken, backup.path, None)
    assert [one.name for one in settings.data.iterdir()] == ["lock"]
    await restore(settings, backup.path, None)


async def test_beside_objects_that_are_there_it_says_what_becomes_of_them(tmp_path: Path) -> None:
    key = tmp_path / "keys" / KEY_FILE
    async with surroundings() as on:
        claimed = await claims.claim(on, tmp_path, SHARED, key)
        backup = await backup_of(on, tmp_path / "b", {})
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    objects = open_shared(f"file://{bucket}", inline, service=BucketService(), environment={})
    for mark in ("", claimed.cluster.objects_mark):
        await objects.mark(mark)
        settings = Settings(
            data=tmp_path / f"data {bool(mark)}",
            coordination="embedded",
            platform_key=key,
            objects=f"file://{bucket}",
        )
        done = await restore(settings, backup.path, None)
        told = "\n".join(done.lines())
        assert told.startswith(f"restored {claimed.cluster.id}: ")
        assert "revoked after the backup are valid again" in told
        assert ("set collect_after_s = 0" in told) is bool(mark)


async def test_what_another_account_could_have_changed_is_not_restored(tmp_path: Path) -> None:
    async with surroundings() as on:
        await claims.claim(on, tmp_path, SHARED, tmp_path / KEY_FILE)
        backup = await backup_of(on, tmp_path / "b", {KEY_FILE: (tmp_path / KEY_FILE).read_bytes()})
    (backup.path / "store").chmod(0o666)
    settings = Settings(data=tmp_path / "data", coordination="embedded")
    with pytest.raises(BackupError, match="may be changed by other accounts"):
        await restore(settings, backup.path, None)
    assert not settings.data.exists()
