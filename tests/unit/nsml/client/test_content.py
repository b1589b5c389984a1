import os
import shutil
from pathlib import Path

import pytest

from nsml.client import errors
from nsml.client.content import download
from nsml.client.uploads import upload
from nsml.common.clock import inline
from nsml.content.errors import (
    BlobCorrupt,
    ChangedWhilePacking,
    ExtractRefused,
    Unreadable,
)
from nsml.content.packing import pack


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "code"
    (root / "deep").mkdir(parents=True)
    (root / "main.py").write_text("print('hello')\n")
    (root / "empty").touch()
    (root / "deep" / "twin.py").write_text("print('hello')\n")
    (root / "large.bin").write_bytes(os.urandom(5 << 20))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


async def test_there_and_back(client, server, folder, tmp_path):
    seen = []
    sent = await upload(client, pack(folder), progress=seen.append, run=inline)
    assert seen[-1].bytes == seen[-1].bytes_total == sent.bytes_sent
    assert server.state.largest_message <= 2 << 20
    target = tmp_path / "back"
    await download(client, sent.digest, target)
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert files == {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    for name in files:
        assert (target / name).read_bytes() == (folder / name).read_bytes()
        assert (target / name).stat().st_mode & 0o100 == (folder / name).stat().st_mode & 0o100


async def test_what_has_no_room_is_not_begun(client, server, folder, tmp_path, monkeypatch):
    """A few kilobytes of somebody else's may be laid out as more than the disk of whoever fetches them has."""
    sent = await upload(client, pack(folder), run=inline)
    few = shutil.disk_usage(tmp_path)._replace(free=5 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: few)
    with pytest.raises(ExtractRefused, match=r"no room for 5\.2 MB"):
        await download(client, sent.digest, tmp_path / "back" / "model")
    assert not (tmp_path / "back").exists()


async def test_only_what_is_missing_travels(client, server, folder):
    first = await upload(client, pack(folder), run=inline)
    assert first.files_sent == 4  # the empty one has nothing to send
    again = await upload(client, pack(folder), run=inline)
    assert (again.digest, again.files_sent, again.bytes_sent) == (first.digest, 0, 0)
    assert server.state.calls.count("PutBlobs") == 2
    (folder / "main.py").write_text("print('changed')\n")
    changed = await upload(client, pack(folder), run=inline)
    assert changed.digest != first.digest
    assert (changed.files_sent, changed.bytes_sent) == (1, 17)


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"changed")


@pytest.mark.parametrize("name", ["large.bin", "run.sh"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda path: path.write_bytes(b""), ChangedWhilePacking),
        (lambda path: path.write_bytes(path.read_bytes()[::-1]), ChangedWhilePacking),
        (lambda path: path.unlink(), ChangedWhilePacking),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), ChangedWhilePacking),
        (lambda path: (path.unlink(), path.mkdir()), Unreadable),
    ],
    ids=["emptied", "reversed", "removed", "a link", "a folder"],
)
async def test_a_file_that_changes_while_it_is_sent_is_named(client, folder, name, change, error):
    packed = pack(folder)
    change(folder / name)
    with pytest.raises(error) as caught:
        await upload(client, packed, run=inline)
    assert caught.value.path == name


async def test_a_change_far_into_a_file_is_seen_after_messages_were_sent(client, server, folder):
    packed = pack(folder)
    _overwritten(folder / "large.bin")
    sent = []
    with pytest.raises(ChangedWhilePacking, match=r"large\.bin changed while it was sent"):
        await upload(client, packed, progress=sent.append, run=inline)
    assert sent


async def test_changed_bytes_are_refused_and_nothing_is_left(client, server, folder, tmp_path):
    sent = await upload(client, pack(folder), run=inline)
    victim = next(d for d, data in server.state.blobs.items() if data == b"#!/bin/sh\n")
    server.state.blobs[victim] = b"#!/bin/ed\n"
    with pytest.raises(BlobCorrupt):
        await download(client, sent.digest, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["token", "code"] or {
        path.name for path in tmp_path.iterdir()
    } == {"token", "code"}


async def test_a_changed_manifest_is_refused(client, server, folder, tmp_path):
    sent = await upload(client, pack(folder), run=inline)
    other = b'{"entries":[],"version":1}'
    server.state.blobs[sent.digest] = other
    with pytest.raises(BlobCorrupt):
        await download(client, sent.digest, tmp_path / "back")


async def test_what_is_not_there(client, tmp_path):
    with pytest.raises(errors.NotFound):
        await download(client, "0" * 64, tmp_path / "back")
