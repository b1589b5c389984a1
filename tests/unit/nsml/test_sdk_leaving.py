"""Notices as a program sees them: saved at the next safe point, once, by the thread that trains."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nsml import _leaving, _session
from nsml._leaving import EXIT_CODE
from nsml._session import Session
from tests.unit.nsml.test_sdk_session import names_in

NAME = "anna/digits/3"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK", "NSML_RANK", "NSML_RESUME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NSML_ATTEMPT", "2")
    monkeypatch.setattr(_leaving, "LOOK_S", 0.0)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(str(tmp_path), NAME)
    made.bind(save=save, load=load)
    return made


saved: list[str] = []
loaded: list[str] = []


def save(path: str) -> None:
    saved.append(path)
    Path(path, "model").write_text("weights")


def load(path: str) -> None:
    loaded.append(Path(path, "model").read_text())


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    saved.clear()
    loaded.clear()


def give_notice(folder: Path, *, goes: bool = True, **more: Any) -> None:
    staged = folder / "notice.staged"
    staged.write_text(json.dumps({"goes": goes, "reason": "gives way", **more}))
    staged.rename(folder / "notice.json")


def left(folder: Path) -> str:
    found = folder / "left.json"
    return json.loads(found.read_text())["checkpoint"] if found.exists() else ""


def test_it_saves_at_the_next_report_and_leaves(session: Session, tmp_path: Path) -> None:
    session.reporter.report(step=1)
    assert not saved
    assert not session.should_stop()
    give_notice(tmp_path)
    assert session.should_stop()
    with pytest.raises(SystemExit) as leaving:
        session.reporter.report(step=2)
    assert leaving.value.code == EXIT_CODE
    assert names_in(tmp_path / "checkpoints") == ["1-attempt-2"]
    assert left(tmp_path) == "attempt-2"


def test_the_report_itself_is_recorded_before(session: Session, tmp_path: Path) -> None:
    give_notice(tmp_path)
    with pytest.raises(SystemExit):
        session.reporter.report(step=7, a=1)
    spooled = b"".join(path.read_bytes() for path in tmp_path.glob("spool/*"))
    assert spooled.index(b'"step":7') < spooled.index(b'"checkpoint"')


def test_its_own_save_is_enough(session: Session, tmp_path: Path) -> None:
    give_notice(tmp_path)
    with pytest.raises(SystemExit):
        session.save("best")
    assert (len(saved), left(tmp_path)) == (1, "best")


def test_what_is_not_bound_is_saved_by_the_program_itself(tmp_path: Path) -> None:
    session = Session(str(tmp_path), NAME)
    give_notice(tmp_path)
    session.reporter.report(step=1)
    assert session.should_stop()
    with pytest.raises(SystemExit):
        session.save("last", save_fn=save)
    assert left(tmp_path) == "last"


def test_before_a_time_limit_it_saves_once_and_goes_on(session: Session, tmp_path: Path) -> None:
    give_notice(tmp_path, goes=False)
    for step in range(5):
        session.reporter.report(step=step)
    assert (len(saved), left(tmp_path), session.should_stop()) == (1, "", False)
    give_notice(tmp_path)
    with pytest.raises(SystemExit):
        session.reporter.report(step=5)
    assert len(saved) == 2


def test_another_thread_neither_saves_nor_leaves(session: Session, tmp_path: Path) -> None:
    give_notice(tmp_path)
    threads = [
        threading.Thread(target=session.reporter.report, kwargs={"step": 1}),
        threading.Thread(target=session.save, args=["from beside"]),
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert not left(tmp_path)
    assert len(saved) == 1, "what it asked for itself"


def test_a_forked_child_does_neither(session: Session, tmp_path: Path) -> None:
    give_notice(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            session.spool.after_fork()
            session.reporter.report(step=1)
        except BaseException:  # noqa: BLE001 - the parent is told by the exit code
            os._exit(9)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not (tmp_path / "checkpoints").exists()
    assert not left(tmp_path)


def test_only_the_first_of_a_gang_saves(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_notice(tmp_path)
    monkeypatch.setenv("NSML_RANK", "1")
    session.reporter.report(step=1)
    monkeypatch.setenv("NSML_RANK", "0")
    monkeypatch.setenv("RANK", "3")  # a worker of torchrun
    session.reporter.report(step=2)
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("LOCAL_RANK", "1")  # a process that Lightning started
    session.reporter.report(step=2)
    assert not saved
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        session.reporter.report(step=3)


def test_a_report_within_a_save_function_is_no_safe_point(tmp_path: Path) -> None:
    session = Session(str(tmp_path), NAME)

    def reports(path: str) -> None:
        session.reporter.report(saving=1)
        save(path)

    session.bind(save=reports, load=load)
    give_notice(tmp_path)
    with pytest.raises(SystemExit):
        session.save("best")
    assert len(saved) == 1


def test_a_save_that_fails_leaves_the_program_to_sigterm(tmp_path: Path, capsys: Any) -> None:
    session = Session(str(tmp_path), NAME)

    def fails(path: str) -> None:
        saved.append(path)
        raise ValueError("no weights yet")

    session.bind(save=fails, load=load)
    give_notice(tmp_path)
    session.reporter.report(step=1)
    session.reporter.report(step=2)
    assert (len(saved), left(tmp_path)) == (1, "")
    assert "could not save on notice" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '"goes"'])
def test_a_notice_that_cannot_be_read_is_none(
    session: Session, tmp_path: Path, content: str
) -> None:
    (tmp_path / "notice.json").write_text(content)
    session.reporter.report(step=1)
    assert not session.should_stop()
    assert not saved


def test_a_report_looks_seldom(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_leaving, "LOOK_S", 3600.0)
    looks: list[int] = []
    monkeypatch.setattr(_leaving.Leaving, "_look", lambda self: looks.append(1))
    for step in range(100):
        session.reporter.report(step=step)
    assert len(looks) == 1
    now = [0.0]
    monkeypatch.setattr(_leaving.time, "time", lambda: now[0])
    session.reporter.report(step=100)
    assert len(looks) == 2, "a clock that was set back does not end the looking"


def test_what_is_bound_is_told(tmp_path: Path) -> None:
    session = Session(str(tmp_path), NAME)
    assert not (tmp_path / "resumable.json").exists()
    session.bind(save=save)
    assert json.loads((tmp_path / "resumable.json").read_text()) == {"save": True, "load": False}
    session.bind(model={"w": 1})
    assert json.loads((tmp_path / "resumable.json").read_text()) == {"save": True, "load": True}


class TestGoingOn:
    @pytest.fixture
    def afar(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What is asked of the agent; it has everything."""
        asked: list[str] = []

        def lay_out(
            self: Session, name: str, load_fn: Any, session: Any, *, is_resuming: bool
        ) -> None:
            assert is_resuming == (name == "attempt-1")
            asked.append(name)
            folder = Path(self._run_dir, "loads", str(len(asked)))
            folder.mkdir(parents=True)
            (folder / "model").write_text("weights")
            self._model.load(str(folder), load_fn)

        monkeypatch.setattr(Session, "_load_from_afar", lay_out)
        monkeypatch.setenv("NSML_RESUME", "attempt-1")
        return asked

    def test_the_first_bind_that_can_loads(
        self, afar: list[str], tmp_path: Path, capsys: Any
    ) -> None:
        session = Session(str(tmp_path), NAME)
        session.bind(save=save)
        assert not afar
        session.bind(save=save, load=load)
        session.bind(save=save, load=load)
        assert (afar, loaded) == (["attempt-1"], ["weights"])
        assert "goes on from checkpoint attempt-1" in capsys.readouterr().err

    def test_paused_does_not_go_back_to_where_a_fork_began(
        self, afar: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_session.sys, "argv", ["main.py", "--pause", "1", "--iteration", "3"])
        session = Session(str(tmp_path), NAME)
        session.bind(save=save, load=load)
        session.paused()
        assert afar == ["attempt-1"]

    def test_where_it_cannot_be_loaded_the_program_begins_anew(
        self, afar: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = Session(str(tmp_path), NAME)

        def fails(path: str) -> None:
            raise NameError("optimizer")

        session.bind(save=save, load=fails)
        assert "could not go on from checkpoint attempt-1: NameError" in capsys.readouterr().err
        monkeypatch.setattr(_session.sys, "argv", ["main.py", "--iteration", "3"])
        with pytest.raises(NameError):
            session.paused()
        assert afar == ["attempt-1", "attempt-1", "3"]

    def test_the_first_attempt_never_begins_anew_where_it_was_to_begin_with_a_checkpoint(
        self, afar: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NSML_ATTEMPT", "1")
        session = Session(str(tmp_path), NAME)

        def fails(path: str) -> None:
            raise NameError("optimizer")

        with pytest.raises(NameError):
            session.bind(save=save, load=fails)

    def test_an_agent_that_is_away_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [TimeoutError("away"), TimeoutError("away"), None]

        def answer(self: Session, name: str, *_: Any, is_resuming: bool) -> None:
            assert is_resuming
            if (error := answers.pop(0)) is not None:
                raise error

        monkeypatch.setattr(Session, "_load_from_afar", answer)
        monkeypatch.setenv("NSML_RESUME", "best")
        Session(str(tmp_path), NAME).bind(save=save, load=load)
        assert not answers

    def test_outside_of_a_session_nothing_is_loaded(
        self, afar: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        session = Session("", "")
        session.bind(save=save, load=load)
        assert not session.should_stop()
        assert not afar
        assert not list(tmp_path.iterdir())
