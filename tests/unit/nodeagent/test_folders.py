"""Replica folders: names, layout, removal."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.folders import (
    ReplicaFolder,
    ReplicaFolders,
    ReplicaId,
    flush_filesystem,
    write_atomically,
)
from nodeagent.safe_paths import remove_tree
from tests.support.memory import peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ids = st.builds(
    ReplicaId,
    session_id=st.from_regex(r"s[a-z2-7]{16}", fullmatch=True),
    attempt=st.integers(1, 10**9 - 1),
    rank=st.integers(0, 10**9 - 1),
)


@given(ids)
def test_an_id_is_read_back_from_its_text(replica_id: ReplicaId) -> None:
    assert ReplicaId.parse(str(replica_id)) == replica_id


@given(st.text(max_size=40))
def test_other_text_is_no_id(text: str) -> None:
    found = ReplicaId.parse(text)
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    "session_id", ["", "x", "s" + "a" * 15, "../../../../etc/xx", "s" + "A" * 16]
)
def test_an_id_that_is_no_name_cannot_be_made(session_id: str) -> None:
    with pytest.raises(ValueError, match="replica id"):
        ReplicaId(session_id=session_id, attempt=1, rank=0)


def test_folders_are_private_and_listed_in_order(tmp_path: Path) -> None:
    folders = ReplicaFolders(tmp_path / "replicas")
    assert folders.ids() == []
    folders.create()
    replicas = [ReplicaId(session_id="s" + "a" * 16, attempt=n, rank=0) for n in (10, 2)]
    for replica_id in replicas:
        folders.of(replica_id).create()
        folders.of(replica_id).create()
    (folders.path / "something else").mkdir()
    assert folders.ids() == sorted(replicas)
    assert folders.path.stat().st_mode & 0o077 == 0
    assert folders.of(replicas[0]).path.stat().st_mode & 0o077 == 0


def test_removal_takes_all_and_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = ReplicaFolder(tmp_path / "replica")
    folder.create()
    (folder.app / "link").symlink_to(outside)
    locked = folder.app / "locked"
    (locked / "deep").mkdir(parents=True)
    (locked / "deep" / "file").touch()
    (locked / "deep").chmod(0)
    locked.chmod(0o500)
    folder.remove()
    folder.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_what_only_the_program_needed_goes_first(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path / "replica")
    folder.create()
    for part in (folder.app, folder.tmp, folder.checkpoints, folder.spool):
        (part / "file").touch()
    folder.free()
    folder.free()
    assert not folder.app.exists()
    assert not folder.tmp.exists()
    assert (folder.checkpoints / "file").exists()
    assert (folder.spool / "file").exists()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def nest(folder: Path, depth: int) -> None:
    """Folders in folders, further than a path or a recursion goes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_removal_goes_as_deep_as_a_program_went(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path / "replica")
    folder.create()
    nest(folder.tmp, 2000)
    nest(folder.app, 3)
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_removal_needs_no_memory_for_the_number_of_files(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path / "replica")
    folder.create()
    for number in range(20_000):
        os.mknod(folder.app / f"file-{number:020}")
    assert peak_bytes(folder.remove) < 1 << 20
    assert list(tmp_path.iterdir()) == []


def test_removal_is_taken_up_after_a_crash(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path / "replica")
    folder.create()
    folder.path.rename(tmp_path / ".removed-replica")
    folder.create()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_new_agent_ends_removals_that_were_begun(tmp_path: Path) -> None:
    folders = ReplicaFolders(tmp_path / "replicas")
    kept = folders.of(ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0))
    kept.path.parent.mkdir()
    kept.create()
    begun = folders.path / ".removed-of-a-dead-agent"
    begun.mkdir()
    (begun / "data").mkdir(mode=0o500)
    folders.create()
    assert list(folders.path.iterdir()) == [kept.path]


def test_what_cannot_be_removed_keeps_no_agent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: Path) -> None:
        if path.name == ".removed-2":
            raise OSError("a defect of the disk")
        remove_tree(path)

    monkeypatch.setattr("nodeagent.folders.remove_tree", remove)
    for name in (".removed-1", ".removed-2", ".removed-3"):
        (tmp_path / name).mkdir()
    ReplicaFolders(tmp_path).create()
    assert [path.name for path in tmp_path.iterdir()] == [".removed-2"]


@pytest.mark.parametrize("is_durable", [False, True])
def test_atomic_writes_replace(tmp_path: Path, is_durable: bool) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old" * 100_000)
    write_atomically(path, b"new", is_durable=is_durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_threads_that_replace_a_file_at_once_hinder_none_of_them(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(len(contents)) as pool:
        for _ in range(20):
            list(pool.map(lambda content: write_atomically(path, content), contents))
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_durable_write_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, flushes: Callable[[Path], list[tuple[int, bool]]]
) -> None:
    path = tmp_path / "file"
    flushed = flushes(path)
    write_atomically(path, b"content", is_durable=True)
    assert flushed == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_a_filesystem_is_flushed_or_the_caller_hears_of_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    flush_filesystem(tmp_path)
    with pytest.raises(FileNotFoundError):
        flush_filesystem(tmp_path / "missing")
