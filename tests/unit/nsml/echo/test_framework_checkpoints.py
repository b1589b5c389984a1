"""Checkpoints of frameworks: kept, handed back to the same training, and saved on notice; never over the program's own."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from nsml import _leaving
from nsml._echo._framework_checkpoints import FrameworkCheckpoints, Ranks
from nsml._leaving import EXIT_CODE
from nsml._session import FRAMEWORK_FILE, Session
from tests.support.echoes import records_in
from tests.unit.nsml.test_sdk_leaving import give_notice, left
from tests.unit.nsml.test_sdk_session import agent

__all__ = ["agent"]  # a fixture

NAME = "anna/digits/3"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("RANK", "LOCAL_RANK", "NSML_RANK", "NSML_RESUME", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NSML_ATTEMPT", "1")
    monkeypatch.setenv("NSML_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(_leaving, "LOOK_S", 0.0)
    monkeypatch.setattr(FrameworkCheckpoints, "_trainings", {})
    (tmp_path / "run").mkdir()


def begun(folder: Path) -> FrameworkCheckpoints:
    training = FrameworkCheckpoints("transformers", Session(str(folder / "run"), NAME))
    training.begins()
    return training


def saved(folder: Path, step: int) -> str:
    """A checkpoint as a framework writes it."""
    made = folder / f"out/checkpoint-{step}"
    (made / "shards").mkdir(parents=True)
    (made / "weights").write_text(f"weights of {step}")
    (made / "shards/0").write_text("shard")
    return str(made)


def next_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Session:
    """The session of an attempt that resumes; its checkpoint is still on the node."""
    monkeypatch.setenv("NSML_ATTEMPT", "2")
    monkeypatch.setenv("NSML_RESUME", name)
    monkeypatch.setattr(FrameworkCheckpoints, "_trainings", {})
    return Session(str(folder / "run"), NAME)


def resumable(folder: Path) -> Any:
    return json.loads((folder / "run/resumable.json").read_text())


def test_what_is_kept_is_a_copy_with_its_step_and_summary(tmp_path: Path) -> None:
    training = begun(tmp_path)
    assert resumable(tmp_path) == {"save": True, "load": True}
    path = Path(saved(tmp_path, 20))
    training.keep(str(path), "checkpoint-20", 20, {"eval/loss": 0.5})
    (path / "weights").write_text("changed")
    [record] = records_in(tmp_path / "run", "checkpoint")
    assert (record["name"], record["step"]) == ("checkpoint-20", 20)
    assert record["summary"] == {"eval/loss": 0.5}
    model = tmp_path / "run/checkpoints" / record["folder"]
    assert (model / "weights").read_text() == "weights of 20"
    assert {name for name, _ in record["files"]} == {"weights", "shards/0", FRAMEWORK_FILE}
    training.ends()
    assert resumable(tmp_path) == {"save": False, "load": True}


@pytest.mark.parametrize("parent", ["", "new/out", None])
def test_it_is_handed_back_to_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str | None
) -> None:
    begun(tmp_path)
    begun(tmp_path).keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
    given = str(tmp_path / parent) if parent else parent
    if parent is None:
        shutil.rmtree(tmp_path / "out")
    other_framework = FrameworkCheckpoints("lightning", session)
    other_framework.number = 2
    assert other_framework.restored(given) is None
    assert FrameworkCheckpoints("transformers", session).restored(given) is None
    for other in (session, Session(str(tmp_path / "run"), NAME)):  # another process of the replica
        second = FrameworkCheckpoints("transformers", other)
        second.number = 2
        path = second.restored(given)
        assert path is not None
        assert path.endswith("/checkpoint-20")
        place = tmp_path / (parent if parent is not None else "out")
        assert parent == "" or path == f"{place}/checkpoint-20"
        assert Path(path, "weights").read_text() == "weights of 20"
        assert Path(path, "shards/0").read_text() == "shard"
        assert not Path(path, FRAMEWORK_FILE).exists()


def test_a_file_is_handed_back_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "epoch=1-step=20.ckpt"
    file.write_text("weights")
    begun(tmp_path).keep(str(file), file.name, 20, {})
    [record] = records_in(tmp_path / "run", "checkpoint")
    assert {name for name, _ in record["files"]} == {file.name, FRAMEWORK_FILE}
    session = next_attempt(tmp_path, monkeypatch, file.name)
    path = FrameworkCheckpoints("transformers", session).restored(str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / file.name)
    assert Path(path).read_text() == "weights"
    file.write_text("of the program")
    session = next_attempt(tmp_path, monkeypatch, file.name)
    monkeypatch.setenv("NSML_ATTEMPT", "3")
    path = FrameworkCheckpoints("transformers", session).restored(str(tmp_path))
    assert path is not None
    assert Path(path).read_text() == "weights"
    assert file.read_text() == "of the program"


def test_one_that_the_framework_removed_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path).keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    for _ in range(2):
        session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
        path = FrameworkCheckpoints("transformers", session).restored(str(tmp_path / "new"))
        assert path is not None
        shutil.rmtree(path)


def test_files_of_the_program_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path).keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    (tmp_path / "out/checkpoint-20/weights").write_text("of the program")
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
    path = FrameworkCheckpoints("transformers", session).restored(str(tmp_path / "out"))
    assert path is not None
    assert Path(path, "weights").read_text() == "weights of 20"
    assert (tmp_path / "out/checkpoint-20/weights").read_text() == "of the program"


def test_a_checkpoint_of_the_programs_own_is_not_handed_to_a_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(str(tmp_path / "run"), NAME)
    session.save("mine", save_fn=lambda path: Path(path, "model").write_text("weights"))
    for attempt in ("1", "2"):
        session = next_attempt(tmp_path, monkeypatch, "mine")
        monkeypatch.setenv("NSML_ATTEMPT", attempt)
        assert FrameworkCheckpoints("transformers", session).restored() is None
        assert capsys.readouterr().err == ""  # it may well load it later


@pytest.mark.usefixtures("agent")
def test_another_checkpoint_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = begun(tmp_path)
    for step in (20, 40):
        training.keep(saved(tmp_path, step), f"checkpoint-{step}", step, {})
    (tmp_path / "run/socket").symlink_to(tmp_path / "socket")
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-40")
    training = FrameworkCheckpoints("transformers", session)
    assert training.restored(str(tmp_path / "new"))
    assert training.another("checkpoint-20", str(tmp_path / "new/checkpoint-20"))
    assert (tmp_path / "new/checkpoint-20/weights").read_text() == "weights of 20"
    assert not training.another("checkpoint-30", str(tmp_path / "new/checkpoint-30"))
    assert not (tmp_path / "new/checkpoint-30").exists()


@pytest.mark.usefixtures("agent")
def test_one_of_another_node_comes_from_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path).keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    [record] = records_in(tmp_path / "run", "checkpoint")
    far = tmp_path / "elsewhere/None/checkpoint-20"
    far.parent.mkdir()
    (tmp_path / "run/checkpoints" / record["folder"]).rename(far)
    shutil.rmtree(tmp_path / "run/checkpoints")
    for name, there in {"run/socket": "socket", "loads": "run/loads"}.items():
        (tmp_path / name).symlink_to(tmp_path / there)
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
    path = FrameworkCheckpoints("transformers", session).restored(str(tmp_path / "new"))
    assert path == str(tmp_path / "new/checkpoint-20")
    assert Path(path, "shards/0").read_text() == "shard"


def test_it_saves_and_leaves_on_notice(tmp_path: Path) -> None:
    training = begun(tmp_path)
    assert not training.should_save(1)
    give_notice(tmp_path / "run")
    assert training.should_save(2)
    with pytest.raises(SystemExit) as leaving:
        training.keep(saved(tmp_path, 2), "checkpoint-2", 2, {})
    assert leaving.value.code == EXIT_CODE
    assert left(tmp_path / "run") == "checkpoint-2"


def test_before_a_time_limit_it_saves_once_and_goes_on(tmp_path: Path) -> None:
    training = begun(tmp_path)
    give_notice(tmp_path / "run", goes=False)
    assert training.should_save(2)
    training.keep(saved(tmp_path, 2), "checkpoint-2", 2, {})
    assert not training.should_save(3)
    assert left(tmp_path / "run") == ""


def test_a_checkpoint_that_is_gone_is_lost_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = begun(tmp_path)
    give_notice(tmp_path / "run")
    assert training.should_save(2)
    training.keep(str(tmp_path / "nowhere"), "checkpoint-2", 2, {})
    assert not training.should_save(3)
    [record] = records_in(tmp_path / "run", "checkpoint")
    assert "No such file" in record["lost"]
    assert "could not save on notice" in capsys.readouterr().err


def test_the_programs_own_functions_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path).keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
    loaded: list[str] = []
    session.bind(load=loaded.append)
    assert len(loaded) == 1
    training = FrameworkCheckpoints("transformers", session)
    assert training.restored() is None
    training.begins()
    assert resumable(tmp_path) == {"save": False, "load": True}  # as bound
    give_notice(tmp_path / "run")
    assert not training.should_save(1)
    training.keep(saved(tmp_path, 40), "checkpoint-40", 40, {})
    assert len(records_in(tmp_path / "run", "checkpoint")) == 1


def test_they_do_so_also_when_bound_later(tmp_path: Path) -> None:
    session = Session(str(tmp_path / "run"), NAME)
    training = FrameworkCheckpoints("transformers", session)
    training.begins()
    session.bind(load=print)
    give_notice(tmp_path / "run")
    assert not training.should_save(1)
    training.keep(saved(tmp_path, 1), "checkpoint-1", 1, {})
    training.ends()
    assert records_in(tmp_path / "run", "checkpoint") == []
    assert resumable(tmp_path) == {"save": False, "load": True}


def test_several_processes_without_torch_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    training = begun(tmp_path)
    assert not training.is_on
    assert not (tmp_path / "run/resumable.json").exists()
    assert "its checkpoints are not kept" in capsys.readouterr().err


class Store:
    """As that of torch.distributed, in one process."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> Any:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, count: int) -> int:
        with self._lock:
            self.values[key] = self.values.get(key, 0) + count
            return int(self.values[key])

    def delete_key(self, key: str) -> None:
        del self.values[key]


@pytest.mark.parametrize("is_kept", [True, False])
def test_all_processes_save_in_the_same_step_and_leave_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    store = Store()
    trainings = [
        FrameworkCheckpoints("transformers", Session(str(tmp_path / "run"), NAME)) for _ in "ab"
    ]
    for rank, training in enumerate(trainings):
        training.number = 1
        monkeypatch.setattr(Ranks, "current", lambda rank=rank: Ranks(rank, 2, store))
        training.begins()
    first, second = trainings
    assert not first.should_save(1)
    assert not second.should_save(1)
    give_notice(tmp_path / "run")
    assert not first.should_save(2)
    assert not second.should_save(2)  # as far as it may be
    assert first.should_save(3)
    assert second.should_save(3)
    path = saved(tmp_path, 3) if is_kept else str(tmp_path / "nowhere")
    ended: list[object] = []

    def keep() -> None:
        try:
            second.keep(path, "checkpoint-3", 3, {})
            ended.append("stays")
        except SystemExit as leaving:
            ended.append(leaving.code)

    thread = threading.Thread(target=keep)
    thread.start()
    if is_kept:
        with pytest.raises(SystemExit):
            first.keep(path, "checkpoint-3", 3, {})
    else:
        first.keep(path, "checkpoint-3", 3, {})
    thread.join()
    assert ended == [EXIT_CODE if is_kept else "stays"]
    assert left(tmp_path / "run") == ("checkpoint-3" if is_kept else "")
    assert not first.should_save(4)
    assert len(records_in(tmp_path / "run", "checkpoint")) == 1


def test_what_cannot_be_resumed_is_only_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = FrameworkCheckpoints("transformers", Session(str(tmp_path / "run"), NAME))
    training.begins(is_resumable=False)
    training.keep(saved(tmp_path, 20), "checkpoint-20", 20, {})
    give_notice(tmp_path / "run")
    assert not training.should_save(21)
    training.ends()
    assert not (tmp_path / "run/resumable.json").exists()
    assert len(records_in(tmp_path / "run", "checkpoint")) == 1
    session = next_attempt(tmp_path, monkeypatch, "checkpoint-20")
    assert FrameworkCheckpoints("transformers", session).restored() is None
