from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from nsml.content.digests import digest_of
from nsml.content.listing import FolderFile, list_folder
from nsml.content.manifest import ChunkRef
from nsml.content.stat_cache import FILE_NAME, RACY_NS, StatCache

LATER_NS = 60 * 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    (root / "a.bin").write_bytes(b"12345")
    (root / "deep" / "b.bin").write_bytes(b"67890")
    (root / "empty").touch()
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "nsml" / FILE_NAME


def files_of(folder: Path) -> tuple[FolderFile, ...]:
    return list_folder(folder).files


def refs_of(folder: Path, file: FolderFile) -> tuple[ChunkRef, ...]:
    data = folder.joinpath(*file.parts).read_bytes()
    return (ChunkRef(digest_of(data), len(data)),) if data else ()


def at(place: Path, further_ns: int = LATER_NS) -> StatCache:
    """The cache for a scan that begins so long from now."""
    return StatCache(place, now_ns=time.time_ns() + further_ns)


def keep_all(cache: StatCache, folder: Path) -> list[tuple[ChunkRef, ...] | None]:
    files = files_of(folder)
    known = [refs_of(folder, file) for file in files]
    cache.keep(folder, list(zip(files, known, strict=True)))
    return list(known)


def test_what_was_read_is_known_until_it_changes(folder: Path, place: Path) -> None:
    assert at(place).look_up(folder, files_of(folder)) == [None] * 3
    known = keep_all(at(place), folder)
    assert at(place).look_up(folder, files_of(folder)) == known
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    at(place).forget(folder, files_of(folder)[:1])
    assert at(place).look_up(folder, files_of(folder)) == [None, *known[1:]]


def _edit(path: Path) -> None:
    path.write_bytes(b"54321")


def _edit_and_restore_times(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"54321")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace_and_restore_times(path: Path) -> None:
    before = path.stat()
    path.with_name("new").write_bytes(b"54321")
    path.with_name("new").replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _swap(path: Path) -> None:
    other = path.parent / "deep" / "b.bin"
    path.rename(path.with_name("other"))
    other.rename(path)
    path.with_name("other").rename(other)


@pytest.mark.parametrize(
    "change", [_edit, _edit_and_restore_times, _replace_and_restore_times, _swap]
)
def test_a_changed_file_is_read_again(folder: Path, place: Path, change) -> None:
    keep_all(at(place), folder)
    change(folder / "a.bin")
    file, *_ = files_of(folder)
    (known,) = at(place).look_up(folder, [file])
    assert known in {None, refs_of(folder, file)}
    if change is not _swap:
        assert known is None


def test_another_folder_with_the_same_names_is_another(folder: Path, place: Path) -> None:
    keep_all(at(place), folder)
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.mkdir()
    assert at(place).look_up(moved, files_of(moved)) == [None] * 3


def test_a_freshly_touched_file_is_never_trusted(folder: Path, place: Path) -> None:
    """An edit in the same tick of the file system's clock would leave the same times."""
    file, *_ = files_of(folder)
    known = refs_of(folder, file)
    touched = max(file.version[:2])
    for now_ns in (touched - 1, touched, touched + RACY_NS):
        StatCache(place, now_ns=now_ns).keep(folder, [(file, known)])
        assert at(place).look_up(folder, [file]) == [None]
    settled = StatCache(place, now_ns=touched + RACY_NS + 1)
    settled.keep(folder, [(file, known)])
    assert settled.look_up(folder, [file]) == [known]
    # Of one that seems to be of the future, or new because the clock went back, nothing is known.
    for now_ns in (touched - 1, touched, touched + RACY_NS):
        assert StatCache(place, now_ns=now_ns).look_up(folder, [file]) == [None]


def test_nothing_is_believed_that_was_noted_later_than_now(folder: Path, place: Path) -> None:
    known = keep_all(at(place, 3 * LATER_NS), folder)
    assert at(place, 2 * LATER_NS).look_up(folder, files_of(folder)) == [None] * 3
    assert at(place, 4 * LATER_NS).look_up(folder, files_of(folder)) == known


def test_no_flipped_bit_makes_another_file_of_one(folder: Path, place: Path) -> None:
    known = keep_all(at(place), folder)
    files = files_of(folder)
    with sqlite3.connect(place) as database:
        rows = database.execute("SELECT path, row FROM files").fetchall()
    for key, row in rows:
        for place_in_row in range(len(row) + 1):
            broken = bytearray(row)
            if place_in_row < len(row):
                broken[place_in_row] ^= 1 << (place_in_row % 8)
            else:
                del broken[-1:]
            with sqlite3.connect(place) as database:
                database.execute("UPDATE files SET row = ? WHERE path = ?", (bytes(broken), key))
            found = at(place).look_up(folder, files)
            assert [one for one, true in zip(found, known, strict=True) if one != true] == [None]
        with sqlite3.connect(place) as database:
            database.execute("UPDATE files SET row = ? WHERE path = ?", (row, key))
    assert at(place).look_up(folder, files) == known


def _garbage(place: Path) -> None:
    place.write_bytes(os.urandom(5000))
    place.chmod(0o600)


def _cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:5000])


def _other_tables(place: Path) -> None:
    with sqlite3.connect(place) as database:
        database.execute("DROP TABLE files")
        database.execute("CREATE TABLE files (x)")


def _a_folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


def _a_link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def _of_everybody(place: Path) -> None:
    place.chmod(0o666)


def _no_folder(place: Path) -> None:
    place.unlink()
    place.parent.rmdir()
    place.parent.touch()


@pytest.mark.parametrize(
    "damage", [_garbage, _cut, _other_tables, _a_folder, _a_link, _of_everybody, _no_folder]
)
def test_a_file_that_cannot_be_used_is_done_without(folder: Path, place: Path, damage) -> None:
    keep_all(at(place), folder)
    damage(place)
    files = files_of(folder)
    assert at(place).look_up(folder, files) == [None] * 3
    known = keep_all(at(place), folder)
    assert at(place).look_up(folder, files) in ([None] * 3, known)
    at(place).forget(folder, files)
    if damage in {_garbage, _cut}:
        assert at(place).look_up(folder, files) == [None] * 3
        keep_all(at(place), folder)
        assert at(place).look_up(folder, files) == known, "a new one is begun"


def test_a_writer_that_hangs_is_not_waited_for(
    folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsml.content.stat_cache._WAIT_S", 0.01)
    known = keep_all(at(place), folder)
    with sqlite3.connect(place, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert at(place).look_up(folder, files_of(folder)) == [None] * 3
        keep_all(at(place), folder)
        database.execute("ROLLBACK")
    assert at(place).look_up(folder, files_of(folder)) == known


def test_several_at_once_lose_nothing_of_each_other(tmp_path: Path, place: Path) -> None:
    folders = [tmp_path / f"data{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        for name in range(10):
            (folder / f"{name}").write_bytes(f"{number} {name}".encode())

    def work(folder: Path) -> None:
        for file in files_of(folder):
            at(place).keep(folder, [(file, refs_of(folder, file))])

    threads = [threading.Thread(target=work, args=[folder]) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for folder in folders:
        files = files_of(folder)
        assert at(place).look_up(folder, files) == [refs_of(folder, file) for file in files]


def test_one_that_has_grown_too_large_is_begun_anew(
    folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_all(at(place), folder)
    monkeypatch.setattr("nsml.content.stat_cache.MOST_BYTES", 1)
    assert at(place).look_up(folder, files_of(folder)) == [None] * 3
