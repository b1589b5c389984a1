"""nsml.artifact on real folders: what is copied, what is left out, what is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nsml import _artifacts
from nsml._artifacts import Artifacts
from nsml._session import Session
from tests.unit.nsml.test_sdk_session import names_in, records


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(str(tmp_path / "run"), "anna/digits/3")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("aa")
    (folder / "deep" / "b").write_text("bbb")
    return folder


def test_it_is_a_copy_beside_the_checkpoints_and_a_record(
    session: Session, tmp_path: Path, out: Path
) -> None:
    session.bind(save=lambda path: Path(path, "w").write_text("1"))
    session.save("report")
    session.reporter.report(step=4, loss=0.5)
    session.artifact("report", out)
    (out / "a").write_text("changed later")
    (record,) = records(tmp_path / "run", "artifact")
    assert (record["name"], record["folder"], record["step"]) == ("report", "2-%artifact/model", 4)
    assert (record["files"], record["size"]) == ([["a", 2], ["deep/b", 3]], 5)
    assert len(record["seal"]) == 128
    assert (tmp_path / "run/checkpoints/2-%artifact/model/a").read_text() == "aa"
    # No checkpoint of that name is mistaken for it.
    assert len(records(tmp_path / "run", "checkpoint")) == 1
    assert session._checkpoints.newest("report") == "1-report/model"


def test_a_file_is_saved_under_its_own_name(session: Session, tmp_path: Path, out: Path) -> None:
    (tmp_path / "link").symlink_to(out / "a")
    session.artifact("file", str(tmp_path / "link"))
    (record,) = records(tmp_path / "run", "artifact")
    assert record["files"] == [["a", 2]]


def test_links_pipes_and_nsmls_own_folder_are_left_out(
    session: Session, tmp_path: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (out / "passwd").symlink_to("/etc/passwd")
    (out / "loop").symlink_to(".")
    os.mkfifo(out / "pipe")
    session.artifact("all", tmp_path)
    (record,) = records(tmp_path / "run", "artifact")
    assert record["files"] == [["out/a", 2], ["out/deep/b", 3]]
    told = capfd.readouterr()
    assert "left out, neither regular files nor folders: out/" in told.err + told.out


@pytest.mark.parametrize("what", ["missing", "empty", "pipe", "own", "below", "nul", "none"])
def test_what_cannot_be_saved_is_lost_and_training_goes_on(
    session: Session, tmp_path: Path, what: str
) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    path = {
        "own": tmp_path / "run",
        "below": tmp_path / "run/spool",
        "nul": "a\0b",
        "none": None,
    }.get(what, tmp_path / what)
    session.artifact("x", path)
    (record,) = records(tmp_path / "run", "artifact")
    assert record["lost"]
    assert record["folder"].startswith("lost-")
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    with session.strictness.strict(), pytest.raises((OSError, TypeError, ValueError)):
        session.artifact("x", path)


def test_a_name_that_is_none_costs_no_training(session: Session, tmp_path: Path, out: Path) -> None:
    session.artifact(None, out)
    session.artifact("", out)
    session.artifact("a\n\x1b[31m" + "x" * 2000, out)
    (record,) = records(tmp_path / "run", "artifact")
    assert record["name"].isprintable()
    assert len(record["name"].encode()) <= 512


def test_too_many_files_for_a_record_are_lost_and_leave_nothing(
    session: Session, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsml._artifacts.MAX_PAYLOAD", 100)
    session.artifact("many", out)
    (record,) = records(tmp_path / "run", "artifact")
    assert record["lost"] == "2 files are too many for one artifact: pack them into one"
    assert names_in(tmp_path / "run/checkpoints") == []


def test_a_full_disk_is_told_before_it_is_full(
    session: Session, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, "no room for a copy")

    monkeypatch.setattr(_artifacts, "check_room", full)
    monkeypatch.setattr("nsml._copies.share_blocks", lambda *_: False)
    with session.strictness.strict():
        session.artifact("report", out)
    (record,) = records(tmp_path / "run", "artifact")
    assert "no room for a copy" in record["lost"]
    assert names_in(tmp_path / "run/checkpoints") == []


def test_a_file_that_changes_while_it_is_read_is_named(
    session: Session,
    tmp_path: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    copy = _artifacts.copy_file

    def changing(source: str, target: str, *, clone_only: bool = False) -> bool:
        is_shared = copy(source, target, clone_only=clone_only)
        if Path(target).exists():
            Path(source).write_text("longer than before")
        return is_shared

    monkeypatch.setattr(_artifacts, "copy_file", changing)
    session.artifact("log", out / "a")
    (record,) = records(tmp_path / "run", "artifact")
    assert record["files"] == [["a", 2]]
    told = capfd.readouterr()
    assert "artifact log: changed while they were copied: a" in told.err + told.out


def test_outside_of_a_session_the_last_of_a_name_stays(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session("", "")
    for text in ("one", "two"):
        (out / "a").write_text(text)
        session.artifact("report", out)
    assert names_in(tmp_path / ".nsml/artifacts") == ["2-report"]
    assert (tmp_path / ".nsml/artifacts/2-report/model/a").read_text() == "two"
    session.artifact("everything", tmp_path)
    copied = tmp_path / ".nsml/artifacts/3-everything/model"
    assert names_in(copied) == ["out"]
    with pytest.raises(FileNotFoundError):
        session.artifact("report", tmp_path / "missing")


def test_a_step_that_is_no_number_is_left_out() -> None:
    made = Artifacts("", ".nsml", None, lambda *_: None)  # type: ignore[arg-type]
    assert b'"step":null' in made.record("x", "1-%artifact/model", [], "", object())


def test_many_files_are_synced_at_once(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(300):
        (many / str(number)).write_text("x")
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), sync(file)))
    session.artifact("many", many)
    (record,) = records(tmp_path / "run", "artifact")
    assert len(record["files"]) == 300
    assert 0 < len(synced) < 20
