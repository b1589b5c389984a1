"""Output folders: what is moved out of a working folder and sent, and what never is."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.safe_paths import open_folder
from nodeagent.storage import checkpoints, file_lists, outputs
from nodeagent.storage.checkpoints import SavedCheckpoint
from nodeagent.storage.outputs import has_new_files, keep_files, take_outputs
from nodeagent.storage.sealed_checkpoints import opened
from nsml.spec.output_datasets import OutputDataset


@pytest.fixture
def folder(tmp_path: Path) -> ReplicaFolder:
    made = ReplicaFolder(tmp_path / "replica")
    made.create()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    return made


def write(folder: ReplicaFolder, **files: str) -> None:
    for path, text in files.items():
        place = folder.app / path.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def files_of(folder: ReplicaFolder, one: SavedCheckpoint) -> list[str]:
    with open_folder(folder.checkpoints / one.folder, []) as here:
        return sorted(file_lists.regular_files(here))


def test_a_folder_is_moved_and_listed_again_after_a_kill(
    folder: ReplicaFolder, tmp_path: Path
) -> None:
    write(folder, out__pred__a="1", out__pred__deep__b="2", out__other="3")
    (folder.app / "out/pred/key").symlink_to(tmp_path / "secret/key")
    (folder.app / "out/pred/folder").symlink_to(tmp_path / "secret")
    os.mkfifo(folder.app / "out/pred/pipe")
    wanted = [OutputDataset("made", "out/pred")]
    first = take_outputs(folder, wanted, at=5.0)
    assert take_outputs(folder, wanted, at=5.0) == first
    [one] = first
    assert (one.name, one.folder, one.lost) == ("made", "00-%artifact/model", "")
    assert files_of(folder, one) == ["a", "deep/b"]
    assert (folder.checkpoints / one.folder / "a").read_text() == "1"
    assert [path.name for path in (folder.app / "out").iterdir()] == ["other"]


def test_what_is_no_folder_of_the_program_is_lost_and_says_why(
    folder: ReplicaFolder, tmp_path: Path
) -> None:
    write(folder, file="1", deep__file="2")
    (folder.app / "empty").mkdir()
    (folder.app / "link").symlink_to(tmp_path / "secret")
    (folder.app / "above").symlink_to(tmp_path)
    names = ["missing", "file", "file/x", "empty", "link", "above/secret"]
    found = take_outputs(folder, [OutputDataset("d", name) for name in names], at=5.0)
    assert all(one.lost for one in found)
    assert found[0].lost == "there is no folder missing in its working folder"
    assert found[3].lost == "there are no files in its folder empty"
    assert (tmp_path / "secret/key").read_text() == "secret"


def test_a_folder_with_more_files_than_an_agent_can_hold_is_lost(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lists, "MOST_FILES", 2)
    write(folder, most__a="1", most__b="1", more__a="1", more__deep__b="1", more__deep__c="1")
    most, more = take_outputs(
        folder, [OutputDataset("d", "most"), OutputDataset("e", "more")], at=5
    )
    assert (most.lost, more.lost) == ("", "its folder more: more than 2 files")


def started(folder: ReplicaFolder) -> None:
    """From now on what is written is the program's: the clock of file times has ticked."""
    folder.spec.write_text("{}")
    probe = folder.path / "probe"
    while not probe.exists() or probe.stat().st_ctime_ns <= folder.spec.stat().st_ctime_ns:
        probe.write_text("")


def test_what_was_made_or_changed_is_kept_and_nothing_else(
    folder: ReplicaFolder, tmp_path: Path
) -> None:
    write(folder, code="1", changed="1", deep__same="1")
    unknown = keep_files(folder, at=5.0)
    assert unknown is not None
    assert unknown.lost, "nobody knows when it began"
    assert has_new_files(folder), "which is to be reported"
    started(folder)
    assert keep_files(folder, at=5.0) is None
    (folder.app / "data").symlink_to(tmp_path / "secret")
    assert not has_new_files(folder)
    write(folder, changed="2", deep__new="3", __pycache__x="4", deep__pycache="5")
    folder.shim.write_text("{}")  # with the pid of the program, which runs already
    for hidden in (".token", ".ssh/id", "deep/.cache/x"):
        (folder.app / hidden).parent.mkdir(exist_ok=True)
        (folder.app / hidden).write_text("secret")
    (folder.app / "key").symlink_to(tmp_path / "secret/key")
    (folder.app / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(folder.app / "pipe")
    assert has_new_files(folder)
    kept = keep_files(folder, at=5.0)
    assert kept is not None
    assert (kept.name, kept.folder) == ("/app", "09-%artifact/model")
    assert files_of(folder, kept) == ["changed", "deep/new", "deep/pycache"]
    assert (kept.lost, kept.left_out) == ("", "")
    assert keep_files(folder, at=5.0) == kept, "after a kill"
    assert (folder.app / "code").read_text() == "1"
    shutil.rmtree(folder.app)
    assert keep_files(folder, at=5.0) == kept, "and where its working folder is removed already"


def test_what_is_over_the_limits_is_named(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_KEPT_FILES", 2)
    started(folder)
    write(folder, a="12345", b="123456", c="1", d="1", e="1" * 200, f="1")
    for _ in range(2):
        kept = keep_files(folder, at=5.0, most_bytes=10)
        assert kept is not None
        assert files_of(folder, kept) == ["a", "c"]
        assert kept.left_out.endswith(" and 2 files: b, d, e and 1 more")


def test_what_nobody_asked_for_is_kept_apart_and_may_be_given_up(folder: ReplicaFolder) -> None:
    started(folder)
    write(folder, a="1")
    kept = keep_files(folder, at=5.0, is_asked=False)
    assert kept is not None
    assert (kept.name, kept.folder, kept.is_optional) == ("/app", "08-%artifact/model", True)
    assert files_of(folder, kept) == ["a"]


def test_what_nobody_asked_for_is_no_more_than_the_disk_has_free(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may be that of the platform, which takes nothing until there is room."""
    started(folder)
    write(folder, a="1" * 9, b="1" * 3)
    monkeypatch.setattr(outputs, "_free_bytes", lambda _: 5)
    kept = keep_files(folder, at=5.0, is_asked=False)
    assert kept is not None
    assert files_of(folder, kept) == ["b"]
    assert kept.left_out == "left out: 9 Bytes over the limits of 5 Bytes and 10,000 files: a"


STRANGER = 65534


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[ReplicaFolder]:
    """The folder of a replica of an agent without root, whose programs have its own uid; the test is that agent."""
    is_root = os.geteuid() == 0
    if is_root:
        for above in (tmp_path, *tmp_path.parents):
            mode = above.stat().st_mode
            if above.stat().st_uid == 0 and mode & 0o011 != 0o011:
                above.chmod(stat.S_IMODE(mode) | 0o011)
        os.chown(tmp_path, STRANGER, -1)
        os.seteuid(STRANGER)
    try:
        made = ReplicaFolder(tmp_path / "replica")
        made.create()
        started(made)
        yield made
    finally:
        if is_root:
            os.seteuid(0)


def sent_of(folder: ReplicaFolder, one: SavedCheckpoint) -> list[str]:
    """What of it is sent: each file was read."""
    with opened(folder, one.folder) as found:
        packed = checkpoints._packed(found, one, folder.run.stat().st_uid)
        return [entry.path for entry in packed.manifest.entries]


def deepen(folder: Path, names: Iterable[str]) -> None:
    """A file below folders of these names, which are together longer than the system takes a path."""
    here = os.open(folder, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_an_agent_without_root_keeps_what_a_program_took_its_rights_from(
    unprivileged: ReplicaFolder,
) -> None:
    folder = unprivileged
    write(folder, good="1", file="1", readonly__a="1", closed__a="1", unsearchable__deep__a="1")
    for name, mode in {
        "file": 0,
        "readonly": 0o555,
        "closed": 0,
        "unsearchable/deep": 0o600,
        "unsearchable": 0o400,
        "": 0o555,
    }.items():
        (folder.app / name).chmod(mode)
    folder.run.chmod(0o400)
    for _ in range(2):  # the second time after a kill
        kept = keep_files(folder, at=5.0)
        assert kept is not None
        assert (kept.lost, kept.left_out) == ("", "")
    assert sent_of(folder, kept) == [
        "closed/a",
        "file",
        "good",
        "readonly/a",
        "unsearchable/deep/a",
    ]


def test_an_agent_without_root_sends_output_folders_whatever_their_rights(
    unprivileged: ReplicaFolder,
) -> None:
    folder = unprivileged
    write(folder, above__out__file="1", above__out__closed__a="1")
    for name, mode in {"out/file": 0, "out/closed": 0, "out": 0o555, "": 0o400}.items():
        (folder.app / "above" / name).chmod(mode)
    [one] = take_outputs(folder, [OutputDataset("made", "above/out")], at=5.0)
    assert one.lost == ""
    assert sent_of(folder, one) == ["closed/a", "file"]


def test_what_cannot_be_kept_is_named_and_all_else_is_kept(
    unprivileged: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unprivileged
    write(folder, good="1", shared="1", vanishing="1")
    (folder.app / "shared").chmod(0)
    os.link(folder.app / "shared", folder.path / "elsewhere")  # not the agent's to change there
    (folder.app / os.fsdecode(b"\xff\n")).write_text("1")
    (folder.app / "circle").symlink_to("circle")
    (folder.app / "dangling").symlink_to("nothing")
    (folder.app / "unreachable").symlink_to("/root/x/y")
    os.mkfifo(folder.app / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder.app)
        listening.bind("socket")
    deepen(folder.app, ["d" * 200] * 30)
    for top in "efgh":
        deepen(folder.app, [top, *["e"] * 69])
    move = outputs._move_file

    def vanishing(app: int, parts: Sequence[str], target: int) -> None:
        if parts == ["vanishing"]:
            os.unlink("vanishing", dir_fd=app)
        move(app, parts, target)

    monkeypatch.setattr(outputs, "_move_file", vanishing)
    assert has_new_files(folder)
    kept = keep_files(folder, at=5.0)
    assert kept is not None
    assert kept.lost == ""
    assert sent_of(folder, kept) == ["\\xff\\x0a", "good"]
    deep = ", ".join(f"{top}{'/e' * 23}/" for top in "efg")
    assert kept.left_out == (
        "left out: 7 files or folders that cannot be kept: shared (Permission denied);"
        f" {'d' * 48} (it is longer than 4096 bytes); {deep} and 1 more (deeper than 64 folders);"
        " vanishing (No such file or directory)"
    )


def test_of_more_reasons_than_are_named_the_others_are_counted() -> None:
    refused = [(f"{number}", f"reason {number % 7}") for number in range(21)]
    named = outputs._left_out([], refused, 1)
    assert named.startswith(
        "left out: 21 files or folders that cannot be kept: 0, 7, 14 (reason 0); 1"
    )
    assert named.endswith("; 4, 11, 18 (reason 4); 6 more")


def test_of_more_files_than_are_looked_at_the_first_are_kept(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_LOOKED_AT", 2)
    started(folder)
    write(folder, a="1", b="1", c="1", d__e="1")
    kept = keep_files(folder, at=5.0)
    assert kept is not None
    assert files_of(folder, kept) == ["a", "b"]
    assert kept.left_out.endswith("cannot be kept: c (behind the first 2 files)")
