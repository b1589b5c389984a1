"""Progress records: who writes them, how often, and that they never hurt the program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsml import _progress, _steps
from nsml._progress import ProgressWriter
from nsml._session import Session
from nsml._spool import Spool
from tests.unit.nsml.test_sdk_spool import ROOT, read

if TYPE_CHECKING:
    from collections.abc import Iterator


class Hand:
    """A monotonic clock set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK", "NSML_RANK", "NSML_RESUME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    clock = Hand()
    monkeypatch.setattr(_progress, "time", clock)
    monkeypatch.setattr(_steps, "time", clock)
    return clock


@pytest.fixture
def writer(tmp_path: Path) -> ProgressWriter:
    return ProgressWriter(Spool(str(tmp_path / "spool")))


def written(folder: Path) -> list[dict[str, Any]]:
    records = [one for path in sorted(folder.glob("spool/*.records")) for one in read(path)]
    return [one for one in records if one["kind"] == "progress"]


def done(folder: Path) -> list[float]:
    return [one["done"] for one in written(folder)]


def test_a_record_has_what_is_known(writer: ProgressWriter, tmp_path: Path) -> None:
    before = time.time()
    writer.write(3.5, 10, "epochs", "lightning", 2e9)
    writer.write(10, 10, "epochs", "lightning")
    first, last = written(tmp_path)
    assert before <= first.pop("time") <= last.pop("time") <= time.time()
    assert first == {
        "kind": "progress", "done": 3.5, "of": 10.0, "unit": "epochs", "origin": "lightning", "ends_at": 2e9,
    }  # fmt: skip
    assert last == {
        "kind": "progress", "done": 10.0, "of": 10.0, "unit": "epochs", "origin": "lightning",
    }  # fmt: skip


def test_one_record_a_second_but_the_end_and_changes_at_once(
    writer: ProgressWriter, tmp_path: Path, hand: Hand
) -> None:
    for step in range(30):
        writer.write(step, 100, "steps")
        hand.now += 0.125
    assert done(tmp_path) == [0, 8, 16, 24]
    writer.write(30, 200, "steps")
    writer.write(31, 200, "steps")
    writer.write(1, 200, "epochs")
    writer.write(200, 200, "epochs")
    writer.write(200, 200, "epochs")
    assert done(tmp_path) == [0, 8, 16, 24, 30, 1, 200]


def test_the_outer_training_counts_until_it_ends(
    writer: ProgressWriter, tmp_path: Path, hand: Hand
) -> None:
    def inner() -> None:
        for step in range(5):
            hand.now += 2
            writer.write(step + 1, 5, "steps", "transformers")
        writer.finish(5, 5, "steps", "transformers")

    writer.write(0, 2, "epochs", "nsml")
    inner()
    hand.now += 2
    writer.write(1, 2, "epochs", "nsml")
    inner()
    writer.write(2, 2, "epochs", "nsml")
    assert [one["unit"] for one in written(tmp_path)] == ["epochs"] * 3
    inner()  # alone now
    assert done(tmp_path) == [0, 1, 2, 1, 2, 3, 4, 5]


def test_a_training_that_ends_early_says_where(
    writer: ProgressWriter, tmp_path: Path, hand: Hand
) -> None:
    writer.write(0, 10, "epochs", "keras")
    writer.write(4, 10, "epochs", "keras")
    writer.finish(4, 10, "epochs", "keras")
    writer.finish(4, 10, "epochs", "keras")
    writer.write(1, 3, "steps", "other")
    assert done(tmp_path) == [0, 4, 1]
    assert hand.now == 100.0


@pytest.mark.parametrize(
    "arguments",
    [
        (float("nan"), 10, "epochs"),
        (float("inf"), 10, "epochs"),
        (-1, 10, "epochs"),
        (1, -10, "epochs"),
        (1, float("inf"), "epochs"),
        (1, 10, ""),
        (1, 10, "Epochs"),
        (1, 10, "e" * 17),
        (1, 10, None),
        (1, 10, 3),
        (None, 10, "epochs"),
        ("x", 10, "epochs"),
        (object(), object(), object()),
        (10**400, 10, "epochs"),
        (1, 10**400, "epochs"),
    ],
)
def test_a_wrong_call_neither_raises_nor_writes(
    writer: ProgressWriter, tmp_path: Path, arguments: tuple[Any, ...]
) -> None:
    writer.write(*arguments)
    writer.finish(*arguments)
    assert written(tmp_path) == []
    writer.write(1, 10, "epochs")
    assert done(tmp_path) == [1]


@pytest.mark.parametrize(
    ("origin", "ends_at"), [("X", float("nan")), ("a b", -1.0), (None, "x"), (7, None)]
)
def test_a_wrong_origin_or_end_is_left_out_or_the_record_is(
    writer: ProgressWriter, tmp_path: Path, origin: Any, ends_at: Any
) -> None:
    writer.write(1, 10, "epochs", origin, ends_at)
    for one in written(tmp_path):
        assert one.keys() == {"kind", "time", "done", "of", "unit"}


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "NSML_RANK"])
def test_other_ranks_write_nothing(
    writer: ProgressWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    writer.write(1, 10, "epochs")
    writer.write(10, 10, "epochs")
    assert written(tmp_path) == []


def test_a_full_disk_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("no folder")
    writer = ProgressWriter(Spool(str(tmp_path / "spool")))
    writer.write(1, 10, "epochs")
    writer.finish(2, 10, "epochs")


def test_loops_of_steps_report_by_themselves(tmp_path: Path, hand: Hand) -> None:
    session = Session(str(tmp_path), "kim/None/1")
    for _ in session.progress.steps(10):
        hand.now += 0.25
        for _ in session.progress.steps(2):
            hand.now += 0.125  # nested: the outer one counts
    assert done(tmp_path) == [0, 2, 4, 6, 8, 10]
    assert {(one["of"], one["unit"], one["origin"]) for one in written(tmp_path)} == {
        (10.0, "steps", "nsml")
    }


def test_a_loop_that_is_left_says_how_far_it_came(tmp_path: Path, hand: Hand) -> None:
    session = Session(str(tmp_path), "kim/None/1")
    for step in session.progress.steps(10):
        if step == 3:
            break
    for _ in session.progress.steps(2):
        pass
    assert done(tmp_path) == [0, 3, 0, 2]
    assert hand.now == 100.0


def test_a_resumed_loop_begins_where_it_was(tmp_path: Path, hand: Hand) -> None:
    session = Session(str(tmp_path), "kim/None/1")
    session.progress.resume([7])
    assert list(session.progress.steps(10)) == [7, 8, 9]
    assert done(tmp_path) == [7, 10]
    assert hand.now == 100.0


def test_outside_of_a_session_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(Session("", "").progress.steps(3)) == [0, 1, 2]
    assert list(tmp_path.rglob("*.records")) == []


PROGRAM = """
import os, nsml
steps = iter(nsml.steps(4))
next(steps)
if os.fork() == 0:  # a worker that goes on with the loop writes nothing of it
    list(steps)
    os._exit(0)
os.wait()
next(steps)
del steps
"""


def test_a_fork_does_not_report_for_its_parent_and_an_end_midway_is_told(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NSML_RUN_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == ""
    assert done(tmp_path) == [0, 1]
