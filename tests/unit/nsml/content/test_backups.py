"""A folder of backups: whole or not there, and damage is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nsml.content.backups import Backup, BackupError, FileDigest, Manifest, backups_in, drafting
from nsml.content.digests import digest_of

BLOBS = (b"one", b"two" * 5000, b"")
MANIFEST = Manifest(
    cluster_id="c1", version="0.2.0", data_version=2, revision=7, taken_at=1.0, blob_count=3
)


def made(folder: Path, name: str = "20260101T000000Z") -> Backup:
    with drafting(folder, name) as draft:
        for part, data in (("store", b"records"), ("history", b"rows")):
            with draft.writing(part) as writing:
                writing.write(data)
        with draft.writing("objects") as writing:
            writing.write("".join(f"{digest_of(blob)}\n" for blob in BLOBS).encode())
        for blob in BLOBS:
            draft.add_blob(digest_of(blob), blob)
        draft.add_key("ca.key", b"secret")
        return draft.finish(MANIFEST)


def test_what_was_written_is_read_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    first, second = made(folder), made(folder, "20260102T000000Z")
    assert backups_in(folder) == [first.path, second.path]
    for one in (first, Backup(first.path), second):
        one.check()
        assert (one.manifest.cluster_id, one.manifest.revision) == ("c1", 7)
        assert b"".join(one.pieces("store")) == b"records"
        assert [one.blob(digest) for digest in one.digests()] == list(BLOBS)
        assert one.key("ca.key") == b"secret"
    assert folder.stat().st_mode & 0o777 == 0o700
    for root, _, files in os.walk(folder):
        assert all(Path(root, file).stat().st_mode & 0o077 == 0 for file in files if "key" in file)


def test_it_gets_its_name_when_all_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.fstat(descriptor).st_ino))
    path = made(tmp_path / "b").path
    there = [path, *path.rglob("*"), path.parent, *(path.parent / "blobs").rglob("*")]
    assert [one for one in there if one.stat().st_ino not in flushed] == []


@pytest.mark.parametrize("name", ["store", "history", "objects", "keys/ca.key", "manifest.json"])
@pytest.mark.parametrize("how", ["other", "short", "missing"])
def test_damage_is_named(tmp_path: Path, name: str, how: str) -> None:
    path = made(tmp_path / "b").path / name
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        at = content.index(b"7") if name == "manifest.json" else 0
        other = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes(content[:-1] if how == "short" and name != "manifest.json" else other)
    with pytest.raises(BackupError, match=name):
        Backup(tmp_path / "b" / "20260101T000000Z").check()


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_damaged_blob_is_named(tmp_path: Path, how: str) -> None:
    found = made(tmp_path / "b")
    digest = digest_of(BLOBS[1])
    path = found.blobs / digest[:2] / digest[2:]
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupError, match=f"{digest[2:]} is {how}"):
        found.check()


def test_a_manifest_names_no_files_elsewhere(tmp_path: Path) -> None:
    with drafting(tmp_path / "b", "1") as draft:
        draft._keys["../x"] = FileDigest(size_bytes=0, digest=digest_of(b""))
        with pytest.raises(BackupError, match="names files"):
            draft.finish(MANIFEST)


def test_one_that_is_killed_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    kept = made(folder)
    program = f"""
import os, signal
from pathlib import Path
from nsml.content.backups import drafting
with drafting(Path({str(folder)!r}), "20260103T000000Z") as draft:
    with draft.writing("store") as writing:
        writing.write(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert backups_in(folder) == [kept.path]
    with drafting(folder, "20260104T000000Z"):
        assert sorted(one.name for one in folder.glob(".*")) == [".20260104T000000Z.partial"]
    assert list(folder.glob(".*")) == []


def test_two_do_not_write_at_once_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    with (
        drafting(tmp_path / "b", "1"),
        pytest.raises(BackupError, match="another backup"),
        drafting(tmp_path / "b", "2"),
    ):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    with pytest.raises(BackupError, match="other files"), drafting(tmp_path / "mine", "1"):
        pass
    with pytest.raises(BackupError, match="no folder of backups"):
        backups_in(tmp_path / "mine")


PLACES = ("manifest.json", "store", "objects", "keys/ca.key", "a blob")


def place_in(found: Backup, name: str) -> Path:
    digest = digest_of(BLOBS[1])
    return found.blobs / digest[:2] / digest[2:] if name == "a blob" else found.path / name


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("how", ["pipe", "link", "endless"])
def test_only_regular_files_are_read_and_none_without_end(
    tmp_path: Path, name: str, how: str
) -> None:
    """A pipe is not waited for, a link not followed, and of a device or a file of holes no more read than fits."""
    found = made(tmp_path / "b")
    place = place_in(found, name)
    content = place.read_bytes()
    place.unlink()
    if how == "pipe":
        os.mkfifo(place)
    elif how == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(BackupError, match=f"{place.name} is no regular file"):
        Backup(found.path).check()


@pytest.mark.parametrize("name", ["manifest.json", "store", "a blob"])
def test_a_file_of_holes_is_not_read_to_its_end(tmp_path: Path, name: str) -> None:
    found = made(tmp_path / "b")
    with place_in(found, name).open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(BackupError, match="is damaged"):
        Backup(found.path).check()


def test_a_manifest_of_another_shape_is_damaged(tmp_path: Path) -> None:
    path = made(tmp_path / "b").path
    for text in ("[]", "3", '{"format": 1, "backup": []}', "[" * 100_000):
        (path / "manifest.json").write_text(text)
        with pytest.raises(BackupError, match="is damaged"):
            Backup(path)


@pytest.mark.parametrize("name", [".", "..", "manifest.json", "store", "keys", "keys/ca.key"])
def test_what_others_can_change_is_not_restored(tmp_path: Path, name: str) -> None:
    found = made(tmp_path / "b")
    found.refuse_foreign()
    place = found.path / name
    mode = place.stat().st_mode
    place.chmod(mode | 0o020)
    with pytest.raises(BackupError, match="may be changed by other accounts"):
        found.refuse_foreign()
    place.chmod(mode)
    if os.geteuid() == 0:
        os.chown(place, 65534, 65534)
        with pytest.raises(BackupError, match="belongs to another account"):
            found.refuse_foreign()


def test_keys_that_others_can_read_are_not_restored(tmp_path: Path) -> None:
    found = made(tmp_path / "b")
    (found.path / "keys" / "ca.key").chmod(0o644)
    with pytest.raises(BackupError, match="may be read by others"):
        found.refuse_foreign()


def test_no_keys_are_written_where_others_could_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disks without modes, and shares of other machines, take no 0600."""
    monkeypatch.setattr("nsml.content.backups.is_exposed", lambda _: True)
    with pytest.raises(BackupError, match="--without-keys"):
        made(tmp_path / "b")
    assert list((tmp_path / "b").glob("*/keys/*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_no_backup_is_written_into_another_accounts_folder(tmp_path: Path) -> None:
    made(tmp_path / "b")
    os.chown(tmp_path / "b", 65534, 65534)
    with pytest.raises(BackupError, match="belongs to another account"):
        made(tmp_path / "b", "20260102T000000Z")
