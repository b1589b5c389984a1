"""A checkpoint that has its name is on the disk, whole."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from nsml import _copies, _session
from nsml._checkpoints import Checkpoints
from nsml._frames import parse
from nsml._session import Session


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkpoints"
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((path.relative_to(root).as_posix(), (root / "1-best").exists()))
        fsync(fd)

    monkeypatch.setattr("os.fsync", watched)
    draft = Checkpoints(str(root)).begin()
    model = Path(draft.model)
    (model / "layers").mkdir()
    (model / "weights").write_text("1")
    (model / "layers" / "first").write_text("2")
    draft.commit("best")
    before = {path for path, has_name in synced if not has_name}
    inside = {"model", "model/weights", "model/layers", "model/layers/first"}
    assert before == {".tmp-1", *(f".tmp-1/{path}" for path in inside)}
    assert [path for path, has_name in synced if has_name] == ["."]


def keep_open(folder: Path) -> Callable[[], None]:
    held: BinaryIO = (folder / "weights").open("w+b", buffering=0)
    held.write(b"saved")

    def change() -> None:
        held.seek(0)
        held.write(b"later, and more")
        held.close()

    return change


def keep_mapped(folder: Path) -> Callable[[], None]:
    (folder / "weights").write_bytes(b"saved")
    with (folder / "weights").open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)

    def change() -> None:
        mapped[0:5] = b"later"
        mapped.close()

    return change


def keep_linked(folder: Path) -> Callable[[], None]:
    own = folder.parents[2] / "own"
    own.write_bytes(b"saved")
    (folder / "weights").hardlink_to(own)
    return lambda: own.write_bytes(b"later") and None


@pytest.mark.parametrize("keep", [keep_open, keep_mapped, keep_linked])
def test_what_a_program_keeps_hold_of_is_copied(
    tmp_path: Path, keep: Callable[[Path], Callable[[], None]], capfd: pytest.CaptureFixture[str]
) -> None:
    changes: list[Callable[[], None]] = []
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("best", save_fn=lambda path: changes.append(keep(Path(path))))
    model = tmp_path / "checkpoints/1-best/model"
    changes[0]()
    assert (model / "weights").read_bytes() == b"saved"
    assert [path.name for path in model.iterdir()] == ["weights"]
    assert "still open for writing, or linked: weights; copies" in capfd.readouterr().err
    assert not session._checkpoints.is_changed("1-best/model")


def test_where_there_are_no_leases_files_are_copied_and_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_copies, "is_private", lambda path: None)
    held: list[int] = []

    def save(path: str) -> None:
        held.append(os.open(Path(path, "weights"), os.O_WRONLY | os.O_CREAT))
        os.write(held[0], b"saved")

    Session(str(tmp_path), "anna/digits/3").save("best", save_fn=save)
    os.write(held[0], b" and more")
    os.close(held[0])
    assert (tmp_path / "checkpoints/1-best/model/weights").read_bytes() == b"saved"
    assert "open for writing" not in capfd.readouterr().err


def spoil(path: str) -> None:
    folder = Path(path)
    (folder / "a").write_text("spoilt")
    with (folder / "b").open("a") as file:
        file.write("more")
    (folder / "deep/c").unlink()
    (folder / "deep").rename(folder / "shallow")


def write_three(path: str) -> None:
    Path(path, "deep").mkdir()
    for name in ("a", "b", "deep/c"):
        Path(path, name).write_text(name)
    Path(path, "a").chmod(0o755)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_in_session", [False, True])
def test_a_load_function_gets_a_copy_that_goes_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_session: bool, is_shared: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if is_shared:  # Btrfs, XFS
        monkeypatch.setattr(
            _copies, "share_blocks", lambda source, to: os.sendfile(to, source, 0, 99) > 0
        )
    session = Session(str(tmp_path) if is_in_session else "", "anna/digits/3")
    root = tmp_path if is_in_session else tmp_path / ".nsml"
    found: list[dict[str, tuple[bytes, int]]] = []

    def load(path: str) -> None:
        found.append(tree_in(Path(path)))
        spoil(path)

    session.save("best", save_fn=write_three)
    before = tree_in(root / "checkpoints")
    for _ in range(2):
        session.load("best", load_fn=load)
    with pytest.raises(ZeroDivisionError):
        session.load("best", load_fn=lambda path: spoil(path) or 1 / 0)
    assert (
        found[0]
        == found[1]
        == {"a": (b"a", 0o755), "b": (b"b", 0o644), "deep/c": (b"deep/c", 0o644)}
    )
    assert tree_in(root / "checkpoints") == before
    assert not (root / "loads").exists()


def tree_in(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_no_room_for_a_copy_is_raised_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("best", save_fn=lambda path: Path(path, "w").write_bytes(b"w" * 10_000))
    monkeypatch.setattr(_copies, "share_blocks", lambda source, target: False)
    whole = os.statvfs(tmp_path)
    full = os.statvfs_result([*whole[:4], 1, *whole[5:]])
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(OSError, match="no room for a copy of"):
        session.load("best", load_fn=spoil)
    assert (tmp_path / "checkpoints/1-best/model/w").read_bytes() == b"w" * 10_000


def test_what_was_changed_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session("", "")
    session.save("best", save_fn=write_three)
    file = tmp_path / ".nsml/checkpoints/1-best/model/b"
    file.chmod(0o644)
    file.write_text("x")
    with pytest.raises(KeyError):
        session.load("best", load_fn=spoil)


def test_what_the_agent_made_its_own_is_loaded(tmp_path: Path) -> None:
    """Also while it is doing that, and what it did after it was waited for."""
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("best", save_fn=write_three)
    model = tmp_path / "checkpoints/1-best/model"
    (tmp_path / "kept").hardlink_to(model / "a")
    (model / "b").chmod(0o400)
    loaded: list[str] = []
    session.load("best", load_fn=loaded.append)
    assert loaded


def test_the_agent_is_asked_to_keep_what_is_saved(tmp_path: Path) -> None:
    asked: list[Any] = []
    answers = [{"ok": True, "kept": False}, {"ok": False, "error": "UNSUPPORTED"}]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()

        def answer() -> None:
            for one in answers:
                connection, _ = listener.accept()
                with connection:
                    asked.append(json.loads(connection.makefile().readline()))
                    connection.sendall(json.dumps(one).encode() + b"\n")

        agent = threading.Thread(target=answer)
        agent.start()
        session = Session(str(tmp_path), "anna/digits/3")
        for name in ("a", "b", "c"):  # the third time nobody listens, nor is asked
            session.save(name, save_fn=write_three)
        agent.join()
    ops = [(one["op"], one["folder"]) for one in asked]
    assert ops == [("keep", "1-a/model"), ("keep", "2-b/model")]
    assert len(checkpoint_records(tmp_path)) == 3


def test_an_agent_that_hangs_costs_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session, "_KEEP_S", 0.05)
    session = Session(str(tmp_path), "anna/digits/3")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        session.save("a", save_fn=write_three)
        monkeypatch.setattr("nsml._agent.ask_once", None)
        session.save("b", save_fn=write_three)
    assert [one["name"] for one in checkpoint_records(tmp_path)] == ["a", "b"]


def checkpoint_records(run: Path) -> list[dict[str, Any]]:
    data = next(run.glob("spool/*.records")).read_bytes()
    found = [json.loads(payload) for _, payload in parse(data)[0]]
    return [one for one in found if one["kind"] == "checkpoint"]


@pytest.mark.parametrize("has_call", [True, False])
def test_holes_stay_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_call: bool) -> None:
    if not has_call:
        monkeypatch.delattr(os, "copy_file_range")
    with (tmp_path / "sparse").open("wb") as file:
        file.seek(8 << 20)
        file.write(b"x")
        file.truncate(16 << 20)
    _copies.copy_file(str(tmp_path / "sparse"), str(tmp_path / "copy"))
    copy = tmp_path / "copy"
    assert copy.read_bytes() == (tmp_path / "sparse").read_bytes()
    assert copy.stat().st_blocks * 512 < 1 << 20


def replace_by_file(folder: str) -> None:
    shutil.rmtree(folder)
    Path(folder).write_text("weights")


def move_away(folder: str) -> None:
    shutil.move(folder, f"{folder}/../../../elsewhere")


def replace_by_link(folder: str) -> None:
    shutil.rmtree(folder)
    Path(folder).symlink_to("/")


def remove_and_fail(folder: str) -> None:
    shutil.rmtree(folder)
    raise RuntimeError("of the program")


def test_a_save_function_that_puts_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.bind(save=replace_by_file)
    session.save("best")
    records = parse((tmp_path / "spool" / "1.records").read_bytes())[0]
    assert [json.loads(payload)["files"] for _, payload in records] == [[["model", 7]]]
    found: list[str] = []
    session.load("best", lambda folder: found.append((Path(folder) / "model").read_text()))
    assert found == ["weights"]


@pytest.mark.parametrize(
    ("function", "why"),
    [(move_away, "removed the folder"), (replace_by_link, "a link in place of the folder")],
)
def test_without_its_folder_a_checkpoint_is_lost_and_training_goes_on(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    function: Callable[[str], None],
    why: str,
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("best", function)
    assert why in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == []


def test_what_a_save_function_raises_passes_through_without_the_folder_too(tmp_path: Path) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    with pytest.raises(RuntimeError, match="of the program"):
        session.save("best", remove_and_fail)


def test_what_is_left_out_is_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def save(folder: str) -> None:
        (Path(folder) / "weights").write_text("1")
        (Path(folder) / "newest").symlink_to("weights")

    session = Session(str(tmp_path), "anna/digits/3")
    session.bind(save=save, load=lambda folder: None)
    session.save("a")
    session.save("b")
    session.load("b")
    assert capfd.readouterr().err.count("newest") == 1


def test_a_checkpoint_that_is_removed_while_it_is_copied_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(str(tmp_path), "anna/digits/3")
    session.save("best", save_fn=lambda folder: Path(folder, "w").write_text("1"))
    asked = []

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("nsml._checkpoints.copy_tree", gone)
    monkeypatch.setattr(session, "_load_from_afar", lambda name, *_, **__: asked.append(name))
    session.load("best", load_fn=print)
    assert asked == ["best"]
