"""bind, save, load, paused and infer on real folders, with an agent's socket where one is asked."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml import _agent
from nsml._checkpoints import Checkpoints, escape, remove_tree
from nsml._extras import copy
from nsml._frames import parse
from nsml._session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "anna/digits/3"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(str(tmp_path), NAME)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("spool/*.records")):
        found += [json.loads(payload) for _, payload in parse(path.read_bytes())[0]]
    return [record for record in found if record["kind"] == kind]


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def save_two(path: str, **_: Any) -> None:
    Path(path, "a").write_text("aa")
    Path(path, "deep").mkdir()
    Path(path, "deep", "b").write_text("bbb")


class TestSaving:
    def test_a_checkpoint_is_a_folder_and_a_record(self, session: Session, tmp_path: Path) -> None:
        session.bind(save=save_two)
        session.reporter.report(step=4, train__loss=0.5)
        session.save(4)
        (record,) = records(tmp_path, "checkpoint")
        assert record["time"] > 1e9
        assert record["elapsed"] >= 0
        assert len(record["seal"]) == 128
        del record["time"], record["elapsed"], record["seal"]
        assert record == {
            "kind": "checkpoint",
            "name": "4",
            "folder": "1-4/model",
            "files": [["a", 2], ["deep/b", 3]],
            "size": 5,
            "summary": {"step": 4, "train/loss": 0.5},
            "step": 4,
        }
        assert (tmp_path / "checkpoints/1-4/model/deep/b").read_text() == "bbb"
        assert names_in(tmp_path / "checkpoints") == ["1-4"]

    def test_every_spelling_of_the_name(self, session: Session, tmp_path: Path) -> None:
        session.bind(save_two)
        session.save("best")
        session.save(checkpoint=5)
        session.save(iteration="epoch_3")
        session.save(0)
        session.save()
        *named, timed = [record["name"] for record in records(tmp_path, "checkpoint")]
        assert named == ["best", "5", "epoch_3", "0"]
        assert timed.isdigit()
        assert len(timed) >= 10

    def test_without_a_name_none_is_used_twice(
        self, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session.bind(save_two)
        monkeypatch.setattr("nsml._session.time.time", lambda: 1_795_000_000.5)
        for _ in range(3):
            session.save()
        remove_tree(str(tmp_path / "checkpoints"))  # as the agent does once they are sent
        session.save()
        names = [record["name"] for record in records(tmp_path, "checkpoint")]
        assert names == ["1795000000", "1795000000-2", "1795000000-3", "1795000000-4"]

    def test_the_same_name_overwrites(self, session: Session) -> None:
        state = {"n": 1}

        def save(path: str) -> None:
            Path(path, "n").write_text(str(state["n"]))

        def load(path: str) -> None:
            state["n"] = int(Path(path, "n").read_text())

        session.bind(save, load)
        session.save("x")
        state["n"] = 2
        session.save("x")
        state["n"] = 3
        session.load("x")
        assert state["n"] == 2

    def test_keywords_of_bind_are_forwarded_but_for_the_flag(self, session: Session) -> None:
        seen = []
        session.bind(
            save=lambda path, **kwargs: seen.append(kwargs),
            load=lambda path, **kwargs: seen.append(kwargs),
            real=True,
            use_nsml_legacy=False,
        )
        session.save(1)
        session.load(1)
        assert seen == [{"real": True}, {"real": True}]

    def test_the_last_bind_counts_and_an_argument_goes_before_it(self, session: Session) -> None:
        seen = []
        session.bind(save=lambda path: seen.append("first"))
        session.bind(save=lambda path: seen.append("second"), model=1)
        session.save(1)
        session.save(1, lambda path: seen.append("given"))
        session.load(1, load_fn=lambda path: seen.append("loaded"))
        assert seen == ["second", "given", "loaded"]

    def test_what_the_save_function_raises_passes_through_and_leaves_nothing(
        self, session: Session, tmp_path: Path
    ) -> None:
        def save(path: str) -> None:
            Path(path, "half").write_text("x")
            raise ValueError("mine")

        session.bind(save=save)
        with pytest.raises(ValueError, match="mine"):
            session.save(1)
        assert names_in(tmp_path / "checkpoints") == []
        assert records(tmp_path, "checkpoint") == []

    @pytest.mark.parametrize("then", ["x" * (1 << 20), object()], ids=["large", "changed"])
    def test_what_was_reported_before_never_costs_a_checkpoint(
        self, session: Session, tmp_path: Path, then: object
    ) -> None:
        history = [0.5]
        session.reporter.report(step=4, history=history)
        history.append(then)  # type: ignore[arg-type]
        session.save(4, save_two)
        (record,) = records(tmp_path, "checkpoint")
        summary = {"step": 4, "history": [0.5]}
        assert (record["name"], record["step"], record["summary"]) == ("4", 4, summary)
        assert record["files"] == [["a", 2], ["deep/b", 3]]

    def test_a_step_that_changes_later_never_costs_a_checkpoint(
        self, session: Session, tmp_path: Path
    ) -> None:
        step: list[object] = [4]
        session.reporter.report(step=step, loss=0.5)
        step.append(object())
        session.save(4, save_two)
        (record,) = records(tmp_path, "checkpoint")
        assert (record["step"], record["summary"]) == (None, {"step": None, "loss": 0.5})

    def test_a_full_disk_loses_the_checkpoint_and_not_the_training(
        self, session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def save(path: str) -> None:
            Path(path, "half").write_text("x")
            raise OSError(errno.ENOSPC, "No space left on device")

        session.bind(save=save)
        session.save("big")
        assert "checkpoint big is lost" in capfd.readouterr().err
        assert not records(tmp_path, "dropped")  # its own record says that it is lost
        (lost,) = records(tmp_path, "checkpoint")
        assert (lost["name"], lost["folder"], lost["files"]) == ("big", "", [])
        assert lost["lost"]
        assert names_in(tmp_path / "checkpoints") == []

    def test_a_folder_that_cannot_be_made_loses_the_checkpoint_too(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "checkpoints").write_text("in the way")
        session = Session(str(tmp_path), NAME)
        session.bind(save=save_two)
        session.save(1)
        assert "checkpoint 1 is lost" in capfd.readouterr().err

    def test_links_are_left_out(
        self, session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def save(path: str) -> None:
            Path(path, "real").write_text("x")
            Path(path, "link").symlink_to("/etc/passwd")
            Path(path, "folder").symlink_to("/etc")

        session.bind(save=save)
        session.save(1)
        assert records(tmp_path, "checkpoint")[0]["files"] == [["real", 1]]
        assert "left out of checkpoints, no regular files: folder, link" in capfd.readouterr().err

    def test_numpy_adding_an_ending_to_the_folders_name_loses_nothing(
        self, session: Session, tmp_path: Path
    ) -> None:
        session.bind(save=lambda path: np.savez(path, a=1))
        session.save(1)
        assert [path for path, _ in records(tmp_path, "checkpoint")[0]["files"]] == ["model.npz"]

    def test_nothing_bound_is_said(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        session.save(1)
        session.save(2)  # for the same reason, which the log has already
        [said] = capsys.readouterr().err.splitlines()
        assert (
            "checkpoint 1 is lost, training goes on: nothing to save with: call nsml.bind(save"
            in said
        )
        assert [one["name"] for one in records(tmp_path, "checkpoint")] == ["1", "2"]
        assert not records(tmp_path, "dropped")
        with session.strictness.strict(), pytest.raises(RuntimeError, match=r"nsml\.bind"):
            session.save(1)
        with pytest.raises(RuntimeError, match=r"nsml\.bind"):
            session.load(1)

    def test_objects_that_cannot_be_saved_cost_the_checkpoint_and_no_training(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        session.bind(model=threading.Lock())
        session.save("best")
        assert "checkpoint best is lost, training goes on: cannot pickle" in capsys.readouterr().err
        assert names_in(tmp_path / "checkpoints") == []
        with session.strictness.strict(), pytest.raises(TypeError, match="pickle"):
            session.save("best")

    def test_arguments_that_make_no_sense_cost_no_checkpoint(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Nameless:
            def __str__(self) -> str:
                raise ValueError("no name today")

        session.bind(save=save_two)
        session.save(Nameless())  # type: ignore[arg-type]
        session.save("best", 3)  # type: ignore[arg-type]
        assert [record["name"].isdecimal() for record in records(tmp_path, "checkpoint")] == [
            True,
            False,
        ]
        named, uncalled = capsys.readouterr().err.splitlines()
        assert "Nameless is no name (no name today): it is saved as" in named
        assert "save_fn is no function (int): it is not used" in uncalled
        with session.strictness.strict(), pytest.raises(TypeError, match="is no function"):
            session.save("best", 3)  # type: ignore[arg-type]

    def test_without_a_name_where_the_folder_cannot_be_read(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        session.bind(save=save_two)
        (tmp_path / "checkpoints").write_text("in the way")
        session.save()
        assert "is lost, training goes on" in capsys.readouterr().err

    def test_processes_that_save_at_once_never_share_a_folder(self, tmp_path: Path) -> None:
        checkpoints = [Checkpoints(str(tmp_path)) for _ in range(6)]
        taken = []

        def save(own: Checkpoints) -> None:
            for _ in range(20):
                draft = own.begin()
                Path(draft.model, "x").write_text("x")
                taken.append(draft.commit("same")[0])

        threads = [threading.Thread(target=save, args=(own,)) for own in checkpoints]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(taken)) == 120
        assert sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir()) == list(
            range(1, 121)
        )

    def test_a_number_that_was_finished_while_the_folder_was_read_is_not_taken_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoints = Checkpoints(str(tmp_path))
        checkpoints.begin().commit("first")
        read_before = iter([[], [1]])
        monkeypatch.setattr(checkpoints, "_numbers", lambda: next(read_before))
        assert checkpoints.begin().commit("second")[0] == "2-second/model"

    def test_the_newest_is_the_one_with_the_highest_number(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(str(tmp_path))
        for _ in range(25):
            folder, _files = checkpoints.begin().commit("same")
            assert checkpoints.newest("same") == folder
        assert checkpoints.newest("other") is None

    @given(st.text(max_size=300))
    def test_escaped_names_are_plain_file_names(self, name: str) -> None:
        text = escape(name)
        assert "/" not in text
        assert text.isascii()
        assert text.isprintable()
        assert len(text) <= 180

    @given(st.text(), st.text())
    def test_different_names_stay_different(self, one: str, other: str) -> None:
        assert (escape(one) == escape(other)) == (one == other)


class TestPathContract:
    """Checkpoints of every generation of NSML: a file, a folder, one file handed over as a file."""

    def test_a_file_under_the_path_itself_as_in_2018(self, session: Session) -> None:
        state = {"x": 1}

        def save(filename: str) -> None:
            with Path(filename).open("wb") as file:
                pickle.dump(state, file)

        def load(filename: str) -> None:
            with Path(filename).open("rb") as file:
                state.update(pickle.load(file))

        session.bind(save, load)
        session.save(1)
        state["x"] = 2
        session.load(1)
        assert state["x"] == 1

    def test_a_library_that_says_only_in_words_that_it_wants_a_file(
        self, session: Session, tmp_path: Path
    ) -> None:
        def save(path: str) -> None:
            if Path(path).is_dir():
                raise RuntimeError(f"File {path} cannot be opened.")
            Path(path).write_text("x")

        session.bind(save)
        session.save(1)
        assert [path for path, _ in records(tmp_path, "checkpoint")[0]["files"]] == ["model"]

    def test_a_folder_made_by_the_program(self, session: Session) -> None:
        seen = []

        def save(path: str) -> None:
            Path(path).mkdir(parents=True, exist_ok=True)
            Path(path, "m").write_text("saved")

        session.bind(save, lambda path: seen.append(Path(path, "m").read_text()))
        session.save(1)
        session.load(1)
        assert seen == ["saved"]

    def test_one_file_is_loaded_by_its_path_as_in_2019(self, session: Session) -> None:
        seen = []
        session.bind(
            lambda path: Path(path, "model").write_text("weights"),
            lambda path: seen.append(Path(path).read_text()),
        )
        session.save(1)
        session.load(1)
        assert seen == ["weights"]

    def test_without_legacy_there_is_one_try_with_the_folder(self, session: Session) -> None:
        calls = []

        def load(path: str) -> None:
            calls.append(path)
            raise IsADirectoryError(path)

        session.bind(lambda path: Path(path, "m").write_text("x"), load, use_nsml_legacy=False)
        session.save(1)
        with pytest.raises(IsADirectoryError):
            session.load(1)
        assert len(calls) == 1

    def test_an_error_of_folder_code_is_not_hidden_by_the_second_try(
        self, session: Session
    ) -> None:
        def load(path: str) -> None:
            Path(path, "m").read_text()
            raise ValueError("shapes differ")

        session.bind(lambda path: Path(path, "m").write_text("x"), load)
        session.save(1)
        with pytest.raises(ValueError, match="shapes differ"):
            session.load(1)


class TestObjects:
    """The old form: bind(model=model), no functions."""

    class Module:
        def __init__(self) -> None:
            self.state = {"w": 1}

        def state_dict(self) -> dict[str, int]:
            return dict(self.state)

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.state = state

    class Anything:
        def __init__(self) -> None:
            self.depth = 1

    def test_objects_are_saved_and_filled_in_place(self, session: Session) -> None:
        module, plain, table = self.Module(), TestObjects.Anything(), {"a": 1}
        session.bind(model=module, tree=plain, table=table, real=True)
        session.save("x")
        module.state, plain.depth, table["a"] = {"w": 2}, 2, 2
        session.load("x")
        assert (module.state, plain.depth, table) == ({"w": 1}, 1, {"a": 1})

    def test_copy(self) -> None:
        target = TestObjects.Anything()
        source = TestObjects.Anything()
        source.depth = 9
        copy(source, target)
        assert target.depth == 9
        with pytest.raises(TypeError):
            copy([1], [2])
        with pytest.raises(TypeError):
            copy({}, target)

    def test_cache_calls_the_function_with_its_paths(self) -> None:
        seen, cache = [], Session("", "").cache
        cache(lambda **kwargs: seen.append(kwargs), data=1)
        cache(lambda **kwargs: seen.append(kwargs), output_path=["a", "b"])
        assert seen == [{"output_path": ["./processed"], "data": 1}, {"output_path": ["a", "b"]}]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """A real socket that answers `load` as the node agent does, from a folder of checkpoints."""
    stored = tmp_path / "elsewhere"
    (stored / "ben/digits/1/best").mkdir(parents=True)
    (stored / "ben/digits/1/best/m").write_text("far away")
    asked: list[dict[str, Any]] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    server.listen()

    def answer(connection: socket.socket) -> None:
        message = json.loads(connection.makefile().readline())
        asked.append(message)
        if len(asked) == 1:
            return  # as when the agent is killed while it works: the connection just ends
        source = stored / str(message["session"]) / str(message["checkpoint"])
        if message["checkpoint"] == "private":
            reply = {"ok": False, "error": "UNAVAILABLE", "message": "no control plane"}
        elif not source.is_dir():
            reply = {"ok": False, "error": "NOT_FOUND", "message": "none"}
        else:
            shutil.copytree(source, tmp_path / str(message["target"]))
            reply = {"ok": True, "folder": message["target"]}
        connection.sendall(json.dumps(reply).encode() + b"\n")

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                if stopping:
                    return
                answer(connection)

    stopping: list[bool] = []
    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    stopping.append(True)
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(tmp_path / "socket"))
    thread.join()
    server.close()


class TestLoadingFromAfar:
    def test_another_sessions_checkpoint_comes_from_the_agent(
        self, session: Session, agent: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        seen = []
        session.bind(load=lambda path: seen.append(Path(path, "m").read_text()))
        session.load("best", session="ben/digits/1")
        assert seen == ["far away"]
        assert agent[-1]["v"] == 1
        assert agent[-1]["op"] == "load"
        assert len(agent) == 2, "asked again after the connection broke"
        assert names_in(tmp_path / "loads") == []

    @pytest.mark.usefixtures("agent")
    def test_a_missing_one_is_the_key_error_of_nsml(self, session: Session) -> None:
        session.bind(load=print)
        for session_name, named in ((None, NAME), ("ben/digits/1", "ben/digits/1")):
            with pytest.raises(KeyError) as caught:
                session.load("4", session=session_name)
            assert str(caught.value) == f"'No model: {named}/nsml_model/4,'"

    @pytest.mark.usefixtures("agent")
    def test_another_refusal_is_not_taken_for_a_missing_checkpoint(self, session: Session) -> None:
        session.bind(load=print)
        with pytest.raises(RuntimeError, match="UNAVAILABLE: no control plane"):
            session.load("private", session="ben/digits/1")

    def test_without_an_agent_it_is_a_time_out_and_no_claim_about_the_checkpoint(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(TimeoutError, match="does not answer"):
            _agent.request(str(tmp_path), {"op": "load"}, timeout_s=0, sleep=lambda _: None)

    def test_a_path_longer_than_socket_addresses_may_be(self, tmp_path: Path) -> None:
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        here = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/socket")
            server.listen()

            def serve() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.makefile().readline()
                    connection.sendall(b'{"ok":true}\n')

            thread = threading.Thread(target=serve)
            thread.start()
            assert _agent.request(str(folder), {"op": "x"}) == {"ok": True}
            thread.join()
        os.close(here)


class TestPaused:
    def test_the_named_checkpoint_is_loaded_and_training_goes_on(
        self,
        session: Session,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen = []
        session.bind(save_two, lambda path: seen.append(Path(path, "a").read_text()))
        session.save("best")
        for arguments in (["--iteration", "best"], ["--iteration=best", "--pause", "1"]):
            monkeypatch.setattr(sys, "argv", ["main.py", *arguments])
            session.paused(scope=locals())
        assert seen == ["aa", "aa"]
        assert capsys.readouterr().out == "Paused.\n" * 2
        states = [record["state"] for record in records(tmp_path, "state")]
        assert states == ["PAUSED", "RUNNING"] * 2

    def test_without_a_checkpoint_to_load_it_says_what_starts_a_program_so(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["main.py", "--mode", "test", "--pause", "1"])
        with pytest.raises(RuntimeError, match="nsml fork, nsml submit"):
            session.paused()


class TestInfer:
    def test_the_bound_function_answers(self, session: Session) -> None:
        session.bind(infer=lambda data, **kwargs: (data, kwargs))
        assert session.infer([1], top=2) == ([1], {"top": 2})

    def test_none_bound(self, session: Session) -> None:
        with pytest.raises(RuntimeError, match="bind"):
            session.infer([1])


class TestOffPlatform:
    @pytest.fixture
    def session(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
        monkeypatch.chdir(tmp_path)
        return Session("", "")

    def test_checkpoints_stay_below_the_current_folder(
        self, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        seen: list[str] = []
        session.bind(save_two, seen.append)
        session.save("best")
        session.save("best")
        session.load("best")
        (lent,) = seen
        assert Path(lent).parents[1] == tmp_path / ".nsml/loads"
        assert not Path(lent).exists()
        assert [path.name for path in (tmp_path / ".nsml/checkpoints").iterdir()] == ["2-best"]
        assert names_in(tmp_path / ".nsml/checkpoints") == ["2-best"]
        with pytest.raises(KeyError):
            session.load("4", session="ben/digits/1")
        session.paused()
        assert capsys.readouterr().out == "Paused.\n"

    def test_reports_are_checked_and_go_nowhere(self, session: Session, tmp_path: Path) -> None:
        session.reporter.report(step=1, loss=0.5)
        with pytest.raises(TypeError, match=r"nsml\.report: 'at' is not recorded"):
            session.reporter.report(loss=0.5, at=object())
        with session.strictness.strict(False):
            session.reporter.report(at=object())
        with pytest.raises(TypeError):
            session.reporter.report(at=object())
        assert list(tmp_path.iterdir()) == []

    def test_saving_without_bind_is_harmless(self, session: Session, tmp_path: Path) -> None:
        session.save(1)
        session.load(1)
        assert list(tmp_path.iterdir()) == []
