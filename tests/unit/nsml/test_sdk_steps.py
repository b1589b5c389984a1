"""`nsml.steps`: a loop that goes on behind the step in which its checkpoint was saved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsml import _leaving, _session
from nsml._session import Session
from nsml._steps import FILE, read_done
from tests.unit.nsml.test_sdk_leaving import give_notice

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "anna/digits/3"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "NSML_RANK", "NSML_RESUME", "NSML_ATTEMPT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_leaving, "LOOK_S", 0.0)


class Training:
    """A session whose checkpoints the next attempt finds, as an agent lays them out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._attempts = 0
        self.weight = 0

        def lay_out(
            session: Session, name: str, load_fn: Any, _: Any, *, is_resuming: bool = False
        ) -> list[int]:
            before = folder / str(self._attempts - 1) / "checkpoints"
            (found,) = sorted(before.glob(f"*-{name}"))[-1:]
            copy = folder / f"copy-{self._attempts}"
            shutil.copytree(found / "model", copy, dirs_exist_ok=True)
            done, _ = read_done(str(copy), remove=True)
            self.seen = sorted(path.name for path in copy.iterdir())
            session._model.load(str(copy), load_fn)
            return done

        monkeypatch.setattr(Session, "_load_from_afar", lay_out)

    def attempt(self, resume: str = "", *, is_bound: bool = True) -> Session:
        self._attempts += 1
        self._monkeypatch.setenv("NSML_RESUME", resume)
        self.run_dir = self._folder / str(self._attempts)
        self.run_dir.mkdir()
        self.weight = 0
        session = Session(str(self.run_dir), NAME)
        if is_bound:
            session.bind(save=self._save, load=self._load)
        return session

    def _save(self, path: str) -> None:
        Path(path, "weight").write_text(str(self.weight))

    def _load(self, path: str) -> None:
        self.weight = int(Path(path, "weight").read_text())


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path, monkeypatch)


def test_without_a_checkpoint_it_is_a_range(training: Training) -> None:
    session = training.attempt()
    assert list(session.progress.steps(3)) == [0, 1, 2]
    assert list(session.progress.steps(1, 8, 3)) == [1, 4, 7]
    assert list(session.progress.steps(-1)) == []
    assert len(session.progress.steps(20)) == 20
    assert repr(session.progress.steps(20)) == "nsml.steps(range(0, 20))"
    for wrong in ((), (1.5,), ("3",)):
        with pytest.raises(TypeError):
            session.progress.steps(*wrong)


def test_it_goes_on_behind_the_step_that_saved(training: Training) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(20):
        training.weight += 1
        session.save(epoch)
        if epoch == 6:
            break  # as if it were killed
    session = training.attempt("6")
    steps = session.progress.steps(20)
    assert len(steps) == 13
    assert next(iter(steps)) == training.weight == 7
    assert training.seen == ["weight"], "the program's own files, and nothing else"


def test_what_was_saved_between_or_behind_the_loops_counts(training: Training) -> None:
    session = training.attempt()
    session.save("first")
    assert list(session.progress.steps(2)) == [0, 1]
    session.save("between")
    for step in session.progress.steps(10, 15):
        if step == 12:
            session.save("within")
    session.save("last")
    ways = {"first": ([0, 1], [10, 11, 12, 13, 14]), "between": ([], [10, 11, 12, 13, 14])}
    ways |= {"within": ([], [13, 14]), "last": ([], [])}
    run_dir = training.run_dir
    for name, (first, second) in ways.items():
        session = training.attempt(is_bound=False)
        shutil.copytree(run_dir / "checkpoints", training.run_dir / "checkpoints")
        session = training.attempt(name)
        session.save("at once")
        shutil.rmtree(training.run_dir / "checkpoints" / "1-at%20once")
        assert list(session.progress.steps(2)) == first
        assert list(session.progress.steps(10, 15)) == second


@pytest.mark.parametrize(("bounds", "left"), [((8,), [7]), ((7,), []), ((3,), []), ((5, 13), [12])])
def test_another_number_of_steps(
    training: Training, bounds: tuple[int, ...], left: list[int]
) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(20):
        if epoch == 6:
            session.save("x")
            break
    session = training.attempt("x")
    assert list(session.progress.steps(*bounds)) == left
    session.save("again")
    session = training.attempt("again")
    assert list(session.progress.steps(*bounds)) == []


def test_a_loop_within_a_loop_is_a_range(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(session: Session, saves: bool) -> Iterator[tuple[int, int]]:
        for epoch in session.progress.steps(3):
            for batch in session.progress.steps(2):
                yield epoch, batch
            if saves and epoch == 1:
                session.save("x")
                return

    session = training.attempt()
    assert list(train(session, saves=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    session = training.attempt("x")
    assert list(train(session, saves=False)) == [(2, 0), (2, 1)]
    assert capsys.readouterr().err.count("within another nsml.steps") == 2, "once a program"


def test_after_a_break_or_an_error_another_loop_counts_for_itself(training: Training) -> None:
    session = training.attempt()
    for _ in session.progress.steps(5):
        break

    def train() -> None:
        for _ in session.progress.steps(5):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()
    for step in session.progress.steps(5):
        if step == 2:
            session.save("x")
            break
    session = training.attempt("x")
    assert [list(session.progress.steps(5)) for _ in range(4)] == [
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [3, 4],
        [0, 1, 2, 3, 4],
    ]


def test_on_notice_it_saves_between_two_steps(training: Training) -> None:
    session = training.attempt()
    ended = []

    def train() -> None:
        for epoch in session.progress.steps(20):
            training.weight += 1
            if epoch == 4:
                give_notice(training.run_dir)
            session.reporter.report(step=epoch, first=1)
            session.reporter.report(step=epoch, second=1)
            ended.append(epoch)

    with pytest.raises(SystemExit):
        train()
    assert ended == [0, 1, 2, 3, 4], "all that belongs to the step is done"
    session = training.attempt("attempt-1")
    assert (next(iter(session.progress.steps(20))), training.weight) == (5, 5)


def test_a_save_of_its_own_after_the_notice_is_of_that_step(training: Training) -> None:
    session = training.attempt()

    def train() -> None:
        for epoch in session.progress.steps(20):
            if epoch == 4:
                give_notice(training.run_dir)
            session.reporter.report(step=epoch, loss=1)
            session.save(epoch)

    with pytest.raises(SystemExit):
        train()
    session = training.attempt("4")
    assert next(iter(session.progress.steps(20))) == 5


def test_a_step_that_takes_long_is_saved_midway_and_done_again(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session, "_LONGEST_STEP_S", 0.0)
    session = training.attempt()

    def train() -> None:
        for epoch in session.progress.steps(20):
            if epoch == 4:
                give_notice(training.run_dir)
            session.reporter.report(batch=1)

    with pytest.raises(SystemExit):
        train()
    session = training.attempt("attempt-1")
    assert next(iter(session.progress.steps(20))) == 4


def test_a_loop_without_reports_gives_way_too(training: Training) -> None:
    session = training.attempt()

    def train() -> None:
        for epoch in session.progress.steps(20):
            if epoch == 19:
                give_notice(training.run_dir)

    with pytest.raises(SystemExit):
        train()
    session = training.attempt("attempt-1")
    assert list(session.progress.steps(20)) == []


def test_what_is_loaded_by_hand_moves_no_loop(training: Training) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(5):
        session.save(epoch)
    session = training.attempt()
    session.load("4", session="ben/digits/1")
    assert list(session.progress.steps(5)) == [0, 1, 2, 3, 4]


def test_what_paused_loads_does(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(5):
        session.save(epoch)
    monkeypatch.setattr(_session.sys, "argv", ["main.py", "--iteration", "2"])
    session = training.attempt()
    session.paused()
    assert list(session.progress.steps(5)) == [3, 4]


def test_where_nothing_is_loaded_it_says_so_and_begins_anew(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(5):
        session.save(epoch)
    session = training.attempt("4", is_bound=False)
    assert list(session.progress.steps(2)) == [0, 1]
    assert "checkpoint 4 is not loaded; call nsml.bind(" in capsys.readouterr().err
    session = training.attempt("4", is_bound=False)
    shutil.copytree(training.run_dir.parent / "1" / "checkpoints", training.run_dir / "checkpoints")
    begun = iter(session.progress.steps(3))
    assert next(begun) == 0
    session.bind(save=training._save, load=training._load)
    assert list(begun) == [1, 2]
    assert "began before the checkpoint was loaded" in capsys.readouterr().err


def test_a_load_that_fails_begins_anew(training: Training) -> None:
    session = training.attempt()
    for epoch in session.progress.steps(5):
        session.save(epoch)

    def fails(_: str) -> None:
        raise NameError("optimizer")

    session = training.attempt("4", is_bound=False)
    session.bind(save=training._save, load=fails)
    assert list(session.progress.steps(2)) == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"done": 3}', '{"done": [-1]}', '{"done": ["3"]}'),
        *('{"done": [true]}', '{"done": [1e3]}', "[" * 100_000),
        json.dumps({"done": [1] * 2000}),
        json.dumps({"done": [10**99]}),
    ],
)
def test_a_file_that_says_nothing_of_use_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert read_done(str(tmp_path)) == ([], {})
    assert read_done(str(tmp_path / "nowhere")) == ([], {})


def test_a_checkpoint_of_one_file_is_still_one_of_one_file(training: Training) -> None:
    session = training.attempt()
    for _ in session.progress.steps(1):
        session.save("x")
    seen: list[str] = []

    def load(path: str) -> None:
        seen.append(path)
        Path(path).read_text()

    session.load("x", load)
    assert [Path(path).name for path in seen] == ["model", "weight"]


def test_the_sdk_outside_of_a_session(tmp_path: Path) -> None:
    program = (
        "import nsml\nfor epoch in nsml.steps(3):\n    print(epoch)\n    nsml.report(step=epoch)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={key: value for key, value in environment.items() if not key.startswith("NSML_")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "0\n1\n2\n"
    assert list(tmp_path.iterdir()) == []
