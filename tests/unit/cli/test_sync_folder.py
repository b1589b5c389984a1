"""The local side of `nsml dev --sync`: which files count, and what is remembered of what was sent."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.exits import CommandError
from cli.sessions.sync_folder import Changed, LocalFolder
from cli.sessions.sync_record import Origin, record_of, records_of_folder
from nsml.content.errors import TooLarge
from nsml.copying.sync_messages import File, Put, order_message, order_of

MOST = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    (made / "sub").mkdir(parents=True)
    (made / "a").write_bytes(b"one")
    (made / "sub/b").write_bytes(b"two")
    return made


def put_of(folder: LocalFolder, path: bytes) -> Put:
    here = folder.look().files[path]
    return Put(path, here.file, here.size, here.mtime_ns, None)


def test_what_is_sent_is_what_a_session_would_start_with(root: Path) -> None:
    (root / "run").write_bytes(b"#!")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("sub/b")
    (root / "out").symlink_to("/etc/passwd")
    (root / ".git").mkdir()
    (root / ".git/x").touch()
    (root / "sub/.nsml-cp-x").touch()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(root / "sock"))
        look = LocalFolder(root, MOST).look()
    two = hashlib.sha256(b"two").hexdigest()
    assert sorted(look.files) == [b"a", b"link", b"run", b"sub/b"]
    assert look.files[b"link"].file == look.files[b"sub/b"].file == File(two, False)
    assert look.files[b"run"].file.is_executable
    assert sorted(look.left_out) == [b"out", b"sock"]
    assert look.is_unknown(b"out")
    assert not look.is_unknown(b"gone")


def test_a_file_of_the_same_size_and_time_is_read_again(root: Path) -> None:
    folder = LocalFolder(root, MOST)
    before = folder.look().files[b"a"]
    times = (root / "a").stat().st_mtime_ns
    (root / "a").write_bytes(b"eno")
    os.utime(root / "a", ns=(times, times))
    assert folder.look().files[b"a"].file != before.file


def test_a_look_at_what_was_changed_finds_what_one_at_all_does(root: Path) -> None:
    folder = LocalFolder(root, MOST)
    paths = [str(root / "sub/b"), str(root / "sub/b~")]
    assert folder.look_at(paths) is None  # before the first
    folder.look()
    (root / "sub/b").write_bytes(b"three")
    look = folder.look_at(paths)
    assert look is not None
    assert look.files[b"sub/b"].size == len("three")
    assert look == LocalFolder(root, MOST).look()
    (root / "sub/b").chmod(0o755)
    look = folder.look_at(paths)
    assert look is not None
    assert look.files[b"sub/b"].file.is_executable


@pytest.mark.parametrize("change", ["new", "gone", "folder", "rules", "names", "link", "large"])
def test_what_paths_do_not_tell_is_looked_for(root: Path, change: str) -> None:
    (root / ".nsmlignore").write_text("x")
    folder = LocalFolder(root, 10)
    if change == "link":
        (root / "link").symlink_to("a")
    folder.look()
    path = root / {"new": "new", "folder": "sub", "rules": ".nsmlignore"}.get(change, "a")
    match change:
        case "gone":
            path.unlink()
        case "folder":
            path.rename(root / "other")
        case "names":
            (root / "b").hardlink_to(path)
        case "large":
            path.write_text("much too large")
        case _:
            path.write_text("y")
    assert folder.look_at([str(path)]) is None


def test_rules_that_change_leave_files_alone_and_broken_ones_do_not_count(root: Path) -> None:
    folder = LocalFolder(root, MOST)
    assert b"sub/b" in folder.look().files
    (root / ".nsmlignore").write_text("sub/\n*.log")
    assert b"sub/b" not in folder.look().files
    assert folder.leaves_out(b"sub/b")
    assert not folder.leaves_out(b"gone")
    assert folder.is_watched(str(root / "sub"))
    assert not folder.is_watched(str(root / "a.log"))
    (root / ".nsmlignore").write_text("[[:alpha:]\n")
    look = folder.look()
    assert b"sub/b" not in look.files
    assert "not a pattern" in look.left_out[b".nsmlignore"]


def test_only_folders_that_count_are_watched(root: Path, tmp_path: Path) -> None:
    (root / ".venv").mkdir()
    (root / "conda/conda-meta").mkdir(parents=True)
    (root / "data").symlink_to(tmp_path)
    (root / "up").symlink_to("..")
    (root / "same").symlink_to("sub")
    folder = LocalFolder(root, MOST)
    before = folder.look().folders
    assert {path for path, _ in before} == {str(root / "sub"), str(root / "conda")}
    (root / "sub").rename(root / ".venv/sub")
    (root / "sub").mkdir()
    assert folder.look().folders != before  # another one of the same name


def test_times_that_cannot_be_said_are_the_nearest(root: Path) -> None:
    later_than_2262 = 1 << 63
    try:
        os.utime(root / "a", ns=(later_than_2262, later_than_2262))
    except OverflowError:
        pytest.skip("this system has no such times")
    put = put_of(LocalFolder(root, MOST), b"a")
    assert order_of(b"P", json.loads(order_message(put)[5:])).mtime_ns == later_than_2262 - 1


def test_no_part_of_a_file_that_was_changed_counts(root: Path) -> None:
    folder = LocalFolder(root, MOST)
    put = put_of(folder, b"a")
    assert b"".join(folder.content(put)) == b"one"
    (root / "a").write_bytes(b"longer")
    with pytest.raises(Changed):
        list(folder.content(put))
    (root / "a").write_bytes(b"o")
    with pytest.raises(Changed):
        list(folder.content(put_of(folder, b"a")._replace(size=3)))


def test_a_file_that_was_changed_while_it_was_sent_is_not_taken_for_gone(root: Path) -> None:
    folder = LocalFolder(root, MOST)
    put = put_of(folder, b"a")
    pieces = folder.content(put)
    next(pieces)
    (root / "a").write_bytes(b"two")
    with pytest.raises(Changed):
        list(pieces)
    assert folder.look_at([]) is None
    assert b"a" in folder.look().files


def test_a_folder_that_is_gone_or_too_large_is_no_empty_one(root: Path, tmp_path: Path) -> None:
    folder = LocalFolder(root, 5)
    with pytest.raises(TooLarge):
        folder.look()
    folder = LocalFolder(root, MOST)
    root.rename(tmp_path / "moved")
    with pytest.raises(CommandError, match="gone"):
        folder.look()
    root.mkdir()
    with pytest.raises(CommandError, match="gone"):
        folder.look()


def test_a_record_survives_a_kill_and_is_of_one_process_and_one_attempt(tmp_path: Path) -> None:
    environ = {"NSML_CONFIG_DIR": str(tmp_path)}
    app = SimpleNamespace(environ=environ, context=SimpleNamespace(name="lab"))
    origin = Origin(folder="/code", context="lab", session_id="s1", flags=["-g", "1"], attempt=1)
    one, odd = File("1" * 64, True), b"d/\xff\n"
    first = record_of(app, origin)
    assert first.try_lock()
    first.know(odd, one)
    first.know(b"gone", one)
    first.know(b"gone", None)
    first.know_folder(b"d", is_made=True)
    first.save()
    second = record_of(app, origin._replace(flags=[]))
    assert not second.try_lock()
    assert second.files == {odd: one}
    second.know(b"b", one)
    second.save()
    first.close()
    with (tmp_path / "sync/s1.jsonl").open("a") as file:
        file.write('{"path": "half')  # as a kill leaves it
    [found] = records_of_folder(app, "/code")
    assert (found.files, found.folders, found.origin) == ({odd: one}, {b"d"}, origin)
    assert not list(records_of_folder(app, "/other"))
    later = record_of(app, origin._replace(attempt=2, flags=[]))
    assert later.try_lock()
    assert (later.files, later.origin.flags) == ({}, ["-g", "1"])
    later.close()
